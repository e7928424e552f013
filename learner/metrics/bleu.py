"""BLEU: the precision of n-grams."""

import dataclasses
import math
from typing import Any, Self

import jax
import jax.numpy as jnp

from learner.errors import LearnerError, near
from learner.metrics.base import Array, Info, Metric
from learner.metrics.class_arguments import is_integral, is_real
from learner.metrics.counts import Count
from learner.metrics.tokens import Ends, Tokens

SMOOTHING = {"none": 0.0, "floor": 0.1, "add-k": 1.0, "exp": 0.0}
"""The ways to smooth, and the number that each uses where none is given."""

PAIRS = 2**24
"""Pairs of places that are compared at once, of all rows together. A pair takes some 32 bytes."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pieces:
    """The exact counts that BLEU is computed from.

    Attributes:
      matches: of each length of pieces, 1 to n: those of predictions that are in their target too.
      pieces: of each length: those of predictions.
      lengths: tokens of the predictions, tokens of the targets, sequences.
    """

    matches: Count
    pieces: Count
    lengths: Count

    @classmethod
    def zero(cls, order: int) -> Self:
        """Return the state of no sequences."""
        return cls(*(Count(jnp.zeros(n, jnp.uint32), jnp.zeros(n, jnp.uint32)) for n in (order, order, 3)))

    def add(self, matches: Array, pieces: Array, lengths: Array) -> Self:
        """Add whole numbers, int32 `[order]`, `[order]` and `[3]`."""
        counts = [Count(jnp.zeros(x.shape, jnp.uint32), x.astype(jnp.uint32)) for x in (matches, pieces, lengths)]
        return self.merge(type(self)(*counts))

    def merge(self, other: Self) -> Self:
        """Merge two states."""
        return type(self)(
            self.matches.merge(other.matches), self.pieces.merge(other.pieces), self.lengths.merge(other.lengths)
        )


def matching_pieces(predicted: Tokens, target: Tokens, order: int) -> tuple[Array, Array]:
    """Count the n-grams of 1 to `order` tokens in each prediction: those that are in its target, each at most as often
    as it is there, and all. Returns two arrays, int32 `[batch, order]`.

    A piece counts if fewer equal ones come before it in the prediction than the target has: no table of pieces is
    needed, only all pairs of places. Where these are more than `PAIRS`, some rows are compared after others.

    >>> one = lambda ids: Tokens(jnp.array([ids]), jnp.array([len(ids)]))
    >>> matches, pieces = matching_pieces(one([7, 7, 7, 8]), one([7, 7, 8, 9]), 2)
    >>> matches.tolist(), pieces.tolist()   # 7, 7, 8 and 7 7, 7 8
    ([[3, 2]], [[4, 3]])
    """
    rows, length = predicted.ids.shape
    at_once = max(1, PAIRS // max(1, length * max(length, target.ids.shape[1])))
    if rows <= at_once:
        return _matching_at_once(predicted, target, order)

    def of_row(row: tuple[Array, ...]) -> tuple[Array, Array]:
        ids, count, other_ids, other_count = (x[None] for x in row)
        matches, pieces = _matching_at_once(Tokens(ids, count), Tokens(other_ids, other_count), order)
        return matches[0], pieces[0]

    operands = (predicted.ids, predicted.length, target.ids, target.length)
    overlapping: tuple[Array, Array] = jax.lax.map(of_row, operands, batch_size=at_once)
    return overlapping


def _matching_at_once(predicted: Tokens, target: Tokens, order: int) -> tuple[Array, Array]:
    own = predicted.ids[:, :, None] == predicted.ids[:, None]
    across = predicted.ids[:, :, None] == target.ids[:, None]
    same, overlapping, matches, pieces = own, across, [], []
    for n in range(1, order + 1):
        if n > 1:  # a piece is one that is shorter by a token, and the token behind it
            same, overlapping = _longer(same, own, n), _longer(overlapping, across, n)
        places, others = jnp.arange(same.shape[1]), jnp.arange(overlapping.shape[2])
        counted = places[None] + n <= predicted.length[:, None]
        in_target = others[None] + n <= target.length[:, None]
        before = (same & (places[None] < places[:, None])[None]).sum(2, dtype=jnp.int32)
        room = (overlapping & in_target[:, None]).sum(2, dtype=jnp.int32)
        matches.append(((before < room) & counted).sum(1, dtype=jnp.int32))
        pieces.append(counted.sum(1, dtype=jnp.int32))
    return jnp.stack(matches, 1), jnp.stack(pieces, 1)


def _longer(pieces: Array, tokens: Array, n: int) -> Array:
    """Return whether n-grams of `n` tokens are equal: their first `n - 1` tokens are, and so are the last."""
    return pieces[:, : tokens.shape[1] - n + 1, : tokens.shape[2] - n + 1] & tokens[:, n - 1 :, n - 1 :]


class BLEU(Metric):
    """BLEU of all sequences together, from 0 to 1: the geometric mean of the precisions of pieces of 1 to `order`
    tokens, times `exp(1 - target tokens / predicted tokens)` where the predictions are shorter.

    It is sacrebleu's corpus BLEU with one reference, divided by 100, on tokens as they are given: sacrebleu's own
    numbers are on words that it splits by its tokenizer. `OnText(BLEU(), decode)` splits texts at white space. Counts
    are exact. Without any match it is 0, smoothed or not. All pairs of places are compared on the device: its time
    grows with the rows and the square of the length. Its memory is some 32 bytes for each pair, 0.5 GB at most, or that
    of one row where the length is above 4096 (2 GB for 8192 tokens): longer rows are compared one after another.

    Sources: Papineni, Roukos, Ward, Zhu, "BLEU: a Method for Automatic Evaluation of Machine Translation", 2002; for
    smoothing: Chen, Cherry, "A Systematic Comparison of Smoothing Techniques for Sentence-Level BLEU", 2014.

    Args:
      smoothing: what is done with a precision of 0. `"exp"` halves for each of them what one match would be, `"floor"`
        takes `value` (0.1) matches, `"add-k"` adds `value` (1) to matches and pieces of 2 tokens and more; `"none"`
        makes BLEU 0.
      value: of `"floor"` and `"add-k"`.
      order: the longest pieces.
      pad_id: a token that does not count, wherever it is.
      eos_id: a token that ends a sequence; neither it nor what follows counts.

    Raises:
      LearnerError: for other arguments; when updated with other than integers `[batch, length]`.

    >>> from learner.steps.outputs import GeneratedOutput
    >>> out = GeneratedOutput.of(jnp.array([[1, 2, 3, 4, 5]]), jnp.array([[1, 2, 3, 4, 6]]))
    >>> metric, info = BLEU(), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # (4/5 · 3/4 · 2/3 · 1/2) ^ 1/4
    0.6687
    """

    higher_is_better = True
    unit = ""
    description = "how many pieces of the predictions are in the targets (BLEU of all of them), 0 to 1"
    fields = ("predictions", "targets")
    undefined = "there are no sequences"
    units = "words"

    def __init__(
        self,
        smoothing: str = "exp",
        value: float | None = None,
        order: int = 4,
        pad_id: int | None = None,
        eos_id: int | None = None,
    ) -> None:
        if smoothing not in SMOOTHING:
            raise LearnerError(
                f"smoothing of BLEU is {smoothing!r}: {near(str(smoothing), list(SMOOTHING))}",
                code="metric-bleu-smoothing-unknown",
                smoothing=smoothing,
            )
        if not is_integral(order) or order < 1:
            raise LearnerError(
                f"order of BLEU is {order!r}; it needs a whole number of tokens, 1 or more",
                code="metric-bleu-order-value",
                order=order,
            )
        if value is not None and smoothing not in ("floor", "add-k"):
            raise LearnerError(
                f"value of BLEU is {value!r}, but smoothing={smoothing!r} uses none; leave it out",
                code="metric-bleu-value-unused",
                value=value,
                smoothing=smoothing,
            )
        if value is not None and not (is_real(value) and 0 < value < math.inf):
            raise LearnerError(
                f"value of BLEU is {value!r}; it needs a positive number", code="metric-bleu-value", value=value
            )
        self._smoothing, self._order = smoothing, int(order)
        self._value = SMOOTHING[smoothing] if value is None else float(value)
        self._ends = Ends("BLEU", pad_id, eos_id)
        how = "" if smoothing == "exp" else f" smoothing {smoothing}" + ("" if value is None else f" {value:g}")
        self.name = ("BLEU" if order == 4 else f"BLEU-{order}") + how.replace(".", ",") + self._ends.words

    def init(self) -> Pieces:
        """Return the state of no sequences."""
        return Pieces.zero(self._order)

    def update(self, state: Pieces, output: Any, info: Info) -> Pieces:
        """Add a batch of sequences: integer `predictions` and `targets` `[batch, length]`, and their `mask`."""
        predicted, target, rows = self._ends.pairs(output)
        matches, pieces = matching_pieces(predicted, target, self._order)
        lengths = jnp.stack([predicted.length.sum(), target.length.sum(), rows.sum(dtype=jnp.int32)])
        return state.add(matches.sum(0), pieces.sum(0), lengths)

    def merge(self, a: Pieces, b: Pieces) -> Pieces:
        """Merge two states."""
        return a.merge(b)

    def compute(self, state: Pieces) -> Array:
        """Return a float32 scalar from 0 to 1; NaN without sequences."""
        matches, pieces = state.matches.value(), state.pieces.value()
        predicted, target, rows = state.lengths.value()
        mean = jnp.exp(self._logs(matches, pieces).mean())
        ratio = target / jnp.where(predicted > 0, predicted, 1)
        brevity = jnp.where(predicted < target, jnp.exp(1 - ratio), 1)
        score = jnp.where((matches > 0).any() & (predicted > 0), brevity * mean, 0)
        return jnp.where(rows > 0, score, jnp.nan)

    def _logs(self, matches: Array, pieces: Array) -> Array:
        """Return the logarithm of each precision."""
        if self._smoothing == "add-k":
            more = jnp.where(jnp.arange(self._order) > 0, self._value, 0).astype(jnp.float32)
            matches, pieces = matches + more, pieces + more
        elif self._smoothing == "floor":
            matches = jnp.where(matches > 0, matches, self._value)
        elif self._smoothing == "exp":
            zeros = jnp.cumsum((matches == 0) & (pieces > 0), dtype=jnp.int32)
            matches = jnp.where(matches > 0, matches, jnp.exp2(-zeros.astype(jnp.float32)))
        # As sacrebleu: pieces that are longer than all predictions make it 0.
        return jnp.where(pieces > 0, jnp.log(matches) - jnp.log(jnp.where(pieces > 0, pieces, 1)), -jnp.inf)
