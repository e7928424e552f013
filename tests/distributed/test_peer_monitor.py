"""Tests of the thread that ends a process after a peer's failure, with a fake process group."""

import io
import sys
import threading

import pytest

from learner.distributed.peer_monitor import peers_monitored
from learner.distributed.process_group import SingleProcess
from learner.errors import ProcessError

SOON = 0.001  # seconds


class Group(SingleProcess):
    """A group of two processes; the peer fails when `failed` is set, and `polled` is set at the first poll."""

    index, count = 0, 2

    def __init__(self, differs=False):
        self.failed, self.polled, self._differs = threading.Event(), threading.Event(), differs

    def raise_if_peer_failed(self):
        self.polled.set()
        if self.failed.is_set():
            raise ProcessError("process 1 failed: no coffee", code="process-run-over")

    def compare_passes(self):
        if self._differs:
            raise ProcessError("the data of process 1 ended", code="process-data-ended")


@pytest.mark.parametrize("differs", [False, True])
def test_a_process_that_does_not_raise_is_ended_with_the_reason(differs, capsys):
    """The reason is printed first, because JAX may abort the process in the meantime."""
    group, ended, reasons = Group(differs), threading.Event(), []
    printed = []

    def end(reason):
        reasons.append(reason)
        printed.append(capsys.readouterr().err)
        ended.set()

    with peers_monitored(group, SOON, SOON, 2 * SOON, end):
        group.failed.set()
        assert ended.wait(60)  # this thread does not poll, like one blocked in C++
    assert reasons in (
        ["process 0 ends: process 1 failed: no coffee"],
        ["process 0 ends: the data of process 1 ended"],
    )
    assert reasons[0].removeprefix("process 0 ends: ") in printed[0]


class ClosedPipe(io.StringIO):
    def flush(self):
        raise BrokenPipeError


def test_a_process_with_a_closed_stderr_is_ended(monkeypatch):
    group, ended = Group(), threading.Event()
    monkeypatch.setattr(sys, "stderr", ClosedPipe())
    with peers_monitored(group, SOON, SOON, 2 * SOON, lambda reason: ended.set()):
        group.failed.set()
        assert ended.wait(10)


def test_a_process_that_raises_in_time_is_not_ended(capsys):
    group, reasons = Group(), []
    with peers_monitored(group, SOON, 10, 10, reasons.append):
        assert group.polled.wait(60)
        (monitor,) = [thread for thread in threading.enumerate() if thread.name == "learner-peers"]
        group.failed.set()
    monitor.join(60)
    assert (monitor.is_alive(), reasons, capsys.readouterr().err) == (False, [], "")


def test_a_single_process_starts_no_monitor():
    threads = threading.active_count()
    with peers_monitored(SingleProcess()):
        assert threading.active_count() == threads
