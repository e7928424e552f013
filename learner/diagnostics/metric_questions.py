"""The question of `Learner.check` about metrics."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.diagnostics.check_result import FAILED, OK, WARNING, Finding, skipped
from learner.diagnostics.check_trial import CheckTrial
from learner.diagnostics.output_questions import MOST_NAMED, TOLERANCE, reason_without_outputs
from learner.metrics.base import Info, Metric
from learner.metrics.losses import Loss
from learner.metrics.rows import MaskedOutput
from learner.steps.measure import MetricCollection
from learner.steps.tree_math import rows_of, weight_of
from learner.util.text import count, join_names
from learner.util.trees import named_leaves

PyTree = Any
ROUNDING = 1e-5  # of values near 0, such as one minus a ratio
Values = Mapping[str, PyTree]  # of the metrics, by name


def metrics(trial: CheckTrial) -> Finding:
    """Compare the metrics of a validation batch with those of its parts. The number counts the metrics that differ."""
    if (reason := reason_without_outputs(trial)) is not None:
        return skipped(reason)
    # The loss is a mean over the batch already, which cannot be divided.
    measured = tuple(m for m in trial.valid_metrics if not m.per_step and not isinstance(m, Loss))
    if not measured:
        return skipped("The validation has no metrics, besides the loss, whose states are merged.")
    batch = trial.inputs.first_batches[trial.valid_split or ""]
    rows, output = rows_of(batch), trial.evaluate(trial.state, batch, jnp.int32(0))
    info = Info(trial.state.step, jnp.asarray(weight_of(output, rows), jnp.float32))
    collection = MetricCollection.of(measured)
    expected, *with_init = jax.jit(_with_init, static_argnums=0)(collection, output, info)
    not_neutral = _differing(expected, with_init)
    # Graphs have several kinds of rows, and an array such as a mean has none.
    single = {len(x) for x in named_leaves(batch).values()} == {rows}
    divisible = MetricCollection.of([m for m in measured if single and _has_row_fields(m, output, rows)])
    compared, divided, padded = 0, list[str](), list[str]()
    # A metric may not take every number of rows, such as one of pairs.
    with contextlib.suppress(Exception):
        if rows > 1 and divisible.metrics:
            parts, first, masked = jax.jit(_of_parts, static_argnums=(0, 3))(divisible, output, info, rows)
            compared = len(divisible.metrics)
            divided = _differing({name: expected[name] for name in parts[0]}, parts)
            padded = _differing(first, masked)
    divided = [name for name in divided if name not in not_neutral]
    if not (compared or not_neutral):
        changes = f"the state of no rows changes none of {count(len(measured), 'metric')}"
        return Finding(OK, 0.0, f"Rows of the batch could not be divided; {changes}.")
    return _finding(compared, not_neutral, divided, padded)


def _finding(compared: int, not_neutral: list[str], divided: list[str], padded: list[str]) -> Finding:
    findings = {
        "merging the state of init, of no rows, must change nothing": not_neutral,
        "parts of a batch, merged in any order, give other numbers than the whole, so they depend on the batch size "
        "and on the number of devices": divided,
        "rows count that the mask leaves out: use rows_mask(output)": padded,
    }
    texts = [f"{join_names(names, MOST_NAMED)}: {text}" for text, names in findings.items() if names]
    differing = float(len({*not_neutral, *divided, *padded}))
    if texts:
        return Finding(FAILED if not_neutral else WARNING, differing, f"{'; '.join(texts)}.")
    return Finding(OK, 0.0, f"The values of {count(compared, 'metric')} do not depend on how rows are divided.")


def _with_init(collection: MetricCollection, output: Any, info: Info) -> list[Values]:
    """Return the values of a batch, and of its state merged with that of no rows."""
    init = collection.init()
    state = collection.update(init, output, info)
    return [collection.values(s) for s in (state, collection.merge(init, state), collection.merge(state, init))]


def _of_parts(
    collection: MetricCollection, output: Any, info: Info, rows: int
) -> tuple[list[Values], Values, list[Values]]:
    """Return the values of two parts of a batch, of unequal size, put together in several ways; those of the first
    part; and those of the batch with a mask that leaves out the others, if the output has a mask.
    """
    cut, init = max(1, rows // 3), collection.init()
    (first, of_first), (rest, of_rest) = _part(output, info, rows, 0, cut), _part(output, info, rows, cut, rows)
    a, b = (collection.update(init, *part) for part in ((first, of_first), (rest, of_rest)))
    states = collection.merge(a, b), collection.merge(b, a), collection.update(a, rest, of_rest)
    masked = []
    if (mask := getattr(output, "mask", None)) is not None:
        kept = (jnp.arange(rows) < cut).reshape(rows, *[1] * (mask.ndim - 1))
        masked.append(MaskedOutput(output, jnp.where(kept, mask, jnp.zeros_like(mask))))
    return (
        [collection.values(state) for state in states],
        collection.values(a),
        [collection.values(collection.update(init, each, of_first)) for each in masked],
    )


def _part(output: Any, info: Info, rows: int, begin: int, end: int) -> tuple[Any, Info]:
    """Return some rows of an output, and their share of its weight."""
    part = jax.tree.map(lambda x: x[begin:end] if x.shape[:1] == (rows,) else x, output)
    mask = getattr(output, "mask", None)
    total = jnp.float32(rows) if mask is None else mask.sum(dtype=jnp.float32)
    weight = jnp.float32(end - begin) if mask is None else part.mask.sum(dtype=jnp.float32)
    return part, dataclasses.replace(info, weight=info.weight * weight / jnp.where(total > 0, total, 1))


def _has_row_fields(metric: Metric, output: Any, rows: int) -> bool:
    """Return True if all arrays that a metric reads have an axis of rows."""
    fields = [getattr(output, name, None) for name in metric.fields]
    return all(np.shape(x)[:1] == (rows,) for x in jax.tree.leaves(fields))


def _differing(expected: Values, others: list[Values]) -> list[str]:
    """Return the metrics whose values differ by more than rounding from the expected ones."""
    return [
        name
        for name, value in expected.items()
        if not all(
            _are_close(x, y)
            for other in others
            for x, y in zip(jax.tree.leaves(value), jax.tree.leaves(other[name]), strict=True)
        )
    ]


def _are_close(a: Any, b: Any) -> bool:
    a, b = (np.asarray(x).astype(np.complex128) for x in (a, b))  # booleans have no difference
    return np.allclose(a, b, TOLERANCE, ROUNDING, equal_nan=True)
