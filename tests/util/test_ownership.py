"""Tests of objects that only one thread may write to."""

import dataclasses
import os
import subprocess
import sys
import threading

import pytest

from learner.runs.metric_logs import NoFiles
from learner.training.progress.position import Position
from learner.training.reporting.delivery import RunValues
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import StepTimeEstimator, StepTimer, TimeBreakdown
from learner.training.run import Run
from learner.util.ownership import ThreadOwned


class Counter(ThreadOwned):
    def __init__(self):
        self.count = 0


def errors_of(write):
    """Run `write()` in another thread, and return the messages of its assertion errors."""
    errors = []

    def guarded():
        try:
            write()
        except AssertionError as error:
            errors.append(str(error))

    thread = threading.Thread(target=guarded, name="another")
    thread.start()
    thread.join()
    return errors


def test_any_thread_may_write_until_an_owner_claims_the_object():
    counter = Counter()
    assert errors_of(lambda: setattr(counter, "count", 1)) == []
    counter.claim()
    counter.count = 2
    (error,) = errors_of(lambda: setattr(counter, "count", 3))
    assert error == "the thread another sets count of a Counter, which belongs to another thread"
    assert counter.count == 2


def test_thread_may_take_over():
    counter = Counter()
    counter.claim()
    assert errors_of(counter.claim) == []
    with pytest.raises(AssertionError):
        counter.count = 1


def test_parts_of_a_run_have_owners():
    timer = StepTimer(StepTimeEstimator(), TimeBreakdown(lambda: 0.0))
    parts = dict.fromkeys(field.name for field in dataclasses.fields(Run))
    run = Run(**parts | {"position": Position()})
    for write in (timer.begin, lambda: setattr(run, "accumulator", None)):
        assert len(errors_of(write)) == 1


def test_only_the_reporters_thread_writes_to_it():
    reporter = Reporter(RunValues(NoFiles(), (), print, {}, {}), StepTimeEstimator())
    reporter.wait()
    with pytest.raises(AssertionError, match="sets log of a Reporter"):
        reporter.log = None
    reporter.close()


def test_writes_are_checked_only_with_the_environment_variable():
    program = "from learner.util.ownership import ThreadOwned; print('__setattr__' in vars(ThreadOwned))"
    environment = {name: value for name, value in os.environ.items() if name != "LEARNER_CHECK_OWNERS"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
