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
      outputs: how many numbers each row has.
      average: of several outputs: `"uniform"` (all count the same) or `"variance"` (by the variance of their targets).

    Raises:
      LearnerError: for arguments that are none of these; when updated with another number of outputs.
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
        """Return float32 `[outputs]`: the sum of squares that is left."""
        return moments.yy

    def value(self, moments: Moments) -> Array:
        """Return float32 `[outputs]`, or one for all."""
        left, total = self.unexplained(moments), measurable(moments.xx, moments.count)
        scores = 1 - left / total
        return scores if self._average == "uniform" else (scores * (total / total.sum())).sum(keepdims=True)


class R2(ExplainedMetric):
    """The coefficient of determination, 1 at best: `1 - Σ(t - p)² / Σ(t - t̄)²`.

    It is 0 for predictions that are all the targets' mean, and negative for worse ones. Constant targets have none: NaN
    (scikit-learn says 0 or 1, or -inf). Of several outputs it is the mean, as `average` says, and NaN where one of them
    has none. Masks are `[batch]`.

    Args:
      outputs: how many numbers each row has.
      average: of several outputs: `"uniform"` or `"variance"`.

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

    Unlike `R2` it forgives a constant error. Constant targets have none: NaN. Of several outputs it is the mean, as
    `average` says, and NaN where one of them has none. Masks are `[batch]`.

    Args:
      outputs: how many numbers each row has.
      average: of several outputs: `"uniform"` or `"variance"`.

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
