"""Tests of the table of epochs."""

import pytest

from learner.events import MetricInfo
from learner.renderers.epoch_table import EpochTable

NAMES = ("Accuracy", "Loss", "Mean Absolute Percentage Error")
METRICS = [MetricInfo(split, name) for split in ("train", "valid") for name in NAMES]
METRICS.append(MetricInfo("valid", "Confusion", numeric=False))
VALUES = {info.key: number / 8 for number, info in enumerate(METRICS, 1)}


def test_all_columns_on_a_wide_terminal():
    table = EpochTable(METRICS, 100)
    assert [*table.titles(), table.row("12", VALUES, 75.0)] == [
        "           valid                                train",
        "epoch       Loss  Accuracy  Mean Abs…e Error     Loss  Accuracy  Mean Abs…e Error     time",
        "12         0.625       0.5              0.75     0.25     0.125             0.375  1 min 15 s",
    ]


@pytest.mark.parametrize(
    ("width", "keys"),
    [
        (1, ["valid/Loss"]),
        (30, ["valid/Loss"]),
        (40, ["valid/Loss", "train/Loss"]),
        (50, ["valid/Loss", "valid/Accuracy", "train/Loss"]),
        (60, ["valid/Loss", "valid/Accuracy", "train/Loss"]),
        (100, [f"{split}/{name}" for split in ("valid", "train") for name in ("Loss", "Accuracy", NAMES[2])]),
    ],
)
def test_narrow_tables_keep_the_losses(width, keys):
    table = EpochTable(METRICS, width)
    row = table.row("1", VALUES, 1.0)
    assert row.split() == ["1", *(f"{VALUES[key]:.4g}" for key in keys), "1.0", "s"]
    assert max(map(len, [*table.titles(), row])) <= max(width, 27)
    assert table.hidden == 6 - len(keys)


def test_monitor_is_the_first_column_with_marks_at_its_best_values():
    table = EpochTable(METRICS, 50, "train/Accuracy")
    assert [*table.titles(), table.row("1", VALUES, 1.0, "train/Accuracy"), table.row("2", VALUES, 1.0)] == [
        "            train    valid    train",
        "epoch    Accuracy     Loss     Loss     time",
        "1           0.125*   0.625     0.25    1.0 s",
        "2           0.125    0.625     0.25    1.0 s",
    ]


def test_missing_values_are_blank():
    table = EpochTable(METRICS, 60)
    row = table.row("@480", {"valid/Loss": 0.5}, 0.2)
    assert row.split() == ["@480", "0.5", "0.2", "s"]
    assert row.index("0.5") == table.titles()[1].index("Loss") + 1


def test_table_without_metrics_has_epochs_and_times():
    assert EpochTable([], 80).row("1", {"train/Loss": 1.0}, 1.0).split() == ["1", "1.0", "s"]


def test_control_characters_in_names_are_replaced():
    titles = EpochTable([MetricInfo("va\rlid", "\x1b[31m")], 80).titles()
    assert all(line.isprintable() for line in titles)
