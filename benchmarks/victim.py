"""The process that `benchmarks.chaos` kills.

    python -m benchmarks.victim FD train DIR SEED EPOCHS    the run below, from its newest checkpoint
    python -m benchmarks.victim FD learner fit CONFIG ...   the command `learner`, with any arguments

A byte is written to the pipe FD when `Learner.fit` starts: the code before it (imports) wrote nothing to the disk.
"""

import functools
import os
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from learner import ClassificationOutput, Learner, LearnerBuilder, MetricEarlyStopping
from learner.data import DataLoaderBuilder
from learner.metrics import Accuracy, CollectingMetric, LearningRate

ROWS, BATCH, ACCUMULATE = 46, 4, 5  # 12 batches, the last one of 2 rows: steps of 5, 5 and 2 micro-batches
STEPS = 3  # steps of an epoch


class Net(nnx.Module):
    """A model with parameters, running statistics and a random stream."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(5, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.out = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.drop(nnx.relu(self.norm(self.hidden(x)))))

    def train_step(self, batch: Any) -> ClassificationOutput:
        """Return the output for both splits."""
        return ClassificationOutput.from_logits(self(batch["x"]), batch["y"])

    valid_step = train_step


class Order(CollectingMetric):
    """Sum row numbers times labels, which changes with the order of rows, and with a lost or repeated row."""

    name = "Order"
    higher_is_better = True
    fields = ("targets",)

    def collect(self, output: Any) -> Any:
        return {"targets": output.targets.astype(jnp.float32)}

    def compute(self, rows: Any) -> float:
        return float(np.dot(np.arange(1, len(rows["targets"]) + 1), rows["targets"].astype(np.float64)))


def train(directory: str | os.PathLike[str], seed: int, epochs: int) -> None:
    """Train a small run with every kind of state, from its newest checkpoint if there is one.

    Shuffling, dropout, running statistics, accumulation with a short last group, a ragged last batch, a schedule,
    validation and checkpoints within epochs, retention, early stopping that counts and does not stop, and a metric that
    holds rows on the host.
    """
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(ROWS, 5)).astype(np.float32), "y": rng.integers(0, 3, ROWS).astype(np.int32)}
    builder = LearnerBuilder(os.fspath(directory)).resume().renderer(None).seed(seed).num_epochs(epochs)
    builder.grads_accumulation(ACCUMULATE).valid_every(steps=2)
    builder.metrics(Accuracy(), Order()).metric_train(LearningRate())
    builder.with_file_checkpointer(keep_last=2, keep_best=1, keep_every=10, every_epochs=5, every_steps=16)
    builder.early_stopping(MetricEarlyStopping("valid/Accuracy", patience=10 * epochs))
    schedule = optax.cosine_decay_schedule(2e-2, STEPS * epochs)
    learner = builder.build(Net(nnx.Rngs(seed)), optax.adamw, schedule)
    items = [{name: column[i] for name, column in rows.items()} for i in range(ROWS)]
    learner.fit(
        DataLoaderBuilder().batch_size(BATCH).shuffle(seed=seed).build(items),
        DataLoaderBuilder().batch_size(10).build({name: column[:23] for name, column in rows.items()}),
    )


def main(words: Sequence[str]) -> int:
    """Run the command."""
    pipe, kind, *rest = words
    fit = Learner.fit

    @functools.wraps(fit)
    def announced(*args: Any, **kwargs: Any) -> Any:
        os.write(int(pipe), b".")
        return fit(*args, **kwargs)

    Learner.fit = announced  # type: ignore[method-assign]
    if kind == "learner":
        from learner.cli.main import main as learner

        return learner(rest)
    train(rest[0], int(rest[1]), int(rest[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
