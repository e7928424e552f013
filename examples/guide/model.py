"""Step 1: a config, and the model that it makes."""

import jax
from flax import nnx

from learner import ClassificationOutput, Config

Batch = dict[str, jax.Array]


class ModelConfig(Config):
    """A small convolutional network.

    Args:
        classes: how many there are.
        channels: of the two convolutions.
        hidden: width of the dense layer.
        dropout: the share of activations that training drops, from 0 to 1.
    """

    classes: int = 10
    channels: tuple[int, int] = (8, 16)
    hidden: int = 64
    dropout: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: it needs a number from 0 to below 1")

    def init(self, rngs: nnx.Rngs) -> "Model":
        """A new model with random weights."""
        return Model(self, rngs)


class Model(nnx.Module):
    """Two convolutions, the mean over a grid of 4 by 4, and two dense layers. Images are at least 8 by 8."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        first, second = config.channels
        self.conv1 = nnx.Conv(1, first, (3, 3), padding="VALID", rngs=rngs)
        self.conv2 = nnx.Conv(first, second, (3, 3), padding="VALID", rngs=rngs)
        self.hidden = nnx.Linear(4 * 4 * second, config.hidden, rngs=rngs)
        self.head = nnx.Linear(config.hidden, config.classes, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """`[batch, height, width, 1]` to logits `[batch, classes]`."""
        x = nnx.relu(self.conv1(images))
        x = self.dropout(nnx.relu(self.conv2(x)))
        window = (x.shape[1] // 4, x.shape[2] // 4)
        x = nnx.avg_pool(x, window, strides=window)[:, :4, :4]
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.head(self.dropout(x))

    def train_step(self, batch: Batch) -> ClassificationOutput:
        """The forward pass only: the learner differentiates its loss."""
        return ClassificationOutput.from_logits(self(batch["image"]), batch["label"])

    valid_step = train_step  # dropout is off there
