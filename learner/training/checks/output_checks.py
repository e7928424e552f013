"""Checks of the output of a step: its loss, its labels, and the fields that metrics read."""

import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError, Problem
from learner.metrics.adaptors import Adapted
from learner.metrics.base import CollectingMetric, Info, Metric, all_within
from learner.metrics.means import FieldMean
from learner.steps.measure import MetricCollection
from learner.steps.outputs import OF_LABELS
from learner.steps.step import StepFunctions
from learner.steps.train_state import TrainState
from learner.steps.tree_math import rows_of, weight_of
from learner.util.text import join_names
from learner.util.traced_values import explained
from learner.util.trees import named_leaves

PyTree = Any


def output_problems(
    step: StepFunctions,
    output: Any,
    measure: MetricCollection,
    name: str,
    traced: PyTree,
    batch: PyTree,
    state: TrainState,
) -> list[str]:
    """Return the problems of the output of a step that is being traced.

    Args:
      step: the definition of the run.
      output: the output of the step.
      measure: the metrics of the split.
      name: the name of the step, in messages.
      traced: the batch that the step got.
      batch: the values of that batch, or its shapes.
      state: the state of the run.
    """
    problem = _output_problem(output, name)
    if problem:
        return [problem]
    if wrong_dtypes := step.policy.problems(output, name):
        return wrong_dtypes
    output = step.policy.to_output_dtype(output)
    return [*_wrong_labels(output, measure, name, traced, batch), *_wrong_metrics(output, measure, name, traced, state)]


def _output_problem(output: Any, name: str) -> Problem | None:
    needs = "return an output with a loss, such as ClassificationOutput.from_logits(logits, labels) or Output(loss)"
    if output is None:
        return Problem(f"{name} returned nothing (None); {needs}", code="step-output-missing", name=name)
    if not hasattr(output, "loss"):
        what = (
            f"an array of shape {list(output.shape)}"
            if hasattr(output, "shape")
            else f"{type(output).__name__}{_fields_text(output)}"
        )
        return Problem(
            f"{name} returned {what}, which has no field 'loss'; {needs}", code="step-output-without-loss", name=name
        )
    if jax.tree_util.all_leaves([output]):
        return Problem(
            f"{name} returned {type(output).__name__}, which JAX does not know as a pytree; decorate the dataclass "
            "with @jax.tree_util.register_dataclass",
            code="step-output-no-pytree",
            name=name,
        )
    if not jax.tree_util.all_leaves([output.loss]) and not hasattr(output.loss, "__jax_array__"):
        what = "nothing (None)" if output.loss is None else f"a {type(output.loss).__name__}"
        terms = ": add up the terms of a loss, and return each as a separate field, which FieldMean logs"
        remedy = "" if output.loss is None else terms
        return Problem(
            f"the loss of {name} is {what}; it needs one number{remedy}",
            code="step-loss-type",
            name=name,
        )
    shape, dtype = jnp.shape(output.loss), jnp.result_type(output.loss)
    if shape != ():
        return Problem(
            f"the loss of {name} has shape {list(shape)}; it needs one number, the mean over the batch",
            code="step-loss-shape",
            name=name,
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        return Problem(
            f"the loss of {name} has dtype {dtype}; it needs a floating-point number", code="step-loss-dtype", name=name
        )
    weight = getattr(output, "weight", None)
    if weight is not None and jnp.shape(weight) != ():
        return Problem(
            f"the weight of {name}'s output has shape {list(jnp.shape(weight))}; it needs one number, what the loss is "
            "the mean over",
            code="step-weight-shape",
            name=name,
        )
    return None


def _fields_text(output: Any) -> str:
    fields = _fields(output)
    return f" with {', '.join(fields)}" if fields else ""


def _fields(output: Any) -> list[str]:
    if dataclasses.is_dataclass(output):
        return [f.name for f in dataclasses.fields(output) if getattr(output, f.name) is not None]
    return [name for name in getattr(output, "__dict__", getattr(output, "_fields", ())) if not name.startswith("_")]


def _wrong_labels(output: Any, measure: MetricCollection, name: str, traced: PyTree, batch: PyTree) -> list[str]:
    """Return labels outside of the classes. They are found only if the targets are an unchanged field of the batch that
    a metric, or the loss of an output of this package, reads.

    Labels that a metric ignores do not count.
    """
    targets, logits = getattr(output, "targets", None), getattr(output, "logits", None)
    if (
        targets is None
        or logits is None
        or getattr(output, "mask", None) is not None
        or logits.ndim != targets.ndim + 1
    ):
        return []
    metrics: tuple[Metric | CollectingMetric, ...] = (*measure.metrics, *measure.collecting)
    if not isinstance(output, OF_LABELS) and not any("targets" in metric.fields for metric in metrics):
        return []
    parts = [part for metric in metrics for part in all_within(metric)]
    classes = logits.shape[-1]
    for path, leaf in named_leaves(traced).items():
        if leaf is targets and not isinstance(given := named_leaves(batch)[path], jax.core.Tracer):
            ignored = [part.ignore_label for part in parts if hasattr(part, "ignore_label")]
            labels = np.asarray(given)
            labels = labels[~np.isin(labels, [label for label in ignored if label is not None])]
            if labels.size and (labels.min() < 0 or labels.max() >= classes):
                advice = _label_advice(labels, classes, by_metrics=not isinstance(output, OF_LABELS))
                return [
                    Problem(
                        f"the labels '{path}' go from {labels.min()} to {labels.max()}, but the logits of {name} have "
                        f"{classes} classes (0 to {classes - 1}); {advice}",
                        code="batch-labels-out-of-range",
                        path=path,
                        classes=classes,
                    )
                ]
    return []


def _label_advice(labels: np.ndarray, classes: int, by_metrics: bool) -> str:
    """Return the remedy for labels outside of the classes. `by_metrics`: only metrics read them."""
    special = (labels < 0) | ((labels == 255) & (classes < 255))  # usual markers of labels that do not count
    counted, advice = labels[~special], []
    if counted.size and (most := int(counted.max())) >= classes:
        from_one = "if they count from 1, subtract 1 from the labels; otherwise "
        advice.append(f"{from_one if counted.min() > 0 and most == classes else ''}they need {most + 1} logits")
    if special.any():
        values, counts = np.unique(labels[special], return_counts=True)
        label = values[counts.argmax()]
        remedy = (
            f"give the output a mask, such as labels != {label}, or its metrics ignore_label={label}"
            if by_metrics
            else f"give from_logits ignore_label={label}, or a mask"
        )
        advice.append(f"to ignore some of them, {remedy}")
    return "; ".join(advice)


def _wrong_metrics(
    output: Any, measure: MetricCollection, name: str, batch: PyTree, state: TrainState
) -> Iterator[Problem]:
    """Yield the problems of the metrics of a split with an output."""
    weight, known = jnp.asarray(weight_of(output, rows_of(batch)), jnp.float32), state.lr_scale
    of_step = Info(state.step, weight, known, known, **dict.fromkeys(measure.requires, known))
    # As the programs pass it: the norms are known after all micro-batches, and a validation has no learning rate.
    of_batch = Info(state.step, weight, None if name == "valid_step" else known)
    metrics: tuple[Metric | CollectingMetric, ...] = (*measure.metrics, *measure.collecting)
    lengths = {jnp.shape(x)[0] for x in jax.tree.leaves(batch)}
    rows = rows_of(batch) if len(lengths) == 1 else None  # graphs have nodes and edges
    states: dict[int | None, PyTree] = {}  # by index: metrics may share one, which is traced once
    for metric, index in zip(metrics, (*measure.state_of, *[None] * len(measure.collecting)), strict=True):
        missing = [f for f in metric.fields if _field(output, f) is None]
        if missing:
            has = ", ".join(_fields(output))
            yield Problem(
                f"the metric {metric.name} needs {', '.join(missing)}, which {name}'s {type(output).__name__} "
                f"does not have; it has {has}",
                code="metric-missing-field",
                name=metric.name,
            )
            continue
        try:
            if problem := _field_problem(metric, output, name, rows):
                yield problem
                continue
            info = of_step if getattr(metric, "per_step", False) else of_batch
            yield from _tried(metric, output, info, rows, states, index)
        except Exception as error:
            text = f"the metric {metric.name} cannot be computed from {name}'s output: {explained(error)}"
            code = error.code if isinstance(error, LearnerError) and error.code != "user" else "metric-fails"
            yield Problem(text, code=code, name=metric.name)


def _field_problem(metric: Metric | CollectingMetric, output: Any, name: str, rows: int | None) -> Problem | None:
    """Return the problem of a metric of this package with its fields of the output of `name`, or None."""
    # Those that contain others leave the fields to them.
    is_ours = type(metric).__module__.startswith("learner.metrics.") and not isinstance(metric, Adapted)
    if not isinstance(metric, Metric) or metric.inner or not is_ours:
        return None
    fields = {field: _field(output, field) for field in metric.fields}
    if wrong := [field for field, value in fields.items() if any(map(jnp.iscomplexobj, jax.tree.leaves(value)))]:
        return Problem(
            f"the metric {metric.name} is of real numbers, and {join_names(wrong, 3)} of {name}'s output is complex: "
            "return its real part, or its absolute value, in a field of the output",
            code="metric-complex-field",
            name=metric.name,
        )
    shapes = [jnp.shape(value) for value in fields.values()] if isinstance(metric, FieldMean) else []
    # Several values of each row may be in one axis, such as those of its tokens.
    if rows is not None and (other := [shape for shape in shapes if shape and shape[0] % rows]):
        return Problem(
            f"the metric {metric.name} is a mean over rows, and that field of {name}'s output has the shape "
            f"{list(other[0])} for {rows} rows: return its mean, or each value in a field of its own",
            code="metric-field-rows",
            name=metric.name,
        )
    return None


def _field(output: Any, name: str) -> Any:
    """Return a field of an output, or by a dotted name of one of its heads; None if it is missing."""
    if (field := getattr(output, name, None)) is not None or "." not in name:
        return field
    head, _, rest = name.partition(".")
    part = getattr(output, head, None)
    return _field(types.SimpleNamespace(**part) if isinstance(part, Mapping) else part, rest)


def _tried(
    metric: Metric | CollectingMetric,
    output: Any,
    info: Info,
    rows: int | None,
    states: dict[int | None, PyTree],
    index: int | None,
) -> Iterator[Problem]:
    """Yield the problems of a metric for a batch of `rows` (None if its arrays differ in length). `states`: the states
    after this output of metrics that were tried before, by `index`.
    """
    if isinstance(metric, CollectingMetric):
        for path, leaf in named_leaves(metric.collect(output)).items():
            shape = jnp.shape(leaf)
            if rows is not None and shape[:1] != (rows,):
                yield Problem(
                    f"collect of the metric {metric.name} returned {path or 'an array'} {list(shape)} for a batch of "
                    f"{rows} rows; it needs one entry for each row, [{rows}, ...]",
                    code="metric-collect-rows",
                    name=metric.name,
                )
        return
    if index not in states:
        first = jax.tree.map(jnp.asarray, metric.init())
        state = metric.update(first, None if metric.per_step else output, info)
        for method, new in (("update", state), ("merge", metric.merge(first, first))):
            if new is None and first is not None:
                yield Problem(
                    f"{method} of the metric {metric.name} returned nothing (None); it needs to return the new state",
                    code="metric-state-changes",
                    name=metric.name,
                )
                return
            if _types(new) != _types(first):
                yield Problem(
                    f"{method} of the metric {metric.name} changed its state from {_types(first)} to {_types(new)}; "
                    "they must be the same",
                    code="metric-state-changes",
                    name=metric.name,
                )
                return
        states[index] = state
    value = metric.compute(states[index])
    if value is None:
        yield Problem(
            f"compute of the metric {metric.name} returned nothing (None); it needs to return the value",
            code="metric-value-shape",
            name=metric.name,
        )
    elif metric.numeric and jnp.shape(value) != ():
        yield Problem(
            f"the metric {metric.name} gives {list(jnp.shape(value))} numbers; one that is numeric gives a scalar",
            code="metric-value-shape",
            name=metric.name,
        )


def _types(tree: PyTree) -> list[str]:
    return [f"{jnp.result_type(x)}{list(jnp.shape(x))}" for x in jax.tree.leaves(tree)]
