"""Reading and checking the inputs of `fit` before anything is compiled or written."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.data.batch_arrays import batch_arrays
from learner.data.plan import ProcessShard
from learner.data.source import Source, source_of
from learner.errors import LearnerError, Problem, near, one_error
from learner.metrics.monitor import Monitor
from learner.runs.metric_logs import refuse_same_files
from learner.schedules import ReduceOnPlateau, RunLength
from learner.steps.optimizer import check_replicas
from learner.steps.state import TrainState
from learner.steps.step import Step
from learner.steps.tree_math import rows_of
from learner.strategies import Strategy
from learner.training import directory
from learner.training.feed.group import signature_of
from learner.training.options import Options
from learner.training.step_checks import trace_train, trace_valid
from learner.util.trees import named_leaves

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The data of a run.

    Attributes:
      train: the train split, if there is one.
      valid: the validation splits by name: `valid`, or `valid-<name>` for each of several.
      firsts: the first batch of each split, NumPy arrays.
      programs: the traced step of each split (`ClosedJaxpr`), once they are checked.
    """

    train: Source | None
    valid: dict[str, Source]
    first_batches: dict[str, PyTree]
    programs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def rows(self, split: str) -> int:
        """Return the number of rows of a split's first batch over all processes."""
        source = self.source(split)
        return rows_of(self.first_batches[split]) * (source.shares if source.first_part else 1)

    def batch_shapes(self, split: str) -> dict[str, str]:
        """Return dtype and shape of the fields of a split's first batch in this process."""
        leaves = signature_of(self.first_batches[split])[1]
        names = named_leaves(self.first_batches[split])
        return {name: f"{dtype}{list(shape)}" for name, (shape, dtype) in zip(names, leaves, strict=True)}

    def source(self, split: str) -> Source:
        """Return the data of a split."""
        source = self.train if split == "train" else self.valid[split]
        assert source is not None
        return source


def read_inputs(options: Options, train: Any, valid: Any, strategy: Strategy) -> Inputs:
    """Read the data of a run and the first batch of each split."""
    if train is None:
        raise LearnerError(
            "there is no training data: give it to fit(train, valid) or to build(..., train=, valid=)",
            code="data-training-missing",
        )
    share = _share(strategy)
    source = source_of(train, "train", batch_size=options.batch_size, shuffle=options.seed, share=share)
    first = batch_arrays(source.peek(1), "train")
    inputs = read_valid(options, valid, strategy)
    if options.valid_batches is not None:
        for split in inputs.valid:
            inputs.source(split).limit(options.valid_batches)
    refuse_endless(inputs)
    return Inputs(source, inputs.valid, {"train": first, **inputs.first_batches})


def refuse_endless(inputs: Inputs) -> None:
    """Raise `LearnerError` if a validation is known never to end."""
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
      options: of the builder.
      batches: of an epoch; `None`: the data does not say it.
    """
    epoch = None if batches is None else -(-batches // options.accumulate)
    by_epochs = None if epoch is None or options.num_epochs is None else epoch * options.num_epochs
    ends = [steps for steps in (by_epochs, options.num_steps) if steps is not None]
    return RunLength(min(ends, default=None), epoch)


def _share(strategy: Strategy | None) -> ProcessShard | None:
    return None if strategy is None or strategy.share is None else ProcessShard(*strategy.share)


def read_valid(options: Options, valid: Any, strategy: Strategy | None) -> Inputs:
    """Read validation data only; without a strategy, each process gets all of it."""
    sources = valid_sources(options, valid, _share(strategy))
    return Inputs(None, sources, {split: batch_arrays(source.peek(1), split) for split, source in sources.items()})


def valid_sources(options: Options, valid: Any, share: ProcessShard | None) -> dict[str, Source]:
    """Return the validation splits by name."""
    if valid is None:
        return {}
    named = {"valid": valid}
    if isinstance(valid, dict):
        arrays = [isinstance(value, np.ndarray | jax.Array) for value in valid.values()]
        if not valid or (any(arrays) and (options.batch_size is None or not _is_arrays(valid))):
            raise LearnerError(
                f"the validation data is a dict with {', '.join(map(str, valid)) or 'nothing'}; it needs a "
                "loader, or a dict of "
                "several loaders by name. Arrays become a loader by "
                "DataLoaderBuilder().batch_size(32).build(ArrayDataset({...})), or by with_batch_size(n)",
                code="data-validation-type",
            )
        if not any(arrays):  # otherwise they are the fields of one dataset
            named = {f"valid-{name}": loader for name, loader in valid.items()}
            refuse_same_files(list(named))
    return {split: source_of(data, split, batch_size=options.batch_size, share=share) for split, data in named.items()}


def _is_arrays(data: PyTree) -> bool:
    return all(isinstance(leaf, np.ndarray | jax.Array) for leaf in jax.tree.leaves(data))


def unused_batch_size(options: Options, inputs: Inputs) -> str | None:
    """Return a warning if `with_batch_size` is another size than that of the loader given as training data."""
    facts = inputs.source("train").fingerprint()
    size = facts["batch_size"] if facts["kind"] == "loader" else inputs.rows("train")
    if options.batch_size in (None, size):
        return None
    return (
        f"with_batch_size({options.batch_size}) is not used for the train data, which comes in batches of {size} "
        "already: give its loader that size, or pass the dataset in the loader's place"
    )


def checked_step(
    options: Options,
    step: Step,
    state: TrainState,
    inputs: Inputs,
    plateau: ReduceOnPlateau | None,
    strategy: Strategy,
    known: Sequence[str] = (),
) -> Step:
    """Trace the steps on the first batches and report all problems in one error.

    Args:
      known: what is known to be wrong already.

    Returns:
      The step, which now knows whether it computes its own gradients. `inputs` gets the traced steps.
    """
    problems = [*known, *strategy.problems(state)]
    if strategy.axis is not None:
        problems += check_replicas(step.optimizer, state.params)
    if step.train is None and step.update is None:
        problems.append(no_step("train_step"))
    else:
        with _collecting(problems):
            new, own_grads, inputs.programs["train"] = trace_train(step, state, inputs.first_batches["train"])
            problems += new
            step = dataclasses.replace(step, own_grads=own_grads)
    if inputs.valid and step.valid is None:
        problems.append(f"there is validation data, but {no_step('valid_step')}")
    elif inputs.valid:
        for split in inputs.valid:
            with _collecting(problems):
                new, inputs.programs[split] = trace_valid(step, state, inputs.first_batches[split], split)
                problems += new
    problems += set_directions(options, list(inputs.valid), plateau)
    problems += read_too_often(options, inputs)
    for path in {options.directory, options.checkpoint_place}:
        if isinstance(path, Path) and (problem := directory.problem_with(path)):
            problems.append(problem)
    if problems:
        raise one_error(list(dict.fromkeys(problems)), code="learner-untrainable")
    return step


@contextlib.contextmanager
def _collecting(problems: list[str]) -> Iterator[None]:
    """Append an error that is raised in the body to the problems, so that further checks run."""
    try:
        yield
    except LearnerError as error:
        problems.append(Problem(error, code=error.code, **error.fields))


def read_too_often(options: Options, inputs: Inputs) -> list[str]:
    """Return a problem for each split that can be read only once but is needed in several epochs."""
    if options.num_steps is not None or options.num_epochs in (None, 1):
        return []
    splits = [split for split in ("train", *inputs.valid) if not inputs.source(split).repeats]
    return [
        f"the {split} data is an iterator (or generator) that can be read once, but num_epochs is "
        f"{options.num_epochs}: pass a loader, a list, or the generator function itself rather than its result"
        for split in splits
    ]


def no_step(name: str) -> str:
    """Return the message for a missing step."""
    return (
        f"there is no {name}: give the model a method {name}(self, batch), or pass build(..., {name}=fn) "
        "with fn(model, batch)"
    )


def default_monitor(valid_splits: Sequence[str]) -> str:
    """Return the default metric that selects the best checkpoint."""
    return f"{valid_splits[0]}/Loss" if valid_splits else "train/Loss"


def set_directions(options: Options, valid_splits: list[str], plateau: ReduceOnPlateau | None) -> list[str]:
    """Set the direction of each monitor to that of its metric, and return the problems of monitors without one."""
    monitors: list[tuple[str, Monitor]] = [("early stopping", stopping.monitor) for stopping in options.early_stopping]
    if plateau is not None:
        monitors.append(("ReduceOnPlateau", plateau.monitor))
    problems = []
    for what, monitor in monitors:
        direction, problem = direction_of(options, valid_splits, monitor.monitor, monitor.mode)
        monitor.mode = monitor.mode or direction
        problems += [f"{what} monitors {problem}"] if problem else []
    for logger in options.loggers:
        for key in logger.monitors:
            _, problem = direction_of(options, valid_splits, key, None)
            problems += [f"{type(logger).__name__} monitors {problem}"] if problem else []
    if options.checkpoints is not None:
        key = options.checkpoints.monitor or default_monitor(valid_splits)
        _, problem = direction_of(options, valid_splits, key, options.checkpoints.mode)
        problems += [f"the checkpointer monitors {problem}"] if problem else []
    return problems


def direction_of(options: Options, valid_splits: list[str], key: str, mode: str | None) -> tuple[str, str | None]:
    """Return `min` or `max` for a metric, and the problem with monitoring it or None."""
    infos = {info.key: info for info in options.metric_infos(["train", *valid_splits])}
    numeric = [k for k, info in infos.items() if info.numeric]
    if key not in infos and key.startswith("valid/") and not valid_splits:
        return "min", f"{key!r}, and there is no validation data; {near('', numeric)}"
    if key not in infos:
        return "min", f"{key!r}, which no metric provides; {near(key, numeric)}"
    if not infos[key].numeric:
        return "min", f"{key!r}, which is not a number"
    better = infos[key].higher_is_better
    if mode is None and better is None:
        return "min", f"{key!r}, which has no direction of its own: give mode='min' or mode='max'"
    return mode or ("max" if better else "min"), None
