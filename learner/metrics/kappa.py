"""Agreement of predictions with labels beyond chance."""

from typing import Any

import jax.numpy as jnp

from learner.metrics.base import Array
from learner.metrics.class_arguments import Classes, choice_problem
from learner.metrics.counts import Count
from learner.metrics.matrix import MatrixMetric

WEIGHTS = ("none", "linear", "quadratic")


class Matthews(MatrixMetric):
    """Matthews' correlation of labels and predictions, from -1 to 1; 0 is chance.

    For K classes `Σ(TPₖ TNₖ - FPₖ FNₖ) / √(Σ pₖ (n - pₖ) · Σ tₖ (n - tₖ))`, with n rows, of which pₖ are predicted as
    class k and tₖ are labelled k. It is NaN if all labels or all predictions are of one class (scikit-learn returns 0),
    or if a counted row has a label outside the classes or a NaN among its scores. Counts are exact to 2⁶⁴. See
    `MatrixMetric` for the arguments.

    Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient", 2004;
    `sklearn.metrics.matthews_corrcoef`.

    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])   # predicted: 0, 0, 1, 0
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 0, 1, 1]))
    >>> metric, info = Matthews(2), Info(step=jnp.int32(0), weight=jnp.float32(4))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # (2·1 - 1·0) / √(3·1 · 2·2)
    0.5774
    """

    base = "Matthews"
    description = "correlation of labels and predictions, -1 to 1, 0 is chance"
    higher_is_better = True

    def compute(self, state: Count) -> Array:
        """Return a float32 scalar from -1 to 1; NaN where it is undefined."""
        counts, strange = _known(state)
        labels, predictions = counts.sum(1), counts.sum(0)
        total, hits = labels.sum(0), counts[jnp.arange(len(self.classes)), jnp.arange(len(self.classes))]
        totals = Count(*(jnp.broadcast_to(x, labels.low.shape) for x in (total.high, total.low)))
        false, missed = predictions.minus(hits), labels.minus(hits)
        neither = totals.minus(hits).minus(false).minus(missed)

        def shares(count: Count) -> Array:
            # Products of counts past 2**64 overflow a float32; the differences of counts before them are exact.
            return count.value() / jnp.maximum(total.value(), 1)

        common = (shares(hits) * shares(neither) - shares(false) * shares(missed)).sum()
        spread = [(shares(one) * shares(totals.minus(one))).sum() for one in (predictions, labels)]
        defined = (spread[0] > 0) & (spread[1] > 0) & ~strange
        return jnp.where(defined, common / jnp.sqrt(spread[0]) / jnp.sqrt(spread[1]), jnp.nan)


class CohenKappa(MatrixMetric):
    """Cohen's kappa: agreement of labels and predictions beyond chance, 1 at best; 0 is chance.

    `κ = 1 - Σ wᵢⱼ nᵢⱼ / Σ wᵢⱼ eᵢⱼ` with nᵢⱼ rows of label i that are predicted as j, eᵢⱼ = tᵢ pⱼ / n by chance, and
    wᵢⱼ the weight of a mistake: 1, |i - j| or (i - j)². It is NaN if all labels and predictions are of one class, or if
    a counted row has a label outside the classes or a NaN among its scores. Counts are exact.

    Args:
      classes: the number of classes, or their names, in order.
      weights: `"none"`, or `"linear"` or `"quadratic"` for ordered classes.
      threshold: as for `MatrixMetric`.
      ignore_label: a label whose rows (or tokens) do not count.

    Source: Cohen, "A coefficient of agreement for nominal scales", 1960, and "Weighted kappa", 1968;
    `sklearn.metrics.cohen_kappa_score`.

    >>> from learner.metrics.base import Info
    >>> from learner.steps.outputs import ClassificationOutput
    >>> logits = jnp.array([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])   # predicted: 0, 0, 1, 0
    >>> out = ClassificationOutput.from_logits(logits, jnp.array([0, 0, 1, 1]))
    >>> metric, info = CohenKappa(2), Info(step=jnp.int32(0), weight=jnp.float32(4))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))   # 1 - 1 / (2·1/4 + 2·3/4)
    0.5
    """

    base = "Cohen Kappa"
    description = "agreement of labels and predictions beyond chance, up to 1, 0 is chance"
    higher_is_better = True

    def __init__(
        self,
        classes: Classes,
        weights: str = "none",
        threshold: float | None = None,
        ignore_label: int | None = None,
    ) -> None:
        problem = choice_problem("CohenKappa", "weights", weights, WEIGHTS)
        part = None if weights == "none" else str(weights)
        self._prepare(classes, threshold, ignore_label, [problem], [part])
        self._weights = weights

    def compute(self, state: Count) -> Array:
        """Return a float32 scalar, 1 or less; NaN where it is undefined."""
        counts, strange = _known(state)
        labels, predictions = counts.sum(1), counts.sum(0)
        total = jnp.maximum(labels.sum(0).value(), 1)
        weights = self._costs()
        seen = (weights * (counts.value() / total)).sum()
        chance = (weights * (labels.value() / total)[:, None] * (predictions.value() / total)[None, :]).sum()
        return jnp.where((chance > 0) & ~strange, 1 - seen / jnp.where(chance > 0, chance, 1), jnp.nan)

    def _costs(self) -> Array:
        """Return float32 `[classes, classes]`: the weight of each mistake, 0 to 1."""
        numbers = jnp.arange(len(self.classes), dtype=jnp.float32)
        distance = jnp.abs(numbers[:, None] - numbers[None, :]) / max(len(self.classes) - 1, 1)
        costs: dict[str, Any] = {"none": distance > 0, "linear": distance, "quadratic": jnp.square(distance)}
        return jnp.asarray(costs[self._weights], jnp.float32)


def _known(state: Count) -> tuple[Count, Array]:
    """Return the counts of the classes, and True if anything outside the classes was counted."""
    strange = (state[-1].value().sum() + state[:, -1].value().sum()) > 0
    return state[:-1, :-1], strange
