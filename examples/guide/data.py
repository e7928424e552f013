"""Step 2: the data, a batcher, and loaders."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.data import ArrayDataset, DataLoader, DataLoaderBuilder, digits

Item = dict[str, Any]


def rows(split: str, mnist: str | None = None) -> ArrayDataset:
    """Images and labels.

    Args:
      split: "train" or "valid".
      mnist: a directory with the four IDX files of MNIST; without it the digits of scikit-learn, 8 by 8 pixels.

    Returns:
      `image` float32 `[rows, height, width]`, from 0 to 1, and `label` int32 `[rows]`.
    """
    if mnist is None:
        return digits(split)
    from learner.data import mnist as read_mnist

    return read_mnist(mnist, split)


class DigitBatcher:
    """Makes a batch of a list of items: images as floats with a channel, centred at 0 with a width of 1."""

    MEAN, STD = 0.1307, 0.3081  # of MNIST's pixels from 0 to 1

    def __call__(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        """`image` float32 `[batch, height, width, 1]` and `label` int32 `[batch]`."""
        images = np.stack([item["image"] for item in items])
        return {
            "image": ((images - self.MEAN) / self.STD).astype(np.float32)[..., None],
            "label": np.array([item["label"] for item in items], np.int32),
        }


def loaders(batch_size: int, seed: int, mnist: str | None = None) -> tuple[DataLoader, DataLoader]:
    """The loaders of both splits; the first one shuffles."""
    builder = DataLoaderBuilder(DigitBatcher()).batch_size(batch_size)
    valid = builder.build(rows("valid", mnist))
    return builder.shuffle(seed).build(rows("train", mnist)), valid
