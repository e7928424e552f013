"""Rules for the mesh axis over which each array of a model is sharded."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from learner.errors import LearnerError, Problem, near_path
from learner.util.number_checks import check_int

Shapes = Mapping[str, Any]
Rule = Any


@dataclasses.dataclass(frozen=True)
class Fsdp:
    """See `fsdp`."""

    min_size: int
    axis: str

    def spec(self, shape: Sequence[int], sizes: Mapping[str, int]) -> PartitionSpec:
        """Return the partition of an array of this shape over a mesh with these axis sizes."""
        if math.prod(shape) < self.min_size:
            return PartitionSpec()
        divisible = [i for i, length in enumerate(shape) if length and length % sizes[self.axis] == 0]
        if not divisible:
            return PartitionSpec()
        largest = max(divisible, key=lambda i: shape[i])
        return PartitionSpec(*[self.axis if i == largest else None for i in range(largest + 1)])


def fsdp(min_size: int = 1024, axis: str = "data") -> Fsdp:
    """Return the rule that shards every array of at least `min_size` elements along its largest divisible axis, so that
    each device stores only a part of the parameters and of the optimizer's state. Smaller arrays, and those without a
    divisible axis, are replicated.

    Args:
      min_size: the minimum number of elements; gathering smaller arrays costs more than it saves.
      axis: the axis of the mesh.

    >>> tuple(fsdp().spec((64, 4096), {"data": 8}))
    (None, 'data')
    >>> tuple(fsdp().spec((64, 3), {"data": 8}))
    ()
    """
    return Fsdp(check_int("min_size", min_size, least=0, of="fsdp", code="strategy-fsdp-min-size"), axis)


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules in order: the first one whose pattern matches an array's path determines how the array is sharded; an array
    without a match is replicated.

    Attributes:
      rows: `(pattern, spec)` pairs, or an `Fsdp`, which matches every array.
    """

    rows: tuple[tuple[str, PartitionSpec] | Fsdp, ...] = ()

    @classmethod
    def of(cls, rules: Any) -> "Rules":
        """Parse a user's rules: `fsdp()` or `"fsdp"`, a dict or pairs of patterns and specs, or a list of these.

        >>> Rules.of({"kernel": (None, "model")}).rows == (("kernel", PartitionSpec(None, "model")),)
        True
        """
        if rules is None:
            return cls()
        if isinstance(rules, Fsdp) or rules == _FSDP:
            return cls(tuple(_rows(rules)))
        given: Iterable[Any] = rules.items() if isinstance(rules, Mapping) else rules
        if isinstance(rules, str) or not isinstance(given, Iterable):
            raise LearnerError(f"the rules of Sharded are {rules!r}; {_FORM}", code="strategy-rules-type")
        return cls(tuple(row for rule in given for row in _rows(rule)))

    @property
    def axes(self) -> list[str]:
        """The axes of the mesh that the rules shard over, in order.

        >>> Rules.of([{"kernel": (None, "model")}, fsdp()]).axes
        ['model', 'data']
        """
        names = [[row.axis] if isinstance(row, Fsdp) else names_of(row[1]) for row in self.rows]
        return list(dict.fromkeys(name for some in names for name in some))

    def spec(self, path: str, shape: Sequence[int], sizes: Mapping[str, int]) -> PartitionSpec:
        """Return the partition of an array over a mesh with these axis sizes."""
        for row in self.rows:
            if isinstance(row, Fsdp):
                return row.spec(shape, sizes)
            if re.search(row[0], path):
                return row[1]
        return PartitionSpec()

    def problems(self, leaves: Shapes, sizes: Mapping[str, int]) -> list[str]:
        """Return the problems of the rules with these arrays (by path) and a mesh with these axis sizes."""
        problems = [problem for row in self.rows for problem in _unknown_axes(row, sizes)]
        if problems:
            return problems
        first = {path: self._first(path) for path in leaves}
        for number, row in enumerate(self.rows):
            if isinstance(row, Fsdp):
                continue
            if number not in first.values():
                matching = [path for path in leaves if re.search(row[0], path)]
                why = (
                    f"an earlier rule takes all that it matches ({', '.join(matching[:3])})"
                    if matching
                    else f"it matches none of the {len(leaves)} arrays; {near_path(row[0], list(leaves))}"
                )
                problems.append(
                    Problem(
                        f"the rule {row[0]!r} of Sharded is not used: {why}",
                        code="strategy-rule-unused",
                        pattern=row[0],
                    )
                )
        for path, leaf in leaves.items():
            problems += _unfit(path, leaf.shape, self.spec(path, leaf.shape, sizes), sizes)
        return problems

    def warnings(self, leaves: Shapes, sizes: Mapping[str, int]) -> list[str]:
        """Return a warning if `fsdp` is among the rules and none of them splits an array."""
        splits = any(names_of(self.spec(path, leaf.shape, sizes)) for path, leaf in leaves.items())
        matched = [row for row in map(self._first, leaves) if row is not None and isinstance(self.rows[row], Fsdp)]
        fsdp = self.rows[matched[0]] if matched else None
        if splits or not isinstance(fsdp, Fsdp) or sizes.get(fsdp.axis, 1) == 1:
            return []
        return [
            f"fsdp splits no array, so that each device holds the whole model: none of the {len(matched)} that it is "
            f"for has {fsdp.min_size} elements (min_size) and an axis that is a multiple of {sizes[fsdp.axis]}, the "
            f"size of {fsdp.axis!r}"
        ]

    def _first(self, path: str) -> int | None:
        return next((i for i, r in enumerate(self.rows) if isinstance(r, Fsdp) or re.search(r[0], path)), None)


_FSDP = "fsdp"
_FORM = "give fsdp(), {'a pattern of paths': (None, 'model')}, or a list of such rules"


def _rows(rule: Rule) -> list[tuple[str, PartitionSpec] | Fsdp]:
    if isinstance(rule, Fsdp) or rule == _FSDP:
        return [fsdp() if isinstance(rule, str) else rule]
    if isinstance(rule, Mapping):
        return [row for pair in rule.items() for row in _rows(pair)]
    if not isinstance(rule, Sequence) or len(rule) != 2 or not isinstance(rule[0], str):
        raise LearnerError(f"a rule of Sharded is {rule!r}; {_FORM}", code="strategy-rule-malformed")
    pattern, spec = rule
    try:
        re.compile(pattern)
    except re.error as error:
        raise LearnerError(
            f"the rule {pattern!r} of Sharded is not a regular expression: {error}",
            code="strategy-rule-pattern",
            pattern=pattern,
        ) from None
    parts = [] if spec is None else list(spec) if isinstance(spec, tuple | list | PartitionSpec) else [spec]
    if not all(map(_is_entry, parts)):
        raise LearnerError(
            f"the rule {pattern!r} of Sharded splits by {spec!r}; give for each axis of the array the name of an axis "
            "of the mesh, several names, or None: (None, 'model')",
            code="strategy-rule-axes",
            pattern=pattern,
        )
    return [(pattern, PartitionSpec(*(tuple(part) if isinstance(part, list) else part for part in parts)))]


def _is_entry(entry: Any) -> bool:
    if isinstance(entry, tuple | list):
        return all(isinstance(name, str) for name in entry)
    return entry is None or isinstance(entry, str)


def names_of(spec: PartitionSpec) -> list[str]:
    """Return the axes of the mesh that a spec uses.

    >>> names_of(PartitionSpec(None, ("data", "model")))
    ['data', 'model']
    """
    return [name for entry in spec for name in _names(entry)]


def _names(entry: Any) -> tuple[str, ...]:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def without(spec: PartitionSpec, names: Sequence[str]) -> PartitionSpec:
    """Return the spec of an array after it is gathered along some axes of the mesh.

    >>> tuple(without(PartitionSpec("data", ("data", "model")), ["data"]))
    (None, 'model')
    """
    entries = [[name for name in _names(entry) if name not in names] for entry in spec]
    return PartitionSpec(*(tuple(left) if len(left) > 1 else left[0] if left else None for left in entries))


def _unknown_axes(row: tuple[str, PartitionSpec] | Fsdp, sizes: Mapping[str, int]) -> list[str]:
    names = [row.axis] if isinstance(row, Fsdp) else names_of(row[1])
    what = "fsdp" if isinstance(row, Fsdp) else f"the rule {row[0]!r}"
    unknown = [name for name in names if name not in sizes]
    twice = sorted({name for name in names if names.count(name) > 1})
    axes = ", ".join(map(repr, sizes))
    return [
        *(
            Problem(f"{what} splits over {name!r}, and the mesh has {axes}", code="strategy-axis-unknown", name=name)
            for name in unknown
        ),
        *(Problem(f"{what} splits over {name!r} twice", code="strategy-axis-twice", name=name) for name in twice),
    ]


def _unfit(path: str, shape: Sequence[int], spec: PartitionSpec, sizes: Mapping[str, int]) -> list[str]:
    if len(spec) > len(shape):
        return [
            Problem(
                f"{path} has {len(shape)} axes ({list(shape)}), and its rule of Sharded splits {len(spec)}",
                code="strategy-rule-axes",
                path=path,
            )
        ]
    problems: list[str] = []
    for axis, entry in enumerate(spec):
        names = _names(entry)
        parts = math.prod(sizes[name] for name in names)
        if shape[axis] % parts:
            problems.append(
                Problem(
                    f"{path} {list(shape)} cannot be split along its axis {axis}: {shape[axis]} is not a multiple of "
                    f"{parts}, the size of {' and '.join(map(repr, names))}",
                    code="strategy-axis-does-not-divide",
                    path=path,
                    axis=axis,
                )
            )
    return problems
