"""Tests of when checkpoints are saved and which are kept."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.checkpoint import CheckpointOptions, Retention
from learner.records import JsonRecorder
from learner.training.options import DEFAULT_CHECKPOINTS
from tests.support.codes import raises_code

NAN = math.nan


NUMBER, SECONDS = "checkpoint-option-number", "checkpoint-every-seconds-value"
ITEMS = "checkpoint-record-items-unknown"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"keep_last": 0}, NUMBER),
        ({"keep_last": True}, NUMBER),
        ({"keep_last": 1.5}, NUMBER),
        ({"keep_best": -1}, NUMBER),
        ({"keep_every": 0}, NUMBER),
        ({"every_epochs": 0}, NUMBER),
        ({"every_epochs": "2"}, NUMBER),
        ({"every_steps": 0}, NUMBER),
        ({"every_steps": 2.0}, NUMBER),
        ({"every_seconds": 0}, SECONDS),
        ({"every_seconds": float("nan")}, SECONDS),
        ({"every_seconds": "60"}, SECONDS),
        ({"mode": "lowest"}, "checkpoint-mode-unknown"),
        ({"record_items": ("model", "data"), "record": JsonRecorder()}, ITEMS),
        ({"record_items": ("model", "model"), "record": JsonRecorder()}, ITEMS),
        ({"record_items": (), "record": JsonRecorder()}, ITEMS),
        ({"record_items": ("model", "optim")}, "checkpoint-recorder-missing"),
    ],
)
def test_a_wrong_value_is_named(options, code):
    with raises_code(code) as error:
        CheckpointOptions(**options)
    (name, value), *_ = options.items()
    assert f"{name} of with_file_checkpointer is {value!r}" in str(error.value)


def test_due_by_epochs():
    options = CheckpointOptions(every_epochs=3)
    ends = [options.due(epoch, 5 * epoch, 0.0) for epoch in range(1, 8)]
    assert ends == [False, False, True, False, False, True, False]
    assert not options.due(None, 15, 1e9)


def test_due_by_steps_independent_of_epochs():
    options = CheckpointOptions(every_epochs=None, every_steps=4)
    assert [step for step in range(1, 13) if options.due(step // 6 if step % 6 == 0 else None, step, 1e9)] == [4, 8, 12]


def test_due_by_the_clock_independent_of_epochs():
    options = CheckpointOptions(every_epochs=None, every_seconds=60)
    for ended in (None, 1):
        assert [options.due(ended, 7, seconds) for seconds in (0.0, 59.9, 60.0, 400.0)] == [False, False, True, True]


def test_due_at_the_first_epoch_end_after_each_minute():
    options = CheckpointOptions(every_epochs=None, epoch_ends_after=60.0)
    assert [options.due(1, 5, seconds) for seconds in (0.0, 59.9, 60.0, 400.0)] == [False, False, True, True]
    assert not options.due(None, 5, 400.0)


def test_due_when_any_of_them_is():
    options = CheckpointOptions(every_epochs=1, every_steps=4, every_seconds=60)
    assert [options.due(*at) for at in ((1, 6, 0.0), (None, 8, 0.0), (None, 9, 60.0), (None, 9, 0.0))] == [
        True,
        True,
        True,
        False,
    ]


def test_epochs_that_are_kept_permanently_are_saved():
    options = CheckpointOptions(keep_every=3, every_epochs=2, every_seconds=60)
    assert [epoch for epoch in range(1, 10) if options.due(epoch, 5 * epoch, 0.0)] == [2, 3, 4, 6, 8, 9]
    assert not options.due(None, 15, 0.0)


def scores(*values):
    """Return checkpoints of steps 10, 20, ... at the ends of epochs 1, 2, ..."""
    return {10 * i: (i, value) for i, value in enumerate(values, 1)}


@pytest.mark.parametrize(
    ("keep", "checkpoints", "kept"),
    [
        pytest.param((1, 1, None, False), scores(0.5, 0.6, 0.7), {10, 30}, id="worsening"),
        pytest.param((2, 0, None, False), scores(0.5, 0.6, 0.7), {20, 30}, id="only the last"),
        pytest.param((1, 1, None, False), scores(0.7, 0.6, 0.5), {30}, id="the best is the last"),
        pytest.param((1, 1, None, True), scores(0.7, 0.9, 0.8), {20, 30}, id="higher is better"),
        pytest.param((1, 1, None, False), scores(0.9, 0.5, 0.5, 0.6), {20, 40}, id="of equals the earlier"),
        pytest.param((1, 2, None, False), scores(0.5, 0.5, 0.5, 0.6), {10, 20, 40}, id="ties for two"),
        pytest.param((1, 1, None, False), scores(NAN, 0.5, NAN, NAN), {20, 40}, id="nan is never the best"),
        pytest.param((1, 1, None, True), scores(NAN, -math.inf, NAN), {20, 30}, id="nan is worse than anything"),
        pytest.param((1, 3, None, False), scores(NAN, NAN, NAN), {30}, id="only nan"),
        pytest.param((1, 1, None, False), scores(None, 0.5, None), {20, 30}, id="without a value"),
        pytest.param((1, 0, 2, False), scores(1.0, 1.0, 1.0, 1.0, 1.0), {20, 40, 50}, id="every second epoch"),
        pytest.param((1, 1, 3, False), scores(0.1, 0.9, 0.9, 0.9, 0.9), {10, 30, 50}, id="all three"),
        pytest.param((1, 0, 2, False), {7: (None, None), 9: (None, None)}, {9}, id="inside of epochs"),
        pytest.param((5, 5, None, False), scores(0.5, 0.6), {10, 20}, id="more than there are"),
        pytest.param((1, 1, None, False), {}, set(), id="none"),
    ],
)
def test_kept(keep, checkpoints, kept):
    assert Retention(*keep).kept(checkpoints) == kept


numbers = st.one_of(st.none(), st.just(NAN), st.integers(0, 3).map(float))


@pytest.mark.full
@given(
    values=st.lists(numbers, min_size=1, max_size=12),
    last=st.integers(1, 3),
    best=st.integers(0, 3),
    every=st.one_of(st.none(), st.integers(1, 4)),
    higher=st.booleans(),
)
def test_incremental_retention_equals_choosing_among_all(values, last, best, every, higher):
    """Keeping checkpoints one by one gives the same set as choosing among all of them."""
    retention = Retention(last, best, every, higher)
    everything, on_disk = {}, {}
    for epoch, value in enumerate(values, 1):
        everything[epoch] = on_disk[epoch] = epoch, value
        kept = retention.kept(on_disk)
        on_disk = {step: entry for step, entry in on_disk.items() if step in kept}
        order = sorted(everything)
        scored = [s for s in order if everything[s][1] is not None and everything[s][1] == everything[s][1]]
        scored.sort(key=lambda s: everything[s][1], reverse=higher)
        expected = {*order[-last:], *scored[:best], *(s for s in order if every and s % every == 0)}
        assert set(on_disk) == expected


@pytest.mark.parametrize(
    ("last", "checkpoints", "at_stop", "kept"),
    [
        pytest.param(2, {6: (1, None), 12: (2, None), 14: (None, None)}, {14}, {12, 14}, id="stopped"),
        pytest.param(2, {12: (2, None), 14: (None, None), 18: (3, None)}, {14}, {12, 18}, id="went on"),
        pytest.param(2, {12: (2, None), 14: (None, None), 15: (None, None)}, {14, 15}, {12, 15}, id="stopped again"),
        pytest.param(1, {12: (2, None), 14: (None, None)}, {14}, {14}, id="one"),
        pytest.param(1, {6: (1, 0.1), 12: (2, 0.2), 14: (None, 0.05)}, {14}, {6, 14}, id="better than the best"),
        pytest.param(1, {6: (1, 0.1), 14: (None, 0.05), 18: (3, 0.3)}, {14}, {6, 18}, id="it was better than the best"),
        pytest.param(1, {6: (1, 0.1), 12: (2, 0.2), 18: (3, 0.3)}, {12}, {6, 18}, id="at the end of a shorter run"),
    ],
)
def test_a_checkpoint_of_a_stop_passes(last, checkpoints, at_stop, kept):
    assert Retention(last, 1, None, False).kept(checkpoints, at_stop) == kept


def test_a_checkpoint_of_an_end_passes():
    """It is among the best of a longer run, and not among the newest."""
    keep = Retention(2, 1, None, higher_is_better=False)
    assert keep.kept({10: (1, 0.5), 20: (2, 0.4), 30: (3, 0.9)}, at_end=[20]) == {10, 20, 30}


def test_the_default_saves_inside_of_long_epochs():
    due = DEFAULT_CHECKPOINTS.due
    assert [due(None, 5, 599.0), due(None, 5, 600.0), due(2, 5, 59.0), due(2, 5, 60.0)] == [False, True, False, True]
