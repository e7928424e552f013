"""The part of the targets' variance that the predictions explain."""

import jax.numpy as jnp

from learner.metrics.base import Array
from learner.metrics.class_arguments import choice_problem, metric_name, refuse
from learner.metrics.moments import Moments, measurable
from learner.metrics.pairs import PairMetric, outputs_problem

AVERAGES = ("uniform", "variance")


class ExplainedMetric(PairMetric):
    """A metric of the errors' moments and the targets' variance, for each output.

    Args:
      outputs: the number of values per row.
      average: the weights of several outputs: `"uniform"` (equal) or `"variance"` (the variance of their targets).

    Raises:
      LearnerError: an argument is invalid; when updated with another number of outputs.
    """

    undefined = (
        "the targets are constant, their distances have no squares in float32, or a target or a prediction that counts "
        "is not a finite number"
    )

    def __init__(self, outputs: int = 1, average: str = "uniform") -> None:
        what = type(self).__name__
        refuse(what, [outputs_problem(what, outputs), choice_problem(what, "average", average, AVERAGES)])
        super().__init__(outputs)
        self.name = metric_name(self.base, [None if average == "uniform" else f"by {average}"])
        self._average = average

    def second(self, predictions: Array, targets: Array) -> Array:
        """Return the second variable beside the targets: the errors."""
        return targets - predictions

    def unexplained(self, moments: Moments) -> Array:
        """Return float32 `[outputs]`: the unexplained sum of squares."""
        return moments.yy

    def value(self, moments: Moments) -> Array:
        """Return float32 `[outputs]`, or one for all."""
        left, total = self.unexplained(moments), measurable(moments.xx, moments.count)
        scores = 1 - left / total
        return scores if self._average == "uniform" else (scores * (total / total.sum())).sum(keepdims=True)


class R2(ExplainedMetric):
    """The coefficient of determination, 1 at best: `1 - Σ(t - p)² / Σ(t - t̄)²`.

    It is 0 if all predictions are the targets' mean, and negative for worse ones. It is NaN for constant targets
    (scikit-learn returns 0 or 1, or -inf). For several outputs it is the mean according to `average`, and NaN if one of
    them is NaN. Masks are `[batch]`.

    Args:
      outputs: the number of values per row.
      average: the weights of several outputs: `"uniform"` or `"variance"`.

    Source: `sklearn.metrics.r2_score`.

    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import RegressionOutput
    >>> out = RegressionOutput.from_predictions(jnp.array([1.0, 2.0, 2.0]), jnp.array([1.0, 2.0, 3.0]))
    >>> metric, info = R2(), Info(step=jnp.int32(0), weight=jnp.float32(3))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # 1 - 1 / 2
    0.5000
    """

    base = "R2"
    description = "share of the targets' variance that is explained, 1 at best"

    def unexplained(self, moments: Moments) -> Array:
        """Return the sum of squared errors."""
        return moments.yy + moments.count * jnp.square(moments.mean_y)


class ExplainedVariance(ExplainedMetric):
    """The part of the targets' variance that is explained, 1 at best: `1 - Var(t - p) / Var(t)`.

    Unlike `R2` it ignores a constant error. It is NaN for constant targets. For several outputs it is the mean
    according to `average`, and NaN if one of them is NaN. Masks are `[batch]`.

    Args:
      outputs: the number of values per row.
      average: the weights of several outputs: `"uniform"` or `"variance"`.

    Source: `sklearn.metrics.explained_variance_score`.

    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import RegressionOutput
    >>> out = RegressionOutput.from_predictions(jnp.array([6.0, 7.0, 8.0]), jnp.array([1.0, 2.0, 3.0]))
    >>> metric, info = ExplainedVariance(), Info(step=jnp.int32(0), weight=jnp.float32(3))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))
    1.0
    """

    base = "Explained Variance"
    description = "share of the targets' variance that is explained but for a constant, 1 at best"
