"""Real runs that are stopped, fail or are made longer, and go on: each logger has every value once, at its step."""

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

EPOCHS, EVERY, VALID = 3, 2, 5  # epochs of 6 steps; each other step is logged, and a validation is made every five


def fit(directory, *others, fails_at=None, stops_at=None, every=lambda info, model: None, **limits):
    """A run with all loggers, that goes on if it was begun."""
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
    """What the three loggers have, without texts and times: from each `(kind, split, epoch, step, name, value)`."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    told = [
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
    return told, table, curves


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that never stopped."""
    directory, memory = tmp_path_factory.mktemp("whole") / "run", MemoryLogger()
    fit(directory, memory)
    return numbers(directory), memory


def test_the_loggers_have_what_the_run_measured(whole):
    (told, table, curves), memory = whole
    losses = memory.steps["train/Loss"]
    assert [entry[3:] for entry in told if entry[0] == "step" and entry[4] == "Loss"] == [
        (step, "Loss", pytest.approx(losses[step - 1])) for step in range(EVERY, EPOCHS * STEPS + 1, EVERY)
    ]
    points = {(f"{e[1]}/{e[4]}", e[2], e[3], e[5]) for e in told if e[0] == "split"}
    assert points == {(key, *point) for key in memory.history for point in memory.history.points(key)}
    assert sorted(told) == sorted(table)
    group = {"step": "step", "split": "epoch"}
    assert curves == {
        (f"{split}/{group[kind]}/{name}", step): np.float32(value) for kind, split, _, step, name, value in told
    }


@pytest.mark.full
def test_a_run_that_failed_goes_on(whole, tmp_path):
    """It failed in step 11, after the validation of step 10; the checkpoint is of step 8."""
    with pytest.raises(RuntimeError, match="it fails here"):
        fit(tmp_path / "run", fails_at=11)
    assert max(entry[3] for entry in numbers(tmp_path / "run")[0]) >= 10
    fit(tmp_path / "run")
    assert numbers(tmp_path / "run") == whole[0]


@pytest.mark.full
@pytest.mark.parametrize("step", [3, STEPS, 10])
def test_a_run_that_was_stopped_goes_on(whole, tmp_path, step):
    """In an epoch, at its end, and where a validation is due."""
    fit(tmp_path / "run", stops_at=step)
    assert numbers(tmp_path / "run")[0][-1][3] in (step, step - 1)
    fit(tmp_path / "run")
    assert numbers(tmp_path / "run") == whole[0]


@pytest.mark.full
def test_a_run_that_is_made_longer_inside_of_an_epoch(whole, tmp_path):
    """After step 8 its last checkpoint was made, and then the epoch was closed before its end; that is taken back."""
    fit(tmp_path / "run", num_steps=8)
    assert ("split", "train", 2, 8) in {entry[:4] for entry in numbers(tmp_path / "run")[0]}
    memory = MemoryLogger()
    fit(tmp_path / "run", memory)
    (event,) = memory.of(RunStarted)
    assert (event.step, event.resumed) == (8, True)
    told, table, _ = numbers(tmp_path / "run")
    assert sorted(told) == sorted(table)
    extra = {("split", "valid", 2, 8)}  # a run by steps validates at its end
    assert [entry for entry in told if entry[:4] not in extra] == whole[0][0]


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


def killed(directory, program):
    """Runs a program that kills itself."""
    places = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-c", program, str(directory)]
    done = subprocess.run(command, env=environment, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.full
def test_a_run_that_was_killed_behind_the_validation_of_an_epoch_goes_on(whole, tmp_path):
    """It was stopped in that validation, so the checkpoint is of the same step, and what was logged came after it."""
    fit(tmp_path / "run", stops_at=2 * STEPS)
    for _ in range(2):
        killed(tmp_path / "run", KILLED_BEHIND_VALIDATION)
    fit(tmp_path / "run")
    assert numbers(tmp_path / "run") == whole[0]


@pytest.mark.full
def test_a_run_that_was_killed_goes_on(whole, tmp_path):
    """What its loggers had not been given yet is lost; nothing is there twice, and nothing else than it was."""
    killed(tmp_path / "run", KILLED)
    assert not (tmp_path / "run" / "summary.json").exists()
    fit(tmp_path / "run")
    for found, expected in zip(numbers(tmp_path / "run")[:2], whole[0][:2], strict=True):
        assert [entry for entry in expected if entry in found] == found
        assert [entry for entry in expected if entry[3] > 10] == [entry for entry in found if entry[3] > 10]


# -- servers -----------------------------------------------------------------------------------------------------------


def points_of(memory):
    """What a logger of every second step is to have, by tag."""
    found = {f"step/{key}": list(enumerate(values, 1))[1::2] for key, values in memory.steps.items() if "train" in key}
    for key in memory.history:
        found[key] = [(point.step, point.value) for point in memory.history.points(key)]
    return found


def interrupted(directory, make, monkeypatch):
    """A run that failed in step 11 and went on from step 8, with time to import what its logger needs."""
    monkeypatch.chdir(directory.parent)
    monkeypatch.setattr(Listener, "seconds_to_close", 120.0)
    with pytest.raises(RuntimeError, match="it fails here"):
        fit(directory, make(), fails_at=11)
    fit(directory, make())


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The ``noload`` loader")  # MLflow's own use of SQLAlchemy
def test_mlflow_has_one_run_of_a_run_that_failed_and_went_on(whole, tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    store = f"sqlite:///{tmp_path}/own.db"
    interrupted(tmp_path / "run", lambda: MLflow(store, "going on", every_steps=EVERY), monkeypatch)
    client = MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("going on").experiment_id])
    assert run.info.status == "FINISHED"
    for tag, expected in points_of(whole[1]).items():
        found = client.get_metric_history(run.info.run_id, tag)
        assert [(metric.step, metric.value) for metric in found] == expected, tag


@pytest.mark.full
def test_wandb_has_one_run_of_a_run_that_failed_and_went_on(whole, tmp_path, monkeypatch):
    import wandb

    from tests.support.wandbfile import read

    interrupted(tmp_path / "run", lambda: WandB(mode="offline", every_steps=EVERY), monkeypatch)
    wandb.teardown()
    found = read(tmp_path / "run")
    assert len(set(found["ids"])) == 1
    assert found["exits"] == [1, 0]
    for tag, expected in points_of(whole[1]).items():
        assert [(row["step"], row[tag]) for row in found["rows"] if tag in row] == expected, tag
