"""Tests of the help of commands, topics and keys."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import learner
from learner.builder import LearnerBuilder
from learner.cli.configs.builder_options import methods
from learner.cli.configs.schema import PARTS
from learner.cli.help import key_help, topic_lines
from learner.cli.parsing import fit_to_terminal
from learner.cli.schedules import SCHEDULES
from learner.cli.usage import STORED, TOPICS, fit_usage, stored_topic
from learner.optimizers.configs import OPTIMIZERS
from tests.support.codes import raises_code


def test_first_page_fits_one_screen_and_lists_every_topic(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = fit_usage().splitlines()
    for topic in TOPICS:
        assert sum(line.startswith(f"  --help={topic} ") for line in lines) == 1, topic
    assert len(lines) <= 23  # leaves a line for the prompt
    assert max(map(len, lines)) <= 80


def test_defaults_have_the_syntax_of_configs_and_clocks_are_hidden():
    keys = " ".join(stored_topic("keys").split())
    assert "Arguments: keep_last=2, keep_best=1, keep_every=null," in keys
    assert "Arguments: epoch=null, step=null, allow=[]." in keys
    loggers = " ".join(stored_topic("loggers").split())
    assert (
        "Webhook(url, on=[best, end, preemption, failure], monitors=[], headers=null, timeout=5.0, retries=3)"
        in loggers
    )
    texts = [stored_topic(topic) for topic in TOPICS] + [key_help("metric_loggers", "MLflow", {})]
    assert not [text for text in texts if re.search(r"built-in|sleep|clock", text)]


def test_help_of_a_key_with_a_list_has_its_choices():
    assert key_help("metrics", "", {"metrics": ["Accuracy"]}) == stored_topic("metrics")


def test_topics_list_all_keys_and_all_classes_of_optax():
    keys, optimizers, schedules = (stored_topic(topic).splitlines() for topic in ("keys", "optimizers", "schedules"))
    for key in (*PARTS, "overwrite", *methods(LearnerBuilder)):
        expected = int(key != "population")  # which a config cannot have
        assert sum(line.startswith(f"  {key} ") for line in keys) == expected, key
    for lines, classes in ((optimizers, OPTIMIZERS), (schedules, [*SCHEDULES, "ReduceOnPlateau"])):
        for name in classes:
            assert sum(line.startswith(f"  {name}(") for line in lines) == 1, name
    assert "  SGD(momentum=null, nesterov=false, accumulator_dtype=null, clip_norm=null)" in optimizers
    assert max(map(len, [*keys, *optimizers, *schedules])) <= 120


def test_keys_of_populations_are_marked():
    texts = [text for text in topic_lines("keys") if "--together only" in text]
    assert [any(name in text for text in texts) for name in ("halving", "exploit")] == [True, True]
    assert len(texts) == 2


def test_every_topic_has_a_text():
    assert all(len(stored_topic(topic).splitlines()) > 1 for topic in TOPICS)
    with raises_code("cli-help-topic-unknown", "'optimizer'", "'optimizers'"):
        stored_topic("optimizer")


def test_stored_topics_are_up_to_date():
    """`python docs/topics.py` writes them."""
    for topic in TOPICS:
        if topic != "processes" and (text := stored_topic(topic)) is not None:
            assert text == fit_to_terminal("\n".join(topic_lines(topic))), topic


def test_stored_topics_of_another_optax_are_ignored(monkeypatch, tmp_path):
    stored = json.loads(STORED.read_text())
    monkeypatch.setattr("learner.cli.usage.STORED", tmp_path / "topics.json")
    (tmp_path / "topics.json").write_text(json.dumps({**stored, "optax": "0.0.1"}))
    assert stored_topic("optimizers") is None
    assert stored_topic("processes").startswith("options of the process")


@pytest.mark.full
def test_help_in_a_zip_archive(tmp_path):
    package = Path(learner.__file__).parent
    with zipfile.ZipFile(tmp_path / "learner.zip", "w") as archive:
        for path in (*package.rglob("*.py"), package / "cli" / "topics.json"):
            archive.write(path, path.relative_to(package.parent))
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "learner.zip")}
    (tmp_path / "a.yaml").write_text("num_epochs: 1")
    for words, code, expected in ((["--help=keys"], 0, "num_epochs"), (["a.yaml", "--num_epoch=1"], 2, "'num_epochs'")):
        command = [sys.executable, "-P", "-m", "learner", "fit", *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert expected in done.stdout + done.stderr


def test_help_fits_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for text in (fit_usage(), stored_topic("keys"), stored_topic("metrics")):
        assert max(map(len, text.splitlines())) <= 80


def test_help_of_a_key():
    assert "  MetricEarlyStopping(monitor=valid/Loss, mode=null, patience=5" in key_help("early_stopping", "", {})
    text = key_help("optimizer", "AdamW", {})
    assert text.startswith("AdamW, as init_args or as --optimizer.NAME=VALUE\n")
    assert "--weight_decay WEIGHT_DECAY" in text
    assert "(type: float, default: 0.0001)" in text
    assert "\nA cosine decay (`optax.cosine_decay_schedule`; " in (text := key_help("lr", "Cosine", {}))
    assert "arXiv:1608.03983):\n  --first FIRST" in text


def test_help_of_a_class_in_the_config(importable):
    content = {"model": {"class_path": "mymodule.linear", "init_args": {}}, "train_step": "mymodule.step"}
    assert "(required, type: int)" in key_help("model", "", content)
    assert "--scale SCALE" in key_help("train_step", "", content)
    assert "--count COUNT" in key_help("train.dataset", "mymodule.rows", {})


def test_internal_options_are_hidden():
    text = key_help("train.dataset", "parquet", {})
    assert "--fields FIELDS" in text
    assert "+" not in text


@pytest.mark.parametrize(
    ("key", "path", "code", "shown"),
    [
        ("modle", "", "config-key-unknown", ["'modle'", "'model'"]),
        ("model", "", "cli-help-class-missing", ["--model", "CLASS"]),
        ("optimizer", "AdmW", "config-name-unknown", ["'AdmW'", "'AdamW'"]),
        ("model", "math.pi", "config-target-not-callable", ["math.pi"]),
        ("model", "math.pie", "config-name-missing", ["'pie'"]),
    ],
)
def test_unknown_keys_and_classes_have_no_help(key, path, code, shown):
    with raises_code(code, *shown):
        key_help(key, path, {})
