"""The space of a sweep: the values that differ between its members, and the names of their directories."""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from learner.config.distributions import Distribution, loguniform, randint, uniform
from learner.errors import LearnerError, Problem, near
from learner.util.json_values import encode
from learner.util.number_checks import is_number

MOST = 10_000  # members
LONGEST_WORD, LONGEST_NAME = 40, 200  # characters of a value in a name, and bytes of a name
RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
DISTRIBUTIONS = {"uniform": uniform, "loguniform": loguniform, "randint": randint}


@dataclasses.dataclass(frozen=True)
class SweepMember:
    """A member of a sweep.

    Attributes:
      name: the name of its directory, such as `003-lr=0.001-seed=0`.
      values: the values that it sets in the config, by key.
    """

    name: str
    values: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class SweepSpace:
    """The values that differ between the members of a sweep.

    Attributes:
      columns: the values of each key of the config, or the distribution from which they are drawn.
      size: the number of draws; None if no values are drawn.
      seed: the seed of the draws.
      zipped: pair the values rather than take their product.

    >>> space = SweepSpace({"lr": [0.1, 0.2], "seed": [0, 1]})
    >>> [member.name for member in space.members()]
    ['000-lr=0.1-seed=0', '001-lr=0.1-seed=1', '002-lr=0.2-seed=0', '003-lr=0.2-seed=1']
    """

    columns: Mapping[str, Sequence[Any] | Distribution]
    size: int | None = None
    seed: int = 0
    zipped: bool = False

    @property
    def distributions(self) -> dict[str, Distribution]:
        """The keys whose values are drawn, with their distributions."""
        return {key: column for key, column in self.columns.items() if isinstance(column, Distribution)}

    @property
    def lists(self) -> dict[str, Sequence[Any]]:
        """The keys that have a list of values."""
        return {key: column for key, column in self.columns.items() if not isinstance(column, Distribution)}

    def problems(self) -> Iterator[Problem]:
        """Yield the problems due to which the space has no members."""
        if not self.columns:
            text = "a sweep needs a key with several values: --lr=1e-4,1e-3, --seed=0..7, --lr=loguniform:1e-5:1e-2"
            yield Problem(text, code="sweep-empty")
        if self.distributions and self.size is None:
            names = ", ".join(self.distributions)
            yield Problem(
                f"{names}: values are drawn, but the number of members is missing: --size=32", code="sweep-size-missing"
            )
        if self.size is not None and not self.distributions:
            text = f"size is {self.size}, and nothing is drawn: leave it out, or draw values, --lr=loguniform:1e-5:1e-2"
            yield Problem(text, code="sweep-size-unused", size=self.size)
        counts = {key: len(column) for key, column in self.lists.items()}
        counts |= dict.fromkeys(self.distributions, self.size or 1)
        if self.zipped and len(set(counts.values())) > 1:
            shown = ", ".join(f"{key} has {number}" for key, number in counts.items())
            yield Problem(f"zipped pairs the values, and their numbers differ: {shown}", code="sweep-lengths")
        elif (number := self._count(counts)) > MOST:
            text = f"the sweep has {number:,} members; it may have {MOST:,}"
            yield Problem(text, code="sweep-too-large", number=number)

    def _count(self, counts: Mapping[str, int]) -> int:
        if self.zipped:
            return max(counts.values(), default=0)
        return math.prod(counts[key] for key in self.lists) * (self.size or 1)

    def members(self) -> tuple[SweepMember, ...]:
        """Return the members in order: drawn values change least often, then the values of the first key.

        Raises:
          LearnerError: two members have the same values.
        """
        lists = self.lists
        values = zip(*lists.values(), strict=True) if self.zipped else itertools.product(*lists.values())
        combinations = [dict(zip(lists, row, strict=True)) for row in values] or [{}]
        columns = {key: each.draws(key, self.seed, self.size or 1) for key, each in self.distributions.items()}
        draws = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)] or [{}]
        if self.zipped and lists and columns:
            pairs: Any = zip(draws, combinations, strict=True)
        else:
            pairs = itertools.product(draws, combinations)
        rows = [{key: (a | b)[key] for key in self.columns} for a, b in pairs]
        if twice := _first_duplicates(rows):
            remedy = "give each value once" if _first_duplicates(combinations) else "draw fewer, or from wider bounds"
            raise LearnerError(
                f"the members {twice[0]} and {twice[1]} have the same values, "
                f"{', '.join(f'{key}={_word(value)}' for key, value in rows[twice[0]].items())}: {remedy}",
                code="sweep-member-twice",
            )
        return _numbered(rows)


def after_earlier(members: Sequence[SweepMember], earlier: Sequence[SweepMember]) -> Sequence[SweepMember]:
    """Return the members of a sweep that has changed: first those that it had earlier, with their names, and then the
    others. No member gets the number of an earlier one.

    >>> one, two = SweepSpace({"seed": [0, 1]}), SweepSpace({"seed": [2, 1, 0]})
    >>> [member.name for member in after_earlier(two.members(), one.members())]
    ['000-seed=0', '001-seed=1', '002-seed=2']
    >>> [member.name for member in after_earlier(SweepSpace({"seed": [0, 2]}).members(), one.members())]
    ['000-seed=0', '002-seed=2']
    """
    new = {_values_text(member): member for member in members}
    known = [(each.name, new.pop(_values_text(each), None)) for each in earlier]
    rows = [each.values for each in (*earlier, *new.values())]
    kept = [SweepMember(name, member.values) for name, member in known if member is not None]
    return (*kept, *_numbered(rows)[len(earlier) :])


def _numbered(rows: Sequence[Mapping[str, Any]]) -> tuple[SweepMember, ...]:
    width = max(3, len(str(len(rows) - 1)))
    return tuple(SweepMember(directory_name(f"{index:0{width}d}", row), row) for index, row in enumerate(rows))


def _values_text(member: SweepMember) -> str:
    """Return a text of the values that is the same after they are saved and loaded."""
    return json.dumps(encode(member.values), sort_keys=True)


def values_of(key: str, items: Sequence[Any]) -> list[Any] | Distribution:
    """Return the values that the items of a list represent: `0..7` is a range that includes both ends, and
    `loguniform:1e-5:1e-2`, as the only item, a distribution.

    Args:
      key: the key of the config.
      items: the items read from YAML.

    Raises:
      LearnerError: there are no items, or a range or a distribution is invalid.

    >>> values_of("seed", ["0..3", 7]), values_of("lr", ["uniform:0:1"])
    ([0, 1, 2, 3, 7], Distribution(low=0.0, high=1.0, log=False, integer=False))
    """
    if not items:
        raise LearnerError(f"{key} has no values: --{key}=1,2", code="sweep-values-empty", key=key)
    if len(items) == 1 and (distribution := _distribution(key, items[0])) is not None:
        return distribution
    return [value for item in items for value in _expanded(key, item)]


def _distribution(key: str, item: Any) -> Distribution | None:
    name, *bounds = item.split(":") if isinstance(item, str) else [""]
    if not bounds or (name not in DISTRIBUTIONS and not _is_misspelled(name, bounds)):
        return None
    if name not in DISTRIBUTIONS:
        raise LearnerError(f"{key} is {item}: {near(name, [*DISTRIBUTIONS])}", code="sweep-distribution", key=key)
    try:
        low, high = map(float, bounds)
    except ValueError as error:
        raise LearnerError(
            f"{key} is {item}; it needs two numbers, {name}:LOW:HIGH", code="sweep-distribution", key=key
        ) from error
    try:
        return DISTRIBUTIONS[name](low, high)
    except LearnerError as error:
        raise LearnerError(f"{key}: {error}", code=error.code, key=key) from error


def _is_misspelled(name: str, bounds: Sequence[str]) -> bool:
    """Return True for a name that resembles a distribution's, with two numbers as bounds."""
    try:
        numbers = [*map(float, bounds)]
    except ValueError:
        return False
    return len(numbers) == 2 and near(name, [*DISTRIBUTIONS], "") != ""


def _expanded(key: str, item: Any) -> Sequence[Any]:
    if _distribution(key, item) is not None:
        raise LearnerError(
            f"{key} has {item} among other values: it needs a list, or a distribution alone",
            code="sweep-distribution",
            key=key,
        )
    match = RANGE.fullmatch(item) if isinstance(item, str) else None
    if match is None:
        return [item]
    first, last = map(int, match.groups())
    if last < first:
        raise LearnerError(
            f"{key}: the range {item} has its bounds in the wrong order: write {last}..{first}",
            code="sweep-range",
            key=key,
            range=item,
        )
    if last - first >= MOST:
        raise LearnerError(
            f"{key}: the range {item} has {last - first + 1:,} values; it may have {MOST:,}",
            code="sweep-range",
            key=key,
            range=item,
        )
    return range(first, last + 1)


def _first_duplicates(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int] | None:
    """Return the first two rows with the same values, or None."""
    seen: dict[tuple[Any, ...], int] = {}
    for index, row in enumerate(rows):
        first = seen.setdefault(tuple(_identity(value) for value in row.values()), index)
        if first != index:
            return first, index
    return None


def _identity(value: Any) -> Any:
    """Return a hashable form in which 1 equals 1.0, and true equals neither."""
    return value if is_number(value) else json.dumps(value, sort_keys=True, default=str)


def directory_name(index: str, row: Mapping[str, Any]) -> str:
    """Return the name of a directory for values by key, after an index that makes it unique.

    >>> directory_name("007", {"optimizer.b1": 0.9, "model.features": [64, 10]})
    '007-b1=0.9-features=64,10'
    """
    last = [key.rpartition(".")[2] for key in row]
    short = {key: end if last.count(end) == 1 else key for key, end in zip(row, last, strict=True)}
    name = "-".join([index, *(f"{_safe(short[key])}={_word(value)}" for key, value in row.items())])
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")


def _word(value: Any) -> str:
    """Return a value as a part of a file name, such as `64,10` for a list. It need not be unique."""
    if isinstance(value, Mapping) and isinstance(value.get("class_path"), str):
        value = value["class_path"]
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", "="), default=str)
    return _safe(text).strip("_")[:LONGEST_WORD]


def _safe(text: str) -> str:
    return re.sub(r"[^\w.,=+-]+", "_", text)
