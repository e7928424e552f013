"""Tests of the history of a run and of its summary."""

import json
import math
import re
import sys
from pathlib import Path

import pytest

from learner.events import MetricInfo
from learner.loggers import RunFiles
from learner.runs.history import History, Point, read_history, summarize
from tests.support.codes import raises_code

NAN = math.nan


def history_of(*values, key="valid/Loss"):
    history = History()
    split, name = key.split("/")
    for epoch, value in enumerate(values, 1):
        history.record(split, epoch, 10 * epoch, {name: value})
    return history


def test_history_is_an_ordered_mapping():
    history = history_of(0.5, 0.25)
    history.record("train", 1, 10, {"Loss": 1.0, "Confusion": "1 0"})
    assert dict(history) == {"valid/Loss": [0.5, 0.25], "train/Loss": [1.0], "train/Confusion": ["1 0"]}
    assert list(history) == ["valid/Loss", "train/Loss", "train/Confusion"]
    assert len(history) == 3
    assert "train/Loss" in history
    assert "test/Loss" not in history
    assert history.get("test/Loss") is None
    assert history.points("valid/Loss") == [Point(1, 10, 0.5), Point(2, 20, 0.25)]
    assert history.last("valid/Loss") == Point(2, 20, 0.25)
    assert history.last("test/Loss") is None


def test_returned_lists_are_copies():
    history = history_of(0.5)
    history["valid/Loss"].append(7.0)
    history.points("valid/Loss").clear()
    assert history["valid/Loss"] == [0.5]


def test_misspelled_key_has_a_suggestion():
    with pytest.raises(KeyError, match="did you mean 'valid/Loss'"):
        history_of(0.5)["valid/loss"]


def test_oldest_texts_make_room_for_the_newest():
    history = History()
    for epoch in range(1, 6):
        history.record("valid", epoch, 10 * epoch, {"Loss": 0.5, "Table": str(epoch) * 400_000})
    assert [point[:2] for point in history.points("valid/Table")] == [(4, 40), (5, 50)]
    assert [text[0] for text in history["valid/Table"]] == ["4", "5"]
    assert history["valid/Loss"] == [0.5] * 5
    history.record("valid", 6, 60, {"Table": "6" * 2_000_000})
    assert [point.epoch for point in history.points("valid/Table")] == [6]


@pytest.mark.parametrize(
    ("values", "lowest", "highest"),
    [
        ((0.5, 0.25, 0.75), 2, 3),
        ((0.5, 0.5, 0.5), 1, 1),
        ((NAN, 0.5, NAN, 0.25), 4, 2),
        ((NAN, NAN), None, None),
        ((math.inf, 0.5, -math.inf), 2, 2),
        (("text", "more"), None, None),
        ((), None, None),
    ],
)
def test_best_value(values, lowest, highest):
    history = history_of(*values)
    for higher_is_better, epoch in ((False, lowest), (True, highest)):
        best = history.best("valid/Loss", higher_is_better)
        assert best == (None if epoch is None else Point(epoch, 10 * epoch, values[epoch - 1]))


def test_json_round_trip():
    history = history_of(0.1, NAN, math.inf, -math.inf)
    history.record("valid-dev", 4, 40, {"Confusion": "1\n0"})
    text = json.dumps(history.to_json(), allow_nan=False)
    back = History.from_json(json.loads(text))
    assert back == history
    assert back.points("valid-dev/Confusion") == [Point(4, 40, "1\n0")]
    assert math.isnan(back["valid/Loss"][1])


def test_equality_compares_values_and_positions():
    assert history_of(0.5, NAN) == history_of(0.5, NAN)
    assert history_of(0.5) != history_of(0.25)
    assert history_of(0.5) != history_of(0.5, 0.5)
    later = History()
    later.record("valid", 1, 11, {"Loss": 0.5})
    assert history_of(0.5) != later
    assert history_of(0.5) != {"valid/Loss": [0.5]}


def test_repr_is_a_table():
    history = history_of(0.123456, 0.25)
    history.record("train", 1, 10, {"Top-5 Accuracy": 16824.0})
    assert repr(history).splitlines() == [
        "key                   values   first   last",
        "valid/Loss                 2  0.1235   0.25",
        "train/Top-5 Accuracy       1   16824  16824",
    ]
    assert repr(History()) == "key  values  first  last"


def test_matrices_have_no_columns():
    history = history_of(0.5)
    history.record("valid", 1, 10, {"Matrix": "label  cat  dog\ncat      9    1\ndog      5    5"})
    assert repr(history).splitlines()[2].split() == ["valid/Matrix", "1", "text", "text"]


def test_data_frame():
    """Each position with a value is a row, and numeric columns are numbers to pandas."""
    pandas = pytest.importorskip("pandas")
    history = History()
    history.record("valid", 1, 5, {"Loss": 0.5})
    history.record("train", 1, 10, {"Loss": 2.0})
    history.record("valid", 1, 10, {"Loss": 0.25, "Text": "a"})
    frame = history.to_pandas()
    assert (list(frame.columns), list(frame.index), list(frame.index.names)) == (
        ["valid/Loss", "valid/Text", "train/Loss"],
        [(1, 5), (1, 10)],
        ["epoch", "step"],
    )
    assert frame["valid/Loss"].tolist() == [0.5, 0.25]
    assert frame["valid/Loss"].idxmin() == (1, 10)
    assert pandas.isna(frame.loc[(1, 5), "train/Loss"])
    assert frame.loc[(1, 10), "valid/Text"] == "a"
    assert History().to_pandas().shape == (0, 0)


def test_missing_pandas_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises_code("package-missing", "pandas", extra="pandas"):
        history_of(0.5).to_pandas()


def test_html_has_a_row_and_a_curve_of_each_numeric_metric():
    history = history_of(0.5, 0.25)
    history.record("train", 1, 10, {"<b>": 1.0, "Matrix": "label  cat"})
    content = history._repr_html_()
    assert re.findall(r"<t[hd] [^>]*>([^<]*)<", content) == [
        *("metric", "first", "last", "valid/Loss", "0.5", "0.25", "train/&lt;b&gt;", "1", "1"),
    ]
    assert re.findall('alt="([^"]*)"', content) == [
        "Loss over steps; last: valid 0.25",
        "&lt;b&gt; over steps; last: train 1",
    ]
    best = history.html({"valid/Loss": Point(2, 20, 0.25)})
    assert re.findall(r"<td[^>]*>([^<]*)<", best) == ["0.5", "0.25", "2", "0.25", "1", "", "", "1"]


def write_run(directory):
    """Write a run with validations inside its epochs, and return its history."""
    history = History()
    files = RunFiles(directory, lambda: 0.0)
    files.journal("start", directory=directory)
    for epoch in (1, 2):
        for step in (5 * epoch, 5 * epoch + 3):
            history.record("valid", epoch, step, {"Loss": 1 / step, "Text": "a\nb"})
            files.journal("validation", epoch=epoch, step=step, values={"valid/Loss": 1 / step, "valid/Text": "a\nb"})
        history.record("train", epoch, 10 * epoch, {"Loss": NAN, "Mean Error": 0.1})
        files.journal("epoch", epoch=epoch, step=10 * epoch, values={"train/Loss": NAN, "train/Mean Error": 0.1})
        files.journal("save", epoch=epoch, step=10 * epoch, values="not numbers")
    files.close()
    return history


def test_history_is_read_from_the_journal(tmp_path):
    expected = write_run(tmp_path)
    assert read_history(tmp_path) == expected
    with (tmp_path / "journal.jsonl").open("a") as journal:
        journal.write('{"event": "epoch", "epoch": 3, "st')
    assert read_history(tmp_path) == expected


def test_missing_journal_is_an_error(tmp_path):
    with raises_code("run-not-a-run", directory=str(tmp_path)):
        read_history(tmp_path)


METRICS = (
    MetricInfo("train", "Loss", higher_is_better=False),
    MetricInfo("valid", "Accuracy", unit="%", higher_is_better=True),
    MetricInfo("train", "LearningRate"),
    MetricInfo("valid", "AUROC", higher_is_better=True),
)


def make_summary(directory):
    history = History()
    for epoch, (loss, accuracy) in enumerate([(0.5, 90.0), (0.25, NAN)], 1):
        history.record("valid", epoch, 10 * epoch, {"Accuracy": accuracy, "Extra": "text"})
        history.record("train", epoch, 10 * epoch, {"Loss": loss, "LearningRate": 0.1})
    for name in ("checkpoint", "train", "valid"):
        (directory / name).mkdir(parents=True)
    (directory / "journal.jsonl").touch()
    saved = [
        {"epoch": 1, "step": 10, "path": directory / "checkpoint" / "10", "best": True},
        {"epoch": 2, "step": 20, "path": "gs://bucket/20"},
    ]
    options = {"epochs": 2, "steps": 20, "stopped_by": "num_epochs", "checkpoints": saved}
    return summarize(history, METRICS, directory=directory, **options)


def test_content_of_a_summary(tmp_path):
    def point(epoch, value):
        return {"epoch": epoch, "step": 10 * epoch, "value": value}

    def metric(unit, higher_is_better, best, last):
        return {"unit": unit, "higher_is_better": higher_is_better, "best": best, "last": last}

    summary = make_summary(tmp_path / "run")
    last_accuracy = summary["metrics"]["valid/Accuracy"].pop("last")
    assert math.isnan(last_accuracy.pop("value"))
    assert last_accuracy == {"epoch": 2, "step": 20}
    summary["metrics"]["valid/Accuracy"]["last"] = None
    assert summary == {
        "stopped_by": "num_epochs",
        "epochs": 2,
        "steps": 20,
        "metrics": {
            "train/Loss": metric("", False, point(2, 0.25), point(2, 0.25)),
            "valid/Accuracy": metric("%", True, point(1, 90.0), None),
            "train/LearningRate": metric("", None, None, point(2, 0.1)),
            "valid/AUROC": metric("", True, None, None),
            "valid/Extra": metric("", None, None, point(2, "text")),
        },
        "checkpoints": [
            {"epoch": 1, "step": 10, "path": "checkpoint/10", "best": True},
            {"epoch": 2, "step": 20, "path": "gs://bucket/20"},
        ],
        "artifacts": ["journal.jsonl", "checkpoint", "train", "valid", "summary.json"],
    }
    assert list(summary["metrics"]) == [*(info.key for info in METRICS), "valid/Extra"]


def test_summary_does_not_depend_on_the_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {repr(make_summary(directory)) for directory in (tmp_path / "a", tmp_path / "b" / "c", Path("relative"))}
    assert len(texts) == 1


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {"Loss": [[1, 45, 0.5]]},
        {"a/Loss": None},
        {"a/Loss": []},
        {"a/Loss": {"1": 2}},
        {"a/Loss": [[1, 45]]},
        {"a/Loss": ["abc"]},
        {"a/Loss": [[1, 45, None]]},
        {"a/Loss": [["1", 45, 0.5]]},
        {"a/Loss": [[1, None, 0.5]]},
        {"a/Loss": [[1, 45, 10**400]]},
    ],
)
def test_malformed_history_is_refused(content):
    with raises_code("run-history-damaged"):
        History.from_json(content)
