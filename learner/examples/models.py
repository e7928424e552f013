"""Models for the bundled configs: `flax.nnx` modules with their training steps.

A step is the forward pass only, from a batch to an output with the loss; the learner differentiates it. Copy one as the
start of your own:

    model:
      class_path: mymodule.MyModel
      init_args: {width: 128}

`rngs` may be left out of a config: it comes from the config's `seed`.
"""

import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from learner import ClassificationOutput, RegressionOutput, SequenceOutput

Batch = dict[str, jax.Array]


class MLP(nnx.Module):
    """Dense layers with ReLU between them, applied to a flattened image or row of features.

    Args:
      features: the widths from input to output, such as [64, 128, 10].
      dropout: the fraction of activations that training drops after each hidden layer.
      rngs: random numbers for the initial weights and for dropout.
    """

    def __init__(self, features: list[int], dropout: float = 0.0, *, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(*sizes, rngs=rngs) for sizes in itertools.pairwise(features)])
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Map `[batch, ...]` to logits `[batch, features[-1]]`."""
        x = images.reshape(images.shape[0], -1)
        for layer in self.layers[:-1]:
            x = self.dropout(nnx.relu(layer(x)))
        return self.layers[-1](x)

    def train_step(self, batch: Batch) -> ClassificationOutput:
        """Return the cross-entropy of `batch["image"]` against `batch["label"]`."""
        return ClassificationOutput.from_logits(self(batch["image"]), batch["label"])

    valid_step = train_step


class CNN(nnx.Module):
    """Blocks of convolution, batch normalisation, ReLU and pooling, then one dense layer.

    Args:
        channels: of each block; every block halves the image.
        classes: how many there are.
        size: height and width of the images, which have one channel.
        dropout: the fraction of activations that training drops before the last layer.
        rngs: random numbers for the initial weights and for dropout.
    """

    def __init__(self, channels: list[int], classes: int = 10, size: int = 8, dropout: float = 0.0, *, rngs: nnx.Rngs):
        pairs = itertools.pairwise([1, *channels])
        self.convolutions = nnx.List([nnx.Conv(*sizes, (3, 3), use_bias=False, rngs=rngs) for sizes in pairs])
        self.norms = nnx.List([nnx.BatchNorm(size, momentum=0.9, rngs=rngs) for size in channels])
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        rest = size // 2 ** len(channels)
        self.head = nnx.Linear(rest * rest * channels[-1], classes, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Map `[batch, size, size]` to logits `[batch, classes]`."""
        x = images[..., None]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = nnx.max_pool(nnx.relu(norm(convolution(x))), (2, 2), strides=(2, 2))
        return self.head(self.dropout(x.reshape(x.shape[0], -1)))

    def train_step(self, batch: Batch) -> ClassificationOutput:
        """Return the cross-entropy of `batch["image"]` against `batch["label"]`."""
        return ClassificationOutput.from_logits(self(batch["image"]), batch["label"])

    valid_step = train_step


class Regressor(nnx.Module):
    """Dense layers with tanh between them, from a row of features to one number.

    Args:
        inputs: how many features a row has.
        hidden: the widths of the hidden layers.
        dropout: the fraction of activations that training drops after each hidden layer.
        rngs: random numbers for the initial weights and for dropout.
    """

    def __init__(self, inputs: int, hidden: list[int], dropout: float = 0.0, *, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(*sizes, rngs=rngs) for sizes in itertools.pairwise([inputs, *hidden])])
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.head = nnx.Linear(hidden[-1], 1, rngs=rngs)

    def __call__(self, features: jax.Array) -> jax.Array:
        """Map `[batch, inputs]` to predictions `[batch]`."""
        x = features
        for layer in self.layers:
            x = self.dropout(nnx.tanh(layer(x)))
        return self.head(x)[:, 0]

    def train_step(self, batch: Batch) -> RegressionOutput:
        """Return the squared error of the prediction for `batch["features"]` against `batch["target"]`."""
        return RegressionOutput.from_predictions(self(batch["features"]), batch["target"])

    valid_step = train_step


class Attention(nnx.Module):
    """Causal self-attention with rotary positions (Su et al., "RoFormer", 2021).

    Args:
        width: of the activations.
        heads: how many; each has `width / heads` numbers, which must be even.
        rngs: random numbers for the initial weights.
    """

    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs):
        self.heads = heads
        self.project = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.join = nnx.Linear(width, width, use_bias=False, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[batch, length, width]` to an array of the same shape; a position sees itself and those before it."""
        batch, length, width = x.shape
        split = self.project(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split[:, :, 0], split[:, :, 1], split[:, :, 2]
        mixed = jax.nn.dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
        return self.join(mixed.reshape(batch, length, width))


def rotate(x: jax.Array) -> jax.Array:
    """Rotate pairs of numbers by an angle that grows with the position: `[batch, length, heads, size]`, size even."""
    length, half = x.shape[1], x.shape[3] // 2
    frequency = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = jnp.outer(jnp.arange(length, dtype=jnp.float32), frequency)[None, :, None, :]
    sine, cosine = jnp.sin(angle).astype(x.dtype), jnp.cos(angle).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


class Block(nnx.Module):
    """One layer of a transformer: attention, then two dense layers, each added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float, *, rngs: nnx.Rngs):
        self.norm_attention = nnx.RMSNorm(width, rngs=rngs)
        self.attention = Attention(width, heads, rngs=rngs)
        self.norm_dense = nnx.RMSNorm(width, rngs=rngs)
        self.widen = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `[batch, length, width]` to an array of the same shape."""
        x = x + self.dropout(self.attention(self.norm_attention(x)))
        return x + self.dropout(self.narrow(nnx.gelu(self.widen(self.norm_dense(x)))))


class CharTransformer(nnx.Module):
    """Predicts each next character of a text.

    Args:
        characters: how many there are.
        width: of the activations, divisible by twice the heads.
        layers: how many blocks.
        heads: of each block's attention.
        dropout: the fraction of activations that training drops.
        rngs: random numbers for the initial weights and for dropout.
    """

    def __init__(
        self,
        characters: int = 128,
        width: int = 128,
        layers: int = 4,
        heads: int = 4,
        dropout: float = 0.0,
        *,
        rngs: nnx.Rngs,
    ):
        self.embed = nnx.Embed(characters, width, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, dropout, rngs=rngs) for _ in range(layers)])
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, characters, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        """Map characters `[batch, length]` (integers) to logits `[batch, length, characters]`."""
        x = self.dropout(self.embed(text))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def train_step(self, batch: Batch) -> SequenceOutput:
        """Return the cross-entropy of the characters that follow, `batch["target"]`."""
        return SequenceOutput.from_logits(self(batch["text"]), batch["target"])

    valid_step = train_step
