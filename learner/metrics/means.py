"""The common part of metrics that are a weighted mean."""

from learner.metrics.base import Array, Mean, Metric


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

    def init(self) -> Mean:
        """The mean of nothing."""
        return Mean.zero()

    def merge(self, a: Mean, b: Mean) -> Mean:
        """Merge two means."""
        return a.merge(b)

    def compute(self, state: Mean) -> Array:
        """Return a float32 scalar; NaN without rows."""
        return state.value()
