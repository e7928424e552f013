"""Tests of secrets given as names of environment variables, and of masking them."""

from pathlib import Path

import pytest

from learner.errors import LearnerError
from learner.events import Listener
from learner.loggers import Csv, JsonLines, MLflow, TensorBoard, WandB
from learner.loggers.secrets import parts_of, resolve
from tests.support.runs import batches, build_line, quiet


def test_nested_texts_are_resolved(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "a1b2 ${env:OTHER} $x")
    settings = {"a": ["${env:MY_TOKEN}", ("x${env:MY_TOKEN}y", 5)], "b": None, "p": Path("d/${env:MY_TOKEN}")}
    token = "a1b2 ${env:OTHER} $x"  # the value of a variable is not resolved again
    assert resolve(settings) == {"a": [token, (f"x{token}y", 5)], "b": None, "p": Path("d", token)}
    assert settings["a"][0] == "${env:MY_TOKEN}"
    other = object()
    assert resolve(other) is other


@pytest.mark.parametrize("text", ["$HOME", "${HOME}", "${env:", "env:HOME", "{env:HOME}", ""])
def test_other_texts_are_unchanged(text):
    assert resolve(text) == text


def test_missing_variables_are_reported_together(monkeypatch):
    monkeypatch.delenv("NO_A", raising=False)
    with pytest.raises(LearnerError) as error:
        resolve({"a": "${env:NO_A}", "b": ["${env:NO_B} ${env:HOME}"], "c": "${env:}", "d": "${env:no-name}"})
    assert error.value.problems is not None
    assert [problem.partition(":")[0] for problem in map(str, error.value.problems)] == ["${env"] * 4
    for name in ("NO_A: it is not set", "NO_B: it is not set", "${env:} names no", "${env:no-name} names no"):
        assert name in str(error.value)


@pytest.mark.parametrize("text", ["http://[broken/secret", "secret", ""])
def test_text_that_is_no_address_is_masked_as_a_whole(text):
    assert parts_of(text, None, 5) == ((text,) if text else ())


@pytest.mark.parametrize(
    ("make", "attribute"),
    [
        (lambda text: JsonLines(text), "place"),
        (lambda text: Csv(text), "place"),
        (lambda text: TensorBoard(text), "place"),
        pytest.param(lambda text: MLflow(text), "_uri", marks=pytest.mark.full),  # its package is not in `test`
        pytest.param(lambda text: WandB(text), "_project", marks=pytest.mark.full),
    ],
    ids=["JsonLines", "Csv", "TensorBoard", "MLflow", "WandB"],
)
def test_loggers_resolve_their_arguments(monkeypatch, make, attribute):
    monkeypatch.setenv("MY_PLACE", "place")
    assert getattr(make("a${env:MY_PLACE}"), attribute) == "aplace"


@pytest.mark.full
def test_mlflow_errors_do_not_show_secrets(monkeypatch, tmp_path, capfd):
    """No server listens at the address, so that the logger fails."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(Listener, "seconds_to_close", 120.0)  # it is imported in its own thread
    mlflow = MLflow("http://someone:sEcReT-word@127.0.0.1:9/sEcReT-path?key=sEcReT-key", retries=0)
    build_line(quiet(tmp_path / "run").metric_loggers(mlflow)).fit(batches())
    assert "MLflow failed and is detached" in (tmp_path / "run" / "experiment.log").read_text()
    for path in (path for path in (tmp_path / "run").rglob("*") if path.is_file()):
        assert b"sEcReT" not in path.read_bytes()
    assert "sEcReT" not in "".join(capfd.readouterr())
