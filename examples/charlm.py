"""A character transformer that learns Python from the standard library's source text, validates within its long epochs,
and then writes text: a few minutes on two cores.

    python -m examples.charlm

A larger model is split over several devices, each with a part of every matrix and of the rows:

    main(strategy=Sharded({"data": 4, "model": 2}, [TENSOR_PARALLEL, fsdp()]))
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from learner import LearnerBuilder, LearningResult
from learner.data import DataLoaderBuilder, stdlib_text
from learner.examples.models import CharTransformer
from learner.metrics import Accuracy, Perplexity
from learner.strategies import Strategy

TENSOR_PARALLEL = {
    # Split the first layers by outputs and the second ones by inputs, so that only sums are exchanged.
    r"attention\.project\.kernel": (None, "model"),
    r"attention\.join\.kernel": ("model", None),
    r"widen\.kernel": (None, "model"),
    r"widen\.bias": ("model",),
    r"narrow\.kernel": ("model", None),
    r"embed\.embedding": (None, "model"),
    r"head\.kernel": (None, "model"),
}
"""Which axis of each parameter is split over the axis `model` of a mesh, for `Sharded`."""


def optimizer(lr: float) -> optax.GradientTransformation:
    """Return the optimizer for a learning rate."""
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lr, b2=0.99, weight_decay=0.1))


def main(
    directory: str = "runs/charlm", num_epochs: int = 2, max_rows: int | None = None, strategy: Strategy | None = None
) -> LearningResult:
    """Train until about every second character is predicted correctly."""
    train = DataLoaderBuilder().batch_size(16).shuffle(seed=0).build(stdlib_text("train", 128, max_rows=max_rows))
    valid = DataLoaderBuilder().batch_size(64).build(stdlib_text("valid", 128, max_rows=max_rows))
    builder = LearnerBuilder(directory)
    if strategy is not None:
        builder.strategy(strategy)
    learner = (
        builder.metrics(Accuracy(), Perplexity())
        .num_epochs(num_epochs)
        .valid_every(steps=150)
        .with_file_checkpointer(keep_last=1, keep_best=1)
        .summary()
        .build(
            lambda: CharTransformer(width=128, layers=4, heads=4, rngs=nnx.Rngs(0)),
            optimizer,
            optax.warmup_cosine_decay_schedule(0.0, 2e-3, warmup_steps=50, decay_steps=910, end_value=1e-4),
        )
    )
    return learner.fit(train, valid)


def write(model: CharTransformer, start: str, characters: int, seed: int = 0) -> str:
    """Continue a text, character by character: the model sees the last 128 of them."""
    graph, state = nnx.split(model)

    @jax.jit
    def next_character(state: Any, text: jax.Array, key: jax.Array) -> jax.Array:
        logits = nnx.merge(graph, state)(text[None])[0, -1]
        return jax.random.categorical(key, logits / 0.7)

    text = jnp.array([ord(c) for c in start.rjust(128, "\n")], jnp.int32)
    for key in jax.random.split(jax.random.key(seed), characters):
        text = jnp.append(text[1:], next_character(state, text, key))
        start += chr(int(text[-1]))
    return start


if __name__ == "__main__":
    print(write(main().model, "def read_", characters=400))
