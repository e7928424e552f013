"""The items that a run hands to its reporter, in order."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from learner.events import Event
from learner.steps.buffers import StepOutputs
from learner.training.reporting.timing import DispatchTime

PyTree = Any


@dataclasses.dataclass(frozen=True)
class StepsDispatched:
    """Steps that were dispatched; their values are still on the device.

    Attributes:
      split: such as `train`.
      epoch: the number of the epoch.
      first: the number of the first step: of the run for `train`, of the split otherwise.
      count: of steps.
      batches: of their micro-batches.
      in_epoch: steps of this epoch, or of this validation, up to the last one of these.
      total: the length of the epoch or the validation in steps, or None if unknown.
      step: optimizer steps of the run.
      values: on the device.
      rows: of their batches.
      time: of the loop for them.
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
    """The last steps of a split were dispatched; `values` by metric are still on the device."""

    split: str
    epoch: int
    step: int
    at_step: int | None
    values: Mapping[str, PyTree]


@dataclasses.dataclass(frozen=True)
class ValidationAborted:
    """A validation was interrupted. It runs again when the run is resumed."""

    split: str


@dataclasses.dataclass(frozen=True)
class EpochFinished:
    """An epoch and its validation are over."""

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
    """The end of a member of a population while others train: why, where, and True if its epoch is complete."""

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

    The future fails if the reporter does, also before it has come to this item.
    """

    fn: Callable[[], Any]
    answer: "Future[Any]"

    def run(self) -> None:
        """Fill the future, unless it was cancelled."""
        # Atomically: after this call the loop can no longer cancel it, and before it may do so at any time.
        if not self.answer.done() and self.answer.set_running_or_notify_cancel():
            self.answer.set_result(self.fn())

    def fail(self, error: BaseException) -> None:
        """Fail the future with an error of the reporter, unless it is done."""
        # A future that is running was being filled by `run`, on this thread, when the error came.
        if not self.answer.done() and (self.answer.running() or self.answer.set_running_or_notify_cancel()):
            self.answer.set_exception(error)


Item = StepsDispatched | SplitFinished | ValidationAborted | EpochFinished | Callback | Query | Event


@dataclasses.dataclass(frozen=True)
class ReporterSnapshot:
    """The reporter's part of a checkpoint: the values at one place in the order of its items.

    Attributes:
      log: the offsets of the logs.
      epoch_values: the closed values of the current epoch, by key.
      host_metrics: the states of metrics on the host, by split and name.
      rows: of collecting metrics in an epoch in progress, as `RowCollector.to_store` returns them.
      history: returns the history as JSON. It is called when the checkpoint is written: there may be very many values.
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
        """The fields of the checkpoint's progress but for the history."""
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
