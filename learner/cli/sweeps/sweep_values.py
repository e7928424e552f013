"""The values of a sweep, from the command line and from the section `sweep` of a config."""

import dataclasses
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Self

import yaml

from learner.cli.configs.overrides import value_of
from learner.cli.configs.problems import problems_of
from learner.cli.configs.schema import PROCESS, SWEEP
from learner.config.distributions import Distribution
from learner.config.safe_yaml import parse_yaml
from learner.config.sweep_space import SweepSpace, values_of
from learner.errors import LearnerError, Problem
from learner.runs.journal import OBSERVER_KEYS
from learner.util.number_checks import is_int

TOGETHER = {"always": "always", "auto": "auto", "never": "never", True: "always", False: "never"}
OPTIONS = ("size", "sweep_seed", "metric", "zipped", "together", "waves")
"""Options of the command that the section `sweep` of a config may have in addition to keys."""


@dataclasses.dataclass(frozen=True)
class SweepValues:
    """The values of a sweep.

    Attributes:
      space: the values in which the members differ.
      shared: the keys that have one value for all members.
      broken: the keys whose values cannot be read.
      together: train members that differ only in values that a population can trace in one program: `always`, `never`,
        or `auto` (if possible).
      waves: see `LearnerBuilder.population`.
      metric: the metric that determines the best member, or None for the monitor of the runs.
      problems: all problems of the values.
    """

    space: SweepSpace
    shared: Mapping[str, Any]
    broken: Sequence[str]
    together: str
    waves: bool | int
    metric: str | None
    problems: Sequence[Problem]

    @classmethod
    def read(cls, section: Any, line: Namespace) -> Self:
        """Return the values of a section of a config, and of a command line, which overrides it."""
        problems: list[Problem] = []
        given, options = _read_items(section, line, problems)
        columns, shared, broken = _columns(given, problems)
        settings = _settings(options, problems)
        together, waves = settings.pop("together"), settings.pop("waves")
        space = SweepSpace(columns, **settings)
        # A value that cannot be read is not a missing value.
        follows = {"sweep-empty", "sweep-size-unused"} if broken else set()
        follows |= {"sweep-size-missing"} if "size" in options else set()
        problems += [each for each in space.problems() if each.code not in follows]
        metric = options.get("metric")
        return cls(space, shared, broken, together, waves, None if metric is None else str(metric), problems)


def _read_items(section: Any, line: Namespace, problems: list[Problem]) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the items of each key, and the options of the sweep. The command line takes precedence."""
    if section is not None and not (isinstance(section, Mapping) and all(isinstance(key, str) for key in section)):
        problems.append(Problem(f"sweep is {section!r}: it needs a mapping of keys", code="sweep-section-type"))
        section = None
    section = dict(section or {})
    options = {name: section.pop(name) for name in OPTIONS if name in section}
    options |= {name: value for name in OPTIONS if (value := getattr(line, name)) not in (None, False)}
    given = {key: _items(value) for key, value in section.items()}
    for key, text in line.overrides:
        given.pop(key, None)  # the order of the last ones counts
        given[key] = _items(text)
    return given, options


def _items(value: Any) -> list[Any]:
    """Return the items of a value: of a list, or of a comma-separated text, parsed as YAML."""
    if not isinstance(value, str):
        return list(value) if isinstance(value, list) else [value]
    if not value.strip(" ,"):
        return []
    try:
        items = parse_yaml(f"[{value}]") if "," in value else []
    except yaml.YAMLError:
        items = []
    return list(items) if len(items) > 1 else [value_of(value)]


def _columns(
    given: Mapping[str, Sequence[Any]], problems: list[Problem]
) -> tuple[dict[str, Sequence[Any] | Distribution], dict[str, Any], list[str]]:
    """Return the values of the keys that differ, the values of the others, and the keys whose values are wrong."""
    columns: dict[str, Sequence[Any] | Distribution] = {}
    shared: dict[str, Any] = {}
    broken: list[str] = []
    for key in _after_objects(given):
        items = given[key]
        try:
            _refuse_fixed(key)
            values = values_of(key, items)
            # A member's value replaces the whole object, and so an argument that was set before it.
            is_argument = any(key.startswith(f"{parent}.") for parent in columns)
            if not isinstance(values, Distribution) and len(values) == 1 and not is_argument:
                shared[key] = values[0]
            elif key.partition(".")[0] in ("directory", *OBSERVER_KEYS):
                raise LearnerError(f"{key} has one value in a sweep", code="sweep-key-fixed", key=key)
            else:
                columns[key] = values
        except LearnerError as error:
            broken.append(key)
            problems += problems_of(error)
    return columns, shared, broken


def _after_objects(given: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the keys in order, but each argument after the list of the objects that it belongs to, if there is one.

    >>> _after_objects({"optimizer.b1": [0.9], "seed": [0, 1], "optimizer": ["Adam", "AdamW"]})
    ['seed', 'optimizer', 'optimizer.b1']
    """
    places = {key: place for place, key in enumerate(given) if len(given[key]) > 1}

    def place(pair: tuple[int, str]) -> tuple[int, int]:
        own, key = pair
        return max([own, *(at for each, at in places.items() if key.startswith(f"{each}."))]), key.count(".")

    return [key for _, key in sorted(enumerate(given), key=place)]


def _refuse_fixed(key: str) -> None:
    if key.partition(".")[0] in (SWEEP, *PROCESS):
        raise LearnerError(
            f"a sweep has no {key}: the same command resumes the members that have not ended, and another --directory "
            "starts a new sweep",
            code="sweep-key-fixed",
            key=key,
        )


def _settings(options: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the arguments of `SweepSpace` other than the columns, `together` and `waves`; collect their problems."""
    given = {name: value_of(value) if isinstance(value, str) else value for name, value in options.items()}
    settings: dict[str, Any] = {}
    for name, argument, least in (("size", "size", 1), ("sweep_seed", "seed", 0)):
        value = given.get(name)
        if value is not None and (not is_int(value) or value < least):
            text = f"{name} is {value!r}: it needs a whole number, {least} or more"
            problems.append(Problem(text, code="sweep-option-value", name=name))
        elif value is not None:
            settings[argument] = value
    settings["zipped"] = given.get("zipped", False)
    if not isinstance(settings["zipped"], bool):
        text = f"zipped is {settings['zipped']!r}: it needs true or false"
        problems.append(Problem(text, code="sweep-option-value", name="zipped"))
    value = given.get("together", "always" if given.get("waves") else "never")
    settings["together"] = TOGETHER.get(value, "never") if isinstance(value, str | bool) else None
    if settings["together"] is None or value not in TOGETHER:
        text = f"together is {value!r}: it needs always, auto or never"
        problems.append(Problem(text, code="sweep-option-value", name="together"))
    settings["waves"] = given.get("waves", False)
    if not isinstance(settings["waves"], bool) and not (is_int(settings["waves"]) and settings["waves"] >= 1):
        text = f"waves is {settings['waves']!r}: it needs a whole number, 1 or more, or nothing"
        problems.append(Problem(text, code="sweep-option-value", name="waves"))
    elif settings["waves"] and settings["together"] == "never":
        text = "waves are of members that train together, and together is never: leave one of them out"
        problems.append(Problem(text, code="sweep-option-value", name="waves"))
    return settings
