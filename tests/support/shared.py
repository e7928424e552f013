"""Batches that several processes read, put together again."""

import itertools

import numpy as np


def together(readers, name, count):
    """Numbers of the global batches that the readers' batches are parts of.

    Args:
      readers: for each process its batches, with `part`, a property or a method.
      name: of the array to look at.
      count: how many processes there are.
    """
    found = []
    for batches in itertools.zip_longest(*readers):
        parts = [reader.part() if callable(reader.part) else reader.part for reader in readers]
        rows = [np.asarray(batch[name]).tolist() for batch in batches]
        assert parts in ([True] * count, [False] * count)
        assert len({len(each) for each in rows}) == 1
        assert parts[0] or rows == [rows[0]] * count
        found.append(list(itertools.chain.from_iterable(rows)) if parts[0] else rows[0])
    return found
