"""Join the batches that several processes read."""

import itertools

import numpy as np


def together(readers, name, count):
    """Return the values of the global batches, joined from the readers' parts.

    Args:
      readers: the batches of each process, with `part` as a property or a method.
      name: the array to read.
      count: number of processes.
    """
    values = []
    for batches in itertools.zip_longest(*readers):
        parts = [reader.part() if callable(reader.part) else reader.part for reader in readers]
        rows = [np.asarray(batch[name]).tolist() for batch in batches]
        assert parts in ([True] * count, [False] * count)
        assert len({len(row) for row in rows}) == 1
        assert parts[0] or rows == [rows[0]] * count
        values.append(list(itertools.chain.from_iterable(rows)) if parts[0] else rows[0])
    return values
