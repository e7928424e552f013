"""The learner and its loop.

There is one loop, for every model, every device and every kind of data: `loop` below. `learner.training.run` has the
operations that it calls, and `learner.steps` what they compute.
"""

import contextlib
import dataclasses
import functools
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.checkpoint import DamagedError
from learner.checkpoint.items import from_items, to_items
from learner.data.batch_arrays import batch_arrays, refuse_wrapped
from learner.data.source import source_of
from learner.data.workers import check_process
from learner.diagnostics.overview import announce_overview, build_overview
from learner.diagnostics.rate_range import RangeTest, RangeTestListener, check_range
from learner.diagnostics.sharding_report import ShardingReport, sharding_report
from learner.distributed.process_group import ProcessGroup, hosts
from learner.errors import LearnerError, one_error
from learner.events import Overview
from learner.optimizers.schedule_resolution import OptimizerDefinition, ResolvedOptimizer, describe_schedules
from learner.runs import control_files as asking
from learner.runs.history import History, read_history
from learner.runs.layout import read_summary
from learner.runs.lock import locked
from learner.runs.metric_logs import file_name
from learner.schedules import Exponential
from learner.steps.definition import StepDefinition
from learner.steps.eval_params import eval_params, has_eval_params
from learner.steps.measure import MetricCollection
from learner.steps.state import TrainState
from learner.steps.step import Step
from learner.strategies import Strategy, choose_devices
from learner.training import directory
from learner.training.agreement import description, propagate_failures, refuse_together
from learner.training.directory import problem_with
from learner.training.dispatch_plan import (
    SINGLE_PROCESS,
    decide_dispatch,
    feeder_for,
    in_flight_limit,
    make_runner,
    open_store,
    planned,
    refuse_checkpoints,
    remove_checkpoints,
)
from learner.training.executor import Runner
from learner.training.feed.group import bytes_of
from learner.training.fingerprints import fingerprint_of
from learner.training.initialization import InitReport, take_initial
from learner.training.oom import MemoryFootprint, OomContext, explain_oom
from learner.training.options import Options
from learner.training.preflight import (
    Inputs,
    checked_step,
    no_step,
    read_inputs,
    read_valid,
    refuse_endless,
    run_length,
)
from learner.training.profile import Profile, Window, check_steps
from learner.training.profiler import MOST
from learner.training.reporter import Reporter
from learner.training.result import LearningResult
from learner.training.resume import (
    Differing,
    Restored,
    data_of,
    differences,
    restore,
    restore_newest,
    set_stopping,
    too_few_epochs,
)
from learner.training.run import Run
from learner.training.session import RunSpec, open_run
from learner.training.signals import TERMINATED, on_signals
from learner.training.single_step import SingleStepRunner
from learner.training.step_checks import GIVEN, Tracing, check_predict, check_train, check_valid, init_problems
from learner.training.stopping import Interrupter, StopRequest
from learner.training.timing import StepTimeEstimator, StepTimer, TimeBreakdown
from learner.training.validation import validate_split
from learner.util.trees import named_leaves

PyTree = Any


def loop(run: Run) -> str:
    """Train until the run is over, and return why it ended. Within an epoch nothing here waits for the device."""
    if not run.stop.stop_requested:
        run.catch_up()
    dispatches = run.dispatches()
    try:
        while (reason := run.stop_reason()) is None and (dispatch := next(dispatches, None)) is not None:
            run.check()
            run.train(dispatch)
            run.end_step(ends_epoch=dispatch.ends_epoch)
            run.save_if_due()
    finally:
        dispatches.close()  # type: ignore[attr-defined]
    reason = reason or run.stop_reason() or "num_epochs"
    return run.finish(reason)


class Learner:
    """Trains a model. `LearnerBuilder.build` makes it.

    `init`, `train_step` and `valid_step` are pure functions of arrays, for `jax.jit`, `jax.vmap` and loops of one's
    own; `fit` dispatches the same steps. Called as they are they run the programs of `fit` on one device, one step at a
    time and to the same bits; within a transformation they are what it makes of them, whose last bits may differ.

    A subclass may have another `loop`; `LearnerBuilder.learner_class` makes one of it.
    """

    def __init__(
        self, options: Options, definition: StepDefinition, optimizer: OptimizerDefinition, train: Any, valid: Any
    ):
        check_process()
        self._options, self._definition, self._optimizer = options, definition, optimizer
        self._resolved: ResolvedOptimizer | None = None  # until the length of the run is known
        self._define()
        self._train_data, self._valid_data = train, valid
        self._looked = {"train": False, "valid": False}  # at the steps, by `train_step` and `valid_step`
        self._runner: Runner | None = None
        self._one_by_one: SingleStepRunner | None = None
        self._fitted = False
        self._taken: InitReport | None = None
        if options.start is None:
            self._take_initial()

    # -- pure functions ------------------------------------------------------------------------------------------------

    def init(self) -> TrainState:
        """The state before the first step. Its arrays are copies of the model's, or of what `initial_from` names."""
        self._resolve_alone()
        self._take_initial()
        return self._blank()

    def _define(self, **changes: Any) -> None:
        """Build the step from its definition, with these changes, and the optimizer, which can train only once the
        length of the run has resolved its schedules.
        """
        self._definition = dataclasses.replace(self._definition, **changes)
        optimizer = self._resolved or self._optimizer.without_run_length()
        self._step = Step.of(self._definition, optimizer.optimizer, optimizer.schedule)

    def _blank(self) -> TrainState:
        return self._step.init(self._optimizer.lr, self._options.seed)

    def _placed(self) -> TrainState:
        """The same, where the strategy has its parts."""
        places = None if self._strategy.resident else self._strategy
        state = self._step.init(self._optimizer.lr, self._options.seed, places)
        if self._step.family.fresh is not None and (wrong := init_problems(state.params)):
            raise one_error(wrong, code="learner-untrainable")
        return state

    def _shapes(self) -> TrainState:
        """The shapes of the same."""
        shapes: TrainState = self._strategy.placed_shapes(jax.eval_shape(self._blank))
        return shapes

    @functools.cached_property
    def _strategy(self) -> Strategy:
        return self._options.devices or choose_devices()

    def _take_initial(self) -> None:
        """Reads what `initial_from` names, once; a run that goes on from a checkpoint of its own never does."""
        if self._options.initial is not None and self._taken is None:
            with jax.ensure_compile_time_eval():
                family, self._taken = take_initial(self._options, self._step.family)
            self._define(family=family)

    def train_step(self, state: TrainState, *batches: PyTree) -> tuple[TrainState, dict[str, Any]]:
        """One optimizer step: the new state, and the step's value of each numeric metric by name, with its `weight`.

        Args:
          state: of `init` or of a step before; it is not changed.
          batches: the micro-batches of the step, at most `grads_accumulation` of them.
        """
        if not 1 <= len(batches) <= self._step.accumulate:
            raise LearnerError(
                f"train_step got {len(batches)} batches; a step has 1 to {self._step.accumulate} micro-batches",
                code="step-batch-count",
            )
        if self._step.train is None and self._step.update is None:
            raise LearnerError(no_step("train_step"), code="step-train-missing")
        self._resolve_alone()
        if not self._looked["train"]:
            self._look_at_train(state, batches[0])
        if not _is_traced(state, batches):
            with Tracing("train_step", GIVEN, lambda: batches[-1]):
                return self._alone().train(state, batches)
        state, metrics, weight = self._step.unrolled_step(state, list(batches))
        return state, self._named("train", metrics) | {"weight": weight}

    def valid_step(self, state: TrainState, batch: PyTree) -> dict[str, Any]:
        """The metrics of one validation batch by name, with its `weight`. The model is in eval mode."""
        if self._step.valid is None:
            raise LearnerError(no_step("valid_step"), code="step-valid-missing")
        if not self._looked["valid"]:
            if problems := check_valid(self._step, state, batch, GIVEN):
                raise one_error(problems, code="learner-untrainable")
            self._looked["valid"] = True
        if not _is_traced(state, batch):
            with Tracing("valid_step", GIVEN, lambda: batch):
                return self._alone().valid(state, batch)
        metrics, weight, _ = self._step.validate(state, batch, jnp.int32(0))
        return self._named("valid", metrics) | {"weight": weight}

    def _alone(self) -> SingleStepRunner:
        if self._one_by_one is None or self._one_by_one.step is not self._step:
            self._one_by_one = SingleStepRunner(self._step, self._strategy.platform)
        return self._one_by_one

    def model_of(self, state: TrainState) -> Any:
        """The model of a state, of the type that was given to `build`, in eval mode; it has copies of its arrays."""
        return self._rebuild(jax.tree.map(jnp.copy, state))

    def _named(self, kind: str, metrics: PyTree) -> dict[str, Any]:
        measure = self._step.train_metrics if kind == "train" else self._step.valid_metrics
        return dict(zip(measure.step_names, measure.step_values(metrics), strict=True))

    def _look_at_train(self, state: TrainState, batch: PyTree) -> None:
        """Reports what is wrong with the train step, and finds out whether it computes its own gradients."""
        problems, own_grads = check_train(self._step, state, batch)
        if problems:
            raise one_error(problems, code="learner-untrainable")
        self._define(own_grads=own_grads)
        self._looked["train"] = True

    # -- training ------------------------------------------------------------------------------------------------------

    def loop(self, run: Run) -> str:
        """What `fit` does once a run is open, until it returns why the run ended: the loop of `learner.fit`. A subclass
        that has its own uses the words of it; logs, events, checkpoints and resuming are theirs.
        """
        return loop(run)

    def fit(self, train: Any = None, valid: Any = None) -> LearningResult:
        """Trains, and leaves the run in its directory.

        Args:
          train: batches: one of our loaders, any iterable of batches, a function that returns an iterator, a Grain
            dataset, or a dataset with `with_batch_size`. Default: what `build` was given.
          valid: the same for validation, or a dict of several by name; `None`: no validation.

        Returns:
          The trained model and what became of it.

        Raises:
          LearnerError: something is wrong with the input; nothing was compiled or written then.
          NonFiniteError: the numbers went wrong; see `LearnerBuilder.on_nonfinite`.
          OutOfMemoryError: the device had no room for a step, a validation or the copy that a checkpoint is made from;
            it comes from the error of JAX and says what to set. The checkpoints before it are as they were.
          SystemExit: with the code 143, after SIGTERM and the checkpoint that it asks for; see
            `LearnerBuilder.on_sigterm`.
        """
        check_process()
        if self._fitted:
            raise LearnerError(
                "this learner was fitted already; build a new one, with resume() to go on where it ended or "
                "with another directory",
                code="learner-already-fitted",
            )
        here = hosts()
        with propagate_failures(here):
            result = self._fit_with(here, train, valid)
        if result is None:
            sys.exit(TERMINATED)
        return result

    def _fit_with(self, here: ProcessGroup, train: Any, valid: Any) -> LearningResult | None:
        """With the other processes of the run, of which the first one alone looks after the directory. `None`: it ended
        by SIGTERM, and so is the process to end.
        """
        options = self._options
        going_on = here.run_on_primary(self._begins)
        if not going_on:
            self._take_initial()
        inputs = self._inputs(train, valid)
        if options.valid_every is not None and not inputs.valid:
            raise LearnerError(
                f"valid_every is {options.valid_every}, and there is no validation data: give it to fit(train, valid) "
                "or to build(..., valid=), or leave valid_every out",
                code="learner-valid-every-without-data",
            )
        if options.checkpoints is not None:
            inputs.source("train").keep_state()
        plateau = self._optimizer.plateau
        lr = self._optimizer.lr if self._step.schedule is None and plateau is None else None
        shapes = jax.eval_shape(self._blank)
        fingerprint = fingerprint_of(options, self._step, shapes, inputs, lr, plateau, self._strategy.description)
        inputs.programs.clear()  # what they hold in memory
        if here.count > 1:
            refuse_together(options, self._strategy)
            rate = self._optimizer.lr, describe_schedules(self._step.schedule, self._step.optimizer), plateau is None
            said = description(options, self._step, self._strategy, inputs, rate, going_on, fingerprint)
            here.agree("what they train", said)
            fingerprint = here.run_on_primary(
                lambda: fingerprint
            )  # the first rows of its share, which checkpoints have
        here.run_on_primary(lambda: self._refuse_foreign(inputs))  # before anything is written
        options.directory.mkdir(parents=True, exist_ok=True)
        with locked(options.directory) if here.index == 0 else contextlib.nullcontext():
            if here.index == 0:
                asking.forget(options.directory)
            return self._fit_in(here, inputs, going_on, fingerprint)

    def _begins(self) -> bool:
        """Whether the run in the directory goes on. A run that may not begin there is an error."""
        options, going_on = self._options, self._goes_on()
        if not going_on:
            directory.refuse_run(options.directory, overwrite=options.overwrite)
            refuse_checkpoints(options)
        return going_on

    def _refuse_foreign(self, inputs: Inputs) -> None:
        splits = ["train", "custom", *map(file_name, inputs.valid)]
        directory.refuse_foreign(self._options.directory, splits, profile=self._options.profile is not None)

    def _prepare(self, going_on: bool) -> None:
        if not going_on:
            directory.refuse_run(self._options.directory, overwrite=self._options.overwrite)  # one may have begun since
        directory.prepare(self._options.directory, keep=going_on)
        if not going_on:
            remove_checkpoints(self._options)

    def _recover(self) -> None:
        with contextlib.closing(open_store(self._options)) as store:
            store.recover()

    def _fit_in(
        self, here: ProcessGroup, inputs: Inputs, going_on: bool, fingerprint: Mapping[str, Any]
    ) -> LearningResult | None:
        """In a directory that nobody else uses."""
        options = self._options
        if going_on:
            here.run_on_primary(self._recover)
        allow = (options.start or {}).get("allow", ())
        differing = lambda progress: differences(progress, fingerprint, inputs, allow)  # noqa: E731
        restored = self._restored(differing, here) if going_on else None
        if restored is not None:
            if (finished := self._finished(restored)) is not None:
                return finished
            position, data = restored.position, data_of(restored.progress, here.index)
            inputs.source("train").refuse_position(position.epoch, position.batch, data)
        if restored is None:
            self._take_initial()
        state = self._placed() if restored is None else restored.state
        if restored is not None and (self._optimizer.plateau is None or restored.progress["plateau"] is None):
            lr_scale = self._strategy.place(np.float32(self._optimizer.lr))  # the rate may be another one now
            state = dataclasses.replace(state, lr_scale=lr_scale)
        self._fitted = True
        here.run_on_primary(lambda: self._prepare(going_on))
        request = StopRequest()
        spec = RunSpec(
            options=options,
            step=self._step,
            plateau=self._optimizer.plateau,
            strategy=self._strategy,
            inputs=inputs,
            state=state,
            restored=restored,
            going_on=going_on,
            request=request,
            fingerprint=fingerprint,
            overview=announce_overview,
            init_report=self._taken,
            hosts=here,
        )
        # Handlers before anything that takes time: a signal during the setup ends the run in order, too.
        with on_signals(request.to_stop, request.to_save), open_run(spec) as run:
            run.stop.finish(self.loop(run))
        self._runner = run.runner
        if run.stop.ended_by == "sigterm" and options.on_sigterm == "exit":  # it may have come during the last save
            return None
        return self._result(run.runner.state, run.reporter.history, run.stop.stopped_by, run.reporter.summary)

    def _goes_on(self) -> bool:
        """Whether the run in the directory goes on."""
        start, place = self._options.start, self._options.directory
        if start is None or directory.holds_run(place):
            return start is not None
        if not start.get("resume"):
            asked = " ".join(f"{key} {value}" for key, value in start.items())
            raise LearnerError(
                f"there is no run in {place}, so there is no checkpoint of {asked}; resume() starts afresh there",
                code="resume-checkpoint-missing",
                place=place,
            )
        return False

    def _inputs(self, train: Any, valid: Any) -> Inputs:
        train = self._train_data if train is None else train
        valid = self._valid_data if valid is None else valid
        inputs = read_inputs(self._options, train, valid, self._strategy)
        problems = self._resolve(inputs.source("train").batches)
        shapes, plateau = jax.eval_shape(self._blank), self._optimizer.plateau
        step = checked_step(self._options, self._step, shapes, inputs, plateau, self._strategy, problems)
        self._define(own_grads=step.own_grads)
        return inputs

    def _resolve(self, batches: int | None) -> list[str]:
        """Resolve the schedules for a run of so many batches an epoch. Return all problems that they then have."""
        self._resolved, problems = self._optimizer.resolve(run_length(self._options, batches))
        self._define()
        return problems

    def _resolve_alone(self) -> None:
        """Resolve the schedules without `fit`, which reads the data."""
        if self._resolved is not None or not (unresolved := self._optimizer.needing_run_length()):
            return
        data, options = self._train_data, self._options
        if data is None and options.num_steps is None:
            place, schedule = unresolved[0]
            raise LearnerError(
                f"{place or 'the learning rate'}: {schedule!r} counts with the length of the run, which is known with "
                "the training data: give it to build(..., train=), set num_steps(n), or use "
                "schedule.resolved(num_steps=..., steps_per_epoch=...)",
                code="schedule-length-needed",
            )
        batches = None if data is None else source_of(data, "train", batch_size=options.batch_size).batches
        with jax.ensure_compile_time_eval():
            problems = self._resolve(batches)
        if problems:
            raise one_error(problems, code="learner-untrainable")

    def _restored(
        self, differing: Differing = lambda progress: [], here: ProcessGroup = SINGLE_PROCESS
    ) -> Restored | None:
        """The checkpoint to go on from: `None` when there is none and that is all right."""
        start = self._options.start or {}
        allow = start.get("allow", ())
        store, into = open_store(self._options, hosts=here), (self._shapes(), self._step.fill_missing)
        try:
            if start.get("resume"):
                return restore_newest(store, *into, allow, differing)
            epoch = start.get("epoch", None if "step" in start else "latest")
            return restore(store, store.find(epoch, start.get("step")), *into, allow, differing)
        finally:
            store.close()

    def _finished(self, restored: Restored) -> LearningResult | None:
        """The result of a run that has nothing left to do; nothing is written then."""
        options, position = self._options, restored.position
        set_stopping(options.early_stopping, restored.progress["early_stopping"])
        past = (options.num_epochs is not None and position.epoch > options.num_epochs) or (
            options.num_steps is not None and position.step >= options.num_steps
        )
        if not past and not any(stopping.reason for stopping in options.early_stopping):
            return None
        summary = read_summary(options.directory)
        ended = ("num_epochs", "num_steps", "early stopping")
        if summary is None or not str(summary.get("stopped_by")).startswith(ended):
            return None
        if summary.get("steps") != position.step or position.pending:
            return None
        for text in too_few_epochs(options, position):
            warnings.warn(text, stacklevel=5)
        self._fitted = True
        self._runner = make_runner(self._step, restored.state, self._strategy)
        return self._result(self._runner.state, read_history(options.directory), summary["stopped_by"], summary)

    def _result(
        self, state: TrainState, history: History, stopped_by: str, summary: Mapping[str, Any]
    ) -> LearningResult:
        assert self._runner is not None
        copied = self._runner.copy(state)
        return LearningResult(self._rebuild(copied), history, stopped_by, summary, self._best_model)

    def _rebuild(self, state: TrainState) -> Any:
        return self._step.family.rebuild(eval_params(state.params, state.opt_state), state.model_state)

    def _best_model(self) -> Any:
        """Read the model of the best checkpoint that is not damaged.

        Raises:
          LearnerError: the run saved nothing, or none of its checkpoints can be read.
        """
        if self._options.checkpoints is None:
            raise LearnerError(
                "the run kept no best model: with_file_checkpointer(None) turns saving off. Leave it out, or use "
                "result.model, the model after the last step",
                code="learner-best-not-kept",
            )
        store = open_store(self._options)
        damaged = []
        try:
            state = self._shapes()
            needed = ("model", "optim") if has_eval_params(named_leaves(state.opt_state)) else ("model",)
            for entry in store.ranked():
                try:
                    items = store.restore(
                        entry.step, {name: x for name, x in to_items(state).items() if name in needed}
                    )
                except DamagedError as error:
                    damaged.append(str(error))
                else:
                    return self._rebuild(from_items(items, state))
        finally:
            store.close()
        why = "; ".join(damaged) or f"there is no checkpoint in {store.path(0).parent}"
        raise LearnerError(
            f"the best model cannot be read: {why}. result.model is the model after the last step",
            code="learner-best-unreadable",
        )

    # -- without training ----------------------------------------------------------------------------------------------

    def evaluate(self, data: Any) -> dict[str, float | str]:
        """The metrics of the valid step over all of `data`, by name.

        After `fit` it is the trained model; before, the checkpoint that `resume()` or `checkpoint()` chose, else the
        model as given.
        """
        runner, inputs = self._standing(data)
        refuse_endless(inputs)
        first_batches = inputs.first_batches.items()
        if wrong := [p for split, first in first_batches for p in check_valid(self._step, runner.state, first, split)]:
            raise one_error(wrong, code="learner-untrainable")
        needs = MemoryFootprint(inputs.first_batches, bytes_of(runner.state))
        metrics = {split: self._options.metrics_of(split) for split in inputs.valid}
        timer = StepTimer(StepTimeEstimator(), TimeBreakdown(lambda: 0.0))
        limiter = in_flight_limit(runner.strategy)
        reporter = Reporter(metrics, None, History(), (), timer.estimator, limiter=limiter, now=timer.now)
        try:
            for split, source in inputs.valid.items():
                feeder, plan = feeder_for(inputs, split, runner.strategy, self._options, lambda text: None)
                plan.loop = decide_dispatch(runner, feeder, plan, self._options, "valid", runner.strategy).loop
                with explain_oom(needs, lambda: reporter.failure), OomContext(split):
                    validate_split(runner, feeder, reporter, timer, split, source.batches)
            with explain_oom(needs):
                reporter.wait()
        finally:
            reporter.close()
            for source in inputs.valid.values():
                source.close()
        return {
            key.removeprefix("valid/").removeprefix("valid-"): values[-1] for key, values in reporter.history.items()
        }

    def sharding_report(self, train: Any = None) -> ShardingReport:
        """Where every array of the state would lie and what the compiled training needs, without training: no state is
        made and nothing is written. `print` shows it as tables.

        Args:
          train: as for `fit`; its first batches are read.
        """
        inputs = self._inputs(train, None)
        try:
            shapes = jax.eval_shape(self._blank)
            return sharding_report(self._options, self._step, shapes, self._strategy, inputs)
        finally:
            for source in (inputs.source("train"), *inputs.valid.values()):
                source.close()

    def overview(self, train: Any = None, *, compiled: bool = True) -> Overview:
        """What a run would be, without training: the arrays of its model, the operations of a step, its length, and
        what of memory it needs. No state is made and nothing is written. `learner.renderers.print_overview` prints it,
        as `summary()` of the builder does before a run.

        Args:
          train: as for `fit`; its first batches are read.
          compiled: also compiles the training, which alone tells the memory that is in use while it runs.
        """
        inputs = self._inputs(train, None)
        try:
            shapes = jax.eval_shape(self._blank)
            return build_overview(planned(self._options, self._step, shapes, self._strategy, inputs), compiled)
        finally:
            for source in (inputs.source("train"), *inputs.valid.values()):
                source.close()

    def find_lr(
        self,
        train: Any = None,
        *,
        lowest: float = 1e-7,
        highest: float = 10.0,
        steps: int = 100,
        smoothing: float = 0.8,
        diverges: float = 4.0,
    ) -> RangeTest:
        """The range test: trains a copy of the model for some steps, each with a greater rate than the one before, and
        looks at the losses. Nothing is left behind: the run is in a directory that is removed, and neither the model
        nor the learner changes, which can be fitted afterwards. The rate that it was built with plays no part.

        Args:
          train: as for `fit`; what can be read once is used up. Default: what `build` was given.
          lowest: the rate of the first step.
          highest: the rate of the last step; those between grow by one factor.
          steps: optimizer steps. It ends earlier where the loss diverges.
          smoothing: how much each earlier loss counts beside the next one in the smoothed losses.
          diverges: the loss diverges where it is not finite, or smoothed so many times as large as its lowest.

        Returns:
          The rates, the losses, and the rates that they suggest.

        Raises:
          LearnerError: something is wrong with the input, or the first loss is not finite.
        """
        check_range(lowest, highest, steps, smoothing, diverges)
        if hosts().count > 1:
            raise LearnerError(
                "find_lr runs in one process; leave out what connects several of them", code="process-find-lr-several"
            )
        if self._options.initial is not None:
            self._take_initial()
        schedule = Exponential(lowest, highest / lowest, every=steps - 1)
        interrupter = Interrupter()
        watcher = RangeTestListener(interrupter, smoothing, diverges)
        with tempfile.TemporaryDirectory(prefix="learner-") as place:
            options = self._options.of_a_trial(Path(place) / "run", steps, interrupter, watcher)
            measure = MetricCollection.of(options.train_metrics)
            definition = dataclasses.replace(self._definition, train_metrics=measure, watch=options.on_nonfinite)
            optimizer = OptimizerDefinition(self._optimizer.optimizer, 1.0, schedule)
            trial = Learner(options, definition, optimizer, self._train_data if train is None else train, None)
            if trial.fit().stopped_by == "ctrl-c":
                raise KeyboardInterrupt
        losses = watcher.losses
        if not len(losses):
            raise LearnerError(
                "the first loss is not finite: look at the model and the data before the learning rate",
                code="step-first-loss-nonfinite",
            )
        return RangeTest(np.array([float(schedule(i)) for i in range(len(losses))]), losses, steps, smoothing)

    def profile(
        self,
        train: Any = None,
        *,
        steps: tuple[int, int | None] = (20, None),
        directory: str | os.PathLike[str] = "profile",
    ) -> Profile:
        """Trains a copy of the model for some steps and says where their time goes. Neither the model nor the learner
        changes, which can be fitted afterwards. Nothing is saved, validated or sent to loggers meanwhile; for a profile
        with them there is `LearnerBuilder.profile`.

        Args:
          train: as for `fit`; what can be read once is used up. Default: what `build` was given.
          steps: see `LearnerBuilder.profile`.
          directory: where the trace and `profile.json` go.

        Returns:
          The times and what holds the steps back, to be printed.

        Raises:
          LearnerError: something is wrong with the input, or the data has not as many steps.
        """
        first, last = check_steps(steps)
        if hosts().count > 1:
            raise LearnerError(
                "profile runs in one process; for several there is LearnerBuilder.profile",
                code="process-profile-several",
            )
        if self._options.initial is not None:
            self._take_initial()
        if problem := problem_with(Path(directory)):
            raise LearnerError(problem, code="profile-refused")
        found: list[Profile] = []
        failed: list[str] = []
        interrupter = Interrupter()

        def done(profile: Profile) -> None:
            found.append(profile)
            interrupter.stop("profiled")

        def not_done(why: str) -> None:
            failed.append(why)
            interrupter.stop("not profiled")

        with tempfile.TemporaryDirectory(prefix="learner-") as place:
            options = self._options.of_a_trial(Path(place) / "run", (last or first + MOST) + 1, interrupter)
            options.train_metrics, options.on_nonfinite = self._options.train_metrics, self._options.on_nonfinite
            options.profile = Window(first, last, Path(directory), done, not_done)
            optimizer = dataclasses.replace(self._optimizer, plateau=None)
            trial = Learner(options, self._definition, optimizer, self._train_data if train is None else train, None)
            if trial.fit().stopped_by == "ctrl-c":
                raise KeyboardInterrupt
        if not found:
            raise LearnerError(
                f"no step was profiled: {failed[0] if failed else 'nothing was trained'}", code="profile-no-step"
            )
        return found[0]

    def predict(self, data: Any) -> Iterator[Any]:
        """The valid step's outputs on the host, batch by batch in the order of `data`, each row once. See
        `evaluate`.
        """
        runner, inputs = self._standing(data, shared=False)  # every process gives all rows
        if len(inputs.valid) > 1:
            raise LearnerError(
                f"predict got several loaders ({', '.join(inputs.valid)}); it takes one",
                code="learner-predict-several-loaders",
            )
        check_predict(self._step, runner.state, next(iter(inputs.first_batches.values())))
        source = next(iter(inputs.valid.values()))
        try:
            for number, batch in enumerate(source.open(1)):
                arrays = batch_arrays(batch, "given")
                refuse_wrapped(arrays, "given")
                yield jax.device_get(runner.outputs(arrays, number))
        finally:
            source.close()

    def _standing(self, data: Any, shared: bool = True) -> tuple[Runner, Inputs]:
        """The model as it stands, and the data as a validation split: of several processes each has its share of it, or
        all.
        """
        if self._step.valid is None:
            raise LearnerError(no_step("valid_step"), code="step-valid-missing")
        inputs = read_valid(self._options, data, self._strategy if shared else None)
        if self._runner is None:
            restored = self._restored() if self._goes_on() else None
            self._take_initial()
            state = self._placed() if restored is None else restored.state
            self._runner = make_runner(self._step, state, self._strategy)
        return self._runner, inputs


def _is_traced(*trees: PyTree) -> bool:
    """Whether a function is called while JAX traces it."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(trees))
