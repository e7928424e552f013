"""Error rates: the number of edits that turn a prediction into its target."""

import dataclasses
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from learner.metrics.base import Array, Info, MergingMetric
from learner.metrics.counts import Count
from learner.metrics.tokens import Ends, Tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ratio:
    """The ratio of two exact counts, which may exceed 1."""

    part: Count
    of: Count

    @classmethod
    def zero(cls) -> Self:
        """Return an empty ratio, whose value is NaN."""
        return cls(Count.zero(), Count.zero())

    def add(self, part: Array, of: Array) -> Self:
        """Add integers: int32 of any shapes, whose sums are below 2**31."""
        return self.merge(type(self)(_count(part), _count(of)))

    def merge(self, other: Self) -> Self:
        """Return the ratio over both."""
        return type(self)(self.part.merge(other.part), self.of.merge(other.of))

    def value(self) -> Array:
        """Return a float32 scalar; NaN where there is nothing to divide by."""
        of = self.of.value()
        return jnp.where(of > 0, self.part.value() / jnp.where(of > 0, of, 1), jnp.nan)


def _count(amounts: Array) -> Count:
    return Count(jnp.zeros((), jnp.uint32), amounts.astype(jnp.uint32).sum(dtype=jnp.uint32))


def edit_distance(predicted: Tokens, target: Tokens) -> Array:
    """Return the number of tokens to insert, delete or replace to turn each prediction into its target: int32
    `[batch]`.

    Source: Levenshtein, "Binary codes capable of correcting deletions, insertions, and reversals", 1966. Each row of
    Wagner and Fischer's table is computed at once, as the cost of insertions is a running minimum.

    >>> one = lambda ids: Tokens(jnp.array([ids]), jnp.array([len(ids)]))
    >>> print(edit_distance(one([1, 2, 3, 4]), one([1, 3, 4, 5])))   # without 2, with 5
    [2]
    """
    places = jnp.arange(target.ids.shape[1] + 1, dtype=jnp.int32)[None]

    def following(row: Array, token: tuple[Array, Array]) -> tuple[Array, None]:
        ids, counted = token
        replaced = row[:, :-1] + (ids[:, None] != target.ids).astype(jnp.int32)
        least = jnp.concatenate([row[:, :1] + 1, jnp.minimum(row[:, 1:] + 1, replaced)], 1)
        inserted = jax.lax.cummin(least - places, axis=1) + places
        return jnp.where(counted[:, None], inserted, row), None

    row = jnp.broadcast_to(places, (len(target.ids), places.shape[1]))
    row, _ = jax.lax.scan(following, row, (predicted.ids.T, predicted.counted.T))
    return jnp.take_along_axis(row, target.length[:, None], axis=1)[:, 0]


class _ErrorRate(MergingMetric):
    higher_is_better = False
    unit = ""
    fields = ("predictions", "targets")
    undefined = "the targets have no tokens"
    units: ClassVar[str]

    def __init__(self, pad_id: int | None = None, eos_id: int | None = None) -> None:
        self._ends = Ends(type(self).__name__, pad_id, eos_id)
        self.name = type(self).name + self._ends.words

    def init(self) -> Ratio:
        """Return the state of no sequences."""
        return Ratio.zero()

    def update(self, state: Ratio, output: Any, info: Info) -> Ratio:
        """Add a batch of sequences: integer `predictions` and `targets` `[batch, length]`, and their `mask`."""
        predicted, target, rows = self._ends.pairs(output)
        return state.add(jnp.where(rows, edit_distance(predicted, target), 0), target.length)

    def compute(self, state: Ratio) -> Array:
        """Return a float32 scalar, 0 or more; NaN where the targets have no tokens."""
        return state.value()


class WordErrorRate(_ErrorRate):
    """`(substitutions + deletions + insertions) / words of the targets`, over all sequences: 0 is perfect, and it may
    be more than 1.

    Each token counts as a word. If tokens are pieces of words, `OnText(WordErrorRate(), decode)` counts words. Both
    numbers are exact. For an empty prediction each target token is an edit; for an empty target each predicted token.

    Source: Morris, Maier, Green, "From WER and RIL to MER and WIL", 2004.

    Args:
      pad_id: a token to ignore at any position.
      eos_id: a token that ends a sequence; the token and everything after it are ignored.

    Raises:
      LearnerError: an id is not an integer; when updated with anything but integers `[batch, length]`.

    >>> from learner.steps.outputs import GeneratedOutput
    >>> out = GeneratedOutput.of(jnp.array([[5, 6, 7]]), jnp.array([[5, 7, 8, 0]]))
    >>> metric, info = WordErrorRate(pad_id=0), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # 6 deleted, 8 inserted, of 3
    0.6667
    """

    name = "Word Error Rate"
    description = "edits that make the targets of the predictions, per word of the targets"
    units = "words"


class CharacterErrorRate(_ErrorRate):
    """`(substitutions + deletions + insertions) / characters of the targets`, over all sequences.

    Each token counts as a character. If tokens are longer, `OnText(CharacterErrorRate(), decode)` counts characters.
    See `WordErrorRate` for everything else: arguments, errors and source.

    >>> from learner.steps.outputs import GeneratedOutput
    >>> out = GeneratedOutput.of(jnp.array([[1, 2, 3]]), jnp.array([[1, 9, 3]]))
    >>> metric, info = CharacterErrorRate(), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")
    0.3333
    """

    name = "Character Error Rate"
    description = "edits that make the targets of the predictions, per character of the targets"
    units = "characters"
