import json
import os
import threading

import pytest

from learner.cli.main import main
from learner.runs import control_files as asking
from learner.runs.lock import locked
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, quiet, saved_steps

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def running(tmp_path):
    with locked(tmp_path):
        yield tmp_path


def test_a_request_is_consumed_once_and_names_who(running):
    path = asking.ask(running, "save")
    assert path == running / "save.ask"
    assert asking.pending(running) == ["save"]
    assert set(json.loads(path.read_text())) == {"who", "time"}
    found, problems = asking.consume(running)
    assert (list(found), problems) == (["save"], [])
    assert "@" in found["save"]
    assert asking.consume(running) == ({}, [])
    assert [path.name for path in running.iterdir()] == ["run.lock"]


def test_a_request_by_hand(tmp_path):
    (tmp_path / "stop.ask").touch()
    assert asking.consume(tmp_path)[0] == {"stop": "somebody"}


@pytest.mark.parametrize(
    ("content", "who"),
    [
        (b"", "somebody"),
        (b"[" * 10_000, "somebody"),
        (b'{"who": 7}', "somebody"),
        (b'{"who": "   "}', "somebody"),
        (b"\xff\xfe", "somebody"),
        (json.dumps({"who": "x" * 10_000}).encode(), "somebody"),
        (json.dumps({"who": "eve\n\x1b[2Jnow"}).encode(), "eve ?[2Jnow"),
    ],
)
def test_a_file_of_a_stranger_says_no_more_than_a_name(tmp_path, content, who):
    (tmp_path / "stop.ask").write_bytes(content)
    assert asking.consume(tmp_path)[0] == {"stop": who}


def test_links_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text('{"who": "secret"}')
    (tmp_path / "stop.ask").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "save.ask")  # reading it would not end
    assert asking.consume(tmp_path)[0] == {"stop": "somebody", "save": "somebody"}
    assert (tmp_path / "secret").exists()


def test_wrong_words_and_runs_that_are_not_under_way(running, tmp_path_factory):
    with raises_code("run-request-unknown") as error:
        asking.ask(running, "sotp")
    assert "did you mean 'stop'" in str(error.value)
    with raises_code("run-not-running"):
        asking.ask(tmp_path_factory.mktemp("none"), "stop")


def test_the_command(running, capsys):
    assert main(["ask", "stop", str(running)]) == 0
    assert "asked to stop; the answer is in its experiment.log" in capsys.readouterr().out
    assert asking.pending(running) == ["stop"]
    assert main(["ask", "go", str(running)]) == 2
    assert "invalid choice: 'go'" in capsys.readouterr().err


def test_requests_to_several_whatever_became_of_the_others(tmp_path, capsys):
    """Of a directory of runs those that are under way, and of those that are named each that can be."""
    for name in ("a", "b", "c"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "journal.jsonl").touch()
    with locked(tmp_path / "runs" / "a"), locked(tmp_path / "runs" / "c"):
        assert main(["ask", "save", str(tmp_path / "runs")]) == 0
        assert [asking.pending(tmp_path / "runs" / name) for name in "abc"] == [["save"], [], ["save"]]
        assert main(["ask", "stop", *(str(tmp_path / "runs" / name) for name in "abc")]) == 2
        assert [asking.pending(tmp_path / "runs" / name) for name in "abc"] == [["stop", "save"], [], ["stop", "save"]]
    assert capsys.readouterr().err == f"learner: no run is training in {tmp_path / 'runs' / 'b'}\n"


def test_a_directory_in_the_place_of_a_file_asks_for_nothing(tmp_path):
    heard, warnings = [], []
    requests = asking.ControlFilePoller(tmp_path, lambda *each: heard.append(each), warnings.append)
    (tmp_path / "stop.ask").mkdir()
    (tmp_path / "save.ask").touch()
    requests.look()
    requests.look()
    assert heard == [("save", "somebody")]
    assert len(warnings) == 1
    assert "stop.ask asks for nothing, as it cannot be removed" in warnings[0]


def test_requests_from_before_the_run_are_removed(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "stop.ask").touch()
    assert build_line(quiet(directory).num_epochs(1)).fit(batches()).stopped_by == "num_epochs"
    assert asking.pending(directory) == []


def test_a_request_while_a_run_begins_is_served(tmp_path, monkeypatch):
    monkeypatch.setattr(asking, "POLL_SECONDS", 0.001)
    directory = tmp_path / "run"

    learner = build_line(quiet(directory).num_epochs(1_000_000))
    init_ahead = learner.definition.init_ahead  # called while the directory is the run's and nothing is opened

    def ask_and_init(threads):
        asking.ask(directory, "stop")
        return init_ahead(threads)

    monkeypatch.setattr(learner.definition, "init_ahead", ask_and_init)
    assert learner.fit(batches()).stopped_by.startswith("asked by ")


def test_a_run_saves_and_stops_on_request(tmp_path, monkeypatch):
    """It asks itself: for a checkpoint in the first epoch, to stop in the third."""
    monkeypatch.setattr(asking, "POLL_SECONDS", 0.001)
    directory, gone = tmp_path / "run", threading.Event()

    def request(info, model):
        if info.epoch == 1:
            asking.ask(directory, "save")
        elif info.epoch == 3:
            asking.ask(directory, "stop")
        while asking.pending(directory):
            gone.wait(0.01)

    build = quiet(directory).num_epochs(8).with_file_checkpointer(every_epochs=5).on_epoch_end(request)
    result = build_line(build).fit(batches())
    steps = result.summary["steps"] // result.summary["epochs"]
    assert result.stopped_by.startswith("asked by ")
    assert result.summary["epochs"] == 3
    assert saved_steps(directory) == [steps, 3 * steps]
    log = (directory / "experiment.log").read_text()
    assert "asks for a checkpoint: it is saved after the current step" in log
    assert "asks the run to stop: it stops after the current step" in log
    going_on = build_line(quiet(directory).num_epochs(8).with_file_checkpointer(every_epochs=5).resume())
    assert going_on.fit(batches()).stopped_by == "num_epochs"


def test_a_run_without_checkpoints_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(asking, "POLL_SECONDS", 0.001)
    directory, gone = tmp_path / "run", threading.Event()

    def request(info, model):
        asking.ask(directory, "save")
        while asking.pending(directory):
            gone.wait(0.01)

    build_line(quiet(directory).num_epochs(1).on_epoch_end(request)).fit(batches())
    assert "asks for a checkpoint, but this run saves none" in (directory / "experiment.log").read_text()
