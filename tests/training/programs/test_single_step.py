"""Tests of `Learner.train_step`: custom loops end with the bits of `fit`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import ClassificationOutput
from learner.loggers import MemoryLogger
from learner.training.programs.compilation import CompileTimes
from learner.training.programs.single_step import SingleStepRunner
from tests.support.codes import raises_code
from tests.support.runs import (
    BATCH,
    LastRow,
    Net,
    arrays,
    batches,
    bits,
    build_line,
    build_net,
    line,
    line_step,
    model_bits,
    noisy_step,
    quiet,
    shuffled,
    valid_data,
)
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("optimized", "compiled_once")


class Convolved(nnx.Module):
    """A model whose steps are dispatched without a loop on a CPU."""

    def __init__(self):
        rngs = nnx.Rngs(2)
        self.conv, self.out = nnx.Conv(1, 4, (2,), rngs=rngs), nnx.Linear(12, 3, rngs=rngs)
        self.norm, self.drop = nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.2, rngs=rngs)

    def train_step(self, batch):
        x = self.norm(self.conv(batch["x"][..., None]))
        return ClassificationOutput.from_logits(self.out(self.drop(x.reshape(-1, 12))), batch["y"])

    valid_step = train_step


def custom_loop(learner, train, epochs, accumulate):
    """Train in a custom loop over epochs; return the last state and the values of every step."""
    state, step_values = learner.init(), []
    for epoch in range(1, epochs + 1):
        group = []
        batches = list(train.epoch(epoch))
        for number, batch in enumerate(batches, 1):
            group.append(batch)
            if len(group) == accumulate or number == len(batches):
                state, values = learner.train_step(state, *group)
                step_values.append(values)
                group = []
    return state, step_values


CASES = [
    ("noisy line", 22, 2, "resident"),
    ("net", 22, 1, "resident"),
    ("net", 24, 1, "streamed"),
    ("net", 22, 4, "streamed"),
    ("net", 24, 4, "resident"),
    ("convolved", 22, 4, "resident"),
    ("convolved", 24, 1, "streamed"),
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "rows", "accumulate", "kind"),
    some(CASES, {CASES[0]}),
)
def test_a_custom_loop_has_the_bits_of_fit(tmp_path, model, rows, accumulate, kind):
    """The cases include ragged last batches, incomplete groups of micro-batches, and steps without a loop."""
    memory = MemoryLogger()

    def build(name, *loggers):
        builder = quiet(tmp_path / name).num_epochs(2).grads_accumulation(accumulate).metric_loggers(*loggers)
        if model == "noisy line":
            builder.metrics(LastRow())
            return builder.build(line(), optax.adam, 0.05, train_step=noisy_step, valid_step=line_step)
        return build_net(builder, Net() if model == "net" else Convolved())

    data = shuffled(rows=rows)
    given = data if kind == "resident" else lambda: iter(data)
    result = build("fit", memory).fit(given, valid_data())
    learner = build("hand")
    state, values = custom_loop(learner, shuffled(rows=rows), 2, accumulate)
    assert model_bits(learner.model_of(state)) == model_bits(result.model)
    assert [float(v["Loss"]) for v in values] == memory.steps["train/Loss"]
    if model != "noisy line":
        assert [float(v["Accuracy"]) for v in values] == memory.steps["train/Accuracy"]
    valid_values = [learner.valid_step(state, batch) for batch in valid_data()]
    assert [float(v["Loss"]) for v in valid_values] == memory.steps["valid/Loss"][-len(valid_values) :]
    assert [float(v["weight"]) for v in valid_values] == [10, 10]
    assert not (tmp_path / "hand").exists()


@pytest.mark.full
def test_a_step_does_not_change_its_arguments(tmp_path):
    learner = build_line(quiet(tmp_path / "run"), optimizer=optax.adam)
    state, batch = learner.init(), batches()[0]
    before, rows = bits(state), bits(batch)
    learner.train_step(state, batch)
    learner.valid_step(state, batch)
    assert bits(state) == before
    assert bits(batch) == rows


@pytest.mark.full
def test_each_shape_is_compiled_once(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    state = learner.init()
    state, _ = learner.train_step(state, batches()[0])
    state, _ = learner.train_step(state, batches()[1])
    with CompileTimes() as times:
        for batch in batches()[2:]:
            state, _ = learner.train_step(state, batch)
    assert times.count == 0
    assert int(state.step) == 6


@pytest.mark.full
def test_a_short_first_batch_uses_the_program_of_short_batches(tmp_path):
    """With the regular batch as an argument, the step compiles the program for steps that end with a short batch."""
    learner, (full, *_) = build_line(quiet(tmp_path / "run").grads_accumulation(2)), batches()
    state, short = learner.init(), {name: x[:2] for name, x in full.items()}
    learner.train_step(state, full)
    runner = SingleStepRunner(learner.definition.step, "cpu", full)
    runner.train(state, (short,))
    with CompileTimes() as times:
        runner.train(state, (full, short))
    assert times.count == 0


@pytest.mark.full
def test_a_step_inside_a_transformation_is_differentiable(tmp_path):
    """The loss after a step is differentiated by the rate; a loop with a traced count could not be."""
    learner = build_line(quiet(tmp_path / "run"))
    one, two = batches()[:2]

    def after(lr):
        state, _ = learner.train_step(dataclasses.replace(learner.init(), lr_scale=lr), one)
        return learner.valid_step(state, two)["Loss"]

    slope = jax.grad(after)(jnp.float32(0.05))
    difference = (after(jnp.float32(0.0501)) - after(jnp.float32(0.0499))) / 0.0002
    assert float(slope) == pytest.approx(float(difference), rel=0.05)


def test_malformed_batches_raise_the_errors_of_fit(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    with raises_code("batch-missing-key", name="train_step", key="t"):
        learner.train_step(learner.init(), {"x": np.ones((4, 3), np.float32)})
    with raises_code("step-batch-count", "2"):
        learner.train_step(learner.init(), *batches()[:2])


@pytest.mark.full
def test_a_custom_update_equals_fit(tmp_path):
    """Two steps of the custom loop are compared with two steps of `fit`."""

    def update(state, batch, lr, rng):
        grads = jax.grad(lambda w: noisy_step({**state, "w": w}, batch, rng).loss)(state["w"])
        return {**state, "w": state["w"] - lr * grads}, noisy_step(state, batch, rng)

    def build(name):
        builder = quiet(tmp_path / name).num_epochs(1)
        return builder.build({"w": jnp.zeros((3, 1)), "b": jnp.zeros(1)}, None, 0.1, update=update)

    data = {name: x[: 2 * BATCH] for name, x in arrays().items()}
    result = build("fit").fit([{n: x[:BATCH] for n, x in data.items()}, {n: x[BATCH:] for n, x in data.items()}])
    learner = build("hand")
    state = learner.init()
    for rows in (slice(0, BATCH), slice(BATCH, None)):
        state, _ = learner.train_step(state, {name: x[rows] for name, x in data.items()})
    assert model_bits(learner.model_of(state)) == model_bits(result.model)
    assert float(jnp.abs(state.params["w"]).min()) > 0
