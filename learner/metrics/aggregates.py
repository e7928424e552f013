"""A value computed from the values of several metrics."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import Array, CollectingMetric, Info, Metric, MetricBase
from learner.util.default_device import cpu_device
from learner.util.traced_values import OF_VALUES


class _Combined(MetricBase):
    """The arguments of an `Aggregate`, and the call of its function."""

    undefined = "one of its metrics is not"

    def __init__(
        self,
        name: str,
        metrics: Mapping[str, Any],
        function: Callable[..., Any],
        higher_is_better: bool | None = None,
        unit: str = "",
    ) -> None:
        self.name = name
        _check(name, metrics, function)
        self._metrics, self._function = dict(metrics), function
        self.higher_is_better, self.unit, self.inner = higher_is_better, unit, tuple(metrics.values())
        self.description = f"of {', '.join(part.name for part in self.inner)}"
        self.fields = tuple(dict.fromkeys(field for part in metrics.values() for field in part.fields))
        self.splits = tuple(s for s in ("train", "valid") if all(s in part.splits for part in self.inner))

    def _call(self, values: dict[str, Array]) -> Array:
        """Return the float32 result of the function."""
        try:
            return jnp.asarray(self._function(**values), jnp.float32)
        except OF_VALUES as error:
            raise LearnerError(
                f"the function of {self.name} is traced: {', '.join(values)} have no values there. Use jnp.maximum(a, "
                "b) rather than max(a, b), jnp.where rather than if, and jnp rather than math and numpy "
                f"({type(error).__name__})",
                code="metric-combined-function-traced",
            ) from error
        except TypeError as error:
            raise LearnerError(
                f"the function of {self.name} cannot take {', '.join(values)}: {error}",
                code="metric-combined-function-failed",
            ) from error


class Aggregate(_Combined, Metric):
    """A function of the values of several metrics, such as a mean, a ratio or a weighted sum.

    The value of a step is computed from the metrics' values for the step, that of an epoch from their values for the
    epoch. If the metrics collect rows, such as `AUROC`, the result does, too, and has no value per step.

    Args:
      name: the metric's name.
      metrics: the metrics, by the names of the function's arguments. They need not be registered themselves.
      function: takes float32 scalars and returns one. It is traced, so use `jnp.maximum` and `jnp.where` instead of
        `max` and `if`.
      higher_is_better: the metric's direction, if it has one.
      unit: the unit of its value.

    Raises:
      LearnerError: an entry of `metrics` is not a metric or not numeric, or metrics of steps, of rows and of collected
        rows are mixed; a subclass combines metrics that collect rows; the function does not accept the metrics' names,
        or needs concrete values while it is traced.

    >>> from learner.metrics.losses import Loss, Perplexity
    >>> from learner.steps.outputs import ClassificationOutput
    >>> metric = Aggregate("Score", {"a": Loss(), "b": Perplexity()}, lambda a, b: a + b / 4, higher_is_better=False)
    >>> out = ClassificationOutput.from_logits(jnp.zeros((2, 4)), jnp.array([0, 1]))
    >>> state = metric.update(metric.init(), out, Info(step=jnp.int32(0), weight=jnp.float32(2)))
    >>> print(f"{metric.compute(state):.4f}")   # ln(4) + 4 / 4
    2.3863
    """

    def __init__(
        self,
        name: str,
        metrics: Mapping[str, Metric | CollectingMetric],
        function: Callable[..., Any],
        higher_is_better: bool | None = None,
        unit: str = "",
    ) -> None:
        super().__init__(name, metrics, function, higher_is_better, unit)
        if any(isinstance(part, CollectingMetric) for part in self.inner):
            raise LearnerError(
                f"{type(self).__name__} is a subclass of Aggregate, which cannot combine metrics that collect rows "
                f"({', '.join(part.name for part in self.inner)}): create an Aggregate(...) itself instead",
                code="metric-combined-subclass",
                name=name,
            )
        parts = self._metrics.values()
        self.per_step = any(part.per_step for part in parts)
        self.requires = tuple(dict.fromkeys(what for part in parts for what in part.requires))

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Return the variant for collected rows if the metrics collect rows."""
        metrics = options.get("metrics", args[1] if len(args) > 1 else None)
        collects = isinstance(metrics, Mapping) and any(isinstance(x, CollectingMetric) for x in metrics.values())
        return _CollectedAggregate(*args, **options) if cls is Aggregate and collects else super().__new__(cls)

    # The arguments of a subclass may be others; help and documentation show those of `__init__`.
    __new__.__signature__ = inspect.signature(__init__)  # type: ignore[attr-defined]

    def init(self) -> dict[str, Any]:
        """Return the states of no rows."""
        return {key: part.init() for key, part in self._metrics.items()}

    def update(self, state: dict[str, Any], output: Any, info: Info) -> dict[str, Any]:
        """Add a batch to each."""
        return {key: part.update(state[key], output, info) for key, part in self._metrics.items()}

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        """Merge two states."""
        return {key: part.merge(a[key], b[key]) for key, part in self._metrics.items()}

    def compute(self, state: dict[str, Any]) -> Array:
        """Return a float32 scalar."""
        values = {key: jnp.asarray(part.compute(state[key]), jnp.float32) for key, part in self._metrics.items()}
        return self._call(values)


class _CollectedAggregate(_Combined, CollectingMetric):
    """An `Aggregate` of metrics that collect rows."""

    def collect(self, output: Any) -> dict[str, Any]:
        """Return the values that each metric collects. It traces the function, whose errors would come at the end of
        the split otherwise.
        """
        values = dict.fromkeys(self._metrics, jax.ShapeDtypeStruct((), jnp.float32))
        if shape := jax.eval_shape(self._call, values).shape:
            raise LearnerError(
                f"the metric {self.name} gives {list(shape)} numbers; one that is numeric gives a scalar",
                code="metric-value-shape",
                name=self.name,
            )
        return {key: part.collect(output) for key, part in self._metrics.items()}

    def paddings(self, rows: dict[str, Any]) -> list[int | None]:
        """Return those of each metric."""
        return [padding for key in sorted(rows) for padding in self._metrics[key].paddings(rows[key])]

    def compute(self, rows: dict[str, Any]) -> float:
        """Compute the metrics and the function."""
        with jax.default_device(cpu_device()):
            values = {key: part.compute(rows[key]) for key, part in self._metrics.items()}
            return float(self._call({key: jnp.float32(np.nan if x is None else x) for key, x in values.items()}))


def _check(name: str, metrics: Any, function: Any) -> None:
    if not isinstance(metrics, Mapping) or not metrics:
        raise LearnerError(
            f"metrics of {name} is {metrics!r}; it needs metrics by name: {{'a': Accuracy()}}",
            code="metric-combined-type",
            name=name,
        )
    for part in metrics.values():
        if not isinstance(part, Metric | CollectingMetric) or not part.numeric:
            raise LearnerError(
                f"{name} is of {part!r}; it needs instances of learner.metrics.Metric or CollectingMetric that are "
                "numbers",
                code="metric-combined-parts",
                name=name,
            )
    if len({None if isinstance(part, CollectingMetric) else part.per_step for part in metrics.values()}) > 1:
        raise LearnerError(
            f"{name} combines {', '.join(part.name for part in metrics.values())}; it needs metrics of one kind: of "
            "the optimizer step, of each batch, or of collected rows such as AUROC (BinnedAUROC is one of each batch)",
            code="metric-combined-kinds",
            name=name,
        )
    if not callable(function):
        raise LearnerError(
            f"function of {name} is {function!r}; it needs a function of {', '.join(metrics)}",
            code="metric-combined-function-type",
            name=name,
        )
