"""Tests of the base classes of loggers: `MetricLogger` and `RunLogger`."""

import importlib.util

import numpy as np
import pytest

from learner.events import SplitEnded, StepsEnded
from learner.loggers import JsonLines, MetricLogger, MLflow, TensorBoard, WandB
from learner.loggers.base import RunLogger
from learner.util.distribution import install_hint
from learner.util.optional import refuse_missing
from tests.support.codes import raises_code


class Splits(MetricLogger):
    def __init__(self):
        self.calls = []

    def log(self, split, name, value, epoch, step):
        self.calls.append((split, name, value, epoch, step))


class Steps(Splits):
    def log_step(self, split, name, value, epoch, step):
        self.calls.append((split, name, value, epoch, step))


def test_log_gets_the_values_of_splits_only(events):
    logger = Splits()
    for event in events:
        logger.on_event(event)
    assert logger.calls == [
        ("train", "Loss", 2.0, 1, 3),
        ("valid", "Loss", 1.0, 1, 3),
        ("valid", "Confusion", "1 0", 1, 3),
    ]


def test_log_step_gets_each_step_with_its_number(events):
    logger = Steps()
    for event in events:
        logger.on_event(event)
    assert [call for call in logger.calls if call[:2] == ("train", "Loss")] == [
        ("train", "Loss", 4.0, 1, 1),
        ("train", "Loss", 2.0, 1, 2),
        ("train", "Loss", 0.0, 1, 3),
        ("train", "Loss", 2.0, 1, 3),  # the split
    ]
    assert ("valid", "Loss", 1.0, 1, 1) in logger.calls
    assert all(type(call[2]) in (float, str) for call in logger.calls)


def test_values_of_steps_are_not_read_without_log_step(events):
    class Untouchable:
        def items(self):
            pytest.fail("the values were read")

    steps = next(event for event in events if type(event).__name__ == "StepsEnded")
    object.__setattr__(steps, "values", Untouchable())
    Splits().on_event(steps)


class Halves(Steps):
    every_steps, every_epochs = 2, 3


def test_steps_and_epochs_are_thinned(events):
    logger = Halves()
    for event in events:
        logger.on_event(event)
    assert [call for call in logger.calls if call[0] == "train"] == [("train", "Loss", 2.0, 1, 2)]
    logger.on_event(SplitEnded(0.0, "train", 2, 6, {"Loss": 0.5}, 0.1))
    logger.on_event(SplitEnded(0.0, "train", 3, 9, {"Loss": 0.25}, 0.1))
    logger.on_event(SplitEnded(0.0, "valid", 4, 11, {"Loss": 0.75}, 0.1, at_step=11))
    assert logger.calls[-2:] == [("train", "Loss", 0.25, 3, 9), ("valid", "Loss", 0.75, 4, 11)]


def steps_of(first, count):
    values = np.arange(first, first + count, dtype=np.float32)
    last = first + count - 1
    return StepsEnded(0.0, "train", 1, first, count, last, None, last, {"Loss": values}, np.ones_like(values), 0.1)


@pytest.mark.parametrize("cuts", [[12], [5, 7], [1] * 12, [7, 1, 4]], ids=str)
def test_logged_steps_do_not_depend_on_dispatches(cuts):
    logger, first = RunLogger(every_steps=3), 1
    logged = []
    logger.steps = lambda event, steps, values: logged.extend(zip(steps, values["Loss"].tolist(), strict=True))
    for count in cuts:
        logger.on_event(steps_of(first, count))
        first += count
    assert logged == [(3, 3.0), (6, 6.0), (9, 9.0), (12, 12.0)]


def test_no_steps_where_every_steps_is_none():
    logger = RunLogger(every_steps=None)
    logger.steps = lambda event, steps, values: pytest.fail("it got steps")
    logger.on_event(steps_of(1, 4))


@pytest.mark.parametrize(
    ("options", "code", "shown"),
    [
        ({"every_steps": 0}, "logger-arguments-wrong", ["every_steps", "RunLogger", "is 0"]),
        ({"every_steps": 2.0}, "logger-arguments-wrong", ["every_steps", "RunLogger", "is 2.0"]),
        ({"every_epochs": None}, "logger-arguments-wrong", ["every_epochs", "RunLogger"]),
        ({"every_epochs": True}, "logger-arguments-wrong", ["every_epochs", "RunLogger"]),
    ],
    ids=str,
)
def test_wrong_numbers_are_refused(options, code, shown):
    with raises_code(code, *shown):
        RunLogger(**options)


def test_all_problems_in_one_error():
    with raises_code("logger-arguments-wrong", "2 problems") as refused:
        JsonLines(every_steps=-1, every_epochs=0)
    assert all(name in str(refused.value) for name in ("every_steps", "every_epochs", "JsonLines"))


@pytest.mark.parametrize(("make", "extra"), [(TensorBoard, "tensorboard"), (WandB, "wandb"), (MLflow, "mlflow")])
def test_missing_package_raises_with_install_command(make, extra, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with raises_code("package-missing", install_hint(extra)):
        make()


def test_directory_with_a_packages_name_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "only_a_directory").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with raises_code("package-missing"):
        refuse_missing("only_a_directory", "wandb", "WandB")


@pytest.mark.parametrize("logger", [WandB, MLflow])
def test_missing_pillow_raises_before_a_run(logger, monkeypatch):
    """A missing Pillow would otherwise detach the logger at the end of the first epoch."""
    spec = importlib.util.find_spec("numpy")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PIL" else spec)
    with raises_code("package-missing", logger.__name__, "PIL"):
        logger()
