"""A flax.linen model with batch statistics and dropout: the module and its variables, wrapped as `Linen`.

python -m examples.linen_model
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from learner import ClassificationOutput, LearnerBuilder, LearningResult, Linen
from learner.data import DataLoaderBuilder, digits
from learner.metrics import Accuracy


class Network(nn.Module):
    """Two dense layers with batch normalisation and dropout between them."""

    @nn.compact
    def __call__(self, images: jax.Array, train: bool) -> jax.Array:
        """Map `[batch, 8, 8]` to logits `[batch, 10]`."""
        x = nn.Dense(128)(images.reshape(images.shape[0], -1))
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.Dropout(0.1, deterministic=not train)(nn.relu(x))
        return nn.Dense(10)(x)


def step(model: Linen, batch: Any) -> ClassificationOutput:
    """Call the model like a function: `Linen` updates its batch statistics and supplies random numbers."""
    return ClassificationOutput.from_logits(model(batch["image"], train=model.train), batch["label"])


def main(directory: str = "runs/linen", num_epochs: int = 20) -> LearningResult:
    """Train to a validation accuracy above 97 %."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    valid = DataLoaderBuilder().batch_size(360).build(digits("valid"))
    module = Network()
    variables = module.init(jax.random.key(0), jnp.zeros((1, 8, 8)), train=False)
    learner = (
        LearnerBuilder(directory)
        .metrics(Accuracy())
        .num_epochs(num_epochs)
        .summary()
        .build(Linen(module, variables), optax.adamw, 2e-3, train_step=step, valid_step=step)
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    main()
