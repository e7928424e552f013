"""The connection of the processes of a run, and their exits: a process that ends reports the reason to the others."""

import atexit
import collections
import contextlib
import errno
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import jax

from learner.distributed.departure import leave, mark_ended
from learner.distributed.differences import named_processes
from learner.distributed.process_group import MEETING, set_meeting_timeout
from learner.errors import LearnerError
from learner.util.jax_internals import backends_are_initialized, distributed_state
from learner.util.number_checks import check_int, is_finite
from learner.util.text import count

POLL_SECONDS, WAIT_SECONDS = 0.1, 0.5  # between two requests of a process: until process 0 listens, and afterwards
SEEN_SECONDS = 5.0  # how long a process counts as present after a request
SERVING_SECONDS = 15.0  # to connect to a running service of JAX
WAIT, START = b"wait", b"start"
INTERRUPTED = b"process 0 was ended by a signal while it waited for the others"
HEARTBEAT = 40.0  # seconds; with JAX's 100, a run would wait a minute and a half for a killed process

LAUNCHERS = {  # and the environment variables with the number of processes
    "SLURM": "SLURM_STEP_NUM_TASKS",
    "Open MPI": "OMPI_COMM_WORLD_SIZE",
    "MPI": "PMI_SIZE",
}

LAUNCH = """\
pass the address of process 0, how many processes there are, and which one this is (from 0):
  learner fit CONFIG --coordinator HOST:PORT --num_processes N --process_id I
  learner.init_distributed("HOST:PORT", num_processes=N, process_id=I)"""


def init_distributed(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: float = MEETING,
    heartbeat: float = HEARTBEAT,
) -> None:
    """Connect this process to the other processes of a run. Call it in each process before it uses JAX, and then make
    the same calls in all. It returns once all processes are connected and know each other's devices.

    Without arguments JAX detects the cluster: SLURM, Open MPI, Kubernetes (with the package `kubernetes`), Cloud TPU.
    Nothing changes if the process is already connected. On CPUs the processes exchange arrays with gloo. JAX's own
    service for SIGTERM is turned off: Python receives the signal, and learner stops all processes of a run at the same
    step. If a process fails, it reports the error to the others, which raise it where they wait for that process.

    Args:
      coordinator: `HOST:PORT` of process 0, as the others reach it; any free port.
      num_processes: the number of processes.
      process_id: the index of this process, from 0.
      timeout: seconds to wait for the other processes, here and whenever the processes of a run meet.
      heartbeat: seconds of silence after which a process counts as dead, and JAX ends the others.

    Raises:
      LearnerError: no cluster is found, only some of the first three arguments are given, they are neither an address
        nor numbers, JAX is already in use, processes do not connect in time, or a time is not a positive number.

    >>> init_distributed("localhost:1234", num_processes=2)
    Traceback (most recent call last):
    learner.errors.LearnerError: process_id is missing: coordinator, num_processes and process_id belong together
    """
    check_connection(coordinator, num_processes, process_id, timeout, heartbeat)
    set_meeting_timeout(timeout)
    if distributed_state().client is not None:
        _check_same_place(num_processes, process_id)
        return
    if backends_are_initialized():
        raise LearnerError(
            "JAX is already in use, and processes must be connected before that: call init_distributed first, before "
            "creating any array and before jax.devices() (an import may do either)",
            code="process-jax-in-use",
        )
    # This waits in Python and raises errors, for which JAX would end the process from C++.
    seconds = timeout
    if coordinator is not None and num_processes is not None and process_id:
        if _come_to_coordinator(coordinator, process_id, num_processes, timeout):
            # If this process replaces one that died, the service belongs to the old run. Connecting ends its processes,
            # and JAX would retry, while their replacements wait for this process, which must end.
            seconds = min(timeout, SERVING_SECONDS)
    elif coordinator is not None and num_processes is not None:
        _gather_processes(coordinator, num_processes, timeout)
    jax.config.update("jax_enable_preemption_service", False)  # it takes SIGTERM away from Python
    # JAX queries Kubernetes even if it needs no answer, and raises in pods without the permission.
    by_hand = coordinator is not None and "KUBERNETES_SERVICE_HOST" in os.environ
    with _connection_errors(coordinator, process_id):
        jax.distributed.initialize(
            coordinator_address=coordinator,
            num_processes=num_processes,
            process_id=process_id,
            cluster_detection_method="deactivate" if by_hand else None,
            initialization_timeout=max(1, round(seconds)),
            heartbeat_timeout_seconds=max(1, round(heartbeat)),
        )
        _report_exits()
        # Here, where all processes are at the same point and no user code can fail in between: looking for the devices
        # of a process that has ended takes two minutes.
        with _gloo_silenced():
            jax.devices()
            if jax.default_backend() == "cpu":
                _refuse_uneven_devices()
                _exchange_once()


def unconnected_launcher() -> str | None:
    """Return a text about the launcher if this process is one of several and not connected to the others, such as
    `SLURM started 4 processes`; else None.
    """
    if distributed_state().client is not None:
        return None
    for launcher, variable in LAUNCHERS.items():
        count = os.environ.get(variable, "")
        if count.isdecimal() and int(count) > 1:
            return f"{launcher} started {count} processes"
    return None


def _check_same_place(num_processes: int | None, process_id: int | None) -> None:
    """Raise if this process is already connected with other values than the arguments."""
    state = distributed_state()
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
    """Turn JAX's errors during the connection into errors with a remedy."""
    try:
        yield
    except ValueError as error:
        if coordinator is not None:
            raise
        raise LearnerError(
            f"no cluster was found: JAX detects SLURM, Open MPI, Kubernetes and Cloud TPU. Elsewhere {LAUNCH}",
            code="process-cluster-missing",
        ) from error
    except Exception as error:
        if coordinator is None:  # any error of a cluster's own package
            raise LearnerError(
                f"the processes of the cluster could not be connected: {error}. Or {LAUNCH}",
                code="process-cluster-unconnected",
            ) from error
        if not isinstance(error, RuntimeError):
            raise
        raise LearnerError(
            f"process {process_id} could not be connected at {coordinator}: {error}",
            code="process-unconnected",
            process_id=process_id,
            coordinator=coordinator,
        ) from error


def check_connection(
    coordinator: Any = None,
    num_processes: Any = None,
    process_id: Any = None,
    timeout: Any = MEETING,
    heartbeat: Any = HEARTBEAT,
) -> None:
    """Raise `LearnerError` unless `init_distributed` may have these arguments: for the first three none, or all of them
    with possible values, and numbers of seconds.
    """
    for name, value in (("timeout", timeout), ("heartbeat", heartbeat)):
        if not (is_finite(value) and value > 0):
            raise LearnerError(
                f"{name} is {value!r}: give a number of seconds greater than 0",
                code="process-seconds-value",
                name=name,
                value=value,
            )
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        absent = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} missing"
        raise LearnerError(
            f"{absent}: coordinator, num_processes and process_id belong together", code="process-arguments-incomplete"
        )
    if missing:
        return
    if not isinstance(coordinator, str) or not _port(coordinator):
        raise LearnerError(
            f"coordinator is {coordinator!r}: give the address of process 0 as HOST:PORT",
            code="process-coordinator-malformed",
            coordinator=coordinator,
        )
    for name, value, least in (("num_processes", num_processes, 1), ("process_id", process_id, 0)):
        check_int(name, value, least)
    if process_id >= num_processes:
        raise LearnerError(
            f"process_id is {process_id} and num_processes is {num_processes}: processes count from 0 to "
            f"{num_processes - 1}",
            code="process-id-outside",
            process_id=process_id,
            num_processes=num_processes,
        )


def _port(coordinator: str) -> int:
    """Return the port, or 0 if the address has no port."""
    host, _, port = coordinator.rpartition(":")
    return int(port) if host and port.isascii() and port.isdigit() and int(port) < 2**16 else 0


def _gather_processes(coordinator: str, count: int, timeout: float) -> None:
    """Block until the other processes have contacted process 0, which calls this before it starts JAX's service.

    That service would wait, too, but end all processes from C++ without naming the missing ones. Connections are short,
    so that a thousand processes do not need a thousand sockets: each process asks again until it gets the start signal.
    """
    seen, started = dict[int, float](), set[int]()
    error, end = None, time.monotonic() + timeout
    with _listening(coordinator) as listener:
        try:
            while len(started) < count - 1:
                now = time.monotonic()
                here = {index for index, time_of in seen.items() if now - time_of < SEEN_SECONDS}
                # A process with the start signal asks no more, so the processes are not counted again.
                ready = bool(started) or len(here) == count - 1
                if error is None and now >= end:
                    missing = [index for index in range(1, count) if index not in (started if ready else here)]
                    error = _missing_processes(missing, count, coordinator, timeout)
                if error is not None and now >= end + 4 * WAIT_SECONDS:  # those that wait have asked meanwhile
                    raise error
                if (request := _next_request(listener)) is None:
                    continue
                peer, index, expected = request
                if error is None and expected != count:
                    error, end = _differing_count(index, expected, count), now
                seen[index] = now
                answer = str(error).encode() if error else START if ready else WAIT
                if _send(peer, answer) and answer == START:
                    started.add(index)
        except (KeyboardInterrupt, SystemExit):
            _report_interruption(listener, set(seen) - started)
            raise


def _next_request(listener: socket.socket) -> tuple[socket.socket, int, int] | None:
    """Return the connection of a process that asks, with its index and its number of processes, or None if none does
    within `POLL_SECONDS`.
    """
    listener.settimeout(POLL_SECONDS)
    # No process has connected, or one disconnected early and will ask again.
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        peer, _ = listener.accept()
        stack.enter_context(peer)
        peer.settimeout(1.0)
        if (place := _place_in(peer.recv(100))) is not None:  # None: another program that scans ports
            stack.pop_all()
            return peer, *place
    return None


def _send(peer: socket.socket, answer: bytes) -> bool:
    """Answer a process, and close the connection. Return False if the process has disconnected, and will ask again."""
    with peer, contextlib.suppress(OSError):
        peer.sendall(answer)
        return True
    return False


def _report_interruption(listener: socket.socket, waiting: set[int]) -> None:
    """Tell the processes that wait for process 0 that a signal ends it. A second one ends this as well."""
    end = time.monotonic() + 4 * WAIT_SECONDS
    while waiting and time.monotonic() < end:
        if (request := _next_request(listener)) is not None:
            peer, index, _ = request
            if _send(peer, INTERRUPTED):
                waiting.discard(index)


def _missing_processes(missing: list[int], count: int, coordinator: str, timeout: float) -> LearnerError:
    return LearnerError(
        f"{named_processes(missing)} did not come within {timeout:g} s to process 0, which waits at {coordinator}: "
        f"start all {count} processes, with the same coordinator and num_processes, and open the port between "
        "the machines; timeout sets the seconds",
        code="process-start-missing",
        missing=missing,
        timeout=timeout,
    )


def _differing_count(process_id: int, expected: int, count: int) -> LearnerError:
    return LearnerError(
        f"process {process_id} was started as one of {expected} processes, and process 0 as one of {count}: give all "
        "of them the same num_processes",
        code="process-count-differs",
        process_id=process_id,
    )


def _place_in(line: bytes) -> tuple[int, int] | None:
    """Return the index and the number of processes that another process sends, or None for any other line.

    >>> _place_in(b"learner 1 2"), _place_in(b"learner 2 2"), _place_in(b"GET / HTTP/1.1")
    ((1, 2), None, None)
    """
    name, *numbers = line.strip().split(b" ")
    if name != b"learner" or len(numbers) != 2 or not all(map(bytes.isdigit, numbers)):
        return None
    index, count = map(int, numbers)
    return (index, count) if 0 < index < count else None


def _listening(coordinator: str) -> socket.socket:
    """Return a socket that listens on the port of JAX's service. Raise if the port is in use, as JAX may crash then."""
    address = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or f"[::]:{_port(coordinator)}"
    host = address.rpartition(":")[0].strip("[]")
    try:
        if ":" not in host:
            return socket.create_server((host, _port(address)))
        return socket.create_server((host, _port(address)), family=socket.AF_INET6, dualstack_ipv6=host == "::")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise LearnerError(
                f"process 0 cannot listen at {coordinator}: another program on this machine does. Choose another "
                "port, the same for all processes",
                code="process-port-in-use",
                coordinator=coordinator,
            ) from error
        return socket.create_server(("", _port(address)))  # this machine has no such addresses


def _come_to_coordinator(coordinator: str, process_id: int, count: int, timeout: float) -> bool:
    """Block until process 0 reports that all processes are present. Return True if JAX's service already runs."""
    end, host, answer = time.monotonic() + timeout, coordinator.rpartition(":")[0].strip("[]"), b""
    problem: OSError = ConnectionError("it closed the connection")
    # If process 0 has answered, it reports which processes are missing once its own timeout expires.
    while time.monotonic() < end + (SEEN_SECONDS if answer else 0):
        try:
            with socket.create_connection((host, _port(coordinator)), max(0.1, end - time.monotonic())) as peer:
                peer.settimeout(5.0)
                peer.sendall(b"learner %d %d\n" % (process_id, count))
                answer = peer.recv(4096) or answer
            if answer == START:
                return False
            # JAX's service speaks HTTP/2, whose first frame begins with a byte of 0.
            if (answer and not answer.isascii()) or answer.startswith(b"\0"):
                return True
            if answer.startswith(b"process"):
                if b" was started as one of " in answer:
                    raise LearnerError(answer.decode(), code="process-count-differs")
                raise LearnerError(answer.decode(), code="process-start-missing")
            if answer not in (b"", WAIT):
                problem = ConnectionError(f"something else answers there: {answer[:60].decode()!r}")
        except OSError as error:
            problem = error
        time.sleep(min(WAIT_SECONDS if answer else POLL_SECONDS, timeout))
    raise LearnerError(
        f"process {process_id} cannot reach the coordinator at {coordinator} after {timeout:g} s: {problem}. "
        "Process 0 has to run there, with the same arguments and --process_id 0, and the port has to be open "
        "between the machines",
        code="process-coordinator-unreachable",
        process_id=process_id,
        coordinator=coordinator,
        timeout=timeout,
    )


def _report_exits() -> None:
    """Make this process report its end to the others, with or without an error."""
    previous = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        # The traceback first, as `leave` may wait for the other processes for seconds.
        previous(kind, error, traceback)
        leave(str(error) if isinstance(error, LearnerError) else f"{kind.__name__}: {error}")

    sys.excepthook = report
    atexit.register(mark_ended)  # after JAX's own, so that it runs before: that waits for the other processes


def _refuse_uneven_devices() -> None:
    """Raise `LearnerError`, in all processes, if some have more devices than others."""
    counts = collections.Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        each = "; ".join(f"{count(number, 'device')} in process {index}" for index, number in sorted(counts.items()))
        raise LearnerError(
            f"the processes have different numbers of devices: {each}. Give each equally many "
            "(jax_num_cpu_devices, or JAX_NUM_CPU_DEVICES)",
            code="process-devices-uneven",
        )


def _exchange_once() -> None:
    """Connect gloo between the processes by a first exchange of arrays."""
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices("learner")


@contextlib.contextmanager
def _gloo_silenced() -> Iterator[None]:
    """Hide gloo's output: `[Gloo] Rank 0 is connected to 1 peer ranks. ...`. Everything else that the block writes to
    file descriptor 1 appears when it ends.
    """
    # Python's buffered output comes first, and must not go into the filtered file.
    sys.stdout.flush()
    try:
        screen = os.dup(1)
    except OSError:  # a service without a standard output
        yield
        return
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(screen, 1)
            os.close(screen)
            kept.seek(0)
            for line in kept:
                if not line.startswith(b"[Gloo]"):
                    os.write(1, line)
