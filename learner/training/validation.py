"""Validation: passes over the validation splits, and the decisions that follow from their values."""

from collections.abc import Callable, Mapping
from typing import Any

from learner.steps.finite import valid_advice
from learner.training.checks.step_tracing import Tracing
from learner.training.feed.dispatches import Feeder
from learner.training.member_decisions import MemberDecisions
from learner.training.monitors import monitored_on_host
from learner.training.options import NUMBERS
from learner.training.programs.executor import Runner
from learner.training.programs.oom import OomContext
from learner.training.progress.position import Position
from learner.training.reporting.messages import SplitFinished, StepsDispatched, ValidationAborted
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import StepTimer
from learner.training.spec import RunSpec
from learner.training.stopping import StopController
from learner.util.ownership import ThreadOwned

MANY_BATCHES = 1000  # of a validation of unknown length


class Validator(ThreadOwned):
    """Run validations, and apply early stopping and the plateau scheduler. It belongs to the loop's thread.

    Args:
      spec: the plan and the start of the run.
      runner: the programs.
      reporter: reads the values, and has the application log.
      timer: the timer of the loop.
      stop: interrupts a validation.
      feeders: the feeders of the splits, by name.
      members: the decisions about the members of a population, if they depend on values.

    Attributes:
      feeders: see above.
      validated_step: the optimizer step of the last complete validation, or None.
    """

    def __init__(
        self,
        spec: RunSpec,
        runner: Runner,
        reporter: Reporter,
        timer: StepTimer,
        stop: StopController,
        feeders: Mapping[str, Feeder],
        members: MemberDecisions | None,
    ):
        options, restored = spec.options, spec.restored
        self._runner, self._reporter, self._timer, self._stop = runner, reporter, timer, stop
        self.feeders = feeders
        self._batches = {split: source.batches for split, source in spec.inputs.valid.items()}
        self._schedule, self._accumulate = options.valid_schedule(list(feeders)), options.accumulate
        self._members = members
        # The members of a population have their own.
        self._early_stopping, self._plateau = ((), None) if spec.members else (options.early_stopping, spec.plateau)
        self._processes = spec.processes
        # Metrics on the devices are equal in all processes.
        self._on_host = monitored_on_host(options, list(spec.inputs.valid), spec.plateau)
        self.validated_step: int | None = None if restored is None else restored.progress["validated_step"]
        self._logged_at: dict[str, int] = {}  # the step of the newest number of a hook, by name
        self.claim()

    def due(self, step: int, epoch: int | None = None) -> tuple[str, ...]:
        """Return the splits whose validation is due after a step. `epoch`: the epoch that ends there, or None."""
        return self._schedule.due(step, epoch)

    def has_validated(self, split: str, step: int, epoch: int | None) -> bool:
        """Return True if a split was validated after this step. `epoch`: the epoch that ended there, or None."""
        return self.validated_step == step and (step == 0 or split in self.due(step, epoch))

    def has_logged(self, name: str, step: int) -> bool:
        """Return True if a hook has returned this number after this step."""
        return self._logged_at.get(name) == step

    def unvalidated(self, step: int) -> tuple[str, ...]:
        """Return the splits that were not validated after a step inside an epoch."""
        if self.validated_step != step:
            return tuple(self.feeders)
        # If none was due, the validation was that of the run's last step, with all splits.
        due = self.due(step) or self.feeders
        return tuple(split for split in self.feeders if split not in due)

    @property
    def sets_lr(self) -> bool:
        """Return True if a plateau scheduler sets the learning rate."""
        return self._plateau is not None

    def run_pending_validation(self, p: Position) -> bool:
        """Run the validation that is pending at a position, if any, and apply early stopping and the plateau scheduler.
        Return False if it was interrupted.
        """
        if p.pending and not self.validate(p, at_step=None if p.pending == "epoch" else p.step):
            return False
        if p.pending:
            self._decide(p)
        p.pending = ""
        return True

    def validate(self, p: Position, at_step: int | None) -> bool:
        """Validate the remaining splits. This reads the state and changes nothing. Return False if interrupted."""
        # No splits remain at the end of an epoch without a due validation, at which metrics of train are measured.
        if p.remaining_splits and not self._validate_splits(p, at_step):
            return False
        self.share_monitored(p.step)
        return True

    def share_monitored(self, step: int) -> None:
        """Replace the values at a step that each process computes on its host by those of process 0, if a decision
        depends on them: the processes must decide alike. All of them must call it. Otherwise it does not wait.
        """
        if not self._on_host or self._processes.count == 1:
            return
        newest = self._reporter.newest(at=step)
        own = {key: float(newest[key]) for key in self._on_host if key in newest}
        values = self._processes.all_reduce_json(own, lambda each: each[0], "the monitored values")
        # In the history, from which the reporter takes the scores of checkpoints, and before they are due.
        self._reporter.replace_newest(values)

    def _validate_splits(self, p: Position, at_step: int | None) -> bool:
        self._stop.compare_processes()
        for split in p.remaining_splits:
            # Before anything of this split is logged: a checkpoint of an interrupted validation cuts the logs here.
            self._reporter.mark_logs()
            feeder, batches = self.feeders[split], self._batches[split]
            before = self._sync if batches is not None else self._warn_if_endless(split, p.step)
            with OomContext(split):
                complete = validate_split(
                    self._runner,
                    feeder,
                    self._reporter,
                    self._timer,
                    split,
                    batches,
                    p.epoch,
                    p.step,
                    at_step,
                    lambda: self._stop.stop_requested,
                    before,
                )
            if not complete:
                return False
            # Only once the split is complete: a resumed run repeats an interrupted split from its first batch.
            p.remaining_splits = p.remaining_splits[1:]
        self.validated_step = p.step
        return True

    def _sync(self, count: int) -> None:
        # All processes divide a validation into the same dispatches, so each calls this equally often.
        self._stop.sync()

    def _warn_if_endless(self, split: str, step: int) -> Callable[[int], None]:
        """Return the `before` of a validation of unknown length, which warns if the validation may not end."""
        trained = (step - (self.validated_step or 0)) * self._accumulate
        many = max(MANY_BATCHES, 10 * trained)
        warned = False

        def before(count: int) -> None:
            nonlocal warned
            self._stop.sync()
            if count >= many and not warned:
                warned = True
                self._reporter.warn(
                    f"the {split} data has given {count} batches and has not ended, and training {trained} since the "
                    "last validation: a validation reads all of it, and valid_batches(n) limits that"
                )

        return before

    def _decide(self, p: Position) -> None:
        """Apply early stopping and the plateau scheduler to the values of this step. Without them the loop does not
        wait for values.
        """
        if self._members is not None:
            self._stop.decide(self._members.update(p))
        if not (self._early_stopping or self._plateau):
            return
        # The decision must come before the next step, so the loop waits for the device here.
        values = self._reporter.newest(at=p.step)
        # A number of a hook at this step was applied when it was logged, and must not count twice.
        self._apply({key: value for key, value in values.items() if not key.startswith(NUMBERS)}, p.step)

    def apply_numbers(self, numbers: Mapping[str, Any], step: int) -> None:
        """Apply early stopping and the plateau scheduler to numbers by name that were logged after this step."""
        self._logged_at |= dict.fromkeys(numbers, step)
        self._apply({f"{NUMBERS}{name}": value for name, value in numbers.items()}, step)

    def _apply(self, values: Mapping[str, Any], step: int) -> None:
        for stopping in self._early_stopping:
            reason = stopping.update(values)
            self._stop.decide(reason and f"early stopping: {reason}")
        plateau = self._plateau
        if plateau is not None and (lr := plateau.lr) != plateau.update(values):
            self._reporter.log.info("step %d: %s %g -> %g", step, plateau.quantity, lr, plateau.lr)
            self._runner.set_lr_scale(plateau.lr)

    def get_state(self) -> dict[str, object]:
        """Return the state of all decisions for a checkpoint, as JSON."""
        own = {
            "early_stopping": [stopping.get_state() for stopping in self._early_stopping],
            "plateau": None if self._plateau is None else self._plateau.get_state(),
        }
        of_members = {} if self._members is None else self._members.get_state()
        return {**own, **of_members, "validated_step": self.validated_step}


def validate_split(
    runner: Runner,
    feeder: Feeder,
    reporter: Reporter,
    timer: StepTimer,
    split: str,
    batches: int | None,
    epoch: int = 1,
    step: int = 0,
    at_step: int | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
    before: Callable[[int], None] = lambda count: None,
) -> bool:
    """Run one pass over a validation split. Return False if it ended early because of `stop_requested()`.

    `before(count)` is called before each dispatch with the number of batches so far.
    """
    accumulator, last, ended = runner.start("valid"), 0, False
    timer.begin()
    dispatches = feeder.open(1, 0, 0, 1, stop_requested)
    try:
        for dispatch in dispatches:
            before(last)
            # After the meeting: all processes have its result, and leave before the same dispatch.
            if stop_requested():
                break
            ended = dispatch.ends_epoch
            reporter.acquire("valid", dispatch.steps)
            with Tracing("valid_step", split, dispatch.shapes):
                values = runner.valid(accumulator, dispatch)
            first, last = last + 1, last + dispatch.steps
            reporter.put(
                StepsDispatched(
                    split,
                    epoch=epoch,
                    first=first,
                    count=dispatch.steps,
                    batches=dispatch.batches,
                    in_epoch=last,
                    total=batches,
                    step=step,
                    values=values,
                    rows=dispatch.rows,
                    time=timer.lap(),
                )
            )
    finally:
        # Also if a step fails: otherwise the thread that prepares batches would wait forever for a free slot.
        dispatches.close()  # type: ignore[attr-defined]
    if not ended:
        reporter.put(ValidationAborted(split))
        return False

    def advice() -> str:  # only called for the first loss that is not finite, as it reads all of the data
        return valid_advice(feeder.bad_rows(), feeder.integers())

    reporter.put(SplitFinished(split, epoch, step, at_step, runner.values("valid", accumulator), advice))
    return True
