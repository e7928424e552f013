"""Tests of the checks of imported objects before any of them is called."""

import json
import os

import pytest

from learner.cli.configs.config import RunConfig
from learner.cli.configs.kind_checks import check_target
from learner.cli.configs.recipes import recipe
from learner.errors import LearnerError
from tests.support.codes import named_case

MODULE = """
import dataclasses
import functools
from pathlib import Path

import equinox
import jax
from flax import linen, nnx

from learner import Config as Settings
from learner.events import Listener
from learner.metrics import Accuracy


class Nnx(nnx.Module): ...
class Linen(linen.Module): ...
class Eqx(equinox.Module): ...
class Plain: ...
class Logger(Listener): ...
class Metric(Accuracy): ...
class Rows:
    def __getitem__(self, row): ...
class Size(Settings):
    hidden: int = 3
@dataclasses.dataclass
class Params:
    w: float = 0.0
class Rate:
    def __call__(self, rate): ...
def make(): ...
def number() -> int: ...
def nothing() -> None: ...
Made = dataclasses.make_dataclass("Made", [("w", float, 0.0)])
later = functools.partial(make)
jitted = jax.jit(make)
def mark(): Path("called").touch()
def marked():
    mark()
    return {}
"""


@pytest.fixture
def module(importable):
    (importable / "own.py").write_text(MODULE)
    return importable


def test_objects_that_fit_are_accepted(module):
    cases = [
        *(
            ("model", f"own.{name}")
            for name in ("Nnx", "Linen", "Eqx", "Plain", "Size", "Params", "make", "later", "jitted")
        ),
        ("metrics.0", "own.Metric"),
        ("metrics", "own.make"),
        ("metric_loggers.0", "own.Logger"),
        ("train", "own.Rows"),
        ("valid.dev.dataset", "own.Rows"),
        ("train.dataset", "own.make"),
        ("optimizer", "own.Rate"),
        ("lr", "own.Rate"),
        ("lr", "own.number"),
        ("model", "own.Made"),
        ("train_step", "own.Rate"),
        ("train.views.0.map", "json.loads"),
        ("model.init_args.path", "pathlib.Path"),
        ("model.init_args.activation", "math.sin"),
        ("on_epoch_end", "own.nothing"),
    ]
    for key, path in cases:
        with named_case((key, path)):
            recipe(path, key, alone=True)


def test_objects_that_do_not_fit_are_refused(module):
    cases = [
        ("model", "os.system", "model is os.system, of Python's module posix, which no config needs"),
        ("model", "subprocess.Popen", "of Python's module subprocess"),
        ("model", "shutil.rmtree", "of Python's module shutil"),
        ("model", "builtins.eval", "of Python's module builtins"),
        ("model", "pathlib.Path.unlink", "of Python's module pathlib"),
        ("model", "math.sqrt", "a function of Python's module math: it makes no model"),
        ("model", "own.Logger", "own.Logger, which is not a model"),
        ("model", "own.Metric", "own.Metric, which is not a model"),
        ("model", "own.number", "a function that returns <class 'int'>: it needs one that makes the object"),
        ("model", "own.nothing", "a function that returns None"),
        ("model.init_args.head", "os.system", "of Python's module posix"),
        ("train.views.0.map", "os.system", "of Python's module posix"),
        ("optimizer", "own.Nnx", "optimizer is own.Nnx, a class of another kind: it needs OptimizerFactory"),
        ("lr", "own.Plain", "lr is own.Plain, a class of another kind"),
        ("metrics.1", "own.Logger", "a class of another kind: it needs MetricBase"),
        ("metric_loggers.0", "own.Plain", "it needs Listener"),
        ("early_stopping", "own.Plain", "it needs MetricEarlyStopping"),
        ("train.dataset", "own.Plain", "a class of another kind: it needs a class with __iter__"),
        ("train_step", "own.Plain", "it needs a class with __call__"),
        ("train.batcher", "own.Plain", "it needs a class with __call__"),
        ("with_file_checkpointer.record", "own.Plain", "it needs Recorder"),
    ]
    for key, path, message in cases:
        with named_case((key, path, message)):
            with pytest.raises(LearnerError) as caught:
                recipe({"class_path": path, "init_args": {}}, key)
            assert message in str(caught.value)


def test_objects_that_are_not_called_are_not_checked():
    check_target(os.environ, "os.environ", "model")


def test_no_code_of_the_user_is_called_if_a_config_has_mistakes(module, line_config):
    """Mistakes in arguments of the library's objects are reported, too."""
    line_config |= {"model": "own.marked", "on_epoch_end": "own.mark", "train": {"dataset": "own.marked"}}
    line_config["metrics"] = ["own.marked"]
    for key, wrong in {"early_stoping": True, "optimizer": "os.system", "num_epochs": "many"}.items():
        with pytest.raises(LearnerError) as caught:
            RunConfig(
                {**line_config, "patience": 0, "train": {"dataset": "own.marked", "batch_size": 0}, key: wrong}
            ).learner()
        assert "batch_size is 0" in str(caught.value)
        assert not os.path.exists("called")
    with pytest.raises(LearnerError):
        RunConfig(line_config).learner()  # the control: without such mistakes, they are called
    assert os.path.exists("called")


def test_untrusted_model_is_not_called(learner, module, line_config):
    """The config of a run names `os.system` as its model, with and without other mistakes."""
    os.mkdir("run")
    model = {"class_path": "os.system", "init_args": {"command": "touch called"}}
    for wrong in ({}, {"nonsense": 1}):
        with open("run/config.yaml", "w") as file:
            json.dump({**line_config, "model": model, **wrong}, file)
        with open("run/journal.jsonl", "w") as file:
            file.write('{"event": "start"}\n')
        for command in (["evaluate", "run"], ["resume", "run"], ["export", "run", "-o", "model.mpk"]):
            code, _, err = learner(*command)
            assert (code, "model is os.system, of Python's module posix" in err) == (2, True), err
            assert not os.path.exists("called")
