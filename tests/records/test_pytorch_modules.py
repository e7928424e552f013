"""Tests that layers with weights loaded from PyTorch's modules compute the same outputs."""

import importlib.util

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx

from learner.records import SafetensorsRecorder

pytestmark = [
    pytest.mark.usefixtures("compiled_once"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"),
]

RNG = np.random.default_rng(5)
WORDS = RNG.normal(size=(2, 5, 6)).astype(np.float32)
IMAGES = RNG.normal(size=(2, 4, 5, 6)).astype(np.float32)  # channels first
TOKENS = np.array([[0, 3, 6], [2, 2, 1]])
KEY = jax.random.key(0)


def channels_last(layer):
    return lambda x: jnp.moveaxis(layer(jnp.moveaxis(x, 1, -1)), -1, 1)


def scan(cell):
    """Return the hidden states of a cell of Equinox, for [batch, length, 6]."""
    zeros = jnp.zeros(cell.hidden_size)
    start = (zeros, zeros) if isinstance(cell, eqx.nn.LSTMCell) else zeros

    def step(state, x):
        state = cell(x, state)
        return state, state[0] if isinstance(state, tuple) else state

    return jax.vmap(lambda x: jax.lax.scan(step, start, x)[1])


def gru():
    cell = nnx.GRUCell(6, 3, rngs=nnx.Rngs(0))
    cell.dense_h = nnx.Linear(3, 9, rngs=nnx.Rngs(0))
    return nnx.RNN(cell)


def up(**options):
    return nnx.ConvTranspose(4, 3, (3, 3), 2, padding=[(1, 2), (1, 2)], rngs=nnx.Rngs(0), **options)


BIASES = {f"use_{name}_bias": True for name in ("query", "key", "value", "output")}
SELF = {"num_heads": 2, "batch_first": True}
CASES = {
    # name, arguments and options of the PyTorch module; inputs; a model; a function of the model that maps the inputs
    "linear": ("Linear", (6, 3), {}, WORDS, lambda: nnx.Linear(6, 3, rngs=nnx.Rngs(0)), lambda layer: layer),
    "convolution": (
        *("Conv2d", (4, 3, 3), {}, IMAGES, lambda: nnx.Conv(4, 3, (3, 3), padding="VALID", rngs=nnx.Rngs(0))),
        channels_last,
    ),
    "layer-norm": (
        *("LayerNorm", (6,), {}, WORDS, lambda: nnx.LayerNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0)), lambda layer: layer),
    ),
    "layer-norm-eqx": ("LayerNorm", (6,), {}, WORDS, lambda: eqx.nn.LayerNorm(6), lambda x: jax.vmap(jax.vmap(x))),
    "embedding": ("Embedding", (7, 4), {}, TOKENS, lambda: nnx.Embed(7, 4, rngs=nnx.Rngs(0)), lambda layer: layer),
    "embedding-eqx": (
        *("Embedding", (7, 4), {}, TOKENS, lambda: eqx.nn.Embedding(7, 4, key=KEY), lambda x: jax.vmap(jax.vmap(x))),
    ),
    "attention": (
        *("MultiheadAttention", (6,), SELF, WORDS),
        *(lambda: nnx.MultiHeadAttention(2, 6, decode=False, rngs=nnx.Rngs(0)), lambda layer: layer),
    ),
    "attention-eqx": (
        *("MultiheadAttention", (6,), SELF, WORDS, lambda: eqx.nn.MultiheadAttention(2, 6, key=KEY, **BIASES)),
        lambda layer: jax.vmap(lambda x: layer(x, x, x)),
    ),
    "lstm": (
        *("LSTM", (6, 3), {"batch_first": True}, WORDS, lambda: nnx.RNN(nnx.LSTMCell(6, 3, rngs=nnx.Rngs(0)))),
        lambda layer: layer,
    ),
    "lstm-optimized": (
        *("LSTM", (6, 3), {"batch_first": True}, WORDS, lambda: nnx.RNN(nnx.OptimizedLSTMCell(6, 3, rngs=nnx.Rngs(0)))),
        lambda layer: layer,
    ),
    "lstm-eqx": ("LSTM", (6, 3), {"batch_first": True}, WORDS, lambda: eqx.nn.LSTMCell(6, 3, key=KEY), scan),
    "gru": ("GRU", (6, 3), {"batch_first": True}, WORDS, gru, lambda layer: layer),
    "gru-eqx": ("GRU", (6, 3), {"batch_first": True}, WORDS, lambda: eqx.nn.GRUCell(6, 3, key=KEY), scan),
    "transposed": ("ConvTranspose2d", (4, 3, 3, 2, 1, 1), {}, IMAGES, up, channels_last),
    "transposed-kernel": (
        *("ConvTranspose2d", (4, 3, 3, 2, 1, 1), {}, IMAGES, lambda: up(transpose_kernel=True), channels_last),
    ),
    "transposed-eqx": (
        *("ConvTranspose2d", (4, 6, 3, 2, 1, 1), {"groups": 2}, IMAGES),
        *(lambda: eqx.nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2, key=KEY), jax.vmap),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_equal_pytorch(case):
    import torch

    name, arguments, options, x, model, call = CASES[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = getattr(torch.nn, name)(*arguments, **options)
        for weight in module.parameters():
            torch.nn.init.normal_(weight)  # attention's biases begin with 0
    inputs = torch.from_numpy(x)
    with torch.no_grad():
        expected = module(inputs, inputs, inputs) if "attention" in case else module(inputs)
    expected = (expected[0] if isinstance(expected, tuple) else expected).numpy()
    file = safetensors.numpy.save({path: weight.numpy() for path, weight in module.state_dict().items()})
    loaded = SafetensorsRecorder().from_bytes(file, model(), layout="torch")
    actual = call(loaded)(jnp.asarray(x))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
