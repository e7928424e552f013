"""Tests of the newest and best values of metrics, and of their curves."""

import math
import statistics

import pytest

from learner.events import MetricInfo
from learner.renderers.trends import ASCII, BLOCKS, Trend, Trends, important, sparkline
from learner.runs.history import Point


@pytest.mark.parametrize("count", [1, 8, 64, 65, 1000])
def test_long_curve_is_averaged(count):
    trend = Trend(MetricInfo("valid", "X"))
    for x in range(1, count + 1):
        trend.add(1, x, float(x))
    points = trend.points()
    assert 32 <= len(points) <= 64 or len(points) == count
    assert [x for x, _ in points] == sorted({x for x, _ in points})
    assert points[-1][0] == count
    size = points[0][0]  # the number of values in the first point
    parts = [range(begin, min(begin + size, count + 1)) for begin in range(1, count + 1, size)]
    assert points == [(part[-1], statistics.fmean(part)) for part in parts]


def test_curve_in_fewer_points():
    trend = Trend(MetricInfo("valid", "X"))
    assert trend.points(3) == []
    for x in range(1, 8):
        trend.add(1, x, float(x))
    assert trend.points(7) == trend.points()
    assert trend.points(3) == [(3, 2.0), (6, 5.0), (7, 7.0)]


def test_best_value_is_the_earliest_number():
    for higher, best in ((False, Point(2, 20, 0.25)), (True, Point(4, 40, 2.0)), (None, None)):
        trend = Trend(MetricInfo("valid", "X", higher_is_better=higher))
        for epoch, value in enumerate([math.nan, 0.25, 0.25, 2.0, 2.0], 1):
            trend.add(epoch, 10 * epoch, value)
        assert (trend.best, trend.now) == (best, 2.0)


def test_steps_are_replaced_by_epochs(play):
    trends = Trends()
    play.start(trends)
    train = trends.newest()[0]
    assert (train.now, train.points()) == (None, [])
    for done, loss in ((15, 4.0), (30, 2.0)):
        play.dispatch(trends, 1, done, 15, loss=loss)
        trends.newest()
    play.dispatch(trends, 1, 3, 3, 3, "valid", loss=9.0)
    assert (train.now, train.best, train.points()) == (2.0, None, [(15, 4.0), (30, 2.0)])
    for epoch in (1, 2):
        play.epoch(trends, epoch)
    assert (train.now, train.points()) == (0.25, [(45, 0.5), (90, 0.25)])


def test_resumed_run_has_its_history(play):
    trends = Trends()
    history = {"valid/Loss": [(1, 45, 0.5), (2, 90, 0.75)], "valid/Text": [(1, 45, "1 0")], "valid/Own": [(1, 45, 3.0)]}
    play.start(trends, epoch=3, step=90, resumed=True, history=history)
    by_key = {trend.info.key: trend for trend in trends.newest()}
    assert list(by_key) == ["train/Loss", "train/Accuracy", "valid/Loss", "valid/Accuracy", "valid/Own"]
    assert (by_key["valid/Loss"].best, by_key["valid/Loss"].now) == (Point(1, 45, 0.5), 0.75)
    play.start(trends)
    assert [trend.now for trend in trends.newest()] == [None] * 4


def test_texts_have_no_trend(play):
    trends = Trends()
    metrics = [MetricInfo("valid", "Matrix", numeric=False)]
    play.start(trends, metrics=metrics)
    play.validate(trends, 1, 30, Matrix="1 0", Own=2.0)
    assert [(trend.info.key, trend.now) for trend in trends.newest()] == [("valid/Own", 2.0)]


def test_important_metrics_are_kept():
    trends = [Trend(MetricInfo(split, name)) for split in ("train", "valid") for name in ("A", "Loss", "B")]
    keys = [[trend.info.key for trend in important(trends, most, "valid/B")] for most in (0, 1, 3, 5)]
    assert keys == [
        [],
        ["valid/B"],
        ["valid/B", "valid/Loss", "train/Loss"],
        ["valid/B", "valid/Loss", "valid/A", "train/Loss", "train/A"],
    ]


@pytest.mark.parametrize("characters", [BLOCKS, ASCII])
def test_sparkline(characters):
    low, high, middle = characters[0], characters[-1], characters[4]
    assert sparkline([2.0, 1.0, 1.5], characters) == high + low + middle
    assert sparkline([1e308, -1e308, math.nan, math.inf, 0.0], characters) == f"{high}{low}  {middle}"
    assert sparkline([], characters) == ""
    assert sparkline([math.nan], characters) == " "
