"""JSON lines: an object on every line."""

import collections
import json
import math
from pathlib import Path
from typing import Any

from learner.data.input_files import MemoryBudget, PathLike, opened
from learner.data.sources.column_spec import Fields, Labels, parse_columns
from learner.data.sources.table_arrays import MOST_PROBLEMS, SHOWN, Table, read_files, table
from learner.errors import LearnerError, one_error

LONGEST = 2**26  # bytes of a line
# Bytes: of a value in a list, of a mapping with some keys, of an item of a column, of a byte of a text.
VALUE, DICT, POINTER, TEXT = 72, 200, 8, 4
PAIR = 64  # of a key and its value before their object is made
PARSED = 1 + 2 * TEXT  # of a byte of a line while it is parsed: the line, its text, and the text of a value in it


def json_lines(
    path: list[PathLike] | PathLike,
    fields: Fields | None = None,
    *,
    dtypes: dict[str, str] | None = None,
    labels: Labels | None = None,
    missing: float | None = None,
    unknown: dict[str, int] | None = None,
    max_memory: int | None = None,
) -> Table:
    """Return the objects of files of JSON lines, in memory, each key as a column.

    For objects that differ in structure, such as texts of many lengths, map the lines: `Lines(path).map(json.loads)`.

    Args:
      path: the path of the file, plain or gzip, a pattern or a list of files, as for `csv`. Blank lines are skipped.
      fields, dtypes, labels: as for `csv`; lists of numbers, all of one shape, become arrays `[rows, ...]`.
      missing: the number that replaces a missing key, or a null. Default: both are errors.
      unknown: as for `csv`.
      max_memory: the most that the objects of a file may take, in bytes. Default: 1000 times the file's size, at least
        512 MiB.

    Returns:
      A `Table`: an `ArrayDataset` with the names of labels.

    Raises:
      LearnerError: a file or key does not exist; a file needs too much memory; lines are not objects, have a key
        twice or numbers that are too large, or values do not fit (the message has their lines).

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = path.write_text('{"x": [1, 2], "kind": "b"}\\n{"x": [3, 4], "kind": "a"}\\n')
    >>> json_lines(path, labels={"kind": ["a", "b"]}).arrays["x"].tolist()
    [[1, 2], [3, 4]]
    """

    def read(file: Path) -> Table:
        budget = MemoryBudget(file, max_memory)
        objects: list[dict[str, Any]] = []
        lines: list[int] = []
        problems: list[str] = []
        with opened(file) as stream:
            number, longest = 0, min(LONGEST, budget.limit // PARSED)
            while line := stream.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    budget.require(PARSED * len(line))
                    problems.append(f"{file}, line {number}: it is longer than {LONGEST} bytes")
                    break
                if line.strip():
                    budget.reserve(_bytes_of(line))
                    budget.require((PARSED - TEXT) * len(line) + PAIR * line.count(b":"))
                    value = _object(line)
                    if isinstance(value, dict):
                        objects.append(value)
                        lines.append(number)
                    elif len(problems) < MOST_PROBLEMS:
                        problems.append(f"{file}, line {number}: {value}")
        if problems:
            raise one_error(problems, f"{file} is malformed", code="data-file-malformed")
        if not objects:
            raise LearnerError(f"{file} has no lines", code="data-without-rows")
        keys = list(dict.fromkeys(key for item in objects for key in item))
        spec = parse_columns(str(file), keys, fields, dtypes, labels, missing, unknown)
        budget.reserve(2 * POINTER * len(spec.columns) * len(objects))  # different keys on each line make a large table
        cells = {key: [item.get(key) for item in objects] for key in spec.columns}
        return table(str(file), spec, cells, lambda row: f"line {lines[row]}")

    return read_files(path, "json_lines", read)


def _bytes_of(line: bytes) -> int:
    """Return the memory that the object of a line takes, at most: a few bytes such as `[],` are a Python object."""
    values = line.count(b",") + line.count(b":") + line.count(b"[") + 1
    return VALUE * values + DICT * line.count(b"{") + TEXT * len(line)


def _object(line: bytes) -> dict[str, Any] | str:
    """Return the object of a line, or the text of an error."""
    try:
        value = json.loads(line, parse_float=_float, parse_int=_int, object_pairs_hook=_dict)
    except _RefusedError as error:
        return str(error)
    except json.JSONDecodeError as error:  # its line number is relative to this line
        return f"it is not JSON ({error.msg}, at character {error.pos + 1})"
    except (ValueError, RecursionError) as error:  # ValueError: invalid UTF-8, and very long numbers
        return f"it is not JSON ({error})"
    return value if isinstance(value, dict) else f"it is a {type(value).__name__}, not an object"


class _RefusedError(ValueError):
    """JSON that Python's parser accepts and changes: numbers become infinite, and values of equal keys are lost."""


def _float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise _RefusedError(f"{text[:SHOWN]} is too large")
    return value


def _int(text: str) -> int:
    _float(text)  # beside fractions it becomes a float
    return int(text)


def _dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        [(key, _)] = collections.Counter(key for key, _ in pairs).most_common(1)
        raise _RefusedError(f"it has the key {key[:SHOWN]!r} twice")
    return value
