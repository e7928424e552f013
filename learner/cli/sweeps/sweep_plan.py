"""The plan of `learner sweep`: the members of a sweep with their configs, which are all checked first."""

import copy
import dataclasses
import json
import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.builder import LearnerBuilder
from learner.cli.configs.builder_options import methods
from learner.cli.configs.config import RunConfig
from learner.cli.configs.cores import PLACES, claim_cores
from learner.cli.configs.overrides import apply_overrides, override, read_configs, value_of
from learner.cli.configs.problems import problems_of
from learner.cli.configs.schema import NEEDED, PARTS, PROCESS, SELECTIONS, SWEEP
from learner.cli.configs.sweep_groups import SweepGroup, groups_of, keyword_of, share_order, singles
from learner.cli.sweeps.sweep_places import separate_places
from learner.cli.sweeps.sweep_report import Outcome, has_ended, metric_of
from learner.cli.sweeps.sweep_values import OPTIONS, SweepValues
from learner.config.composition import refuse_unused_variable, variables_in
from learner.config.distributions import Distribution
from learner.config.sweep_space import SweepMember, SweepSpace, after_earlier
from learner.errors import LearnerError, Problem, one_error
from learner.events import Listener
from learner.runs.flat_config import flat
from learner.runs.journal import OBSERVER_KEYS
from learner.runs.sweep_file import read_members, refuse_other_sweep, write_sweep
from learner.training.monitors import set_directions
from learner.training.population import SEED
from learner.training.waves import wave_sizes
from learner.util.json_values import encode
from learner.util.number_checks import is_int, is_number
from learner.util.text import count

MANY = 8  # numbers of a key


class QuietBuilder(LearnerBuilder):
    """A builder whose run shows nothing, unless its config has a renderer. The config is unchanged."""

    def __init__(self, directory: str | Path, overwrite: bool = False):
        super().__init__(directory, overwrite)
        self.renderer(None)


@dataclasses.dataclass(frozen=True)
class SweepPlan:
    """The members of a sweep, and their shared settings.

    Attributes:
      paths: the paths of the config files.
      shared: the keys that the sweep sets to one value for all members.
      content: the content of the configs, with `shared`, before references are resolved.
      directory: the sweep directory.
      groups: the groups of members that train at once, in the order of training.
      metric: the metric that determines the best member, or None for the monitor of the runs.
      notes: the reasons why members that might train together do not.
    """

    paths: Sequence[str]
    shared: Mapping[str, Any]
    content: Mapping[str, Any]
    directory: Path
    groups: Sequence[SweepGroup]
    metric: str | None
    notes: Sequence[str] = ()

    @property
    def members(self) -> list[SweepMember]:
        """All members, in order."""
        return [member for group in self.groups for member in group.members]

    def group_of(self, number: Any) -> SweepGroup:
        """Return the group of one member, by its number from 0.

        Raises:
          LearnerError: the member does not exist, or it trains together with others.
        """
        if not (is_int(number) and 0 <= number < len(self.members)):
            raise LearnerError(
                f"member is {number!r}: this sweep has {count(len(self.members), 'member')}, which count from 0 to "
                f"{len(self.members) - 1}",
                code="sweep-member-unknown",
                member=number,
            )
        (group,) = (group for group in self.groups if self.members[number] in group.members)
        if group.traced:
            raise LearnerError(
                f"{self.members[number].name} trains together with others: leave member out, or together, halving and "
                "exploit",
                code="sweep-member-together",
                member=number,
            )
        return group

    def learner(self, group: SweepGroup, *, with_data: bool = True, renderer: Listener | None = None) -> Any:
        """Return the learner of a group, which resumes its run, or starts it if there is none. `renderer`: used if the
        config names none.
        """
        config = _config(self.content, group.values, self.directory, group.name)
        if not group.traced:
            return config.learner(with_data=with_data, renderer=renderer)
        configs = [self._files(member) if with_data else {} for member in group.members]
        return config.learner_of(group.population(configs), with_data=with_data, renderer=renderer)

    def has_ended(self, group: SweepGroup) -> bool:
        """Return True if a group has nothing left to train."""
        return has_ended(self.directory, group, {**self.content, **group.values})

    def in_waves(self, group: SweepGroup, waves: bool | int) -> list[SweepGroup]:
        """Return the groups of a population's members that train one after another. If memory decides, the data is read
        and the training is compiled.
        """
        config = _config(self.content, group.values, self.directory, group.name)
        population = dataclasses.replace(group.population([{}] * len(group.members)), waves=waves)
        definition = config.learner_of(population, with_data=False).definition
        data = [config.data(split) if waves is True else None for split in ("train", "valid")]
        return group.in_waves(wave_sizes(definition, *data))

    def _files(self, member: SweepMember) -> dict[str, Any]:
        """Return the config with which a member that trains together with others can resume alone."""
        content = copy.deepcopy({key: value for key, value in self.content.items() if key not in SELECTIONS})
        share_order(content)
        return _config(content, member.values, self.directory, member.name).files()

    @property
    def takes_over(self) -> bool:
        """True if members copy the states of others, so that no single run repeats a member."""
        return "exploit" in self.content

    def command(self, member: SweepMember) -> str:
        """Return the command that trains a member alone, without listeners, because addresses may be secret."""
        is_together = any(group.traced and member in group.members for group in self.groups)
        order = share_order(copy.deepcopy(dict(self.content))) if is_together and SEED in member.values else {}
        settings = {**self.shared, **member.values, **order, "directory": f"{self.directory}-best"}
        shown = {
            key: value for key, value in settings.items() if key.partition(".")[0] not in (*OBSERVER_KEYS, *SELECTIONS)
        }
        words = ["learner", "fit", *self.paths, *(f"--{key}={_option_text(x)}" for key, x in shown.items())]
        return " ".join(map(shlex.quote, words))

    def open(self) -> None:
        """Write the file of the sweep.

        Raises:
          LearnerError: the directory contains a run or another sweep.
        """
        members = [{"directory": member.name, "values": dict(member.values)} for member in self.members]
        may_grow = not any(group.traced for group in self.groups)
        refuse_other_sweep(self.directory, self._shared_settings(), members, may_grow=may_grow)
        write_sweep(self.directory, self._shared_settings(), members)

    def _shared_settings(self) -> dict[str, Any]:
        """Return the flat config without the keys of members and without listeners, but with the way members are
        trained.
        """
        keys = [key.replace(".init_args", "") for key in self.members[0].values]
        left_out = tuple(f"{key}." for key in ("directory", *OBSERVER_KEYS, *keys))
        settings = {key: value for key, value in flat(self.content).items() if not f"{key}.".startswith(left_out)}
        return settings | ({f"{SWEEP}.together": True} if any(group.traced for group in self.groups) else {})


def sweep_plan(line: Namespace) -> SweepPlan:
    """Return the plan of a command line.

    Raises:
      LearnerError: all problems of the sweep and of its members' configs.
    """
    paths = [line.config, *line.further]
    content = read_configs(paths)
    values = SweepValues.read(content.pop(SWEEP, None), line)
    content = {key: value for key, value in content.items() if key not in PROCESS}  # each member resumes
    problems, members, groups = list(values.problems), list[SweepMember](), list[SweepGroup]()
    keys = {key.partition(".")[0] for key in (*content, *values.shared)}
    together = values.together if keys.isdisjoint(SELECTIONS) else "always"
    if together != "never" and keys.isdisjoint(PLACES):
        claim_cores()  # before anything below initializes JAX
    if not problems:
        try:
            members += values.space.members()
            groups += groups_of(members, together=together)
        except LearnerError as error:
            problems += problems_of(error)
    used = variables_in([content, *values.shared.values(), *values.space.columns.values()])
    for key in (*values.shared, *values.space.columns):
        try:
            refuse_unused_variable(key, used)
        except LearnerError as error:
            problems += problems_of(error)
    for key, value in values.shared.items():
        override(content, key, value)
    trials = list(_covering(members, values.space)) or [_first_values(values.space.columns)]
    of_one = {key: value for key, value in content.items() if key not in SELECTIONS}
    others = [member.values for member in members if member.values not in trials]
    problems += _config_problems(of_one, trials, others, values.broken, values.metric)
    if problems:
        raise one_error(problems, "this sweep cannot be trained", code="sweep-invalid")
    suffix = "" if "directory" in values.shared else "-sweep"
    first = _config(content, trials[0])
    directory = Path(first.directory + suffix)
    plan = SweepPlan(paths, values.shared, content, directory, groups, values.metric)
    checked, notes = list[SweepGroup](), list[str]()
    for group in groups:
        try:
            if group.traced:
                _check_monitors(plan.learner(group, with_data=False), first.splits)  # raises
            checked += plan.in_waves(group, values.waves) if group.traced and values.waves else [group]
        except LearnerError as error:
            if together != "auto":
                raise
            checked += singles(group.members)
            notes += [str(problem) for problem in problems_of(error)]
        except Exception:  # of a model that does not accept the values: the members fail when it is their turn
            checked.append(group)
    if not any(group.traced for group in checked):
        earlier = [SweepMember(each["directory"], each["values"]) for each in read_members(directory)]
        checked = singles(after_earlier([member for group in checked for member in group.members], earlier))
    return dataclasses.replace(plan, groups=checked, notes=list(dict.fromkeys(notes)))


def monitor_in(content: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the metric that selects the best checkpoint of a run, and its mode; each None if the config has none."""
    options = content.get("with_file_checkpointer")
    options = options if isinstance(options, Mapping) else {}
    return options.get("monitor"), options.get("mode")


# -- checks of the configs ---------------------------------------------------------------------------------------------


def _config(
    content: Mapping[str, Any], values: Mapping[str, Any], directory: Path | None = None, name: str = "", **how: Any
) -> RunConfig:
    """Return a config with these values. `directory`: the sweep's, extended by the `name` of the member, or None."""
    changed = copy.deepcopy(dict(content))
    for key, value in values.items():
        override(changed, key, copy.deepcopy(value))
    changed = apply_overrides(changed, [])
    if name:
        separate_places(changed, name)
    own = {} if directory is None else {"directory": str(directory / name)}
    return RunConfig({**changed, **own, "resume": True}, QuietBuilder, OPTIONS, **how)


def _covering(members: Sequence[SweepMember], space: SweepSpace) -> Iterator[Mapping[str, Any]]:
    """Yield values of members that cover each value of each key. For many numbers, and for numbers that a population
    traces, the ends suffice, because each config takes 0.1 s.
    """
    chosen: dict[str, SweepMember] = {}
    for key in space.columns:
        first = {repr(member.values[key]): member for member in reversed(members)}
        covering: Iterable[SweepMember] = first.values()
        is_known = is_int if key == SEED else is_number
        most = 2 if keyword_of(key) else MANY
        if len(first) > most and all(is_known(member.values[key]) for member in covering):
            by_value = sorted(covering, key=lambda member: float(member.values[key]))
            covering = [by_value[0], by_value[-1]]
        chosen |= {member.name: member for member in covering}
    yield from (chosen[name].values for name in sorted(chosen))


def _first_values(columns: Mapping[str, Sequence[Any] | Distribution]) -> dict[str, Any]:
    return {key: x.low if isinstance(x, Distribution) else x[0] for key, x in columns.items()}


def _config_problems(
    content: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    others: Sequence[Mapping[str, Any]],
    broken: Sequence[str],
    metric: str | None,
) -> list[Problem]:
    """Return the problems of configs with these values, each once. No data is read, and nothing is written. If the
    user's code raises another exception for all members, it is raised; if for some, they fail in the sweep.

    Args:
      content: the shared content.
      trials: the values in which they differ.
      others: the values of the other members, which are checked until a config has been built.
      broken: keys whose values are unknown; only their names are checked.
      metric: the metric that ranks members, or None.
    """
    known = [*PARTS, "overwrite", *methods(LearnerBuilder)]
    unknown = {name: None for key in broken if (name := key.partition(".")[0]) not in known}
    needed = [key for key in NEEDED if key not in broken]
    problems: dict[str, Problem] = {}
    first_error: Exception | None = None
    is_built = False
    for number, values in enumerate((*trials, *others)):
        if is_built and number >= len(trials):
            break
        try:
            config = _config({**unknown, **content}, values, needed=needed)
            config.check() if broken else _check(config, metric, *monitor_in(content))
        except LearnerError as error:
            problems |= {str(problem): _with_hint(problem, values) for problem in problems_of(error)}
        except Exception as error:
            error.add_note(f"while checking {' '.join(f'--{key}={_option_text(x)}' for key, x in values.items())}")
            first_error = first_error or error
            continue
        is_built = True
    if first_error is not None and not is_built:
        raise first_error
    return list(problems.values())


def _with_hint(problem: Problem, values: Mapping[str, Any]) -> Problem:
    """Return a problem; of an argument that only some of the objects accept, with the way to give it to those, and of
    several values for an argument inside an object, with the way to sweep it.
    """
    arguments = {key: value["init_args"] for key, value in values.items() if _has_arguments(value)}
    names = [f"{key}.init_args.{name}" for key, own in arguments.items() for name, x in own.items() if _is_several(x)]
    if any(problem.startswith(f"{name} is ") for name in names):
        text = f"{problem}. Values inside an object are its arguments as they are: list an object for each value"
        return Problem(text, code=problem.code, **problem.fields)
    objects = [key for key in values if any(other.startswith(f"{key}.") for other in values)]
    key = next((key for key in objects if problem.startswith(f"{key}.")), None)
    if key is None or problem.code != "config-arguments-mismatch":
        return problem
    example = "[{class_path: A}, {class_path: B, init_args: {b: 1}}]"
    text = f"{problem}. For arguments of one class only, list whole objects in the section sweep: {key}: {example}"
    return Problem(text, code=problem.code, **problem.fields)


def _has_arguments(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("init_args"), Mapping)


def _is_several(value: Any) -> bool:
    """Return True for a list, and for a text that resembles a range or a distribution."""
    return isinstance(value, list) or (isinstance(value, str) and (".." in value or ":" in value))


def _check(config: RunConfig, metric: str | None, monitor: str | None, mode: str | None) -> None:
    """Raise `LearnerError` with the problems of a config, of its data's options, and of the metric."""
    learner = config.learner(with_data=False)
    config.check_data()
    _check_monitors(learner, config.splits)
    if metric is not None and not metric.startswith("custom/"):  # numbers of hooks are known only once they are logged
        infos = learner.definition.options.metric_infos(config.splits)
        measured = {info.key: {"higher_is_better": info.higher_is_better} for info in infos}
        metric_of(Outcome(SweepMember("", {}), {"metrics": measured}), metric, monitor, mode)


def _check_monitors(learner: Any, splits: Sequence[str]) -> None:
    """Raise `LearnerError` for monitors of metrics that the splits do not have."""
    valid_splits = [split for split in splits if split != "train"]
    if problems := set_directions(learner.definition.options, valid_splits, None):
        raise one_error(problems, "this sweep cannot be trained", code="sweep-invalid")


def _option_text(value: Any) -> str:
    """Return the text of an option that parses to a value."""
    if isinstance(value, str) and value_of(value) == value:
        return value
    return json.dumps(encode(value))
