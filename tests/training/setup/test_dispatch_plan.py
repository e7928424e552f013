"""Tests of the setup of a run: dispatch plan, monitor and log."""

import dataclasses
import logging
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import LearnerBuilder, RegressionOutput
from learner.data import DataLoaderBuilder
from learner.metrics import Accuracy, CollectingMetric, LearningRate
from learner.records import CompactRecorder
from learner.strategies import SingleDevice
from learner.training.feed import group as feed_module
from learner.training.feed.inputs import read_inputs
from learner.training.monitors import monitor_of
from learner.training.setup.dispatch_plan import build_feeder, make_runner
from learner.training.setup.startup import check_recordable, describe
from tests.support.codes import raises_code


def linear(model, batch):
    return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["x"])


def convolved(x, w):
    return jax.lax.conv_general_dilated(
        x[:, :, None], w[:, :1, None], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )[:, :, 0]


def scanned(x, w):
    return jax.lax.scan(lambda x, _: (convolved(x, w), None), x, None, length=2)[0]


CONVOLUTIONS = {
    "plain": convolved,
    "inside jit": jax.jit(convolved),
    "inside checkpoint": jax.checkpoint(convolved),
    "inside scan": scanned,
    "inside cond": lambda x, w: jax.lax.cond(x.sum() > 0, lambda: convolved(x, w), lambda: x),
    "inside vmap": lambda x, w: jax.vmap(lambda row: convolved(row[None], w)[0])(x),
}


def convolution(model, batch):
    return RegressionOutput.from_predictions(convolved(batch["x"], model["w"]), batch["x"])


class Elsewhere(SingleDevice):
    """A device that reports another platform."""

    platform = "gpu"


class Rows(CollectingMetric):
    name, fields = "Rows", ("targets",)

    def collect(self, output):
        return output.targets

    def compute(self, rows):
        return 0.0


def resident(rows=10):
    return DataLoaderBuilder().batch_size(4).build({"x": np.ones((rows, 3), np.float32)})


def stream(rows=10):
    return list(resident(rows))


def decided(data, step=linear, strategy=None, accumulate=1, k=None, metrics=(), split="train"):
    """Return the feeder of a split, and the text about its dispatches."""
    builder = LearnerBuilder("unused").grads_accumulation(accumulate).metrics(*metrics)
    if k is not None:
        builder.steps_per_dispatch(k)
    learner = builder.build({"w": np.eye(3, dtype=np.float32)}, optax.sgd, 0.1, train_step=step, valid_step=step)
    strategy = strategy or SingleDevice()
    inputs = read_inputs(learner.definition.options, data, stream(), strategy)
    runner = make_runner(learner.definition.step, learner.init(), strategy)
    return build_feeder(runner, inputs, split, learner.definition.options, pytest.fail)


# -- dispatch plans ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "buffer", "why"),
    [
        (resident, {}, 256, "the data lives on the device"),
        (stream, {}, 32, "the data streams"),
        (resident, {"accumulate": 4}, 256, "the data lives on the device"),
        (stream, {"accumulate": 4}, 32, "the data streams"),
        (resident, {"metrics": [Rows()]}, 32, "the data lives on the device"),  # collected rows need a buffer
    ],
)
def test_small_steps_run_in_a_loop(make, options, buffer, why):
    feeder, text = decided(make(), **options)
    assert (feeder.loop, text) == (True, f"up to {buffer} steps in one loop ({why})")
    grouping = feeder._grouping
    assert (grouping.accumulate, grouping.buffer, grouping.limit(0)) == (options.get("accumulate", 1), buffer, buffer)


@pytest.mark.parametrize(("make", "where"), [(resident, "lives on the device"), (stream, "streams")])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_convolution_on_a_cpu_runs_step_by_step(make, where, split):
    feeder, text = decided(make(), convolution, split=split)
    assert feeder.loop is False
    assert "without a loop (it has a convolution, which is slow in a loop on a CPU; the data " in text
    assert split == "valid" or where in text


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_found_at_any_depth(name):
    function = CONVOLUTIONS[name]

    def step(model, batch):
        return RegressionOutput.from_predictions(function(batch["x"], model["w"]), batch["x"])

    assert decided(resident(), step)[0].loop is False


def test_on_other_devices_a_convolution_loops():
    assert decided(resident(), convolution, Elsewhere())[0].loop is True


@pytest.mark.parametrize("k", [1, 2, 1000])
@pytest.mark.parametrize("make", [resident, stream])
def test_steps_per_dispatch_limits_a_dispatch(make, k):
    feeder, text = decided(make(), k=k)
    assert (feeder.loop, feeder._grouping.most) == (True, k)
    assert feeder.buffer >= k
    assert text.startswith(f"up to {k} steps in one loop (as set; ")


@pytest.mark.parametrize("k", [None, 1, 5])
def test_steps_per_dispatch_does_not_change_the_program(k, monkeypatch):
    """A loop rounds differently from a single step."""
    assert decided(resident(), convolution, k=k)[0].loop is False
    assert decided(resident(), convolution, Elsewhere(), k=k)[0].loop is True
    monkeypatch.setattr(feed_module, "BUFFER_BYTES", 1)
    assert decided(stream(), k=k)[0].loop is False
    assert decided(resident(), k=k)[0].loop is True


STEP = 4 * 3 * 4  # bytes per batch


@pytest.mark.parametrize(
    ("room", "accumulate", "expected"),
    [
        (2 * STEP, 1, (True, 2)),
        (2 * STEP - 1, 1, (False, 1)),
        (5 * STEP, 1, (True, 5)),
        (5 * STEP, 2, (True, 2)),
        (3 * STEP, 2, (False, 1)),
    ],
)
def test_a_stream_without_room_for_two_steps_has_no_loop(monkeypatch, room, accumulate, expected):
    """The limit of 64 MiB is reduced."""
    assert feed_module.BUFFER_BYTES == 64 * 2**20
    monkeypatch.setattr(feed_module, "BUFFER_BYTES", room)
    feeder, text = decided(stream(), accumulate=accumulate)
    assert (feeder.loop, feeder.buffer) == expected
    assert ("larger than 64 MiB" in text) is not expected[0]


def test_resident_data_needs_no_buffer(monkeypatch):
    monkeypatch.setattr(feed_module, "BUFFER_BYTES", 1)
    assert decided(resident())[0].loop is True


def test_the_traced_program_is_not_traced_again():
    """Compiling reuses the trace that was inspected."""
    traces = []

    def step(model, batch):
        traces.append(1)
        return linear(model, batch)

    builder = LearnerBuilder("unused")
    learner = builder.build({"w": np.eye(3, dtype=np.float32)}, optax.sgd, 0.1, train_step=step)
    inputs = read_inputs(learner.definition.options, resident(8), None, SingleDevice())
    strategy = SingleDevice()
    runner = make_runner(learner.definition.step, learner.init(), strategy)
    feeder, _ = build_feeder(runner, inputs, "train", learner.definition.options, pytest.fail)
    seen = len(traces)
    dispatches = feeder.open(1, 0, 0, 1)
    runner.train(runner.start("train"), next(dispatches))
    dispatches.close()
    assert len(traces) == seen > 0


# -- the monitor -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("checkpointer", "splits", "expected"),
    [
        ({}, ["valid"], ("valid/Loss", False)),
        ({}, [], ("train/Loss", False)),
        ({}, ["valid-dev", "valid-ood"], ("valid-dev/Loss", False)),
        ({"monitor": "valid/Accuracy"}, ["valid"], ("valid/Accuracy", True)),
        ({"monitor": "valid/Accuracy", "mode": "min"}, ["valid"], ("valid/Accuracy", False)),
        ({"monitor": "train/Loss", "mode": "max"}, ["valid"], ("train/Loss", True)),
        (None, ["valid"], ("valid/Loss", False)),
    ],
)
def test_the_monitor_and_its_direction(checkpointer, splits, expected):
    builder = LearnerBuilder("unused").metrics(Accuracy()).metric_train(LearningRate())
    if checkpointer is None:
        builder.with_file_checkpointer(None)
    else:
        builder.with_file_checkpointer(**checkpointer)
    learner = builder.build({"w": np.zeros((3, 3))}, optax.sgd, 0.1, train_step=linear)
    assert monitor_of(learner.definition.options, splits) == expected


# -- the log -----------------------------------------------------------------------------------------------------------


def test_the_log_describes_the_run(caplog):
    model = nnx.List([nnx.Linear(3, 5, rngs=nnx.Rngs(0)), nnx.BatchNorm(5, rngs=nnx.Rngs(0))])
    builder = LearnerBuilder("unused").seed(7).grads_accumulation(2)
    learner = builder.build(model, optax.sgd, 0.1, train_step=linear)
    log = logging.getLogger("tests.describe")
    with caplog.at_level(logging.INFO, "tests.describe"):
        count = describe(log, learner.definition.options, learner.definition.step, learner.init(), SingleDevice())
    assert count == 3 * 5 + 5 + 5 + 5
    text = "\n".join(caplog.messages)
    for part in (f"jax {jax.__version__}", f"numpy {np.__version__}", "learner 0", "python 3"):
        assert part in text
    assert "devices: one device: " in text
    assert "there are 8 devices and one is used" in text
    assert f"{count} parameters in 4 arrays" in text
    assert "0.kernel float32    [3, 5]" in text
    assert "seed 7, 2 micro-batches per step" in text


def test_the_log_does_not_mention_unused_devices_after_a_choice(caplog):
    learner = LearnerBuilder("unused").devices(1).build({"w": jnp.zeros(3)}, optax.sgd, 0.1, train_step=linear)
    with caplog.at_level(logging.INFO, "tests.describe"):
        definition, log = learner.definition, logging.getLogger("tests.describe")
        describe(log, definition.options, definition.step, learner.init(), SingleDevice())
    assert "devices and one is used" not in caplog.text


def test_a_distributed_model_is_not_recorded():
    """The model is spread over the devices of several processes, or differs between processes."""
    learner = LearnerBuilder("unused").build({"w": jnp.ones((3, 3))}, optax.sgd, 0.1, train_step=linear)
    apart = types.SimpleNamespace(is_fully_addressable=False, is_fully_replicated=False)
    everywhere = types.SimpleNamespace(is_fully_addressable=False, is_fully_replicated=True)
    state = learner.init()
    several = dataclasses.replace(state, params={"a": apart, "b": everywhere, "c": np.ones(1)})
    options = LearnerBuilder("unused").with_file_checkpointer(record=CompactRecorder())._options
    check_recordable(options, state)
    check_recordable(options, dataclasses.replace(several, params={"b": everywhere}))
    check_recordable(LearnerBuilder("unused")._options, several)
    with raises_code("checkpoint-record-distributed", "1", "params.a"):
        check_recordable(options, several)
