"""Check that the data that processes exchange to agree grows neither with their number nor with the number of steps."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def agreement(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.agreement")


def test_messages_and_bytes_of_a_process_are_flat(agreement):
    """20 dispatches of 50 ms share a meeting: a value is stored and a result is read."""
    few, many = (agreement.measure(count, dispatches=181) for count in (4, 32))
    assert few["meetings"] == many["meetings"] == 1.0
    assert few["messages"] == pytest.approx(2.0, abs=0.5)  # more if a thread was late
    assert many["messages"] <= 1.5 * few["messages"]
    assert many["bytes"] <= 1.5 * few["bytes"] < 600
    assert many["messages of process 0"] <= 12
