"""The metrics of a run on the host: columns of steps, values of splits, states for checkpoints."""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import CollectingMetric, HostMetric, Metric, MetricBase
from learner.runs.appended import shortest
from learner.runs.history import History
from learner.training.reporting.messages import SplitFinished
from learner.training.reporting.row_collector import RowCollector
from learner.training.reporting.step_reader import StepsRead
from learner.util.json_values import encode
from learner.util.ownership import ThreadOwned
from learner.util.text import short

Values = dict[str, float | str]
Pictures = dict[str, Callable[[], np.ndarray]]
Arrays = dict[str, Callable[[], Any]]

OF_LOSS = "it is made of the loss, which is not finite, or which the output does not have"


class HostMetrics(ThreadOwned):
    """The host's part of all metrics. It belongs to the reporter's thread.

    Args:
      metrics: the metrics by split.
      rows: the rows of collecting metrics.
      history: the values so far. Undefined ones were already reported by an earlier process of the run.
      warn: shows a warning to people, and logs it.
      unreported_losses: the splits whose loss is not reported if it is not finite. It explains no other metric there.

    Attributes:
      arrays: functions by key that return the newest value of a text metric as arrays.
      undefined: the reasons by key for the values that were reported as undefined.
    """

    def __init__(
        self,
        metrics: Mapping[str, Sequence[MetricBase]],
        rows: RowCollector,
        history: History,
        warn: Callable[[str], None],
        unreported_losses: Collection[str],
    ):
        self._metrics, self.rows, self._warn = metrics, rows, warn
        self._unreported_losses = unreported_losses
        self.arrays: Arrays = {}
        self.undefined: dict[str, str] = {}
        self._before: dict[str, dict[str, Any]] = {}  # the states before a validation in progress, by split
        self._without_value: set[str] = set()  # names of metrics that returned None
        self._reported = _undefined_in(history, unreported_losses)  # names of metrics that were reported as undefined

    def update(self, read: StepsRead, numbers: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of some steps of one split, by metric.

        Args:
          read: the dispatches of the steps.
          numbers: `[count, metrics]`, from the device.
          weights: `[count]`.
        """
        split, count = read.pairs[0][0].split, len(numbers)
        if split != "train" and split not in self._before:
            self._before[split] = self._states_of(split)
        rows = sum(dispatched.rows for dispatched, _ in read.pairs)
        weight = float(weights.sum(dtype=np.float64))
        columns, index = {}, 0
        for metric in self._metrics[split]:
            if isinstance(metric, Metric) and metric.numeric:
                columns[metric.name] = numbers[:, index]
                index += 1
            elif isinstance(metric, HostMetric):
                metric.on_batches(rows, weight)
                columns[metric.name] = np.full(
                    count, _checked_number(metric.name, metric.update(count, read.computing * count))
                )
        collecting = [metric for metric in self._metrics[split] if isinstance(metric, CollectingMetric)]
        for dispatched, values in read.pairs:
            self.rows.add(dispatched, values, collecting)
        return columns

    def compute(self, finished: SplitFinished, has_skips: bool) -> tuple[Values, Pictures]:
        """Return the values of a split by metric, and functions that draw the metrics with a picture. Reset the split.
        `has_skips`: some of its steps were skipped.
        """
        # One transfer for all metrics, as separate ones would each wait for the device.
        on_device = jax.device_get(dict(finished.values))
        values: Values = {}
        pictures: Pictures = {}
        for metric in self._metrics.get(finished.split, ()):
            if isinstance(metric, Metric):
                value = on_device[metric.name]
            elif isinstance(metric, CollectingMetric):
                value = metric.compute(self.rows.rows(finished.split, metric.name))
            else:
                assert isinstance(metric, HostMetric)
                value = metric.compute()
                metric.reset()
            if value is None:
                self._without_value.add(metric.name)
            values[metric.name] = _checked_number(metric.name, value) if metric.numeric else metric.text(value)
            if not metric.numeric:
                self.arrays[f"{finished.split}/{metric.name}"] = functools.partial(metric.arrays, value)
            if callable(draw := getattr(metric, "picture", None)):
                pictures[metric.name] = functools.partial(draw, value)
        self.rows.discard(finished.split)
        self._before.pop(finished.split, None)
        self._warn_of_undefined(finished, values, has_skips)
        others = {name: _checked_number(name, value) for name, value in on_device.items() if name not in values}
        return values | others, pictures

    def discard(self, split: str) -> None:
        """Drop the values of an interrupted validation."""
        self.rows.discard(split)
        for metric in self._metrics.get(split, ()):
            if isinstance(metric, HostMetric):
                metric.reset()

    def get_states(self) -> dict[str, dict[str, Any]]:
        """Return the states of metrics on the host for a checkpoint as JSON, by split and name. A validation in
        progress does not count, as it is repeated.
        """
        states = {split: self._before.get(split, self._states_of(split)) for split in self._metrics}
        return {split: of_split for split, of_split in states.items() if of_split}

    def _states_of(self, split: str) -> dict[str, Any]:
        metrics = [metric for metric in self._metrics.get(split, ()) if isinstance(metric, HostMetric)]
        states = {metric.name: metric.get_state() for metric in metrics}
        # Encoded now: the metric may change its state before the saver's thread writes it.
        return {name: encode(state) for name, state in states.items() if state is not None}

    def _warn_of_undefined(self, finished: SplitFinished, values: Mapping[str, float | str], has_skips: bool) -> None:
        """Warn once about each metric whose value is NaN, unless a report of the steps explains it."""
        loss_is_finite = math.isfinite(float(values.get("Loss", math.nan)))
        loss_is_reported = finished.split not in self._unreported_losses
        for metric in self._metrics.get(finished.split, ()):
            value = values[metric.name]
            if not isinstance(value, float) or not math.isnan(value) or metric.name in self._reported:
                continue
            per_step = getattr(metric, "per_step", False)
            of_loss = not loss_is_finite and (per_step or "loss" in getattr(metric, "fields", ()))
            # A loss that is not finite explains every metric made of it, or of its gradients.
            if of_loss and (loss_is_reported or metric.name == "Loss"):
                continue
            # Skipped steps have no value, and were reported when they were read.
            if has_skips and per_step:
                continue
            self._reported.add(metric.name)
            reason = OF_LOSS if of_loss else self._reason(metric)
            self.undefined[key := f"{finished.split}/{metric.name}"] = reason
            self._warn(f"{key} of epoch {finished.epoch} is not defined (NaN), which is said once: {reason}")

    def _reason(self, metric: MetricBase) -> str:
        has_reason = metric.name not in self._without_value or metric.undefined != MetricBase.undefined
        return metric.undefined if has_reason else "its compute returned nothing (None)"


def _undefined_in(history: History, unreported_losses: Collection[str]) -> set[str]:
    """Return the names of metrics that were NaN in a split whose loss was a number at the same step, or is one of the
    `unreported_losses`.
    """
    names = set()
    for key in history:
        split, name = key.split("/", 1)
        steps = {step for _, step, value in history.points(key) if isinstance(value, float) and math.isnan(value)}
        is_explained = steps and split not in unreported_losses and f"{split}/Loss" in history
        losses = history.points(f"{split}/Loss") if is_explained else []
        explained = {step for _, step, value in losses if not math.isfinite(float(value))}
        if steps - explained:
            names.add(name)
    return names


def _checked_number(name: str, value: Any) -> float:
    """Return the value of a metric as a number. None means undefined."""
    try:
        return math.nan if value is None else shortest(value)
    except (TypeError, ValueError, OverflowError):
        raise LearnerError(
            f"the metric {name} returned {_shown(value)}, which is not one number. For a text, a table or an array set "
            "numeric = False, and write text(self, value), which returns what is shown",
            code="metric-value-not-a-number",
            name=name,
        ) from None


def _shown(value: Any) -> str:
    try:
        return short(repr(value))
    except ValueError:  # Python refuses to print integers of thousands of digits
        return f"an {type(value).__name__} of too many digits"
