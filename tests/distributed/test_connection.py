"""Processes come to process 0 before JAX connects them. JAX itself is not used here."""

import contextlib
import socket
import threading

import pytest

from learner.distributed import connection
from learner.distributed.connection import _come_to_coordinator, _gather_processes, init_distributed
from learner.errors import LearnerError
from tests.support.codes import raises_code
from tests.support.processes import free_port


@pytest.fixture
def coordinator(monkeypatch):
    monkeypatch.setattr(connection, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(connection, "POLL_SECONDS", 0.02)
    return f"localhost:{free_port()}"


def in_thread(function, *arguments):
    """Call a function in a thread; return it and the list that gets the result or the error."""
    outcome = []

    def call():
        try:
            outcome.append(function(*arguments))
        except LearnerError as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, outcome


def test_all_start_once_all_have_come(coordinator):
    called = [in_thread(_gather_processes, coordinator, 3, 20.0)]
    called += [in_thread(_come_to_coordinator, coordinator, index, 20.0) for index in (2, 1)]
    for thread, outcome in called:
        thread.join(20)
        assert outcome == [None]


def test_processes_that_do_not_come_are_named_in_all_others(coordinator):
    called = [in_thread(_gather_processes, coordinator, 5, 0.5)]
    called += [in_thread(_come_to_coordinator, coordinator, index, 0.5) for index in (1, 3)]
    for thread, outcome in called:
        thread.join(20)
        (error,) = outcome
        assert error.code == "process-start-missing"
        assert str(error).startswith(
            "processes 2 and 4 did not come within 0.5 s to process 0, which waits at localhost:"
        )


def test_strangers_at_the_port_are_ignored(coordinator):
    gather = in_thread(_gather_processes, coordinator, 2, 20.0)
    port = int(coordinator.rpartition(":")[2])
    for text in (b"GET / HTTP/1.1\r\n", b"learner 0\n", b"learner 2\n", b"learner x\n", b""):
        for _ in range(1000):
            try:
                with socket.create_connection(("localhost", port), 5) as stranger:
                    stranger.sendall(text)
                break
            except ConnectionRefusedError:
                gather[0].join(0.01)
    assert gather[1] == []
    come = in_thread(_come_to_coordinator, coordinator, 1, 20.0)
    for thread, outcome in (gather, come):
        thread.join(20)
        assert outcome == [None]


def test_another_service_at_the_address_is_not_taken_for_process_0(coordinator):
    with socket.create_server(("localhost", int(coordinator.rpartition(":")[2]))) as server:

        def answer():
            with contextlib.suppress(OSError):  # once the server is closed
                while True:
                    with server.accept()[0] as peer:
                        peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with raises_code("process-coordinator-unreachable", "something else answers there: 'SSH-2.0-OpenSSH_9.2"):
            _come_to_coordinator(coordinator, 1, 0.5)


@pytest.mark.parametrize(
    "named", [{"timeout": 0}, {"timeout": "60"}, {"heartbeat": -1.0}, {"heartbeat": True}, {"timeout": float("inf")}]
)
def test_times_must_be_positive_seconds(named):
    with raises_code("process-seconds-value", name=next(iter(named))):
        init_distributed("localhost:1234", 2, 0, **named)
