"""The thread that ends a process whose peers have failed: with a fake of the group, and without processes."""

import io
import sys
import threading

import pytest

from learner.distributed.peer_monitor import peers_monitored
from learner.distributed.process_group import SingleProcess
from learner.errors import ProcessError

SOON = 0.001  # seconds


class Group(SingleProcess):
    """One of two processes, whose peer fails when the event is set."""

    index, count = 0, 2

    def __init__(self, differs=False):
        self.failed, self.asked, self._differs = threading.Event(), threading.Event(), differs

    def raise_if_peer_failed(self):
        self.asked.set()
        if self.failed.is_set():
            raise ProcessError("process 1 failed: no coffee", code="process-run-over")

    def compare_passes(self):
        if self._differs:
            raise ProcessError("the data of process 1 ended", code="process-data-ended")


@pytest.mark.parametrize("differs", [False, True])
def test_a_process_that_does_not_raise_is_ended_with_the_reason(differs, capsys):
    """It is printed before, as JAX may abort the process meanwhile."""
    group, ended, reasons = Group(differs), threading.Event(), []
    printed = []

    def end(reason):
        reasons.append(reason)
        printed.append(capsys.readouterr().err)
        ended.set()

    with peers_monitored(group, SOON, SOON, 2 * SOON, end):
        group.failed.set()
        assert ended.wait(60)  # this thread does not notice, as one in C++ would not
    assert reasons in (
        ["process 0 ends: process 1 failed: no coffee"],
        ["process 0 ends: the data of process 1 ended"],
    )
    assert reasons[0].removeprefix("process 0 ends: ") in printed[0]


class ClosedPipe(io.StringIO):
    def flush(self):
        raise BrokenPipeError


def test_a_process_is_ended_although_nobody_reads_its_output(monkeypatch):
    group, ended = Group(), threading.Event()
    monkeypatch.setattr(sys, "stderr", ClosedPipe())
    with peers_monitored(group, SOON, SOON, 2 * SOON, lambda reason: ended.set()):
        group.failed.set()
        assert ended.wait(10)


def test_a_process_that_raises_in_time_is_not_ended(capsys):
    group, reasons = Group(), []
    with peers_monitored(group, SOON, 10, 10, reasons.append):
        assert group.asked.wait(60)
        (thread,) = [each for each in threading.enumerate() if each.name == "learner-peers"]
        group.failed.set()
    thread.join(60)
    assert (thread.is_alive(), reasons, capsys.readouterr().err) == (False, [], "")


def test_nothing_is_asked_without_peers():
    threads = threading.active_count()
    with peers_monitored(SingleProcess()):
        assert threading.active_count() == threads
