"""Metrics of the step's loss."""

from typing import Any

import jax.numpy as jnp

from learner.errors import LearnerError
from learner.metrics.base import Array, Info, WeightedMean
from learner.metrics.means import MeanMetric


class Loss(MeanMetric):
    """The loss over all rows: `Σ(loss·weight) / Σweight` over the batches.

    A batch of weight 0 does not count, even when its loss is NaN. Without any weight the value is NaN.

    >>> from learner.steps.outputs import RegressionOutput
    >>> metric = Loss()
    >>> three = RegressionOutput.from_predictions(jnp.array([1.0, 1.0, 1.0]), jnp.zeros(3))   # loss 1
    >>> one = RegressionOutput.from_predictions(jnp.array([3.0]), jnp.zeros(1))   # loss 9
    >>> state = metric.update(metric.init(), three, Info(step=jnp.int32(0), weight=jnp.float32(3)))
    >>> state = metric.update(state, one, Info(step=jnp.int32(1), weight=jnp.float32(1)))
    >>> print(metric.compute(state))   # (3 * 1 + 1 * 9) / 4
    3.0
    """

    name = "Loss"
    higher_is_better = False
    unit = ""
    description = "the loss of the step, mean over examples (or tokens)"
    fields = ("loss",)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: its `loss` (a scalar mean) with `info.weight`."""
        return _add_loss(self.name, state, output, info)


class Perplexity(MeanMetric):
    """`exp` of the mean cross-entropy per token, which is `exp(Σ(loss·weight) / Σweight)`; 1 is perfect.

    The output's loss must be that cross-entropy, in nats, as from `SequenceOutput.from_logits`; with a penalty added to
    the loss the value is not a perplexity. Over an epoch it is the exponential of the mean over all tokens, not a mean
    of the batches' perplexities. Weights count as for `Loss`.

    Source: Jelinek, Mercer, Bahl, Baker, "Perplexity, a measure of the difficulty of speech recognition tasks", 1977.

    >>> from learner.steps.outputs import SequenceOutput
    >>> metric, info = Perplexity(), Info(step=jnp.int32(0), weight=jnp.float32(10))
    >>> guess = SequenceOutput.from_logits(jnp.zeros((2, 5, 8)), jnp.zeros((2, 5), int))   # any of 8 tokens
    >>> print(f"{metric.compute(metric.update(metric.init(), guess, info)):.4f}")
    8.0000
    """

    name = "Perplexity"
    higher_is_better = False
    unit = ""
    description = "exp of the mean cross-entropy per token"
    fields = ("loss",)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch: its `loss` (the mean cross-entropy in nats) with `info.weight`."""
        return _add_loss(self.name, state, output, info)

    def compute(self, state: WeightedMean) -> Array:
        """Return a float32 scalar, 1 or more; NaN without tokens."""
        return jnp.exp(state.value())


def _add_loss(name: str, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
    loss = jnp.asarray(output.loss, jnp.float32)
    if loss.ndim:
        raise LearnerError(
            f"{name} got a loss of shape {loss.shape}; it needs a scalar, the mean over the batch",
            code="metric-loss-shape",
            name=name,
        )
    return state.add(loss, info.weight)
