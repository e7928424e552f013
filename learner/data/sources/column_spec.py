"""The columns of a table that make the fields of its items, and their types."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from learner.errors import near, one_error

Fields = dict[str, str | list[str]] | list[str]
Labels = dict[str, list[str] | None] | list[str]


@dataclasses.dataclass(frozen=True)
class ColumnSpec:
    """Fields made of the columns of a table.

    Attributes:
      fields: for each field of an item its column, or a list of columns that become the last axis of one array.
      dtypes: of fields.
      labels: for fields of texts the texts in the order of their numbers; `None`: all that there are, sorted.
      missing: the number in place of a missing one; `None`: that is an error.
    """

    fields: dict[str, str | list[str]]
    dtypes: dict[str, np.dtype[Any]]
    labels: dict[str, list[str] | None]
    missing: float | None

    @property
    def columns(self) -> list[str]:
        """The columns that are needed, each once."""
        return list(dict.fromkeys(name for field in self.fields for name in self.of(field)))

    def of(self, field: str) -> list[str]:
        """The columns of a field."""
        said = self.fields[field]
        return [said] if isinstance(said, str) else said


def parse_columns(
    what: str,
    columns: Sequence[str],
    fields: Fields | None,
    dtypes: Mapping[str, str] | None,
    labels: Labels | None,
    missing: float | None,
) -> ColumnSpec:
    """Return the spec of a table's fields after checking it.

    Args:
      what: the table, for messages.
      columns: that it has.
      fields, dtypes, labels, missing: see `ColumnSpec`. Without fields every column is one. A list of fields has
        the columns' own names, a list of labels all texts that there are.

    Raises:
      LearnerError: there is no such column, field or type, all of them together.

    >>> parse_columns("a.csv", ["age", "size"], {"x": ["age", "siez"]}, None, None, None)
    Traceback (most recent call last):
    learner.errors.LearnerError: a.csv has no column 'siez': did you mean 'size'?
    """
    wrong = _wrong_options(fields, labels, missing)
    if wrong:
        raise one_error(wrong, f"{what} cannot be read", code="data-columns-unreadable")
    named = columns if fields is None else fields
    chosen: dict[str, str | list[str]] = {}
    chosen.update(named if isinstance(named, Mapping) else {name: name for name in named})
    found = ColumnSpec(
        chosen, {}, dict(labels) if isinstance(labels, Mapping) else dict.fromkeys(labels or ()), missing
    )
    known = set(columns)
    problems = [
        f"{what} has no column {name!r}: {near(str(name), list(columns))}"
        for name in found.columns
        if name not in known
    ]
    problems += [f"{what}: the field {field!r} has no columns" for field in chosen if not found.of(field)]
    problems += [] if chosen else [f"{what}: there are no fields"]
    for option, given in (("dtypes", dtypes or {}), ("labels", found.labels)):
        problems += [
            f"{option} has {field!r}, which is no field of {what}: {near(str(field), list(chosen))}"
            for field in given
            if field not in chosen
        ]
    for field, name in (dtypes or {}).items():
        try:
            found.dtypes[field] = np.dtype(name)
        except TypeError:
            problems.append(f"dtypes.{field} is {name!r}: it needs a type such as float32, int32, uint8 or bool")
            continue
        if found.dtypes[field].kind not in "biuf":
            problems.append(f"dtypes.{field} is {name!r}: it needs a type of numbers")
    if problems:
        raise one_error(problems, f"{what} cannot be read", code="data-columns-unreadable")
    return found


def _wrong_options(fields: Any, labels: Any, missing: Any) -> list[str]:
    """Return the problems of options that no table could have."""
    problems = []
    for option, given in (("fields", fields), ("labels", labels)):
        if given is not None and not isinstance(given, Mapping) and not _texts(given):
            problems.append(f"{option} is {given!r}: it needs a mapping of fields, or a list of them")
    for field, said in fields.items() if isinstance(fields, Mapping) else ():
        if not isinstance(said, str) and not _texts(said):
            problems.append(f"fields.{field} is {said!r}: it needs a column, or a list of columns")
    for field, names in labels.items() if isinstance(labels, Mapping) else ():
        if names is not None and (not isinstance(names, list | tuple) or len({*map(str, names)}) < len(names)):
            problems.append(f"labels.{field} is {names!r}: it needs a list of texts, each once, or null for all")
    if missing is not None and (isinstance(missing, bool) or not isinstance(missing, int | float)):
        problems.append(f"missing is {missing!r}: it needs a number")
    return problems


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
