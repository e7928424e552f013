"""The data of a config: `train` and `valid`.

    train:
      dataset: {class_path: learner.data.digits, init_args: {split: train}}
      batch_size: 32
      shuffle: true

The other keys are the methods of `DataLoaderBuilder`, `batcher`, and `views`: methods of `Dataset` that are called one
after another. Without any of them, the data is used unchanged; so is a custom loader, `train: {class_path:
mymodule.make_loader}`. `valid` may be a mapping of several sources.

    train:
      dataset: {class_path: digits, init_args: {split: train}}
      views:
        - part: {which: 0, fractions: [0.9, 0.1]}
        - slice: {stop: 500}
        - map: mymodule.normalise
      batcher: {class_path: Pad, init_args: {multiple: 32}}
      batch_size: 32

Names in `learner.data` need no import path.
"""

import dataclasses
import glob
import os
from collections.abc import Mapping
from typing import Any

from learner.cli.configs.builder_options import Option, methods, option
from learner.cli.configs.importing import exports
from learner.cli.configs.problems import Problems, at_path, read_each
from learner.cli.configs.recipes import Recipe, recipe
from learner.config.base import is_config
from learner.data.dataset import Dataset, View, inner_of, view
from learner.data.input_files import as_path, present, reader_of, refuse_path
from learner.data.loader import DataLoaderBuilder
from learner.errors import LearnerError, near

PARTS = ("dataset", "views", "batcher")
"""Keys other than the methods of `DataLoaderBuilder`."""

VIEWS = ("map", "augment", "filter", "select", "slice", "shuffle", "part", "fold", "sample", "concat", "windows")
"""Methods of `Dataset` that return a single dataset."""

PARTS_OF = {
    "split": "part is one part of a split, {part: {which: 0, fractions: [0.8, 0.2], seed: 0}}",
    "k_fold": "fold is one side of a pair, {fold: {which: 0, k: 5, part: train, seed: 0}}",
}
"""Views in place of methods that return several datasets."""


@dataclasses.dataclass(frozen=True)
class DataSource:
    """A description of data and of the loader that makes batches of it.

    Attributes:
      key: the path in the config, for error messages.
      data: a dataset, or any other source of batches.
      batcher: the function that makes a batch of items, if not the default.
      options: the options of the loader.
      views: the views of the dataset, in order.
      is_bare: True if the config has only `data`.
    """

    key: str
    data: Recipe
    batcher: Recipe | None = None
    options: tuple[Option, ...] = ()
    views: tuple[Option, ...] = ()
    is_bare: bool = False

    def make(self) -> Any:
        """Return the loader, or the data itself if it needs no loader.

        Raises:
          LearnerError: an error of the dataset or loader, with its path in the config.
        """
        with at_path(self.key if self.is_bare else f"{self.key}.dataset"):
            data = self.data.make()
            if data is None:
                raise LearnerError(
                    f"{self.data.path} returned None: it needs a dataset, or an iterable of batches",
                    code="config-data-none",
                    path=self.data.path,
                )
        for number, each in enumerate(self.views):
            with at_path(f"{self.key}.views.{number}"):
                data = _apply_view(each, data, f"{self.key}.views.{number}")
        if self.batcher is None and not self.options:
            return data
        with at_path(f"{self.key}.batcher"):
            builder = DataLoaderBuilder(*([self.batcher.make()] if self.batcher else []))
        self._configure(builder)
        with at_path(self.key):
            return builder.build(data)

    def check_options(self) -> None:
        """Raise `LearnerError` for options that the loader refuses. Nothing that the config names is called."""
        self._configure(DataLoaderBuilder())

    def check_unread(self) -> None:
        """Raise `LearnerError` for a file that is missing, and for options that the loader refuses."""
        problems = Problems()
        with problems.collect():
            _refuse_missing_file(self.data, self.key if self.is_bare else f"{self.key}.dataset")
        with problems.collect():
            self.check_options()
        problems.raise_all()

    def _configure(self, builder: Any) -> None:
        problems = Problems()
        for each in self.options:
            with problems.collect(), at_path(f"{self.key}.{each.name}"):
                each.apply(builder)
        problems.raise_all()

    def config(self) -> Any:
        """Return the complete form of the source in a config."""
        if self.is_bare:
            return self.data.config()
        values = {"dataset": self.data.config()}
        if self.views:
            values["views"] = [{each.name: each.value} for each in self.views]
        if self.batcher:
            values["batcher"] = self.batcher.config()
        return values | {each.name: each.value for each in self.options}


def sources(value: Any, key: str, seed: int) -> DataSource | dict[str, DataSource]:
    """Return the validation data of a config: one source, or several by name.

    Raises:
      LearnerError: see `source`.
    """
    several = isinstance(value, Mapping) and value and all(isinstance(each, Mapping) for each in value.values())
    if several and not {"dataset", "class_path"} & set(value):
        return read_each(value, lambda name, each: source(each, f"{key}.{name}", seed))
    return source(value, key, seed)


def source(value: Any, key: str, seed: int) -> DataSource:
    """Return a source of batches.

    Args:
      value: an import path, a mapping of `class_path` and `init_args`, or a mapping with `dataset` and the loader's
        options.
      key: the path in the config, for error messages.
      seed: the seed for `shuffle: true`.

    Raises:
      LearnerError: the object does not exist, or its options are wrong; one error lists all problems.
    """
    known = methods(DataLoaderBuilder)
    if not isinstance(value, Mapping) or "class_path" in value:
        _refuse_loader_options(value, key, key, [*PARTS, *known])
        return DataSource(key, _data(value, key), is_bare=True)
    problems, found = Problems(order=value), dict[str, Recipe]()
    for name in value:
        with problems.collect(key=name):
            if name not in known and name not in PARTS:
                raise LearnerError(
                    f"{key} has no {name!r}: {near(str(name), [*PARTS, *known])}",
                    code="config-key-unknown",
                    key=key,
                    name=name,
                )
    with problems.collect(key="dataset"):
        if "dataset" not in value:
            raise LearnerError(
                f"{key} has no 'dataset'; it needs the import path of a dataset, or of a loader in its place",
                code="config-dataset-missing",
                key=key,
            )
        _refuse_loader_options(value["dataset"], f"{key}.dataset", key, ["views", "batcher", *known])
        found["dataset"] = _data(value["dataset"], f"{key}.dataset")
    with problems.collect(key="batcher"):
        if (batcher := value.get("batcher")) is not None:
            found["batcher"] = recipe(batcher, f"{key}.batcher", names(), alone=True, partial=True)
    options, views = [], []
    for name in [name for name in known if name in value and not (name == "shuffle" and value[name] is False)]:
        with problems.collect(key=name):
            options.append(_loader_option(name, value[name], f"{key}.{name}", seed))
    steps = value.get("views")
    for number, each in enumerate(() if steps is None else steps if isinstance(steps, list) else [steps]):
        with problems.collect(key="views"):
            views.append(_view(each, f"{key}.views.{number}"))
    if problems and "dataset" in found:
        with problems.collect(key="dataset"):
            _refuse_missing_file(found["dataset"], f"{key}.dataset")
    problems.raise_all()
    return DataSource(key, found["dataset"], found.get("batcher"), tuple(options), tuple(views))


def _refuse_loader_options(value: Any, place: str, key: str, known: list[str]) -> None:
    """Raise `LearnerError` for options of a loader in the mapping of the dataset itself, at `place`."""
    problems = Problems()
    for name in value if isinstance(value, Mapping) else ():
        with problems.collect():
            if name in known:
                raise LearnerError(
                    f"{place} has {name!r} beside class_path: an argument belongs under init_args, and an option of "
                    f"the loader beside the dataset, as in {key}: {{dataset: {{class_path: ...}}, {name}: ...}}",
                    code="config-argument-beside-class-path",
                    key=key,
                    name=name,
                )
    problems.raise_all()


def names() -> dict[str, str]:
    """Return the short names of the datasets and batchers of `learner.data`, which `train` and `valid` accept."""
    return exports("learner.data", None)


def _data(value: Any, key: str) -> Recipe:
    try:
        found = recipe(value, key, names())
    except LearnerError as error:
        no_name = error.code in ("config-module-missing", "config-path-malformed")
        # A file test.npz may exist although Python's module `test` has no `npz`.
        if (no_name or os.path.exists(str(value))) and reader_of(str(value)):
            refuse_path(str(value), key)
        raise
    if is_config(found.target) or is_config(type(found.target)):
        raise LearnerError(
            f"{key} is {found.path}, a config, which has settings but no data. Name a class or a function that takes "
            "it (init_args: {config: ...})",
            code="config-dataset-is-config",
            key=key,
        )
    return found


def _refuse_missing_file(data: Recipe, key: str) -> None:
    """Raise the same error for a missing file as the source that reads it, without reading anything."""
    path = data.given.get("path")
    if data.is_ours and isinstance(path, str) and reader_of(path) is not None and not glob.has_magic(path):
        with at_path(key):
            if not as_path(path, key).is_dir():  # of arrays
                present(path, data.target.__name__)


def _view(value: Any, path: str) -> Option:
    if isinstance(value, str):
        value = {value: {}}
    if not isinstance(value, Mapping) or len(value) != 1:
        raise LearnerError(
            f"{path} is {value!r}: it needs one view, such as {{slice: {{stop: 100}}}}",
            code="config-view-malformed",
            path=path,
        )
    ((name, arguments),) = value.items()
    if name not in VIEWS:
        raise LearnerError(
            f"{path}: there is no view {name!r}: {PARTS_OF.get(name) or near(str(name), VIEWS)}",
            code="config-view-unknown",
            path=path,
            name=name,
        )
    return option(Dataset, name, arguments, f"{path}.{name}", names() if name == "concat" else None)


def _apply_view(method: Option, data: Any, path: str) -> Any:
    """Return a view of the data with its path in the config, for errors that its function raises later."""
    below = view(data)
    result = inner_view = method.apply(below)
    while isinstance(inner_view, View) and inner_view is not below:
        inner_view.place, inner_view = path, inner_of(inner_view)[0]
    return result


def _loader_option(name: str, value: Any, key: str, seed: int) -> Option:
    """Return an option of the loader. The config keeps `shuffle: true`, which uses the config's seed."""
    if name == "shuffle" and value is True:
        return dataclasses.replace(option(DataLoaderBuilder, name, seed, key), value=True)
    if name == "shuffle" and isinstance(value, str):  # in YAML 1.2 `yes` is a text
        raise LearnerError(
            f"{key} is {value!r}: it needs true or false, or a whole number as the seed",
            code="config-arguments-mismatch",
            key=key,
        )
    return option(DataLoaderBuilder, name, value, key)
