"""Runs from a config: its validation, its complete text, and the learner that it describes.

A config names code that is imported and run, so trust it only as you would trust code.
"""

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.builder import LearnerBuilder
from learner.cli.configs.builder_options import Option, methods, option
from learner.cli.configs.cores import PLACES, devices_for
from learner.cli.configs.importing import import_path
from learner.cli.configs.object_kinds import BASES, named_kind
from learner.cli.configs.problems import Problems, read_each
from learner.cli.configs.recipes import Recipe, Seeds, check_initialised, has_literals, make_model, recipe
from learner.cli.configs.schema import (
    COMMON_GUESSES,
    DEFAULTS,
    NEEDED,
    OBJECTS,
    OF_MACHINE,
    PARTS,
    PROCESS,
    SWEEP,
    names_for,
)
from learner.cli.configs.sources import DataSource, source, sources
from learner.config.mappings import yaml_text
from learner.config.safe_yaml import parse_yaml
from learner.data.source import source_of
from learner.errors import LearnerError, near
from learner.events import Listener
from learner.loggers.secrets import resolve, texts_in
from learner.records.model_files import load_model
from learner.runs.journal import OBSERVER_KEYS
from learner.schedules.base import RunLength
from learner.training.feed.inputs import run_length
from learner.training.population import Population
from learner.util.number_checks import is_finite, is_int

HEADER = """\
# What this run was started with, in full. `learner resume` continues it; `learner fit` can start another from it.
# It names code, which is imported and run: trust it as you trust code.
"""


class RunConfig:
    """The content of a config file and of the options that override it.

    Mistakes are reported together when the config is used.

    Args:
      content: the content of the file, with the overrides of the command line.
      builder: the class that has the options.
      beside: the options of a command that are not keys, for hints about misspelled options.
      needed: the required keys.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        builder: type = LearnerBuilder,
        beside: Sequence[str] = (),
        needed: Sequence[str] = NEEDED,
    ) -> None:
        self._builder = builder
        content = {key: value for key, value in content.items() if key != SWEEP}
        self._content = {**content, **_defaults(content)}
        self._problems = Problems(order=self._content, with_fields=False)
        self._recipes: dict[str, Recipe] = {}
        self.sources: dict[str, DataSource | dict[str, DataSource]] = {}
        self._options: list[Option] = []
        self._check_keys(beside, needed)
        self._check_values()
        seed = self._content["seed"]
        self._seed: int = seed if is_int(seed) else 0
        self._read_parts()
        self._read_options()

    def _check_keys(self, beside: Sequence[str], needed: Sequence[str]) -> None:
        known = [*PARTS, "overwrite", *methods(self._builder)]
        for key in self._content:
            with self._problems.collect(key=key):
                if key not in known:
                    hint = _hint_for(key, self._content[key], [*beside, *known])
                    raise LearnerError(f"there is no option {key!r}: {hint}", code="config-key-unknown", key=key)
        for key in needed:
            with self._problems.collect():
                if self._content.get(key) in (None, "") and not (key == "optimizer" and "update" in self._content):
                    raise LearnerError(
                        f"{key} is missing: give it in the config, or as --{key}=...",
                        code="config-key-missing",
                        key=key,
                    )

    def _check_values(self) -> None:
        with self._problems.collect(key="directory"):
            if isinstance(self._content.get("directory"), bool | list | Mapping):
                raise LearnerError(
                    f"directory is {self._content['directory']!r}: it needs a path", code="config-directory-type"
                )
        with self._problems.collect(key="overwrite"):
            if not isinstance(self._content.get("overwrite", False), bool):
                raise LearnerError(
                    f"overwrite is {self._content['overwrite']!r}: it needs true or false", code="config-overwrite-type"
                )
        with self._problems.collect(key="devices"):
            if self._content.get("devices") is not None and self._content.get("strategy") is not None:
                raise LearnerError(
                    "devices and strategy both choose the devices: leave out one of them (--devices=null or "
                    "--strategy=null), or name the devices in the strategy (--strategy.devices=2)",
                    code="config-devices-and-strategy",
                )

    def _read_parts(self) -> None:
        values = {key: self._content[key] for key in PARTS if self._content.get(key) is not None}
        for key, how in OBJECTS.items():
            with self._problems.collect(key=key):
                if key == "lr" and not isinstance(lr := values.get("lr", ""), str | Mapping):
                    if not is_finite(lr):
                        raise LearnerError(f"lr is {lr!r}: it needs a number or a schedule", code="config-lr-type")
                elif key == "trainable" and isinstance(values.get(key), str):
                    self._recipes[key] = Recipe(values[key], import_path(values[key], key))
                elif key in values:
                    inside = names_for("lr") if key == "optimizer" else {}  # groups have schedules
                    kind = key if key in BASES else None
                    self._recipes[key] = recipe(values[key], key, {**inside, **names_for(key)}, kind=kind, **how)
                    if key == "model":
                        check_initialised(self._recipes[key])
        for key, read in (("train", source), ("valid", sources)):
            with self._problems.collect(key=key):
                if key in values:
                    self.sources[key] = read(values[key], key, self._seed)

    def _read_options(self) -> None:
        for name in methods(self._builder):
            if name in self._content:
                # null leaves an option unset, unless it means something to it.
                problems = self._problems if self._content[name] is not None else Problems()
                secrets = _secrets(self._content[name]) if name in OBSERVER_KEYS else ()
                with problems.collect(key=name, secrets=secrets):
                    self._options.append(
                        option(self._builder, name, self._content[name], name, names_for(name) or None)
                    )
        # The last call of `resume` and `checkpoint` determines where the run starts, and `learner resume` always
        # resumes.
        self._options.sort(key=lambda each: each.name == "checkpoint")

    @property
    def directory(self) -> str:
        """The run directory."""
        return os.path.expanduser(str(self._content.get("directory") or ""))

    @property
    def resumes(self) -> bool:
        """True if the config requests to resume the run in the directory."""
        return bool(self._content.get("resume"))

    def text(self) -> str:
        """Return the complete config as YAML, without the options of one start of the run, and with listeners at the
        end.

        Raises:
          LearnerError: unknown or missing keys, names that cannot be imported, invalid arguments.
        """
        self._problems.raise_all()
        parts: dict[str, Any] = {key: self._content[key] for key in ("directory", "lr")}
        parts |= {key: each.config() for key, each in self._recipes.items()}
        parts |= {key: _of_each(each, DataSource.config) for key, each in self.sources.items()}
        parts |= {each.name: each.value for each in self._options if each.name not in PROCESS}
        config = {key: parts[key] for key in self._content if key in parts and key not in OBSERVER_KEYS}
        return yaml_text({**config, **{key: parts[key] for key in OBSERVER_KEYS if key in parts}})

    def kept_text(self) -> str:
        """Return the config as checkpoints store it: without the arguments of objects that only observe the run.

        It begins like `text`, so that a truncated file can be distinguished from an edited one.
        """
        content = parse_yaml(self.text())
        return yaml_text({key: _classes(value) if key in OBSERVER_KEYS else value for key, value in content.items()})

    @property
    def is_private(self) -> bool:
        """Return True if a logger has literal texts, which may be secret, rather than names of environment
        variables.
        """
        calls = [call for each in self._options if each.name in OBSERVER_KEYS for call in each.calls]
        return any(has_literals([call.positional, call.given]) for call in calls)

    def unset(self) -> list[str]:
        """Return the keys that are missing in the config."""
        known = (*PARTS, *methods(self._builder))
        return [key for key in known if self._content.get(key, self) is self and key not in PROCESS]

    def check(self) -> None:
        """Raise `LearnerError` with all problems of the config."""
        self._problems.raise_all()

    def check_arguments(self) -> None:
        """Raise `LearnerError` with all problems of the config that do not depend on this machine, as the run may start
        on another. No model is created, no code of the user is called, and no data is read.
        """
        self._configured([each for each in self._options if each.is_ours and each.name not in OF_MACHINE])
        for key, part in self._recipes.items():
            with self._problems.collect(key=key):
                if part.is_ours and key != "model":
                    part.make()
        self._problems.discard("package-missing")  # of this machine, too
        self.check_data()

    def check_data(self) -> None:
        """Raise `LearnerError` with all problems of the data's options. No data is read."""
        for key, each in self.sources.items():
            with self._problems.collect(key=key):
                _of_each(each, DataSource.check_options)
        self._problems.raise_all()

    @property
    def splits(self) -> list[str]:
        """The splits of a run with its data."""
        valid = self.sources.get("valid", {})
        return ["train", *([f"valid-{name}" for name in valid] if isinstance(valid, dict) else ["valid"])]

    def data(self, split: str) -> Any:
        """Return the loader of `train` or `valid`, a dict of loaders, or None."""
        return _of_each(self.sources[split], DataSource.make) if split in self.sources else None

    def learner(self, *, with_data: bool = True, renderer: Listener | None = None, weights: Path | None = None) -> Any:
        """Return the `Learner` that the config describes, with or without its data. `renderer`: used if the config has
        none. `weights`: a file of `save_model` with the arrays of the model.

        Raises:
          LearnerError: all problems of the config and its objects, or an error of the builder.
        """
        problems, objects = self._problems, dict[str, Any]()
        for key, value in self._content.items():
            with problems.collect(key=key):
                resolve(value)  # for all missing variables
        refused = bool(problems)  # then no user code is called, only code that finds further mistakes
        builder = self._configured()
        for key, part in self._recipes.items():
            with problems.collect(key=key):
                if part.is_ours or not refused:
                    objects[key] = self._model() if key == "model" else part.make()
        for key in self.sources if with_data else ():
            with problems.collect(key=key):
                objects[key] = _of_each(self.sources[key], DataSource.check_unread) if refused else self.data(key)
        files = self.files()  # raises all problems
        assert builder is not None
        builder._config_text(**files)
        if weights is not None:  # after all mistakes are reported
            objects["model"] = load_model(weights, objects["model"]())
        if renderer is not None and "renderer" not in self._content:
            builder.renderer(renderer)
        return builder.build(**{"lr": self._content["lr"], "optimizer": None, **objects})

    def files(self) -> dict[str, Any]:
        """Return the fields of `Options` for the config file that a run stores."""
        text, kept = self.text(), self.kept_text()
        return {"config_text": HEADER + text, "config_kept": HEADER + kept, "config_private": self.is_private}

    def learner_of(self, population: Population, *, with_data: bool = True, renderer: Listener | None = None) -> Any:
        """Return the `Learner` of members of a sweep that train together. Each member stores a config; the run does
        not.

        Raises:
          LearnerError: all problems of the config, or an error of the builder.
        """
        self._problems.raise_all()
        builder = self._configured()
        self._problems.raise_all()
        builder._set(population=population)
        devices = 1 if population.waves else devices_for(len(population))
        if devices > 1 and self._content.keys().isdisjoint(PLACES):
            builder.devices(devices)
        if renderer is not None and "renderer" not in self._content:
            builder.renderer(renderer)
        objects = {key: part.make() for key, part in self._recipes.items() if key != "model"}
        objects |= {key: self.data(key) for key in self.sources if with_data}
        objects = {"lr": self._content["lr"], "optimizer": None, **objects}
        return builder.build(lambda rngs: make_model(self._recipes["model"], Seeds(traced=rngs)), **objects)

    def rate(self) -> tuple[Any, Any, RunLength]:
        """Return the learning rate and the optimizer of the config, and the length of its run. No model is created, and
        no row is read.

        Raises:
          LearnerError: all that is wrong with the config.
        """
        self._problems.raise_all()  # before anything that the config names is called
        builder = self._configured()
        objects = {"lr": self._content["lr"]}
        for key in [key for key in ("lr", "optimizer") if key in self._recipes]:
            with self._problems.collect(key=key):
                objects[key] = self._recipes[key].make()
        with self._problems.collect(key="train"):
            objects["train"] = self.data("train")
        self._problems.raise_all()
        options = builder._options
        with contextlib.closing(source_of(objects["train"], "train", batch_size=options.batch_size)) as train:
            return objects["lr"], objects.get("optimizer"), run_length(options, train.batches)

    def _configured(self, chosen: Sequence[Option] | None = None) -> Any:
        """Return the builder with all options, or the chosen ones, or None after collecting a problem."""
        builder = None
        with self._problems.collect(key="directory"):
            builder = self._builder(self.directory or ".", overwrite=self._content.get("overwrite", False))
        refused = bool(self._problems)
        for each in () if builder is None else self._options if chosen is None else chosen:
            with self._problems.collect(key=each.name):
                if each.is_ours or not refused:
                    each.apply(builder)
        return builder

    def model(self) -> tuple[Any, Any]:
        """Return a function that creates the model, and the filter of its trainable part.

        Raises:
          LearnerError: all that is wrong with the config.
        """
        self._problems.raise_all()
        trainable = self._recipes.get("trainable")
        return self._model(), None if trainable is None else trainable.make()

    def _model(self) -> Callable[[], Any]:
        """Return a function that creates the model, so that few programs create its arrays, directly on their
        devices.
        """
        return lambda: make_model(self._recipes["model"], Seeds(self._seed))


def _of_each(part: DataSource | dict[str, DataSource], function: Callable[[DataSource], Any]) -> Any:
    return read_each(part, lambda _, each: function(each)) if isinstance(part, dict) else function(part)


def _classes(value: Any) -> Any:
    """Return the objects of a config without their arguments."""
    if isinstance(value, Mapping):
        return value["class_path"] if "class_path" in value else {key: _classes(x) for key, x in value.items()}
    return list(map(_classes, value)) if isinstance(value, list) else value


def _secrets(value: Any) -> list[str]:
    """Return all texts in the arguments of loggers, and those in place of a class that do not name one."""
    if isinstance(value, Mapping) and "class_path" not in value:  # lists by name
        return [text for item in value.values() for text in _secrets(item)]
    classes = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
    rest = [item for item in value if not isinstance(item, str)] if isinstance(value, list) else value
    no_names = [text for text in classes if not re.fullmatch(r"[\w.]+", text)]
    return [*no_names, *(texts_in(rest) if not isinstance(rest, str) else [])]


def _defaults(content: Mapping[str, Any]) -> dict[str, Any]:
    left_out = {key: value for key, value in DEFAULTS.items() if key not in content}
    return {key: value for key, value in left_out.items() if key != "num_epochs" or "num_steps" not in content}


def _hint_for(key: str, value: Any, known: Sequence[str]) -> str:
    """Return a hint for an unknown key: for the common guess that it equals or resembles, otherwise the nearest
    keys.
    """
    word = key.lower()
    if word not in COMMON_GUESSES:  # a misspelled key, such as traine, may be nearer to a guess
        is_key = difflib.get_close_matches(word, known, n=1, cutoff=0.8)
        nearest = is_key or difflib.get_close_matches(word, [*known, *COMMON_GUESSES], n=1)
        if not nearest or nearest[0] not in COMMON_GUESSES:
            return near(key, known, "learner fit --help=keys lists all keys")
        word = nearest[0]
    name = value.get("class_path") if isinstance(value, Mapping) else value
    belongs = f"; {name} is an optimizer, which is given as optimizer" if named_kind(name) == "optimizer" else ""
    return f"{COMMON_GUESSES[word]}{belongs}"
