"""The parts of one run, and what its loop does with them."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import logging
import platform as host
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from learner.checkpoint import CheckpointStore, Saver
from learner.checkpoint.best import BestSnapshot, Snapshot
from learner.checkpoint.store import FORMAT
from learner.distributed.consensus import Consensus
from learner.distributed.process_group import ProcessGroup
from learner.errors import LearnerError, NonFiniteError
from learner.events import EpochStarted, Message, Saved
from learner.records import Recorder
from learner.runs.metric_logs import NoFiles, RunFiles
from learner.schedules import ReduceOnPlateau
from learner.steps.finite import advice, nonfinite_text
from learner.steps.state import TrainState
from learner.training.executor import MetricAccumulator, Runner
from learner.training.feed.dispatches import Dispatch, Feeder
from learner.training.oom import CHECKPOINT, OomContext
from learner.training.options import Options
from learner.training.profiler import Profiler
from learner.training.reporter import Abandoned, Call, Closed, EpochClosed, Halt, Made, Pace, Worker
from learner.training.step_checks import Tracing
from learner.training.stopping import StopRequest
from learner.training.timing import TimeBreakdown
from learner.util.disk import is_full
from learner.util.json_values import encode

LONGEST_SHOWN = 500  # characters of what a hook returned
MANY_BATCHES = 1000  # of a validation of unknown length
NAMES = {"model": "model", "optim": "optimizer's state", "scheduler": "scheduler's state"}
IN_PLACE = ("cpu",)  # platforms whose memory is that of the host: a copy need not move to wait there


@dataclasses.dataclass
class Position:
    """Where a run is: in Python numbers of the loop.

    Attributes:
      epoch: the epoch under way, from 1.
      batch: micro-batches of it that were trained on.
      step: optimizer steps of the whole run.
      in_epoch: optimizer steps of this epoch.
      due: what the step before has still to do: a `validation` inside an epoch, or that of the `epoch`, and its end.
      left: the splits that this validation has still to make.
    """

    epoch: int = 1
    batch: int = 0
    step: int = 0
    in_epoch: int = 0
    due: str = ""
    left: tuple[str, ...] = ()

    @property
    def shown_epoch(self) -> int:
        """The epoch under way, or the last one when the next has not begun."""
        return self.epoch if self.batch or self.epoch == 1 else self.epoch - 1

    def advance(self, dispatch: Dispatch) -> None:
        """A dispatch was made."""
        self.batch += dispatch.batches
        self.step += dispatch.steps
        self.in_epoch += dispatch.steps

    def next_epoch(self) -> None:
        """The epoch is over."""
        self.epoch, self.batch, self.in_epoch = self.epoch + 1, 0, 0


@dataclasses.dataclass(frozen=True)
class EpochInfo:
    """What a hook is told.

    Attributes:
      epoch: the epoch that ended, or that is under way.
      step: optimizer steps so far.
      values: the newest value of every metric, by key.
    """

    epoch: int
    step: int
    values: Mapping[str, float | str]


@dataclasses.dataclass
class Run:
    """Everything that one `fit` owns. Its methods are the words of the loop in `learner.fit`."""

    options: Options
    runner: Runner
    worker: Worker
    files: RunFiles | NoFiles
    log: logging.Logger
    train_feeder: Feeder
    valid_feeders: dict[str, Feeder]
    steps_per_epoch: int | None
    valid_batches: dict[str, int | None]
    plateau: ReduceOnPlateau | None
    monitor: str
    higher_is_better: bool
    rebuild: Callable[[TrainState], Any]
    position: Position
    data_state: Any
    tally: MetricAccumulator
    pace: Pace
    clock: Callable[[], float]
    warn: Callable[[str], None]
    asked: StopRequest
    hosts: ProcessGroup
    fingerprint: Mapping[str, Any]
    spent: TimeBreakdown
    agreement: Consensus | None = None  # with the other processes, where there are several
    each_data: bool = False  # whether every process has data of its own
    store: CheckpointStore | None = None
    saver: Saver | None = None
    best: BestSnapshot | None = None  # None: only checkpoints that are due can be the best
    profiler: Profiler | None = None
    skipped_before: bool = False  # whether a step was, as it was not finite
    asked_at: dict[int, float] = dataclasses.field(default_factory=dict)  # when saves were asked for, by step
    longest_save: float = 0.0  # from being asked for until it was complete
    time_limit: float | None = None
    began: float = dataclasses.field(default_factory=time.monotonic)
    stopped_by: str = ""
    ending: bool = False  # whether its steps are over
    ended_by: str | None = None  # what was asked of any process before the end
    summary: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    stopped: str | None = None
    last_saved: Position | None = None  # where the newest checkpoint is
    logs_before: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the validation under way
    saved_at: float = dataclasses.field(default_factory=time.monotonic)
    validated_step: int | None = None
    announced: int | None = None
    since: float = 0.0  # by the worker's clock, from when on the next dispatch takes time

    # -- training ------------------------------------------------------------------------------------------------------

    def dispatches(self) -> Iterator[Dispatch]:
        """What is left to train, from the position on."""
        p, last = self.position, self.options.num_epochs
        opened = self.train_feeder.open(p.epoch, p.batch, p.step, last, self.is_pressed, self.data_state)
        self._begin_step()
        with contextlib.closing(opened) as dispatches, OomContext("train"):  # type: ignore[type-var]
            try:
                while (dispatch := self._next(dispatches)) is not None:
                    yield dispatch
            finally:
                if self.agreement is not None:
                    self.agreement.release()

    def _next(self, dispatches: Iterator[Dispatch]) -> Dispatch | None:
        began, compiled = self.worker.now(), self.spent.compiling()
        dispatch = next(dispatches, None)
        self.spent.waited(self.worker.idle(began), compiled)
        return dispatch

    def limit(self, step: int) -> int:
        """How many steps may be dispatched at `step`: up to the next thing that is due, and half a second of work."""
        saves = self.options.checkpoints.every_steps if self.options.checkpoints is not None else None
        periods = [self.options.valid_every, saves, *(every for every, _ in self.options.every)]
        due = [period - step % period for period in periods if period]
        if self.options.num_steps is not None:
            due.append(self.options.num_steps - step)
        if self.options.profile is not None and (room := self.options.profile.room(step)) is not None:
            due.append(room)
        pace = self.pace.steps if self.agreement is None else self.agreement.steps(step)
        return max(1, min([pace, *due]))

    def train(self, dispatch: Dispatch) -> None:
        """Hands a dispatch to the device and its values to the worker."""
        p = self.position
        if self.announced != dispatch.epoch:
            self.announced = dispatch.epoch
            self.worker.put(EpochStarted(self.clock(), dispatch.epoch, self.steps_per_epoch))
        self.worker.take_off()
        with OomContext("train"), Tracing("the train step", "train", dispatch.shapes):
            values = self.runner.train(self.tally, dispatch)
        first = p.step + 1
        p.advance(dispatch)
        self.data_state = dispatch.data_state
        numbers = dispatch.steps, dispatch.batches, p.in_epoch, self.steps_per_epoch, p.step
        apart, now = self.spent.apart(), self.worker.now()
        self.worker.put(Made("train", p.epoch, first, *numbers, values, dispatch.rows, self.since, apart, now))
        self.since = now

    def end_step(self, ends_epoch: bool) -> None:
        """What follows a dispatch. A validation that is cut short by a stop is due again when the run goes on."""
        p = self.position
        if self.profiler is not None and self.profiler.tracing and self._something_else_due(ends_epoch):
            self.profiler.end(self)
        if not p.due and self.validation_due(ends_epoch):
            p.due, p.left = "validation", tuple(self.valid_feeders)
        if not self.settled():
            return
        self.call_periodic_hooks()
        if ends_epoch:
            self.close_train()
            p.due, p.left = "epoch", tuple(self.valid_feeders)
            self.end_epoch()
        self._begin_step()

    def _something_else_due(self, ends_epoch: bool) -> bool:
        """Whether a validation or a hook comes before the next step."""
        hooks = any(self.position.step % every == 0 for every, _ in self.options.every)
        ends = ends_epoch and bool(self.valid_feeders or self.options.on_epoch_end)
        return hooks or ends or bool(self.position.due) or self.validation_due(ends_epoch)

    def _begin_step(self) -> None:
        """What comes now is for the next dispatch."""
        self.since = self.worker.now()
        self.spent.apart()

    def catch_up(self) -> None:
        """What the checkpoint that the run goes on from had still to do."""
        self.position.left = tuple(split for split in self.position.left if split in self.valid_feeders)
        if self.position.due == "epoch":
            self.end_epoch()
            self.save_if_due()
        elif self.position.due:
            self.end_step(ends_epoch=False)
            self.save_if_due()

    def end_epoch(self) -> None:
        """Closes an epoch whose training is closed: its validation, the decisions that follow, the hooks."""
        p = self.position
        if not self.settled():
            return
        self.call_hooks(self.options.on_epoch_end, at_step=None)
        self.worker.put(EpochClosed(p.epoch, p.step))
        p.next_epoch()

    def close_train(self) -> None:
        """The train split's values over the epoch; its metrics begin anew."""
        p = self.position
        with OomContext("train"):
            values = self.runner.values("train", self.tally)
        self.worker.put(Closed("train", p.epoch, p.step, None, values))
        self.tally = self.runner.start("train")

    # -- validation ----------------------------------------------------------------------------------------------------

    def validation_due(self, ends_epoch: bool) -> bool:
        """Whether a validation inside an epoch is due. The end of an epoch has one of its own."""
        every = self.options.valid_every
        due = every is not None and self.position.step % every == 0
        return due and bool(self.valid_feeders) and not ends_epoch

    def settled(self) -> bool:
        """Makes the validation that is due, if any, and what it decides; `False` if it was cut short."""
        p = self.position
        if p.due and not self.validate(at_step=None if p.due == "epoch" else p.step):
            return False
        if p.due:
            self.decide()
        p.due = ""
        return True

    def validate(self, at_step: int | None) -> bool:
        """The splits that are left. It reads the state and changes nothing; `False` if it was cut short."""
        p = self.position
        for split in p.left:
            self.worker.put(Call(self._mark_logs))
            feeder, batches = self.valid_feeders[split], self.valid_batches[split]
            where = split, batches, p.epoch, p.step, at_step
            turn = self._counted_turn(split) if batches is None else lambda done: self._turn()
            with OomContext(split):
                if not validate(self.runner, feeder, self.worker, *where, self.is_pressed, turn, self.spent):
                    return False
            p.left = p.left[1:]
        self.validated_step = p.step
        return True

    def _counted_turn(self, split: str) -> Callable[[int], None]:
        """The turn in a validation of unknown length, which warns of one that may have no end."""
        trained = (self.position.step - (self.validated_step or 0)) * self.options.accumulate
        many = max(MANY_BATCHES, 10 * trained)
        warned = False

        def turn(done: int) -> None:
            nonlocal warned
            self._turn()
            if done >= many and not warned:
                warned = True
                self.warn(
                    f"the {split} data has given {done} batches and has not ended, and training {trained} since the "
                    "last validation: a validation reads all of it, and valid_batches(n) limits that"
                )

        return turn

    def _mark_logs(self) -> None:
        """On the worker's thread: a checkpoint of a validation that is cut short takes the logs back to its start."""
        self.logs_before = self.files.position()

    def decide(self) -> None:
        """Early stopping and the plateau scheduler look at the values of this step; only they make the loop wait for
        them.
        """
        if not (self.options.early_stopping or self.plateau):
            return
        values = self.newest(at=self.position.step)
        for stopping in self.options.early_stopping:
            reason = stopping.update(values)
            self.stopped = self.stopped or (reason and f"early stopping: {reason}")
        if self.plateau is not None and (rate := self.plateau.rate) != self.plateau.update(values):
            self.log.info("step %d: learning rate %g -> %g", self.position.step, rate, self.plateau.rate)
            self.runner.set_lr_scale(self.plateau.rate)

    def newest(self, at: int | None = None) -> dict[str, float | str]:
        """The newest value of every metric, or of those that were measured at a step; waits until the worker has read
        them.
        """
        self.worker.wait()
        last = {key: self.worker.history.last(key) for key in self.worker.history}
        return {key: point.value for key, point in last.items() if point is not None and at in (None, point.step)}

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def call_periodic_hooks(self) -> None:
        """Those of `every(steps=n)` that are due."""
        due = [fn for every, fn in self.options.every if self.position.step % every == 0]
        self.call_hooks(due, at_step=self.position.step)

    def call_hooks(self, hooks: list[Callable[..., Any]], at_step: int | None) -> None:
        """Calls each with `(info, model)`; the numbers that they return are logged as the split `custom`."""
        if not hooks:
            return
        p = self.position
        numbers: dict[str, Any] = {}
        info = EpochInfo(p.epoch, p.step, self.newest())
        if self.worker.halted is not None:
            return
        model = self.model()
        for hook in hooks:
            numbers |= _numbers(hook, hook(info, model))
        if numbers:
            self.worker.put(Closed("custom", p.epoch, p.step, at_step, numbers))

    def model(self) -> Any:
        """The model as it stands, in eval mode, with arrays of its own."""
        return self.rebuild(self.runner.copy(self.runner.state))

    def log_numbers(self, numbers: Mapping[str, Any]) -> None:
        """Numbers of a loop of one's own, by name, as the split `custom` at this step; arrays are read later."""
        p = self.position
        self.worker.put(Closed("custom", p.epoch, p.step, p.step, dict(numbers)))

    # -- the end -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Between two dispatches: raises what went wrong in a thread of the run, or in its numbers."""
        self._check_threads()
        if self.profiler is not None and self.profiler.turn(self):
            self._begin_step()
        if self.agreement is not None:
            self._turn(self.position.step)
            if not self.agreement.halted:
                return
            self.worker.wait()  # every process has now read the step that one of them has read
        self._check_numbers()

    def _turn(self, step: int | None = None) -> None:
        """Meets the other processes, if it is time."""
        if self.agreement is None:
            return
        self.agreement.turn(self._word, step)
        if self.agreement.reason is not None and self.asked.reason is None:
            self.asked.to_stop(self.agreement.reason)

    def _word(self) -> dict[str, Any]:
        save, self.asked.save = self.asked.save, False
        return {
            "reason": self._own_reason(),
            "save": save,
            "since": time.monotonic() - self.saved_at,
            "halted": self.worker.halted is not None,
            "pace": self.pace.steps,
        }

    def _check_threads(self) -> None:
        self.worker.check()
        if self.saver is not None:
            self.saver.check()

    def _check_numbers(self) -> None:
        halted = self.worker.halted
        if halted is None or self.stopped is not None:
            return
        text = nonfinite_text(halted.kind, halted.step)
        if self.options.on_nonfinite.policy != "stop":
            # The loop is ahead of the device: the journal and listeners name the step that the error names.
            self.position.epoch, self.position.step = halted.epoch, halted.step
            raise self._nonfinite(text, halted)
        self.stopped = f"on_nonfinite: {text}"

    def _nonfinite(self, text: str, halted: Halt) -> NonFiniteError:
        policy, saved = self.options.on_nonfinite, None
        if self.store is not None and self.saver is not None:
            self.write_best()
            self.worker.wait()
            self.saver.close()  # one that was made before may still be under way
            saved = self.store.entries[-1] if self.store.entries else None
        before = f", as were those of the {policy.in_a_row - 1} steps before" if policy.policy == "skip" else ""
        good = (
            "There is no checkpoint before it"
            if saved is None or self.store is None
            else (f"The last checkpoint before it is {self.store.path(saved.step)}")
        )
        return NonFiniteError(f"{text} (epoch {halted.epoch}){before}. {good}. {advice(halted.kind)}")

    def skipped(self, step: int, kind: str) -> None:
        """On the worker's thread: a step has a loss or gradients that are not finite. People see the first one, the
        log has all.
        """
        text = nonfinite_text(kind, step)
        if self.options.on_nonfinite.policy != "skip":
            self.log.warning(text)
        elif self.skipped_before:
            self.log.warning("%s: it is skipped", text)
        else:
            self.skipped_before = True
            self.warn(
                f"{text}: it is skipped, and so are further ones, up to {self.options.on_nonfinite.in_a_row} in a row"
            )

    def overflowed(self, step: int, scale: int) -> None:
        """On the worker's thread: the gradients of a step overflowed, as a loss scale makes them do now and then."""
        self.log.info("the gradients of step %d overflowed: it is skipped, and the loss scale is now %d", step, scale)

    def tell(self, text: str) -> None:
        """Something that people want to see, in the log and on the screen, from any thread."""
        self.log.info("%s", text)
        self.say(text)

    def say(self, text: str) -> None:
        """The same on the screen alone."""
        self.worker.put_soon(Message(self.clock(), logging.INFO, text))

    def interrupt(self, reason: str) -> None:
        """Ends the run as a signal would."""
        self.asked.to_stop(reason)

    def pressing_reason(self) -> str | None:
        """Why the run has to end now, be it in the middle of a validation or of a wait for data; or `None`."""
        return self._own_reason() if self.agreement is None else self.agreement.reason

    def _own_reason(self) -> str | None:
        interrupter = self.options.interrupter
        if self.asked.reason:
            return self.asked.reason
        if interrupter is not None and interrupter.reason:
            return f"interrupter: {interrupter.reason}"
        return "time limit" if self._out_of_time() else None

    def is_pressed(self) -> bool:
        """Whether there is such a reason."""
        return self.pressing_reason() is not None

    def stop_reason(self) -> str | None:
        """Why the run is over, or `None`."""
        steps = self.options.num_steps
        if pressing := self.pressing_reason():
            return pressing
        if self.stopped:
            return self.stopped
        return "num_steps" if steps is not None and self.position.step >= steps else None

    def _out_of_time(self) -> bool:
        """Whether what is left of the time limit is needed to save and to end."""
        if self.time_limit is None:
            return False
        saves = 3 if self.best is not None and self.best.waits() else 2
        kept_back = max(saves * self.longest_save, min(30.0, self.time_limit / 20))
        return time.monotonic() - self.began >= self.time_limit - kept_back

    def finish(self, reason: str) -> str:
        """The end of training: the last validation and checkpoint of a run by steps, a checkpoint where none was made
        yet. Why it ended: steps that were under way may say so only now.
        """
        p = self.position
        self.ending = True
        self.worker.wait()
        self._check_threads()
        self._check_numbers()
        if (halted := self.worker.halted) is not None:
            p.epoch, p.step, p.batch = halted.epoch, halted.step, 1  # where it stands: what came after was in vain
            return self.stopped or reason
        inside = p.batch > 0
        if inside and reason == "num_steps" and self.valid_feeders and self.validated_step != p.step:
            saved = self.last_saved == p
            p.due, p.left = "validation", tuple(self.valid_feeders)
            complete = self.validate(at_step=p.step)
            if not complete:
                reason = self.stop_reason() or reason
            if complete or saved:  # a run that goes on from there comes by here again
                p.due, p.left = "", ()
        if self.saver is not None:
            with self.spent.saving():
                self.saver.wait()
        if self.options.checkpoints is not None and self.last_saved != p:
            pressed = self.is_pressed()
            self.save(None if inside else (p.epoch - 1 or None), at_stop=pressed, at_end=not pressed)
        if inside and reason == "num_steps":
            self.close_train()
            self.worker.put(EpochClosed(p.epoch, p.step))
        return reason

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save_if_due(self) -> None:
        """Between two dispatches, after whatever else is due at this step."""
        p, options = self.position, self.options.checkpoints
        if p.due:
            return  # the run stops here: `finish` saves
        ended = p.epoch - 1 if p.batch == 0 else None
        said: Any = self.asked if self.agreement is None else self.agreement
        asked, said.save = said.save, False
        since = time.monotonic() - self.saved_at if self.agreement is None else self.agreement.since
        if options is not None and (asked or options.due(ended, p.step, since)):
            self.save(ended)
        elif self.best is not None and (ended is not None or self._monitored_now()):
            self._copy_for_best(self.best, ended)

    def _monitored_now(self) -> bool:
        """Return True after a validation inside an epoch that measured the monitored metric."""
        measured = self.monitor.partition("/")[0] in self.valid_feeders
        return measured and self.validated_step == self.position.step

    def save(self, ends_epoch: int | None, at_stop: bool = False, at_end: bool = False) -> None:
        """Copies the state, and leaves the rest of the save to the worker and the saver.

        Args:
          ends_epoch: the epoch that the checkpoint is the end of.
          at_stop: whether it is made because the run is stopped here, rather than because one was due.
          at_end: the same of a run that has come to its end.
        """
        copied = self._copied(ends_epoch=ends_epoch, at_stop=at_stop, at_end=at_end)
        if self.agreement is not None:
            self.agreement.since = 0.0
        self.last_saved = p = copied[2]
        self.saved_at = self.asked_at[p.step] = time.monotonic()
        self.worker.put(Call(lambda: self._complete_save(*copied)))

    def _copy_for_best(self, best: BestSnapshot, ends_epoch: int | None) -> None:
        """Copy the state, and let the worker keep it if it is the best so far.

        The copy does not wait for the device. It waits for the worker where that has earlier copies to decide about,
        so that memory holds only so many of them.
        """

        def check() -> None:
            self.worker.check()
            self.hosts.heed()

        with self.spent.saving():
            best.reserve(check)
        # `at_end`: it counts as one of the best only, and never as one of the newest.
        copied = [self._copied(ends_epoch=ends_epoch, at_stop=False, at_end=True)]
        # Popped, as the worker holds its last items until the next ones come, and the copy need not live as long.
        self.worker.put(Call(lambda: self._keep_if_best(best, *copied.pop())))

    def _keep_if_best(
        self, best: BestSnapshot, state: TrainState, metrics: Any, p: Position, known: Mapping[str, Any]
    ) -> None:
        """On the worker's thread, in order: the history has the value of the position."""
        try:
            if best.improves(self._score(p.step)):
                snapshot = self._snapshot(state, metrics, p, known)
                if snapshot is not None:
                    in_place = self.runner.strategy.platform in IN_PLACE
                    with OomContext(CHECKPOINT):
                        best.keep(snapshot if in_place else snapshot.to_host())
        finally:
            best.release()

    def write_best(self) -> None:
        """Hand the best snapshot to the saver, unless it is written already; in order with what was put before."""
        self.worker.put(Call(self.submit_best))

    def finish_best(self) -> None:
        """Wait until the best snapshot is on the disk: a run that fails writes nothing else."""
        self.write_best()
        self.worker.wait()
        if self.saver is not None:
            self.saver.wait()

    def submit_best(self) -> None:
        """Do so now: on the worker's thread, or when that has ended."""
        if self.best is not None and (snapshot := self.best.take()) is not None:
            self._submit(snapshot)

    def _submit(self, snapshot: Snapshot) -> None:
        assert self.saver is not None
        self.asked_at.setdefault(snapshot.step, time.monotonic())
        with OomContext(CHECKPOINT), self.spent.saving_on_worker():
            snapshot = snapshot.to_devices()
            self.saver.submit(snapshot.state, snapshot.full_progress, snapshot.further)

    def _copied(self, **kind: Any) -> tuple[TrainState, Any, Position, dict[str, Any]]:
        """Copy what the next dispatch changes: the state, the metrics in flight, the position, the decisions."""
        p = dataclasses.replace(self.position)
        with OomContext(CHECKPOINT), self.spent.saving():
            state = self.runner.copy(self.runner.state)
            metrics = self.runner.copy(self.tally.metrics) if p.batch and p.due != "epoch" else None
        decisions = {
            "data": self._each_state() if self.each_data else self.data_state,
            "early_stopping": [stopping.get_state() for stopping in self.options.early_stopping],
            "plateau": None if self.plateau is None else self.plateau.get_state(),
            "validated_step": self.validated_step,
        }
        return state, metrics, p, {**kind, **decisions}

    def _each_state(self) -> dict[str, Any]:
        """Where the data of each process is."""
        return {"processes": self.hosts.meet(self.data_state, "save")}

    def _complete_save(self, state: TrainState, metrics: Any, p: Position, known: Mapping[str, Any]) -> None:
        """On the worker's thread, in order: history and log lengths are those of the position."""
        best, at_stop = self.best, known["at_stop"]
        repeats = best is not None and best.waits(p.step)
        if repeats and at_stop:
            # This position is the best already, so its checkpoint stays when the run that stops here is resumed.
            known = {**known, "at_stop": False, "at_end": True}
        snapshot = self._snapshot(state, metrics, p, known)
        if snapshot is None:
            self.asked_at.pop(p.step)
            return
        if best is not None and (repeats or (not at_stop and best.improves(snapshot.progress["score"]))):
            best.keep(snapshot, writing=True)
        # The best comes first, so that a run that is killed between the two, and resumed from the older checkpoint,
        # trains the rest again. A run that has to stop saves its last step first: it may not have the time for both.
        if not at_stop:
            self.submit_best()
        self._submit(snapshot)
        self.submit_best()

    def _score(self, step: int) -> float | None:
        """The value of the monitored metric at a step, if it is a finite number."""
        point = self.worker.history.last(self.monitor)
        if point is None or point.step != step or isinstance(point.value, str) or not np.isfinite(point.value):
            return None
        return point.value

    def _snapshot(self, state: TrainState, metrics: Any, p: Position, known: Mapping[str, Any]) -> Snapshot | None:
        """Everything of a checkpoint, or None where its state is not finite. On the worker's thread."""
        with OomContext(CHECKPOINT):
            nonfinite = int(np.asarray(state.extra["nonfinite"])[0]) > 0
        if nonfinite:
            return None
        assert int(state.step) == p.step, f"the loop counted {p.step} steps, the device {int(state.step)}"
        progress = {
            "format": FORMAT,
            "step": p.step,
            "position": dataclasses.asdict(p),
            "fingerprint": self.fingerprint,
            "monitor": self.monitor,
            "higher_is_better": self.higher_is_better,
            "score": self._score(p.step),
            "root_key": np.asarray(jax.random.key_data(state.rng)).tolist(),
            "key_impl": str(jax.random.key_impl(state.rng)),
            "log": self.logs_before if p.due else self.files.position(),
            "epoch_values": self.worker.epoch_values,
            "host_metrics": self.worker.host_states(),
            "config": self.options.config_kept,
            "made_on": platform_facts(),
            **known,
        }
        further = {}
        if metrics is not None:
            states = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(metrics))}
            further["in_flight"] = {"states": states, "rows": _rows_to_store(self.worker)}
        return Snapshot(state, encode(progress), self.worker.history.copy().to_json, further)

    def record(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        """On the saver's thread: writes parts of a complete checkpoint into files of their own."""
        options = self.options.checkpoints
        assert self.store is not None
        if options is None or options.record is None:
            return
        step = progress["step"]
        for item in options.record_items:
            if item == "optim" and not jax.tree.leaves(state.opt_state):
                continue  # there is nothing to record
            recorder = options.record if item == "model" else options.record.in_full()
            write = functools.partial(self._write_record, recorder, item, state)
            try:
                path = self.store.record(step, recorder.extension, write, item)
            except Exception as error:
                what = f"the {NAMES[item]} of step {step} could not be recorded beside {self.store.path(step)}"
                if self.options.on_save_error == "raise":
                    error.add_note(f"{what}, which is complete")
                    raise
                self.warn(f"{what}, and training goes on: {type(error).__name__}: {error}")
            else:
                if path is not None:
                    self.log.info("recorded %s", path)

    def _write_record(self, recorder: Recorder, item: str, state: TrainState, file: Any) -> None:
        if item == "model":
            recorder.write(self.rebuild(state), file)
        elif item == "optim":
            recorder.write(state.opt_state, file)
        else:
            recorder.write({"step": state.step, "lr_scale": state.lr_scale}, file)

    def saved(self, progress: Mapping[str, Any], seconds: float) -> None:
        """On the saver's thread: a checkpoint is complete."""
        assert self.store is not None
        step, epoch = progress["step"], progress["ends_epoch"] or progress["position"]["epoch"]
        path = self.store.path(step)
        self.log.info("saved %s in %.2f s", path, seconds)
        self.longest_save = max(self.longest_save, time.monotonic() - self.asked_at.pop(step))
        if self.best is not None:
            self.best.written(step)
        self.worker.put_soon(Call(lambda: self.files.journal("save", step=step, path=str(path))))
        self.worker.put_soon(Saved(self.clock(), epoch, step, path, seconds))

    def not_saved(self, progress: Mapping[str, Any], error: Exception) -> None:
        """On the saver's thread: a checkpoint could not be written, and the run goes on."""
        assert self.store is not None
        step = progress["step"]
        self.asked_at.pop(step, None)
        if self.best is not None:
            self.best.failed(step)
        if self.last_saved is not None and self.last_saved.step == step:
            self.last_saved = None  # the end of the run tries again
        what = f"could not be written to {self.store.path(step)}, and training goes on: {type(error).__name__}: {error}"
        self.warn(f"the checkpoint of step {step} {what}")
        if not is_full(error):  # the log needs the room that is left
            self.log.info("the traceback:", exc_info=error)


def _numbers(hook: Callable[..., Any], returned: Any) -> dict[str, np.float32]:
    """What a hook returned, as numbers to log."""
    if returned is None:
        return {}
    try:
        return {str(name): np.float32(np.asarray(value, np.float32).item()) for name, value in dict(returned).items()}
    except (TypeError, ValueError, OverflowError):  # the last one of a whole number beyond all floats
        name = getattr(hook, "__name__", type(hook).__name__)
        raise LearnerError(
            f"the hook {name} returned {_shown(returned)}; it may return numbers to log, by name, such as "
            "{'norm': 1.5}, or None"
        ) from None


def _shown(returned: Any) -> str:
    """Return what a hook returned, for an error: Python refuses to write out whole numbers of thousands of digits."""
    try:
        text = repr(returned)
        return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    except Exception:  # of a `__repr__` of the user's
        return f"a {type(returned).__name__} that cannot be written out"


def validate(
    runner: Runner,
    feeder: Feeder,
    worker: Worker,
    split: str,
    batches: int | None,
    epoch: int,
    step: int,
    at_step: int | None,
    stopped: Callable[[], bool] = lambda: False,
    turn: Callable[[int], None] = lambda done: None,
    spent: TimeBreakdown | None = None,
) -> bool:
    """One pass over a validation split. It ends early, and returns `False`, once `stopped()`; `turn(done)` is called
    before each dispatch with the batches so far.
    """
    tally, done, ended, since = runner.start("valid"), 0, False, worker.now()
    if spent is not None:
        spent.apart()
    dispatches = feeder.open(1, 0, 0, 1, stopped)
    try:
        for dispatch in dispatches:
            turn(done)
            if stopped():
                break
            ended = dispatch.ends_epoch
            worker.take_off()
            with Tracing("valid_step", split, dispatch.shapes):
                values = runner.valid(tally, dispatch)
            first, done = done + 1, done + dispatch.steps
            numbers = dispatch.steps, dispatch.batches, done, batches, step
            apart = 0.0 if spent is None else spent.apart()
            now = worker.now()
            worker.put(Made(split, epoch, first, *numbers, values, dispatch.rows, since, apart, now))
            since = now
    finally:
        dispatches.close()  # type: ignore[attr-defined]
    if not ended:
        worker.put(Abandoned(split))
        return False
    worker.put(Closed(split, epoch, step, at_step, runner.values("valid", tally)))
    return True


def _rows_to_store(worker: Worker) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for split, metrics in worker.collected.items():
        for index, parts in enumerate(metrics.values()):
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            rows.setdefault(split, {})[str(index)] = {str(i): column for i, column in enumerate(columns)}
    return rows


@functools.cache
def platform_facts() -> dict[str, Any]:
    """Versions and hardware, on which the bits of a run depend besides its own program and data."""
    device = jax.devices()[0]
    return {
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "platform": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "machine": host.machine(),
        "python": host.python_version(),
    }
