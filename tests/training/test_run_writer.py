"""Tests of `RunWriter`: a custom training loop writes the files of a run."""

import json
import signal
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

from learner import LearnerError, RunWriter
from learner.cli.main import main
from learner.metrics import Accuracy
from learner.runs import RunReader
from learner.runs.history import read_history
from learner.runs.lock import is_locked
from tests.support.codes import raises_code


def write(directory, epochs=(1, 2, 3), **options):
    with RunWriter(directory, metrics=[Accuracy()], **options) as run:
        for epoch in epochs:
            for _ in range(2):
                run.step({"Loss": 1 / epoch}, weight=32)
            values = {"train": {"Loss": 1 / epoch}, "valid": {"Loss": 2 / epoch, "Accuracy": epoch / 10}}
            run.end_epoch(2 * epoch, values)


def test_a_custom_loop_writes_a_run(tmp_path):
    write(tmp_path / "run", config={"lr": 0.1, "renderer": "rich"})
    run = RunReader(tmp_path / "run")
    assert str(run.status) == "ended: the end of the loop"
    assert run.config == {"lr": 0.1}
    assert (run.epochs, run.step) == (3, 6)
    assert run.history["valid/Accuracy"] == [0.1, 0.2, 0.3]
    assert run.best("valid/Accuracy") == (3, 6, 0.3)
    assert run.best("valid/Loss") == (3, 6, 2 / 3)
    assert run.steps("train/Loss").mean.tolist() == pytest.approx([1, 1, 1 / 2, 1 / 2, 1 / 3, 1 / 3])
    assert (tmp_path / "run/train/epoch-2/Loss.log").read_text() == "0.5,32\n0.5,32\n0.5,final\n"
    assert {"jax", "python", "learner"} <= set(run.environment)


def test_numbers_keep_their_precision(tmp_path):
    numbers = {"n": 16777217, "third": 1 / 3, "large": 1e300, "power": 2.0**-23 + 2.0**-60, "wide": np.float64(0.1)}
    arrays = {"float32": np.float32(0.1), "device": jnp.float32(0.1), "item": float(jnp.float32(0.1))}
    with RunWriter(tmp_path) as run:
        run.step({**numbers, **arrays}, weight=16777219)
        run.end_epoch(1, {"train": {**numbers, **arrays}})
    run = RunReader(tmp_path)
    expected = {name: [number] for name, number in {**numbers, "float32": 0.1, "device": 0.1, "item": 0.1}.items()}
    assert {name: run.history[f"train/{name}"] for name in expected} == expected
    assert {name: run.steps(f"train/{name}").mean.tolist() for name in expected} == expected
    assert (tmp_path / "train/epoch-1/n.log").read_text() == "16777217.0,16777219\n16777217.0,final\n"
    assert (tmp_path / "train/epoch-1/device.log").read_text() == "0.1,16777219\n0.1,final\n"


def test_the_commands_read_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, rate in (("a", 0.1), ("b", 0.2)):
        write(tmp_path / "runs" / name, config={"lr": rate})
    assert main(["compare", "runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2
    for words in (["summary", "runs/a"], ["report", "runs"], ["plot", "runs", "Loss"]):
        assert main(words) == 0
    assert main(["export", "runs/a", "--format=csv"]) == 0


def test_the_directory_is_locked_while_the_writer_is_open(tmp_path):
    with RunWriter(tmp_path) as run:
        assert is_locked(tmp_path)
        assert str(RunReader(tmp_path).status) == "running"
        with raises_code("directory-holds-run"):
            RunWriter(tmp_path)
        with pytest.raises(LearnerError), RunWriter(tmp_path, resume_at=0):
            pass
        run.end_epoch(1, {"train": {"Loss": 0.5}})
    assert not is_locked(tmp_path)
    assert read_history(tmp_path)["train/Loss"] == [0.5]


def test_nothing_is_written_outside_of_the_block(tmp_path):
    run = RunWriter(tmp_path / "run")
    with raises_code("run-writer-closed", "RunWriter"):
        run.step({"Loss": 0.5})
    assert not (tmp_path / "run").exists()
    with run:
        pass
    with raises_code("run-writer-closed"):
        run.end_epoch(1, {"train": {"Loss": 0.5}})
    assert not (tmp_path / "run" / "train").exists()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with raises_code("directory-unusable", "is a file"):
        RunWriter(tmp_path / "file")


def test_a_resumed_loop_has_each_epoch_once(tmp_path):
    write(tmp_path)
    write(tmp_path, epochs=(2, 3, 4), resume_at=2)
    run = RunReader(tmp_path)
    assert run.history["valid/Accuracy"] == [0.1, 0.2, 0.3, 0.4]
    assert [point.epoch for point in run.points("train/Loss")] == [1, 2, 3, 4]
    assert [point.step for point in run.points("train/Loss")] == [2, 4, 6, 8]
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "1.0,32\n1.0,32\n1.0,final\n"
    assert (tmp_path / "train/epoch-3/Loss.log").read_text().count("final") == 1
    assert json.loads((tmp_path / "summary.json").read_text())["epochs"] == 4


def test_resume_at_0_replaces_an_existing_run(tmp_path):
    write(tmp_path / "run", resume_at=0)
    write(tmp_path / "run", epochs=(1,), resume_at=0)
    assert read_history(tmp_path / "run")["train/Loss"] == [1.0]
    assert not (tmp_path / "run/train/epoch-2").exists()


def test_an_exception_of_the_loop_is_recorded_and_raised(tmp_path):
    with pytest.raises(ZeroDivisionError), RunWriter(tmp_path) as run:
        run.end_epoch(1, {"train": {"Loss": 1 / 0}})
    assert str(RunReader(tmp_path).status) == "failed: ZeroDivisionError('division by zero')"
    assert not is_locked(tmp_path)


@pytest.mark.parametrize(
    ("call", "code", "values"),
    [
        (lambda run: run.step({"Loss": [1, 2]}), "run-value-type", ("Loss", "list")),
        (lambda run: run.step({"Loss": 1}, split="test"), "run-split-unknown", ("test",)),
        (lambda run: run.end_epoch(1, {"../x": {"Loss": 1}}), "run-split-unknown", ("../x",)),
        (lambda run: run.end_epoch(2**53, {"train": {"Loss": 1}}), "run-step-value", ("9007199254740992",)),
        (lambda run: run.end_epoch(10**400, {"train": {"Loss": 1}}), "run-step-value", ("1000",)),
        (lambda run: run.end_epoch(np.array([-1]), {"train": {"Loss": 1}}), "run-step-value", ("-1",)),
        (lambda run: run.end_epoch(-1, {"train": {"Loss": 1}}), "run-step-value", ("-1",)),
        (lambda run: run.end_epoch(float("nan"), {"train": {"Loss": 1}}), "run-step-value", ("nan",)),
        (lambda run: run.end_epoch("x", {"train": {"Loss": 1}}), "run-value-type", ("step", "str")),
        (lambda run: run.end_epoch(1, {"train": {"Loss": None}}), "run-value-type", ("Loss", "NoneType")),
    ],
)
def test_invalid_values_are_refused(tmp_path, call, code, values):
    with raises_code(code, *values), RunWriter(tmp_path) as run:
        call(run)


@pytest.mark.parametrize("step", [-1, 1.5, True, "2", 2**53])
def test_invalid_resume_steps_are_refused(tmp_path, step):
    with raises_code("resume-at-value"):
        RunWriter(tmp_path, resume_at=step)


@pytest.mark.full
def test_an_interrupt_ends_the_run(tmp_path):
    program = f"""
        import os, signal
        from learner import RunWriter
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs inherit SIG_IGN
        with RunWriter({str(tmp_path / "run")!r}) as run:
            run.end_epoch(1, {{"train": {{"Loss": 0.5}}}})
            os.kill(os.getpid(), signal.SIGINT)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True)
    assert ran.returncode in (1, 130, -signal.SIGINT)
    assert str(RunReader(tmp_path / "run").status) == "stopped: ctrl-c"
