"""The rows that `learner predict` and `learner evaluate --data` read: a file of arrays, a YAML file that describes the
data, or a file or directory like the one that the run's own data is read from.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from learner.cli.configs.overrides import read_yaml
from learner.cli.configs.sources import source
from learner.config.mappings import SUFFIXES
from learner.data.dataset import Dataset
from learner.data.input_files import as_path, present, reader_of
from learner.data.loader import DataLoaderBuilder
from learner.data.npz import read_npz
from learner.errors import LearnerError
from learner.runs.run_reader import RunReader
from learner.training.files.directory import holds_run
from learner.util.text import join_names

ARRAYS = ".npz"
BATCH_SIZE = 256
FOLDER = "ImageFolder"
OF_ROWS = "map"
"""The view that changes rows. Others select rows, and all rows of the file are wanted."""
OF_SEVERAL_ROWS = ("concat", "windows")

Data = Any
"""An iterable of batches, or a function that returns one."""


def read_rows(path: str, directory: str, content: Mapping[str, Any], needs_targets: bool) -> tuple[Data, list[str]]:
    """Return all rows of a file or directory, in order, and the fields of the run's data that the file lacks.

    Args:
      path: the path of the file or directory.
      directory: the directory of the run, which has recorded the texts of labels that its config does not list.
      content: the config of the run.
      needs_targets: refuse a file that lacks fields of the run's data.

    Raises:
      LearnerError: the file is missing or malformed, or is unlike the run's data.
    """
    file, lacking = as_path(path, "DATA"), list[str]()
    if not file.is_dir():
        present(path, "DATA")
    if file.suffix == ARRAYS:
        data = read_npz(file)
    elif file.suffix in SUFFIXES:
        data = _described(path, read_yaml(file))
    else:
        like = _like_own(path, directory, content)
        try:
            data = _described(path, like)
        except LearnerError as error:
            lacking = _lacking(error)
            if needs_targets or not lacking:
                raise
            like = _without(like, lacking)
            data = _described(path, like)
        _refuse_unknown_labels(path, like["dataset"]["init_args"].get("labels") or {})
    is_rows = isinstance(data, Mapping | Dataset)
    return (DataLoaderBuilder().batch_size(BATCH_SIZE).build(data) if is_rows else data), lacking


def _described(path: str, content: Mapping[str, Any]) -> Any:
    if "dataset" not in content and not {"train", "valid"}.isdisjoint(content):
        raise LearnerError(
            f"{path} is the config of a run; it needs the content of `valid` alone, such as "
            "dataset: {class_path: ..., init_args: {...}}",
            code="cli-data-config",
            path=path,
        )
    return source({"batch_size": BATCH_SIZE, **content} if "dataset" in content else content, "DATA", 0).make()


def _like_own(path: str, directory: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of data that is read from a file or directory as the validation data of the run is, or
    else its training data.
    """
    is_directory = as_path(path, "DATA").is_dir()
    key, reader = ("directory", None) if is_directory else ("path", reader_of(path))
    for own in _sources(content):
        dataset = own["dataset"]
        arguments = dataset.get("init_args") or {} if isinstance(dataset, Mapping) else {}
        own_path = arguments.get(key)
        views = own.get("views") or []
        views = [
            each if isinstance(each, Mapping) else {each: {}}
            for each in (views if isinstance(views, list) else [views])
        ]
        if not isinstance(own_path, str) or (not is_directory and (reader is None or reader_of(own_path) != reader)):
            continue
        if any(name in OF_SEVERAL_ROWS for view in views for name in view):
            continue
        arguments = {**arguments, key: path}
        if str(dataset.get("class_path")).rpartition(".")[2] == FOLDER and arguments.get("classes") is None:
            arguments["classes"] = _recorded_classes(path, directory)
        if labels := arguments.get("labels"):
            arguments["labels"] = _with_recorded(labels, directory)
        like: dict[str, Any] = {"dataset": {**dataset, "init_args": arguments}}
        like["views"] = [view for view in views if OF_ROWS in view]
        return like | ({"batcher": own["batcher"]} if own.get("batcher") is not None else {})
    described = "" if reader is None else f": dataset: {{class_path: {reader}, init_args: {{path: {path}}}}}"
    raise LearnerError(
        f"{path} is neither an {ARRAYS} file nor like the data of the run's config; a YAML file names other data, as "
        f"`valid` in a config does{described}",
        code="cli-data-file",
        path=path,
    )


def _sources(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the descriptions of the data of a config that have a dataset, validation data first."""
    for split in ("valid", "train"):
        own = content.get(split)
        if not isinstance(own, Mapping):
            continue
        several = own.values() if {"dataset", "class_path"}.isdisjoint(own) else [own]
        for each in several:
            if isinstance(each, Mapping) and ("dataset" in each or "class_path" in each):
                yield each if "dataset" in each else {"dataset": each}


def _with_recorded(labels: Any, directory: str) -> dict[str, Any]:
    """Return labels by field with the texts that the run has recorded for those without."""
    texts_of = dict.fromkeys(labels) if isinstance(labels, list) else labels
    recorded = RunReader(directory).fingerprint if holds_run(Path(directory)) else {}
    return {
        field: recorded.get(f"data.train.labels.{field}") if texts is None else texts
        for field, texts in texts_of.items()
    }


def _recorded_classes(path: str, directory: str) -> Any:
    """Return the classes of a folder of images that the run has recorded, as another folder may lack some."""
    labels = _with_recorded(["label"], directory)
    _refuse_unknown_labels(path, labels)
    return labels["label"]


def _refuse_unknown_labels(path: str, labels: Mapping[str, Any]) -> None:
    """Raise `LearnerError` for labels without texts: each file numbers its own texts, so that a number would stand for
    another text than in training.
    """
    if unknown := [field for field, texts in labels.items() if texts is None]:
        raise LearnerError(
            f"the run has not recorded the labels of {join_names(unknown, 8)}, and each file would number its own "
            f"texts: list them, in the order of training, in a YAML file that describes {path}",
            code="cli-data-labels",
            path=path,
            names=unknown,
        )


def _lacking(error: BaseException | None) -> list[str]:
    """Return the fields that a table lacks, if this is all that is wrong."""
    while isinstance(error, LearnerError):
        if names := error.fields.get("lacking"):
            return list(names)
        error = error.__cause__
    return []


def _without(content: dict[str, Any], lacking: list[str]) -> dict[str, Any]:
    """Return a description of data without some fields."""
    dataset, options = content["dataset"], ("fields", "labels", "dtypes", "unknown")
    arguments = {
        option: {name: value for name, value in given.items() if name not in lacking}
        if option in options and isinstance(given, Mapping)
        else [name for name in given if name not in lacking]
        if option in options and isinstance(given, list)
        else given
        for option, given in dataset["init_args"].items()
    }
    return {**content, "dataset": {**dataset, "init_args": arguments}}
