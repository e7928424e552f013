"""Tests of control files: requests to a training run through files in its directory."""

import json
import os
import threading

import pytest

from learner.cli.main import main
from learner.runs import control_files
from learner.runs.lock import locked
from tests.support.codes import raises_code
from tests.support.runs import batches, build_line, quiet, saved_steps

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def running(tmp_path):
    with locked(tmp_path):
        yield tmp_path


def test_request_is_consumed_once_and_names_the_user(running):
    path = control_files.ask(running, "save")
    assert path == running / "save.ask"
    assert control_files.pending(running) == ["save"]
    assert set(json.loads(path.read_text())) == {"who", "time"}
    requests, problems = control_files.consume(running)
    assert (list(requests), problems) == (["save"], [])
    assert "@" in requests["save"]
    assert control_files.consume(running) == ({}, [])
    assert [path.name for path in running.iterdir()] == ["run.lock"]


def test_empty_file_is_a_request(tmp_path):
    (tmp_path / "stop.ask").touch()
    assert control_files.consume(tmp_path)[0] == {"stop": "somebody"}


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
def test_untrusted_file_yields_a_name_only(tmp_path, content, who):
    (tmp_path / "stop.ask").write_bytes(content)
    assert control_files.consume(tmp_path)[0] == {"stop": who}


def test_links_are_not_read(tmp_path):
    (tmp_path / "secret").write_text('{"who": "secret"}')
    (tmp_path / "stop.ask").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "save.ask")  # reading a pipe would block
    assert control_files.consume(tmp_path)[0] == {"stop": "somebody", "save": "somebody"}
    assert (tmp_path / "secret").exists()


def test_unknown_requests_and_runs_that_do_not_train_are_refused(running, tmp_path_factory):
    with raises_code("run-request-unknown") as error:
        control_files.ask(running, "sotp")
    assert "did you mean 'stop'" in str(error.value)
    with raises_code("run-not-running"):
        control_files.ask(tmp_path_factory.mktemp("none"), "stop")


def test_command_writes_a_request(running, capsys):
    assert main(["ask", "stop", str(running)]) == 0
    assert "asked to stop; the answer is in its experiment.log" in capsys.readouterr().out
    assert control_files.pending(running) == ["stop"]
    assert main(["ask", "go", str(running)]) == 2
    assert "invalid choice: 'go'" in capsys.readouterr().err


def test_command_reaches_every_training_run(tmp_path, capsys):
    """A directory of runs stands for the runs in it that train. Runs given by name that do not train are an error after
    the others have their requests.
    """
    for name in ("a", "b", "c"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "journal.jsonl").touch()
    with locked(tmp_path / "runs" / "a"), locked(tmp_path / "runs" / "c"):
        assert main(["ask", "save", str(tmp_path / "runs")]) == 0
        assert [control_files.pending(tmp_path / "runs" / name) for name in "abc"] == [["save"], [], ["save"]]
        assert main(["ask", "stop", *(str(tmp_path / "runs" / name) for name in "abc")]) == 2
        assert [control_files.pending(tmp_path / "runs" / name) for name in "abc"] == [
            ["stop", "save"],
            [],
            ["stop", "save"],
        ]
    assert capsys.readouterr().err == f"learner: no run is training in {tmp_path / 'runs' / 'b'}\n"


def next_descriptor():
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_directory_in_place_of_a_file_is_no_request(tmp_path):
    calls, warnings = [], []
    requests = control_files.ControlFilePoller(tmp_path, lambda *call: calls.append(call), warnings.append)
    (tmp_path / "stop.ask").mkdir()
    (tmp_path / "save.ask").touch()
    requests.look()
    free = next_descriptor()
    requests.look()
    assert next_descriptor() == free  # otherwise a long run would use up all of them
    assert calls == [("save", "somebody")]
    assert len(warnings) == 1
    assert "stop.ask asks for nothing, as it cannot be removed" in warnings[0]


def test_requests_from_before_the_run_are_discarded(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "stop.ask").touch()
    assert build_line(quiet(directory).num_epochs(1)).fit(batches()).stopped_by == "num_epochs"
    assert control_files.pending(directory) == []


def test_request_during_startup_is_served(tmp_path, monkeypatch):
    monkeypatch.setattr(control_files, "POLL_SECONDS", 0.001)
    directory = tmp_path / "run"

    learner = build_line(quiet(directory).num_epochs(1_000_000))
    init_ahead = learner.definition.init_ahead  # called after the directory is locked, before files are opened

    def ask_and_init(threads):
        control_files.ask(directory, "stop")
        return init_ahead(threads)

    monkeypatch.setattr(learner.definition, "init_ahead", ask_and_init)
    assert learner.fit(batches()).stopped_by.startswith("asked by ")


@pytest.mark.full
def test_run_saves_and_stops_on_request(tmp_path, monkeypatch):
    """The run's own hook requests a checkpoint in the first epoch, and a stop in the third."""
    monkeypatch.setattr(control_files, "POLL_SECONDS", 0.001)
    directory, gone = tmp_path / "run", threading.Event()

    def request(info, model):
        if info.epoch == 1:
            control_files.ask(directory, "save")
        elif info.epoch == 3:
            control_files.ask(directory, "stop")
        while control_files.pending(directory):
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
    resumed = build_line(quiet(directory).num_epochs(8).with_file_checkpointer(every_epochs=5).resume())
    assert resumed.fit(batches()).stopped_by == "num_epochs"


def test_save_request_without_checkpoints_is_logged(tmp_path, monkeypatch):
    monkeypatch.setattr(control_files, "POLL_SECONDS", 0.001)
    directory, gone = tmp_path / "run", threading.Event()

    def request(info, model):
        control_files.ask(directory, "save")
        while control_files.pending(directory):
            gone.wait(0.01)

    build_line(quiet(directory).num_epochs(1).on_epoch_end(request)).fit(batches())
    assert "asks for a checkpoint, but this run saves none" in (directory / "experiment.log").read_text()
