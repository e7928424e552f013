"""Tests of runs that resume with other parts of the data in each process, or after a checkpoint was lost."""

import json
import shutil

import optax
import pytest

from learner import LearnerWarning
from learner.training.checkpoints.resume import data_of, differences, unused_states
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, progress_of, quiet
from tests.support.stopped import stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")


def two_epochs(directory, stop=None, epochs=2, start=lambda builder: builder.resume()):
    builder = start(quiet(directory).with_file_checkpointer(keep_last=3).num_epochs(epochs))
    build_line(builder if stop is None else stopping_at(builder, stop)).fit(batches())


@pytest.mark.parametrize(
    ("lines", "step"),
    [
        ([("save", 12), ("save", 6)], 12),  # a stop saves the newest state first, and then the best one
        ([("save", 12), ("start", 6), ("save", 8), ("save", 7)], 8),  # the run went back to step 6
    ],
)
def test_the_last_of_the_lost_checkpoints_is_named(tmp_path, lines, step):
    two_epochs(tmp_path / "run", epochs=1)
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with (tmp_path / "run" / "journal.jsonl").open("a") as journal:
        journal.writelines(json.dumps({"event": event, "time": 1.0, "step": step}) + "\n" for event, step in lines)
    with raises_code("resume-checkpoints-lost", step=step):
        two_epochs(tmp_path / "run")


def log_of(directory):
    return (directory / "experiment.log").read_text()


LOST = "the checkpoint of step 12 was saved, but is missing in "


def test_a_lost_newest_checkpoint_is_one_warning(tmp_path):
    """Checkpoints that retention removed are not mentioned, and later starts know that the run went back."""
    run = tmp_path / "run"
    two_epochs(run)
    shutil.rmtree(run / "checkpoint" / "12")
    two_epochs(run, stop=8)
    (text,) = [line for line in log_of(run).splitlines() if " WARNING " in line]
    assert text.endswith(f"{LOST}{run / 'checkpoint'}; the run resumes from the checkpoint of step 6, before it")
    two_epochs(run, epochs=3)
    assert log_of(run).count(" WARNING ") == 1


def test_a_damaged_newest_checkpoint_is_not_missing(tmp_path):
    run = tmp_path / "run"
    two_epochs(run)
    shutil.rmtree(run / "checkpoint" / "12" / "state")
    two_epochs(run)
    assert LOST not in log_of(run)
    assert log_of(run).count(" WARNING ") == 1


@pytest.mark.full
@pytest.mark.parametrize("waves", [False, 2])
def test_a_lost_newest_checkpoint_of_a_population_is_one_warning(tmp_path, waves):
    def train(epochs):
        builder = quiet(tmp_path / "run").with_file_checkpointer(keep_last=3).resume().num_epochs(epochs)
        build_line(builder.population(lr=[0.05, 0.1], waves=waves)).fit(batches())

    runs = [tmp_path / "run" / name for name in ("wave-1", "wave-2")] if waves else [tmp_path / "run"]
    train(2)
    for run in runs:
        shutil.rmtree(run / "checkpoint" / "12")
    train(3)
    train(4)
    for run in runs:
        (text,) = [line for line in log_of(run).splitlines() if " WARNING " in line]
        assert text.endswith(f"{LOST}{run / 'checkpoint'}; the run resumes from the checkpoint of step 6, before it")


@pytest.mark.parametrize("call", ["evaluate", pytest.param("predict", marks=pytest.mark.full)])
@pytest.mark.parametrize(("lost", "reason"), [("12", LOST), ("12/state", "12 is damaged: ")])
def test_evaluating_an_older_checkpoint_than_the_newest_is_one_warning(tmp_path, call, lost, reason):
    run = tmp_path / "run"
    two_epochs(run)
    shutil.rmtree(run / "checkpoint" / lost)
    learner = build_line(quiet(run).resume(), optimizer=optax.adam)  # no reason for a warning
    with pytest.warns(LearnerWarning, match=reason) as caught:
        list(getattr(learner, call)(batches()))
    list(getattr(learner, call)(batches()))
    assert [str(each.message).partition("; ")[2] for each in caught] == [
        "the model is that of the checkpoint of step 6, before it"
    ]


@pytest.mark.parametrize("killed", [False, True])
def test_a_checkpoint_that_the_run_went_back_from_is_not_missing(tmp_path, killed):
    """`killed`: before the start that tells it."""
    run = tmp_path / "run"
    two_epochs(run)
    two_epochs(run, stop=8, start=lambda builder: builder.checkpoint(1))
    assert (run / "superseded" / "1" / "checkpoint" / "12").is_dir()
    if killed:
        lines = (run / "journal.jsonl").read_text().splitlines(keepends=True)
        starts = [i for i, line in enumerate(lines) if '"event": "start"' in line]
        (run / "journal.jsonl").write_text("".join(lines[: starts[1]]))
        shutil.rmtree(run / "checkpoint" / "8")
    two_epochs(run)
    assert log_of(run).count(" WARNING ") == 0


@pytest.fixture(scope="module")
def inside(tmp_path_factory, compiled_once):
    """Return the progress of a checkpoint of one process inside an epoch."""
    directory = tmp_path_factory.mktemp("inside") / "run"
    two_epochs(directory, stop=2)
    return progress_of(directory, 2)


def saved_by(progress, processes, **position):
    """Return the progress of a checkpoint that several processes with their own data, or one or all of them, saved."""
    states = {"pos": 2} if processes is None else {"processes": [{"pos": 2}] * processes}
    return {**progress, "data": states, "position": {**progress["position"], **position}}


def codes(progress, processes, own):
    problems = differences(progress, progress["fingerprint"], processes, own, ())
    return [problem.code for problem in problems]


@pytest.mark.parametrize(
    ("saved", "processes", "own", "is_same"),
    [
        (None, 1, False, True),
        (None, 1, True, True),  # one process with its own data has all of it
        (None, 2, False, True),
        (None, 2, True, False),
        (2, 2, True, True),
        (2, 3, True, False),
        (3, 2, True, False),
        (2, 1, True, False),
        (2, 1, False, False),
    ],
)
def test_positions_in_the_parts_of_other_processes_are_refused_inside_an_epoch(inside, saved, processes, own, is_same):
    assert codes(saved_by(inside, saved), processes, own) == ([] if is_same else ["resume-processes-differ"])
    assert codes(saved_by(inside, saved, batch=0), processes, own) == []
    assert codes(saved_by(inside, saved, due="epoch"), processes, own) == []  # only the validation is left
    older = saved_by({**inside, "made_on": {}}, saved)
    assert codes(older, processes, own) == codes(saved_by(inside, saved), processes, own)


@pytest.mark.parametrize(
    ("saved", "processes", "batches", "taken", "warning"),
    [
        (2, 2, 6, [0, 1], None),
        (2, 2, 9, [0, 1], None),  # the data of each process has changed
        (2, 3, 6, [0, 1, None], "the data of process 2 starts as in a new run"),
        (2, 4, None, [0, 1, None, None], "the data of processes 2 and 3 starts as in a new run"),
        (3, 2, 6, [0, 1], "the state of process 2 is not used"),
        (3, 1, 6, [0], "the state of processes 1 and 2 is not used"),
        (2, 1, 12, [None], "the data of process 0 starts as in a new run, and the state of processes 0 and 1 is not"),
    ],
)
def test_states_of_other_processes_between_epochs(inside, saved, processes, batches, taken, warning):
    progress = {**inside, "data": {"processes": [{"pos": index} for index in range(saved)]}}
    states = [data_of(progress, index, processes, batches) for index in range(processes)]
    assert states == [None if index is None else {"pos": index} for index in taken]
    warnings = unused_states(progress, processes, batches)
    assert [text for text in warnings if warning not in text] == []
    assert len(warnings) == (warning is not None)
    assert unused_states({**progress, "data": {"processes": [None] * saved}}, processes, batches) == []


def test_all_processes_take_the_state_of_common_data(inside):
    progress = {**inside, "data": {"pos": 3}}
    assert [data_of(progress, index, 2, 6) for index in range(2)] == [{"pos": 3}] * 2
    assert unused_states(progress, 2, 6) == []
