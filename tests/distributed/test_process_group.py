"""Several processes meet, fail, come late and are killed: real ones, on this machine."""

import json
import time
from pathlib import Path

import jax
import pytest

from learner import init_distributed
from learner.distributed.process_group import Connected, SingleProcess, _difference, hosts
from learner.errors import LearnerError
from tests.support.codes import raises_code
from tests.support.processes import start, together

SUPPORT = Path(__file__).parents[1] / "support"
PATIENCE, LATE = 20.0, 2.0  # how long `met` waits for a process when all is well, and when one is late
ABORTED, KILLED = -6, -9


def met(what, count):
    return start([SUPPORT / "met.py", "{port}", "{count}", "{index}", what], count)


def last_line(process):
    """What a process printed, by name; a name that comes twice has the list of both."""
    found = {}
    for line in process.out.splitlines():
        if line.startswith("["):
            try:
                name, value = json.loads(line)
            except ValueError:  # Gloo prints, too
                continue
            found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.full)])
def fine(request):
    processes = met("fine", request.param)
    assert [process.code for process in processes] == [0] * request.param, [process.err for process in processes]
    return [last_line(process) for process in processes]


def each(processes, name):
    return [process[name] for process in processes]


def test_processes_know_who_they_are(fine):
    assert each(fine, "who") == [[index, len(fine)] for index in range(len(fine))]


def test_a_connected_process_is_not_taken_for_one_that_its_launcher_left_alone(fine):
    assert each(fine, "unconnected") == [None] * len(fine)


def test_everybody_hears_every_word_in_the_order_of_the_processes(fine):
    assert each(fine, "words") == [[{"from": index, "pair": [1, None]} for index in range(len(fine))]] * len(fine)
    assert each(fine, "many") == [True] * len(fine)
    assert each(fine, "late") == [[None] * len(fine)] * len(fine)


def test_what_differs_is_an_error_in_every_process_and_says_who_has_what(fine):
    values = "; ".join(f"{0.1 * index} in process {index}" for index in range(len(fine)))
    assert each(fine, "differ") == [f"the processes of the run differ in the config:\n  lr is {values}"] * len(fine)
    assert each(fine, "after") == [["still"] * len(fine)] * len(fine)


def test_processes_at_different_meetings_raise(fine):
    for text in each(fine, "elsewhere"):
        assert text.startswith("the processes of the run do different things: process 0 at 'the next step', process 1")
        assert "Their data must have equally many batches" in text


def test_work_of_process_0_and_its_errors_are_everybodys(fine):
    assert each(fine, "once") == [["only", 0]] * len(fine)
    assert each(fine, "refused") == ["no room, says process 0"] * len(fine)


def test_the_store_does_not_grow(fine):
    """Some 70 meetings later there is the last one, and what the others have said of the next."""
    assert fine[0]["keys"] <= 2 * len(fine)


def test_arrays_are_exchanged_between_processes(fine):
    assert each(fine, "sum") == [sum(range(1, len(fine) + 1))] * len(fine)
    assert each(fine, "devices") == [[1, len(fine)]] * len(fine)


def test_a_meeting_takes_little_time(fine):
    """About 1 ms, while the shortest wait of anybody who looks again now and then would be 100."""
    assert max(each(fine, "milliseconds")) < 50


def test_a_signal_is_heard_while_the_others_are_waited_for(fine):
    """They wait until it was heard, so without that the test would not end."""
    assert each(fine, "heard") == [int(index == 1) for index in range(len(fine))]


def test_who_is_connected_stays_so(fine):
    assert each(fine, "again") == [None] * len(fine)
    assert fine[1]["another"] == (
        f"this is process 1 of {len(fine)} already: it cannot become process 1 of {len(fine) + 1}"
    )


def test_a_failure_is_heard_by_those_who_wait_and_is_nobody_elses(fine):
    for index, process in enumerate(fine):
        seconds, text = process["failed"]
        if index == 1:
            assert text == "process 1 has failed, and meets the others no more: CrashError: out of coffee"
        else:
            assert text == process["failed again"] == "process 1 failed: CrashError: out of coffee"
            assert seconds < PATIENCE / 2


def test_a_failure_ends_its_run_only_and_who_leaves_all_runs(fine):
    assert each(fine, "next run") == [list(range(len(fine)))] * len(fine)
    for seconds, text in each(fine[1:], "left"):
        # A third one may have left by then, because of the first.
        assert text.startswith("process 0 failed: LearnerError: there is no such file")
        assert seconds < PATIENCE / 2


@pytest.mark.full
def test_who_comes_too_late_is_named_and_learns_that_the_others_have_gone():
    processes = met("late", 3)
    assert [process.code for process in processes] == [0, 0, 0], [process.err for process in processes]
    words = [last_line(process)["late"] for process in processes]
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
def test_the_others_do_not_wait_for_ever_for_one_that_was_killed():
    """JAX ends them from C++ once the heartbeats are missing, whatever they do; the meeting is over before that."""
    *others, last = met("last", 3)
    assert [process.code for process in (*others, last)] == [ABORTED, ABORTED, KILLED]
    for process in others:
        seconds, text = last_line(process)["killed"]
        assert "process 2 did not come within 1 s" in text
        assert seconds < 2.5


def test_nobody_stays_when_process_0_is_killed():
    first, other = met("first", 2)
    assert (first.code, other.code) == (KILLED, ABORTED)
    assert "JAX distributed service detected fatal errors" in other.err


@pytest.mark.full
def test_devices_do_not_wait_for_a_process_that_has_left():
    """Well before the heartbeats are missed, and long before JAX would give up at the exit of process 1."""
    before = time.monotonic()
    processes = met("stuck", 2)
    assert [process.code for process in processes] == [2, 2], [process.err for process in processes]
    assert last_line(processes[1])["stuck"] == "out of coffee"
    assert "Gloo" in last_line(processes[0])["stuck"]
    assert time.monotonic() - before < 40


# -- connecting --------------------------------------------------------------------------------------------------------


def test_where_there_is_nobody_to_connect_to_it_says_what_to_pass():
    (process,) = together([[str(SUPPORT / "unconnected.py")]])
    assert process.code == 0, process.err
    words = last_line(process)
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


def test_it_is_too_late_to_connect_when_jax_is_in_use():
    jax.devices()
    with raises_code("process-jax-in-use"):
        init_distributed("localhost:1234", num_processes=1, process_id=0)


class SlowStore:
    """The client of a process whose process 0 comes after a hundred questions."""

    def __init__(self):
        self.asked = 0

    def blocking_key_value_get(self, name, milliseconds):
        self.asked += 1
        if self.asked < 100:
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
        return json.dumps([["end", 7]])

    def key_value_dir_get(self, prefix):
        return []

    def key_value_set(self, *given):
        pass

    key_value_delete = key_value_set


def test_a_process_waits_as_long_as_process_0_works_alone():
    with raises_code("process-missing"):
        Connected(SlowStore(), 1, 2, 1, timeout=0.0).all_reduce_json(1, max, "end")
    assert Connected(SlowStore(), 1, 2, 1, timeout=0.0).all_reduce_json(1, max, "end", patient=True) == 7


# -- without others ----------------------------------------------------------------------------------------------------


def test_alone_nobody_is_waited_for():
    here = hosts()
    assert (type(here), here.index, here.count, here.all_gather_json({"a": 1})) == (SingleProcess, 0, 1, [{"a": 1}])
    here.agree("the seed", 1)
    here.fail("nobody hears")
    assert here.all_gather_json("still") == ["still"]

    def refused():
        raise LearnerError("no room")

    with raises_code("user"):
        here.run_on_primary(refused)


def test_a_difference_says_where_it_is():
    config = {"model": {"class_path": "MLP", "sizes": [8, 8]}, "text": "a\nb\nc"}
    other = {"model": {"class_path": "MLP", "sizes": [8, 16, 4]}, "text": "a\nx\nc"}
    assert _difference("the config", [config, config, other]).splitlines() == [
        "the processes of the run differ in the config:",
        "  model.sizes.1 is 8 in processes 0 and 1; 16 in process 2",
        '  text.line 2 is "b" in processes 0 and 1; "x" in process 2',
        "  model.sizes.2 is missing in processes 0 and 1; 4 in process 2",
    ]
    many = _difference("it", [{str(n): index for n in range(10)} for index in range(2)]).splitlines()
    assert (len(many), many[-1]) == (8, "  and at 4 more places")
