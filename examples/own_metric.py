"""Custom metrics: one with a number, counted exactly within the compiled program, and one with a text.

python -m examples.own_metric
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from learner import LearnerBuilder, LearningResult
from learner.data import DataLoaderBuilder, digits
from learner.examples.models import MLP
from learner.metrics import Info, Metric


class Confusion(Metric):
    """A metric whose text names the pair of classes that is confused most often."""

    name = "Most Confused"
    description = "the label and the wrong prediction that go together most often"
    numeric = False
    fields = ("logits", "targets")

    def __init__(self, classes: int):
        self.classes = classes

    def init(self) -> jax.Array:
        """Return the counts of labels (rows) and predicted classes (columns)."""
        return jnp.zeros((self.classes, self.classes), jnp.int32)

    def update(self, state: jax.Array, output: Any, info: Info) -> jax.Array:
        """Add a batch."""
        return state.at[output.targets, output.logits.argmax(-1)].add(1)

    def merge(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Add the counts of both."""
        return a + b

    def compute(self, state: jax.Array) -> jax.Array:
        """Return all counts; `text` formats them."""
        return state

    def text(self, value: Any) -> str:
        """Format the value on the host, once at the end of a split."""
        mistakes = np.asarray(value) * (1 - np.eye(self.classes, dtype=int))
        label, taken_for = np.unravel_index(mistakes.argmax(), mistakes.shape)
        return f"{label} for {taken_for}, {mistakes.max()} times" if mistakes.any() else "none"


class BalancedAccuracy(Confusion):
    """The accuracy within each class, averaged over the classes that occur: rare and frequent ones count alike."""

    name = "Balanced Accuracy"
    description = "mean over classes of the share of right predictions"
    numeric = True
    higher_is_better = True

    def compute(self, state: jax.Array) -> jax.Array:
        """Return float32; NaN if no class occurs."""
        rows = state.sum(-1)
        shares = jnp.diagonal(state).astype(jnp.float32) / rows.astype(jnp.float32)
        return jnp.mean(shares, where=rows > 0)


def main(directory: str = "runs/own_metric", num_epochs: int = 10) -> LearningResult:
    """Train, and show both metrics after every epoch. Monitors can name them like any other."""
    train = DataLoaderBuilder().batch_size(32).shuffle(seed=0).build(digits("train"))
    valid = DataLoaderBuilder().batch_size(100).build(digits("valid"))
    learner = (
        LearnerBuilder(directory)
        .metrics(BalancedAccuracy(10))
        .metric_valid(Confusion(10))
        .num_epochs(num_epochs)
        .with_file_checkpointer(monitor="valid/Balanced Accuracy")
        .summary()
        .build(MLP([64, 128, 10], rngs=nnx.Rngs(0)), optax.adamw, 2e-3)
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    main()
