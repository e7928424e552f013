"""The processes of one run, on one machine or many, and their communication.

    learner.init_distributed("10.0.0.1:1234", num_processes=2, process_id=0)  # in process 0, before JAX is used
    here = hosts()
    here.all_gather_json({"stop": False})  # in both: [{'stop': False}, {'stop': False}]

They exchange values through the key-value store of JAX's coordination service in process 0. A meeting does not involve
the devices. It takes two messages per process, about 1 ms between processes of one machine. Devices exchange arrays
without the store.

JAX's heartbeats detect a process that ends without notice: JAX then ends the others, from C++, with SIGABRT.
"""

import abc
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from learner.distributed.departure import ENDED, FAILED, cancel_leave_at_exit, store_failure
from learner.distributed.differences import describe_difference, named_processes
from learner.distributed.pass_records import PassRecords
from learner.errors import LearnerError, ProcessError
from learner.util.jax_internals import distributed_state

Json = Any

MEETING = 300.0  # seconds
SLICES = (0.1, 1.0)  # seconds of the first and of any later wait; Python handles signals only in between

ONCE = "what process 0 does alone"


class ProcessGroup(abc.ABC):
    """The processes of a run. Each process must call the same methods in the same order.

    Attributes:
      index: the index of this process, from 0.
      count: the number of processes.
      timeout: seconds that a meeting waits for a process.
    """

    index: int
    count: int
    timeout: float = math.inf

    @abc.abstractmethod
    def all_reduce_json(
        self, value: Json, combine: Callable[[list[Json]], Json], what: str = "", patient: bool = False
    ) -> Json:
        """Wait for all processes, and return `combine(values)`, which process 0 computes from the values of all in
        their order. The size of each process's messages does not grow with the number of processes.

        Args:
          value: a JSON value.
          combine: a function that returns a JSON value.
          what: the meeting's name.
          patient: True to wait for process 0 as long as it lives, as it has work of its own before the meeting.

        Raises:
          LearnerError: a process has failed, does not come, or is at a meeting with another name.

        >>> SingleProcess().all_reduce_json(3, max)
        3
        """

    def all_gather_json(self, value: Json, what: str = "") -> list[Json]:
        """Wait for all processes, and return the values of all in their order. As in JSON, tuples become lists. For
        arguments and errors see `all_reduce_json`.
        """
        values: list[Json] = self.all_reduce_json(value, list, what)
        return values

    @abc.abstractmethod
    def fail(self, text: str) -> None:
        """Report to the others that this process has failed: they raise the error when they wait for it. It may be
        called at any time, even from an `except` around a meeting, and must be the last call.
        """

    def raise_if_peer_failed(self) -> None:  # noqa: B027 (a single process has no peers)
        """Raise `ProcessError` if another process has failed. This does not wait."""

    def record_read(  # noqa: B027
        self, split: str, number: int, batches: int, ended: bool, shapes: Sequence[str] = ()
    ) -> None:
        """Record the number of batches read in a pass over data, and their shapes, for `compare_passes`. Any thread may
        call it. Nothing is sent.

        Args:
          split: the split, such as `train`.
          number: the number of the pass, from 1.
          batches: the number of batches so far.
          ended: True at the end of the pass.
          shapes: the shapes of each batch since the last call, in this process; see
            `learner.distributed.batch_shapes`.
        """

    def shapes_read(self) -> dict[str, Json]:
        """Return the batches and the shapes of the latest passes, by split and number of the pass, as JSON: see
        `ShapeRuns`. Any thread may call it.
        """
        return {}

    def record_step(self, step: int, ended_by: str = "") -> None:  # noqa: B027
        """Record the last step that is dispatched, for `compare_passes`. Nothing is sent.

        Args:
          step: optimizer steps so far.
          ended_by: why the run ends after this step, or "".
        """

    def compare_passes(self) -> None:  # noqa: B027
        """Raise `ProcessError` in all processes if a pass over data has another length in the next process, or a batch
        of it other shapes, or if the next process has ended at an earlier step. This takes at most two messages. The
        processes compare in a ring, so one of them finds any difference.
        """

    def agree(self, what: str, value: Json, explain: Callable[[list[Json]], LearnerError | None] | None = None) -> None:
        """Verify that all processes have the same value.

        Args:
          what: the name of the value, for the message.
          value: the JSON value of this process.
          explain: returns the error for the values of all processes, or None for one that lists all differences.

        Raises:
          LearnerError: in every process if the values differ; the message lists them by process.

        >>> SingleProcess().agree("the seed", 3)
        """
        text = json.dumps(value, sort_keys=True)
        # Otherwise all processes would send the value to all, and configs are long.
        if not self.all_reduce_json(hashlib.sha256(text.encode()).hexdigest(), are_equal, what):
            values = self.all_gather_json(value, what)
            if explain is not None and (error := explain(values)) is not None:
                raise error
            raise LearnerError(describe_difference(what, values), code="process-values-differ")

    def run_on_primary(self, function: Callable[[], Json]) -> Json:
        """Call `function` only in process 0, and return its result in every process, for work in a shared directory.

        Raises:
          LearnerError: in every process, if `function` raises it.

        >>> SingleProcess().run_on_primary(lambda: 5)
        5
        """
        if self.index:
            outcome = self.all_reduce_json(None, _first, ONCE)
            if "raised" in outcome:
                raise LearnerError(outcome["raised"], code="process-once-failed")
            return outcome["returned"]
        try:
            returned = function()
        except LearnerError as error:
            # A `LearnerError` is the result of the meeting, which all raise; any other error is this process's failure.
            self.all_reduce_json({"raised": str(error)}, _first, ONCE)
            raise
        except BaseException as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise
        return self.all_reduce_json({"returned": returned}, _first, ONCE)["returned"]


class SingleProcess(ProcessGroup):
    """The only process of its run.

    >>> here = SingleProcess()
    >>> here.index, here.count, here.all_gather_json("hello")
    (0, 1, ['hello'])
    """

    index, count = 0, 1

    def all_reduce_json(
        self, value: Json, combine: Callable[[list[Json]], Json], what: str = "", patient: bool = False
    ) -> Json:
        """See `ProcessGroup`."""
        return combine([value])

    def agree(self, what: str, value: Json, explain: Callable[[list[Json]], LearnerError | None] | None = None) -> None:
        """See `ProcessGroup`."""

    def fail(self, text: str) -> None:
        """See `ProcessGroup`."""


class Connected(ProcessGroup):
    """One of several processes.

    Every meeting has a number, under which the processes store their values. Process 0 collects them, stores them as
    one value, and removes the previous meeting, which all processes have left.

    Args:
      client: the client of JAX's coordination service.
      index: the index of this process.
      count: the number of processes.
      run: the number of the run in this process, the same in all processes.
      timeout: seconds that a meeting waits for a process.
    """

    def __init__(self, client: Any, index: int, count: int, run: int, timeout: float = MEETING) -> None:
        self.index, self.count = index, count
        self._client, self._run, self.timeout = client, run, timeout
        self._place, self._before = f"learner/{run}", f"learner/{run - 1}"
        self._number = 0
        self._over = ""  # why there are no more meetings
        self._passes = PassRecords(index, (index + 1) % count)
        self._sent = ""

    def all_reduce_json(
        self, value: Json, combine: Callable[[list[Json]], Json], what: str = "", patient: bool = False
    ) -> Json:
        """See `ProcessGroup`."""
        text = json.dumps([what, value])
        if self._over:
            raise ProcessError(self._over, code="process-run-over")
        # Without a lock: only the loop's thread meets the others, in the same order in all processes.
        self._number += 1
        end = time.monotonic() + (math.inf if patient and self.index else self.timeout)
        prefix = f"{self._place}/{self._number}"
        if self.index == 0:
            answers_text = _combined(f"[{', '.join(self._collected(prefix, text, end))}]", combine)
            self._ask(self._client.key_value_set, f"{prefix}/all", answers_text)
            # All processes have arrived here, so all have read the result of the previous meeting.
            self._ask(self._client.key_value_delete, self._before)
            self._before = prefix
        else:
            self._ask(self._client.key_value_set, f"{prefix}/{self.index}", text)
            answers_text = self._awaited(prefix, "all", end)
        answers: list[tuple[str, Json]] = json.loads(answers_text)
        if len({name for name, _ in answers}) > 1:
            places = ", ".join(f"process {index} at {name!r}" for index, (name, _) in enumerate(answers))
            raise ProcessError(
                f"the processes of the run do different things: {places}. Their data must have equally many batches, "
                "and hooks and metrics may not differ between them",
                code="process-order-differs",
            )
        return answers[0][1]

    def fail(self, text: str) -> None:
        """See `ProcessGroup`."""
        if self._over:
            return  # the others already have it, from this process or from another
        self._over = f"process {self.index} has failed, and meets the others no more: {text}"
        store_failure(self._client, self.index, self._run, text)

    def record_read(self, split: str, number: int, batches: int, ended: bool, shapes: Sequence[str] = ()) -> None:
        """See `ProcessGroup`."""
        self._passes.record(split, number, batches, ended, shapes)

    def shapes_read(self) -> dict[str, Json]:
        """See `ProcessGroup`."""
        return self._passes.shapes()

    def record_step(self, step: int, ended_by: str = "") -> None:
        """See `ProcessGroup`."""
        self._passes.record_step(step, ended_by)

    def compare_passes(self) -> None:
        """See `ProcessGroup`."""
        text = self._passes.to_json()
        if text != self._sent:
            self._ask(self._client.key_value_set, f"{self._place}/passes/{self.index}", text, True)
            self._sent = text
        if not self._passes.has_begun:
            return
        try:
            others = self._client.key_value_try_get(f"{self._place}/passes/{(self.index + 1) % self.count}")
        except jax.errors.JaxRuntimeError:
            return  # it has read no batch so far
        if error := self._passes.difference(others):
            if not self._over:
                # In a thread of its own: the loop's thread may meet the others at any time, and raises this text.
                self._over = str(error)
                store_failure(self._client, self.index, self._run, self._over)
            raise error

    def _collected(self, prefix: str, text: str, end: float) -> list[str]:
        """Return the values of all processes, in their order. Called in process 0."""
        texts = {0: text}
        while len(texts) < self.count:
            # Reads block and come one at a time. After the first, a listing returns most of the others at once.
            latest = max(set(range(self.count)) - set(texts))
            texts[latest] = self._awaited(prefix, str(latest), end)
            if len(texts) < self.count:  # most of the rest has been stored by now
                texts |= {index: text for index, text in self._under(prefix).items() if index}
        return [texts[index] for index in range(self.count)]

    def _awaited(self, prefix: str, name: str, end: float) -> str:
        """Block until a value is stored, and return it. Raise if its process fails or does not come in time."""
        # A blocking read cannot be interrupted: short ones let this process notice the failure of another.
        seconds, ended = SLICES[0], dict[int, str]()
        while True:
            try:
                wait = max(1, round(1000 * min(seconds, end - time.monotonic())))
                text: str = self._client.blocking_key_value_get(f"{prefix}/{name}", wait)
                return text
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise self._lost(error) from error
            self.raise_if_peer_failed()
            if self.index == 0:  # process 0 stores no value: mark it as present for the check of missing processes
                self._ask(self._client.key_value_set, f"{prefix}/0", "null", True)
            # Only processes that had ended before the wait above: their values would have arrived by now.
            if ended and (absent := sorted(set(ended) - set(self._under(prefix)))):
                raise self._ended_early(absent)
            ended = self._under(ENDED)
            # After the deadline all may have come meanwhile: then the value is there, or is stored next.
            if time.monotonic() >= end and (missing := self._missing(prefix)):
                raise self._missed(prefix, missing)
            seconds = SLICES[1]

    def _ended_early(self, absent: Sequence[int]) -> ProcessError:
        """Report that processes have ended without an error, and return the error that names them."""
        self.fail(
            text := f"{named_processes(absent)} ended before the run did: its script has returned or exited there"
        )
        return ProcessError(text, code="process-ended")

    def raise_if_peer_failed(self) -> None:
        """See `ProcessGroup`."""
        failed = self._failed()
        if failed:
            self._over = "; ".join(f"process {index} failed: {text}" for index, text in sorted(failed.items()))
            raise ProcessError(self._over, code="process-run-over")

    def _missing(self, prefix: str) -> list[int]:
        """Return the processes that have neither come to a meeting nor failed."""
        came = {self.index, *self._under(prefix), *self._failed()}
        return [index for index in range(self.count) if index not in came]

    def _missed(self, prefix: str, missing: Sequence[int]) -> ProcessError:
        """Report that processes are missing at a meeting, and return the error that names them."""
        text = (
            f"{named_processes(missing)} did not come within {self.timeout:g} s to where all processes of the run "
            "meet: ended, hanging or slow; the machine may know, or the log there"
        )
        # Store the failure first: the missing process must find it when it arrives.
        self.fail(text)
        self._over = text
        if self.index:  # after the failure is stored: a late process must find that, not a complete set
            self._ask(self._client.key_value_delete, f"{prefix}/{self.index}")
        return ProcessError(text, code="process-missing")

    def _failed(self) -> dict[int, str]:
        """Return the failed processes and their messages. Failures of earlier runs are ignored."""
        answers = {index: json.loads(text) for index, text in self._under(FAILED).items()}
        return {index: text for index, (run, text) in answers.items() if run is None or run >= self._run}

    def _under(self, prefix: str) -> dict[int, str]:
        """Return the values that are stored under a prefix, by the index of their process."""
        entries = self._ask(self._client.key_value_dir_get, prefix)
        texts = {key.rpartition("/")[2]: value for key, value in entries}
        return {int(name): value for name, value in texts.items() if name.isdigit()}

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the client. Raise `ProcessError` if the coordination service cannot be reached."""
        try:
            return function(*arguments)
        except jax.errors.JaxRuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> ProcessError:
        reason = str(error).partition("\n")[0]
        return ProcessError(
            f"process 0, through which the processes of the run meet, cannot be reached: {reason}",
            code="process-coordinator-lost",
        )


def _combined(answers_text: str, combine: Callable[[list[Json]], Json]) -> str:
    """Return the result of a meeting, or the names and values unchanged if the processes are at different meetings."""
    answers = json.loads(answers_text)
    if len({name for name, _ in answers}) > 1:
        return answers_text
    return json.dumps([[answers[0][0], combine([value for _, value in answers])]])


def _first(values: list[Json]) -> Json:
    return values[0]


def are_equal(digests: Sequence[Any]) -> bool:
    """Return True if all digests are equal."""
    return len(set(digests)) == 1


_runs, _timeout = itertools.count(1), MEETING


def set_meeting_timeout(seconds: float) -> None:
    """Set the seconds that meetings of later runs wait for a process."""
    global _timeout
    _timeout = seconds


def hosts(timeout: float | None = None) -> ProcessGroup:
    """Return the connected processes, by `init_distributed` or another call of `jax.distributed.initialize`.

    Every run calls it once, in the same order in all processes, so messages of one run do not reach the next.

    Args:
      timeout: seconds that a meeting waits for a process. Default: the timeout of `init_distributed`.

    >>> hosts().count
    1
    """
    cancel_leave_at_exit()  # of an earlier run
    state = distributed_state()
    if state.client is None or state.num_processes == 1:
        return SingleProcess()
    timeout = _timeout if timeout is None else timeout
    return Connected(state.client, state.process_id, state.num_processes, next(_runs), timeout)
