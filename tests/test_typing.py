"""Tests of the types that users' type checkers know."""

import pytest

CODE = """
import contextlib
from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx

from learner import ClassificationOutput, EpochInfo, Learner, LearnerBuilder, LearningResult, RunWriter
from learner.data import digits
from learner.loggers import MetricLogger
from learner.metrics import Accuracy, Info, MeanMetric, Metric, WeightedMean
from learner.training.run import Run


class Confidence(MeanMetric):
    name = "Confidence"
    higher_is_better = True

    def __init__(self, field: str) -> None:
        self.fields = (field,)

    def update(self, state: WeightedMean, output: Any, info: Info) -> WeightedMean:
        return state.add(output.logits.max(-1))


class Rows(Metric):
    name = "Rows"

    def init(self) -> Any:
        return jnp.int32(0)

    def update(self, state: Any, output: Any, info: Info) -> Any:
        return state + len(output.logits)

    def merge(self, a: Any, b: Any) -> Any:
        return a + b

    def compute(self, state: Any) -> Any:
        return state


class Own(Learner):
    def loop(self, run: Run) -> str:
        with contextlib.closing(run.dispatches()) as dispatches:
            for dispatch in dispatches:
                run.train(dispatch)
        return run.finish("done")


class Printer(MetricLogger):
    def log(self, split: str, name: str, value: float, epoch: int, step: int) -> None:
        print(0.1 < value < 1)


def hook(info: EpochInfo, model: nnx.Linear) -> dict[str, float]:
    return {"half": info.values["valid/Loss"] / 2}


def step(model: nnx.Linear, batch: dict[str, Any]) -> ClassificationOutput:
    return ClassificationOutput.from_logits(model(batch["image"].reshape(-1, 64)), batch["label"])


def train() -> LearningResult[nnx.Linear]:
    builder = LearnerBuilder("runs/typed").metrics(Accuracy(), Confidence("logits"), Rows()).learner_class(Own)
    builder.metric_loggers(Printer()).on_epoch_end(hook).with_batch_size(32)
    model = nnx.Linear(64, 10, rngs=nnx.Rngs(0))
    return builder.build(model, optax.adamw, 1e-3, train_step=step, valid_step=step).fit(digits("train"))


def is_good(result: LearningResult) -> bool:
    best = result.history.best("valid/Loss", higher_is_better=False)
    return best is not None and best.value < 0.5 and bool(result.history["valid/Accuracy"][-1] > 0.9)


writer = RunWriter("runs/by-hand", metrics=[Accuracy()])
"""

INFERRED = """
import optax
from flax import nnx
from learner import LearnerBuilder

class MLP(nnx.Module):
    def __call__(self, x: int) -> int:
        return x

def make() -> MLP:
    return MLP()

builder = LearnerBuilder("run")
learner = builder.build(MLP(), optax.sgd, 0.1)
reveal_type(learner)
reveal_type(builder.build(make, optax.sgd, 0.1).fit())
reveal_type(learner.fit().best_model)
reveal_type(learner.model_of(learner.init()))
reveal_type(builder.build({"w": 1}, optax.sgd, 0.1).fit().model)
"""

CONFIG = """
from learner import Config

class A(Config):
    size: int
    names: list[str] = []

reveal_type(A(size=1).names)
A(size='a')
A()
A(size=1).size = 2
"""


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """Return a function that type-checks code strictly and returns mypy's lines, without their places. The first check
    reads the types of all packages.
    """
    api = pytest.importorskip("mypy.api")
    directory = tmp_path_factory.mktemp("typed")

    def lines_of(code):
        (directory / "code.py").write_text(code)
        words = ["--strict", "--no-error-summary", "--cache-dir", str(directory / "cache"), str(directory / "code.py")]
        out, errors, _ = api.run(words)
        assert errors == ""
        return [line.partition(": ")[2] for line in out.splitlines()]

    return lines_of


@pytest.mark.full
def test_documented_patterns_pass_a_strict_type_check(check):
    assert check(CODE) == []


@pytest.mark.full
def test_the_model_has_a_type(check):
    assert [line.split('"')[1] for line in check(INFERRED) if "Revealed type" in line] == [
        "learner.learner.Learner[code.MLP]",
        "learner.training.result.LearningResult[code.MLP]",
        "code.MLP",
        "code.MLP",
        "dict[str, int]",
    ]


@pytest.mark.full
def test_the_fields_of_a_config_are_checked(check):
    first, *problems = check(CONFIG)
    assert "list[" in first
    assert [line.rpartition("[")[2] for line in problems] == ["arg-type]", "call-arg]", "misc]"]
