"""The data of a run, read up to the first batch of each split."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.data.abstract_source import Source
from learner.data.array_dataset import is_data_frame
from learner.data.batch_arrays import BATCHES_IN_CONFIG, batch_arrays
from learner.data.dataset import Dataset
from learner.data.iterable_source import rewinder
from learner.data.label_names import label_names
from learner.data.loader import DataLoader
from learner.data.rounding import rounding_warnings
from learner.data.sharding import ProcessShard
from learner.data.source import source_of
from learner.data.window_overlap import contained_windows
from learner.errors import LearnerError
from learner.runs.file_names import refuse_same_files
from learner.schedules.base import RunLength
from learner.steps.tree_math import rows_of
from learner.strategies.base import Strategy
from learner.training.feed.group import signature_of
from learner.training.options import Options
from learner.util.trees import named_leaves

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The data of a run.

    Attributes:
      train: the train split, or None.
      valid: the validation splits by name: `valid`, or `valid-<name>` for each of several.
      first_batches: the first batch of each split, NumPy arrays.
      programs: the traced step of each split (`ClosedJaxpr`), once checked.
      without_loss: the validation splits whose outputs have no loss, once checked.
      warnings: the warnings of the checks, for the log of the run.
      labels: for each field, the texts that the train split numbers, in the order of their numbers.
    """

    train: Source | None
    valid: dict[str, Source]
    first_batches: dict[str, PyTree]
    programs: dict[str, Any] = dataclasses.field(default_factory=dict)
    without_loss: set[str] = dataclasses.field(default_factory=set)
    warnings: list[str] = dataclasses.field(default_factory=list)
    labels: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

    def rows(self, split: str) -> int:
        """Return the number of rows of a split's first batch over all processes."""
        source = self.source(split)
        return rows_of(self.first_batches[split]) * (source.shares if source.first_part else 1)

    def batch_shapes(self, split: str) -> dict[str, str]:
        """Return dtype and shape of the fields of a split's first batch in this process."""
        leaves = signature_of(self.first_batches[split])[1]
        names = named_leaves(self.first_batches[split])
        return {name: f"{dtype}{list(shape)}" for name, (shape, dtype) in zip(names, leaves, strict=True)}

    def close(self) -> None:
        """Close the sources of all splits."""
        for source in (self.train, *self.valid.values()):
            if source is not None:
                source.close()

    def source(self, split: str) -> Source:
        """Return the data of a split."""
        source = self.train if split == "train" else self.valid[split]
        assert source is not None
        return source


@contextlib.contextmanager
def closed_on_error(data: Source | Inputs) -> Iterator[None]:
    """Close the data if the block raises, as its worker processes would live as long as the traceback."""
    try:
        yield
    except BaseException:
        data.close()
        raise


def read_inputs(options: Options, train: Any, valid: Any, strategy: Strategy) -> Inputs:
    """Read the data of a run and the first batch of each split."""
    if train is None:
        raise LearnerError(
            "there is no training data: give it to fit(train, valid) or to build(..., train=, valid=)",
            code="data-training-missing",
        )
    share = _share(strategy)
    source = source_of(train, "train", batch_size=options.batch_size, shuffle=options.seed, share=share)
    source.will_keep = options.checkpoints is not None
    with closed_on_error(source):
        first = batch_arrays(source.peek(1), "train", source.batchable)
        shuffle = options.seed if options.valid_shuffle else None
        read = read_valid(options, valid, strategy, shuffle, "validation data")
        labels = _labels(train)
    inputs = Inputs(source, read.valid, {"train": first, **read.first_batches}, labels=labels)
    with closed_on_error(inputs):
        if options.valid_shuffle:
            _refuse_unshuffled(inputs)
        if options.valid_batches is not None:
            for split in inputs.valid:
                inputs.source(split).limit(options.valid_batches)
        else:
            inputs.warnings.extend(
                f"each validation leaves out any rows of {split} behind the last full batch: build its loader without "
                "drop_last"
                for split, source in inputs.valid.items()
                if drops_rows(source)
            )
        refuse_endless(inputs)
        inputs.warnings.extend(_rounding_warnings(inputs))
        if valid is not None:
            inputs.warnings.extend([*label_warnings(labels, valid), *_window_warnings(train, valid)])
    return inputs


def drops_rows(source: Source) -> bool:
    """Return True if a loader leaves out the rows behind its last full batch. Without a known length it may."""
    facts = source.fingerprint()
    rows, size = facts.get("rows"), facts.get("batch_size")
    return bool(facts.get("drop_last")) and not (rows and size and rows % size == 0)


def _rounding_warnings(inputs: Inputs) -> list[str]:
    """Return a warning for each field whose numbers JAX rounds, in all rows of data that is placed on the device as a
    whole, and in the first batch of other data.
    """
    warnings: dict[str, str] = {}
    for split, first in inputs.first_batches.items():
        # Views gather their arrays at each access.
        has_floats = any(leaf.dtype == np.float64 for leaf in jax.tree.leaves(first))
        arrays = inputs.source(split).arrays if has_floats else None
        warnings = {**rounding_warnings(first if arrays is None else arrays, split), **warnings}  # of train first
    return list(warnings.values())


def _window_warnings(train: Any, valid: Any) -> list[str]:
    """Return a warning for each validation split whose windows are made of values of training windows."""
    warnings = []
    for split, each in _splits(valid).items():
        if count := contained_windows(_dataset(train), _dataset(each)):
            warnings.append(
                f"{count} of {len(_dataset(each))} windows of {split} consist of values that windows of train also "
                "contain, so its metrics are too good: split the series by time before cutting it into windows. "
                "Ignore this warning if the split is meant to show the fit to the training data"
            )
    return warnings


def _refuse_unshuffled(inputs: Inputs) -> None:
    for split, source in inputs.valid.items():
        if source.fingerprint()["order"] != "shuffled":
            raise LearnerError(
                f"valid_batches(shuffle=True) draws rows, and the {split} data comes in batches: pass its dataset or "
                "arrays, with with_batch_size(n), or a loader of DataLoaderBuilder().shuffle(seed)",
                code="data-validation-not-shuffled",
                split=split,
            )


def refuse_endless(inputs: Inputs) -> None:
    """Raise `LearnerError` if a validation is known to be endless."""
    for split, source in inputs.valid.items():
        if source.endless:
            raise LearnerError(
                f"the {split} data has no end, and a validation reads it to its end: limit it by valid_batches(n) of "
                "the builder, or pass a function that returns itertools.islice(data, n)",
                code="data-validation-endless",
                split=split,
            )


def run_length(options: Options, batches: int | None) -> RunLength:
    """Return the length of a run, as far as it is known.

    Args:
      options: the options of the builder.
      batches: the number of batches in an epoch, or `None` if the data does not declare it.
    """
    epoch = None if batches is None else -(-batches // options.accumulate)
    length = RunLength(None, epoch, changes=options.epoch_changes)
    unknown = epoch is None or options.num_epochs is None
    by_epochs = None if unknown else length.in_steps(options.num_epochs, "epochs", "num_epochs")
    ends = [steps for steps in (by_epochs, options.num_steps) if steps is not None]
    return dataclasses.replace(length, steps=min(ends, default=None))


def _share(strategy: Strategy | None) -> ProcessShard | None:
    return None if strategy is None or strategy.share is None else ProcessShard(*strategy.share)


def read_valid(
    options: Options, valid: Any, strategy: Strategy | None, shuffle: int | None = None, what: str = "data"
) -> Inputs:
    """Read only validation data; without a strategy, each process gets all of it.

    Args:
      options: the options of the builder.
      valid: the data.
      strategy: the strategy of the run.
      shuffle: the seed of the order of datasets, or None.
      what: the name of the data, for errors.
    """
    sources = valid_sources(options, valid, _share(strategy), shuffle, what)
    inputs = Inputs(None, sources, {})
    with closed_on_error(inputs):
        for split, source in sources.items():
            inputs.first_batches[split] = batch_arrays(source.peek(1), split, source.batchable)
    return inputs


def data_rewinder(train: Any, valid: Any = None) -> Callable[[], None]:
    """Return a function that puts the data of a run back into its present state, as before it was read."""
    rewinders = [rewinder(data) for data in (train, *_splits(valid).values())]

    def rewind() -> None:
        for each in rewinders:
            each()

    return rewind


@contextlib.contextmanager
def rewound(train: Any, valid: Any = None) -> Iterator[None]:
    """Put the data back into its present state at the end of the block, so that reading it changes nothing."""
    rewind = data_rewinder(train, valid)
    try:
        yield
    finally:
        rewind()


def has_several(valid: Any) -> bool:
    """Return True for a dict of loaders by name. A dict of arrays is a single dataset."""
    return isinstance(valid, dict) and not any(map(_is_field, valid.values()))


def valid_sources(
    options: Options, valid: Any, share: ProcessShard | None, shuffle: int | None = None, what: str = "validation data"
) -> dict[str, Source]:
    """Return the validation splits by name. `what`: the name of the data, for errors."""
    if valid is None:
        return {}
    named = {"valid": valid}
    if isinstance(valid, dict):
        arrays = [_is_field(value) for value in valid.values()]
        scalars = [str(name) for name, value in valid.items() if np.isscalar(value) or getattr(value, "ndim", 1) == 0]
        if any(arrays) and scalars:
            raise LearnerError(
                f"the data is a dict whose {', '.join(scalars)} has no axis of rows; each field needs one, [rows, "
                "...], even for a single row: x[None]",
                code="data-validation-type",
            )
        names = ", ".join(map(str, valid)) or "nothing"
        if not valid or (any(arrays) and not _is_arrays(valid)):
            raise LearnerError(
                f"the {what} is a dict with {names}; it needs a loader, or a dict of several loaders by name",
                code="data-validation-type",
            )
        if any(arrays) and options.batch_size is None:
            raise LearnerError(
                f"the {what} is a dict of arrays ({names}), and there is no batch size: set with_batch_size(n) of the "
                f"builder, or pass DataLoaderBuilder().batch_size(32).build(data); {BATCHES_IN_CONFIG}",
                code="data-validation-type",
            )
        if has_several(valid):
            named = {f"valid-{name}": loader for name, loader in valid.items()}
            refuse_same_files(list(named))
    if isinstance(valid, list | tuple) and any(map(_is_loader, valid)):
        raise LearnerError(
            f"the {what} is a {type(valid).__name__} of loaders; give several a name each, as in "
            'fit(train, {"clean": a, "noisy": b}), and pass a single one itself',
            code="data-validation-type",
        )
    size = options.batch_size
    return {
        split: source_of(data, split, batch_size=size, shuffle=shuffle, share=share) for split, data in named.items()
    }


def label_warnings(known: Mapping[str, Sequence[str]], data: Any, name: str = "valid") -> list[str]:
    """Return a warning for each field whose texts have other numbers than in the train split. Fields without common
    texts, such as file names, are not labels.

    Args:
      known: the `labels` of the train split.
      data: a split, or a dict of several.
      name: the name of the split.

    >>> from learner.data.sources.table_arrays import Table
    >>> valid = Table({"kind": np.array([0, 1], np.int32)}, {"kind": ("cat", "eel")})
    >>> label_warnings({"kind": ["cat", "dog"]}, valid)[0].partition(":")[0]
    "'kind' numbers its texts differently in valid than in train"
    """
    warnings = []
    for split, each in _splits(data, name).items():
        for field, names in _labels(each).items():
            numbered = zip(known.get(field, ()), names, strict=False)
            number, pair = next(((i, pair) for i, pair in enumerate(numbered) if pair[0] != pair[1]), (0, None))
            if pair is not None and not set(known[field]).isdisjoint(names):
                warnings.append(
                    f"{field!r} numbers its texts differently in {split} than in train: {number} is {pair[0]!r} in "
                    f"train and {pair[1]!r} in {split}, so the model confuses them. Give both the same list, "
                    f"labels={{{field!r}: [...]}}, or folders of images the same names. Ignore this "
                    "warning if a function of map renumbers them"
                )
    return warnings


def _splits(data: Any, name: str = "valid") -> dict[str, Any]:
    """Return the validation data of each split."""
    return {f"{name}-{part}": each for part, each in data.items()} if has_several(data) else {name: data}


def _labels(data: Any) -> Mapping[str, Sequence[str]]:
    return label_names(_dataset(data), behind_functions=True)  # for warnings alone


def _dataset(data: Any) -> Any:
    """Return the dataset of a loader, and other data unchanged."""
    return data.dataset if isinstance(data, DataLoader) else data


def _is_arrays(data: PyTree) -> bool:
    return all(map(_is_field, jax.tree.leaves(data)))


def _is_loader(value: Any) -> bool:
    """Return True for an iterable of batches or a dataset, which cannot be an array of a batch."""
    if isinstance(value, Dataset):
        return True
    has_rows = hasattr(value, "shape") or isinstance(value, Mapping | Sequence)  # also texts
    return hasattr(value, "__iter__") and jax.tree_util.all_leaves([value]) and not (has_rows or _is_field(value))


def _is_field(value: Any) -> bool:
    """Return True for an array, including those of other libraries: a tensor, or the column of a data frame."""
    is_table = is_data_frame(value) or hasattr(value, "column_names")  # such as one of pyarrow
    return hasattr(value, "__array__") and not is_table


def unused_batch_size(options: Options, inputs: Inputs) -> str | None:
    """Return a warning if `with_batch_size` differs from the batch size of the training loader, and no validation split
    has it either.
    """
    facts = inputs.source("train").fingerprint()
    size = facts["batch_size"] if facts["kind"] == "loader" else inputs.rows("train")
    # A dataset of validation gets it; the size of another iterable is not known before its end.
    others = [source.fingerprint() for source in inputs.valid.values()]
    used = [valid["batch_size"] for valid in others if valid["kind"] == "loader"]
    if options.batch_size in (None, size, *used):
        return None
    return (
        f"with_batch_size({options.batch_size}) is not used for the train data, which comes in batches of {size} "
        "already: give its loader that size, or pass the dataset in the loader's place"
    )
