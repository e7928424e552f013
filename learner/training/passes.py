"""Passes over data without training: the metrics of the valid step, and the outputs of the predict step."""

import contextlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from learner.data.batch_arrays import batch_arrays, digest_of, refuse_wrapped
from learner.distributed.process_group import ProcessGroup, are_equal
from learner.distributed.process_records import ProcessRecords
from learner.errors import LearnerError, ProcessError, one_error
from learner.runs.history import History
from learner.runs.metric_logs import NoFiles
from learner.training.checks.agreement import data_description, error_of_shapes, metrics_description
from learner.training.checks.row_relations import warnings_of_batches
from learner.training.checks.step_checks import check_predict, trace_valid
from learner.training.checks.validation_state import warnings_of_valid
from learner.training.definition import TrainingDefinition
from learner.training.feed.group import bytes_of, shapes_of
from learner.training.feed.inputs import Inputs, refuse_endless
from learner.training.files.run_outputs import closing
from learner.training.programs.executor import Runner
from learner.training.programs.oom import MemoryFootprint, OomContext, explain_oom
from learner.training.reporting.delivery import RunValues
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import StepTimeEstimator, StepTimer, TimeBreakdown
from learner.training.setup.dispatch_plan import build_feeder, in_flight_limit
from learner.training.signals import dropped_signals
from learner.training.validation import validate_split
from learner.util.own_context import own_context
from learner.util.user_warnings import warn


class MetricValues(dict[str, Any]):
    """The metrics of an evaluation by name: numbers, and texts for metrics that are tables.

    Attributes:
      arrays: the values of table metrics by name, as NumPy arrays: `[classes]`, or `[classes, classes]` for
        `ConfusionMatrix`; for custom metrics, the result of their `arrays`.
    """

    def __init__(self, values: Mapping[str, float | str], arrays: Mapping[str, Any]):
        super().__init__(values)
        self.arrays = dict(arrays)


def evaluate(
    definition: TrainingDefinition, runner: Runner, inputs: Inputs, processes: ProcessGroup, warned: set[str]
) -> MetricValues:
    """Return the metrics of the valid step over all batches of all processes, by name. Warn about the step and about
    undefined values, except of the texts in `warned`, which gets them.
    """
    refuse_endless(inputs)
    options, step = definition.options, definition.step
    problems, texts, programs = [], [], {}
    for split, first in inputs.first_batches.items():
        traced = trace_valid(step, runner.state, first, split)
        problems += traced.problems
        programs[split] = traced.program
        texts += warnings_of_valid(step, runner.state, first, traced)
        if traced.has_fixed_weight:
            texts += warnings_of_batches(step, runner.state, first, split, inputs.source(split).batches)
    if problems:
        raise one_error(problems, "this cannot be evaluated", code="learner-untrainable")
    if processes.count > 1:
        # Before any program runs, as the devices of all processes take part in each. And each process keeps its rows of
        # data that all read in full: with other data in each, the values would be those of an arbitrary mixture.
        data = {name: data_description(inputs, name, x.fingerprint()) for name, x in inputs.valid.items()}
        described = {"data": data, **metrics_description(options, programs)}
        processes.agree("what they evaluate", described, error_of_shapes)
    programs.clear()  # they hold memory
    _warn_once(texts, warned)
    needs = MemoryFootprint(inputs.first_batches, bytes_of(runner.state))
    metrics = {split: options.metrics_of(split) for split in inputs.valid}
    timer, records = StepTimer(StepTimeEstimator(), TimeBreakdown(lambda: 0.0)), ProcessRecords(processes)
    limiter = in_flight_limit(runner.strategy)
    with dropped_signals() as raise_dropped, contextlib.ExitStack() as stack:

        def check() -> None:
            processes.raise_if_peer_failed()
            raise_dropped()

        reporter = Reporter(
            RunValues(NoFiles(), (), lambda text: None, metrics, History()),
            timer.estimator,
            unreported_losses=inputs.valid,
            limiter=limiter,
            now=timer.now,
            check_peers=check,
        )
        stack.push(closing(reporter.close))
        for split, source in inputs.valid.items():
            feeder, _ = build_feeder(runner, inputs, split, options)
            if processes.count > 1:
                feeder.compare_reads(processes, records)
            with explain_oom(needs, lambda: reporter.failure), OomContext(split):
                validate_split(runner, feeder, reporter, timer, split, source.batches)
        with explain_oom(needs):
            # Inside of the context: a program that runs out of memory raises when its values are read.
            reporter.wait()
        raise_dropped()
    undefined = reporter.undefined.items()
    _warn_once([f"{_name(key)} is not defined (NaN): {reason}" for key, reason in undefined], warned)
    values = {_name(key): values[-1] for key, values in reporter.history.items()}
    return MetricValues(values, {_name(key): arrays() for key, arrays in reporter.arrays.items()})


def _warn_once(texts: Sequence[str], warned: set[str]) -> None:
    for text in dict.fromkeys(texts):
        if text not in warned:
            warn(text)  # which may raise
            warned.add(text)


def _name(key: str) -> str:
    return key.removeprefix("valid/").removeprefix("valid-")


def predict(
    definition: TrainingDefinition, runner: Runner, inputs: Inputs, processes: ProcessGroup
) -> Iterator[tuple[int, Any]]:
    """Yield the number of rows and the outputs of the predict step for each batch, on the host.

    Each process passes its own data, and yields its outputs, unless the devices of several processes compute each row
    together: then the data must be the same.
    """
    if len(inputs.valid) > 1:
        raise LearnerError(
            f"predict got several loaders ({', '.join(inputs.valid)}); it takes one",
            code="learner-predict-several-loaders",
        )
    for text in check_predict(definition.step, runner.state, next(iter(inputs.first_batches.values()))):
        warn(text)
    ((split, source),) = inputs.valid.items()
    compared = None
    if processes.count > 1 and runner.strategy.exchanges_rows(runner.state):
        compared = SharedRows(processes)
        # Before any program runs. Rows in memory are compared as a whole, by their checksum, others batch by batch.
        compared.add([inputs.batch_shapes(split), source.batches, source.fingerprint()])
        compared.add(digest_of(inputs.first_batches[split]))
        compared.meet("the data to predict")
    number = 0
    for number, batch in enumerate(source.open(1), 1):
        arrays = batch_arrays(batch, "given")
        refuse_wrapped(arrays, "given")
        # Before the dispatch: devices wait for the devices of all processes.
        rows = len(jax.tree.leaves(arrays)[0])
        if compared is None:  # the processes may have other rows
            processes.record_read("given", 1, number, ended=False)
        else:
            processes.record_read("given", 1, number, ended=False, shapes=[shapes_of(arrays)])
            compared.add(digest_of(arrays))
        with own_context():  # not for the caller's code between two batches
            outputs = jax.device_get(runner.outputs(arrays, number - 1))
        yield rows, outputs
    processes.record_read("given", 1, number, ended=True)
    end = f"the end of the given data after {number} batches"
    if compared is None:
        processes.agree(end, True)
    else:
        compared.meet(end)


class SharedRows:
    """The data that all processes must predict, as their devices compute each row together."""

    def __init__(self, processes: ProcessGroup) -> None:
        self._processes, self._digest = processes, 0

    def add(self, value: Any) -> None:
        """Add a JSON value that all processes must have."""
        self._digest = zlib.crc32(json.dumps(value, sort_keys=True).encode(), self._digest)

    def meet(self, what: str) -> None:
        """Meet the other processes, and raise `ProcessError` in all if their values differ."""
        if not self._processes.all_reduce_json(self._digest, are_equal, what):
            raise ProcessError(
                "the processes predict different data, and the model is sharded over them, so that their devices "
                "compute each row together: pass the same data in every process, each of which yields the outputs of "
                "all rows. Or use a strategy that gathers the arrays of the model or does not shard them over "
                "processes, such as strategy(Sharded(rules=fsdp())): then each process predicts its own rows",
                code="learner-predict-data-differs",
            )
