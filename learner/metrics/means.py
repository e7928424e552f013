"""The common parts of metrics that are one weighted mean, or one fraction."""

from learner.metrics.base import Array, Metric, WeightedMean
from learner.metrics.counts import Fraction


class MeanMetric(Metric):
    """A metric whose value is one weighted mean: only `update` is left to write.

    >>> import jax.numpy as jnp
    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import RegressionOutput
    >>> class Bias(MeanMetric):
    ...     name = "Bias"
    ...     fields = ("predictions", "targets")
    ...
    ...     def update(self, state, output, info):
    ...         return state.add(output.predictions - output.targets)
    >>> metric, info = Bias(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> out = RegressionOutput.from_predictions(jnp.array([1.0, 4.0]), jnp.array([0.0, 0.0]))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))
    2.5
    """

    def init(self) -> WeightedMean:
        """Return the mean of nothing."""
        return WeightedMean.zero()

    def merge(self, a: WeightedMean, b: WeightedMean) -> WeightedMean:
        """Merge two means."""
        return a.merge(b)

    def compute(self, state: WeightedMean) -> Array:
        """Return a float32 scalar; NaN without rows."""
        return state.value()


class FractionMetric(Metric):
    """A metric whose value is one exact fraction: only `update` is left to write."""

    unit = ""

    def init(self) -> Fraction:
        """Return the fraction of nothing."""
        return Fraction.zero()

    def merge(self, a: Fraction, b: Fraction) -> Fraction:
        """Merge two fractions."""
        return a.merge(b)

    def compute(self, state: Fraction) -> Array:
        """Return a float32 scalar from 0 to 1; NaN if nothing was counted."""
        return state.value()
