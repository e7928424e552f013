"""Tests of process groups with real processes: meetings, failures, late and killed processes, connecting."""

import json
import time
from pathlib import Path

import jax
import pytest

from learner import init_distributed
from learner.distributed.process_group import Connected, SingleProcess, hosts
from learner.errors import LearnerError, ProcessError
from tests.support.codes import raises_code
from tests.support.process_groups import groups
from tests.support.processes import start, together

SUPPORT = Path(__file__).parents[1] / "support"
PATIENCE, LATE = 20.0, 2.0  # seconds that met.py waits for peers: in general, and when one is late
ABORTED, KILLED = -6, -9


def met(scenario, count):
    return start([SUPPORT / "met.py", "{port}", "{count}", "{index}", scenario], count)


def printed_values(process):
    """Return the values that a process printed, by name; a name printed twice has a list of both values."""
    values = {}
    for line in process.out.splitlines():
        if line.startswith("["):
            try:
                name, value = json.loads(line)
            except ValueError:  # Gloo prints, too
                continue
            values.setdefault(name, []).append(value)
    return {name: entries[0] if len(entries) == 1 else entries for name, entries in values.items()}


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.full)])
def healthy(request):
    processes = met("fine", request.param)
    assert [process.code for process in processes] == [0] * request.param, [process.err for process in processes]
    return [printed_values(process) for process in processes]


def values_of(processes, name):
    return [process[name] for process in processes]


def test_processes_know_their_index_and_count(healthy):
    assert values_of(healthy, "who") == [[index, len(healthy)] for index in range(len(healthy))]


def test_a_connected_process_is_not_reported_as_unconnected(healthy):
    assert values_of(healthy, "unconnected") == [None] * len(healthy)


def test_gathered_values_are_in_process_order(healthy):
    assert values_of(healthy, "words") == [[{"from": index, "pair": [1, None]} for index in range(len(healthy))]] * len(
        healthy
    )
    assert values_of(healthy, "many") == [True] * len(healthy)
    assert values_of(healthy, "late") == [[None] * len(healthy)] * len(healthy)


def test_differing_values_raise_in_every_process_and_are_listed(healthy):
    values = "; ".join(f"{0.1 * index} in process {index}" for index in range(len(healthy)))
    assert values_of(healthy, "differ") == [f"the processes of the run differ in the config:\n  lr is {values}"] * len(
        healthy
    )
    assert values_of(healthy, "after") == [["still"] * len(healthy)] * len(healthy)


def test_processes_at_different_meetings_raise(healthy):
    for text in values_of(healthy, "elsewhere"):
        assert text.startswith("the processes of the run do different things: process 0 at 'the next step', process 1")
        assert "Their data must have equally many batches" in text


def test_results_and_errors_of_process_0_reach_all_processes(healthy):
    assert values_of(healthy, "once") == [["only", 0]] * len(healthy)
    assert values_of(healthy, "refused") == ["no room, says process 0"] * len(healthy)


def test_the_store_does_not_grow(healthy):
    """After about 70 meetings, the store holds the last one and the peers' values for the next one."""
    assert healthy[0]["keys"] <= 2 * len(healthy)


def test_arrays_are_exchanged_between_processes(healthy):
    assert values_of(healthy, "sum") == [sum(range(1, len(healthy) + 1))] * len(healthy)
    assert values_of(healthy, "devices") == [[1, len(healthy)]] * len(healthy)


def test_a_meeting_is_fast(healthy):
    """A meeting takes about 1 ms; with polling it would take at least 100 ms."""
    assert max(values_of(healthy, "milliseconds")) < 50


def test_signals_are_handled_while_waiting_for_peers(healthy):
    """The peers wait until the signal is handled; otherwise the test would not end."""
    assert values_of(healthy, "heard") == [int(index == 1) for index in range(len(healthy))]


def test_connecting_again_is_idempotent(healthy):
    assert values_of(healthy, "again") == [None] * len(healthy)
    assert healthy[1]["another"] == (
        f"this is process 1 of {len(healthy)} already: it cannot become process 1 of {len(healthy) + 1}"
    )


def test_a_failure_reaches_waiting_peers_and_is_attributed_to_its_process(healthy):
    for index, process in enumerate(healthy):
        seconds, text = process["failed"]
        if index == 1:
            assert text == "process 1 has failed, and meets the others no more: CrashError: out of coffee"
        else:
            assert text == process["failed again"] == "process 1 failed: CrashError: out of coffee"
            assert seconds < PATIENCE / 2


def test_a_failure_ends_one_run_and_leaving_ends_all_runs(healthy):
    assert values_of(healthy, "next run") == [list(range(len(healthy)))] * len(healthy)
    for seconds, text in values_of(healthy[1:], "left"):
        # A third process may have left by then because of the first failure.
        assert text.startswith("process 0 failed: LearnerError: there is no such file")
        assert seconds < PATIENCE / 2


@pytest.mark.full
def test_a_late_process_is_named_and_learns_that_its_peers_failed():
    processes = met("late", 3)
    assert [process.code for process in processes] == [0, 0, 0], [process.err for process in processes]
    words = [printed_values(process)["late"] for process in processes]
    for run, late in enumerate((2, 0)):
        missed = f"process {late} did not come within 2 s to where all processes of the run meet"
        for index in range(3):
            seconds, text = words[index][run]
            assert missed in text
            if index == late:
                assert text.startswith(("process 0 failed", "process 1 failed", "process 2 failed"))
                assert seconds < LATE
            else:
                assert seconds < LATE + 1.5


@pytest.mark.full
def test_peers_do_not_wait_forever_for_a_killed_process():
    """The meeting times out before JAX aborts the processes from C++ for missing heartbeats."""
    *others, last = met("last", 3)
    assert [process.code for process in (*others, last)] == [ABORTED, ABORTED, KILLED]
    for process in others:
        seconds, text = printed_values(process)["killed"]
        assert "process 2 did not come within 1 s" in text
        assert seconds < 2.5


@pytest.mark.full
def test_all_processes_end_when_process_0_is_killed():
    first, other = met("first", 2)
    assert (first.code, other.code) == (KILLED, ABORTED)
    assert "JAX distributed service detected fatal errors" in other.err


@pytest.mark.full
def test_collectives_end_when_a_process_has_left():
    """They end well before heartbeats are missed and before JAX would give up waiting for process 1."""
    before = time.monotonic()
    processes = met("stuck", 2)
    assert [process.code for process in processes] == [2, 2], [process.err for process in processes]
    assert printed_values(processes[1])["stuck"] == "out of coffee"
    assert "Gloo" in printed_values(processes[0])["stuck"]
    assert time.monotonic() - before < 40


# -- connecting --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_failed_connections_name_the_arguments_to_pass():
    (process,) = together([[str(SUPPORT / "unconnected.py")]])
    assert process.code == 0, process.err
    words = printed_values(process)
    assert "no cluster was found: JAX detects SLURM, Open MPI, Kubernetes and Cloud TPU" in words["no cluster"]
    assert "--coordinator HOST:PORT --num_processes N --process_id I" in words["no cluster"]
    assert "process 1 cannot reach the coordinator at localhost:" in words["unreachable"]
    assert "after 0.2 s: [Errno" in words["unreachable"]
    assert "another program on this machine does. Choose another port" in words["taken"]
    assert words["in the end"] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"coordinator": "a:1"}, "process-arguments-incomplete"),
        ({"num_processes": 2, "process_id": 0}, "process-arguments-incomplete"),
        ({"coordinator": "a", "num_processes": 2, "process_id": 0}, "process-coordinator-malformed"),
        ({"coordinator": ":12", "num_processes": 2, "process_id": 0}, "process-coordinator-malformed"),
        ({"coordinator": "a:99999", "num_processes": 2, "process_id": 0}, "process-coordinator-malformed"),
        ({"coordinator": "a:1", "num_processes": 0, "process_id": 0}, "data-number-value"),
        ({"coordinator": "a:1", "num_processes": "2", "process_id": 0}, "data-number-value"),
        ({"coordinator": "a:1", "num_processes": 2, "process_id": -1}, "data-number-value"),
        ({"coordinator": "a:1", "num_processes": 2, "process_id": 2}, "process-id-outside"),
    ],
)
def test_wrong_arguments_are_refused(arguments, code):
    with raises_code(code):
        init_distributed(**arguments)


def test_connecting_after_jax_is_initialized_is_refused():
    jax.devices()
    with raises_code("process-jax-in-use"):
        init_distributed("localhost:1234", num_processes=1, process_id=0)


class SlowStore:
    """A client of the key-value store whose first 99 reads time out. `present`: the processes at the meeting."""

    def __init__(self, present=()):
        self.reads, self.present = 0, present

    def blocking_key_value_get(self, name, milliseconds):
        self.reads += 1
        if self.reads < 100:
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
        return json.dumps([["end", 7]])

    def key_value_dir_get(self, prefix):
        return [(f"{prefix}/{index}", "null") for index in self.present] if prefix == "learner/1/1" else []

    def key_value_set(self, *arguments):
        pass

    key_value_delete = key_value_set


def test_a_patient_meeting_ignores_the_timeout():
    with raises_code("process-missing"):
        Connected(SlowStore(), 1, 2, 1, timeout=0.0).all_reduce_json(1, max, "end")
    assert Connected(SlowStore(), 1, 2, 1, timeout=0.0).all_reduce_json(1, max, "end", patient=True) == 7


def test_a_meeting_at_which_all_are_present_after_its_timeout_takes_place():
    assert Connected(SlowStore(present=(0, 1)), 1, 2, 1, timeout=0.0).all_reduce_json(1, max, "end") == 7


ROWS_3, ROWS_6 = '{"x": [3, 2]}', '{"x": [6, 2]}'


def test_other_rows_of_the_next_process_are_found_in_a_ring():
    """Without the end of a pass only the rows of its changes are known."""
    members, _ = groups(3)
    for index, member in enumerate(members):
        for batch in range(1, 5):
            member.record_read("train", 1, batch, ended=False, shapes=[ROWS_3 if index == 1 and batch == 4 else ROWS_6])
    members[1].compare_passes()  # stores its rows; process 2 has stored none
    members[2].compare_passes()
    members[1].compare_passes()  # process 2 might have read 3 batches only
    text = "batch 4 in pass 1 of the train data has 6 rows in process 0, 3 rows in process 1"
    with raises_code("process-rows-differ", text):
        members[0].compare_passes()
    with raises_code("process-run-over", text):
        members[2].raise_if_peer_failed()


def test_a_difference_is_the_error_of_the_next_meeting():
    """The thread that compares finds it, and then the loop's thread meets the others."""
    members, _ = groups(2)
    for member, shapes in zip(members, [ROWS_6, ROWS_3], strict=True):
        member.record_read("train", 1, 1, ended=True, shapes=[shapes])
    members[1].compare_passes()
    for call in (members[0].compare_passes, lambda: members[0].all_gather_json(1)):
        with pytest.raises(ProcessError, match=r"^batch 1 in pass 1 of the train data has 6 rows in process 0"):
            call()
    with raises_code("process-run-over", "process 0 failed: batch 1 in pass 1"):
        members[1].raise_if_peer_failed()


def test_an_earlier_end_of_the_next_process_is_found_in_a_ring():
    """The others wait for its devices in a step that it does not dispatch, and read no data."""
    members, _ = groups(3)
    for member in members:
        member.record_step(7)
    members[1].record_step(7, ended_by="hook halt: enough")
    for member in (*members, *members):
        member.compare_passes()  # the others may end after this step as well
    members[2].record_step(8)
    members[2].compare_passes()  # the next one of process 2 is process 0
    members[0].record_step(9)
    with raises_code("process-stop-differs", "process 1", "step 7", "hook halt: enough"):
        members[0].compare_passes()
    with raises_code("process-run-over", "hook halt: enough"):
        members[1].raise_if_peer_failed()


def test_equal_rows_are_sent_once():
    members, clients = groups(2)
    for batch in range(1, 5):
        for member, client in zip(members, clients, strict=True):
            member.record_read("train", 1, batch, ended=False, shapes=[ROWS_6])
            before = client.messages
            member.compare_passes()
            assert client.messages - before == (2 if batch == 1 else 1)


# -- one process -------------------------------------------------------------------------------------------------------


def test_a_single_process_does_not_wait():
    group = hosts()
    assert (type(group), group.index, group.count, group.all_gather_json({"a": 1})) == (SingleProcess, 0, 1, [{"a": 1}])
    group.agree("the seed", 1)
    group.fail("nobody hears")
    assert group.all_gather_json("still") == ["still"]

    def refuse():
        raise LearnerError("no room")

    with raises_code("user"):
        group.run_on_primary(refuse)
