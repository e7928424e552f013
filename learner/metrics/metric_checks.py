"""Checks of metrics that a builder registers."""

from typing import Any

from learner.errors import LearnerError
from learner.metrics.base import Metric, MetricBase


def splits_of(metric: MetricBase) -> list[str]:
    """Return the kinds of split of a metric. A validation has no optimizer steps."""
    of_steps = isinstance(metric, Metric) and metric.per_step
    return [kind for kind in ("train", "valid") if kind in metric.splits and not (of_steps and kind == "valid")]


def check_metric(metric: Any) -> MetricBase:
    """Return a metric. Raise `LearnerError` for a class or another object, and for attributes of another type."""
    if isinstance(metric, type) and issubclass(metric, MetricBase):
        raise LearnerError(
            f"the metric {metric.__name__} is a class; pass an instance, {metric.__name__}()",
            code="metric-not-instance",
        )
    if not isinstance(metric, MetricBase):
        raise LearnerError(
            f"a metric is {metric!r}; it needs an instance of learner.metrics.Metric", code="metric-type"
        )
    if not metric.name or not isinstance(metric.name, str):
        lacks = "has no name" if not metric.name else f"has the name {metric.name!r}, which is no text"
        raise LearnerError(
            f"the metric {type(metric).__name__} {lacks}; set the attribute `name`", code="metric-unnamed"
        )
    if not isinstance(metric.higher_is_better, bool | None):
        raise LearnerError(
            f"higher_is_better of the metric {metric.name} is {metric.higher_is_better!r}; it needs True, False, or "
            "None for a metric without a direction",
            code="metric-direction",
            name=metric.name,
        )
    if isinstance(fields := getattr(metric, "fields", ()), str):
        raise LearnerError(
            f"fields of the metric {metric.name} is the text {fields!r}; it needs a tuple: ({fields!r},)",
            code="metric-fields-type",
            name=metric.name,
        )
    if not splits_of(metric):
        raise LearnerError(
            f"the metric {metric.name} has no split: its splits are {metric.splits!r}, and a metric of steps "
            "(per_step) is one of train",
            code="metric-without-split",
            name=metric.name,
        )
    return metric


def check_numeric(metric: Any) -> MetricBase:
    """Return a metric as `check_metric` does. Raise `LearnerError` also if its value is a text."""
    checked = check_metric(metric)
    if not checked.numeric:
        raise LearnerError(
            f"the metric {checked.name} gives a text, not a number; register it with metric_train or metric_valid",
            code="metric-text-not-number",
        )
    return checked
