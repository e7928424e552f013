"""Workloads of the benchmarks: models, rows in memory, and durations.

Every workload trains with AdamW in float32; its model is a `flax.nnx` module unless it names another library. A row is
an entry of `x` and the corresponding entry of `y`; a model maps a batch of `x` to logits `[..., classes]` for the
integer labels `y` `[...]`.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

Rows = dict[str, np.ndarray]  # "x" and "y", with a common leading axis

RATE = 1e-3


@dataclasses.dataclass(frozen=True)
class Workload:
    """A model, its data and the length of a measurement.

    Attributes:
      model: makes the model from random streams: a module, or for linen a pair of module and variables.
      data: makes the rows of the two splits, `(train, valid)`.
      batch, valid_batch: rows per batch; the last batch may be smaller.
      epochs: epochs to measure, so that they take at least a second on two cores.
      warm: uncounted epochs before them.
      small: True if the host's work is visible, so that the further measurements are made.
      limit: True if a loop within the program is measured. On CPU, XLA runs the gradient of a convolution many times
        slower there.
      library: library of the model.
    """

    name: str
    model: Callable[[nnx.Rngs], Any]
    data: Callable[[], tuple[Rows, Rows]]
    batch: int
    valid_batch: int
    epochs: int
    warm: int
    small: bool = False
    limit: bool = True
    library: str = "flax.nnx"

    def pure(self) -> tuple[Any, Callable[[Any, jax.Array], jax.Array]]:
        """Return the parameters, and the function from parameters and a batch to logits."""
        model = self.model(nnx.Rngs(0))
        if self.library == "flax.linen":
            module, variables = model
            return variables, module.apply
        if self.library == "equinox":
            import equinox as eqx

            params, static = eqx.partition(model, eqx.is_array)
            return params, lambda params, x: jax.vmap(eqx.combine(params, static))(x)
        graph, state = nnx.split(model)
        return nnx.as_pure(state), lambda params, x: nnx.merge(graph, params)(x)


class MLP(nnx.Module):
    """An MLP of 64-128-128-10 units. A step takes about 100 µs, so the host's work is visible."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in [(64, 128), (128, 128), (128, 10)]])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def equinox_mlp(rngs: nnx.Rngs) -> Any:
    """Return the MLP in Equinox, for one row."""
    import equinox as eqx

    return eqx.nn.MLP(64, 10, 128, depth=2, key=rngs.params())


def linen_mlp(rngs: nnx.Rngs) -> tuple[Any, Any]:
    """Return the MLP in linen: the module and its variables."""
    import flax.linen as nn

    module = nn.Sequential([nn.Dense(128), nn.relu, nn.Dense(128), nn.relu, nn.Dense(10)])
    return module, module.init(rngs.params(), jnp.zeros((1, 64)))


class CNN(nnx.Module):
    """Two convolutions and two dense layers on 28 by 28 images."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.dense = nnx.Linear(7 * 7 * 32, 128, rngs=rngs)
        self.head = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.avg_pool(nnx.relu(self.conv1(x)), (2, 2), (2, 2))
        x = nnx.avg_pool(nnx.relu(self.conv2(x)), (2, 2), (2, 2))
        return self.head(nnx.relu(self.dense(x.reshape(x.shape[0], -1))))


class Block(nnx.Module):
    """Causal self-attention and a dense layer of four times the width, each added to its normalised input."""

    def __init__(self, width: int, rngs: nnx.Rngs, heads: int = 4, dtype: Any = None):
        linear = functools.partial(nnx.Linear, dtype=dtype, rngs=rngs)
        self.norm1, self.norm2 = (nnx.LayerNorm(width, dtype=dtype, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(heads, width, dtype=dtype, decode=False, rngs=rngs)
        self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class Transformer(nnx.Module):
    """A character model: 4 blocks of width 128 over 128 tokens of 96 kinds. `dtype` is that of the blocks' products."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        width: int = 128,
        blocks: int = 4,
        length: int = 128,
        kinds: int = 96,
        heads: int = 4,
        dtype: Any = None,
    ):
        self.tokens, self.places = nnx.Embed(kinds, width, rngs=rngs), nnx.Embed(length, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, rngs, heads, dtype) for _ in range(blocks)])
        self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, kinds, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        mask = nnx.make_causal_mask(x)
        x = self.tokens(x) + self.places(jnp.arange(x.shape[1]))[None]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def digits(repeat: int = 1) -> tuple[Rows, Rows]:
    """Return scikit-learn's digits: 1437 rows for training and 360 for validation, each `repeat` times."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    rows = {"x": (x[order] / 16).astype(np.float32), "y": y[order].astype(np.int32)}
    train, valid = _rows(rows, slice(1437)), _rows(rows, slice(1437, None))
    return _repeated(train, repeat), _repeated(valid, repeat)


def images(train: int = 6400, valid: int = 1024) -> tuple[Rows, Rows]:
    """Return random images of 28 by 28, each brighter in a region that depends on its label."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, train + valid, np.int32)
    x = rng.random((train + valid, 28, 28, 1), np.float32)
    x[np.arange(len(y)), 2 * y + 4, 14] += 3
    rows = {"x": x, "y": y}
    return _rows(rows, slice(train)), _rows(rows, slice(train, None))


def characters(train: int = 128, valid: int = 32, length: int = 128, repeat: int = 1) -> tuple[Rows, Rows]:
    """Return windows of source text from the standard library: `x` the characters, `y` the following characters.
    Training windows are repeated `repeat` times.
    """
    text = np.frombuffer(Path(dataclasses.__file__).read_bytes(), np.uint8)
    text = np.where((text >= 32) & (text < 127), text - 31, 0).astype(np.int32)[: (train + valid) * length + 1]
    rows = {"x": text[:-1].reshape(-1, length), "y": text[1:].reshape(-1, length)}
    return _repeated(_rows(rows, slice(train)), repeat), _rows(rows, slice(train, None))


def _repeated(rows: Rows, times: int) -> Rows:
    return {k: np.concatenate([v] * times) for k, v in rows.items()}


def _rows(rows: Rows, part: slice) -> Rows:
    return {k: v[part] for k, v in rows.items()}


WORKLOADS = {
    w.name: w
    for w in (
        Workload("digits", MLP, digits, 32, 256, epochs=400, warm=20, small=True),
        Workload("digits-20k", MLP, lambda: digits(repeat=14), 32, 256, epochs=20, warm=2, small=True),
        Workload("cnn", CNN, images, 128, 128, epochs=4, warm=1, limit=False),
        Workload("transformer", Transformer, characters, 16, 16, epochs=4, warm=1),
        Workload(
            "transformer-12",
            lambda rngs: Transformer(rngs, width=256, blocks=12),
            lambda: characters(32, 8, length=32),
            8,
            8,
            epochs=2,
            warm=1,
        ),
        Workload(
            "transformer-2",
            lambda rngs: Transformer(rngs, width=64, blocks=2, length=32),
            lambda: characters(256, 32, length=32),
            8,
            32,
            epochs=3,
            warm=1,
        ),
        Workload(
            "gpt",
            lambda rngs: Transformer(rngs, width=1024, blocks=6, length=512, heads=16, dtype=jnp.bfloat16),
            lambda: characters(96, 16, length=512, repeat=16),
            32,
            16,
            epochs=2,
            warm=1,
        ),
        Workload("equinox", equinox_mlp, digits, 32, 256, epochs=400, warm=20, library="equinox"),
        Workload("linen", linen_mlp, digits, 32, 256, epochs=400, warm=20, library="flax.linen"),
    )
}
