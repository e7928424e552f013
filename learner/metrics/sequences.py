"""Metrics of sequences: correct tokens, correct sequences, and bits per character."""

import math
from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, WeightedMean, rows_mask
from learner.metrics.class_arguments import metric_name
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

    Predictions and targets are `[batch, length]`; the counts are exact. The `predictions` of `SequenceOutput` are the
    tokens with the highest scores.

    Args:
      pad_id: a target token to ignore. The name is then `Token Accuracy ignoring 0`.

    Raises:
      LearnerError: `pad_id` is not an integer; when updated with predictions of another shape.

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

    Two empty sequences are a hit. See `learner.metrics.tokens.Ends.pairs` for masks.

    Args:
      pad_id: a token to ignore at any position.
      eos_id: a token that ends a sequence; the token and everything after it are ignored.

    Raises:
      LearnerError: an id is not an integer; when updated with anything but integers `[batch, length]`.

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

    The output's loss must be the mean cross-entropy in nats per token, as from `SequenceOutput.from_logits`. If each
    token is a character, the weight is the number of characters. If tokens are longer, or bytes, the output needs a
    field with the number of characters.

    Source: Graves, "Generating Sequences With Recurrent Neural Networks", 2013.

    Args:
      characters: the output's field with the number of characters in the loss, a scalar, or `[batch]`, where rows
        without a counted token are left out; default: the output's weight.

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
        self.name = metric_name(self.name, [characters])
        self.fields = ("loss",) if characters is None else ("loss", characters)

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
