"""Tests of the values of each step, read back from files."""

import os

import numpy as np
import pytest

from learner.runs import RunReader
from learner.runs import series as module
from tests.support.codes import raises_code
from tests.support.written import write_run, write_steps


@pytest.fixture
def run(tmp_path):
    """Return a run with two epochs of four steps, and an unfinished third."""
    directory = write_run(tmp_path / "a", {"train/Loss": [1.0, 2.0]}, steps=4, ending=None)
    write_steps(directory, "Loss", 1, [1, 2, 3, 4])
    write_steps(directory, "Loss", 2, [5, "nan", "inf", 8])
    write_steps(directory, "Loss", 3, [9, 10])
    return RunReader(directory)


def test_values_of_each_step(run):
    series = run.steps("train/Loss")
    assert series.step.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    np.testing.assert_array_equal(series.mean, [1, 2, 3, 4, 5, np.nan, np.inf, 8, 9, 10])
    assert series.together == 1
    np.testing.assert_array_equal(series.low, series.high)


def test_values_of_several_steps_are_averaged(run):
    series = run.steps("train/Loss", most=4)
    assert series.together == 3
    assert series.step.tolist() == [3, 6, 9, 10]
    np.testing.assert_array_equal(series.mean, [2, 4.5, 8.5, 10])
    np.testing.assert_array_equal(series.low, [1, 4, 8, 10])
    np.testing.assert_array_equal(series.high, [3, 5, 9, 10])


def test_chunk_size_does_not_change_the_values(run, monkeypatch):
    """Files larger than one read give equal values, wherever a read ends."""
    whole = [run.steps("train/Loss", most) for most in (None, 4)]
    monkeypatch.setattr(module, "CHUNK", 3)
    for most, expected in zip((None, 4), whole, strict=True):
        np.testing.assert_equal(vars(run.steps("train/Loss", most)), vars(expected))


def test_metric_that_starts_inside_an_epoch(run):
    """A run may resume there with a further metric."""
    write_steps(run.directory, "Late", 2, [7, 8])
    write_steps(run.directory, "Late", 3, [9, 10])
    assert run.steps("train/Late").step.tolist() == [7, 8, 9, 10]


def test_point_without_finite_values_is_nan(tmp_path):
    directory = write_run(tmp_path / "a", {"train/Loss": [1.0]}, steps=2)
    write_steps(directory, "Loss", 1, ["nan", "-inf"])
    series = RunReader(directory).steps("train/Loss", most=1)
    assert np.isnan([series.mean, series.low, series.high]).all()


def test_missing_epoch_does_not_shift_the_others(run):
    os.unlink(run.directory / "train" / "epoch-1" / "Loss.log")
    assert run.steps("train/Loss").step.tolist() == [5, 6, 7, 8, 9, 10]


def test_torn_lines_and_lines_that_are_not_numbers(run):
    path = run.directory / "train" / "epoch-3" / "Loss.log"
    path.write_text("9,32\nhello\n7,32\n1.2")
    np.testing.assert_array_equal(run.steps("train/Loss").mean[-3:], [9, np.nan, 7])


def test_metric_without_files_has_no_values(run):
    assert len(run.steps("train/Accuracy")) == 0
    assert len(run.steps("train/Accuracy", most=10)) == 0


def test_pipe_is_not_read(run):
    (run.directory / "train" / "epoch-4").mkdir()
    os.mkfifo(run.directory / "train" / "epoch-4" / "Loss.log")
    assert len(run.steps("train/Loss")) == 10


def test_zero_points_are_refused(run):
    with raises_code("run-series-most-value", most=0):
        run.steps("train/Loss", most=0)


def test_very_long_line_is_skipped(run, monkeypatch):
    """Such a line is not collected in memory."""
    monkeypatch.setattr(module, "CHUNK", 100)
    monkeypatch.setattr(module, "LONGEST", 1000)
    with (run.directory / "train" / "epoch-3" / "Loss.log").open("ab") as file:
        file.write(bytes(5000) + b"1,1\n3,3\n")
    assert len(run.steps("train/Loss")) == 10
