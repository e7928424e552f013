"""Tests of the end of one of several processes."""

import json

import pytest

from learner.distributed import departure, process_group
from learner.distributed.process_group import hosts


class Store:
    """The connection of a process, and the client and its values, after all other processes have left."""

    def __init__(self, count=2, index=1):
        self.client, self.service, self.num_processes, self.process_id = self, None, count, index
        self.values = {f"{departure.LEFT}/{other}": "" for other in range(count) if other != index}

    def key_value_set(self, key, value, allow_overwrite=False):
        self.values[key] = value

    def blocking_key_value_get(self, key, milliseconds):
        return self.values[key]

    def shutdown(self):
        self.client = None


@pytest.fixture
def store(monkeypatch):
    store = Store()
    for module in departure, process_group:
        monkeypatch.setattr(module, "distributed_state", lambda: store)
    monkeypatch.setattr(departure, "_exit_text", None)
    return store


def test_a_process_that_leaves_disconnects_while_the_others_wait_for_it(store):
    departure.leave("ValueError: no data")
    assert store.client is None
    assert json.loads(store.values[f"{departure.FAILED}/1"]) == [None, "ValueError: no data"]
    departure.mark_ended()
    assert f"{departure.ENDED}/1" not in store.values


def test_a_process_leaves_at_exit_after_a_system_exit(store):
    departure.leave_at_exit("SystemExit: 3")
    assert store.client is store
    departure.mark_ended()
    assert store.client is None
    assert json.loads(store.values[f"{departure.FAILED}/1"]) == [None, "SystemExit: 3"]


def test_a_new_run_forgets_the_system_exit_of_an_earlier_one(store):
    departure.leave_at_exit("SystemExit: 3")
    assert hosts().count == 2
    departure.mark_ended()
    assert store.client is store
    assert f"{departure.ENDED}/1" in store.values
