"""Runs from a config: what it says, checked; the same in full; and the learner that it describes.

A config names code, which is imported and run: trust it as you trust code.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from learner.cli.importing import import_path
from learner.cli.keys import DEFAULTS, NEEDED, OBJECTS, PARTS, PROCESS, names_for
from learner.cli.options import Option, methods, option
from learner.cli.recipes import Recipe, Seeds, recipe
from learner.cli.sources import Source, source, sources
from learner.errors import LearnerError, near, one_error

HEADER = """\
# What this run was started with, in full. `learner resume` goes on with it; `learner fit` can start another from it.
# It names code, which is imported and run: trust it as you trust code.
"""


class Problems:
    """Mistakes that are told together."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextlib.contextmanager
    def noted(self, place: str = "") -> Iterator[None]:
        """Keeps the `LearnerError` that is raised inside for later."""
        try:
            yield
        except LearnerError as error:
            self._found.append(f"{place}{error}")

    def raise_all(self) -> None:
        """Raises one `LearnerError` of all that was noted."""
        if self._found:
            raise one_error(self._found, "this config cannot be used")


class Config:
    """What a config says.

    Mistakes in it are told when it is used, all together.

    Args:
      content: of the file, with what the command line changes in it.
      builder: the class that has the options; default: `learner.LearnerBuilder`.
    """

    def __init__(self, content: Mapping[str, Any], builder: type | None = None) -> None:
        self._builder = builder or _learner_builder()
        self._content = {**content, **_defaults(content)}
        self._problems = Problems()
        self._recipes: dict[str, Recipe] = {}
        self._sources: dict[str, Source | dict[str, Source]] = {}
        self._options: list[Option] = []
        self._check_keys()
        seed = self._content["seed"]
        self._seed: int = seed if isinstance(seed, int) and not isinstance(seed, bool) else 0
        self._read_parts()
        self._read_options()

    def _check_keys(self) -> None:
        known = [*PARTS, "overwrite", *methods(self._builder)]
        for key in self._content:
            with self._problems.noted():
                if key not in known:
                    raise LearnerError(f"there is no option {key!r}: {near(key, known)}")
        for key in NEEDED:
            with self._problems.noted():
                if self._content.get(key) is None and not (key == "optimizer" and "update" in self._content):
                    raise LearnerError(f"{key} is missing: give it in the config, or as --{key}=...")
        with self._problems.noted():
            if not isinstance(self._content.get("overwrite", False), bool):
                raise LearnerError(f"overwrite is {self._content['overwrite']!r}: it needs true or false")

    def _read_parts(self) -> None:
        said = {key: self._content[key] for key in PARTS if self._content.get(key) is not None}
        for key, how in OBJECTS.items():
            with self._problems.noted():
                if key == "lr" and not isinstance(said.get("lr", ""), str | Mapping):
                    _check_rate(said["lr"])
                elif key == "trainable" and isinstance(said.get(key), str):
                    self._recipes[key] = Recipe(said[key], import_path(said[key], key))
                elif key in said:
                    self._recipes[key] = recipe(said[key], key, names_for(key), **how)
        for key, read in (("train", source), ("valid", sources)):
            with self._problems.noted():
                if key in said:
                    self._sources[key] = read(said[key], key, self._seed)

    def _read_options(self) -> None:
        for name in methods(self._builder):
            if name in self._content:
                # null leaves an option unset, unless it means something to it.
                problems = self._problems if self._content[name] is not None else Problems()
                with problems.noted():
                    self._options.append(
                        option(self._builder, name, self._content[name], name, names_for(name) or None)
                    )

    @property
    def directory(self) -> str:
        """The run directory."""
        return os.path.expanduser(str(self._content.get("directory") or ""))

    @property
    def resumes(self) -> bool:
        """Whether to go on with the run that is in the directory."""
        return bool(self._content.get("resume"))

    def text(self) -> str:
        """The config in full as YAML, without what is about one start of the run.

        Raises:
          LearnerError: unknown keys, missing ones, things that cannot be imported, arguments that do not fit.
        """
        self._problems.raise_all()
        parts: dict[str, Any] = {key: self._content[key] for key in ("directory", "lr")}
        parts |= {key: each.config() for key, each in self._recipes.items()}
        parts |= {key: _of_each(each, Source.config) for key, each in self._sources.items()}
        parts |= {each.name: each.value for each in self._options if each.name not in PROCESS}
        said = {key: parts[key] for key in self._content if key in parts}
        return yaml.safe_dump(said, sort_keys=False, default_flow_style=None, width=100, allow_unicode=True)

    def unset(self) -> list[str]:
        """The keys that the config leaves out."""
        known = (*PARTS, *methods(self._builder))
        return [key for key in known if self._content.get(key, self) is self and key not in PROCESS]

    def data(self, split: str) -> Any:
        """The loader of `train` or `valid`, a dict of loaders, or `None`."""
        return _of_each(self._sources[split], Source.make) if split in self._sources else None

    def learner(self, *, with_data: bool = True) -> Any:
        """The `Learner` that the config describes, with or without its data.

        Raises:
          LearnerError: all that is wrong with the config and with what it is made of; or what the builder refuses.
        """
        problems, made = self._problems, dict[str, Any]()
        builder = None
        with problems.noted():
            builder = self._builder(self.directory or ".", overwrite=self._content.get("overwrite", False))
        for each in self._options if builder is not None else ():
            with problems.noted():
                each.apply(builder)
        for key, part in self._recipes.items():
            with problems.noted():
                made[key] = self._model() if key == "model" else part.make()
        for key in self._sources if with_data else ():
            with problems.noted(f"{key}: "):
                made[key] = self.data(key)
        text = self.text()
        assert builder is not None
        return builder._config_text(HEADER + text).build(**{"lr": self._content["lr"], "optimizer": None, **made})

    def _model(self) -> Any:
        """The model; of a class a function that makes it, so that it is initialised where it is needed."""
        model = self._recipes["model"]
        if isinstance(model.target, type):
            return lambda: model.make(Seeds(self._seed))
        return model.make(Seeds(self._seed))


def _learner_builder() -> type:
    from learner.builder import LearnerBuilder

    return LearnerBuilder


def _of_each(found: Source | dict[str, Source], function: Callable[[Source], Any]) -> Any:
    return {name: function(each) for name, each in found.items()} if isinstance(found, dict) else function(found)


def _defaults(content: Mapping[str, Any]) -> dict[str, Any]:
    left_out = {key: value for key, value in DEFAULTS.items() if key not in content}
    return {key: value for key, value in left_out.items() if key != "num_epochs" or "num_steps" not in content}


def _check_rate(lr: Any) -> None:
    if not isinstance(lr, int | float) or isinstance(lr, bool) or not math.isfinite(lr):
        raise LearnerError(f"lr is {lr!r}: it needs a number or a schedule")
