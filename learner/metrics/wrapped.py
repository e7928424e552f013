"""Metrics that compute another metric on a part of their input."""

from collections.abc import Callable
from typing import Any, ClassVar

from learner.metrics.base import CollectingMetric, Metric


class _Shown:
    """The value of a wrapped metric, shown as that metric shows it."""

    _metric: Any

    def text(self, value: Any) -> str:
        """Return the text of the wrapped metric."""
        text: str = self._metric.text(value)
        return text

    def arrays(self, value: Any) -> Any:
        """Return the arrays of the wrapped metric."""
        return self._metric.arrays(value)

    @property
    def picture(self) -> Any:
        """The function of the wrapped metric that draws its value; None if it has none."""
        return getattr(self._metric, "picture", None)


class SameKindMetric(Metric):
    """A metric of another metric. If that one collects rows, its variant `_collecting` is created instead."""

    _collecting: ClassVar[Callable[..., CollectingMetric]]

    def __new__(cls, metric: Any = None, *args: Any, **options: Any) -> Any:
        """Return the variant for collected rows if the metric collects rows. Copies are created without arguments."""
        if isinstance(metric, CollectingMetric):
            return cls._collecting(metric, *args, **options)
        return super().__new__(cls)


class WrappedMetric(_Shown, SameKindMetric):
    """A metric with the states, the value and the text of another metric, which it updates with other outputs."""

    _metric: Metric

    def init(self) -> Any:
        """Return the state of no rows."""
        return self._metric.init()

    def merge(self, a: Any, b: Any) -> Any:
        """Merge two states."""
        return self._metric.merge(a, b)

    def compute(self, state: Any) -> Any:
        """Compute the wrapped metric; NaN without rows."""
        return self._metric.compute(state)


class WrappedCollectingMetric(_Shown, CollectingMetric):
    """A `WrappedMetric` of a metric that collects rows."""

    _metric: CollectingMetric

    def paddings(self, rows: Any) -> list[int | None]:
        """Return those of the wrapped metric."""
        return self._metric.paddings(rows)

    def compute(self, rows: Any) -> Any:
        """Compute the wrapped metric."""
        return self._metric.compute(rows)
