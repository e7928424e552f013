"""Tests of schedules of groups, which are resolved with the run's length."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerError, RegressionOutput, load_checkpoint
from learner.events import Message
from learner.loggers import MemoryLogger
from learner.optimizers import Clipped, Ema, Group, Groups
from learner.optimizers.schedule_resolution import resolve_schedules, schedules_of, with_placeholder_schedules
from learner.schedules import Cosine, Linear, ReduceOnPlateau, RunLength, Step, WarmupStableDecay
from tests.support.codes import raises_code
from tests.support.runs import STEPS, batches, build_line, line, quiet, valid_data
from tests.support.stopped import all_of, same, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")

DOWN = Linear(0.1)


def grouped(lr, rest=optax.sgd, match="^b"):
    return Groups(rest, [Group(match, lr=lr, optimizer=optax.sgd)])


def constant_slope(model, batch):
    """Return a loss with gradients of 1, so that parameters are the negative sums of their rates."""
    predictions = batch["x"] @ model["w"] * 0 + model["b"][None]
    output = RegressionOutput.from_predictions(predictions, batch["t"])
    return dataclasses.replace(output, loss=model["w"].sum() + model["b"].sum())


def sums_of(builder, optimizer, lr=0.5, data=None):
    """Return the decrease of `w[0]` and `b` in a run."""
    learner = builder.build(line(), optimizer, lr, train_step=constant_slope)
    model = learner.fit(batches() if data is None else data).model
    return float(-model["w"][0, 0]), float(-model["b"][0])


@pytest.mark.full
@pytest.mark.parametrize(
    ("set_length", "lr", "expected"),
    [
        pytest.param(
            lambda b: b.num_epochs(2), DOWN, sum(0.1 * (1 - step / 12) for step in range(12)), marks=pytest.mark.full
        ),
        pytest.param(lambda b: b.num_steps(4), DOWN, 0.1 + 0.075 + 0.05 + 0.025, marks=pytest.mark.full),
        pytest.param(
            lambda b: b.num_epochs(2), Step(0.1, 0.5, 1, "epochs"), 6 * 0.1 + 6 * 0.05, marks=pytest.mark.full
        ),
        (lambda b: b.num_epochs(2).grads_accumulation(4), Step(0.1, 0.5, 0.5, "fraction"), 2 * 0.1 + 2 * 0.05),
    ],
    ids=["to the end", "steps", "epochs", "a fraction"],
)
def test_a_group_counts_with_the_length_of_the_run(tmp_path, set_length, lr, expected):
    w, b = sums_of(set_length(quiet(tmp_path / "run")), Ema(Clipped(grouped(lr), norm=100.0), decay=0.0, warmup=False))
    assert b == pytest.approx(expected, rel=1e-5)
    steps = {12: 12, 4: 4}.get(round(w / 0.5))
    assert steps is not None  # the other parameters have the run's rate


@pytest.mark.full
def test_skipped_step_counts_for_the_schedule(tmp_path):
    """As for the run's schedule: the fourth step of six has half of the rate, whatever happened to the others."""
    data = batches()
    data[1] = {**data[1], "x": np.full_like(data[1]["x"], np.nan)}

    def step(model, batch):
        output = constant_slope(model, batch)
        return dataclasses.replace(output, loss=output.loss + 0 * batch["x"].sum())

    builder = quiet(tmp_path / "run").on_nonfinite("skip")
    learner = builder.build(line(), grouped(DOWN), 0.5, train_step=step)
    lost = 0.1 * (1 - 1 / 6)
    assert float(-learner.fit(data).model["b"][0]) == pytest.approx(sum(0.1 * (1 - i / 6) for i in range(6)) - lost)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_all_problems_are_reported_together(tmp_path):
    groups = [Group("^b", lr=Cosine(0.1)), Group("^w", lr=Step(0.1, 0.5, 1, "epochs"))]
    learner = build_line(quiet(tmp_path / "run"), Linear(0.1), Groups(optax.sgd, groups))
    with pytest.raises(LearnerError, match="3 problems") as error:
        learner.fit(iter(batches()))
    assert "the learning rate: Linear(first=0.1): over is left out" in str(error.value)
    assert "group 0 of the optimizer: Cosine(first=0.1): over is left out" in str(error.value)
    assert "group 1 of the optimizer: Step(" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_schedule_longer_than_the_run(tmp_path):
    learner = build_line(quiet(tmp_path / "run"), optimizer=grouped(WarmupStableDecay(0.1, 5, 4)))
    with pytest.raises(LearnerError, match=r"group 0 of the optimizer: Warm.*: a warm-up of 5 steps and a decay of 4"):
        learner.fit(batches())


def test_plateau_in_a_group_is_rejected():
    with raises_code("optimizer-group-plateau"):
        Group("^b", lr=ReduceOnPlateau(0.1))


def test_schedule_inside_a_custom_function_is_unresolved(tmp_path):
    with pytest.raises(LearnerError, match=r"is Linear\(first=0\.1\), which depends on .* pass the Groups itself"):
        build_line(quiet(tmp_path / "run"), optimizer=lambda lr: grouped(DOWN)(lr))


@pytest.mark.full
def test_custom_loops_get_the_length_from_the_training_data(tmp_path):
    without = build_line(quiet(tmp_path / "run"), optimizer=grouped(DOWN))
    with raises_code("schedule-length-needed", "0", "first=0.1"):
        without.init()
    learner = quiet(tmp_path / "run").build(line(), grouped(DOWN), 0.5, train=batches(), train_step=constant_slope)
    state = learner.init()
    for batch in batches()[:2]:
        state, _ = learner.train_step(state, batch)
    assert float(-state.params["b"][0]) == pytest.approx(0.1 + 0.1 * 5 / 6)


@pytest.mark.full
def test_evaluating_needs_no_length(tmp_path):
    expected = build_line(quiet(tmp_path / "run"), 0.1).evaluate(valid_data())
    assert build_line(quiet(tmp_path / "run"), optimizer=grouped(DOWN)).evaluate(valid_data()) == expected


@pytest.mark.full
def test_range_test_has_its_own_length(tmp_path):
    """In it, groups are trained at their own rates."""
    learner = build_line(quiet(tmp_path / "run"), optimizer=grouped(DOWN, match="^w"))
    losses = learner.find_lr([batches()[0]] * 4, lowest=1e-9, highest=1e-8, steps=4).losses
    assert len(losses) == 4
    assert losses[-1] < 0.9 * losses[0]
    assert schedules_of(learner.definition.optimizer.optimizer) == {"group 0": DOWN}


# -- going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_resuming_with_equal_length_is_exact(tmp_path):
    optimizer = Groups(optax.adam, [Group("^b", lr=Cosine(0.1)), Group("^w", lr=Step(0.1, 0.5, 0.25, "fraction"))])

    def train(directory, stop=None):
        builder = quiet(directory, saves=True).num_epochs(2)
        builder = builder.resume() if stop is None else stopping_at(builder, stop)
        return build_line(builder, 0.05, optimizer).fit(batches(), valid_data())

    expected = all_of(tmp_path / "whole", train(tmp_path / "whole"))
    assert train(tmp_path / "cut", stop=STEPS + 2).stopped_by == "interrupter: for the night"
    same(all_of(tmp_path / "cut", train(tmp_path / "cut")), expected)
    assert "WARNING" not in (tmp_path / "cut" / "experiment.log").read_text()


@pytest.mark.full
def test_extended_run_has_the_schedule_of_its_new_length(tmp_path):
    def train(epochs):
        builder = quiet(tmp_path / "run", saves=True).num_epochs(epochs).resume()
        return sums_of(builder, grouped(DOWN))[1]

    train(1)
    rates = [0.1 * (1 - step / 6) for step in range(6)] + [0.1 * (1 - step / 12) for step in range(6, 12)]
    assert train(2) == pytest.approx(sum(rates), rel=1e-5)
    change = "the schedule of group 0 of the optimizer: Linear(first=0.1) in 6 steps -> Linear(first=0.1) in 12"
    assert change in (tmp_path / "run" / "experiment.log").read_text()
    state = load_checkpoint(tmp_path / "run", "latest", line(), optimizer=grouped(DOWN)).optimizer_state
    assert state is not None


@pytest.mark.full
def test_group_with_zero_rate_at_the_end_warns(tmp_path):
    memory = MemoryLogger()
    build_line(quiet(tmp_path / "run").metric_loggers(memory), optimizer=grouped(Cosine(0.1, over=4))).fit(batches())
    (text,) = [event.text for event in memory.of(Message)]
    assert text == (
        "group 0 of the optimizer: the schedule Cosine(first=0.1, over=4) ends after 4 of 6 steps; from there on the "
        "rate stays 0, so nothing is learned there"
    )


# -- alone -------------------------------------------------------------------------------------------------------------


def test_nested_groups_are_resolved():
    inner = grouped(DOWN)
    outer = Groups(Ema(inner), [Group("^w", lr=Linear(0.2), optimizer=Clipped(inner, norm=1.0))])
    assert schedules_of(outer) == {"group 0": Linear(0.2), "group 0, group 0": DOWN, "the rest, group 0": DOWN}
    resolved, wrong = resolve_schedules(outer, RunLength(10))
    assert wrong == []
    assert repr(resolved.optimizer.optimizer.groups[0].lr) == "Linear(first=0.1) in 10 steps"
    assert repr(resolved.groups[0].lr) == "Linear(first=0.2) in 10 steps"
    assert repr(resolved.groups[0].optimizer.optimizer.groups[0].lr) == "Linear(first=0.1) in 10 steps"


def test_schedules_without_run_length_are_unchanged():
    optimizer = grouped(Cosine(0.1, over=5))
    assert with_placeholder_schedules(optimizer) == optimizer
    assert with_placeholder_schedules(optax.sgd) is optax.sgd
    assert resolve_schedules(optax.sgd, RunLength(5)) == (optax.sgd, [])
    assert float(with_placeholder_schedules(grouped(DOWN)).groups[0].lr(jnp.int32(0))) == 0.0
