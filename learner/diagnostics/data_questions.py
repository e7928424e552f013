"""Questions of `Learner.check` about the data."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from learner.diagnostics.check_result import FAILED, OK, WARNING, Finding, skipped
from learner.diagnostics.check_trial import CheckTrial
from learner.util.text import count, duration
from learner.util.trees import named_leaves

STREAMED = 100_000  # rows of a stream to read
IN_MEMORY = 1_000_000  # rows of arrays to read
FEW = 0.01  # the share of validation rows up to which equal rows may be a coincidence
TIMED = 8  # batches, and steps


def overlap(trial: CheckTrial) -> Finding:
    """Count the validation rows that are also training rows. Rows are equal if all their fields with at least one axis
    are equal. Fields with one number per row, such as labels and ids, are compared only if there are no other fields.
    Rows that consist of padding are left out.
    """
    if not trial.inputs.valid:
        return skipped("There is no validation data.")
    kinds = {split: _row_kind(trial.inputs.first_batches[split]) for split in ("train", *trial.inputs.valid)}
    if len(set(kinds.values())) > 1:
        return skipped("Rows of the training and the validation data have other shapes, so that none can be equal.")
    train, is_complete = _hashes(trial, "train")
    known, shared, looked = set(train), 0, 0
    for split in trial.inputs.valid:
        hashes, reached_end = _hashes(trial, split)
        is_complete &= reached_end
        looked += len(hashes)
        shared += sum(row in known for row in hashes)
    part = "" if is_complete else f" and {len(train):,} training rows, the first"
    rows = f"{count(looked, 'validation row')}{part}"
    if not shared:
        return Finding(OK, 0.0, f"None of {rows} is in the training data.")
    verdict = WARNING if shared <= FEW * looked else FAILED
    remedy = "split the data again, by groups if rows belong together, and remove duplicates before"
    are = "is" if shared == 1 else "are"
    return Finding(verdict, float(shared), f"{shared:,} of {rows} {are} in the training data: {remedy}.")


def _compared(batch: Any) -> dict[str, np.ndarray]:
    """Return the fields of a batch whose rows are compared."""
    fields: dict[str, np.ndarray] = named_leaves(batch)
    return {name: x for name, x in fields.items() if x.ndim > 1} or fields


def _row_kind(batch: Any) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple((name, x.shape[1:], str(x.dtype)) for name, x in _compared(batch).items())


def _hashes(trial: CheckTrial, split: str) -> tuple[list[bytes], bool]:
    """Return a hash of each row with content, and False if the data has more rows than were read."""
    most = IN_MEMORY if trial.inputs.source(split).has_rows else STREAMED
    hashes = _row_hashes(trial.batches(split))
    first = list(itertools.islice(hashes, most))
    return first, next(hashes, None) is None


def _row_hashes(batches: Iterator[Any]) -> Iterator[bytes]:
    for batch in batches:
        fields = [np.ascontiguousarray(x) for x in _compared(batch).values()]
        kind = str(_row_kind(batch)).encode()
        for row in _rows_with_content(batch):
            digest = hashlib.blake2b(kind, digest_size=16)
            for field in fields:
                digest.update(field[row].tobytes())
            yield digest.digest()


def _rows_with_content(batch: Any) -> np.ndarray:
    """Return the numbers of the rows of which a mask, named as by `Pack` and `Pad`, keeps something; of all rows if
    there is no mask.

    >>> _rows_with_content({"x": np.zeros((3, 2)), "mask": np.array([[True, False], [False, False], [True, True]])})
    array([0, 2])
    """
    fields: dict[str, np.ndarray] = named_leaves(batch)
    names = {"mask", *(f"{name}_mask" for name in fields)}
    masks = [x for name, x in fields.items() if name in names]
    rows = len(next(iter(fields.values())))
    if not masks:
        return np.arange(rows)
    return np.flatnonzero(np.any([(mask != 0).reshape(rows, -1).any(1) for mask in masks], axis=0))


def pipeline(trial: CheckTrial) -> Finding:
    """Compare the time to read a batch with the time of a step. The number is their ratio."""
    source = trial.inputs.source("train")
    if source.has_rows and trial.definition.strategy.resident:
        return skipped("The training data is in memory, and a run copies it to the device once.")
    seconds, read = _reading(trial)
    if not read:
        return skipped("The training data has a single batch.")
    batch, state = trial.inputs.first_batches["train"], trial.state
    trial.train(state, batch)  # compiles
    began = trial.clock()
    for _ in range(TIMED):
        state, _ = trial.train(state, batch)
    jax.block_until_ready(state)
    step = (trial.clock() - began) / TIMED
    ratio = seconds / read / step if step > 0 else float("inf")
    times = f"reading a batch takes {_time(seconds / read)}, and a step {_time(step)}"
    if ratio <= 1:
        return Finding(OK, ratio, f"The device does not wait for data: {times}.")
    remedy = "use num_workers(n), a larger prefetch, or cheaper items"
    return Finding(WARNING, ratio, f"The device waits for data: {times}; {remedy}.")


def _reading(trial: CheckTrial) -> tuple[float, int]:
    """Return the seconds for the batches after the first one, and their number. The first batch starts workers, and the
    end of an epoch ends them.
    """
    batches = trial.batches("train")
    next(batches)
    times = [trial.clock(), *(trial.clock() for _ in itertools.islice(batches, TIMED))]
    return times[-1] - times[0], len(times) - 1


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else duration(seconds)
