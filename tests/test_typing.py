"""Tests of the types that users' type checkers know."""

import pytest

CODE = """
import contextlib
from typing import Any

import jax.numpy as jnp
import optax
from flax import nnx

from learner import (
    ClassificationOutput, EpochInfo, Learner, LearnerBuilder, LearningResult, PopulationResult, RunWriter,
)
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


def spread(result: LearningResult[nnx.Linear]) -> str:
    assert isinstance(result, PopulationResult)
    return str(result.summary("valid/Loss"))


def is_good(result: LearningResult) -> bool:
    best = result.history.best("valid/Loss", higher_is_better=False)
    return best is not None and best.value < 0.5 and bool(result.history["valid/Accuracy"][-1] > 0.9)


writer = RunWriter("runs/by-hand", metrics=[Accuracy()])
"""

MODELS = """
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from learner import (
    LearnerBuilder, Linen, Optimizer, RegressionOutput, eval_mode, load_checkpoint, load_model, train_mode,
    value_and_grad, with_parameters,
)


class MLP(nnx.Module):
    hidden: int

    def __init__(self, hidden: int = 8, *, rngs: nnx.Rngs) -> None:
        self.hidden = hidden

    def __call__(self, x: jax.Array) -> jax.Array:
        return x


class Net(eqx.Module):
    def __call__(self, *args: Any, rngs: Any = None) -> jax.Array:
        return jnp.ones(1)


class Factory:
    def make(self, rngs: nnx.Rngs) -> MLP:
        return MLP(rngs=rngs)


def make() -> MLP:
    return MLP(rngs=nnx.Rngs(0))


def make_from(random: nnx.Rngs) -> MLP:
    return MLP(rngs=random)


def make_wide(width: int = 4, *, rngs: nnx.Rngs) -> MLP:
    return MLP(width, rngs=rngs)


def step(model: MLP, batch: dict[str, jax.Array]) -> RegressionOutput:
    return RegressionOutput.from_predictions(model(batch["x"]), batch["y"])


def carrying_step(model: MLP, batch: dict[str, jax.Array]) -> tuple[RegressionOutput, MLP]:
    return step(model, batch), model


def dict_step(model: MLP, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {"loss": model(batch["x"]).mean()}


builder, linen, model = LearnerBuilder("run"), Linen(None, {}), make()
"""

OF_BUILD = {
    "lambda rngs: MLP(rngs=rngs)": "MLP",
    "lambda: MLP(rngs=nnx.Rngs(0))": "MLP",
    "lambda random: {'w': MLP(rngs=random)}": "dict[str, MLP]",
    "make": "MLP",
    "make_from": "MLP",
    "make_wide": "MLP",
    "Factory().make": "MLP",
    "MLP": "MLP",
    "functools.partial(MLP, 16)": "MLP",
    "model": "MLP",
    "Net()": "Net",
    "nnx.Linear(2, 1, rngs=nnx.Rngs(0))": "flax.nnx.nn.linear.Linear",
    "linen": "learner.models.linen.Linen",
    "{'w': 1}": "dict[str, int]",
    "(Net(), model)": "tuple[Net, MLP]",
}

INFERRED = {
    "builder.build(model, optax.sgd, 0.1)": "learner.learner.Learner[MLP]",
    "builder.build(make, optax.sgd, 0.1).fit()": "learner.training.result.LearningResult[MLP]",
    "builder.build(make, optax.sgd, 0.1).fit().best_model.hidden": "int",
    "builder.build(model, optax.sgd, 0.1).model_of(builder.build(model, optax.sgd, 0.1).init())": "MLP",
    "load_checkpoint('run', 'best', model).model": "MLP",
    "load_checkpoint('run', 'best', lambda rngs: MLP(rngs=rngs)).model": "MLP",
    "load_checkpoint('run', model=MLP).model": "MLP",
    "load_checkpoint('run').model": "Any",
    "load_model('model.mpk', model)": "MLP",
    "eval_mode(model)": "MLP",
    "train_mode(linen)": "learner.models.linen.Linen",
    "with_parameters({'w': 1}, {})": "dict[str, int]",
    "Optimizer(optax.sgd).step(0.1, model, {}, ())[0]": "MLP",
    "value_and_grad(step)(model, {})[0]": "learner.steps.outputs.RegressionOutput",
    "value_and_grad(carrying_step)(model, {})[0]": "tuple[learner.steps.outputs.RegressionOutput, MLP]",
    "value_and_grad(dict_step)(model, {})[0]": "Any",
}

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
    cases = {f"builder.build({model}, optax.sgd, 0.1).fit().model": kind for model, kind in OF_BUILD.items()} | INFERRED
    lines = check(MODELS + "\n".join(f"reveal_type({expression})" for expression in cases))
    kinds = [line.split('"')[1].replace("code.", "") for line in lines if "Revealed type" in line]
    assert dict(zip(cases, kinds, strict=True)) == cases
    assert len(lines) == len(cases)  # no errors


@pytest.mark.full
def test_the_fields_of_a_config_are_checked(check):
    first, *problems = check(CONFIG)
    assert "list[" in first
    assert [line.rpartition("[")[2] for line in problems] == ["arg-type]", "call-arg]", "misc]"]
