"""The learner and its loop.

There is one loop, for every model, every device and every kind of data: `loop` below. What each of its lines does is
said by `learner.run`; what it computes by `learner.steps`.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from learner import directory
from learner.check import check_predict, check_train, check_valid
from learner.checkpoint import DamagedError
from learner.checkpoint.items import from_items, to_items
from learner.data.feed import batch_arrays, bytes_of
from learner.errors import LearnerError, one_error
from learner.history import History, read_history
from learner.inputs import Inputs, checked_step, no_step, read_inputs, read_valid
from learner.loading import Taken, take_initial
from learner.lock import locked
from learner.memory import Needs, RoomFor, explained
from learner.options import Options
from learner.result import LearningResult
from learner.resuming import Differing, Restored, differences, restore, restore_newest, set_stopping
from learner.run import Run, validate
from learner.runner import Runner
from learner.schedules import ReduceOnPlateau
from learner.session import Start, opened
from learner.signals import TERMINATED, on_signals
from learner.start import (
    decide_dispatch,
    feeder_for,
    make_runner,
    open_store,
    refuse_checkpoints,
    remove_checkpoints,
)
from learner.steps.state import TrainState
from learner.steps.step import Step
from learner.stopping import Asked
from learner.strategies import SingleDevice
from learner.worker import Pace, Worker

PyTree = Any


def loop(run: Run) -> str:
    """Trains until the run is over, and says why it ended. Inside an epoch nothing here waits for the device."""
    if not run.is_pressed():
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
    own; `fit` dispatches the same steps.
    """

    def __init__(
        self, options: Options, step: Step, lr: float, plateau: ReduceOnPlateau | None, train: Any, valid: Any
    ):
        self._options, self._step, self._lr, self._plateau = options, step, lr, plateau
        self._train_data, self._valid_data = train, valid
        self._looked = {"train": False, "valid": False}  # at the steps, by `train_step` and `valid_step`
        self._runner: Runner | None = None
        self._fitted = False
        self._taken: Taken | None = None
        if options.start is None:
            self._take_initial()

    # -- pure functions ------------------------------------------------------------------------------------------------

    def init(self) -> TrainState:
        """The state before the first step. Its arrays are copies of the model's, or of what `initial_from` names."""
        self._take_initial()
        return self._blank()

    def _blank(self) -> TrainState:
        return self._step.init(self._lr, self._options.seed)

    def _take_initial(self) -> None:
        """Reads what `initial_from` names, once; a run that goes on from a checkpoint of its own never does."""
        if self._options.initial is not None and self._taken is None:
            with jax.ensure_compile_time_eval():
                family, self._taken = take_initial(self._options, self._step.family)
            self._step = dataclasses.replace(self._step, family=family)

    def train_step(self, state: TrainState, *batches: PyTree) -> tuple[TrainState, dict[str, Any]]:
        """One optimizer step: the new state, and the step's value of each numeric metric by name, with its `weight`.

        Args:
          state: of `init` or of a step before; it is not changed.
          batches: the micro-batches of the step, at most `grads_accumulation` of them.
        """
        if not 1 <= len(batches) <= self._step.accumulate:
            raise LearnerError(
                f"train_step got {len(batches)} batches; a step has 1 to {self._step.accumulate} micro-batches"
            )
        if self._step.train is None and self._step.update is None:
            raise LearnerError(no_step("train_step"))
        if not self._looked["train"]:
            self._look_at_train(state, batches[0])
        state, metrics, weight = self._step.whole(state, list(batches))
        return state, self._named("train", metrics) | {"weight": weight}

    def valid_step(self, state: TrainState, batch: PyTree) -> dict[str, Any]:
        """The metrics of one validation batch by name, with its `weight`. The model is in eval mode."""
        if self._step.valid is None:
            raise LearnerError(no_step("valid_step"))
        if not self._looked["valid"]:
            if problems := check_valid(self._step, state, batch, "the batch"):
                raise one_error(problems)
            self._looked["valid"] = True
        metrics, weight, _ = self._step.valid_metrics(state, batch, jnp.int32(0))
        return self._named("valid", metrics) | {"weight": weight}

    def _named(self, kind: str, metrics: PyTree) -> dict[str, Any]:
        measure = self._step.train_measure if kind == "train" else self._step.valid_measure
        return dict(zip(measure.step_names, measure.step_values(metrics), strict=True))

    def _look_at_train(self, state: TrainState, batch: PyTree) -> None:
        """Reports what is wrong with the train step, and finds out whether it computes its own gradients."""
        problems, own_grads = check_train(self._step, state, batch)
        if problems:
            raise one_error(problems)
        self._step = dataclasses.replace(self._step, own_grads=own_grads)
        self._looked["train"] = True

    # -- training ------------------------------------------------------------------------------------------------------

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
        if self._fitted:
            raise LearnerError(
                "this learner was fitted already; build a new one, with resume() to go on where it ended or "
                "with another directory"
            )
        options = self._options
        going_on = self._goes_on()
        if not going_on:
            directory.refuse_run(options.directory, overwrite=options.overwrite)
            refuse_checkpoints(options)
            self._take_initial()
        inputs = self._inputs(train, valid)
        if options.checkpoints is not None:
            inputs.source("train").keep_state()
        options.directory.mkdir(parents=True, exist_ok=True)
        with locked(options.directory):
            return self._fit(inputs, going_on)

    def _fit(self, inputs: Inputs, going_on: bool) -> LearningResult:
        """In a directory that no other process uses."""
        options = self._options
        if going_on:
            with contextlib.closing(open_store(options)) as store:
                store.recover()
        allow = (options.start or {}).get("allow", ())
        restored = self._restored(lambda progress: differences(progress, inputs, options, allow)) if going_on else None
        if restored is not None:
            if (finished := self._finished(restored)) is not None:
                return finished
            position, data = restored.position, restored.progress.get("data")
            inputs.source("train").refuse_position(position.epoch, position.batch, data)
        if not going_on:
            directory.refuse_run(options.directory, overwrite=options.overwrite)  # one may have begun since
        state = self.init() if restored is None else restored.state
        if restored is not None and (self._plateau is None or restored.progress["plateau"] is None):
            state = dataclasses.replace(state, lr_scale=jnp.float32(self._lr))  # the rate may be another one now
        self._fitted = True
        directory.prepare(options.directory, keep=going_on)
        if not going_on:
            remove_checkpoints(options)
        asked = Asked()
        lr = self._lr if self._step.schedule is None and self._plateau is None else None
        start = Start(
            options, self._step, self._plateau, self._rebuild, inputs, state, restored, going_on, asked, lr, self._taken
        )
        with on_signals(asked.to_stop, asked.to_save), opened(start) as run:
            run.stopped_by = loop(run)
        self._runner = run.runner
        if asked.reason == "sigterm" and options.on_sigterm == "exit":  # be it that it came with the last save
            sys.exit(TERMINATED)
        return self._result(run.runner.state, run.worker.history, run.stopped_by, run.summary)

    def _goes_on(self) -> bool:
        """Whether the run in the directory goes on."""
        start, place = self._options.start, self._options.directory
        if start is None or directory.holds_run(place):
            return start is not None
        if not start.get("resume"):
            asked = " ".join(f"{key} {value}" for key, value in start.items())
            raise LearnerError(
                f"there is no run in {place}, so there is no checkpoint of {asked}; resume() starts afresh there"
            )
        return False

    def _inputs(self, train: Any, valid: Any) -> Inputs:
        train = self._train_data if train is None else train
        valid = self._valid_data if valid is None else valid
        inputs = read_inputs(self._options, train, valid)
        shapes = jax.eval_shape(self._blank)
        self._step = checked_step(self._options, self._step, shapes, inputs, self._plateau)
        return inputs

    def _restored(self, differing: Differing = lambda progress: []) -> Restored | None:
        """The checkpoint to go on from: `None` when there is none and that is all right."""
        start = self._options.start or {}
        allow = start.get("allow", ())
        store = open_store(self._options)
        try:
            if start.get("resume"):
                return restore_newest(store, self._blank, allow, differing)
            epoch = start.get("epoch", None if "step" in start else "latest")
            return restore(store, store.find(epoch, start.get("step")), self._blank, allow, differing)
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
        summary = directory.read_summary(options.directory)
        ended = ("num_epochs", "num_steps", "early stopping")
        if summary is None or not str(summary.get("stopped_by")).startswith(ended):
            return None
        if summary.get("steps") != position.step or position.due:
            return None
        self._fitted = True
        strategy = options.devices or SingleDevice()
        self._runner = make_runner(self._step, restored.state, strategy)
        return self._result(self._runner.state, read_history(options.directory), summary["stopped_by"], summary)

    def _result(
        self, state: TrainState, history: History, stopped_by: str, summary: Mapping[str, Any]
    ) -> LearningResult:
        copied = jax.tree.map(jnp.copy, state)
        return LearningResult(self._rebuild(copied), history, stopped_by, summary, self._best_model)

    def _rebuild(self, state: TrainState) -> Any:
        return self._step.family.rebuild(state.params, state.model_state)

    def _best_model(self) -> Any:
        if self._options.checkpoints is None:
            return None
        store = open_store(self._options)
        try:
            state = self._blank()
            for entry in store.ranked():
                with contextlib.suppress(DamagedError):
                    items = store.restore(entry.step, {"model": to_items(state)["model"]})
                    return self._rebuild(from_items(items, state))
            return None
        finally:
            store.close()

    # -- without training ----------------------------------------------------------------------------------------------

    def evaluate(self, data: Any) -> dict[str, float | str]:
        """The metrics of the valid step over all of `data`, by name.

        After `fit` it is the trained model; before, the checkpoint that `resume()` or `checkpoint()` chose, else the
        model as given.
        """
        runner, inputs = self._standing(data)
        firsts = inputs.firsts.items()
        if wrong := [p for split, first in firsts for p in check_valid(self._step, runner.state, first, split)]:
            raise one_error(wrong)
        needs = Needs(inputs.firsts, bytes_of(runner.state))
        worker = Worker({split: self._options.metrics_of(split) for split in inputs.valid}, None, History(), (), Pace())
        try:
            for split, source in inputs.valid.items():
                feeder, plan = feeder_for(inputs, split, runner.strategy, self._options, lambda text: None)
                plan.loop = decide_dispatch(runner, feeder, plan, self._options, "valid", runner.strategy).loop
                with explained(needs, lambda: worker.failure), RoomFor(split):
                    validate(runner, feeder, worker, split, source.batches, 1, 0, None)
            with explained(needs):
                worker.wait()
        finally:
            worker.close()
            for source in inputs.valid.values():
                source.close()
        return {key.removeprefix("valid/").removeprefix("valid-"): values[-1] for key, values in worker.history.items()}

    def predict(self, data: Any) -> Iterator[Any]:
        """The valid step's outputs on the host, batch by batch in the order of `data`, each row once. See
        `evaluate`.
        """
        runner, inputs = self._standing(data)
        if len(inputs.valid) > 1:
            raise LearnerError(f"predict got several loaders ({', '.join(inputs.valid)}); it takes one")
        check_predict(self._step, runner.state, next(iter(inputs.firsts.values())))
        source = next(iter(inputs.valid.values()))
        try:
            for number, batch in enumerate(source.open(1)):
                yield jax.device_get(runner.outputs(batch_arrays(batch, "given"), number))
        finally:
            source.close()

    def _standing(self, data: Any) -> tuple[Runner, Inputs]:
        """The model as it stands, and the data as a validation split."""
        if self._step.valid is None:
            raise LearnerError(no_step("valid_step"))
        inputs = read_valid(self._options, data)
        if self._runner is None:
            restored = self._restored() if self._goes_on() else None
            state = self.init() if restored is None else restored.state
            self._runner = make_runner(self._step, state, self._options.devices or SingleDevice())
        return self._runner, inputs
