"""The rows that collecting metrics need until their split ends."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import CollectingMetric
from learner.steps.buffers import StepOutputs
from learner.training.reporting.messages import StepsDispatched
from learner.util.ownership import ThreadOwned

PyTree = Any


class RowCollector(ThreadOwned):
    """The collected rows by split and metric. It belongs to the reporter's thread.

    Args:
      collected: the rows from a checkpoint: by split and metric, lists of the leaves of each batch.
      row_trees: the structures of these rows, by metric.
    """

    def __init__(
        self, collected: dict[str, dict[str, list[list[np.ndarray]]]] | None, row_trees: Mapping[str, Any] | None
    ):
        self._collected = collected or {}
        self._row_trees: dict[str, Any] = dict(row_trees or {})
        self._paddings: dict[tuple[str, str], list[int | None]] = {}  # of each leaf, by split and metric

    def add(self, dispatched: StepsDispatched, values: StepOutputs, collecting: Sequence[CollectingMetric]) -> None:
        """Append the rows of a dispatch for each of its collecting metrics."""
        if not collecting:
            return
        # Batches in the order of training: first those in the loop's buffer, then the ragged ones.
        tails = values.tail if isinstance(values.tail, list) else [values.tail] if values.tail else []
        full = dispatched.batches - len(tails)
        # Steps that were skipped as not finite count in no metric.
        kept = np.asarray(values.nonfinite[: dispatched.count]) <= 0
        if not kept[-1]:  # the step that the ragged batches belong to
            tails = [jax.tree.map(lambda x: x[:0], tail) for tail in tails]
        parts = [jax.tree.map(lambda x: _flatten(x, full, kept), values.rows)] if values.rows else []
        by_metric = self._collected.setdefault(dispatched.split, {})
        for part in [*parts, *tails]:
            for metric, rows in zip(collecting, part, strict=True):
                leaves, self._row_trees[metric.name] = jax.tree.flatten(rows)
                self._paddings[dispatched.split, metric.name] = metric.paddings(rows)
                by_metric.setdefault(metric.name, []).append(leaves)

    def rows(self, split: str, name: str) -> PyTree:
        """Return all rows of a split for one metric, in order."""
        return self._row_trees[name].unflatten(self._columns(split, name))

    def discard(self, split: str) -> None:
        """Drop the rows of a split."""
        self._collected.pop(split, None)

    def to_store(self) -> dict[str, Any]:
        """Return the rows for a checkpoint: arrays by split, number of the metric, and number of the leaf. Metrics
        without a row are left out, as Orbax refuses empty arrays: all steps so far were skipped.
        """
        rows: dict[str, Any] = {}
        for split, metrics in self._collected.items():
            for index, name in enumerate(metrics):
                columns = self._columns(split, name)
                if any(map(len, columns)):
                    rows.setdefault(split, {})[str(index)] = {str(i): column for i, column in enumerate(columns)}
        return rows

    def _columns(self, split: str, name: str) -> list[np.ndarray]:
        """Return the leaves of all rows of a split for one metric."""
        parts = self._collected.get(split, {}).get(name, [])
        # Batches of skipped steps have no rows, and their other axes may differ.
        columns = list(zip(*([leaves for leaves in parts if any(map(len, leaves))] or parts[:1]), strict=True))
        paddings = self._paddings.get((split, name), [None] * len(columns))
        for column, padding in zip(columns, paddings, strict=True):
            if len(shapes := {rows.shape[1:] for rows in column}) > 1 and padding is None:
                raise LearnerError(
                    f"{name} collects rows of several shapes in the {split} split, {sorted(shapes)}: pad its batches "
                    "to one length, or set pads_rows = True on a metric that ignores the padding behind shorter rows",
                    code="metric-row-shapes-differ",
                    name=name,
                    split=split,
                )
        return [np.concatenate(_pad(column, padding or 0)) for column, padding in zip(columns, paddings, strict=True)]


def _pad(parts: Sequence[np.ndarray], value: int) -> list[np.ndarray]:
    """Return arrays `[rows, ...]` of equal shapes except for the rows. Shorter ones are padded with a value, and
    those of booleans and unsigned numbers, such as masks, with zeros.
    """
    value = value if parts[0].dtype.kind in "if" else 0
    longest = np.max([rows.shape[1:] for rows in parts], axis=0)
    margins = [longest - rows.shape[1:] for rows in parts]
    return [
        np.pad(rows, [(0, 0), *((0, n) for n in margin)], constant_values=value) if margin.any() else rows
        for rows, margin in zip(parts, margins, strict=True)
    ]


def _flatten(buffer: np.ndarray, batches: int, kept: np.ndarray) -> np.ndarray:
    """Return the rows of the first micro-batches of a buffer `[steps, micro-batches, rows, ...]`, as `[all rows,
    ...]`. The rest of the buffer was never written. `kept`: the steps to include, bool.
    """
    written = buffer.reshape(-1, *buffer.shape[2:])[:batches]
    if not kept.all():
        written = written[np.repeat(kept, buffer.shape[1])[:batches]]
    return written.reshape(-1, *buffer.shape[3:])
