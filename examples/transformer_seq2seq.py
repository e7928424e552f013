"""A transformer with an encoder and a decoder (Vaswani et al., 2017) that reverses strings of digits.

Strings have different lengths, so there are masks: for padding in the source, for later positions in the decoder, and
for the tokens that count in the loss and the accuracy.

    python -m examples.transformer_seq2seq
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from learner import LearnerBuilder, LearningResult, SequenceOutput
from learner.data import DataLoaderBuilder
from learner.metrics import Accuracy

PAD, START, END = 10, 11, 12
TOKENS, LONGEST = 13, 8


def strings(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return strings of 1 to 8 digits, and their reverse.

    Returns:
      `source` int32 `[count, 8]`, padded on the left; `given` int32 `[count, 9]`, the decoder's input before each
      token; `target` int32 `[count, 9]`, which ends with `END` and is padded on the right.
    """
    rng = np.random.default_rng(seed)
    source = np.full((count, LONGEST), PAD, np.int32)
    given, target = (np.full((count, LONGEST + 1), PAD, np.int32) for _ in range(2))
    given[:, 0] = START
    for row, length in enumerate(rng.integers(1, LONGEST + 1, count)):
        digits = rng.integers(0, 10, length)
        source[row, LONGEST - length :] = digits
        given[row, 1 : length + 1] = target[row, :length] = digits[::-1]
        target[row, length] = END
    return {"source": source, "given": given, "target": target}


class Layer(nnx.Module):
    """Attention to itself, to a memory if there is one, and two dense layers, each with a residual connection."""

    def __init__(self, width: int, heads: int, *, has_memory: bool, rngs: nnx.Rngs):
        attention = lambda: nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)  # noqa: E731
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(3)])
        self.itself, self.memory = attention(), attention() if has_memory else None
        self.widen, self.narrow = nnx.Linear(width, 2 * width, rngs=rngs), nnx.Linear(2 * width, width, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array, memory: Any = None, memory_mask: Any = None) -> jax.Array:
        """Map `[batch, length, width]` to an array of that shape; masks are `[batch, 1, length, attended length]`."""
        x = x + self.itself(self.norms[0](x), mask=mask)
        if self.memory is not None:
            x = x + self.memory(self.norms[1](x), memory, mask=memory_mask)
        return x + self.narrow(nnx.relu(self.widen(self.norms[2](x))))


class Seq2Seq(nnx.Module):
    """An encoder layer and a decoder layer with learned positions."""

    def __init__(self, width: int = 64, heads: int = 4, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(TOKENS, width, rngs=rngs)
        self.positions = nnx.Embed(2 * LONGEST + 1, width, rngs=rngs)  # source positions come first
        self.encoder = Layer(width, heads, has_memory=False, rngs=rngs)
        self.decoder = Layer(width, heads, has_memory=True, rngs=rngs)
        self.head = nnx.Linear(width, TOKENS, rngs=rngs)

    def __call__(self, source: jax.Array, given: jax.Array) -> jax.Array:
        """Map source `[batch, 8]` and previous tokens `[batch, length]`, to logits `[batch, length, tokens]`."""
        query_places, key_places = jnp.arange(given.shape[1]) + LONGEST, jnp.arange(LONGEST)
        not_padding = nnx.make_attention_mask(source != PAD, source != PAD)
        memory = self.encoder(self.embed(source) + self.positions(key_places)[None], not_padding)
        x = self.embed(given) + self.positions(query_places)[None]
        x = self.decoder(
            x, nnx.make_causal_mask(given), memory, nnx.make_attention_mask(jnp.ones_like(given), source != PAD)
        )
        return self.head(x)

    def train_step(self, batch: Any) -> SequenceOutput:
        """Return the cross-entropy of the tokens that are not padding."""
        logits = self(batch["source"], batch["given"])
        return SequenceOutput.from_logits(logits, batch["target"], batch["target"] != PAD)

    valid_step = train_step


def turned_round(model: Seq2Seq, digits: str) -> str:
    """Return the model's output for a string of at most 8 digits, token by token."""
    source = jnp.array([[PAD] * (LONGEST - len(digits)) + [int(digit) for digit in digits]], jnp.int32)
    given = jnp.full((1, LONGEST + 1), PAD, jnp.int32).at[0, 0].set(START)
    logits = jax.jit(lambda model, given: model(source, given))
    for position in range(LONGEST + 1):
        token = int(logits(model, given)[0, position].argmax())
        if token == END or position == LONGEST:
            break
        given = given.at[0, position + 1].set(token)
    return "".join(str(token) for token in given[0, 1 : position + 1].tolist())


def main(directory: str = "runs/transformer_seq2seq", num_epochs: int = 2) -> LearningResult:
    """Train to a token accuracy above 90 %."""
    train = DataLoaderBuilder().batch_size(64).shuffle(seed=0).build(strings(8192, seed=0))
    valid = DataLoaderBuilder().batch_size(512).build(strings(512, seed=1))
    learner = (
        LearnerBuilder(directory)
        .metrics(Accuracy())
        .num_epochs(num_epochs)
        .build(
            Seq2Seq(rngs=nnx.Rngs(0)),
            lambda lr: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(lr)),
            optax.warmup_cosine_decay_schedule(0.0, 3e-3, warmup_steps=50, decay_steps=128 * num_epochs),
        )
    )
    return learner.fit(train, valid)


if __name__ == "__main__":
    print(turned_round(main().model, "31415926"))
