"""Tests of texts that are shown to people."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.util.text import LONGEST, aligned, by_number, count, duration, printable, short, wrapped


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.123456, "0.1235"),
        (99.996, "100"),
        (999.96, "1000"),
        (16824.3, "16824"),
        (-16824.3, "-16824"),
        (12345678.0, "1.235e+07"),
        (2.5e-8, "2.5e-08"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("4 1\n0 5", "4 1 0 5"),
        ("x" * 50, "x" * 37 + "..."),
    ],
)
def test_short_values(value, text):
    assert short(value) == text


@given(st.floats(max_value=1e300, min_value=-1e300) | st.just(float("inf")) | st.just(float("nan")))
def test_short_values_are_accurate_and_narrow(value):
    text = short(value)
    assert len(text) <= len("-1.235e-100")
    assert float(text) == pytest.approx(value, rel=6e-4, nan_ok=True)


@pytest.mark.full
@given(st.text())
def test_control_characters_are_replaced(text):
    assert printable(text).isprintable()
    assert len(printable(text)) == len(text)
    assert short(text).isprintable()
    assert len(short(text)) <= LONGEST


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.003, "3 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (2 * 86400, "2 d 00 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_counts():
    assert [count(number, "step") for number in (0, 1, 2, 12345)] == ["0 steps", "1 step", "2 steps", "12,345 steps"]


def test_columns_are_aligned():
    assert aligned([["a", "b", "c"], ["long", "1", "22"]]) == ["a     b   c", "long  1  22"]


def test_number_and_unit_stay_on_one_line():
    text = "time: 1.7 s: compiling 340.0 kB (67 %), 12 steps, the rest 25 ms (25 %)"
    for width in range(8, len(text) + 1):
        lines = wrapped(text, width)
        assert " ".join(map(str.strip, lines)) == text
        for quantity in ("1.7 s:", "340.0 kB", "(67 %),", "25 ms", "(25 %)"):
            assert any(quantity in line for line in lines)


def test_numbers_of_any_length_are_sorted_by_value():
    """Python refuses to convert more than 4300 digits to an int."""
    texts = ["run-2", "run-010", "run-11", f"run-{'9' * 5000}", f"run-1{'0' * 5000}", "run-a"]
    assert sorted(random.Random(0).sample(texts, len(texts)), key=by_number) == texts
    assert by_number("x07") == by_number("x7")
