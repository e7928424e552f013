"""Check that values do not depend on the batches, and that observers do not change them."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from rich.console import Console

from learner import ClassificationOutput, SequenceOutput
from learner.data import DataLoaderBuilder
from learner.loggers import MemoryLogger, MetricLogger
from learner.metrics import Accuracy, LearningRate, Perplexity
from learner.renderers import PlainRenderer, RichRenderer
from learner.strategies import Replicated, Sharded
from learner.training.programs.compilation import CompileTimes
from learner.util import executables
from tests.support.runs import (
    ROWS,
    STEPS,
    LastRow,
    Net,
    T,
    X,
    Y,
    checkpoint_bits,
    logs_of,
    model_bits,
    quiet,
    saved_steps,
    shuffled,
    valid_data,
)
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")


# -- a classifier by hand ----------------------------------------------------------------------------------------------

_rng = np.random.default_rng(5)
WEIGHTS = {"w": _rng.normal(size=(3, 3)).astype(np.float32), "b": np.float32([0.3, -0.2, 0.1])}
LENGTH = 5
TOKENS = [
    5,
    5,
    4,
    5,
    1,
    0,
    2,
    1,
    0,
    0,
    0,
    0,
    3,
    1,
    5,
    2,
    1,
    1,
    1,
    4,
    0,
    2,
]  # by row; the third batch of 4 has none
SEQUENCES = {
    "x": _rng.normal(size=(ROWS, LENGTH, 3)).astype(np.float32),
    "y": _rng.integers(0, 3, (ROWS, LENGTH)).astype(np.int32),
    "mask": (np.arange(LENGTH)[None] < np.array(TOKENS)[:, None]).astype(np.int32),
}
LABELLED = {"x": X[:ROWS], "y": Y[:ROWS]}


def row_step(model, batch):
    return ClassificationOutput.from_logits(batch["x"] @ model["w"] + model["b"][None], batch["y"])


def token_step(model, batch):
    """Return the output for tokens; masked values are NaN, so that using one shows."""
    spoilt = jnp.where(batch["mask"] == 1, 0.0, jnp.nan)[..., None]
    logits = batch["x"] @ model["w"] + model["b"][None, None] + spoilt
    return SequenceOutput.from_logits(logits, batch["y"], batch["mask"])


def cut(data, *sizes):
    """Return the rows as batches of the given sizes; the last size repeats."""
    parts, start = [], 0
    while start < len(data["x"]):
        size = sizes[min(len(parts), len(sizes) - 1)]
        parts.append({name: values[start : start + size] for name, values in data.items()})
        start += size
    return parts


def log_probabilities(params, batch):
    """Return log-probabilities of the unmasked labels in float64, and the inputs and gradients of each."""
    keep = batch["mask"].astype(bool) if "mask" in batch else np.ones(batch["y"].shape, bool)
    x, y = np.float64(batch["x"][keep]), batch["y"][keep]
    logits = x @ np.float64(params["w"]) + np.float64(params["b"])
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return np.log(p[np.arange(len(y)), y]), x, p - np.eye(3)[y]


def loss_of(params, batch):
    """Return the mean over unmasked tokens, and their number."""
    losses = -log_probabilities(params, batch)[0]
    return (losses.mean() if len(losses) else np.nan), len(losses)


def descend(params, batch, rate):
    """Perform a step of gradient descent."""
    _, x, delta = log_probabilities(params, batch)
    return {"w": params["w"] - rate * x.T @ delta / len(x), "b": params["b"] - rate * delta.sum(0) / len(x)}


def build(builder, step, lr=0.0):
    return builder.build(jax.tree.map(jnp.asarray, WEIGHTS), optax.sgd, lr, train_step=step, valid_step=step)


def column(directory, split, epoch, name="Loss"):
    """Return the steps' values and weights, and the value of the epoch."""
    *steps, last = [line.split(",") for line in logs_of(directory)[f"{split}/epoch-{epoch}/{name}.log"].splitlines()]
    assert last[1] == "final"
    return np.float64([value for value, _ in steps]), [float(weight) for _, weight in steps], float(last[0])


# -- means -------------------------------------------------------------------------------------------------------------

FORMS = {
    "batches": lambda data, size: cut(data, size),
    "on the device": lambda data, size: DataLoaderBuilder().batch_size(size).build(data),
}
ODD = 21  # one row is left over by batches of 4, 5 and 20


@pytest.mark.parametrize(
    ("form", "size"),
    some([("batches", 4), *(("on the device", n) for n in (1, 4, 20, 21, 32))], {("on the device", 4)}),
)
def test_ragged_eval(tmp_path, size, form):
    """Metrics over all rows equal NumPy's over all rows, for any batch sizes."""
    counts_each_row_once(quiet(tmp_path / "run"), form, size)


@pytest.mark.parametrize(
    ("strategy", "size"),
    some([(Replicated, 3), (Replicated, 8), (Sharded, 4), (Sharded, 21)], ()),  # by default in test_devices.py
)
def test_multi_device_eval_padding(tmp_path, strategy, size):
    """21 rows on four devices: the last batch, or every one, does not divide, and each row counts once."""
    counts_each_row_once(quiet(tmp_path / "run").strategy(strategy(devices=4)), "batches", size)


def counts_each_row_once(builder, form, size):
    data = {name: values[:ODD] for name, values in LABELLED.items()}
    learner = build(builder.metrics(Accuracy(), Perplexity(), LastRow()), row_step)
    history = learner.fit(cut(LABELLED, 4), FORMS[form](data, size)).history
    loss, _ = loss_of(WEIGHTS, data)
    logits = data["x"] @ WEIGHTS["w"] + WEIGHTS["b"]
    expected = {
        "Loss": loss,
        "Perplexity": np.exp(loss),
        "Accuracy": np.mean(logits.argmax(-1) == data["y"]),
        "Last Row": np.dot(np.arange(1, ODD + 1), data["y"]),
    }
    assert {key: history[f"valid/{key}"][-1] for key in expected} == pytest.approx(expected, rel=1e-6)
    assert learner.evaluate(FORMS[form](data, size)) == pytest.approx(expected, rel=1e-6)
    if size in (4, 5, 20):  # the mean of the batches' means would differ
        assert abs(np.mean([loss_of(WEIGHTS, batch)[0] for batch in cut(data, size)]) - loss) > 1e-3


@pytest.mark.parametrize(("form", "accumulate"), some([(f, n) for f in FORMS for n in (1, 4)], ()))
def test_masked_loss_weight(tmp_path, form, accumulate):
    """The mean of an epoch is over unmasked tokens. A batch without any has no loss."""
    learner = build(quiet(tmp_path / "run").grads_accumulation(accumulate), token_step)
    learner.fit(FORMS[form](SEQUENCES, 4), FORMS[form](SEQUENCES, 5))
    mean, tokens = loss_of(WEIGHTS, SEQUENCES)
    assert tokens == sum(TOKENS)
    for split, size in (("train", 4 * accumulate), ("valid", 5)):
        values, weights, final = column(tmp_path / "run", split, 1)
        expected = [loss_of(WEIGHTS, batch) for batch in cut(SEQUENCES, size)]
        np.testing.assert_allclose(values, [loss for loss, _ in expected], rtol=1e-6)
        assert weights == [count for _, count in expected]
        assert final == pytest.approx(mean, rel=1e-6)
        assert abs(np.nanmean(values) - mean) > 0.01  # the mean of the batches' means would differ
    assert 0 in [batch["mask"].sum() for batch in cut(SEQUENCES, 4)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("step", "data"),
    [
        pytest.param(row_step, LABELLED, id="rows", marks=pytest.mark.full),
        pytest.param(token_step, SEQUENCES, id="tokens"),
    ],
)
def test_accumulation_equals_big_batch(tmp_path, step, data):
    """22 rows in batches of 4, 4 of them per step, equal one batch of 16 rows and one of 6, and NumPy."""
    params, losses = WEIGHTS, []
    for batch in cut(data, 16, 6) * 2:
        losses.append(loss_of(params, batch))
        params = descend(params, batch, 0.5)
    for name, batches, accumulate in (("accumulated", cut(data, 4), 4), ("big", cut(data, 16, 6), 1)):
        directory = tmp_path / name
        result = build(quiet(directory).num_epochs(2).grads_accumulation(accumulate), step, 0.5).fit(batches)
        assert result.summary["steps"] == 4
        for key, values in params.items():
            np.testing.assert_allclose(result.model[key], values, rtol=2e-5, atol=2e-6, err_msg=name)
        for epoch in (1, 2):
            values, weights, _ = column(directory, "train", epoch)
            expected = losses[2 * epoch - 2 : 2 * epoch]
            np.testing.assert_allclose(values, [loss for loss, _ in expected], rtol=1e-5)
            assert weights == [count for _, count in expected]


# -- nothing that looks on changes a bit -------------------------------------------------------------------------------


def build_net(builder, **steps):
    """Dropout, running statistics, a schedule, Adam's moments: the smallest disturbance shows."""
    builder.num_epochs(3).with_file_checkpointer().metrics(Accuracy()).metric_train(LearningRate())
    schedule = optax.cosine_decay_schedule(2e-2, 3 * STEPS)
    return builder.build(Net(), optax.adamw, schedule, **steps)


def trained(directory, result):
    """Return the bits of a training: each step's values, and the whole last state."""
    logs = {path: text for path, text in logs_of(directory).items() if path.startswith("train/")}
    (last,) = saved_steps(directory)[-1:]
    return model_bits(result.model), logs, checkpoint_bits(directory, last), last


@pytest.fixture(scope="module")
def reference(tmp_path_factory, compiled_once):
    """Return a run with a validation at the end of each epoch, and the number of programs that it compiles."""
    directory, counts = tmp_path_factory.mktemp("reference"), []
    for name in ("first", "run"):  # the first run compiles JAX's own small functions
        learner = build_net(quiet(directory / name))
        executables.clear()
        with CompileTimes() as compiled:
            result = learner.fit(shuffled(rows=ROWS), valid_data(9))
        counts.append(compiled.count)
    return trained(directory / "run", result), counts[1]


def drawing_step(model, batch, rng):
    """Return a validation output that draws random numbers."""
    noise = jax.random.normal(rng, batch["x"].shape, jnp.float32)
    return ClassificationOutput.from_logits(model(batch["x"] + noise), batch["y"])


VALIDATIONS = {
    "none": lambda b: (build_net(b), None),
    "each step": lambda b: (build_net(b.valid_every(1)), valid_data(9)),
    "each fourth step": lambda b: (build_net(b.valid_every(4)), valid_data(9)),
    "two sets": lambda b: (
        build_net(b.valid_every(2)),
        {"a": cut({"x": X, "y": Y, "t": T}, 7), "b": valid_data(9)},
    ),
    "random": lambda b: (build_net(b.valid_every(2), valid_step=drawing_step), valid_data(9)),
}


@pytest.mark.full
@pytest.mark.parametrize("how", some(VALIDATIONS, {"random"}))
def test_val_does_not_disturb_training(tmp_path, reference, how):
    learner, valid = VALIDATIONS[how](quiet(tmp_path / "run"))
    result = learner.fit(shuffled(rows=ROWS), valid)
    assert trained(tmp_path / "run", result) == reference[0]


class Deaf(MemoryLogger):
    def on_event(self, event):
        raise RuntimeError("a broken logger")


class Steps(MetricLogger):
    """A logger that needs every value of every step."""

    def __init__(self):
        self.logged = []

    def log_step(self, *value):
        self.logged.append(value)


def numbers(info, model):
    return {"step": info.step}


def on_a_terminal():
    return RichRenderer(Console(file=io.StringIO(), force_terminal=True, width=80))


LOGGINGS = {
    "never": lambda b: b.application_logger(None),
    "each step": lambda b: b.metric_loggers(Steps(), MemoryLogger()),
    "own numbers each step": lambda b: b.every(1, numbers),
    "own numbers each fifth step": lambda b: b.every(5, numbers).on_epoch_end(numbers),
    "lines": lambda b: b.renderer(PlainRenderer(every_seconds=0)).summary(),
    "a bar": lambda b: b.renderer(on_a_terminal()).summary(),
    "a broken logger": lambda b: b.metric_loggers(Deaf()),
}


@pytest.mark.full
@pytest.mark.parametrize("how", some(LOGGINGS, {"a bar"}))
def test_logging_does_not_disturb(tmp_path, reference, how, capsys):
    """The bits and the compiled programs do not change."""
    learner = build_net(LOGGINGS[how](quiet(tmp_path / "run")))
    executables.clear()
    with CompileTimes() as compiled:
        result = learner.fit(shuffled(rows=ROWS), valid_data(9))
    assert (trained(tmp_path / "run", result), compiled.count) == reference


@pytest.mark.full
def test_changed_training_is_detected(tmp_path, reference):
    result = build_net(quiet(tmp_path / "run").seed(1)).fit(shuffled(rows=ROWS), valid_data(9))
    changed = trained(tmp_path / "run", result)
    assert [a == b for a, b in zip(changed, reference[0], strict=True)] == [False, False, False, True]
