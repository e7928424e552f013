"""Specification of the fields of a table: their columns and types."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from learner.errors import near, one_error
from learner.util.number_checks import is_int, is_number

Fields = dict[str, str | list[str]] | list[str]
Labels = dict[str, list[str] | None] | list[str]


@dataclasses.dataclass(frozen=True)
class ColumnSpec:
    """Fields made from the columns of a table.

    Attributes:
      fields: for each field of an item its column, or a list of columns that become the last axis of one array.
      dtypes: the types of fields.
      labels: for text fields, the texts in the order of their numbers; `None`: all texts of the column, sorted.
      missing: the number that replaces missing ones; `None`: a missing number is an error.
      unknown: for fields with labels, the number of texts that are none of them; without it they are an error.
    """

    fields: dict[str, str | list[str]]
    dtypes: dict[str, np.dtype[Any]]
    labels: dict[str, list[str] | None]
    missing: float | None
    unknown: dict[str, int]

    @property
    def columns(self) -> list[str]:
        """Return the columns of all fields, each once."""
        return list(dict.fromkeys(name for field in self.fields for name in self.of(field)))

    def of(self, field: str) -> list[str]:
        """Return the columns of a field."""
        columns = self.fields[field]
        return [columns] if isinstance(columns, str) else columns


def parse_columns(
    what: str,
    columns: Sequence[str],
    fields: Fields | None,
    dtypes: Mapping[str, str] | None,
    labels: Labels | None,
    missing: float | None,
    unknown: Mapping[str, int] | None = None,
) -> ColumnSpec:
    """Return the spec of a table's fields after checking it.

    Args:
      what: the table, for messages.
      columns: the columns of the table.
      fields, dtypes, labels, missing, unknown: see `ColumnSpec`. Default: every column is a field. A list of fields
        uses the columns' names, a list of labels all texts of the columns.

    Raises:
      LearnerError: columns, fields or types do not exist; the message lists all of them. `lacking` has the names of the
        fields without which the table can be read.

    >>> parse_columns("a.csv", ["age", "size"], {"x": ["age", "siez"]}, None, None, None)
    Traceback (most recent call last):
    learner.errors.LearnerError: a.csv has no column 'siez': did you mean 'size'?
    """
    malformed = _malformed_options(fields, dtypes, labels, missing, unknown)
    if malformed:
        raise one_error(malformed, f"{what} cannot be read", code="data-columns-unreadable")
    named = columns if fields is None else fields
    columns_of: dict[str, str | list[str]] = {}
    columns_of.update(named if isinstance(named, Mapping) else {name: name for name in named})
    texts_of = dict(labels) if isinstance(labels, Mapping) else dict.fromkeys(labels or ())
    spec = ColumnSpec(columns_of, {}, texts_of, missing, dict(unknown or {}))
    known = set(columns)
    unused = [name for name in columns if name not in spec.columns]
    # One that has some of its columns, or nearly their names, is misspelled rather than left out.
    lacking = [field for field in columns_of if not known.issuperset(spec.of(field))]
    is_misspelled = any(
        name in known or difflib.get_close_matches(name, unused) for field in lacking for name in spec.of(field)
    )
    absent = [
        f"{what} has no column {name!r}: {near(str(name), list(columns))}" for name in spec.columns if name not in known
    ]
    problems = [f"{what}: the field {field!r} has no columns" for field in columns_of if not spec.of(field)]
    problems += [] if columns_of else [f"{what}: there are no fields"]
    for option, given in (("dtypes", dtypes or {}), ("labels", spec.labels)):
        undefined = [field for field in given if field not in columns_of]
        texts = [
            f"{option} has {x!r}, which is not a field of {what}: {near(str(x), list(columns_of))}" for x in undefined
        ]
        if fields is None:
            lacking, absent = [*lacking, *undefined], [*absent, *texts]
        else:
            problems += texts
    for field, name in (dtypes or {}).items():
        try:
            spec.dtypes[field] = np.dtype(name)
        except TypeError:
            problems.append(f"dtypes.{field} is {name!r}: it needs a type such as float32, int32, uint8 or bool")
            continue
        if spec.dtypes[field].kind not in "biuf":
            problems.append(f"dtypes.{field} is {name!r}: it needs a type of numbers")
    if absent or problems:
        raise one_error(
            [*absent, *problems],
            f"{what} cannot be read",
            code="data-columns-unreadable",
            lacking=[] if problems or is_misspelled else lacking,
        )
    return spec


def _malformed_options(fields: Any, dtypes: Any, labels: Any, missing: Any, unknown: Any) -> list[str]:
    """Return the problems of options that are invalid for any table."""
    problems = []
    for option, given in (("fields", fields), ("labels", labels)):
        if given is not None and not isinstance(given, Mapping) and not are_texts(given):
            problems.append(f"{option} is {given!r}: it needs a mapping of fields, or a list of them")
    for field, columns in fields.items() if isinstance(fields, Mapping) else ():
        if not isinstance(columns, str) and not are_texts(columns):
            problems.append(f"fields.{field} is {columns!r}: it needs a column, or a list of columns")
    for field, names in labels.items() if isinstance(labels, Mapping) else ():
        if names is not None and (not isinstance(names, list | tuple) or len({*map(str, names)}) < len(names)):
            problems.append(
                f"labels.{field} is {names!r}: it needs a list of texts, each once, or None for all (null in YAML)"
            )
    if missing is not None and not is_number(missing):
        problems.append(f"missing is {missing!r}: it needs a number (NaN is .nan in YAML)")
    if dtypes is not None and not isinstance(dtypes, Mapping):
        problems.append(f"dtypes is {dtypes!r}: it needs a mapping of fields, such as {{'item': 'int64'}}")
    if unknown is not None and not isinstance(unknown, Mapping):
        problems.append(f"unknown is {unknown!r}: it needs a mapping of fields with labels, such as {{'item': 1000}}")
    labelled = list(labels) if isinstance(labels, Mapping | list | tuple) else []
    for field, number in unknown.items() if isinstance(unknown, Mapping) else ():
        if field not in labelled:
            problems.append(f"unknown has {field!r}, which has no labels: {near(str(field), labelled)}")
        elif not is_int(number) or not -(2**31) <= number < 2**31:
            problems.append(f"unknown.{field} is {number!r}: it needs an integer that fits into int32")
    return problems


def are_texts(value: Any) -> bool:
    """Return True for a list of texts."""
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
