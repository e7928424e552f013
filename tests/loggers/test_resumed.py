"""Tests of loggers in runs that stop, fail, are killed or extended, and resume: every value is logged exactly once."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from learner import Interrupter
from learner.events import Listener, RunStarted
from learner.loggers import Csv, JsonLines, MemoryLogger, MLflow, TensorBoard, WandB
from learner.loggers.json_lines import FIELDS
from learner.metrics import LearningRate
from tests.support.runs import STEPS, batches, build_line, quiet, valid_data
from tests.support.tfevents import scalars

pytestmark = pytest.mark.usefixtures("compiled_once")

EPOCHS, EVERY, VALID = 3, 2, 5  # epochs of 6 steps; every second step is logged, every fifth validated


def fit(directory, *others, fails_at=None, stops_at=None, every=lambda info, model: None, **limits):
    """Train with all loggers, and resume if the run exists."""
    interrupter = Interrupter()

    def hook(info, model):
        every(info, model)
        if info.step == stops_at:
            interrupter.stop("enough")
        if info.step == fails_at:
            raise RuntimeError("it fails here")
        return {"step squared": float(info.step**2)} if info.step % 4 == 0 else None

    loggers = JsonLines(every_steps=EVERY), Csv(every_steps=EVERY), TensorBoard(every_steps=EVERY)
    builder = quiet(directory, saves=True).with_file_checkpointer(every_steps=4).metric_train(LearningRate())
    builder.metric_loggers(*loggers, *others).valid_every(VALID).every(1, hook).interrupter(interrupter).resume()
    for name, value in (limits or {"num_epochs": EPOCHS}).items():
        getattr(builder, name)(value)
    return build_line(builder).fit(batches(), valid_data())


def numbers(directory):
    """Return the numbers of JSON lines and CSV as `(kind, split, epoch, step, name, value)`, and TensorBoard's by tag
    and step.
    """
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    entries = [
        (line["event"], line["split"], line["epoch"], line["step"], name, value)
        for line in lines
        if line["event"] in ("step", "split")
        for name, value in line.items()
        if name not in FIELDS
    ]
    with (directory / "metrics.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert all(len(row) == len(header) for row in rows)
    table = [
        (row[0], row[1], int(row[2]), int(row[3]), name, float(value))
        for row in rows
        for name, value in zip(header[5:], row[5:], strict=True)
        if value
    ]
    curves = {
        (tag, step): np.float32(value)
        for tag, values in scalars(directory / "tensorboard").items()
        for step, value in values
    }
    count = sum(map(len, scalars(directory / "tensorboard").values()))
    assert count == len(curves), "no step is there twice"
    return entries, table, curves


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the numbers and the memory logger of an uninterrupted run."""
    directory, memory = tmp_path_factory.mktemp("whole") / "run", MemoryLogger()
    fit(directory, memory)
    return numbers(directory), memory


@pytest.mark.full
def test_loggers_have_all_measured_values(whole):
    (entries, table, curves), memory = whole
    losses = memory.steps["train/Loss"]
    assert [entry[3:] for entry in entries if entry[0] == "step" and entry[4] == "Loss"] == [
        (step, "Loss", pytest.approx(losses[step - 1])) for step in range(EVERY, EPOCHS * STEPS + 1, EVERY)
    ]
    points = {(f"{e[1]}/{e[4]}", e[2], e[3], e[5]) for e in entries if e[0] == "split"}
    assert points == {(key, *point) for key in memory.history for point in memory.history.points(key)}
    assert sorted(entries) == sorted(table)
    group = {"step": "step", "split": "epoch"}
    assert curves == {
        (f"{split}/{group[kind]}/{name}", step): np.float32(value) for kind, split, _, step, name, value in entries
    }


@pytest.mark.full
def test_resuming_a_failed_run(whole, tmp_path):
    """The run fails in step 11, after the validation of step 10, and resumes from the checkpoint of step 8."""
    with pytest.raises(RuntimeError, match="it fails here"):
        fit(tmp_path / "run", fails_at=11)
    assert max(entry[3] for entry in numbers(tmp_path / "run")[0]) >= 10
    fit(tmp_path / "run")
    assert numbers(tmp_path / "run") == whole[0]


@pytest.mark.full
@pytest.mark.parametrize("step", [3, STEPS, 10])
def test_resuming_a_stopped_run(whole, tmp_path, step):
    """The run stops within an epoch, at its end, or where a validation is due."""
    fit(tmp_path / "run", stops_at=step)
    assert numbers(tmp_path / "run")[0][-1][3] in (step, step - 1)
    fit(tmp_path / "run")
    assert numbers(tmp_path / "run") == whole[0]


@pytest.mark.full
def test_extending_a_run_that_ended_inside_an_epoch(whole, tmp_path):
    """The first run ends its epoch early, after the checkpoint of step 8; the longer run removes that end."""
    fit(tmp_path / "run", num_steps=8)
    assert ("split", "train", 2, 8) in {entry[:4] for entry in numbers(tmp_path / "run")[0]}
    memory = MemoryLogger()
    fit(tmp_path / "run", memory)
    (event,) = memory.of(RunStarted)
    assert (event.step, event.resumed) == (8, True)
    entries, table, _ = numbers(tmp_path / "run")
    assert sorted(entries) == sorted(table)
    extra = {("split", "valid", 2, 8)}  # a run by steps validates at its end
    assert [entry for entry in entries if entry[:4] not in extra] == whole[0][0]


# -- a kill ------------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from test_resumed import fit

def kill(info, model):
    if info.step == 11:
        os.kill(os.getpid(), signal.SIGKILL)

fit(sys.argv[1], every=kill)
"""


KILLED_BEHIND_VALIDATION = """
import os, signal, sys
from test_resumed import fit
from learner.loggers import TensorBoard

split = TensorBoard.split

def kill(logger, event):
    split(logger, event)
    if (event.split, event.step) == ("valid", 12):
        os.kill(os.getpid(), signal.SIGKILL)

TensorBoard.split = kill
fit(sys.argv[1])
"""


def run_until_killed(directory, program):
    """Run a program that kills itself."""
    places = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-c", program, str(directory)]
    process = subprocess.run(command, env=environment, timeout=120, check=False)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.full
def test_resuming_a_run_killed_after_a_validation(whole, tmp_path):
    """The checkpoint is of the same step, as the run stopped in that validation; the killed runs log after it."""
    fit(tmp_path / "run", stops_at=2 * STEPS)
    for _ in range(2):
        run_until_killed(tmp_path / "run", KILLED_BEHIND_VALIDATION)
    fit(tmp_path / "run")
    assert numbers(tmp_path / "run") == whole[0]


@pytest.mark.full
def test_resuming_a_killed_run(whole, tmp_path):
    """A kill may lose values that had not reached the loggers; nothing is logged twice or changed."""
    run_until_killed(tmp_path / "run", KILLED)
    assert not (tmp_path / "run" / "summary.json").exists()
    fit(tmp_path / "run")
    for actual, expected in zip(numbers(tmp_path / "run")[:2], whole[0][:2], strict=True):
        assert [entry for entry in expected if entry in actual] == actual
        assert [entry for entry in expected if entry[3] > 10] == [entry for entry in actual if entry[3] > 10]


# -- servers -----------------------------------------------------------------------------------------------------------


def points_of(memory):
    """Return the points that a logger of every second step must have, by tag."""
    points = {f"step/{key}": list(enumerate(values, 1))[1::2] for key, values in memory.steps.items() if "train" in key}
    for key in memory.history:
        points[key] = [(point.step, point.value) for point in memory.history.points(key)]
    return points


def fail_and_resume(directory, make, monkeypatch):
    """Train until step 11, fail, and resume from step 8. The time limit leaves room for the logger's imports."""
    monkeypatch.chdir(directory.parent)
    monkeypatch.setattr(Listener, "seconds_to_close", 120.0)
    with pytest.raises(RuntimeError, match="it fails here"):
        fit(directory, make(), fails_at=11)
    fit(directory, make())


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The ``noload`` loader")  # MLflow's own use of SQLAlchemy
def test_mlflow_resumes_its_run(whole, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    store = f"sqlite:///{tmp_path}/own.db"
    fail_and_resume(tmp_path / "run", lambda: MLflow(store, "going on", every_steps=EVERY), monkeypatch)
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("going on").experiment_id])
    assert run.info.status == "FINISHED"
    for tag, expected in points_of(whole[1]).items():
        history = client.get_metric_history(run.info.run_id, tag)
        assert [(metric.step, metric.value) for metric in history] == expected, tag


@pytest.mark.full
def test_wandb_resumes_its_run(whole, tmp_path, monkeypatch):
    import wandb

    from tests.support.wandbfile import read

    fail_and_resume(tmp_path / "run", lambda: WandB(mode="offline", every_steps=EVERY), monkeypatch)
    wandb.teardown()
    stored = read(tmp_path / "run")
    assert len(set(stored["ids"])) == 1
    assert stored["exits"] == [1, 0]
    for tag, expected in points_of(whole[1]).items():
        assert [(row["step"], row[tag]) for row in stored["rows"] if tag in row] == expected, tag
