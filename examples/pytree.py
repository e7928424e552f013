"""Training without a model library: the model is a dict of arrays, the steps are functions.

python -m examples.pytree
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from learner import ClassificationOutput, LearnerBuilder, LearningResult
from learner.data import DataLoaderBuilder, digits
from learner.metrics import Accuracy

Params = dict[str, jax.Array]


def make(key: jax.Array, hidden: int = 128) -> Params:
    """Return the parameters of two dense layers."""
    first, last = jax.random.split(key)
    scale = jax.nn.initializers.lecun_normal()
    return {
        "first": scale(first, (64, hidden), jnp.float32),
        "bias": jnp.zeros((1, hidden)),
        "last": scale(last, (hidden, 10), jnp.float32),
    }


def logits(params: Params, images: jax.Array) -> jax.Array:
    """Map `[batch, 8, 8]` to `[batch, 10]`."""
    hidden = jax.nn.relu(images.reshape(-1, 64) @ params["first"] + params["bias"])
    return hidden @ params["last"]


def train_step(params: Params, batch: Any, rng: jax.Array) -> ClassificationOutput:
    """Return the output for images with noise, from a random key that differs in every step."""
    noise = 0.1 * jax.random.normal(rng, batch["image"].shape)
    return ClassificationOutput.from_logits(logits(params, batch["image"] + noise), batch["label"])


def valid_step(params: Params, batch: Any) -> ClassificationOutput:
    """Return the output for the images without noise."""
    return ClassificationOutput.from_logits(logits(params, batch["image"]), batch["label"])


def main(directory: str = "runs/pytree", num_epochs: int = 20) -> LearningResult:
    """Train to a validation accuracy above 97 %."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    valid = DataLoaderBuilder().batch_size(360).build(digits("valid"))
    learner = (
        LearnerBuilder(directory)
        .metrics(Accuracy())
        .num_epochs(num_epochs)
        .summary()
        .build(make(jax.random.key(0)), optax.adamw, 2e-3, train_step=train_step, valid_step=valid_step)
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    main()
