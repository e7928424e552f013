"""The learner and its loop.

`loop` below serves every model, every device and every kind of data. `learner.training.run` has the operations that it
calls, and `learner.steps` has the computations.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import jax
import jax.numpy as jnp

from learner.checkpoint.store import Entry
from learner.data.workers import check_process
from learner.distributed.process_group import hosts
from learner.errors import LearnerError
from learner.models.array_info import array_infos
from learner.models.model_types import ModelT
from learner.renderers.tree import folded
from learner.steps.train_state import TrainState
from learner.training.definition import TrainingDefinition
from learner.training.evaluation import Evaluator
from learner.training.feed.inputs import data_rewinder, rewound
from learner.training.fit_run import fit_run
from learner.training.passes import MetricValues
from learner.training.pure_steps import PureSteps
from learner.training.result import LearningResult
from learner.training.run import Run
from learner.training.waves import fit_waves
from learner.util.fragments import fragment, paragraph, table
from learner.util.own_context import allow_transfers, automatic_mesh, own_context
from learner.util.text import count, size

if TYPE_CHECKING:  # rarely used modules are imported on use, as `import learner` must be fast
    from learner.diagnostics import trials
    from learner.diagnostics.check_result import Answer, CheckResult
    from learner.diagnostics.overview import Overview
    from learner.diagnostics.sharding_report import ShardingReport

PyTree = Any


def loop(run: Run) -> str:
    """Train until the run ends, and return the reason. Within an epoch nothing here waits for the device."""
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
        dispatches.close()
    reason = reason or run.stop_reason() or "num_epochs"
    return run.finish(reason)


class Learner(Generic[ModelT]):
    """A model, its optimizer and its data, ready to train. `LearnerBuilder.build` returns one.

    `init`, `train_step` and `valid_step` are pure functions of arrays, for `jax.jit`, `jax.vmap` and custom loops;
    `fit` dispatches the same steps. Called directly, they run the programs of `fit` on one device, one step at a time,
    with bit-identical results. Inside a transformation of JAX, the last bits may differ.

    The class is generic in the type of the model, which `build` infers from its argument: `Learner[MLP]`.

    A subclass may override `loop`; `LearnerBuilder.learner_class` sets the class that `build` returns.
    """

    def __init__(self, definition: TrainingDefinition, train: Any = None, valid: Any = None):
        self.definition = definition
        self._train, self._valid = train, valid
        self._steps, self._evaluator = PureSteps(definition, train), Evaluator(definition)
        self._fitted = False

    def __repr__(self) -> str:
        adapter, directory = self.definition.step.adapter, self.definition.options.directory
        parameters = sum(leaf.size for leaf in jax.tree.leaves(adapter.params))
        return f"{type(self).__name__}({adapter.name}, {count(parameters, 'parameter')}, {str(directory)!r})"

    def _repr_html_(self) -> str:
        """Return the arrays of the model as a table for a notebook. Nothing is computed, and no data is read."""
        state, adapter = self.definition.shapes(), self.definition.step.adapter
        rows = []
        for row in folded(array_infos(adapter, state.params, state.model_state)):
            shape = "" if row.shape is None else str(list(row.shape))
            name = "  " * row.level + row.name
            rows.append([name, shape, row.dtype, row.kind, f"{row.parameters:,}", size(row.bytes)])
        head = [f"{adapter.name} ({adapter.kind})", "shape", "dtype", "", "parameters", "bytes"]
        return fragment(table(head, rows), paragraph(f"run directory: {self.definition.options.directory}"))

    # -- pure functions ------------------------------------------------------------------------------------------------

    @own_context()
    def init(self) -> TrainState:
        """Return the state before the first step. Its arrays are copies of the model's, or of those in the checkpoint
        that `initial_from` names.
        """
        self.definition.refuse_population("init")
        self.definition.resolve_without_fit(self._train)
        self.definition.take_initial()
        return self.definition.init()

    @allow_transfers()
    @automatic_mesh()
    def train_step(self, state: TrainState, *batches: PyTree) -> tuple[TrainState, dict[str, Any]]:
        """Run one optimizer step. Return the new state, and a dict of the step's numeric metrics and its `weight`.

        Args:
          state: the state from `init` or an earlier step. It is not changed.
          batches: the micro-batches of the step, at most `grads_accumulation` of them.
        """
        self.definition.refuse_population("train_step")
        return self._steps.train(state, batches)

    @allow_transfers()
    @automatic_mesh()
    def valid_step(self, state: TrainState, batch: PyTree) -> dict[str, Any]:
        """Return a dict of the metrics of one validation batch and its `weight`. The model is in eval mode."""
        self.definition.refuse_population("valid_step")
        return self._steps.valid(state, batch)

    def model_of(self, state: TrainState) -> ModelT:
        """Return the model of a state in eval mode. It has the type given to `build`, and its arrays are copies."""
        self.definition.refuse_population("model_of")
        model: ModelT = self.definition.step.eval_model(jax.tree.map(jnp.copy, state))
        return model

    # -- training ------------------------------------------------------------------------------------------------------

    def loop(self, run: Run) -> str:
        """Train until the run ends, and return the reason. `fit` calls this loop. A subclass may override it with the
        operations of `Run`, which take care of logs, events, checkpoints and resuming.
        """
        return loop(run)

    def fit(self, train: Any = None, valid: Any = None) -> LearningResult[ModelT]:
        """Train, and write the run into its directory.

        Args:
          train: training data: a loader of `learner.data`, an iterable of batches, a function that returns an
            iterator, a Grain dataset, or a dataset with `with_batch_size`. Default: the data given to `build`.
          valid: validation data of the same kinds, or a dict that maps names to validation splits. Default: the data
            given to `build`; without it, there is no validation.

        Returns:
          The trained model, the history of its metrics, and the reason why the run ended. For a population, a
          `PopulationResult` with these for each member.

        Raises:
          LearnerError: the input is wrong. Nothing was written.
          NonFiniteError: a loss or a gradient is not finite; see `LearnerBuilder.on_nonfinite`.
          OutOfMemoryError: the device has no memory for a step, a validation or the copy for a checkpoint. The message
            names the options to set, and JAX's error is the cause. Earlier checkpoints are intact.
          SystemExit: with code 143, after SIGTERM or SIGHUP and its checkpoint; see `LearnerBuilder.on_sigterm`.
        """
        check_process()
        if self._fitted:
            raise LearnerError(
                "this learner was fitted already; build a new one, with resume() to continue where it ended or "
                "with another directory",
                code="learner-already-fitted",
            )
        train, valid = self._train if train is None else train, self._valid if valid is None else valid
        population, rewind = self.definition.options.population, data_rewinder(train, valid)
        try:
            if population is None or not population.waves:
                return self._fit(train, valid)
            of_waves: LearningResult[ModelT] = fit_waves(
                self.definition, train, valid, hosts(), lambda wave: self._fit_wave(wave, train, valid)
            )
            return of_waves
        finally:
            if not self._fitted:
                rewind()

    def _fit(self, train: Any, valid: Any) -> LearningResult[ModelT]:
        begin, announce = self._mark_fitted, _announce_overview
        return fit_run(
            self.definition, self._evaluator, train, valid, begin=begin, loop=self._reason, announce=announce
        )

    def _mark_fitted(self) -> None:
        self._fitted = True

    def _reason(self, run: Run) -> str:
        """Train, and return the reason why the run ended."""
        reason: object = self.loop(run)
        if not isinstance(reason, str):
            raise LearnerError(
                f"{type(self).__name__}.loop returned {type(reason).__name__}; it needs to return run.finish(reason)",
                code="learner-loop-result",
            )
        return reason

    def _fit_wave(self, definition: TrainingDefinition, train: Any, valid: Any) -> LearningResult[ModelT]:
        """Train some members of a population. This learner counts as fitted once one of its waves does."""
        learner = Learner[ModelT](definition)
        try:
            return learner.fit(train, valid)
        finally:
            self._fitted = self._fitted or learner._fitted

    # -- without training ----------------------------------------------------------------------------------------------

    @property
    def loaded_checkpoint(self) -> Entry | None:
        """The checkpoint that `evaluate` and `predict` have loaded: its `step`, and its `epoch` if one ended there.
        None before the first call, after `fit`, and if they use the model given to `build`.
        """
        return self._evaluator.entry

    def evaluate(self, data: Any, split: str | None = None, checkpoint: int | str | None = None) -> MetricValues:
        """Return the metrics of the valid step over all of `data`, by name. Table metrics are texts, and also arrays in
        the result's `arrays`.

        Without `split` and `checkpoint`, this evaluates the trained model after `fit`, and the current model in hooks;
        before `fit`, the checkpoint that `resume()` or `checkpoint()` selects, or else the model given to `build`. With
        `split` or `checkpoint`, it evaluates a checkpoint of the run.

        Args:
          data: as `valid` of `fit`, read to its end. Several processes must pass the same data, and each computes its
            share of every batch; `PerProcess` marks data that differs between them.
          split: a name, such as `"test"`. The values are written to the run as this split, at the epoch and step of the
            checkpoint: to its log, `evaluations.jsonl` and the summary. Comparisons and reports show them.
          checkpoint: `"best"`, `"latest"`, or the epoch of the checkpoint. Default: the one that `checkpoint()`
            selects, or else the best.

        Raises:
          LearnerError: the input is wrong, or there is no such checkpoint.
        """
        self.definition.refuse_population("evaluate")
        return self._evaluator.evaluate(data, split, checkpoint)

    def predict(self, data: Any) -> Iterator[Any]:
        """Yield the outputs of the predict step on the host, batch by batch in the order of `data`, each row once.
        Without a predict step, the valid step is used. The model is the same as in `evaluate`. Changes that
        a step makes to it, such as the state of a recurrent cell, are discarded after each batch.

        Of several processes, each yields the outputs of the rows that it passes itself, with or without `PerProcess`;
        all must pass equally many batches. If the model is sharded over processes and not gathered, as with tensor
        parallelism over them, all must pass the same data.
        """
        self.definition.refuse_population("predict")
        return self._evaluator.predict(data)

    @own_context()
    def sharding_report(self, train: Any = None) -> "ShardingReport":
        """Return the placement of every array of the state, and the memory of the compiled training. No state is
        created and nothing is written. `print` shows the report as tables.

        Args:
          train: as for `fit`; its first batches are read.
        """
        from learner.diagnostics.sharding_report import build_sharding_report

        self.definition.refuse_population("sharding_report")
        train = self._train if train is None else train
        with rewound(train, self._valid):
            return build_sharding_report(self.definition, train, self._valid)

    @own_context()
    def overview(self, train: Any = None, *, compiled: bool = True) -> "Overview":
        """Return an overview of a run without training: the arrays of the model, the operations of a step, the length
        and the memory. No state is created and nothing is written. `learner.renderers.print_overview` prints it, as the
        builder's `summary()` does before a run.

        Args:
          train: as for `fit`; its first batches are read.
          compiled: also compile the training, to report its peak memory.
        """
        from learner.diagnostics.overview import build_overview

        self.definition.refuse_population("overview")
        train = self._train if train is None else train
        with rewound(train, self._valid):
            return build_overview(self.definition, train, self._valid, compiled)

    @own_context()
    def find_lr(
        self,
        train: Any = None,
        *,
        lowest: float = 1e-7,
        highest: float = 10.0,
        steps: int = 100,
        smoothing: float = 0.8,
        diverges: float = 4.0,
    ) -> "trials.RangeTest":
        """Run a learning-rate range test: train a copy of the model with a learning rate that grows at each step, and
        record the losses. The run uses a temporary directory. The model and the learner do not change, and the learner
        can be fitted afterwards. The learning rate given to `build` is not used.

        Args:
          train: as for `fit`. A one-shot iterator is used up. Default: the data given to `build`.
          lowest: the learning rate of the first step.
          highest: the learning rate of the last step. It grows by a constant factor per step.
          steps: the number of optimizer steps. The test ends early if the loss diverges.
          smoothing: the exponential smoothing factor of the losses, in `[0, 1)`.
          diverges: the loss diverges if it is not finite, or if its smoothed value is `diverges` times its lowest.

        Returns:
          The learning rates, the losses, and the suggested learning rates.

        Raises:
          LearnerError: the input is wrong, the optimizer or `update=` ignores the learning rate, or the first loss is
            not finite.
        """
        from learner.diagnostics import trials

        self.definition.refuse_population("find_lr")
        return trials.find_lr(
            self.definition,
            self._fit_trial(train),
            lowest=lowest,
            highest=highest,
            steps=steps,
            smoothing=smoothing,
            diverges=diverges,
        )

    @own_context()
    def profile(
        self,
        train: Any = None,
        *,
        steps: tuple[int, int | None] = (20, None),
        directory: str | os.PathLike[str] = "profile",
    ) -> "trials.Profile":
        """Train a copy of the model for some steps, and return a profile of their time. The model and the learner do
        not change, and the learner can be fitted afterwards. Nothing is saved, validated or sent to loggers; to profile
        a run with them, use `LearnerBuilder.profile`.

        Args:
          train: as for `fit`. A one-shot iterator is used up. Default: the data given to `build`.
          steps: see `LearnerBuilder.profile`.
          directory: the directory for the trace and `profile.json`.

        Returns:
          The times and the bottleneck; `print` shows them.

        Raises:
          LearnerError: the input is wrong, or the data has too few steps.
        """
        from learner.diagnostics import trials

        self.definition.refuse_population("profile")
        return trials.profile(self.definition, self._fit_trial(train), steps, Path(directory))

    @own_context()
    def check(
        self,
        train: Any = None,
        valid: Any = None,
        *,
        only: str | Sequence[str] = (),
        skip: str | Sequence[str] = (),
        steps: int = 100,
        on_answer: "Callable[[Answer], None]" = lambda answer: None,
    ) -> "CheckResult":
        """Answer questions before a long training: do rows of the training data occur in the validation data, do
        gradients reach all parameters, can the model learn one batch? They run single steps on one device, on a copy of
        the model. Nothing is written. The model and the learner do not change, and the learner can be fitted
        afterwards.

        Args:
          train: as for `fit`. Default: the data given to `build`.
          valid: as for `fit`. Questions that need validation data are skipped without it.
          only: names of the questions to ask. Default: all; the guide lists them.
          skip: names of questions to skip.
          steps: the number of steps in which to learn one batch.
          on_answer: a function to call with each answer as soon as it is known.

        Returns:
          The answers. `print` shows them as a table, and `result.ok` is False if one of them is `"failed"`.

        Raises:
          LearnerError: the input is wrong: anything that `fit` refuses, an unknown question, or a one-shot iterator.
        """
        from learner.diagnostics.check import check

        self.definition.refuse_population("check")
        return check(
            self.definition,
            self._train if train is None else train,
            self._valid if valid is None else valid,
            only=only,
            skip=skip,
            steps=steps,
            on_answer=on_answer,
            clock=time.perf_counter,
        )

    def _fit_trial(self, train: Any) -> "trials.Fit":
        train = self._train if train is None else train

        def fit(definition: TrainingDefinition) -> LearningResult[Any]:
            with rewound(train):
                return Learner[Any](definition, train).fit()

        return fit


def _announce_overview(planned: Any, run: Run) -> None:
    from learner.diagnostics.overview import announce_overview

    announce_overview(planned, run)
