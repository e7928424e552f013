"""Small models of three kinds, and the results of their runs, to compare runs on different devices."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from learner import ClassificationOutput, LearnerBuilder, SequenceOutput
from learner.data import DataLoaderBuilder
from learner.events import StepsEnded
from learner.loggers import MemoryLogger
from learner.metrics import Accuracy, CollectingMetric, GradientNorm
from learner.util import executables

COMPILED = []
# Placing and saving split arrays takes a few programs of JAX for each shape; copies are shared between runs.
NOT_COUNTED = ("jit(slice)", "jit(_multi_slice)", "jit(copy)", "jit(_copy)")


def _heard(event, seconds, fun_name="", **_):
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(fun_name)


jax.monitoring.register_event_duration_secs_listener(_heard)


class Order(CollectingMetric):
    """Sum each row's largest logit times its number among all rows, which changes with the order and number of rows."""

    name, fields = "Order", ("logits",)
    higher_is_better = True

    def collect(self, output):
        return output.logits.max(axis=tuple(range(1, output.logits.ndim)))

    def compute(self, rows):
        return float(np.mean(rows.astype(np.float64) * np.arange(1, len(rows) + 1)))


class Mlp(nnx.Module):
    def __init__(self, dropout):
        rngs = nnx.Rngs(0)
        self.hidden = nnx.Linear(6, 16, rngs=rngs)
        self.drop = nnx.Dropout(dropout, rngs=rngs)
        self.out = nnx.Linear(16, 4, rngs=rngs)

    def train_step(self, batch):
        return ClassificationOutput.from_logits(self.out(self.drop(nnx.relu(self.hidden(batch["x"])))), batch["y"])

    valid_step = train_step


class Cnn(nnx.Module):
    def __init__(self, dropout):
        rngs = nnx.Rngs(1)
        self.conv = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.drop = nnx.Dropout(dropout, rngs=rngs)
        self.out = nnx.Linear(8, 4, rngs=rngs)

    def train_step(self, batch):
        hidden = nnx.relu(self.norm(self.conv(batch["x"])))
        return ClassificationOutput.from_logits(self.out(self.drop(hidden.mean((1, 2)))), batch["y"])

    valid_step = train_step


class Transformer(nnx.Module):
    def __init__(self, dropout):
        rngs = nnx.Rngs(2)
        self.embed = nnx.Embed(11, 16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 16, decode=False, dropout_rate=dropout, rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.out = nnx.Linear(16, 11, rngs=rngs)

    def train_step(self, batch):
        hidden = self.embed(batch["tokens"])
        hidden = hidden + self.attention(hidden, mask=nnx.make_causal_mask(batch["tokens"]))
        return SequenceOutput.from_logits(self.out(self.norm(hidden)), batch["next"], batch["mask"])

    valid_step = train_step


def labelled(shape, rows, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, *shape)).astype(np.float32)
    return {"x": x, "y": (np.abs(x.reshape(rows, -1)[:, :4])).argmax(1).astype(np.int32)}


def tokens(rows, seed):
    """Return heavily masked sequences; some rows have no unmasked token."""
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 11, (rows, 8)).astype(np.int32)
    lengths = np.where(rng.random(rows) < 0.3, 0, rng.integers(0, 8, rows))
    mask = (np.arange(7)[None] < lengths[:, None]).astype(np.float32)
    return {"tokens": text[:, :-1], "next": text[:, 1:], "mask": mask}


@dataclasses.dataclass(frozen=True)
class Kind:
    make: Callable[[float], Any]
    data: Callable[[int, int], dict[str, np.ndarray]]
    rules: dict[str, Any]


KINDS = {
    "mlp": Kind(Mlp, lambda rows, seed: labelled((6,), rows, seed), {r"hidden\.kernel": (None, "model")}),
    "cnn": Kind(Cnn, lambda rows, seed: labelled((5, 5, 1), rows, seed), {r"out\.kernel": ("model",)}),
    "transformer": Kind(
        Transformer, tokens, {r"attention\.(query|key|value)\.kernel": (None, "model"), r"out.kernel": ("model", None)}
    ),
}


@dataclasses.dataclass(frozen=True)
class Left:
    """The results of a run."""

    model: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    epochs: dict[str, float]
    weights: np.ndarray
    log: str
    result: Any
    programs: list[str]

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.log.splitlines() if "WARNING" in line]


def leaves_of(tree):
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def train(directory, kind, strategy=None, accumulate=1, batch=24, rows=125, dropout=0.0, optimizer=optax.sgd, **more):
    """Train one epoch with the norm of every step's gradients, and return the results."""
    case, logger = KINDS[kind], MemoryLogger()
    builder = LearnerBuilder(directory).metrics(Accuracy(), Order()).metric_train(GradientNorm())
    builder.metric_loggers(logger).renderer(None).grads_accumulation(accumulate).num_epochs(more.pop("epochs", 1))
    if strategy is not None:
        builder.strategy(strategy)
    for name, arguments in more.items():
        method = getattr(builder, name)
        method(**arguments) if isinstance(arguments, dict) else method(*arguments)
    learner = builder.build(case.make(dropout), optimizer, 0.2)
    loader = DataLoaderBuilder().batch_size(batch)
    executables.clear()
    before = len(COMPILED)
    data = loader.shuffle(3).build(case.data(rows, 1)), DataLoaderBuilder().batch_size(batch).build(case.data(37, 2))
    result = learner.fit(*data)
    steps = _steps(logger)
    return Left(
        leaves_of(nnx.state(result.model, nnx.Any(nnx.Param, nnx.BatchStat))),
        {key: values for key, values in steps.items() if key != "weight"},
        {key: values[-1] for key, values in result.history.items()},
        steps["weight"],
        (directory / "experiment.log").read_text(),
        result,
        [name for name in COMPILED[before:] if name not in NOT_COUNTED],
    )


def _steps(logger):
    ended = [event for event in logger.of(StepsEnded) if event.split == "train"]
    columns = [{**event.values, "weight": event.weights} for event in ended]
    return {name: np.concatenate([column[name] for column in columns]) for name in columns[0]}


def same_numbers(a: Left, b: Left, rtol=2e-5, atol=3e-6):
    """Compare the losses and gradients of each step, parameters, statistics, and the epoch's metrics."""
    np.testing.assert_array_equal(a.weights, b.weights)
    for part in ("steps", "model", "epochs"):
        one, other = getattr(a, part), getattr(b, part)
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_allclose(other[name], one[name], rtol=rtol, atol=atol, err_msg=f"{part} {name}")
