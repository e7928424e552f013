"""Tests of MemoryLogger."""

from learner.events import EpochStarted, SplitEnded, StepsEnded
from learner.loggers import MemoryLogger
from learner.runs.history import Point


def test_events_and_values(events):
    memory = MemoryLogger()
    for event in events:
        memory.on_event(event)
    assert memory.events == events
    assert memory.steps == {"train/Loss": [4.0, 2.0, 0.0], "valid/Loss": [1.0]}
    assert dict(memory.history) == {"train/Loss": [2.0], "valid/Loss": [1.0], "valid/Confusion": ["1 0"]}
    assert memory.history.points("valid/Loss") == [Point(1, 3, 1.0)]


def test_events_of_a_kind(events):
    memory = MemoryLogger()
    for event in events:
        memory.on_event(event)
    assert [event.split for event in memory.of(SplitEnded)] == ["train", "valid"]
    assert len(memory.of(StepsEnded)) == 3
    assert memory.of(EpochStarted) == [EpochStarted(0.0, 1, 3)]


def test_events_remain_after_closing(events):
    memory = MemoryLogger()
    memory.on_event(events[0])
    assert not memory.closed
    memory.close()
    assert memory.closed
    assert memory.events == events[:1]
