"""Data from a config: what `train` and `valid` say.

    train:
      dataset: {class_path: learner.data.digits, init_args: {split: train}}
      batch_size: 32
      shuffle: true

The keys beside `dataset` are the methods of `DataLoaderBuilder`, and `batcher`. Without any of them the data are passed
on as they are; so is a loader of one's own, `train: {class_path: mymodule.make_loader}`. `valid` may be a mapping of
several.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from learner.cli.options import Option, methods, option
from learner.cli.recipes import Recipe, recipe
from learner.errors import LearnerError, near


@dataclasses.dataclass(frozen=True)
class Source:
    """Where batches come from.

    Attributes:
      data: a dataset, or anything else that batches can be taken from.
      batcher: what makes a batch of items, if it is not the usual one.
      options: of the loader.
      whole: whether `data` is all that the config says.
    """

    data: Recipe
    batcher: Recipe | None = None
    options: tuple[Option, ...] = ()
    whole: bool = False

    def make(self) -> Any:
        """The loader, or the data where there is nothing to load them with."""
        from learner.data import DataLoaderBuilder

        data = self.data.make()
        if self.batcher is None and not self.options:
            return data
        builder = DataLoaderBuilder(*([self.batcher.make()] if self.batcher else []))
        for each in self.options:
            each.apply(builder)
        return builder.build(data)

    def config(self) -> Any:
        """The source as a config says it in full."""
        if self.whole:
            return self.data.config()
        batcher = {"batcher": self.batcher.config()} if self.batcher else {}
        return {"dataset": self.data.config(), **batcher, **{each.name: each.value for each in self.options}}


def sources(value: Any, key: str, seed: int) -> Source | dict[str, Source]:
    """What `valid` says: one source, or several by name.

    Raises:
      LearnerError: see `source`.
    """
    several = isinstance(value, Mapping) and value and all(isinstance(each, Mapping) for each in value.values())
    if several and not {"dataset", "class_path"} & set(value):
        return {name: source(each, f"{key}.{name}", seed) for name, each in value.items()}
    return source(value, key, seed)


def source(value: Any, key: str, seed: int) -> Source:
    """A source of batches.

    Args:
      value: an import path, a mapping of `class_path` and `init_args`, or one with `dataset` and the loader's options.
      key: where it stands in the config, for error messages.
      seed: for `shuffle: true`.

    Raises:
      LearnerError: there is no such thing, or its options are wrong.
    """
    from learner.data import DataLoaderBuilder

    if not isinstance(value, Mapping) or "class_path" in value:
        return Source(recipe(value, key), whole=True)
    known = methods(DataLoaderBuilder)
    for name in value:
        if name not in known and name not in ("dataset", "batcher"):
            raise LearnerError(f"{key} has no {name!r}: {near(name, ['dataset', 'batcher', *known])}")
    if "dataset" not in value:
        raise LearnerError(
            f"{key} has no 'dataset'; it needs the import path of a dataset, or of a loader in its place"
        )
    batcher = value.get("batcher")
    said = [name for name in known if name in value and not (name == "shuffle" and value[name] is False)]
    return Source(
        recipe(value["dataset"], f"{key}.dataset"),
        recipe(batcher, f"{key}.batcher", alone=True, partial=True) if batcher is not None else None,
        tuple(_loader_option(name, value[name], f"{key}.{name}", seed) for name in said),
    )


def _loader_option(name: str, value: Any, key: str, seed: int) -> Option:
    """`shuffle: true` stays so in the config, and follows its seed."""
    from learner.data import DataLoaderBuilder

    if name == "shuffle" and value is True:
        return dataclasses.replace(option(DataLoaderBuilder, name, seed, key), value=True)
    return option(DataLoaderBuilder, name, value, key)
