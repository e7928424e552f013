"""Loggers with one method."""

import pytest

from learner.loggers import MetricLogger


class Splits(MetricLogger):
    def __init__(self):
        self.calls = []

    def log(self, split, name, value, epoch, step):
        self.calls.append((split, name, value, epoch, step))


class Steps(Splits):
    def log_step(self, split, name, value, epoch, step):
        self.calls.append((split, name, value, epoch, step))


def test_log_gets_the_values_of_splits_only(events):
    logger = Splits()
    for event in events:
        logger.on_event(event)
    assert logger.calls == [
        ("train", "Loss", 2.0, 1, 3),
        ("valid", "Loss", 1.0, 1, 3),
        ("valid", "Confusion", "1 0", 1, 3),
    ]


def test_log_step_gets_each_step_with_its_number(events):
    logger = Steps()
    for event in events:
        logger.on_event(event)
    assert [call for call in logger.calls if call[:2] == ("train", "Loss")] == [
        ("train", "Loss", 4.0, 1, 1),
        ("train", "Loss", 2.0, 1, 2),
        ("train", "Loss", 0.0, 1, 3),
        ("train", "Loss", 2.0, 1, 3),  # the split
    ]
    assert ("valid", "Loss", 1.0, 1, 1) in logger.calls
    assert all(type(call[2]) in (float, str) for call in logger.calls)


def test_steps_cost_nothing_where_nobody_wants_them(events):
    class Untouchable:
        def items(self):
            pytest.fail("the values were read")

    steps = next(event for event in events if type(event).__name__ == "StepsEnded")
    object.__setattr__(steps, "values", Untouchable())
    Splits().on_event(steps)
