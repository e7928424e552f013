"""The outputs of a model for all rows of some data, as a file of arrays or a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError
from learner.util.disk import replacing
from learner.util.table_files import KINDS, write_rows

ARRAYS = ".npz"
SUFFIXES = (ARRAYS, *(f".{kind}" for kind in KINDS))
MOST_COLUMNS = 4096
CHUNK = 4096  # rows converted at once
JSON_LINES = "jsonl"


def write_outputs(
    path: Path, arrays: Mapping[str, np.ndarray], labels: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Write arrays of one number of rows to a file, atomically: `.npz`, or a table with a column for each number of a
    row. JSON lines have a list for each array with more axes than rows. In tables, integers with the name of a field of
    labels become their texts.

    Args:
      path: the path of the file; its suffix selects the format.
      arrays: the arrays by name.
      labels: for each field, the texts in the order of their numbers.

    Raises:
      LearnerError: a table cannot hold the arrays.
      OSError: the file cannot be written.
    """
    suffix = path.suffix.lower()
    if suffix == ARRAYS:
        with replacing(path, flushes=False) as file:
            np.savez(file, allow_pickle=False, **arrays)
        return
    kind = suffix.removeprefix(".")
    arrays = {name: _storable(name, _as_texts(array, (labels or {}).get(name, ()))) for name, array in arrays.items()}
    columns = arrays if kind == JSON_LINES else _columns(arrays)
    types = {name: str if column.dtype.kind == "U" else column.dtype for name, column in columns.items()}
    write_rows(path, kind, types, _rows(list(columns.values())))


def _as_texts(array: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """Return the texts of an array of numbers of labels, or the array unchanged if it is none."""
    are_labels = len(texts) and array.dtype.kind in "iu" and ((array >= 0) & (array < len(texts))).all()
    return np.array(texts, str)[array] if are_labels else array


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "c":
        raise LearnerError(
            f"{name!r} has complex numbers, which a table does not hold: write an {ARRAYS} file",
            code="cli-output-table",
            name=name,
        )
    is_half = array.dtype.kind == "V" or array.dtype == np.float16  # bfloat16 is of kind V
    return array.astype(np.float32) if is_half else array


def _columns(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the numbers of each row as columns: `logits.0`, `logits.1`."""
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        size = int(np.prod(array.shape[1:]))
        if len(columns) + size > MOST_COLUMNS:
            raise LearnerError(
                f"{name!r} has {size} numbers in each row, and a table has at most {MOST_COLUMNS} columns: write an "
                f"{ARRAYS} file, or return fewer numbers from predict_step",
                code="cli-output-table",
                name=name,
            )
        flat = array.reshape(len(array), size)
        for column, index in enumerate(np.ndindex(array.shape[1:])):
            columns[".".join([name, *map(str, index)])] = flat[:, column]
    return columns


def _rows(columns: Sequence[np.ndarray]) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(columns[0]), CHUNK):
        yield from zip(*(_numbers(column[start : start + CHUNK]) for column in columns), strict=True)


def _numbers(array: np.ndarray) -> list[Any]:
    """Return Python numbers that print as the shortest text of the array's: 0.1 for a float32."""
    short = array.astype(str).astype(np.float64) if array.dtype == np.float32 else array
    numbers: list[Any] = short.tolist()
    return numbers


def joined(batches: Iterable[tuple[int, Any]]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the leaves of all outputs that have a row for each row of the data, by path, and the paths of the others.
    An output that is a single array is called `predictions`.

    Args:
      batches: the number of rows and the output of each batch, in order; the outputs are pytrees of one structure.

    Raises:
      LearnerError: there is no such leaf, or its rows differ in shape between batches.

    >>> batches = [(rows, {"loss": np.float32(rows), "logits": np.zeros((rows, 3))}) for rows in (2, 1)]
    >>> arrays, others = joined(batches)
    >>> {name: array.shape for name, array in arrays.items()}, others
    ({'logits': (3, 3)}, ['loss'])
    """
    rows: list[int] = []
    found: dict[str, list[np.ndarray]] = {}
    for count, output in batches:
        rows.append(count)
        for path, leaf in jax.tree_util.tree_flatten_with_path(output)[0]:
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "predictions"
            parts = found.setdefault(name, [])
            parts.append(np.asarray(leaf))
            _refuse_ragged(name, parts, rows)
    by_row = {name: parts for name, parts in found.items() if [p.shape[:1] for p in parts] == [(n,) for n in rows]}
    if not by_row:
        raise LearnerError(
            f"the output of the step that predicts ({', '.join(found)}) has no field with a row for each row of data",
            code="cli-output-without-rows",
        )
    others = [name for name in found if name not in by_row]
    return {name: np.concatenate(parts) for name, parts in by_row.items()}, others


def _refuse_ragged(name: str, parts: Sequence[np.ndarray], rows: Sequence[int]) -> None:
    """Raise `LearnerError` if the last batch has rows of another shape than the first one: they cannot be one array."""
    first, last = parts[0].shape, parts[-1].shape
    if (first[:1], last[:1]) == ((rows[0],), (rows[-1],)) and first[1:] != last[1:]:
        raise LearnerError(
            f"{name!r} has rows of shape {list(first[1:])} in the first batch and {list(last[1:])} in batch "
            f"{len(parts)}, as batches padded to different lengths have, and a file needs one shape: give the batcher "
            "of DATA one length, Pad(length=n), or return values of one shape from predict_step",
            code="cli-output-ragged",
            name=name,
        )
