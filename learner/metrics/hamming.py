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

    With one label per row it is 1 - accuracy. With several labels each one counts: `wrong / (rows · labels)`. Both
    numbers are exact. A NaN among the scores counts as wrong, and so does a label outside the classes (with several
    labels: not 0 or 1).

    Args:
      threshold: the probability above which a label is predicted. With several labels per row the default is 0.5; with
        two classes it applies to class 1, and by default the higher score wins.
      ignore_label: a label whose rows (or tokens) do not count.

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
        """Add a batch: `logits` and `targets` of one of the three kinds (see `scores`), and the `mask`, if any."""
        scores = read_scores(self.name, output, None, self.ignore_label)
        errors = (decided(self.name, scores, self._threshold) != scores.labels) | scores.strange()
        return state.add(errors, scores.counted)
