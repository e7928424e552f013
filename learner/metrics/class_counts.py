"""Four exact counts of right and wrong predictions for each class, and the metrics computed from them."""

import abc
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, MergingMetric
from learner.metrics.class_arguments import (
    Classes,
    as_int,
    average_part,
    choice_problem,
    metric_name,
    threshold_part,
    threshold_problem,
    top_k_problem,
)
from learner.metrics.class_averages import MetricOfClasses, averaged
from learner.metrics.counts import Count
from learner.metrics.scores import Scores, decided, read_scores

# The rows of the state: predicted and present, predicted only, present only, neither; and invalid.
HITS, FALSE, MISSED, NEITHER, STRANGE = range(5)


class ClassMetric(MetricOfClasses, MergingMetric, abc.ABC):
    """A fraction of the counts of each class, averaged over the classes.

    For each class, TP counts the labels that are predicted, FP the predictions that are not the label, FN the labels
    that are not predicted, and TN all others. The counts are exact to 2⁶⁴. The value of a class is NaN where the
    fraction is 0 / 0 (precision: the class was never predicted; recall: it has no labels). Averages skip such classes,
    like scikit-learn's `zero_division=nan`.

    A counted row with a NaN among its scores, or with a label outside the classes, makes the value NaN. With several
    labels per row, targets other than 0 and 1 do so, and only for the classes that have them.

    Args:
      classes: the number of classes, or their names; 1 for one score whose label is 0 or 1.
      average: `"macro"` (all classes weigh the same), `"weighted"` (by their labels), `"micro"` (the fraction of the
        summed counts), `"binary"` (class 1 of two, or the only one) or `"none"`: a table of all classes, no number.
      threshold: the probability above which a label is predicted. With several labels per row the default is 0.5; with
        two classes it applies to class 1, and by default the higher score wins.
      top_k: with one label per row, predict the `top_k` classes with the highest scores. Among equal scores the
        smaller class number comes first.
      ignore_label: a label whose rows (or tokens) do not count, such as -100 for padded tokens.

    Raises:
      LearnerError: an argument is invalid; when updated with scores and labels that do not fit.
    """

    higher_is_better = True
    undefined = (
        "its fraction is 0 / 0 (nothing of a class was there, or was predicted), or a label outside of the classes or "
        "a NaN among the scores counted"
    )

    def __init__(
        self,
        classes: Classes,
        average: str = "macro",
        threshold: float | None = None,
        top_k: int | None = None,
        ignore_label: int | None = None,
    ) -> None:
        what = type(self).__name__
        problems = [choice_problem(what, "average", average), threshold_problem(what, threshold), self._problem()]
        problems.append(top_k_problem(what, top_k, threshold, classes))
        self.set_classes(classes, ignore_label, problems, average)
        parts = [average_part(average), threshold_part(threshold), None if top_k is None else f"top {top_k}"]
        self.name = metric_name(self.base, parts, ignore_label)
        self._average, self._threshold, self._top_k = average, threshold, as_int(top_k)

    def _problem(self) -> str | None:
        """Return the problem with further arguments, if any."""
        return None

    @abc.abstractmethod
    def ratio(self, hits: Count, false: Count, missed: Count, neither: Count) -> tuple[Array, Array]:
        """Return the numerator and the denominator of the fraction, float32 of the counts' shape."""

    @property
    def state_key(self) -> Hashable:
        """See `Metric.state_key`."""
        return len(self.classes), self._threshold, self._top_k, self.ignore_label

    def init(self) -> Count:
        """Return the state of no labels: the counts `[5, classes]`."""
        return Count.zero((5, len(self.classes)))

    def update(self, state: Count, output: Any, info: Info) -> Count:
        """Add a batch: `logits` and `targets` of one of the three kinds, and their `mask`, if any."""
        scores = read_scores(self.name, output, len(self.classes), self.ignore_label).flat()
        predicted, present = _predicted(self.name, scores, self._threshold, self._top_k), scores.present()
        strange, counted = scores.strange(), scores.counted
        if not scores.several:
            strange, counted = (jnp.broadcast_to(x[:, None], present.shape) for x in (strange, counted))
        used = counted & ~strange
        cases = (predicted & present, predicted & ~present, ~predicted & present, ~predicted & ~present)
        counts = [(case & used).sum(0, dtype=jnp.uint32) for case in cases]
        return state.plus(jnp.stack([*counts, (counted & strange).sum(0, dtype=jnp.uint32)]))

    def compute(self, state: Count) -> Array:
        """Return a float32 scalar from 0 to 1, or `[classes]` for `average="none"`; NaN where it is undefined."""
        strange = state[STRANGE].value() > 0
        if self._average == "micro":
            state = state.sum(1)
        hits, false, missed, neither = (state[case] for case in (HITS, FALSE, MISSED, NEITHER))
        above, below = self.ratio(hits, false, missed, neither)
        values = jnp.where(below > 0, above / jnp.where(below > 0, below, 1), jnp.nan)
        if self._average == "none":
            return jnp.where(strange, jnp.nan, values)
        if self._average != "micro":
            values = averaged(values, self._average, hits.merge(missed).value(), jnp)
        return jnp.where(strange.any(), jnp.nan, values)


def _predicted(name: str, scores: Scores, threshold: float | None, top_k: int | None) -> Array:
    """Return bool `[rows, classes]`: True for the classes that are predicted."""
    if top_k is not None:
        if scores.several:
            raise LearnerError(
                f"{name} got several labels for each row; top_k is for one: use a threshold",
                code="metric-top-k-multilabel",
                name=name,
            )
        # jax.lax.top_k orders -0.0 below 0.0; comparisons, as in argmax and NumPy, do not.
        logits = jnp.where(scores.logits == 0, 0, scores.logits)
        best = jax.lax.top_k(logits, top_k)[1].astype(jnp.int32)
        return scores.one_of(best).any(1)
    best = decided(name, scores, threshold)
    return best == 1 if scores.several else scores.one_of(best)
