"""The fraction of wrong labels."""

from typing import Any

from learner.metrics.base import Info
from learner.metrics.class_arguments import (
    as_int,
    ignore_label_problem,
    metric_name,
    refuse,
    threshold_part,
    threshold_problem,
)
from learner.metrics.counts import Fraction
from learner.metrics.means import FractionMetric
from learner.metrics.scores import decided, read_scores


class Hamming(FractionMetric):
    """The fraction of labels that are predicted wrongly, from 0 to 1: `wrong / labels`; 0 is perfect.

    Of one label for each row that is 1 - accuracy. Of several labels each counts: `wrong / (rows · labels)`. Both
    numbers are exact. A NaN among the scores, and a label that is none of the classes (of several: not 0 or 1), is
    wrong.

    Args:
      threshold: the probability above which a label is predicted. Of several labels it is 0.5 when left out; of two
        classes it is for class 1, and the higher score wins when left out.
      ignore_label: the label that says "do not count this one".

    Source: `sklearn.metrics.hamming_loss`.

    >>> import jax.numpy as jnp
    >>> from learner.steps.outputs import MultiLabelOutput
    >>> logits, targets = jnp.array([[9.0, -9.0], [9.0, 9.0]]), jnp.array([[1, 1], [1, 1]])
    >>> out = MultiLabelOutput.from_logits(logits, targets)
    >>> metric, info = Hamming(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))   # 1 of 4
    0.25
    """

    higher_is_better = False
    description = "the fraction of labels that are predicted wrongly, 0 to 1"
    fields = ("logits", "targets")

    def __init__(self, threshold: float | None = None, ignore_label: int | None = None) -> None:
        refuse("Hamming", [threshold_problem("Hamming", threshold), ignore_label_problem("Hamming", ignore_label)])
        self.name = metric_name("Hamming Loss", [threshold_part(threshold)], ignore_label)
        self.ignore_label = as_int(ignore_label)
        self._threshold = threshold

    def update(self, state: Fraction, output: Any, info: Info) -> Fraction:
        """Add a batch: `logits` and `targets` of one of the three kinds, and their `mask`, if any."""
        scores = read_scores(self.name, output, None, self.ignore_label)
        errors = (decided(self.name, scores, self._threshold) != scores.labels) | scores.strange()
        return state.add(errors, scores.counted)
