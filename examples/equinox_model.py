"""An Equinox model: its parameters and its `State` (running statistics) form one model, a pair.

python -m examples.equinox_model        (pip install equinox)
"""

from typing import Any

import equinox as eqx
import jax
import optax

from learner import ClassificationOutput, LearnerBuilder, LearningResult
from learner.data import DataLoaderBuilder, digits
from learner.metrics import Accuracy

Model = tuple["Network", eqx.nn.State]


class Network(eqx.Module):
    """Two dense layers with batch normalisation and dropout between them, for one image."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        keys = jax.random.split(key)
        self.first = eqx.nn.Linear(64, 128, key=keys[0])
        self.norm = eqx.nn.BatchNorm(128, axis_name="batch", momentum=0.9, mode="batch")
        self.dropout = eqx.nn.Dropout(0.1)
        self.last = eqx.nn.Linear(128, 10, key=keys[1])

    def __call__(self, image: jax.Array, state: eqx.nn.State, key: jax.Array) -> tuple[jax.Array, eqx.nn.State]:
        """Map `[8, 8]` to logits `[10]`."""
        x, state = self.norm(self.first(image.reshape(64)), state)
        return self.last(self.dropout(jax.nn.relu(x), key=key)), state


def step(model: Model, batch: Any, rng: jax.Array) -> tuple[ClassificationOutput, Model]:
    """Return the output and the model: the learner takes the new state from it."""
    network, state = model
    keys = jax.random.split(rng, batch["image"].shape[0])
    forward = jax.vmap(network, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))
    logits, state = forward(batch["image"], state, keys)
    return ClassificationOutput.from_logits(logits, batch["label"]), (network, state)


def main(directory: str = "runs/equinox", num_epochs: int = 20) -> LearningResult:
    """Train to a validation accuracy above 97 %."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    valid = DataLoaderBuilder().batch_size(360).build(digits("valid"))
    learner = (
        LearnerBuilder(directory)
        .metrics(Accuracy())
        .num_epochs(num_epochs)
        .summary()
        .build(eqx.nn.make_with_state(Network)(jax.random.key(0)), optax.adamw, 2e-3, train_step=step, valid_step=step)
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    main()
