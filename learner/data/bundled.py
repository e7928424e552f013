"""Small data sets that come with Python or with scikit-learn: nothing is downloaded."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.sources.input_files import check_split
from learner.errors import LearnerError
from learner.util.number_checks import check_int
from learner.util.optional import import_optional

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
      valid_fraction: share of the rows that is "valid", between 0 and 1.
      seed: selects those rows.

    Returns:
      `image` float32 `[rows, 8, 8]`, 0 (paper) to 1 (ink), and `label` int32 `[rows]`, 0 to 9. Models flatten the
      image, or add the channel (`image[..., None]`).

    Raises:
      LearnerError: an unknown split, a fraction that leaves no row of a digit on either side, or no scikit-learn.

    >>> digits("train")
    ArrayDataset(1437 rows: image float32 [8, 8], label int32 [])
    >>> len(digits("valid"))
    360
    """
    check_split("digits", split, SPLITS)
    data = _sklearn("datasets").load_digits()
    rows = _rows(split, data.target, valid_fraction, seed, stratified=True)
    images = (data.images / 16).astype(np.float32)
    return ArrayDataset({"image": images[rows], "label": data.target.astype(np.int32)[rows]})


def diabetes(split: str, valid_fraction: float = 0.2, seed: int = 0) -> ArrayDataset:
    """Return progressions of diabetes in 442 patients, from scikit-learn (Efron et al., Annals of Statistics, 2004).

    Args:
      split: "train" or "valid".
      valid_fraction: share of the rows that is "valid", between 0 and 1.
      seed: selects those rows.

    Returns:
      `features` float32 `[rows, 10]` (age, sex, body mass index, blood pressure, six of blood serum) and `target`
      float32 `[rows]`. Every column is standardised: mean 0 and standard deviation 1 over the training rows. So a mean
      squared error of 1 is what a constant gets, and 1 is about 77 in the units of the study.

    Raises:
      LearnerError: an unknown split, a fraction that leaves no row on either side, or no scikit-learn.

    >>> diabetes("train")
    ArrayDataset(353 rows: features float32 [10], target float32 [])
    """
    check_split("diabetes", split, SPLITS)
    data = _sklearn("datasets").load_diabetes(scaled=False)
    rows, train = (_rows(name, data.target, valid_fraction, seed, stratified=False) for name in (split, "train"))
    columns = {"features": data.data, "target": data.target}
    standard = {name: (column - column[train].mean(0)) / column[train].std(0) for name, column in columns.items()}
    return ArrayDataset({name: column[rows].astype(np.float32) for name, column in standard.items()})


def stdlib_text(split: str, length: int = 128, stride: int | None = None, max_rows: int | None = None) -> ArrayDataset:
    """Return Python's own source text, for models that predict the next character. It depends on Python's version.

    Args:
      split: "train" (15 modules, about 0.9 million characters) or "valid" (3 others, 60 thousand).
      length: characters per row.
      stride: characters from the start of a row to the start of the next; default `length`: rows do not overlap.
      max_rows: return at most this number of rows, from the start.

    Returns:
      `text` int32 `[rows, length]` and `target`, the same one character later. Characters are ASCII codes, 1 to 127,
      and 0 for each byte that is not ASCII: 128 classes.

    Raises:
      LearnerError: an unknown split, sizes below 1, rows longer than the text, or a Python without its source files.

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


def _sklearn(module: str) -> Any:
    return import_optional(f"sklearn.{module}", "examples", "this data set", "scikit-learn")


def _rows(split: str, target: np.ndarray, valid_fraction: float, seed: int, stratified: bool) -> np.ndarray:
    if not isinstance(valid_fraction, int | float) or not 0 < valid_fraction < 1:
        raise LearnerError(
            f"valid_fraction is {valid_fraction!r}: give a number between 0 and 1",
            code="data-valid-fraction-value",
            valid_fraction=valid_fraction,
        )
    seed = check_int("seed", seed, least=0)
    rows = np.arange(len(target))
    try:
        train, valid = _sklearn("model_selection").train_test_split(
            rows, test_size=valid_fraction, random_state=seed, stratify=target if stratified else None
        )
    except ValueError as error:
        raise LearnerError(
            f"valid_fraction is {valid_fraction} of {len(rows)} rows: {error}",
            code="data-valid-fraction-value",
            valid_fraction=valid_fraction,
        ) from error
    rows = train if split == "train" else valid
    return np.sort(rows)
