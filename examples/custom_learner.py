"""A custom training paradigm: an encoder that learns from images without labels, with two losses.

One loss compares a picture with its reconstruction from a picture with holes; the other brings the codes of two noisy
copies of a picture together, and keeps the numbers of the codes apart (Bardes et al., "VICReg", 2022). A subclass of
`Learner` has its own loop: the loop of `fit`, which also evaluates the codes after each epoch. The result is logged,
and ends the run when the codes are good enough; logs, checkpoints and resuming work as in every run.

    python -m examples.custom_learner
"""

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from learner import Learner, LearnerBuilder, LearningResult
from learner.data import DataLoaderBuilder, digits
from learner.metrics import Info, MeanMetric, WeightedMean
from learner.training.run import Run


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TwoLosses:
    """The output of a step; `loss` is the sum of both losses."""

    loss: jax.Array
    filled: jax.Array
    together: jax.Array


class PartOfLoss(MeanMetric):
    """The mean of one of the two losses."""

    higher_is_better = False

    def __init__(self, name: str, field: str):
        self.name, self.field, self.fields = name, field, (field,)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a batch, weighted by its rows."""
        return state.add(getattr(output, self.field), info.weight)


class SelfSupervised(nnx.Module):
    """An encoder of images of 8 by 8 pixels, and a decoder that reconstructs them."""

    def __init__(self, codes: int = 16, *, rngs: nnx.Rngs):
        self.hidden, self.encode = nnx.Linear(64, 128, rngs=rngs), nnx.Linear(128, codes, rngs=rngs)
        self.widen, self.draw = nnx.Linear(codes, 128, rngs=rngs), nnx.Linear(128, 64, rngs=rngs)

    def __call__(self, pixels: jax.Array) -> jax.Array:
        """Map pixels `[batch, 64]` to codes `[batch, codes]`."""
        return self.encode(nnx.relu(self.hidden(pixels)))

    def train_step(self, batch: Any, rng: jax.Array) -> TwoLosses:
        """Return both losses of one batch."""
        pixels, keys = batch["image"].reshape(-1, 64), jax.random.split(rng, 3)
        seen = jax.random.bernoulli(keys[0], 0.7, pixels.shape)
        filled = self.draw(nnx.relu(self.widen(self(jnp.where(seen, pixels, 0)))))
        one, other = (self(pixels + 0.2 * jax.random.normal(key, pixels.shape)) for key in keys[1:])
        losses = (
            jnp.square(filled - pixels).mean(),
            (jnp.square(one - other).mean() + spread_loss(one) + spread_loss(other)) / 10,
        )
        return TwoLosses(sum(losses), *losses)

    valid_step = train_step


def spread_loss(codes: jax.Array) -> jax.Array:
    """Return a loss that is 0 if the numbers of the codes `[batch, codes]` have a deviation of 1 or more and are
    uncorrelated.
    """
    codes = codes - codes.mean(axis=0, keepdims=True)
    related = codes.T @ codes / codes.shape[0]
    lacking = nnx.relu(1 - jnp.sqrt(jnp.diag(related) + 1e-4)).mean()
    return lacking + jnp.square(related - jnp.diag(jnp.diag(related))).sum() / codes.shape[1]


def neighbours(model: SelfSupervised) -> float:
    """Return the fraction of validation images whose nearest training image, by the codes, shows the same digit."""
    (train, known), (valid, labels) = (
        (np.asarray(model(jnp.asarray(rows["image"].reshape(-1, 64)))), rows["label"])
        for rows in (digits("train").arrays, digits("valid").arrays)
    )
    distances = np.square(valid[:, None] - train[None]).sum(-1)
    return float((known[distances.argmin(1)] == labels).mean())


class SelfSupervisedLearner(Learner):
    """A learner that evaluates the codes after each epoch."""

    enough = 0.97

    def loop(self, run: Run) -> str:
        """Train as `fit` does and evaluate the codes; return the reason for the end."""
        reason = run.stop_reason()
        run.catch_up()
        with contextlib.closing(run.dispatches()) as dispatches:
            while reason is None and (dispatch := next(dispatches, None)) is not None:
                run.check()
                run.train(dispatch)
                if dispatch.ends_epoch:
                    share = neighbours(run.model())
                    run.log_numbers({"Neighbours": share})
                    reason = f"{share:.3f} of the neighbours are right" if share > self.enough else None
                run.end_step(ends_epoch=dispatch.ends_epoch)
                run.save_if_due()
                reason = reason or run.stop_reason()
        return run.finish(reason or "num_epochs")


def main(directory: str = "runs/custom_learner", num_epochs: int = 10) -> LearningResult:
    """Train until more than 97 % of the nearest neighbours are right."""
    train = DataLoaderBuilder().batch_size(64).shuffle(seed=0).build({"image": digits("train").arrays["image"]})
    valid = DataLoaderBuilder().batch_size(360).build({"image": digits("valid").arrays["image"]})
    learner = (
        LearnerBuilder(directory)
        .metrics(PartOfLoss("Filled", "filled"), PartOfLoss("Together", "together"))
        .num_epochs(num_epochs)
        .learner_class(SelfSupervisedLearner)
        .build(SelfSupervised(rngs=nnx.Rngs(0)), optax.adam, 2e-3)
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    main()
