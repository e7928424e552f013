"""The state of one `fit` call, and the operations that the training loop calls."""

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from learner.errors import LearnerError, NonFiniteError
from learner.runs.layout import NONFINITE
from learner.steps.finite import advice, nonfinite_text
from learner.training.checkpoints.saving import CheckpointSaver
from learner.training.checks.step_tracing import Tracing
from learner.training.feed.dispatches import Dispatch, Feeder
from learner.training.hooks import EpochInfo, HookCaller
from learner.training.member_decisions import all_ended_text
from learner.training.number_log import NumberLog
from learner.training.options import Options
from learner.training.profiler import Profiler
from learner.training.programs.executor import MetricAccumulator, Runner
from learner.training.programs.oom import CHECKPOINT, OomContext
from learner.training.progress.position import Position
from learner.training.progress.snapshot import StateCopy
from learner.training.reporting.messages import EpochFinished, NonFiniteStop, SplitFinished, StepsDispatched
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import StepTimer
from learner.training.stopping import StopController
from learner.training.validation import Validator
from learner.util.number_checks import is_finite
from learner.util.ownership import ThreadOwned

__all__ = ["EpochInfo", "Position", "Run"]


@dataclasses.dataclass
class Run(ThreadOwned):
    """State of one `fit` call, and the operations that the training loop calls. It belongs to the loop's thread.

    Attributes:
      options: the options of the builder.
      runner: the programs and the train state.
      feeder: the batches of the train split.
      position: the position of the run: epoch, step and batch.
      accumulator: the train split's metrics.
      data_state: the position in the training data, for sources that keep a state.
      reporter: reads the results from the device, and writes files and events.
      saver: writes checkpoints; None if nothing is saved.
      stop: the controller of requests and decisions to stop.
      validator: runs validations.
      numbers: logs the numbers of hooks.
      timer: marks when the time of a dispatch begins.
      profiler: traces some steps, or None.
    """

    options: Options
    runner: Runner
    feeder: Feeder
    position: Position
    accumulator: MetricAccumulator
    data_state: Any
    reporter: Reporter
    saver: CheckpointSaver | None
    stop: StopController
    validator: Validator
    numbers: NumberLog
    timer: StepTimer
    profiler: Profiler | None

    def __post_init__(self) -> None:
        self.claim()
        self._hooks = HookCaller(self.runner, self.reporter, self.numbers, self.stop, self.validator)

    # -- training ------------------------------------------------------------------------------------------------------

    def dispatches(self) -> Generator[Dispatch, None, None]:
        """Return the remaining dispatches of the run, from its position on."""
        p, last = self.position, self.options.num_epochs
        requested = lambda: self.stop.stop_requested  # noqa: E731
        batches = self.feeder.open(p.epoch, p.batch, p.step, last, requested, self.data_state)
        self.timer.begin()
        with contextlib.closing(batches) as dispatches, OomContext("train"):  # type: ignore[type-var]
            try:
                while (dispatch := self._next(dispatches)) is not None:
                    yield dispatch
            finally:
                self.stop.release()  # before `batches` closes, whose thread may wait for the other processes

    def _next(self, dispatches: Iterator[Dispatch]) -> Dispatch | None:
        # `next` may compile the program that arranges resident rows, and that time is not a wait for data.
        began, compiled = self.timer.now(), self.timer.spent.compiling()
        dispatch = next(dispatches, None)
        self.timer.spent.waited(self.reporter.idle(began), compiled)
        return dispatch

    def train(self, dispatch: Dispatch) -> None:
        """Run a dispatch on the device, and hand its values to the reporter."""
        p = self.position
        self.reporter.begin_epoch(dispatch.epoch)
        # Before the dispatch: each one in flight keeps its batches and its outputs in the memory of the device.
        self.reporter.acquire("train", dispatch.steps)
        if self.stop.records is not None:
            # Before the dispatch, which may wait for the devices of a process that has ended.
            self.stop.records.add_step(p.step + dispatch.steps)
        with OomContext("train"), Tracing("the train step", "train", dispatch.shapes):
            values = self.runner.train(self.accumulator, dispatch)
        first = p.step + 1
        # The position counts dispatched steps: the device is behind it, and the reporter behind the device.
        p.advance(dispatch)
        # The position in the data after these steps: the prefetching thread has read the source further.
        self.data_state = dispatch.data_state
        self.reporter.put(
            StepsDispatched(
                "train",
                epoch=p.epoch,
                first=first,
                count=dispatch.steps,
                batches=dispatch.batches,
                in_epoch=p.in_epoch,
                total=self.reporter.steps_per_epoch,
                step=p.step,
                values=values,
                rows=dispatch.rows,
                time=self.timer.lap(),
            )
        )

    def end_step(self, ends_epoch: bool) -> None:
        """Do what follows a dispatch: validate, call hooks, end the epoch. A validation that a stop interrupts is still
        pending when the run is resumed.
        """
        p = self.position
        if self.profiler is not None and self.profiler.tracing and self._is_anything_due(ends_epoch):
            self.profiler.end(p.step)
        # The end of an epoch has its own validation.
        if not (p.pending or ends_epoch) and (due := self.validator.due(p.step)):
            p.pending, p.remaining_splits = "validation", due
        if not self.validator.run_pending_validation(p):
            return
        # After the validation, whose values a hook may read.
        hooks = [hook for every, hook in self.options.every if p.step % every == 0]
        self._hooks.call(hooks, p, at_step=p.step)
        if ends_epoch:
            # Before the validation: a checkpoint inside of it must have no metrics of the train split in flight.
            self._close_train()
            p.pending, p.remaining_splits = "epoch", self.validator.due(p.step, p.epoch)
            self.end_epoch()
        self.timer.begin()

    def _is_anything_due(self, ends_epoch: bool) -> bool:
        """Return True if a validation or a hook comes before the next step."""
        hooks = any(self.position.step % every == 0 for every, _ in self.options.every)
        p = self.position
        due = self.validator.due(p.step, p.epoch if ends_epoch else None)
        return hooks or bool(ends_epoch and self.options.on_epoch_end) or bool(p.pending or due)

    def catch_up(self) -> None:
        """Finish pending work before the next step: the validation of `valid_first`, or whatever was pending at the
        checkpoint that the run resumes from.
        """
        p = self.position
        if self.options.valid_first and p.step == 0 and self.validator.validated_step is None and not p.pending:
            p.pending, p.remaining_splits = "validation", tuple(self.validator.feeders)
        # A resumed run may have other validation splits than the one that was interrupted.
        p.remaining_splits = tuple(split for split in p.remaining_splits if split in self.validator.feeders)
        if p.pending and p.step == 0:
            # Not by `end_step`: 0 is a multiple of every period, so that it would call all hooks.
            if self.validator.run_pending_validation(p):
                self._offer_as_best(ended=None)
            self.timer.begin()
        elif p.has_closed_training:
            self.feeder.end_epoch(p.epoch, self.data_state)  # before the hooks, which may change the data
            self.end_epoch()
            self.save_if_due()
        elif p.pending:
            # As after a dispatch: the run was stopped before the hooks and the save of this step.
            self.end_step(ends_epoch=False)
            self.save_if_due()

    def end_epoch(self) -> None:
        """End an epoch whose training is complete: run its validation, the resulting decisions, and the hooks."""
        p = self.position
        if p.in_validation and not self.validator.run_pending_validation(p):
            return
        self.data_state = self.feeder.state_after(self._call_at_epoch_end, self.data_state)
        self.numbers.warn_of_missing(has_ended=False)
        # After the hooks, as their numbers belong to this epoch.
        self.reporter.put(EpochFinished(p.epoch, p.step))
        p.next_epoch()
        # After the validation, which may have ended members of a population.
        self.accumulator = self.runner.start("train")

    def _call_at_epoch_end(self) -> None:
        """Call the hooks at the end of an epoch. If one fails, the model of the epoch may still be the best, and a run
        that resumes from it calls them again.
        """
        p, before = self.position, list(self.runner.leaves)
        p.pending = "hooks"
        try:
            self._hooks.call(self.options.on_epoch_end, p, at_step=None)
        except Exception:
            # A resumed run would repeat a hook's change of the model. And other processes may not have failed.
            is_same = all(a is b for a, b in zip(before, self.runner.leaves, strict=True))
            if is_same and not self.stop.is_shared:
                with contextlib.suppress(Exception):  # the error of the hook is the one that is raised
                    self._offer_as_best(ended=p.epoch, at_stop=True)  # a resumed run saves this step again
            raise
        p.pending = ""

    def _close_train(self) -> None:
        """Report the train split's values over the epoch."""
        p = self.position
        with OomContext("train"):
            # Donates the metrics' states: `end_epoch` begins the next epoch with the returned buffers.
            values = self.runner.values("train", self.accumulator)
        self.reporter.put(SplitFinished("train", p.epoch, p.step, None, values))
        for text in self.feeder.describe_state(self.data_state):
            self.reporter.log.info("train: epoch %d, step %d: %s", p.epoch, p.step, text)

    # -- for loops of the user's ---------------------------------------------------------------------------------------

    def model(self) -> Any:
        """Return the current model in eval mode. Its arrays are copies."""
        return self.runner.model()

    def scale_lr(self, factor: float) -> None:
        """Set the learning rate of the next steps to `factor` times the builder's. Checkpoints contain the factor: a
        resumed run scales its builder's learning rate by it.

        Raises:
          LearnerError: the factor is negative or not finite, or a `ReduceOnPlateau` sets the rate.
        """
        if not (is_finite(factor) and factor >= 0):
            raise LearnerError(f"scale_lr got {factor!r}; it needs a number, 0 or more", code="run-lr-scale")
        if self.validator.sets_lr:
            raise LearnerError(
                "scale_lr and ReduceOnPlateau both set the learning rate: use one of them", code="run-lr-scale-plateau"
            )
        self.runner.scale_lr(factor)
        self.position.lr_factor = float(factor)

    def log_numbers(self, numbers: Mapping[str, Any]) -> None:
        """Log numbers by name as the split `custom` at this step. If one is monitored, arrays are read now, and all
        processes must call this; otherwise they are read later.
        """
        self.numbers.log(numbers, self.position, self.position.step)

    def warn(self, text: str) -> None:
        """Show a warning to people, and log it. May be called from any thread."""
        self.reporter.warn(text)

    # -- between two dispatches ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise errors from the run's threads, and `NonFiniteError` for values that are not finite."""
        # First, and without waiting: nothing is dispatched once a thread of the run has failed.
        self._check_threads()
        if self.profiler is not None and self.profiler.advance(self.position.step):
            self.timer.begin()
        # The processes count these calls to meet at the same one, so none may skip a call.
        self.stop.sync(self.position.step)
        if not self.stop.may_have_halted:
            return
        if self.stop.is_shared:
            self.reporter.wait()  # now every process has read the step that halted one of them
        self._check_numbers()

    def _check_threads(self) -> None:
        self.reporter.check()
        if self.saver is not None:
            self.saver.check()

    def _check_numbers(self) -> None:
        halted = self.reporter.halted
        if halted is None or self.stop.decision is not None:
            return
        text = nonfinite_text(halted.kind, halted.step)
        population = self.options.population
        in_wave = population is not None and population.wave is not None
        # An error would withhold the results of members that early stopping ended, or of the next waves.
        if in_wave or self.reporter.has_stopped_members:
            self.stop.decide(all_ended_text(len(population)))
            return
        if self.options.on_nonfinite.policy != "stop":
            # The loop is ahead of the device: make the journal and listeners report the step of the error.
            self.position.epoch, self.position.step = halted.epoch, halted.step
            raise self._nonfinite_error(text, halted)
        self.stop.decide(f"{NONFINITE}: {text}")

    def _nonfinite_error(self, text: str, halted: NonFiniteStop) -> NonFiniteError:
        policy, good = self.options.on_nonfinite, "There is no checkpoint before it"
        last: str | None = None
        if self.saver is not None:
            self.saver.write_best()
            self.reporter.wait()  # then wait for the writes, too, as the message names the last checkpoint
            self.saver.close()
            if entries := self.saver.store.entries:
                last = str(self.saver.store.path(entries[-1].step))
                good = f"The last checkpoint before it is {last}"
        before = f", as were those of the {policy.in_a_row - 1} steps before" if policy.policy == "skip" else ""
        advised = advice(halted.kind, self.feeder.bad_rows(), self.feeder.integers())
        return NonFiniteError(
            f"{text} (epoch {halted.epoch}){before}. {good}. {advised}",
            code="step-nonfinite",
            quantity=halted.kind,
            step=halted.step,
            epoch=halted.epoch,
            checkpoint=last,
        )

    def stop_reason(self) -> str | None:
        """Return why the run is over, or None."""
        steps = self.options.num_steps
        if reason := self.stop.reason:
            return reason
        return "num_steps" if steps is not None and self.position.step >= steps else None

    # -- checkpoints and the end ---------------------------------------------------------------------------------------

    def save_if_due(self) -> None:
        """Save if a checkpoint is due or requested. Called after everything else that is due at this step."""
        p, saver = self.position, self.saver
        if p.pending:
            return  # the run stops here: `finish` saves
        # `end_epoch` has moved the position on: batch 0 is right after the end of an epoch.
        ended = p.epoch - 1 if p.batch == 0 else None
        requested = self.stop.take_save_request()
        if saver is None:
            return
        if ended is None and self.stop_reason() == "num_steps" and self.validator.unvalidated(p.step):
            return  # `finish` validates first, so that the checkpoint has a score
        if requested or saver.is_due(ended, p.step):
            self.save(ended)
        else:
            self._offer_as_best(ended)

    def _offer_as_best(self, ended: int | None, at_stop: bool = False) -> None:
        """Copy the state if the monitored metric has a new value, for the reporter to keep if it is the best."""
        saver = self.saver
        if saver is None or saver.best is None or not saver.is_measured(self.validator, self.position.step, ended):
            return
        saver.reserve_copy()  # before the copy is made: memory holds only a few of them
        # `at_end`: the copy counts only among the best, never among the newest.
        saver.keep_if_best(self._copied(ends_epoch=ended, at_stop=at_stop, at_end=True))
        self.timer.begin()

    def save(self, ends_epoch: int | None, at_stop: bool = False, at_end: bool = False) -> None:
        """Copy the state, and leave the rest of the save to the reporter and the saver.

        Args:
          ends_epoch: the epoch that ends at the checkpoint, or None.
          at_stop: True if the run is stopped here, rather than a checkpoint being due.
          at_end: True if the run ends here.
        """
        assert self.saver is not None
        self.saver.save(self._copied(ends_epoch=ends_epoch, at_stop=at_stop, at_end=at_end))
        self.timer.begin()  # a wait for the saver is not time of the next dispatch

    def _copied(self, **kind: Any) -> StateCopy:
        """Copy everything that the next dispatch changes: state, metrics in flight, position and decisions."""
        assert self.saver is not None
        self.stop.compare_processes()
        # The saver reads the position later, while the loop moves its own.
        p = dataclasses.replace(self.position)
        with OomContext(CHECKPOINT), self.timer.spent.saving():
            # Copies, as the next dispatch donates these arrays; they are made on the device, so nothing waits here.
            state = self.runner.copied_state()
            metrics = self.runner.copy(self.accumulator.metrics) if p.batch and not p.has_closed_training else None
        # This may be a meeting of the processes, which is in order because all of them save at the same steps.
        data = self.saver.gather_data_state(self.data_state)
        kept = {"lanes": self.runner.lanes, "epoch_changes": self.options.epoch_changes, **self.validator.get_state()}
        fields = {**kind, "data": data, **kept}
        return StateCopy(state, metrics, p, fields)

    def finish(self, reason: str) -> str:
        """End training: run the last validation of a run by steps, and save a checkpoint unless one exists. Return why
        the run ended; steps that are only read now may change the reason.
        """
        p = self.position
        # From here on, requests by files are answered as too late.
        self.stop.is_ending = True
        if self.stop.records is not None:
            self.stop.records.add_step(p.step, ended_by=reason)
        # The loop is ahead of the device: only after this wait is it known whether an earlier step has ended the run.
        self.reporter.wait()
        self._check_threads()
        self._check_numbers()
        if (halted := self.reporter.halted) is not None:
            # A batch of 1 stands for an epoch that has begun, which `shown_epoch` needs.
            p.epoch, p.step, p.batch = halted.epoch, halted.step, 1  # the later steps do not count
            return self.stop.decision or reason
        # Also of a run that neither validates nor saves.
        self.stop.compare_processes(f"the end of the training after step {p.step}")
        inside = p.batch > 0
        if inside and reason == "num_steps" and (left := self.validator.unvalidated(p.step)):
            # Checked first, as `pending` below is part of the position.
            saved = self.saver is not None and self.saver.is_saved(p)
            p.pending, p.remaining_splits = "validation", left
            # Without the decisions of a validation: a longer run would not have validated here.
            complete = self.validator.validate(p, at_step=p.step)
            if not complete:
                reason = self.stop_reason() or reason
            if complete or saved:  # a run that resumes there validates here again
                p.pending, p.remaining_splits = "", ()
        if self.saver is not None:
            with self.timer.spent.saving():
                self.saver.wait()  # only then are failed saves known
            if not self.saver.is_saved(p):
                requested, ended = self.stop.stop_requested, None if inside else (p.epoch - 1 or None)
                # One that is due counts among the newest in a longer run as well.
                at_end = not requested and not (inside and self.saver.is_due(None, p.step))
                self.save(ended, at_stop=requested, at_end=at_end)
        # After the save, which copies the metrics in flight: closing the split donates their states.
        if inside and reason == "num_steps":
            self._close_train()
            self.validator.share_monitored(p.step)
            self.reporter.put(EpochFinished(p.epoch, p.step))
        self.numbers.warn_of_missing(has_ended=not self.stop.stop_requested)
        return reason
