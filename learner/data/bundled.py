"""Small data sets that come with Python or with scikit-learn: nothing is downloaded."""

import importlib.util
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.input_files import check_split
from learner.errors import LearnerError
from learner.util.number_checks import check_int
from learner.util.optional import refuse_missing

__all__ = ["diabetes", "digits", "stdlib_text"]

SPLITS = ("train", "valid")
TEXT_TRAIN = (
    "argparse.py", "ast.py", "configparser.py", "difflib.py", "fractions.py", "functools.py", "inspect.py", "random.py",
    "shutil.py", "socket.py", "statistics.py", "subprocess.py", "tarfile.py", "textwrap.py", "threading.py",
)  # fmt: skip
TEXT_VALID = ("calendar.py", "csv.py", "heapq.py")


def digits(split: str, valid_fraction: float = 0.2, seed: int = 0) -> ArrayDataset:
    """Return 1797 handwritten digits, images of 8 by 8 pixels, from scikit-learn (Alpaydin and Kaynak, UCI, 1998).

    Args:
      split: "train" or "valid". Both have every digit in the same proportion.
      valid_fraction: the fraction of rows in "valid", between 0 and 1.
      seed: the seed that selects these rows.

    Returns:
      `image` float32 `[rows, 8, 8]`, 0 (paper) to 1 (ink), and `label` int32 `[rows]`, 0 to 9. Models flatten the
      image, or add the channel (`image[..., None]`).

    Raises:
      LearnerError: the split is unknown, the fraction leaves no row of a digit on one side, or scikit-learn is missing.

    >>> digits("train")
    ArrayDataset(1437 rows: image float32 [8, 8], label int32 [])
    >>> len(digits("valid"))
    360
    """
    check_split("digits", split, SPLITS)
    table = _table("digits.csv.gz", delimiter=",")
    images, labels = (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int32)
    rows = _split(len(labels), valid_fraction, seed, labels)[split]
    return ArrayDataset({"image": images.reshape(-1, 8, 8)[rows], "label": labels[rows]})


def diabetes(split: str, valid_fraction: float = 0.2, seed: int = 0) -> ArrayDataset:
    """Return progressions of diabetes in 442 patients, from scikit-learn (Efron et al., Annals of Statistics, 2004).

    Args:
      split: "train" or "valid".
      valid_fraction: the fraction of rows in "valid", between 0 and 1.
      seed: the seed that selects these rows.

    Returns:
      `features` float32 `[rows, 10]` (age, sex, body mass index, blood pressure, six of blood serum) and `target`
      float32 `[rows]`. Every column is standardised: mean 0 and standard deviation 1 over the training rows. A constant
      prediction thus has a mean squared error of 1, and 1 is about 77 in the units of the study.

    Raises:
      LearnerError: the split is unknown, the fraction leaves no row on one side, or scikit-learn is missing.

    >>> diabetes("train")
    ArrayDataset(353 rows: features float32 [10], target float32 [])
    """
    check_split("diabetes", split, SPLITS)
    columns = {"features": _table("diabetes_data_raw.csv.gz"), "target": _table("diabetes_target.csv.gz")}
    rows = _split(len(columns["target"]), valid_fraction, seed)
    train = rows["train"]
    standard = {name: (column - column[train].mean(0)) / column[train].std(0) for name, column in columns.items()}
    return ArrayDataset({name: column[rows[split]].astype(np.float32) for name, column in standard.items()})


def stdlib_text(split: str, length: int = 128, stride: int | None = None, max_rows: int | None = None) -> ArrayDataset:
    """Return Python's own source text, for models that predict the next character. It depends on Python's version.

    Args:
      split: "train" (15 modules, about 0.9 million characters) or "valid" (3 others, 60 thousand).
      length: characters per row.
      stride: characters from the start of a row to the start of the next; default `length`: rows do not overlap.
      max_rows: the maximum number of rows to return, from the start.

    Returns:
      `text` int32 `[rows, length]` and `target`, the text shifted by one character. Characters are ASCII codes, 1 to
      127, and 0 for each byte that is not ASCII: 128 classes.

    Raises:
      LearnerError: the split is unknown, a size is below 1, rows are longer than the text, or Python's source files are
        not installed.

    >>> data = stdlib_text("valid", length=16, max_rows=2)
    >>> data
    ArrayDataset(2 rows: target int32 [16], text int32 [16])
    >>> "".join(map(chr, data[0]["text"][3:])), "".join(map(chr, data[0]["target"][3:]))
    ('Calendar prin', 'alendar print')
    """
    check_split("stdlib_text", split, SPLITS)
    length = check_int("length", length, least=1)
    stride = length if stride is None else check_int("stride", stride, least=1)
    codes = _codes(TEXT_TRAIN if split == "train" else TEXT_VALID)
    starts = np.arange(0, len(codes) - length, stride)
    if max_rows is not None:
        starts = starts[: check_int("max_rows", max_rows, least=1)]
    if not len(starts):
        raise LearnerError(
            f"length is {length}: stdlib_text has {len(codes)} characters in {split!r}, give less",
            code="data-length-too-large",
            length=length,
            split=split,
        )
    windows = np.lib.stride_tricks.sliding_window_view(codes, length + 1)[starts]
    return ArrayDataset({"text": windows[:, :-1].copy(), "target": windows[:, 1:].copy()})


def _codes(modules: tuple[str, ...]) -> np.ndarray:
    folder = Path(os.__file__).parent
    try:
        source = b"".join((folder / name).read_bytes() for name in modules)
    except OSError as error:
        raise LearnerError(
            f"stdlib_text reads Python's own source files, which this Python lacks: {error}",
            code="data-source-files-missing",
        ) from error
    codes = np.frombuffer(source.replace(b"\r\n", b"\n"), np.uint8).astype(np.int32)
    return np.where(codes < 128, codes, np.int32(0))


def _table(name: str, delimiter: str | None = None) -> np.ndarray:
    """Return a file of numbers from scikit-learn, without importing it: that takes longer than training on it."""
    refuse_missing("sklearn", "examples", "this data set", "scikit-learn")
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(spec.submodule_search_locations[0], "datasets", "data", name)
    table: np.ndarray = np.loadtxt(path, delimiter=delimiter)
    return table


def _split(count: int, valid_fraction: float, seed: int, labels: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the rows of both splits: those of scikit-learn's `train_test_split(test_size=valid_fraction,
    random_state=seed, stratify=labels)`. With labels, both have each of them in the same proportion.
    """
    if not isinstance(valid_fraction, int | float) or not 0 < valid_fraction < 1:
        raise _wrong_fraction(valid_fraction, "give a number between 0 and 1")
    random = np.random.RandomState(check_int("seed", seed, least=0))
    of_valid = math.ceil(valid_fraction * count)
    if labels is None:
        valid = random.permutation(count)[:of_valid]
    else:
        rows = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
        of_train = _proportional(np.array([*map(len, rows)]), count - of_valid, random)
        valid = np.concatenate([x[random.permutation(len(x))[n:]] for x, n in zip(rows, of_train, strict=True)])
        if not of_train.all() or len(np.unique(labels[valid])) < len(rows):
            raise _wrong_fraction(valid_fraction, "it leaves one of the splits without rows of some label")
    if of_valid == count:
        raise _wrong_fraction(valid_fraction, f"it leaves none of {count} rows to train on")
    is_valid = np.isin(np.arange(count), valid)
    return {"train": np.flatnonzero(~is_valid), "valid": np.flatnonzero(is_valid)}


def _wrong_fraction(valid_fraction: Any, why: str) -> LearnerError:
    return LearnerError(
        f"valid_fraction is {valid_fraction!r}: {why}",
        code="data-valid-fraction-value",
        valid_fraction=valid_fraction,
    )


def _proportional(counts: np.ndarray, total: int, random: np.random.RandomState) -> np.ndarray:
    """Return the number of rows of each label among `total` rows. The largest remainders round up, ties at random."""
    exact = counts / counts.sum() * total
    shares: np.ndarray = np.floor(exact)
    remainders = exact - shares
    for remainder in np.unique(remainders)[::-1]:
        left = int(total - shares.sum())
        if left == 0:
            break
        equal = np.flatnonzero(remainders == remainder)
        shares[random.choice(equal, min(len(equal), left), replace=False)] += 1
    return shares.astype(int)
