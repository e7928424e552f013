"""Metrics of sequences: correct tokens, and correct sequences."""

import math
from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, WeightedMean, rows_mask
from learner.metrics.counts import Fraction
from learner.metrics.means import FractionMetric, MeanMetric
from learner.metrics.rows import as_int32, kept_rows
from learner.metrics.tokens import Ends


class _HitsOfSequences(FractionMetric):
    """A fraction of the tokens, or of the sequences, that are right."""

    higher_is_better = True
    fields = ("predictions", "targets")


class TokenAccuracy(_HitsOfSequences):
    """The fraction of positions whose predicted token is the target token, from 0 to 1: `hits / (hits + misses)`.

    Both are `[batch, length]`, position by position; both numbers are exact. `SequenceOutput` has as `predictions` the
    tokens with the highest scores.

    Args:
      pad_id: a target token that does not count. The name is then `Token Accuracy ignoring 0`.

    Raises:
      LearnerError: for a `pad_id` that is not a whole number; when updated with predictions of another shape.

    >>> from learner.steps.outputs import GeneratedOutput
    >>> out = GeneratedOutput.of(jnp.array([[5, 6, 1, 1]]), jnp.array([[5, 7, 1, 0]]))
    >>> metric, info = TokenAccuracy(pad_id=0), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(f"{metric.compute(metric.update(metric.init(), out, info)):.4f}")   # 2 of 3
    0.6667
    """

    description = "how often the predicted token is the target token, 0 to 1"

    def __init__(self, pad_id: int | None = None) -> None:
        self.pad_id = self.ignore_label = pad_id
        self.name = "Token Accuracy" + Ends("TokenAccuracy", pad_id, None).words

    def update(self, state: Fraction, output: Any, info: Info) -> Fraction:
        """Add a batch: integer `predictions` and `targets` `[batch, length]`, and their `mask`, if any."""
        predictions, targets = jnp.asarray(output.predictions), jnp.asarray(output.targets)
        integers = all(jnp.issubdtype(x.dtype, jnp.integer) for x in (predictions, targets))
        if predictions.ndim < 2 or predictions.shape != targets.shape or not integers:
            raise LearnerError(
                f"{self.name} got predictions {predictions.dtype}{list(predictions.shape)} and targets "
                f"{targets.dtype}{list(targets.shape)}; it needs token numbers of one shape: integers [batch, length]",
                code="metric-sequence-shapes",
            )
        counted = kept_rows(self.name, output, targets.shape)
        if self.pad_id is not None:
            counted &= targets != self.pad_id
        return state.add(as_int32(predictions) == as_int32(targets), counted)


class ExactMatch(_HitsOfSequences):
    """The fraction of predicted sequences that equal their target, from 0 to 1: `hits / (hits + misses)` over rows.

    Two empty sequences are a hit. See `learner.metrics.tokens.Ends.pairs` for what masks mean.

    Args:
      pad_id: a token that does not count, wherever it is.
      eos_id: a token that ends a sequence; neither it nor what follows counts.

    Raises:
      LearnerError: for ids that are not whole numbers; when updated with other than integers `[batch, length]`.

    >>> from learner.steps.outputs import GeneratedOutput
    >>> out = GeneratedOutput.of(jnp.array([[5, 6, 2, 9], [5, 6, 6, 2]]), jnp.array([[5, 6, 2], [5, 6, 2]]))
    >>> metric, info = ExactMatch(eos_id=2), Info(step=jnp.int32(0), weight=jnp.float32(2))
    >>> print(metric.name, metric.compute(metric.update(metric.init(), out, info)))
    Exact Match ending at 2 0.5
    """

    description = "how often all of a sequence is as it should be, 0 to 1"
    units = "words"

    def __init__(self, pad_id: int | None = None, eos_id: int | None = None) -> None:
        self._ends = Ends("ExactMatch", pad_id, eos_id)
        self.name = "Exact Match" + self._ends.words

    def update(self, state: Fraction, output: Any, info: Info) -> Fraction:
        """Add a batch of sequences."""
        predicted, target, rows = self._ends.pairs(output)
        shorter = min(predicted.ids.shape[1], target.ids.shape[1])
        same = predicted.ids[:, :shorter] == target.ids[:, :shorter]
        same = (same | ~target.counted[:, :shorter]).all(-1)
        return state.add(same & (predicted.length == target.length), rows)


class BitsPerCharacter(MeanMetric):
    """The cross-entropy in bits: `Σ(loss·weight) / (ln 2 · Σ characters)`; 0 is perfect.

    It takes the output's loss as the mean cross-entropy in nats per token, as `SequenceOutput.from_logits` makes it.
    Where a token is a character, there are as many characters as the weight says. Where it is more, or a byte, the
    output has to say how many characters its tokens are.

    Source: Graves, "Generating Sequences With Recurrent Neural Networks", 2013.

    Args:
      characters: the output's field with the number of characters that the loss is of, a scalar or `[batch]`, of which
        rows without a token that counts are left out; default: its weight.

    Raises:
      LearnerError: `characters` is not a name.

    >>> from learner.steps.outputs import SequenceOutput
    >>> metric, info = BitsPerCharacter(), Info(step=jnp.int32(0), weight=jnp.float32(10))
    >>> guess = SequenceOutput.from_logits(jnp.zeros((2, 5, 8)), jnp.zeros((2, 5), int))   # any of 8 characters
    >>> print(f"{metric.compute(metric.update(metric.init(), guess, info)):.4f}")
    3.0000
    """

    name = "Bits per Character"
    higher_is_better = False
    unit = "bits"
    description = "cross-entropy in bits, per character"

    def __init__(self, characters: str | None = None) -> None:
        if not (characters is None or isinstance(characters, str)):
            raise LearnerError(
                f"BitsPerCharacter got the characters {characters!r}: it needs the name of a field of the step's "
                "output, or None",
                code="metric-field-name",
            )
        self._characters = characters
        vars(self)["fields"] = ("loss",) if characters is None else ("loss", characters)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: its `loss` (the mean cross-entropy in nats) with `info.weight`."""
        loss = jnp.asarray(output.loss, jnp.float32)
        if self._characters is None:
            return state.add(loss, info.weight)
        count, mask = jnp.asarray(getattr(output, self._characters)), rows_mask(output)
        if count.ndim == 1 and mask is not None:  # a row whose mask keeps nothing is not in the loss
            count = jnp.where(mask.astype(bool).reshape(len(count), -1).any(-1), count, 0)
        count = count.astype(jnp.float32).sum()
        total = jnp.where(info.weight > 0, loss * info.weight, 0)
        return state.add(total / jnp.where(count > 0, count, 1), count)

    def compute(self, state: WeightedMean) -> Array:
        """Return a float32 scalar, 0 or more; NaN without characters."""
        return state.value() * jnp.float32(1 / math.log(2))
