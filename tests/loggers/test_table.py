"""Tests of Csv; `csv` reads what it writes."""

import csv
import json
import math

import numpy as np

from learner.events import MetricInfo
from learner.loggers import Csv
from tests.support.logged import INFOS, played, split, started, steps


def rows(path):
    with path.open(newline="") as file:
        table = list(csv.reader(file, strict=True))
    assert len({len(row) for row in table}) == 1, "it is rectangular"
    return [dict(zip(table[0], row, strict=True)) for row in table[1:]]


def test_the_table(tmp_path):
    """Matrices are left out, as spreadsheets cannot show them."""
    matrix = MetricInfo("valid", "Matrix", numeric=False)
    infos = (*INFOS, MetricInfo("train", "Top-5 Accuracy"), MetricInfo("valid", "Loss"), matrix)
    event = started(tmp_path, metrics=infos)
    end = split("valid", 2, {"Loss": 0.1, "Matrix": '1,"0"\n0 1'})
    played(Csv(every_steps=1), event, steps(1, 0.5, 0.1), end)
    assert (tmp_path / "metrics.csv").read_text().splitlines()[:3] == [
        "kind,split,epoch,step,weight,Loss,Top-5 Accuracy",
        "step,train,1,1,32,0.5,1.5",
        "step,train,1,2,32,0.1,1.1",
    ]
    last = rows(tmp_path / "metrics.csv")[-1]
    assert (last["kind"], last["split"], last["weight"], last["Loss"]) == ("split", "valid", "", "0.1")
    assert "Matrix" not in last


def test_non_finite_numbers(tmp_path):
    played(Csv(every_steps=1), started(tmp_path), steps(1, float("nan"), float("inf"), float("-inf")))
    read = [float(row["Loss"]) for row in rows(tmp_path / "metrics.csv")]
    assert math.isnan(read[0])
    assert read[1:] == [math.inf, -math.inf]


def test_later_metric_gets_a_column(tmp_path):
    """The new column is empty in earlier rows; its name needs quotes in CSV."""
    late = 'norm, "squared"'
    played(
        Csv(every_steps=1),
        started(tmp_path),
        steps(1, 0.5),
        split("custom", 1, {late: 2.0}, at_step=1),
        steps(2, 0.25),
        split("custom", 2, {"other": 3.0, late: 4.0}, at_step=2),
    )
    table = rows(tmp_path / "metrics.csv")
    assert list(table[0]) == ["kind", "split", "epoch", "step", "weight", "Loss", "Top-5 Accuracy", late, "other"]
    assert [row[late] for row in table] == ["", "2.0", "", "4.0"]
    assert [row["Loss"] for row in table] == ["0.5", "", "0.25", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_resuming_truncates_the_table(tmp_path):
    """The columns keep their order; rows of repeated steps are replaced."""
    before = [steps(1, 1.0, 0.5), split("custom", 2, {"norm": 1.0}, at_step=2), steps(3, 0.25)]
    played(Csv(every_steps=1), started(tmp_path), *before)
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("step,train,1,4")
    again = split("custom", 2, {"norm": 1.0}, at_step=2)
    played(Csv(every_steps=1), started(tmp_path, 2), again, steps(3, 0.2), split("train", 3, {"Loss": 0.6}))
    table = rows(tmp_path / "metrics.csv")
    assert [(row["kind"], row["step"], row["Loss"], row["norm"]) for row in table] == [
        ("step", "1", "1.0", ""),
        ("step", "2", "0.5", ""),
        ("split", "2", "", "1.0"),
        ("step", "3", "0.2", ""),
        ("split", "3", "0.6", ""),
    ]


def test_resuming_after_a_long_text(tmp_path):
    """Former versions wrote confusion matrices; `csv` limits fields to 131 072 characters by default."""
    text = "0 1\n" * 50_000
    with (tmp_path / "metrics.csv").open("w", newline="") as file:
        before = csv.writer(file, lineterminator="\n")
        before.writerow(["kind", "split", "epoch", "step", "weight", "Loss", "Matrix"])
        before.writerow(["step", "train", 1, 1, 32, "1.0", ""])
        before.writerow(["split", "valid", 1, 1, "", "", json.dumps(text)])
        before.writerow(["step", "train", 1, 2, 32, "0.5", ""])
    played(Csv(every_steps=1), started(tmp_path, 1, {"valid/Matrix": [(1, 1, text)]}), steps(2, 0.25))
    table = rows(tmp_path / "metrics.csv")
    assert [(row["kind"], row["step"], row["Loss"]) for row in table] == [
        ("step", "1", "1.0"),
        ("split", "1", ""),
        ("step", "2", "0.25"),
    ]
    assert json.loads(table[1]["Matrix"]) == text


def test_values_from_before_the_checkpoint_stay(tmp_path):
    played(
        Csv(every_steps=1),
        started(tmp_path),
        steps(1, 1.0),
        split("train", 1, {"Loss": 1.0}),
        split("valid", 1, {"Loss": 2.0}),
    )
    played(Csv(every_steps=1), started(tmp_path, 1, {"train/Loss": [(1, 1, 1.0)]}), split("valid", 1, {"Loss": 2.0}))
    assert [(row["split"], row["Loss"]) for row in rows(tmp_path / "metrics.csv")] == [
        ("train", "1.0"),
        ("train", "1.0"),
        ("valid", "2.0"),
    ]


def test_new_run_replaces_the_table(tmp_path):
    late = split("custom", 1, {"norm": 2.0}, at_step=1)
    played(Csv(every_steps=1), started(tmp_path), steps(1, 1.0), late)
    played(Csv(every_steps=1), started(tmp_path), steps(1, 1.0))
    (row,) = rows(tmp_path / "metrics.csv")
    assert "norm" not in row


def test_each_step_has_its_weight(tmp_path):
    event = steps(3, 1.0, 2.0, 3.0, 4.0)
    object.__setattr__(event, "weights", np.float32([3, 4, 5, 6]))
    played(Csv(every_steps=2), started(tmp_path), event)
    assert [(row["step"], row["weight"]) for row in rows(tmp_path / "metrics.csv")] == [("4", "4"), ("6", "6")]
