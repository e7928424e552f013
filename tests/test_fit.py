"""Tests of one run with every feature: its files, and options that change no bit.

Tests of the default suite compare runs of identical programs, so they need no optimizations of XLA.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import ClassificationOutput, RegressionOutput, load_checkpoint
from learner.metrics import GradientNorm, IterationSpeed, TopKAccuracy
from learner.runs.history import read_history
from tests.support import spread
from tests.support.runs import (
    ROWS,
    STEPS,
    Net,
    X,
    bits,
    build_net,
    journal_of,
    logs_of,
    model_bits,
    numbers_in,
    numbers_of,
    quiet,
    saved_steps,
    shuffled,
    streamed,
    tree_of,
    valid_data,
)
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")


# -- what is left ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compiled_once):
    """Return the given model, the result and the directory of a run with every feature."""
    directory, model = tmp_path_factory.mktemp("trained") / "run", Net()
    builder = quiet(directory).num_epochs(3).with_file_checkpointer(keep_last=3)
    return model, build_net(builder, model).fit(shuffled(rows=ROWS), valid_data(9)), directory


def test_files_of_a_run(trained):
    _, _, directory = trained
    paths = {path for path in tree_of(directory) if not path.startswith("checkpoint/")}
    logs = {
        f"{split}/epoch-{epoch}/{name}.log"
        for epoch in (1, 2, 3)
        for split, names in (("train", ("Learning_Rate",)), ("valid", ()))
        for name in ("Loss", "Accuracy", "Last_Row", *names)
    }
    assert paths == {"experiment.log", "journal.jsonl", "model.json", "summary.json", *logs}
    assert saved_steps(directory) == [STEPS, 2 * STEPS, 3 * STEPS]


def test_each_line_is_a_value_and_its_weight(trained):
    _, _, directory = trained
    for path, text in logs_of(directory).items():
        *steps, last = [line.split(",") for line in text.splitlines()]
        weights = ["4"] * 5 + ["2"] if path.startswith("train") else ["9", "9", "2"]
        assert [weight for _, weight in steps] == ([] if "Last_Row" in path else weights)
        assert last[1:] == ["final"]
        assert all(str(np.float32(value)) == value for value, _ in [*steps, last])


def test_history_journal_and_files_agree(trained):
    _, result, directory = trained
    for path, text in logs_of(directory).items():
        split, epoch, name = path.removesuffix(".log").replace("_", " ").split("/")
        values, weights, last = numbers_in(text)
        logged = result.history[f"{split}/{name}"][int(epoch.split("-")[1]) - 1]
        assert float(last[0]) == logged
        if name == "Last Row":
            continue
        mean = values[-1] if name == "Learning Rate" else (values * weights).sum() / weights.sum()
        assert logged == pytest.approx(mean, rel=1e-5)
    assert read_history(directory) == result.history
    assert [(line["epoch"], line["step"]) for line in numbers_of(directory)] == [(1, 6), (2, 12), (3, 18)]


def test_journal_has_start_epochs_saves_and_end(trained):
    _, _, directory = trained
    entries = journal_of(directory)
    events = [entry["event"] for entry in entries]
    assert events[0] == "start"
    assert events[-1] == "end"
    assert sorted(events[1:-1]) == ["epoch"] * 3 + ["save"] * 3
    assert [entry["step"] for entry in entries if entry["event"] == "save"] == [6, 12, 18]


def test_the_summary_is_the_file(trained):
    _, result, directory = trained
    assert json.loads((directory / "summary.json").read_text()) == result.summary
    assert result.summary["steps"] == 18
    assert result.summary["epochs"] == 3
    assert result.stopped_by == result.summary["stopped_by"] == "num_epochs"
    best = min(result.history["valid/Loss"])
    assert result.summary["metrics"]["valid/Loss"]["best"]["value"] == best


def test_result_model(trained):
    given, result, _ = trained
    assert type(result.model) is Net
    assert result.model is not given
    assert result.model.norm.use_running_average
    assert result.model.drop.deterministic
    assert model_bits(result.model) != model_bits(given)
    assert not np.array_equal(result.model.norm.mean[...], given.norm.mean[...])
    assert np.array_equal(result.model(X[:5]), result.model(X[:5]))


def test_given_model_is_unchanged(trained):
    given, _, _ = trained
    assert model_bits(given) == model_bits(Net())  # the arrays are readable, so none was donated
    assert not given.norm.use_running_average
    assert not given.drop.deterministic


# -- nothing else changes a bit ----------------------------------------------------------------------------------------


def looked_at(info, model):
    model.out.kernel[...] = jnp.zeros_like(model.out.kernel[...])  # does not reach the run
    return {"step": info.step}


BESIDES = {
    "hooks, no checkpoints and no log": lambda b: (
        b.on_epoch_end(looked_at).every(steps=2, fn=looked_at).with_file_checkpointer(None).application_logger(None)
    ),
    "more metrics": lambda b: b.metrics(TopKAccuracy(2), IterationSpeed()).metric_train(GradientNorm()),
    "two steps at a time": lambda b: b.steps_per_dispatch(2),
}


@pytest.mark.full
@pytest.mark.parametrize("layers", [1, 6])
def test_random_keys_pass_the_check_of_their_reuse(tmp_path, layers):
    class Stack(nnx.Module):
        def __init__(self, rngs):
            self.hidden = nnx.List([nnx.Linear(3, 3, rngs=rngs) for _ in range(layers)])
            self.drop = nnx.Dropout(0.3, rngs=rngs)

        def __call__(self, x):
            for layer in self.hidden:
                x = self.drop(layer(x))
            return x

    def train_step(model, batch, rng):
        return valid_step(model, {**batch, "x": batch["x"] + jax.random.normal(rng, batch["x"].shape)})

    def valid_step(model, batch):
        return ClassificationOutput.from_logits(model(batch["x"]), batch["y"])

    def build(epochs):
        builder = quiet(tmp_path / "run", saves=True).num_epochs(epochs).resume()
        return builder.build(Stack, optax.adam, 1e-2, train_step=train_step, valid_step=valid_step)

    with jax.debug_key_reuse(True):
        build(1).fit(shuffled(rows=ROWS), valid_data())
        learner = build(2)
        result = learner.fit(shuffled(rows=ROWS), valid_data())
        assert learner.evaluate(valid_data())["Loss"] == result.history["valid/Loss"][-1]
        assert sum(len(outputs.logits) for outputs in learner.predict(valid_data())) == 20


@pytest.mark.full
@pytest.mark.parametrize("what", some(BESIDES, {"hooks, no checkpoints and no log"}))
def test_observers_change_no_bit_of_training(tmp_path, trained, what):
    builder = BESIDES[what](quiet(tmp_path / "run").num_epochs(3))
    result = build_net(builder).fit(shuffled(rows=ROWS), valid_data(9))
    _, reference, directory = trained
    assert model_bits(result.model) == model_bits(reference.model)
    logs, expected = logs_of(tmp_path / "run"), logs_of(directory)
    assert {path for path in expected if path.startswith("train/")} <= set(logs)
    assert all(logs[path] == text for path, text in expected.items() if path.startswith("train/"))


@pytest.mark.full
def test_streamed_data_gives_the_bits_of_resident_data(tmp_path, trained):
    result = build_net(quiet(tmp_path / "run").num_epochs(3)).fit(streamed(rows=ROWS), valid_data(9))
    assert model_bits(result.model) == model_bits(trained[1].model)


@pytest.mark.full
@pytest.mark.parametrize("what", some(["seed", "order", "model"], {"seed"}))
def test_seed_order_and_model_change_training(tmp_path, trained, what):
    """The control of the tests above: the comparison notices a difference."""
    learner = build_net(quiet(tmp_path / "run").num_epochs(3).seed(int(what == "seed")), Net(int(what == "model")))
    result = learner.fit(shuffled(9 if what == "order" else 3, ROWS), valid_data(9))
    assert model_bits(result.model) != model_bits(trained[1].model)


# Each model, with and without a loop by the choice of `fit`; tests/test_loop.py cuts a default run of the linear model.
@pytest.mark.full
@pytest.mark.parametrize(("kind", "accumulate"), [("mlp", 3), ("cnn", 1), ("cnn", 3), ("transformer", 1)])
def test_steps_per_dispatch_change_no_bit(tmp_path, kind, accumulate):
    """Compare the model and the values of every step."""

    def left(k):
        option = {} if k is None else {"steps_per_dispatch": (k,)}
        run = spread.train(tmp_path / str(k), kind, accumulate=accumulate, rows=100, **option)
        return bits([run.model, run.steps, run.epochs])

    default = left(None)
    assert {k: left(k) == default for k in (1, 5)} == {1: True, 5: True}


@pytest.mark.full
def test_four_bit_integers_are_model_state(tmp_path):
    """Quantized weights with a scale that is trained. XLA packs them where steps run in a loop."""
    data = {"x": X[:8], "y": X[:8] @ np.float32([0.5, -1, 1.5])}

    def train(model, batch):
        predictions = batch["x"] @ (model["q"].astype(jnp.float32) * model["s"])
        return RegressionOutput.from_predictions(predictions, batch["y"])

    model = {"q": jnp.array([1, -2, 3], jnp.int4), "s": jnp.ones(())}
    builder = quiet(tmp_path, saves=True).num_epochs(3).with_batch_size(8)
    result = builder.build(model, optax.sgd, 0.05, train_step=train, valid_step=train).fit(data, data)
    s, unscaled = 1.0, data["x"].astype(np.float64) @ [1, -2, 3]
    for _ in range(3):
        s -= 0.05 * 2 * np.mean((unscaled * s - data["y"]) * unscaled)
    np.testing.assert_allclose(result.model["s"], s, rtol=1e-5)
    loaded = load_checkpoint(tmp_path, "latest", model).model["q"]
    assert (loaded.dtype, loaded.tolist()) == (jnp.int4, [1, -2, 3])
