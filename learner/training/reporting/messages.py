"""The items that a run hands to its reporter, in order."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from learner.events import Event
from learner.steps.buffers import StepOutputs
from learner.steps.finite import valid_advice
from learner.training.reporting.timing import DispatchTime

PyTree = Any


@dataclasses.dataclass(frozen=True)
class StepsDispatched:
    """Dispatched steps, whose values are still on the device.

    Attributes:
      split: the split, such as `train`.
      epoch: the number of the epoch.
      first: the number of the first step: in the run for `train`, in the split otherwise.
      count: the number of steps.
      batches: the number of their micro-batches.
      in_epoch: the number of steps in this epoch or validation, up to and including the last one.
      total: the length of the epoch or the validation in steps, or None if unknown.
      step: optimizer steps of the run.
      values: the outputs on the device.
      rows: the number of rows in their batches.
      time: the loop's time for them.
    """

    split: str
    epoch: int
    first: int
    count: int
    batches: int
    in_epoch: int
    total: int | None
    step: int
    values: StepOutputs
    rows: int = 0
    time: DispatchTime = dataclasses.field(default_factory=DispatchTime)

    @property
    def kind(self) -> str:
        """`train` or `valid`."""
        return "train" if self.split == "train" else "valid"


@dataclasses.dataclass(frozen=True)
class SplitFinished:
    """The last steps of a split were dispatched; `values` by metric are still on the device. `advice` returns advice
    for a loss that is not finite.
    """

    split: str
    epoch: int
    step: int
    at_step: int | None
    values: Mapping[str, PyTree]
    advice: Callable[[], str] = valid_advice


@dataclasses.dataclass(frozen=True)
class ValidationAborted:
    """A validation was interrupted. It runs again when the run is resumed."""

    split: str


@dataclasses.dataclass(frozen=True)
class EpochFinished:
    """An epoch and its validation have ended."""

    epoch: int
    step: int


@dataclasses.dataclass(frozen=True)
class NonFiniteStop:
    """The step that ended the run because a value of this `kind` is not finite."""

    epoch: int
    step: int
    kind: str


@dataclasses.dataclass(frozen=True)
class MemberStop:
    """The end of a member of a population while others train: the reason, the position, and True if its epoch is
    complete.
    """

    reason: str
    epoch: int
    step: int
    ends_epoch: bool


@dataclasses.dataclass(frozen=True)
class Callback:
    """A function to call on the reporter's thread, in order."""

    fn: Callable[[], None]


@dataclasses.dataclass(frozen=True)
class Query:
    """A function to call on the reporter's thread, in order, and the future of its result.

    The future fails if the reporter fails, even before it reaches this item.
    """

    fn: Callable[[], Any]
    answer: "Future[Any]"

    def run(self) -> None:
        """Fill the future, unless it was cancelled."""
        # Atomic: after this call the loop can no longer cancel the future; before it, it can at any time.
        if not self.answer.done() and self.answer.set_running_or_notify_cancel():
            self.answer.set_result(self.fn())

    def fail(self, error: BaseException) -> None:
        """Fail the future with an error of the reporter, unless it is done."""
        # A running future was being filled by `run`, on this thread, when the error occurred.
        if not self.answer.done() and (self.answer.running() or self.answer.set_running_or_notify_cancel()):
            self.answer.set_exception(error)


Item = StepsDispatched | SplitFinished | ValidationAborted | EpochFinished | Callback | Query | Event


@dataclasses.dataclass(frozen=True)
class ReporterSnapshot:
    """The reporter's part of a checkpoint: the values at one position in the order of its items.

    Attributes:
      log: the offsets of the logs.
      epoch_values: the values of finished splits of the current epoch, by key.
      host_metrics: the states of metrics on the host, by split and name.
      rows: the rows of collecting metrics in an epoch in progress, as returned by `RowCollector.to_store`.
      history: returns the history as JSON. Called when the checkpoint is written, as the history may be very long.
      halted: the step that ended the run, or a member of a population, or None.
      stopped: the end of a member of a population, or None.
      members: the parts of the members of a population.
    """

    log: Mapping[str, Any]
    epoch_values: Mapping[str, float | str]
    host_metrics: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, Any]
    history: Callable[[], dict[str, Any]]
    halted: NonFiniteStop | None = None
    stopped: MemberStop | None = None
    members: "Sequence[ReporterSnapshot]" = ()

    @property
    def progress(self) -> dict[str, Any]:
        """The fields of the checkpoint's progress, except for the history."""
        return {"log": self.log, "epoch_values": self.epoch_values, "host_metrics": self.host_metrics}

    @property
    def of_member(self) -> dict[str, Any]:
        """The progress of a member of a population."""
        ends: dict[str, Any] = {"halted": self.halted, "stopped": self.stopped}
        ends = {name: None if end is None else dataclasses.asdict(end) for name, end in ends.items()}
        return {**self.progress, "history": self.history(), **ends}

    @property
    def all_rows(self) -> Mapping[str, Any]:
        """The rows of the run, in a population by the index of the member."""
        return {str(i): m.rows for i, m in enumerate(self.members) if m.rows} if self.members else self.rows
