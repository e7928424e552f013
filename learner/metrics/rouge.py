"""ROUGE-L: the longest common subsequence of a prediction and its target."""

from typing import Any

import jax
import jax.numpy as jnp

from learner.metrics.base import Array, Info, WeightedMean
from learner.metrics.means import MeanMetric
from learner.metrics.tokens import Ends, Tokens


def common_subsequence(predicted: Tokens, target: Tokens) -> Array:
    """Return the length of the longest common subsequence, whose tokens need not be adjacent: int32 `[batch]`.

    >>> one = lambda ids: Tokens(jnp.array([ids]), jnp.array([len(ids)]))
    >>> print(common_subsequence(one([1, 2, 3, 4]), one([1, 3, 9, 4])))   # 1 3 4
    [3]
    """
    usable = target.counted

    def following(row: Array, token: tuple[Array, Array]) -> tuple[Array, None]:
        ids, counted = token
        equal = (ids[:, None] == target.ids) & usable & counted[:, None]
        longer = jnp.maximum(row[:, 1:], row[:, :-1] + equal.astype(jnp.int32))
        return jnp.concatenate([row[:, :1], jax.lax.cummax(longer, axis=1)], 1), None

    row = jnp.zeros((len(target.ids), target.ids.shape[1] + 1), jnp.int32)
    row, _ = jax.lax.scan(following, row, (predicted.ids.T, predicted.counted.T))
    return row[:, -1]


class RougeL(MeanMetric):
    """ROUGE-L, from 0 to 1: the mean over sequences of `2·P·R / (P + R)`, with the longest common subsequence as a
    fraction of the prediction (`P`) and of the target (`R`). It equals
    `2·common / (predicted tokens + target tokens)`.

    It is 0 for a sequence whose prediction or target is empty, or both. For texts, `OnText(RougeL(), decode)` compares
    words separated by white space.

    Source: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004.

    Args:
      pad_id: a token to ignore at any position.
      eos_id: a token that ends a sequence; the token and everything after it are ignored.

    Raises:
      LearnerError: an id is not an integer; when updated with anything but integers `[batch, length]`.

    >>> from learner.steps.outputs import GeneratedOutput
    >>> out = GeneratedOutput.of(jnp.array([[1, 2, 3, 4]]), jnp.array([[1, 3, 9, 4]]))
    >>> metric, info = RougeL(), Info(step=jnp.int32(0), weight=jnp.float32(1))
    >>> print(metric.compute(metric.update(metric.init(), out, info)))   # 2 · 3 / (4 + 4)
    0.75
    """

    higher_is_better = True
    unit = ""
    description = "the longest common subsequence of prediction and target (ROUGE-L, F), mean over sequences, 0 to 1"
    fields = ("predictions", "targets")
    undefined = "there are no sequences"
    units = "words"

    def __init__(self, pad_id: int | None = None, eos_id: int | None = None) -> None:
        self._ends = Ends("RougeL", pad_id, eos_id)
        self.name = "ROUGE-L" + self._ends.words

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch of sequences: integer `predictions` and `targets` `[batch, length]`, and their `mask`."""
        predicted, target, rows = self._ends.pairs(output)
        both = (predicted.length + target.length).astype(jnp.float32)
        common = common_subsequence(predicted, target).astype(jnp.float32)
        return state.add(2 * common / jnp.maximum(both, 1), rows)
