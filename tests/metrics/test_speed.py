import numpy as np

from learner.metrics import IterationSpeed, RowsPerSecond, TokensPerSecond


def test_speed_is_steps_over_time() -> None:
    speed = IterationSpeed()
    assert [speed.update(10, 0.5), speed.update(30, 0.5), speed.update(5, 1.5)] == [20.0, 60.0, 5 / 1.5]
    assert speed.compute() == 45 / 2.5
    speed.reset()
    assert np.isnan(speed.compute())
    assert speed.update(3, 2.0) == speed.compute() == 1.5


def test_speed_of_no_time_is_unknown() -> None:
    speed = IterationSpeed()
    assert np.isnan(speed.update(10, 0.0))
    assert np.isnan(speed.compute())
    assert speed.update(10, 4.0) == 2.5
    assert speed.compute() == 5.0


def test_rows_and_tokens_are_those_of_the_steps_that_ended() -> None:
    for metric, expected in ((RowsPerSecond(), [40.0, 10.0, 28.0]), (TokensPerSecond(), [300.0, 50.0, 200.0])):
        metric.on_batches(60, 450.0)
        first = metric.update(3, 1.5)
        metric.on_batches(10, 50.0)
        assert [first, metric.update(1, 1.0), metric.compute()] == expected
        metric.reset()
        assert np.isnan(metric.compute())


def test_speeds_are_independent() -> None:
    train, valid = IterationSpeed(), IterationSpeed()
    train.update(10, 1.0)
    assert np.isnan(valid.compute())
