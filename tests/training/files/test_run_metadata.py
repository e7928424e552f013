"""Tests of the metadata of a run in the journal and in loggers: environment, commit, config and measurements."""

import json
import os
import platform
import subprocess
from functools import partial

import flax
import jax
import optax
import pytest

from learner.events import RunStarted
from learner.loggers import MemoryLogger
from learner.metrics import LearningRate
from learner.optimizers import Ema
from learner.optimizers.configs import SGD
from learner.runs import RunReader
from learner.runs.flat_config import flat
from learner.schedules import Cosine
from learner.training.files import run_metadata
from learner.training.files.run_metadata import commit, environment
from learner.util.distribution import VERSION
from tests.support.runs import batches, build_line, journal_of, quiet

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_the_environment_is_recorded():
    facts = environment()
    assert (facts["jax"], facts["flax"], facts["optax"]) == (jax.__version__, flax.__version__, optax.__version__)
    assert facts["learner"] == VERSION
    assert facts["python"] == platform.python_version()
    assert (facts["platform"], facts["devices"], facts["processes"]) == ("cpu", 8, 1)
    assert json.loads(json.dumps(facts)) == facts


def git(directory, *words):
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    command = ["git", "-C", directory, "-c", "commit.gpgsign=false", *words]
    done = subprocess.run(command, env=os.environ | identity, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_recorded(tmp_path):
    repository = tmp_path / "repository"
    (repository / "below").mkdir(parents=True)
    git(repository, "init", "--quiet")
    assert commit(repository) is None, "there is no commit yet"
    git(repository, "commit", "--quiet", "--allow-empty", "-m", "first")
    assert commit(repository / "below") == git(repository, "log", "--format=%H")
    assert commit(tmp_path / "nowhere") is None


def test_without_git_there_is_no_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(".") is None


def test_a_hanging_git_is_abandoned(monkeypatch, tmp_path):
    (tmp_path / "git").write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(run_metadata, "SECONDS", 0.01)
    assert commit(".") is None


@pytest.mark.full
def test_a_run_from_python_records_its_options(tmp_path):
    memory = MemoryLogger()
    builder = quiet(tmp_path / "run").num_epochs(1).seed(7).grads_accumulation(2).metric_train(LearningRate())
    build_line(builder.metric_loggers(memory), lr=Cosine(0.1), optimizer=partial(optax.sgd, momentum=0.9)).fit(
        batches()
    )
    (event,) = memory.of(RunStarted)
    assert event.config == {
        "model": "dict (pytree)",
        "optimizer": {
            "class_path": "sgd",
            "init_args": {"momentum": 0.9, "nesterov": False, "accumulator_dtype": None},
        },
        "lr": "Cosine(first=0.1) in 3 steps",
        "num_epochs": 1,
        "grads_accumulation": 2,
        "seed": 7,
        "precision": "float32",
        "strategy": "one device: cpu (cpu:0)",
        "metrics": {"train": ["Learning Rate", "Loss"], "valid": ["Loss"]},
    }
    assert event.environment == environment()
    assert event.commit == commit(".")
    assert (event.monitor, event.history) == ("train/Loss", {})
    start = journal_of(tmp_path / "run")[0]
    assert (start["event"], start["config"], start["commit"]) == ("start", event.config, event.commit)
    assert start["environment"] == event.environment


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (
            Ema(optax.adam, decay=0.75),
            {"": "Ema", ".optimizer": "adam", ".decay": 0.75, ".warmup": True, ".start": 0},
        ),
        (
            SGD(momentum=0.5),
            {"": "sgd", ".momentum": 0.5, ".nesterov": False, ".accumulator_dtype": None, ".clip_norm": None},
        ),
    ],
)
def test_loggers_get_the_settings_of_optimizers_that_compare_shows(tmp_path, optimizer, settings):
    memory = MemoryLogger()
    build_line(quiet(tmp_path / "run").metric_loggers(memory), optimizer=optimizer).fit(batches())
    logged = flat(memory.of(RunStarted)[0].config)
    expected = {f"optimizer{key}": value for key, value in settings.items()}
    assert {key: value for key, value in logged.items() if key.startswith("optimizer")} == expected
    assert RunReader(tmp_path / "run").optimizer == expected


def test_a_run_from_a_config_records_it_without_addresses(tmp_path):
    memory = MemoryLogger()
    builder = quiet(tmp_path / "run").metric_loggers(memory)
    builder._config_text(
        "lr: 1e-3\nmodel: {class_path: Net}\nmetric_loggers: [{class_path: Webhook}]\nrenderer: null\n"
    )
    build_line(builder).fit(batches())
    assert memory.of(RunStarted)[0].config == {"lr": 1e-3, "model": {"class_path": "Net"}}
    assert "secret" not in (tmp_path / "run" / "journal.jsonl").read_text()


@pytest.mark.full
def test_a_resumed_run_records_its_measurements(tmp_path):
    first = build_line(quiet(tmp_path / "run", saves=True)).fit(batches())
    memory = MemoryLogger()
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(2).resume().metric_loggers(memory)).fit(batches())
    assert memory.of(RunStarted)[0].history == {"train/Loss": ((1, 6, first.history["train/Loss"][0]),)}
