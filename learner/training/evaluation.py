"""Evaluating and predicting with the model of a learner: trained, restored or as given."""

from collections.abc import Iterator
from typing import Any

import jax

from learner.data.batch_arrays import batch_arrays, refuse_wrapped
from learner.errors import LearnerError, one_error
from learner.runs.history import History
from learner.training.definition import TrainingDefinition
from learner.training.dispatch_plan import build_feeder, in_flight_limit, make_runner
from learner.training.executor import Runner
from learner.training.feed.group import bytes_of
from learner.training.inputs import Inputs, read_valid, refuse_endless
from learner.training.oom import MemoryFootprint, OomContext, explain_oom
from learner.training.reporter import Reporter
from learner.training.resume import read_checkpoint
from learner.training.run_directory import resumes
from learner.training.step_checks import check_predict, check_valid, no_step
from learner.training.timing import StepTimeEstimator, StepTimer, TimeBreakdown
from learner.training.validation import validate_split


class Evaluator:
    """Evaluates and predicts with the valid step of a definition.

    Attributes:
      runner: the programs and the state of the model. None: they are loaded at the first call, from the checkpoint that
        the builder chose, or else with the model as given.
    """

    def __init__(self, definition: TrainingDefinition):
        self._definition = definition
        self.runner: Runner | None = None

    def evaluate(self, data: Any) -> dict[str, float | str]:
        """Return the metrics of the valid step over all of `data`, by name."""
        inputs = self._read(data, shared=True)
        return evaluate(self._definition, self._loaded(), inputs)

    def predict(self, data: Any) -> Iterator[Any]:
        """Yield the outputs of the valid step on the host, batch by batch. Every process yields all rows."""
        inputs = self._read(data, shared=False)
        yield from predict(self._definition, self._loaded(), inputs)

    def _read(self, data: Any, shared: bool) -> Inputs:
        if self._definition.step.valid is None:
            raise LearnerError(no_step("valid_step"), code="step-valid-missing")
        return read_valid(self._definition.options, data, self._definition.strategy if shared else None)

    def _loaded(self) -> Runner:
        if self.runner is None:
            definition = self._definition
            restored = read_checkpoint(definition) if resumes(definition.options) else None
            definition.take_initial()
            state = definition.init_placed() if restored is None else restored.state
            self.runner = make_runner(definition.step, state, definition.strategy)
        return self.runner


def evaluate(definition: TrainingDefinition, runner: Runner, inputs: Inputs) -> dict[str, float | str]:
    """Return the metrics of the valid step over all batches, by name."""
    refuse_endless(inputs)
    options, step = definition.options, definition.step
    first_batches = inputs.first_batches.items()
    if problems := [p for split, first in first_batches for p in check_valid(step, runner.state, first, split)]:
        raise one_error(problems, code="learner-untrainable")
    needs = MemoryFootprint(inputs.first_batches, bytes_of(runner.state))
    metrics = {split: options.metrics_of(split) for split in inputs.valid}
    timer = StepTimer(StepTimeEstimator(), TimeBreakdown(lambda: 0.0))
    limiter = in_flight_limit(runner.strategy)
    reporter = Reporter(metrics, None, History(), (), timer.estimator, limiter=limiter, now=timer.now)
    try:
        for split, source in inputs.valid.items():
            feeder, _ = build_feeder(runner, inputs, split, options)
            with explain_oom(needs, lambda: reporter.failure), OomContext(split):
                validate_split(runner, feeder, reporter, timer, split, source.batches)
        with explain_oom(needs):
            reporter.wait()
    finally:
        reporter.close()
        for source in inputs.valid.values():
            source.close()
    return {key.removeprefix("valid/").removeprefix("valid-"): values[-1] for key, values in reporter.history.items()}


def predict(definition: TrainingDefinition, runner: Runner, inputs: Inputs) -> Iterator[Any]:
    """Yield the outputs of the valid step on the host, batch by batch."""
    if len(inputs.valid) > 1:
        raise LearnerError(
            f"predict got several loaders ({', '.join(inputs.valid)}); it takes one",
            code="learner-predict-several-loaders",
        )
    check_predict(definition.step, runner.state, next(iter(inputs.first_batches.values())))
    (source,) = inputs.valid.values()
    try:
        for number, batch in enumerate(source.open(1)):
            arrays = batch_arrays(batch, "given")
            refuse_wrapped(arrays, "given")
            yield jax.device_get(runner.outputs(arrays, number))
    finally:
        source.close()
