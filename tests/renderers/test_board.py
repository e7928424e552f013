"""Tests of the table of metrics above a progress bar."""

from learner.events import MetricInfo
from learner.renderers.board import board
from learner.renderers.trends import ASCII, Trend


def trend(split, name, *values):
    result = Trend(MetricInfo(split, name, higher_is_better=name != "Loss"))
    for epoch, value in enumerate(values, 1):
        result.add(epoch, 10 * epoch, value)
    return result


TRENDS = [
    trend("train", "Loss", 0.5, 0.25, 0.125),
    trend("valid", "Mean Absolute Percentage Error", 1.0, 2.0, -1.5e-5),
    trend("valid", "New"),
]


def columns(width):
    titles = board(TRENDS, width, 9)[:1]
    return titles[0].split() if titles else []


def test_columns_are_omitted_in_a_fixed_order():
    """The least useful column is omitted first, and none returns at a smaller width."""
    order = [["metric", "now", "best", "epoch", "trend"], ["metric", "now", "best", "trend"], ["metric", "now", "best"]]
    order += [["metric", "now"], []]
    seen = [columns(width) for width in range(119, 0, -1)]
    assert list(map(list, dict.fromkeys(map(tuple, seen)))) == order
    assert columns(40) == ["metric", "now", "best", "trend"]
    assert columns(80) == columns(119) == order[0]


def test_validation_and_training_are_side_by_side_on_wide_terminals():
    trends = [
        *(trend("train", name, 0.5, 0.25) for name in ("Accuracy", "Loss", "Learning Rate")),
        *(trend("valid", name, 0.75) for name in ("Accuracy", "Loss")),
    ]
    assert board(trends, 120, 9, "valid/Accuracy", ASCII) == [
        "               valid                                                 train",
        "metric            now    best  epoch  trend                             now    best  epoch  trend",
        "Accuracy         0.75    0.75      1  +                                0.25     0.5      1  @.",
        "Loss             0.75    0.75      1  +                                0.25    0.25      2  @.",
        "Learning Rate                                                          0.25     0.5      1  @.",
    ]
    lines = board(trends, 120, 1, "valid/Accuracy", ASCII)
    assert [line.split()[0] for line in lines] == ["valid", "metric", "Accuracy", "and"]
    assert lines[-1].startswith("and 3 more: ")


def test_three_splits_are_not_side_by_side():
    assert board([*TRENDS, trend("test", "Loss", 1.0)], 200, 9)[0].split()[0] == "metric"


def test_no_line_is_wider_than_the_terminal():
    for width in range(1, 121):
        assert all(len(line) <= width for line in board(TRENDS, width, 2)), width


def test_table():
    assert board(TRENDS, 80, 9, characters=ASCII) == [
        "metric                             now    best  epoch  trend",
        "valid/Mean Abs…centage Error  -1.5e-05       2      2  +@.",
        "valid/New                            -       -      -",
        "train/Loss                       0.125   0.125      3  @-.",
    ]


def test_omitted_metrics_are_counted():
    assert board(TRENDS, 80, 1)[-1] == "and 2 more: --renderer.metrics=[NAME, ...] selects"
    assert board(TRENDS, 30, 2)[-1] == "and 1 more"
    assert board(TRENDS, 80, 1, "valid/New")[1].split() == ["valid/New", "-", "-", "-"]
    assert board(TRENDS, 80, 0) == board([], 80, 9) == []


def test_control_characters_in_names_are_replaced():
    lines = board([trend("va\rlid", "\x1b[31m", 1.0)], 80, 9)
    assert all(line.isprintable() for line in lines)
    assert lines[1].startswith("va?lid/?[31m")
