"""The processes of one run, on one machine or many, and their communication.

    init_distributed("10.0.0.1:1234", num_processes=2, process_id=0)  # in process 0, before JAX is used
    here = hosts()
    here.all_gather_json({"stop": False})  # in both: [{'stop': False}, {'stop': False}]

They exchange values in the key-value store of JAX's coordination service, which process 0 holds. It costs the devices
nothing, and two messages per process and meeting, some 1 ms between processes of one machine. Devices exchange their
arrays without it.

JAX's heartbeats find a process that ends without notice: JAX then ends the others, from C++, by SIGABRT.
"""

import abc
import collections
import contextlib
import ctypes
import errno
import hashlib
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src import distributed, xla_bridge  # the store and the state of JAX have no public names

from learner.errors import LearnerError, ProcessError
from learner.util.number_checks import is_int

Json = Any

MEETING = 300.0  # seconds
SLICES = (0.1, 1.0)  # seconds of the first and of any later wait; Python handles signals only in between
SHOWN, LONGEST = 6, 120  # places where values differ, and characters of each

ONCE = "what process 0 does alone"
FAILED, LEFT = "learner/failed", "learner/left"

LAUNCH = """\
pass the address of process 0, how many processes there are, and which one this is (from 0):
  learner fit CONFIG --coordinator HOST:PORT --num_processes N --process_id I
  learner.init_distributed("HOST:PORT", num_processes=N, process_id=I)"""


def init_distributed(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: float = 300.0,
    heartbeat: float = 100.0,
) -> None:
    """Make this process one of several of a run. Each process calls it before it uses JAX, and then makes the same
    calls.

    Without arguments JAX finds the cluster: SLURM, Open MPI, Kubernetes (with the package `kubernetes`), Cloud TPU. A
    process that is connected already stays as it is. On CPUs the processes exchange arrays by gloo. JAX's own service
    for SIGTERM is turned off: Python receives the signal, and learner stops all processes of a run at the same step.

    Args:
      coordinator: `HOST:PORT` of process 0, as the others reach it; the port is any that is free there.
      num_processes: how many there are.
      process_id: which one this is, from 0.
      timeout: seconds to wait for the others.
      heartbeat: seconds of silence after which a process counts as dead, and JAX ends the others.

    Raises:
      LearnerError: no cluster is found, only some of the three are given, they are no address and no numbers, JAX is in
        use already, or the coordinator cannot be reached. (When process 0 waits in vain for the others, JAX ends it by
        SIGABRT.)

    >>> init_distributed("localhost:1234", num_processes=2)
    Traceback (most recent call last):
    learner.errors.LearnerError: process_id is missing: coordinator, num_processes and process_id belong together
    """
    _check_arguments({"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id})
    if distributed.global_state.client is not None:
        _check_same_place(num_processes, process_id)
        return
    if xla_bridge.backends_are_initialized():
        raise LearnerError(
            "JAX is in use already, and processes are connected before: call init_distributed first, before any "
            "array is made and before jax.devices() (an import may do it, too)",
            code="process-jax-in-use",
        )
    # These wait in Python and raise errors. JAX would end this process from C++ for the same reasons.
    if coordinator is not None and process_id:
        _wait_for_coordinator(coordinator, process_id, timeout)
    elif coordinator is not None:
        _check_port_is_free(coordinator)
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM away from Python
    with _connection_errors(coordinator, process_id):
        jax.distributed.initialize(
            coordinator_address=coordinator,
            num_processes=num_processes,
            process_id=process_id,
            initialization_timeout=max(1, round(timeout)),
            heartbeat_timeout_seconds=max(1, round(heartbeat)),
        )


def _check_same_place(num_processes: int | None, process_id: int | None) -> None:
    """Raise if this process is connected already, as another one than the arguments name."""
    state = distributed.global_state
    if process_id is not None and (num_processes, process_id) != (state.num_processes, state.process_id):
        raise LearnerError(
            f"this is process {state.process_id} of {state.num_processes} already: it cannot become process "
            f"{process_id} of {num_processes}",
            code="process-already-connected",
            process_id=process_id,
            num_processes=num_processes,
        )


@contextlib.contextmanager
def _connection_errors(coordinator: str | None, process_id: int | None) -> Iterator[None]:
    """Raise what JAX raises while it connects as errors that say how to go on."""
    try:
        yield
    except ValueError as error:
        if coordinator is not None:
            raise
        raise LearnerError(
            f"no cluster was found: JAX knows SLURM, Open MPI, Kubernetes and Cloud TPU by itself. Elsewhere {LAUNCH}",
            code="process-cluster-missing",
        ) from error
    except RuntimeError as error:
        if coordinator is None:
            raise LearnerError(
                f"the processes of the cluster could not be connected: {error}. Or {LAUNCH}",
                code="process-cluster-unconnected",
            ) from error
        raise LearnerError(
            f"process {process_id} could not be connected at {coordinator}: {error}",
            code="process-unconnected",
            process_id=process_id,
            coordinator=coordinator,
        ) from error


def _check_arguments(given: dict[str, Any]) -> None:
    """Raise unless none of the arguments is given, or all of them with possible values."""
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        absent = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing"
        raise LearnerError(
            f"{absent}: coordinator, num_processes and process_id belong together", code="process-arguments-incomplete"
        )
    if missing:
        return
    coordinator, num_processes, process_id = given.values()
    if not isinstance(coordinator, str) or not _port(coordinator):
        raise LearnerError(
            f"coordinator is {coordinator!r}: give the address of process 0 as HOST:PORT",
            code="process-coordinator-malformed",
            coordinator=coordinator,
        )
    for name, value, least in (("num_processes", num_processes, 1), ("process_id", process_id, 0)):
        if not is_int(value) or value < least:
            raise LearnerError(
                f"{name} is {value!r}: give a whole number, {least} or more",
                code="data-number-value",
                name=name,
                value=value,
                least=least,
            )
    if process_id >= num_processes:
        raise LearnerError(
            f"process_id is {process_id} and num_processes is {num_processes}: processes count from 0 to "
            f"{num_processes - 1}",
            code="process-id-outside",
            process_id=process_id,
            num_processes=num_processes,
        )


def _port(coordinator: str) -> int:
    """Return the port, or 0 if the address has none."""
    host, _, port = coordinator.rpartition(":")
    return int(port) if host and port.isascii() and port.isdigit() and int(port) < 2**16 else 0


def _check_port_is_free(coordinator: str) -> None:
    """Raise if the port is in use: JAX may crash then."""
    if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
        return  # it listens elsewhere
    try:
        with socket.create_server(("", _port(coordinator)), family=socket.AF_INET6, dualstack_ipv6=True):
            return
    except (OSError, ValueError) as error:  # ValueError: this machine has no such addresses
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise LearnerError(
                f"process 0 cannot listen at {coordinator}: something else on this machine does. Give another port, "
                "the same to all processes",
                code="process-port-in-use",
                coordinator=coordinator,
            ) from error


def _wait_for_coordinator(coordinator: str, process_id: int, timeout: float) -> None:
    """Block until process 0 listens. JAX would wait as long, and then end this process from C++."""
    end = time.monotonic() + timeout
    host = coordinator.rpartition(":")[0].strip("[]")
    while True:
        try:
            socket.create_connection((host, _port(coordinator)), max(0.1, end - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() >= end:
                raise LearnerError(
                    f"process {process_id} cannot reach the coordinator at {coordinator} after {timeout:g} s: {error}. "
                    "Process 0 has to run there, with the same arguments and --process_id 0, and the port has to be "
                    "open between the machines",
                    code="process-coordinator-unreachable",
                    process_id=process_id,
                    coordinator=coordinator,
                    timeout=timeout,
                ) from error
        time.sleep(min(0.1, timeout))


class ProcessGroup(abc.ABC):
    """The processes of a run. Each of them calls the same methods in the same order.

    Attributes:
      index: of this process, from 0.
      count: of all.
    """

    index: int
    count: int

    @abc.abstractmethod
    def all_gather_json(self, value: Json, what: str = "") -> list[Json]:
        """Wait for all processes, and return the values of all, in their order, as JSON has them (tuples are lists).

        Args:
          value: JSON.
          what: the meeting's name.

        Raises:
          LearnerError: a process has failed, does not come, or is at a meeting of another name.
        """

    @abc.abstractmethod
    def fail(self, text: str) -> None:
        """Report to the others that this process has failed: they raise the error when they wait for it. It may be
        called at any time, also from an `except` around a meeting, and must be the last call.
        """

    def raise_if_peer_failed(self) -> None:  # noqa: B027 (a single process has no peers)
        """Raise `ProcessError` if another process has failed. It does not wait."""

    def agree(self, what: str, value: Json) -> None:
        """Verify that all processes have the same value.

        Args:
          what: its name, for the message.
          value: JSON. All processes come with one of their own.

        Raises:
          LearnerError: in every process, where they differ: who has what.

        >>> SingleProcess().agree("the seed", 3)
        """
        text = json.dumps(value, sort_keys=True)
        # The value itself would be sent by all to all, and configs are long.
        digests = self.all_gather_json(hashlib.sha256(text.encode()).hexdigest(), what)
        if len(set(digests)) > 1:
            raise LearnerError(_difference(what, self.all_gather_json(value, what)), code="process-values-differ")

    def run_on_primary(self, function: Callable[[], Json]) -> Json:
        """Call `function` in process 0 alone, and return its result in every process: for work to be done once in a
        shared directory.

        Raises:
          LearnerError: in every process, where `function` raised it.

        >>> SingleProcess().run_on_primary(lambda: 5)
        5
        """
        if self.index:
            outcome = self.all_gather_json(None, ONCE)[0]
            if "raised" in outcome:
                raise LearnerError(outcome["raised"], code="process-once-failed")
            return outcome["returned"]
        try:
            returned = function()
        except LearnerError as error:
            self.all_gather_json({"raised": str(error)}, ONCE)
            raise
        except BaseException as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise
        return self.all_gather_json({"returned": returned}, ONCE)[0]["returned"]


class SingleProcess(ProcessGroup):
    """The only process of its run.

    >>> here = SingleProcess()
    >>> here.index, here.count, here.all_gather_json("hello")
    (0, 1, ['hello'])
    """

    index, count = 0, 1

    def all_gather_json(self, value: Json, what: str = "") -> list[Json]:
        """See `ProcessGroup`."""
        return [value]

    def agree(self, what: str, value: Json) -> None:
        """See `ProcessGroup`."""

    def fail(self, text: str) -> None:
        """See `ProcessGroup`."""


class Connected(ProcessGroup):
    """One of several processes.

    Every meeting has a number. The processes store their values under it. Process 0 collects them, stores them all
    as one value, and removes the meeting before, which all processes have left.

    Args:
      client: of JAX's coordination service.
      index: of this process.
      count: of all.
      run: the number of the run among those of this process, the same in all.
      timeout: seconds that a meeting waits for a process.
    """

    def __init__(self, client: Any, index: int, count: int, run: int, timeout: float = MEETING) -> None:
        self.index, self.count = index, count
        self._client, self._run, self._timeout = client, run, timeout
        self._place, self._before = f"learner/{run}", f"learner/{run - 1}"
        self._number = 0
        self._over = ""  # why there are no more meetings

    def all_gather_json(self, value: Json, what: str = "") -> list[Json]:
        """See `ProcessGroup`."""
        text = json.dumps([what, value])
        if self._over:
            raise ProcessError(self._over, code="process-run-over")
        self._number += 1
        end = time.monotonic() + self._timeout
        prefix = f"{self._place}/{self._number}"
        if self.index == 0:
            answers_text = f"[{', '.join(self._collected(prefix, text, end))}]"
            self._ask(self._client.key_value_set, f"{prefix}/all", answers_text)
            # All processes have arrived here, so all have read the result of the meeting before.
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
        return [value for _, value in answers]

    def fail(self, text: str) -> None:
        """See `ProcessGroup`."""
        if self._over:
            return  # the others know, from this process or from another
        self._over = f"process {self.index} has failed, and meets the others no more: {text}"
        _store_failure(self._client, self.index, self._run, text)

    def _collected(self, prefix: str, text: str, end: float) -> list[str]:
        """Return the values of all processes, in their order. It is called in process 0."""
        texts = {0: text}
        while len(texts) < self.count:
            # Reads are blocking and one at a time. After the first, a listing returns most of the others at once.
            latest = max(set(range(self.count)) - set(texts))
            texts[latest] = self._awaited(prefix, str(latest), end)
            if len(texts) < self.count:  # most of the rest has been stored by now
                texts |= {index: text for index, text in self._under(prefix).items() if index}
        return [texts[index] for index in range(self.count)]

    def _awaited(self, prefix: str, name: str, end: float) -> str:
        """Block until a value is stored, and return it. Raise if its process fails or does not come in time."""
        # A blocking read cannot be interrupted: short ones let this process notice the failure of another.
        seconds = SLICES[0]
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
            if time.monotonic() >= end:
                raise self._missed(prefix)
            seconds = SLICES[1]

    def raise_if_peer_failed(self) -> None:
        """See `ProcessGroup`."""
        failed = self._failed()
        if failed:
            self._over = "; ".join(f"process {index} failed: {text}" for index, text in sorted(failed.items()))
            raise ProcessError(self._over, code="process-run-over")

    def _missed(self, prefix: str) -> ProcessError:
        """Report that processes are missing at a meeting, and return the error that names them."""
        came = {self.index, *self._under(prefix), *self._failed()}
        missing = [index for index in range(self.count) if index not in came]
        text = (
            f"{_named(missing)} did not come within {self._timeout:g} s to where all processes of the run meet: ended, "
            "hanging or slow; the machine may know, or the log there"
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


def _store_failure(client: Any, index: int, run: int | None, text: str) -> None:
    """Store a failure of a run, or of all runs if `run` is None, where the other processes look for one."""
    try:
        client.key_value_set(f"{FAILED}/{index}", json.dumps([run, text]), True)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        print(f"learner: this failure could not be reported to the other processes: {reason}", file=sys.stderr)


def leave(text: str, patience: float = 5.0) -> None:
    """Report to the other processes, whichever run they are in, that this one ends because of an error. They raise it
    when they wait for this one, and should leave as well; then all end together. Without other processes it does
    nothing.

    Devices of the others may wait for those of this process, and JAX lets none end before all do. So where not all have
    left in time, this one ends without them, which ends their waiting.

    Args:
      text: what they raise.
      patience: seconds that the others have.
    """
    state = distributed.global_state
    client, index = state.client, state.process_id
    if client is None or state.num_processes == 1:
        return
    _store_failure(client, index, None, text)
    end = time.monotonic() + patience * (1 if index else 1.5)  # the others are lost without process 0
    try:
        client.key_value_set(f"{LEFT}/{index}", "", True)
        for other in range(state.num_processes):
            client.blocking_key_value_get(f"{LEFT}/{other}", max(1, round(1000 * (end - time.monotonic()))))
    except jax.errors.JaxRuntimeError:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            client.key_value_delete(f"{LEFT}/{index}")
        for owner in (client, state.service):  # their destructors wait for the other processes, also at exit
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
        state.client = state.service = None


_runs = itertools.count(1)


def hosts(timeout: float = MEETING) -> ProcessGroup:
    """Return the processes of this one's cluster: those of `init_distributed`, or of another call of
    `jax.distributed.initialize`.

    Every run calls it once, in the same order in all processes: messages of one run do not reach the next.

    Args:
      timeout: seconds that a meeting waits for a process that has not come.

    >>> hosts().count
    1
    """
    state = distributed.global_state
    if state.client is None or state.num_processes == 1:
        return SingleProcess()
    return Connected(state.client, state.process_id, state.num_processes, next(_runs), timeout)


def _named(processes: Sequence[int]) -> str:
    """
    >>> _named([0]), _named([0, 1, 4])
    ('process 0', 'processes 0, 1 and 4')
    """
    if len(processes) == 1:
        return f"process {processes[0]}"
    return f"processes {', '.join(map(str, processes[:-1]))} and {processes[-1]}"


def _difference(what: str, values: Sequence[Json]) -> str:
    """Describe the positions at which the values of the processes differ, and who has which value.

    >>> print(_difference("the config", [{"lr": 1, "seed": 0}, {"lr": 2, "seed": 0}, {"lr": 1, "seed": 0}]))
    the processes of the run differ in the config:
      lr is 1 in processes 0 and 2; 2 in process 1
    >>> print(_difference("the seed", [3, 4]))
    the processes of the run differ in the seed: 3 in process 0; 4 in process 1
    """
    flat = [_leaves(value) for value in values]
    paths = [path for path in dict.fromkeys(itertools.chain(*flat)) if len({leaves.get(path) for leaves in flat}) > 1]
    lines = []
    for path in paths[:SHOWN]:
        processes_with = collections.defaultdict(list)
        for index, leaves in enumerate(flat):
            processes_with[leaves.get(path, "missing")].append(index)
        values = "; ".join(f"{text[:LONGEST]} in {_named(processes)}" for text, processes in processes_with.items())
        lines.append(f"{path} is {values}" if path else values)
    title = f"the processes of the run differ in {what}:"
    if paths == [""]:
        return f"{title} {lines[0]}"
    more = [f"and at {len(paths) - SHOWN} more places"] if len(paths) > SHOWN else []
    return "\n  ".join([title, *lines, *more])


def _leaves(value: Json, prefix: str = "") -> dict[str, str]:
    """Return the parts of a JSON value, and the lines of a text, as JSON by position."""
    if isinstance(value, str) and "\n" in value:
        value = {f"line {number}": line for number, line in enumerate(value.split("\n"), 1)}
    if not value or not isinstance(value, dict | list):
        return {prefix: json.dumps(value)}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        path: text
        for key, item in items
        for path, text in _leaves(item, f"{prefix}.{key}" if prefix else str(key)).items()
    }
