"""IDX, the format of MNIST: a type, the lengths, and the numbers (LeCun, Cortes and Burges, 1998)."""

import math
import struct

import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.input_files import PathLike, check_split, most_bytes, opened, present, published, read_exactly
from learner.errors import LearnerError

TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
MOST_AXES = 8
MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FASHION_MNIST = "https://github.com/zalandoresearch/fashion-mnist (data/fashion)"
SPLITS = {"train": "train", "valid": "t10k", "test": "t10k"}


def read_idx(path: PathLike) -> np.ndarray:
    """Return the array of an IDX file, plain or gzip.

    Args:
      path: the path of the file.

    Returns:
      An array of the file's shape and type, in the machine's byte order.

    Raises:
      LearnerError: the file is missing, is not IDX, is damaged, or claims more or less than it contains.

    >>> import tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "labels-idx1-ubyte")
    >>> with open(path, "wb") as file: _ = file.write(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    >>> read_idx(path)
    array([7, 2, 1], dtype=uint8)
    """
    found = present(path, "read_idx")
    most = most_bytes(found)
    with opened(found) as stream:
        magic = stream.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not 1 <= magic[3] <= MOST_AXES:
            raise LearnerError(
                f"{found} is not an IDX file: it begins with {magic.hex(' ') or 'nothing'}, not 00 00 TYPE AXES",
                code="data-idx-magic",
            )
        lengths = stream.read(4 * magic[3])
        if len(lengths) < 4 * magic[3]:
            raise LearnerError(f"{found} is cut off in its header", code="data-idx-cut-off")
        shape = struct.unpack(f">{magic[3]}I", lengths)
        dtype = np.dtype(TYPES[magic[2]])
        count = math.prod(shape) * dtype.itemsize
        claim = f"{found} claims the shape {list(shape)} of {dtype.newbyteorder('=')}, {count} bytes"
        if count > most:
            raise LearnerError(f"{claim}, and can hold at most {most}", code="data-idx-claims-too-much", most=most)
        data = read_exactly(stream, count)
        if len(data) < count or stream.read(1):
            raise LearnerError(f"{claim}, and has {len(data) if len(data) < count else 'more'}", code="data-idx-size")
    array = np.frombuffer(data, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def mnist(directory: str, split: str, scaled: bool = True) -> ArrayDataset:
    """Return MNIST: handwritten digits, 60,000 for training and 10,000 others, 28 by 28 pixels (LeCun et al., 1998).

    Args:
      directory: the directory with the four published files, such as `train-images-idx3-ubyte.gz`, plain or gzip.
      split: "train", or "valid" for the 10,000 others ("test" is the same).
      scaled: return pixels as float32 from 0 to 1; otherwise as bytes, which take a quarter of the memory.

    Returns:
      `image` float32 (or uint8) `[rows, height, width]`, and `label` int32 `[rows]`, 0 to 9.

    Raises:
      LearnerError: the split is unknown, or files are missing (the message has the address), damaged, or do not belong
        together. Nothing is downloaded.

    >>> mnist("/no/such/place", "train")
    Traceback (most recent call last):
    learner.errors.LearnerError: mnist: /no/such/place is not a directory; get the files from https://ossci-datasets...
    """
    return _images_and_labels("mnist", directory, split, scaled, MNIST)


def fashion_mnist(directory: str, split: str, scaled: bool = True) -> ArrayDataset:
    """Return Fashion-MNIST: clothes, in the files and shapes of MNIST (Xiao, Rasul and Vollgraf, arXiv:1708.07747).

    Args, Returns, Raises: as for `mnist`. The labels: T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker,
    bag, ankle boot.

    >>> fashion_mnist("/no/such/place", "train")
    Traceback (most recent call last):
    learner.errors.LearnerError: fashion_mnist: /no/such/place is not a directory; get the files from https://github...
    """
    return _images_and_labels("fashion_mnist", directory, split, scaled, FASHION_MNIST)


def _images_and_labels(name: str, directory: str, split: str, scaled: bool, url: str) -> ArrayDataset:
    check_split(name, split, SPLITS)
    names = [_names(SPLITS[split], kind) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    image_path, label_path = published(directory, names, name, url)
    images, labels = read_idx(image_path), read_idx(label_path)
    for path, array, axes in ((image_path, images, 3), (label_path, labels, 1)):
        if array.dtype != np.uint8 or array.ndim != axes:
            raise LearnerError(
                f"{path} has {array.dtype} {list(array.shape)}; {name} has bytes along {axes} axes",
                code="data-idx-shape",
                path=path,
                name=name,
                axes=axes,
            )
    if len(images) != len(labels):
        raise LearnerError(
            f"{image_path} has {len(images)} images, and {label_path.name} {len(labels)} labels",
            code="data-idx-counts-differ",
        )
    check_labels(label_path.name, labels, 10)
    return ArrayDataset({"image": pixels(images, scaled), "label": labels.astype(np.int32)})


def _names(split: str, kind: str) -> list[str]:
    """Return the published name, the decompressed one, and other programs' names: `train-images.idx3-ubyte`."""
    dotted = kind.replace("-idx", ".idx")
    return [f"{split}-{kind}.gz", f"{split}-{kind}", f"{split}-{dotted}", f"{split}-{dotted}.gz"]


def check_labels(place: str, labels: np.ndarray, classes: int) -> None:
    """Raise `LearnerError` for a label that is not below `classes`."""
    if labels.size and labels.max() >= classes:
        row = int(np.argmax(labels >= classes))
        raise LearnerError(
            f"{place}: the label of row {row} is {labels[row]}; there are {classes} classes, from 0",
            code="data-label-outside",
            place=place,
            row=row,
            classes=classes,
        )


def pixels(images: np.ndarray, scaled: bool) -> np.ndarray:
    """Return bytes unchanged, or as float32 from 0 to 1."""
    return np.divide(images, 255, dtype=np.float32, order="C") if scaled else np.ascontiguousarray(images)
