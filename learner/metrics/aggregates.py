"""A value computed from the values of several metrics."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, Metric
from learner.util.traced_values import OF_VALUES


class Aggregate(Metric):
    """A function of the values of several metrics, such as a mean, a ratio or a weighted sum.

    The value of a step is computed from the metrics' values for the step, that of an epoch from their values for the
    epoch.

    Args:
      name: the metric's name.
      metrics: the metrics, by the names of the function's arguments. They need not be registered themselves.
      function: takes float32 scalars and returns one. It is traced, so use `jnp.maximum` and `jnp.where` instead of
        `max` and `if`.
      higher_is_better: the metric's direction, if it has one.
      unit: the unit of its value.

    Raises:
      LearnerError: an entry of `metrics` is not a metric or not numeric, or metrics of steps and of rows are mixed; the
        function does not accept the metrics' names, or needs concrete values while it is traced.

    >>> from learner.metrics.losses import Loss, Perplexity
    >>> from learner.steps.outputs import ClassificationOutput
    >>> metric = Aggregate("Score", {"a": Loss(), "b": Perplexity()}, lambda a, b: a + b / 4, higher_is_better=False)
    >>> out = ClassificationOutput.from_logits(jnp.zeros((2, 4)), jnp.array([0, 1]))
    >>> state = metric.update(metric.init(), out, Info(step=jnp.int32(0), weight=jnp.float32(2)))
    >>> print(f"{metric.compute(state):.4f}")   # ln(4) + 4 / 4
    2.3863
    """

    undefined = "one of its metrics is not"

    def __init__(
        self,
        name: str,
        metrics: Mapping[str, Metric],
        function: Callable[..., Any],
        higher_is_better: bool | None = None,
        unit: str = "",
    ) -> None:
        self.name = name
        if not isinstance(metrics, Mapping) or not metrics:
            raise LearnerError(
                f"metrics of {name} is {metrics!r}; it needs metrics by name: {{'a': Accuracy()}}",
                code="metric-combined-type",
                name=name,
            )
        for part in metrics.values():
            if not isinstance(part, Metric) or not part.numeric:
                raise LearnerError(
                    f"{name} is of {part!r}; it needs instances of learner.metrics.Metric that are numbers",
                    code="metric-combined-parts",
                    name=name,
                )
        if len({part.per_step for part in metrics.values()}) > 1:
            raise LearnerError(
                f"{name} combines metrics of steps and metrics of rows; it needs metrics of one kind",
                code="metric-combined-kinds",
                name=name,
            )
        if not callable(function):
            raise LearnerError(
                f"function of {name} is {function!r}; it needs a function of {', '.join(metrics)}",
                code="metric-combined-function-type",
                name=name,
            )
        self._metrics, self._function = dict(metrics), function
        parts = list(metrics.values())
        self.higher_is_better, self.unit, self.per_step = higher_is_better, unit, parts[0].per_step
        self.description = f"of {', '.join(part.name for part in parts)}"
        self.fields = tuple(dict.fromkeys(field for part in parts for field in part.fields))
        self.requires = tuple(dict.fromkeys(what for part in parts for what in part.requires))
        self.splits = tuple(s for s in ("train", "valid") if all(s in part.splits for part in parts))
        self.inner = tuple(parts)

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
