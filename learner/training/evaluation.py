"""Evaluation and prediction with the model of a learner: trained, restored or as given to `build`."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from learner.checkpoint.store import CheckpointStore, Entry
from learner.distributed.process_group import ProcessGroup, hosts
from learner.errors import LearnerError
from learner.events import MetricInfo
from learner.loggers.application import close_application_log, open_application_log
from learner.runs.evaluations import check_split, record_evaluation
from learner.training.checkpoints.model_loading import load_model_state, trained_until
from learner.training.checkpoints.resume import read_checkpoint
from learner.training.checks.agreement import propagate_failures
from learner.training.checks.fingerprints import other_precision, saved_labels
from learner.training.checks.step_checks import no_step
from learner.training.definition import TrainingDefinition
from learner.training.feed.inputs import Inputs, drops_rows, has_several, label_warnings, read_valid
from learner.training.files.directory import holds_run
from learner.training.files.run_directory import read_found, resumes
from learner.training.passes import MetricValues, evaluate, predict
from learner.training.programs.executor import Runner
from learner.training.progress.restore import restore
from learner.training.setup.dispatch_plan import make_runner
from learner.util.own_context import own_context
from learner.util.user_warnings import warn


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The metrics of a checkpoint.

    Attributes:
      epoch: the epoch at whose end, or inside of which, the checkpoint was made.
      step: its optimizer step.
      is_best: True if it is the best checkpoint of the run.
      path: the path of the checkpoint.
      values: the metrics by name.
      is_recorded: True if the values were written to the run as a split.
    """

    epoch: int
    step: int
    is_best: bool
    path: str
    values: MetricValues
    is_recorded: bool = False

    @property
    def checkpoint(self) -> str:
        """The checkpoint, for messages."""
        return f"checkpoint/{self.step} (epoch {self.epoch}{', best' if self.is_best else ''})"


class Evaluator:
    """Evaluate and predict with the valid step of a definition.

    Attributes:
      runner: the programs and the state of the model. None: the first call loads them, from the checkpoint that the
        builder selects, or else with the model given to `build`.
      entry: the loaded checkpoint. None: the model does not come from a checkpoint.
      labels: for each field, the texts that the training data numbers, if known.
    """

    def __init__(self, definition: TrainingDefinition):
        self._definition = definition
        self.runner: Runner | None = None
        self._loaned: Runner | None = None  # for checkpoints, if the learner has no model of its own
        self._training: int | None = None  # the thread of the active run
        self._warned: set[str] = set()  # texts about the valid step, by the run or an evaluation
        self.entry: Entry | None = None
        self.labels: Mapping[str, Sequence[str]] = {}

    @contextlib.contextmanager
    def training(self, runner: Runner, inputs: Inputs) -> Iterator[None]:
        """Evaluate with the model of a run in its hooks, and after the run unless it fails."""
        # The thread's number, as the hooks in it are the only code that may evaluate while the run trains.
        self.runner, self.labels, self._training = runner, inputs.labels, threading.get_ident()
        self._warned.update(inputs.warnings)
        try:
            yield
        except BaseException:
            self.runner = None  # its arrays may have been donated
            raise
        finally:
            self._training = None

    def evaluate(self, data: Any, split: str | None = None, checkpoint: int | str | None = None) -> MetricValues:
        """Return the metrics of the valid step over all of `data`, by name; see `Learner.evaluate`."""
        if split is None and checkpoint is None:
            processes = hosts()
            with propagate_failures(processes), own_context():
                runner = self._loaded(processes)
                with contextlib.closing(self._read(data)) as inputs:
                    _warn_of_labels(self.labels, data)
                    return evaluate(self._definition, runner, inputs, processes, self._warned)
        return self.evaluate_checkpoint(data, split, **self.choice(checkpoint)).values

    def choice(self, checkpoint: int | str | None = None) -> dict[str, Any]:
        """Return the arguments of `evaluate_checkpoint` for a checkpoint. Default: the one that the builder selects, or
        else the best.
        """
        start = self._definition.options.start or {}
        chosen: dict[str, Any] = {name: start[name] for name in ("epoch", "step") if name in start}
        return chosen if chosen and checkpoint is None else {"epoch": "best" if checkpoint is None else checkpoint}

    def evaluate_checkpoint(
        self, data: Any, split: str | None, epoch: int | str | None = None, step: int | None = None
    ) -> "Evaluation":
        """Return the metrics of a checkpoint. The learner's own model is not changed.

        Args:
          data: as for `evaluate`.
          split: if given, the values are written to the run as this split.
          epoch: the epoch of the checkpoint, `"best"` or `"latest"`.
          step: the optimizer step of the checkpoint, instead of `epoch`.
        """
        definition = self._definition
        if split is not None:
            check_split(split)
        if not holds_run(definition.options.directory):
            raise LearnerError(
                f"{definition.options.directory} holds no run, so there is no checkpoint to evaluate",
                code="run-not-a-run",
                directory=definition.options.directory,
            )
        processes = hosts()
        with propagate_failures(processes), own_context(), contextlib.closing(self._read(data)) as inputs:

            def read(store: CheckpointStore, entry: Entry) -> tuple[Runner, Evaluation]:
                runner, is_best = self._with_model(entry, store), entry == store.best()
                progress = store.progress(entry.step)
                _warn_of_labels(saved_labels(progress), data)
                _warn_of_precision(progress, definition.options.precision_text)
                trained, shown_epoch = trained_until(entry, progress)
                return runner, Evaluation(
                    shown_epoch, trained.step, is_best, str(store.path(entry.step)), MetricValues({}, {})
                )

            own = self._own()
            before = None if own is None else own.leaves
            try:
                runner, evaluation = read_found(definition.options, processes, epoch, step, read)
                values = evaluate(definition, runner, inputs, processes, self._warned)
                evaluation = dataclasses.replace(evaluation, values=values)
            finally:
                # The programs were lent to the checkpoint: restore the learner's own model, also after an error.
                if own is not None and before is not None:
                    own.leaves = before
            if split is None:
                return evaluation
            recorded = processes.run_on_primary(lambda: self._record_if_possible(split, evaluation, has_several(data)))
        return dataclasses.replace(evaluation, is_recorded=recorded)

    def _with_model(self, entry: Entry, store: CheckpointStore) -> Runner:
        """Return programs with the model of a checkpoint, replacing the learner's own model if it has one."""
        definition, own = self._definition, self._own()
        if own is None:
            state = restore(store, entry, definition, eval_only=True).state
            # Kept, so that the next checkpoint is evaluated without compiling anything.
            self._loaned = self._loaned or make_runner(definition.step, state, definition.strategy)
            self._loaned.leaves = jax.tree.leaves(state)
            return self._loaned
        own.leaves = jax.tree.leaves(load_model_state(definition, own.state, entry, store))
        return own

    def _own(self) -> Runner | None:
        """Return the programs of the learner's own model, unless an active run uses them."""
        return None if self._training is not None else self.runner

    def _record_if_possible(self, split: str, evaluation: "Evaluation", several: bool) -> bool:
        """Record an evaluation, and return True. If the run cannot be written to, which is no reason to lose the
        values, warn and return False.
        """
        try:
            self._record(split, evaluation, several)
        except OSError as error:
            directory = self._definition.options.directory
            warn(f"the evaluation could not be written to {directory}: {error.strerror or error}")
            return False
        return True

    def _record(self, split: str, evaluation: "Evaluation", several: bool) -> None:
        """Write an evaluation to the log of the run, `evaluations.jsonl` and the summary."""
        options, prefix = self._definition.options, f"{split}-" if several else f"{split}/"
        values = {prefix + name: value for name, value in evaluation.values.items()}
        known = {metric.name: metric for metric in options.metrics_of("valid")}
        infos = []
        for key in values:
            part, name = key.split("/", 1)
            metric = known[name]
            infos.append(MetricInfo(part, name, metric.unit, metric.higher_is_better, metric.numeric))
        record_evaluation(options.directory, evaluation.epoch, evaluation.step, values, infos, time.time())
        log = open_application_log(options.directory, options.application_logger)
        numbers = ", ".join(f"{key} {value:.6g}" for key, value in values.items() if not isinstance(value, str))
        log.info("evaluated %s: %s", evaluation.checkpoint, numbers)
        close_application_log(log)

    def predict(self, data: Any) -> Iterator[Any]:
        """Yield the outputs of the predict step on the host, batch by batch: of all rows that this process passes.

        Args:
          data: a loader, or other data that `fit` accepts.
        """
        for _, outputs in self.predictions(data):
            yield outputs

    def predictions(self, data: Any) -> Iterator[tuple[int, Any]]:
        """Yield `(rows, outputs)` for each batch, with its number of rows; see `predict`."""
        processes = hosts()
        with propagate_failures(processes):
            if self._definition.step.predict is None:
                self._require_valid_step()
            with contextlib.closing(read_valid(self._definition.options, data, None)) as inputs:
                _warn_of_rows(inputs, predicts=True)
                with own_context():
                    runner = self._loaded(processes)
                _warn_of_labels(self.labels, data)
                yield from predict(self._definition, runner, inputs, processes)

    def _read(self, data: Any) -> Inputs:
        self._require_valid_step()
        inputs = read_valid(self._definition.options, data, self._definition.strategy)
        _warn_of_rows(inputs, predicts=False)
        return inputs

    def _require_valid_step(self) -> None:
        if self._definition.step.valid is None:
            raise LearnerError(no_step("valid_step"), code="step-valid-missing")

    def _refuse_other_threads(self) -> None:
        """Raise `LearnerError` while a run trains, except in its hooks: the next step donates the model's arrays."""
        if self._training not in (None, threading.get_ident()):
            raise LearnerError(
                "this learner is training: until `fit` returns, only its hooks, in the thread of `fit`, can evaluate "
                "and predict",
                code="learner-evaluate-while-training",
            )

    def _loaded(self, processes: ProcessGroup) -> Runner:
        self._refuse_other_threads()
        if self.runner is None:
            definition, restored = self._definition, None
            if resumes(definition.options):
                restored = read_checkpoint(definition, processes=processes, eval_only=True)
            if restored is not None:
                self.entry = trained_until(restored.entry, restored.progress)[0]
                self.labels = saved_labels(restored.progress)
                for text in restored.notes:
                    warn(text)
                _warn_of_precision(restored.progress, definition.options.precision_text)
            definition.take_initial()
            options = definition.options
            if restored is None and options.initial is None and not options.overwrite and holds_run(options.directory):
                warn(
                    f"{options.directory} holds a run, but this is the model given to build, without the run's "
                    "weights: the builder's checkpoint('best') or checkpoint('latest') loads them"
                )
            state = definition.init_placed() if restored is None else restored.state
            self.runner = make_runner(definition.step, state, definition.strategy)
        return self.runner


def _warn_of_labels(known: Mapping[str, Sequence[str]], data: Any) -> None:
    """Warn about data that numbers its texts differently from the training data."""
    for text in label_warnings(known, data, "the data"):
        warn(text)


def _warn_of_precision(progress: Mapping[str, Any], now: str) -> None:
    """Warn about a builder without the precision of the run, whose own validations had other numbers."""
    if (trained := other_precision(progress, now)) is not None:
        warn(
            f"the run computed in {trained}, and here the steps compute in {now}: for the numbers of its validations, "
            "set its precision(...) on the builder"
        )


def _warn_of_rows(inputs: Inputs, predicts: bool) -> None:
    """Warn about data that leaves rows out or, if outputs belong to rows, that changes their order."""
    for split, source in inputs.valid.items():
        name = "the data" if split == "valid" else f"the data {split.removeprefix('valid-')!r}"
        if drops_rows(source):
            text = f"{name} leaves out the rows behind the last full batch: build its loader without drop_last"
            warn(text)
        if predicts and source.fingerprint().get("order") == "shuffled":
            text = f"{name} is shuffled, and its predictions come in that order: build its loader without shuffle"
            warn(text)
