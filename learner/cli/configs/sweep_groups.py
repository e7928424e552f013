"""Members of a sweep that train together because they differ only in values that a population can trace."""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from learner.config.sweep_space import SweepMember, directory_name
from learner.errors import LearnerError
from learner.training.population import LR, SEED, Population, population_of
from learner.training.waves import wave_name
from learner.util.json_values import encode
from learner.util.number_checks import is_number
from learner.util.text import join_names

OPTIMIZER = "optimizer."


@dataclasses.dataclass(frozen=True)
class SweepGroup:
    """Members that train in one program, or a single member.

    Attributes:
      name: the directory of the run or population, relative to the sweep's; empty for the sweep's directory itself.
      members: the members in order, with names relative to the directory of the sweep.
      traced: the keys in which the members of a population differ; empty for a single member.
    """

    name: str
    members: Sequence[SweepMember]
    traced: Sequence[str] = ()

    @property
    def values(self) -> dict[str, Any]:
        """The values that the config of the group sets. A population uses the values of its first member, but the seed
        of the config, which determines the order of the data.
        """
        values = self.members[0].values
        return {key: value for key, value in values.items() if not (self.traced and key == SEED)}

    def in_waves(self, sizes: Sequence[int]) -> list["SweepGroup"]:
        """Return groups of consecutive members, each a population in its own directory."""
        if len(sizes) == 1:
            return [self]
        groups, members = list[SweepGroup](), iter(self.members)
        for number, size in enumerate(sizes, 1):
            name = "/".join(filter(None, (self.name, wave_name(number, len(sizes)))))
            wave = list(itertools.islice(members, size))
            wave = [dataclasses.replace(each, name=f"{name}/{each.name.rpartition('/')[2]}") for each in wave]
            groups.append(SweepGroup(name, wave, self.traced))
        return groups

    def population(self, configs: Sequence[Mapping[str, Any]]) -> Population:
        """Return the population of the members, each with its `Member.config`.

        Raises:
          LearnerError: a value is not valid for a population.
        """
        columns = {keyword_of(key) or key: [member.values[key] for member in self.members] for key in self.traced}
        names = [member.name.rpartition("/")[2] for member in self.members]
        parts = zip(population_of(columns, zipped=True).members, names, configs, strict=True)
        return Population(tuple(dataclasses.replace(each, name=name, config=config) for each, name, config in parts))


def share_order(content: dict[str, Any]) -> dict[str, Any]:
    """Set the seed of the data's order to the config's seed, for all members, whatever their own seeds. Return the
    changed keys with their values.

    >>> content = {"seed": 3, "train": {"dataset": "data.csv", "shuffle": True}}
    >>> share_order(content), content["train"]["shuffle"]
    ({'train.shuffle': 3}, 3)
    """
    sources = {key: content.get(key) for key in ("train", "valid")}
    of_splits = [(key, source) for key, source in sources.items() if isinstance(source, dict)]
    sources |= {f"{key}.{name}": each for key, source in of_splits for name, each in source.items()}
    changed = {}
    for key, source in sources.items():
        if isinstance(source, dict) and source.get("shuffle") is True:
            changed[f"{key}.shuffle"] = source["shuffle"] = content.get(SEED, 0)
    return changed


def keyword_of(key: str) -> str | None:
    """Return the name of a key in a population: `seed`, `lr`, or a keyword of the optimizer. None for any other key.

    >>> keyword_of("seed"), keyword_of("optimizer.init_args.b1"), keyword_of("model.width"), keyword_of("optimizer")
    ('seed', 'b1', None, None)
    """
    if key in (SEED, LR):
        return key
    name = key.removeprefix(OPTIMIZER).removeprefix("init_args.")
    return name if key.startswith(OPTIMIZER) and "." not in name and name not in ("class_path", "init_args") else None


def groups_of(members: Sequence[SweepMember], *, together: str = "never") -> list[SweepGroup]:
    """Return the groups in the order of their first members: single members, or together all members that differ only
    in traceable keys. If there are several populations, each has its own directory.

    Args:
      members: the members of the sweep.
      together: `never`, `always`, or `auto`: if there are several such members.

    Raises:
      LearnerError: `together` is `always`, but no members can train together.
    """
    if together == "never":
        return singles(members)
    traced = [key for key in members[0].values if keyword_of(key) and all(is_number(m.values[key]) for m in members)]
    if not traced and together == "auto":
        return singles(members)
    if not traced:
        keys = list(members[0].values)
        of_schedule = ". Schedules cannot differ, but constant rates can: --lr=1e-3,3e-3"
        raise LearnerError(
            f"members that train together, as with halving and exploit, differ in numbers for {SEED}, {LR} or "
            f"arguments of the optimizer, and the sweep has none: it has {join_names(keys, 8)}. Sweep one of those, "
            "too, such as --seed=0,1, or leave --together, halving and exploit out"
            f"{of_schedule if any(key.split('.')[0] == LR for key in keys) else ''}",
            code="sweep-together-nothing",
            keys=keys,
        )
    grouped: dict[str, list[SweepMember]] = {}
    for member in members:
        grouped.setdefault(json.dumps(encode(_untraced_values(member, traced))), []).append(member)
    if len(grouped) == 1:
        return [SweepGroup("", members, traced)]
    groups = []
    for number, group in enumerate(grouped.values()):
        if together == "auto" and len(group) == 1:
            groups += singles(group)
        else:
            name = directory_name(f"population-{number}", _untraced_values(group[0], traced))
            group = [dataclasses.replace(each, name=f"{name}/{each.name}") for each in group]
            groups.append(SweepGroup(name, group, traced))
    return groups


def singles(members: Sequence[SweepMember]) -> list[SweepGroup]:
    """Return a separate group for each member. Names omit the directory of a population."""
    named = [dataclasses.replace(member, name=member.name.rpartition("/")[2]) for member in members]
    return [SweepGroup(member.name, [member]) for member in named]


def _untraced_values(member: SweepMember, traced: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in member.values.items() if key not in traced}
