"""Tests of schedules in runs, which give them their length."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerError
from learner.events import Message
from learner.loggers import MemoryLogger
from learner.metrics import LearningRate
from learner.schedules import (
    Cosine,
    CosineRestarts,
    Exponential,
    Linear,
    MultiStep,
    Product,
    Sequence,
    Step,
    Sum,
    WarmupCosine,
)
from learner.schedules.base import Resolved, RunLength, function_in
from learner.schedules.resolve import not_reached
from tests.support.codes import raises_code
from tests.support.runs import STEPS, batches, build_line, logs_of, progress_of, quiet, tamper, valid_data
from tests.support.stopped import all_of, same, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")


def line_down(n):
    """Return the rates of a line from 0.1 to 0 in n steps."""
    return [0.1 * (1 - step / n) for step in range(n)]


def rates_of(builder, lr, train=None):
    """Return the logged rate of every step of a run, and the logger."""
    memory = MemoryLogger()
    build_line(builder.metric_train(LearningRate()).metric_loggers(memory), lr).fit(
        batches() if train is None else train
    )
    return memory.steps["train/Learning Rate"], memory


def log_of(directory):
    return (directory / "experiment.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    ("set_length", "train", "lr", "expected"),
    [
        pytest.param(lambda b: b.num_epochs(2), None, Linear(0.1), line_down(12), marks=pytest.mark.full),
        (lambda b: b.num_epochs(2).grads_accumulation(4), None, Linear(0.1), line_down(4)),
        pytest.param(lambda b: b.num_steps(8), None, Linear(0.1), line_down(8), marks=pytest.mark.full),
        pytest.param(lambda b: b.num_epochs(1).num_steps(8), None, Linear(0.1), line_down(6), marks=pytest.mark.full),
        (lambda b: b.num_steps(5), lambda: iter(batches()), Linear(0.1), line_down(5)),
        pytest.param(
            lambda b: b.num_epochs(2).grads_accumulation(2),
            None,
            Step(0.1, 0.5, 1, "epochs"),
            [0.1, 0.1, 0.1, 0.05, 0.05, 0.05],
            marks=pytest.mark.full,
        ),
        pytest.param(
            lambda b: b.num_epochs(1),
            None,
            Sequence([Linear(0.0, 0.1), Linear(0.1)], [0.5], "fraction"),
            [0, 0.1 / 3, 0.2 / 3, 0.1, 0.2 / 3, 0.1 / 3],
            marks=pytest.mark.full,
        ),
    ],
    ids=["epochs", "accumulation", "steps", "both", "an iterator", "by epoch", "by fraction"],
)
def test_the_rates_of_a_run(tmp_path, set_length, train, lr, expected):
    data = train() if train else None
    actual, _ = rates_of(set_length(quiet(tmp_path / "run")), lr, data)
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        (Cosine(0.1), r"the learning rate: Cosine\(first=0.1\): over is left out, .* Set num_steps\(n\)"),
        (Step(0.1, 0.5, 1, "epochs"), "every is 1 epochs, and it is not known how many steps an epoch has"),
        (MultiStep(0.1, [0.5], unit="fraction"), r"milestones\[0\] is 0.5 of the run, and the run's length"),
    ],
)
def test_a_run_whose_length_is_not_known(tmp_path, lr, message):
    with pytest.raises(LearnerError, match=message):
        build_line(quiet(tmp_path / "run"), lr).fit(iter(batches()))
    assert not (tmp_path / "run").exists()


def test_unknown_length_is_reported_with_other_problems(tmp_path):
    learner = build_line(quiet(tmp_path / "run").with_file_checkpointer(monitor="valid/Los"), Cosine(0.1))
    with pytest.raises(LearnerError, match=r"2 problems:\n.*over is left out.*\n.*valid/Los") as error:
        learner.fit(iter(batches()), valid_data())
    assert "learning rate" in str(error.value)


def test_negative_first_rate(tmp_path):
    learner = build_line(quiet(tmp_path / "run"), Sequence([lambda step: -0.1, Linear(0.1)], [3]))
    with pytest.raises(LearnerError, match=r"starts with -0\.1"):
        learner.fit(batches())


def test_evaluating_needs_no_length(tmp_path):
    expected = build_line(quiet(tmp_path / "run"), 0.1).evaluate(valid_data())
    assert build_line(quiet(tmp_path / "run"), Cosine(0.1)).evaluate(valid_data()) == expected


@pytest.mark.full
def test_train_step_takes_the_length_from_the_training_data(tmp_path):
    """In a run of 6 steps, the second has 5/6 of the rate. Without data, the length is an error."""
    by_number = build_line(quiet(tmp_path / "run"), 0.1)
    state = dataclasses.replace(by_number.init(), step=jnp.int32(1))
    expected, _ = jax.jit(by_number.train_step)(dataclasses.replace(state, lr_scale=0.1 * 5 / 6), batches()[1])
    learner = build_line(quiet(tmp_path / "run"), Linear(0.1), train=batches())
    actual, _ = jax.jit(learner.train_step)(dataclasses.replace(state, lr_scale=1.0), batches()[1])
    for name in ("w", "b"):
        np.testing.assert_allclose(actual.params[name], expected.params[name], rtol=1e-6)
    without = build_line(quiet(tmp_path / "run"), Linear(0.1))
    for use in (without.init, lambda: without.train_step(state, batches()[0])):
        with raises_code("schedule-length-needed"):
            use()
    assert float(build_line(quiet(tmp_path / "run").num_steps(3), Linear(0.1)).init().lr_scale) == 1.0


@pytest.mark.full
def test_fit_after_init_uses_the_length_of_its_run(tmp_path):
    memory = MemoryLogger()
    builder = quiet(tmp_path / "run").metric_train(LearningRate()).metric_loggers(memory)
    learner = build_line(builder, Linear(0.1), train=batches())
    learner.init()
    learner.fit(batches(2))  # 12 batches
    np.testing.assert_allclose(memory.steps["train/Learning Rate"], line_down(12), rtol=1e-6)


# -- resuming ----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_resuming_with_the_same_length_is_exact(tmp_path):
    warmed_up = Sequence([Linear(0.0, 0.1), Cosine(0.1)], [0.25], "fraction")

    def train(directory, stop=None):
        builder = quiet(directory, saves=True).num_epochs(2).metric_train(LearningRate())
        builder = builder.resume() if stop is None else stopping_at(builder, stop)
        return build_line(builder, warmed_up, optax.adam).fit(batches(), valid_data())

    expected = all_of(tmp_path / "whole", train(tmp_path / "whole"))
    assert train(tmp_path / "cut", stop=STEPS + 2).stopped_by == "interrupter: for the night"
    same(all_of(tmp_path / "cut", train(tmp_path / "cut")), expected)
    assert "WARNING" not in log_of(tmp_path / "cut")


@pytest.mark.full
def test_resuming_a_longer_run_uses_the_new_length(tmp_path):
    def train(epochs):
        builder = quiet(tmp_path / "run", saves=True).num_epochs(epochs).metric_train(LearningRate()).resume()
        return build_line(builder, Linear(0.1)).fit(batches())

    train(1)
    train(2)
    logs = logs_of(tmp_path / "run")
    actual = [
        float(line.split(",")[0])
        for epoch in (1, 2)
        for line in logs[f"train/epoch-{epoch}/Learning_Rate.log"].splitlines()[:-1]
    ]
    np.testing.assert_allclose(actual, [*line_down(6), *line_down(12)[6:]], rtol=1e-6)
    message = "the schedule: Linear(first=0.1) in 6 steps -> Linear(first=0.1) in 12 steps"
    assert message in log_of(tmp_path / "run")


@pytest.mark.full
def test_resuming_from_a_checkpoint_without_a_schedule(tmp_path):
    def train(epochs):
        build_line(quiet(tmp_path / "run", saves=True).num_epochs(epochs).resume(), Linear(0.1)).fit(batches())

    train(1)
    progress = progress_of(tmp_path / "run", 6)
    assert progress["fingerprint"]["settings"].pop("schedules") == {"the schedule": "Linear(first=0.1) in 6 steps"}
    tamper(tmp_path / "run", 6, progress)
    train(2)
    assert "the schedule:" not in log_of(tmp_path / "run")


# -- shorter than the run ----------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "lr", [pytest.param(Cosine(0.1, over=4), marks=pytest.mark.full), optax.cosine_decay_schedule(0.1, 4)]
)
def test_schedule_that_ends_at_0_is_announced(tmp_path, lr):
    _, memory = rates_of(quiet(tmp_path / "run"), lr)
    (message,) = [event.text for event in memory.of(Message)]
    assert message.endswith("ends after 4 of 6 steps; from there on the rate stays 0, so nothing is learned")
    assert message in log_of(tmp_path / "run")


@pytest.mark.full
def test_early_end_at_a_positive_rate_is_only_logged(tmp_path):
    _, memory = rates_of(quiet(tmp_path / "run"), Linear(0.0, 0.1, over=4))
    assert memory.of(Message) == []
    message = (
        "the schedule Linear(first=0.0, last=0.1, over=4) ends after 4 of 6 steps; from there on the rate stays 0.1"
    )
    assert f"INFO  {message}\n" in log_of(tmp_path / "run")


@pytest.mark.full
def test_schedule_as_long_as_the_run_is_not_announced(tmp_path):
    _, memory = rates_of(quiet(tmp_path / "run"), Cosine(0.1, over=6))
    assert memory.of(Message) == []
    assert "ends after" not in log_of(tmp_path / "run")


@pytest.mark.full
def test_model_equals_one_trained_with_optax(tmp_path):
    actual = build_line(quiet(tmp_path / "actual").num_epochs(2), Cosine(0.1)).fit(batches())
    expected = build_line(quiet(tmp_path / "expected").num_epochs(2), optax.cosine_decay_schedule(0.1, 12)).fit(
        batches()
    )
    for name in ("w", "b"):
        np.testing.assert_allclose(actual.model[name], expected.model[name], rtol=1e-6)


def rates_in(schedule, run, steps):
    rate = function_in(schedule, run)
    return [round(float(rate(step)), 4) for step in steps]


def test_schedules_in_a_run_whose_first_epoch_was_longer():
    """It had 30 steps, and later ones have 10."""
    run = RunLength(80, 10, changes=((1, 30),))
    stairs = Step(1.0, 0.5, every=1, unit="epochs")
    assert rates_in(stairs, run, (5, 29, 30)) == [1.0, 1.0, 0.5]
    assert rates_in(Step(1.0, 0.5, every=10), run, (9, 30)) == [1.0, 0.125]
    assert rates_in(Sequence([stairs, stairs], [40]), run, (29, 30, 49, 50)) == [1.0, 0.5, 1.0, 0.5]
    assert rates_in(Sequence([stairs, 0.1], [4], unit="epochs"), run, (29, 30)) == [1.0, 0.5]
    assert Resolved(Linear(0.0, last=1.0, over=2, unit="epochs"), run).ends == 40
    assert Resolved(Linear(0.0, last=1.0, unit="epochs"), run).ends == 80
    assert len(Resolved(MultiStep(1.0, [6], unit="epochs"), run).not_reached) == 1


def test_units_may_be_mixed_where_epochs_change():
    """Four epochs of 10 steps, then ones of 5: where a part has begun does not move, and nothing jumps."""
    run = RunLength(60, 5, changes=((4, 40),))
    stairs = Step(0.8, 0.5, every=1, unit="epochs")
    warmed_up = Sequence([Linear(0.0, 0.8, over=5), stairs], [5])
    # Step 40 is 3.5 epochs behind step 5: the fourth halving comes after half of an epoch more.
    for schedule in (warmed_up, Product([warmed_up, 1.0]), Sequence([warmed_up, 0.1], [50])):
        assert rates_in(schedule, run, (5, 39, 40, 42, 43, 47, 48)) == [0.8, 0.1, 0.1, 0.1, 0.05, 0.05, 0.025]
    slow = Sequence([Linear(0.0, 0.6, over=60), 0.9], [6], unit="epochs")
    assert rates_in(slow, run, (40, 49, 50)) == [0.4, 0.49, 0.9]
    decayed = Sequence([0.8, Exponential(0.8, 0.5, every=10)], [1], unit="epochs")
    assert rates_in(decayed, run, (9, 10, 40, 50)) == [0.8, 0.8, 0.1, 0.05]
    assert Linear(0.0, 0.1, over=8, unit="epochs").steps(run) == 60


def test_ends_of_parts_in_epochs_where_epochs_change():
    """A part without a length lasts to the end of the run, step 60, in epochs of either length."""
    run = RunLength(60, 5, changes=((2, 20), (4, 30)))
    falling = Linear(0.8, 0.0, unit="epochs")
    assert Resolved(Sequence([0.8, falling], [10]), run).ends == 60
    # From step 30 on, a third of its nine epochs has passed: epochs 1 to 2 of 10 steps, and 2 to 4 of 5.
    assert rates_in(Sequence([0.8, falling], [10]), run, (10, 30, 45, 60)) == [0.8, 0.5333, 0.2667, 0.0]


def test_short_runs():
    assert Linear(0.0, last=1.0, over=0.01, unit="fraction").resolved(num_steps=10).ends == 1
    assert Linear(0.0, last=1.0, over=1.0, unit="fraction").resolved(num_steps=10).ends == 10
    assert float(WarmupCosine(0.4, warmup=0.1, unit="fraction").resolved(num_steps=1)(0)) == pytest.approx(0.4)
    assert float(WarmupCosine(0.4, warmup=0, over=10, last=0.1)(10)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("cycles", "growth", "rates"),
    [(4, 1.0, [0.4, 0.4, 0.4, 0.4, 0.0]), (3, 100.0, [0.4, 0.4, 0.4, 0.2, 0.0]), (3, 0.01, [0.4, 0.2, 0.4, 0.4, 0.0])],
)
def test_each_cycle_has_a_step(cycles, growth, rates):
    wave = CosineRestarts(0.4, cycles=cycles, over=4, growth=growth)
    assert [round(float(wave(step)), 4) for step in range(5)] == rates


def test_ends_of_combined_schedules():
    run = RunLength(100)
    assert Sum([Linear(1.0, over=10), lambda step: step]).steps(run) is None
    assert Sequence([0.1, Cosine(0.1)], [40]).steps(run) == 100
    assert len(not_reached(MultiStep(0.1, [50, 100]), 100)) == 1
