"""A small generative adversarial network (Goodfellow et al., 2014): `update=` replaces the whole update.

The state is any pytree, here two networks with an optimizer each; logs, checkpoints and resuming work as usual. The
generator learns to turn noise into points on a circle.

    python -m examples.gan
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from learner import LearnerBuilder, LearningResult, Optimizer, RegressionOutput
from learner.data import DataLoaderBuilder
from learner.metrics import Info, MeanAbsoluteError, MeanMetric, WeightedMean

NOISE = 4


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GanOutput:
    """The output of an update for the metrics; `loss` is the generator's."""

    loss: jax.Array
    critic_loss: jax.Array


class CriticLoss(MeanMetric):
    """The mean of the critic's loss; ln 2 (0.69) if it can only guess."""

    name = "Critic Loss"
    higher_is_better = False
    splits = ("train",)
    fields = ("critic_loss",)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        """Add a step, weighted by its rows."""
        return state.add(output.critic_loss, info.weight)


def network(key: jax.Array, inputs: int, outputs: int) -> dict[str, jax.Array]:
    """Return the parameters of two dense layers with 64 units between them."""
    keys, scale = jax.random.split(key), jax.nn.initializers.lecun_normal()
    return {
        "first": scale(keys[0], (inputs, 64), jnp.float32),
        "bias": jnp.zeros((1, 64)),
        "last": scale(keys[1], (64, outputs), jnp.float32),
    }


def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Map `[batch, inputs]` to `[batch, outputs]`."""
    return jnp.tanh(x @ params["first"] + params["bias"]) @ params["last"]


opt = Optimizer(partial(optax.adam, b1=0.5))
"""Both networks' optimizer; each has a state of its own."""


def first_state(key: jax.Array) -> dict[str, Any]:
    """Return two networks with the states of their optimizers."""
    keys = jax.random.split(key)
    generator, critic = network(keys[0], NOISE, 2), network(keys[1], 2, 1)
    return {
        "generator": generator,
        "generator_optimizer": opt.init(generator),
        "critic": critic,
        "critic_optimizer": opt.init(critic),
    }


def update(state: dict[str, Any], batch: Any, lr: jax.Array, rng: jax.Array) -> tuple[dict[str, Any], GanOutput]:
    """Perform one step of the critic, then one of the generator."""
    noise = jax.random.normal(rng, (batch["point"].shape[0], NOISE))

    def critic_loss(critic: Any) -> jax.Array:
        real, generated = apply(critic, batch["point"]), apply(critic, apply(state["generator"], noise))
        return (jax.nn.softplus(-real) + jax.nn.softplus(generated)).mean() / 2

    def generator_loss(generator: Any) -> jax.Array:
        return jax.nn.softplus(-apply(critic, apply(generator, noise))).mean()

    loss_of_critic, grads = jax.value_and_grad(critic_loss)(state["critic"])
    critic, critic_optimizer = opt.step(lr, state["critic"], grads, state["critic_optimizer"])
    loss, grads = jax.value_and_grad(generator_loss)(state["generator"])
    generator, generator_optimizer = opt.step(lr, state["generator"], grads, state["generator_optimizer"])
    new = {
        "generator": generator,
        "generator_optimizer": generator_optimizer,
        "critic": critic,
        "critic_optimizer": critic_optimizer,
    }
    return new, GanOutput(loss, loss_of_critic)


def valid_step(state: dict[str, Any], batch: Any, rng: jax.Array) -> RegressionOutput:
    """Return the distances of generated points from the circle."""
    generated = apply(state["generator"], jax.random.normal(rng, (batch["point"].shape[0], NOISE)))
    radius = jnp.linalg.norm(generated, axis=-1)
    return RegressionOutput.from_predictions(radius, jnp.ones_like(radius))


def main(directory: str = "runs/gan", num_epochs: int = 60) -> LearningResult:
    """Train until generated points are on average less than 0.1 from the circle, which has a radius of 1."""
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 8192)
    points = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
    train = DataLoaderBuilder().batch_size(128).shuffle(seed=0).build({"point": points[:7168]})
    valid = DataLoaderBuilder().batch_size(1024).build({"point": points[7168:]})
    learner = (
        LearnerBuilder(directory)
        .metric_train(CriticLoss())
        .metric_valid(MeanAbsoluteError())
        .num_epochs(num_epochs)
        .summary()
        .build(first_state(jax.random.key(0)), None, 1e-3, update=update, valid_step=valid_step)
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    main()
