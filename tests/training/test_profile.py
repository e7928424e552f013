"""Tests of the profile of a range of steps: shares of the step time, bottleneck and text."""

import dataclasses

import pytest

from learner.training.profile import Profile, split_of
from learner.training.trace import Operations


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Of 10 s, the device computed 9 s; the host used the rest.
        ((10, 9, 0, 0, 1, 1), (9, 0, 0, 1)),
        # The loop waited 6 s for batches, and the device computed 3 s.
        ((10, 3, 6, 0, 1, 1), (3, 6, 0, 1)),
        # The loop was blocked for 8 s; listeners were busy for 6 of the reporter's 8 s.
        ((10, 2, 0, 8, 6, 2), (2, 0, 6, 2)),
        # Without the device's time, the time spent waiting for the device counts.
        ((10, None, 1, 8, 2, 6), (6, 1, 2, 1)),
        # No part exceeds the remaining time: the clocks of the trace and of Python differ slightly.
        ((10, 11, 5, 5, 1, 1), (10, 0, 0, 0)),
        ((10, 8, 5, 5, 1, 1), (8, 2, 0, 0)),
    ],
)
def test_idle_time_counts_for_the_part_that_was_waited_for(given, expected):
    parts = split_of(*given)
    assert tuple(parts[name] for name in ("device", "data", "listeners", "host")) == pytest.approx(expected)


def test_the_largest_part_is_the_bottleneck():
    for number, name in enumerate(("device", "data", "listeners", "host")):
        times = [0.1] * 4
        times[number] = 0.7
        profile = Profile(0, 10, 1, 1.0, *times)
        assert profile.bottleneck == name
        assert f"\n{name}: " in str(profile)
        assert profile.to_json()["bottleneck"] == name


def test_the_text_shows_times_per_step():
    text = str(Profile(100, 200, 4, 2.0, 1.5, 0.1, 0.1, 0.3, compiling=3.0))
    assert text.startswith("steps 101 to 200: 20 ms each, 100 in 4 dispatches\n  device computes        15 ms  75 %\n")
    assert "waits for data          1 ms   5 %" in text
    assert "compiling besides: 3.0 s in all" in text


def test_a_notebook_shows_the_text():
    profile = Profile(100, 200, 4, 2.0, 1.5, 0.1, 0.1, 0.3)
    assert str(profile) in profile._repr_html_()


def test_a_device_bottleneck_distinguishes_communication():
    operations = Operations("all-reduce", 0.3, 8), Operations("psum_invariant", 0.1, 8), Operations("dot", 0.4, 8)
    profile = Profile(0, 10, 1, 1.0, 0.9, 0.0, 0.0, 0.1, operations=operations)
    assert profile.exchanging == pytest.approx(0.5)
    assert "device: the devices exchange arrays in 50 % of their time" in str(profile)
    assert "device: computing is the largest part" in str(dataclasses.replace(profile, operations=operations[2:]))
