"""Tests that the documented patterns pass a strict type check of the user's code."""

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


@pytest.mark.full
def test_documented_patterns_pass_a_strict_type_check(tmp_path):
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "user.py"
    file.write_text(CODE)
    out, errors, code = api.run(["--strict", f"--cache-dir={tmp_path}", str(file)])
    assert (code, errors) == (0, ""), out
