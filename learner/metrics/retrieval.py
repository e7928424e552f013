"""Metrics of the ranks of labels among all classes, for retrieval and recommendation."""

import abc
from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, WeightedMean
from learner.metrics.class_arguments import as_int, ignore_label_problem, is_integral, metric_name, refuse
from learner.metrics.means import MeanMetric
from learner.metrics.scores import Scores, classes_before, read_scores

GREATEST = 2**31 - 1  # of ranks, which are int32


class RetrievalMetric(MeanMetric, abc.ABC):
    """Base class of metrics of the ranks of a row's labels when its classes are sorted by score.

    With one label per row, one class is relevant; with several (`targets` `[..., classes]` of 0 and 1), those with a 1,
    and a row without any does not count. Masked and ignored labels take no rank. Among equal scores, the smaller class
    number comes first. An invalid label, or a NaN among the scores of a row that counts, makes the value NaN. The value
    is a mean over rows (or tokens), from 0 to 1.

    Args:
      k: the number of ranks that count; None for all.
      ignore_label: a label whose rows (or tokens; of several labels for each row, entries) do not count.

    Raises:
      LearnerError: invalid arguments; when updated with one score for each row.
    """

    higher_is_better = True
    unit = ""
    fields = ("logits", "targets")
    undefined = "no row had a label, or a row had a label outside of the classes or a NaN among its scores"

    def __init__(self, name: str, k: int | None, ignore_label: int | None) -> None:
        what = type(self).__name__
        is_valid = k is None or (is_integral(k) and k >= 1)
        problem = None if is_valid else f"k of {what} is {k!r}; it needs a whole number of ranks, 1 or more, or None"
        refuse(what, [problem, ignore_label_problem(what, ignore_label)])
        self.name = metric_name(name if k is None else f"{name}@{k}", [], ignore_label)
        self.k = None if k is None else min(int(k), GREATEST)
        self.ignore_label = as_int(ignore_label)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: `logits` `[..., classes]`, `targets` `[...]` or `[..., classes]`, and the `mask`, if any."""
        scores = read_scores(self.name, output, None, self.ignore_label)
        if scores.classes < 2:
            raise LearnerError(
                f"{self.name} got logits {list(jnp.shape(output.logits))}, one score for each row; it ranks the scores "
                "of several classes, [rows, classes]",
                code="metric-classes-too-few",
            )
        strange = scores.strange()
        if not scores.several:
            ranks = 1 + classes_before(scores.logits, scores.labels)
            values, counted = self.of_label(ranks), scores.counted
        else:
            ranks, relevant = _ranks(scores)
            values, counted = self.of_labels(ranks, relevant), relevant.any(-1)
            # An invalid label is not relevant, but it must not leave its row out.
            counted |= (scores.counted & (scores.labels < 0)).any(-1)
            strange = (strange & scores.counted).any(-1)
        return state.add(jnp.where(strange, jnp.nan, values), counted)

    def _among_first(self, ranks: Array) -> Array:
        return ranks > 0 if self.k is None else ranks <= self.k

    @abc.abstractmethod
    def of_label(self, ranks: Array) -> Array:
        """Return the values of rows with one label, `[...]`. `ranks`: int32 `[...]`, from 1."""

    @abc.abstractmethod
    def of_labels(self, ranks: Array, relevant: Array) -> Array:
        """Return the values of rows with several labels, `[...]`. `ranks`: int32 `[..., classes]`, from 1; `relevant`:
        bool of the same shape.
        """


class NDCG(RetrievalMetric):
    """The normalized discounted cumulative gain: `Σ 1 / log₂(1 + rank)` over the relevant classes of a row, divided by
    the highest value possible for that number of classes, mean over rows.

    With one label per row it is `1 / log₂(1 + rank)`, and 0 beyond rank `k`. Relevance is 0 or 1. See `RetrievalMetric`
    for the arguments, equal scores and NaN.

    Source: Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002;
    `sklearn.metrics.ndcg_score`, which averages over the orders of equal scores.

    >>> from learner.steps.outputs import ClassificationOutput
    >>> out = ClassificationOutput.from_logits(jnp.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), jnp.array([0, 2]))
    >>> metric, info = NDCG(k=10), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(metric.name, metric.compute(metric.update(metric.init(), out, info)))   # ranks 1 and 3: (1 + 1 / 2) / 2
    NDCG@10 0.75
    """

    description = "how near to the top the labels are ranked, with logarithmic discount, 0 to 1"

    def __init__(self, k: int | None = None, ignore_label: int | None = None) -> None:
        super().__init__("NDCG", k, ignore_label)

    def of_label(self, ranks: Array) -> Array:
        """Return the discounts of the ranks."""
        return jnp.where(self._among_first(ranks), 1 / jnp.log2(1 + ranks.astype(jnp.float32)), 0)

    def of_labels(self, ranks: Array, relevant: Array) -> Array:
        """Return the gains over the ideal gains."""
        gains = jnp.where(relevant, self.of_label(ranks), 0).sum(-1)
        first = jax.lax.broadcasted_iota(jnp.int32, ranks.shape, ranks.ndim - 1) + 1
        ideal = jnp.where(first <= relevant.sum(-1, keepdims=True, dtype=jnp.int32), self.of_label(first), 0).sum(-1)
        return gains / jnp.where(ideal > 0, ideal, 1)


class MRR(RetrievalMetric):
    """The mean reciprocal rank: `1 / rank` of the best-ranked relevant class of a row, and 0 beyond rank `k`, mean over
    rows.

    See `RetrievalMetric` for the arguments, equal scores and NaN.

    Source: Voorhees, "The TREC-8 question answering track report", 1999.

    >>> from learner.steps.outputs import ClassificationOutput
    >>> out = ClassificationOutput.from_logits(jnp.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]]), jnp.array([0, 1]))
    >>> metric, info = MRR(), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(metric.name, metric.compute(metric.update(metric.init(), out, info)))   # (1 + 1 / 2) / 2
    MRR 0.75
    """

    description = "reciprocal rank of the best-ranked label, 0 to 1"

    def __init__(self, k: int | None = None, ignore_label: int | None = None) -> None:
        super().__init__("MRR", k, ignore_label)

    def of_label(self, ranks: Array) -> Array:
        """Return the reciprocal ranks."""
        return jnp.where(self._among_first(ranks), 1 / ranks.astype(jnp.float32), 0)

    def of_labels(self, ranks: Array, relevant: Array) -> Array:
        """Return the reciprocal ranks of the best relevant classes."""
        return jnp.where(relevant, self.of_label(ranks), 0).max(-1)


def _ranks(scores: Scores) -> tuple[Array, Array]:
    """Return the ranks of all classes from 1, int32 `[..., classes]`, and True for the relevant ones."""
    # Labels that do not count come last. Two sorts turn an order into ranks; both are stable.
    logits = jnp.where(scores.counted, scores.logits, -jnp.inf)
    order = jnp.lexsort((-logits, ~scores.counted))
    return jnp.argsort(order, axis=-1).astype(jnp.int32) + 1, scores.counted & (scores.labels == 1)
