"""Tests of the sums over a profiler trace: busy time and time per operation."""

import pytest

from learner.training.trace import Operations, Trace, read_trace, summed


def test_overlapping_threads_count_once():
    """The second thread starts during the first operation of the first thread and ends after it."""
    one = [(0.0, 4e9, "dot.1"), (6e9, 7e9, "copy.2")]
    two = [(3e9, 5e9, "dot.9")]
    trace = summed({"0": [one, two]})
    assert trace.busy == pytest.approx(6.0)
    assert trace.operations == (Operations("dot", 6.0, 2), Operations("copy", 1.0, 1))


def test_nested_operations_are_excluded():
    line = [(0.0, 10e9, "while.1"), (1e9, 4e9, "call.2"), (2e9, 3e9, "dot.3"), (5e9, 6e9, "dot.4")]
    operations = {operation.name: operation.seconds for operation in summed({"0": [line]}).operations}
    assert operations == {"while": 6.0, "call": 2.0, "dot": 2.0}


def test_several_devices_are_averaged():
    trace = summed({"0": [[(0.0, 4e9, "dot")]], "1": [[(0.0, 2e9, "dot")]]})
    assert (trace.busy, trace.operations) == (3.0, (Operations("dot", 3.0, 2),))


def test_a_missing_trace_is_empty(tmp_path):
    assert summed({}) == Trace(None)
    assert read_trace(tmp_path) == Trace(None)
