"""Tests of the estimates of speed and remaining time."""

import pytest

from learner.events import Compiling
from learner.renderers.progress import Progress


@pytest.fixture
def progress(clock):
    return Progress(clock)


def test_estimates_need_two_dispatches(progress, play):
    assert (progress.speed, progress.seconds_left(), progress.label()) == (None, None, "epoch 1")
    play.start(progress)
    play.dispatch(progress, 1, 15, 15, seconds=60)  # includes compilation
    assert (progress.speed, progress.seconds_left(), progress.label()) == (None, None, "epoch 1/3")


def test_estimates_of_a_steady_run(progress, play):
    play.start(progress)
    play.dispatch(progress, 1, 15, 15, seconds=60)
    play.dispatch(progress, 1, 30, 15, seconds=3)
    assert progress.speed == pytest.approx(5)
    assert progress.seconds_left() == pytest.approx((135 - 30) / 5)


def test_speed_follows_recent_steps(progress, play):
    play.start(progress, steps_per_epoch=10_000)
    for done in range(10, 5000, 10):
        play.dispatch(progress, 1, done, 10, seconds=1)
    for done in range(5000, 7000, 10):
        play.dispatch(progress, 1, done, 10, seconds=0.1)
    assert progress.speed == pytest.approx(100, rel=0.01)


def test_remaining_time_includes_validations_and_speed_does_not(progress, play):
    play.start(progress, num_epochs=2, steps_per_epoch=45)
    play.dispatch(progress, 1, 15, 15, seconds=1)
    play.dispatch(progress, 1, 30, 15, seconds=1)
    play.dispatch(progress, 1, 45, 15, seconds=1)
    play.dispatch(progress, 1, 10, 10, 10, "valid", seconds=4)
    assert progress.speed == pytest.approx(15)
    assert progress.seconds_left() == pytest.approx(45 / 5)  # 30 steps in 6 s, with validation


def test_estimates_of_a_resumed_run(progress, play):
    play.start(progress, num_epochs=2, steps_per_epoch=45, epoch=2, step=45, resumed=True)
    play.dispatch(progress, 2, 15, 15, step=60, seconds=1)
    play.dispatch(progress, 2, 30, 15, step=75, seconds=1)
    assert progress.seconds_left() == pytest.approx(1)


def test_first_epoch_determines_the_length_of_the_others(progress, play):
    play.start(progress, num_epochs=3, steps_per_epoch=None)
    play.epoch(progress, 1, total=None, seconds=4)
    assert progress.total == 135
    assert progress.seconds_left() == pytest.approx(90 / (30 / 3))


def test_run_of_a_number_of_steps(progress, play):
    play.start(progress, num_epochs=None, num_steps=90)
    play.dispatch(progress, 1, 45, 45, seconds=1)
    play.dispatch(progress, 2, 15, 15, step=60, seconds=1)
    assert progress.seconds_left() == pytest.approx(2)
    assert progress.label() == "epoch 2"


def test_second_run_resets_the_estimates(progress, play):
    for _ in range(2):
        play.start(progress, num_epochs=1, steps_per_epoch=30)
        assert (progress.speed, progress.seconds_left()) == (None, None)
        play.dispatch(progress, 1, 15, 15, seconds=60)
        play.dispatch(progress, 1, 30, 15, seconds=1)
        assert progress.speed == pytest.approx(15)


def test_remaining_time_is_not_negative(progress, play):
    play.start(progress, num_epochs=1, steps_per_epoch=10)
    play.dispatch(progress, 1, 10, 10)
    play.dispatch(progress, 1, 20, 10)
    assert progress.seconds_left() == 0


def test_estimates_begin_once_all_programs_are_compiled(progress, play):
    play.start(progress)
    progress.on_event(Compiling(0.0, 1, 2))
    play.dispatch(progress, 1, 5, 5, seconds=60)
    progress.on_event(Compiling(0.0, 2, 2))
    play.dispatch(progress, 1, 10, 5, seconds=300)
    assert (progress.speed, progress.seconds_left()) == (None, None)
    progress.on_event(Compiling(0.0, 0, 2))
    play.dispatch(progress, 1, 15, 5, seconds=60)  # waited, too
    play.dispatch(progress, 1, 20, 5, seconds=1)
    assert progress.speed == pytest.approx(5)
    assert progress.seconds_left() == pytest.approx((135 - 20) / 5)


def test_compiled_programs_are_counted(progress, play):
    play.start(progress)
    progress.on_event(Compiling(0.0, 1, 3))
    assert progress.texts()[0] == "compiling 1 of 3"
    play.dispatch(progress, 1, 15, 15, seconds=60)
    progress.on_event(Compiling(0.0, 2, 3))
    assert progress.texts()[0] == "step 15/45, compiling 2 of 3"
    progress.on_event(Compiling(0.0, 0, 3))
    assert progress.texts()[0] == "step 15/45"
