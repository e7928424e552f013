"""Tests of the gathering of processes at process 0, before JAX connects them; without JAX itself."""

import contextlib
import os
import signal
import socket
import threading
import types

import pytest

from learner.distributed import connection
from learner.distributed.connection import _come_to_coordinator, _gather_processes, init_distributed
from learner.errors import LearnerError
from learner.training.signals import of_a_command
from tests.support.codes import raises_code
from tests.support.processes import free_port


@pytest.fixture
def coordinator(monkeypatch):
    monkeypatch.setattr(connection, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(connection, "POLL_SECONDS", 0.02)
    return f"localhost:{free_port()}"


def in_thread(function, *arguments):
    """Call a function in a thread; return the thread and the list that receives the result or the error."""
    outcome = []

    def call():
        try:
            outcome.append(function(*arguments))
        except LearnerError as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, outcome


def test_processes_start_when_all_have_arrived(coordinator):
    calls = [in_thread(_gather_processes, coordinator, 3, 20.0)]
    calls += [in_thread(_come_to_coordinator, coordinator, index, 3, 20.0) for index in (2, 1)]
    for thread, _ in calls:
        thread.join(20)
    assert [outcome for _, outcome in calls] == [[None], [False], [False]]


def test_all_processes_name_the_missing_ones(coordinator):
    calls = [in_thread(_gather_processes, coordinator, 5, 0.5)]
    calls += [in_thread(_come_to_coordinator, coordinator, index, 5, 0.5) for index in (1, 3)]
    for thread, outcome in calls:
        thread.join(20)
        (error,) = outcome
        assert error.code == "process-start-missing"
        assert str(error).startswith(
            "processes 2 and 4 did not come within 0.5 s to process 0, which waits at localhost:"
        )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_process_0_is_reported_to_those_that_wait_for_it(coordinator, number, monkeypatch):
    port, next_request = int(coordinator.rpartition(":")[2]), connection._next_request

    def ask_and_send():
        for index in (1, 2):
            with socket.create_connection(("localhost", port)) as peer:
                peer.sendall(b"learner %d 4\n" % index)
                assert peer.recv(100) == b"wait"
        os.kill(os.getpid(), number)
        called.extend(in_thread(_come_to_coordinator, coordinator, index, 4, 20.0) for index in (1, 2))

    monkeypatch.setattr(connection, "WAIT_SECONDS", 5.0)  # process 0 waits for both as long as that takes here
    called, thread = [], threading.Thread(target=ask_and_send)

    def start_and_listen(listener):
        if thread.ident is None:  # once process 0 listens: before, a connection may reach its own port
            thread.start()
        return next_request(listener)

    monkeypatch.setattr(connection, "_next_request", start_and_listen)
    with of_a_command(), pytest.raises((KeyboardInterrupt, SystemExit)):
        _gather_processes(coordinator, 4, 20.0)
    thread.join(20)
    for waiting, outcome in called:
        waiting.join(20)
        (error,) = outcome
        assert error.code == "process-start-missing"
        assert str(error).startswith("process 0 was ended by a signal")


@pytest.mark.parametrize(("index", "count"), [(1, 3), (2, 3)])
def test_processes_with_another_count_do_not_start(coordinator, index, count):
    calls = [in_thread(_gather_processes, coordinator, 2, 20.0)]
    calls += [in_thread(_come_to_coordinator, coordinator, index, count, 20.0)]
    for thread, outcome in calls:
        thread.join(20)
        (error,) = outcome
        assert str(error).startswith(f"process {index} was started as one of {count} processes, and process 0 as one")
        assert error.code == "process-count-differs"


def test_malformed_connections_are_ignored(coordinator):
    gather = in_thread(_gather_processes, coordinator, 2, 20.0)
    port = int(coordinator.rpartition(":")[2])
    for text in (b"GET / HTTP/1.1\r\n", b"learner 0 2\n", b"learner 2 2\n", b"learner x 2\n", b"learner 1\n", b""):
        for _ in range(1000):
            try:
                with socket.create_connection(("localhost", port), 5) as client:
                    client.sendall(text)
                break
            except ConnectionRefusedError:
                gather[0].join(0.01)
    assert gather[1] == []
    come = in_thread(_come_to_coordinator, coordinator, 1, 2, 20.0)
    for thread, _ in (gather, come):
        thread.join(20)
    assert (gather[1], come[1]) == ([None], [False])


@contextlib.contextmanager
def answering(coordinator, answer):
    """Run a service at the address that sends `answer` to every client."""
    with socket.create_server(("localhost", int(coordinator.rpartition(":")[2]))) as server:

        def serve():
            with contextlib.suppress(OSError):  # once the server is closed
                while True:
                    with server.accept()[0] as peer:
                        peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield


@pytest.mark.full
def test_another_service_at_the_address_is_not_mistaken_for_process_0(coordinator):
    problem = "something else answers there: 'SSH-2.0-OpenSSH_9.2"
    with answering(coordinator, b"SSH-2.0-OpenSSH_9.2\r\n"), raises_code("process-coordinator-unreachable", problem):
        _come_to_coordinator(coordinator, 1, 2, 0.5)


@pytest.fixture
def initialized(monkeypatch):
    """Return the arguments that `jax.distributed.initialize` receives; it fails without connecting."""
    given = {}

    def initialize(**arguments):
        given.update(arguments)
        raise RuntimeError("not here")

    monkeypatch.setattr(connection, "backends_are_initialized", lambda: False)
    monkeypatch.setattr(connection.jax.distributed, "initialize", initialize)
    return given


@pytest.mark.parametrize(("answer", "seconds"), [(b"start", 300), (b"\0\0\x12\x04", 15)])
def test_a_restarted_process_waits_only_briefly_for_a_running_service(coordinator, initialized, answer, seconds):
    with answering(coordinator, answer), raises_code("process-unconnected", process_id=1):
        init_distributed(coordinator, 2, 1)
    assert initialized["initialization_timeout"] == seconds


@pytest.mark.parametrize("explicit", [False, True])
def test_kubernetes_is_detected_only_without_a_coordinator(coordinator, initialized, monkeypatch, explicit):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    with raises_code("process-unconnected" if explicit else "process-cluster-unconnected"):
        init_distributed(*((coordinator, 1, 0) if explicit else ()))
    assert initialized["cluster_detection_method"] == ("deactivate" if explicit else None)


def test_cluster_errors_name_the_arguments_to_pass(initialized, monkeypatch):
    def initialize(**arguments):
        raise OSError("Service token file does not exist.")

    monkeypatch.setattr(connection.jax.distributed, "initialize", initialize)
    with raises_code("process-cluster-unconnected", "Service token file does not exist.", "--process_id I"):
        init_distributed()


@pytest.mark.parametrize(
    "argument", [{"timeout": 0}, {"timeout": "60"}, {"heartbeat": -1.0}, {"heartbeat": True}, {"timeout": float("inf")}]
)
def test_times_must_be_positive_seconds(argument):
    with raises_code("process-seconds-value", name=next(iter(argument))):
        init_distributed("localhost:1234", 2, 0, **argument)


def test_processes_with_other_numbers_of_devices_are_refused(monkeypatch):
    """JAX would fail in a reshape of the array of devices."""
    devices = [types.SimpleNamespace(process_index=index) for index in (0, 1, 1)]
    monkeypatch.setattr(connection.jax, "devices", lambda: devices)
    with raises_code("process-devices-uneven", "1 device in process 0; 2 devices in process 1"):
        connection._refuse_uneven_devices()
    del devices[-1]
    connection._refuse_uneven_devices()
