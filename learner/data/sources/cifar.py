"""CIFAR-10 and CIFAR-100 in their binary version: rows of labels and 3072 pixels (Krizhevsky, 2009)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.input_files import check_split, most_bytes, opened, published, read_exactly
from learner.data.sources.idx import SPLITS, check_labels, pixels
from learner.errors import LearnerError

CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html (the binary version, unpacked)"
PIXELS = 3 * 32 * 32
LARGEST = 2**28  # bytes of one file, decompressed; the published files have up to 154 MB


def cifar10(directory: str, split: str, scaled: bool = True) -> ArrayDataset:
    """Return CIFAR-10: 50,000 photographs for training and 10,000 others, 32 by 32 pixels, in ten classes.

    Args:
      directory: the directory with `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`, plain or gzip.
      split: "train", or "valid" for the 10,000 others ("test" is the same).
      scaled: return pixels as float32 from 0 to 1; otherwise as bytes, which take a quarter of the memory.

    Returns:
      `image` float32 (or uint8) `[rows, 32, 32, 3]` (red, green, blue last), and `label` int32 `[rows]`, 0 to 9:
      airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck.

    Raises:
      LearnerError: the split is unknown, or files are missing (the message has the address) or damaged. Nothing is
        downloaded.

    >>> cifar10("/no/such/place", "train")
    Traceback (most recent call last):
    learner.errors.LearnerError: cifar10: /no/such/place is not a directory; get the files from https://www.cs.toronto...
    """
    check_split("cifar10", split, SPLITS)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] if split == "train" else ["test_batch.bin"]
    labels, images = _read("cifar10", directory, names, (10,), scaled)
    return ArrayDataset({"image": images, "label": labels[:, 0]})


def cifar100(directory: str, split: str, scaled: bool = True) -> ArrayDataset:
    """Return CIFAR-100: like CIFAR-10, in a hundred classes, which form twenty groups.

    Args:
      directory: the directory with `train.bin` and `test.bin`, plain or gzip.
      split: "train", or "valid" for the 10,000 others ("test" is the same).
      scaled: as for `cifar10`.

    Returns:
      `image` as for `cifar10`, `label` int32 `[rows]`, 0 to 99, and `group` int32 `[rows]`, 0 to 19.

    Raises:
      LearnerError: as for `cifar10`.

    >>> cifar100("/no/such/place", "tets")
    Traceback (most recent call last):
    learner.errors.LearnerError: cifar100 has no split 'tets': did you mean 'test'?
    """
    check_split("cifar100", split, SPLITS)
    names = ["train.bin"] if split == "train" else ["test.bin"]
    labels, images = _read("cifar100", directory, names, (20, 100), scaled)
    return ArrayDataset({"image": images, "label": labels[:, 1].copy(), "group": labels[:, 0].copy()})


def _read(
    what: str, directory: str, names: Sequence[str], classes: Sequence[int], scaled: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels int32 `[rows, len(classes)]`, and images."""
    paths = published(directory, [[name, f"{name}.gz"] for name in names], what, CIFAR)
    rows = np.concatenate([_rows(path, len(classes)) for path in paths])
    labels = rows[:, : len(classes)].astype(np.int32)
    for column, count in enumerate(classes):
        check_labels(what, labels[:, column], count)
    return labels, pixels(rows[:, len(classes) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), scaled)


def _rows(path: Path, labels: int) -> np.ndarray:
    most, width = min(most_bytes(path), LARGEST), labels + PIXELS
    with opened(path) as stream:
        data = read_exactly(stream, most + 1)
    if len(data) > most:
        raise LearnerError(
            f"{path} has more than {most} bytes, which no file of CIFAR has",
            code="data-file-too-large",
            path=path,
            most=most,
        )
    if not data or len(data) % width:
        raise LearnerError(
            f"{path} has {len(data)} bytes; it needs a multiple of {width}: it is truncated, or another file",
            code="data-file-size",
            path=path,
            width=width,
        )
    return np.frombuffer(data, np.uint8).reshape(-1, width)
