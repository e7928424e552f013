"""Tests of watched runs, and of places that have no run yet."""

from learner.reports.live.watched import SEARCH_EVERY, RunWatcher, keys_of
from tests.support.codes import raises_code
from tests.support.written import write_run


def test_runs_and_metrics_of_a_directory(runs, watch):
    watched = watch("runs")
    assert [run.name for run in watched.runs] == ["a", "b"]
    assert (watched.waiting, watched.problems) == ([], [])
    assert watched.metrics() == ["Loss", "Accuracy"]  # texts cannot be drawn
    assert keys_of(watched.runs[0], "Loss") == ["train/Loss", "valid/Loss"]
    assert keys_of(watched.runs[0], "valid/Loss") == ["valid/Loss"]


def test_run_that_starts_later(tmp_path, watch, monkeypatch):
    monkeypatch.chdir(tmp_path)
    now = [1000.0]
    watched = watch("later", now=now)
    assert (watched.runs, watched.waiting) == ([], ["there is no directory later"])
    (tmp_path / "later").mkdir()
    watched.refresh()
    assert watched.waiting == ["later is not the directory of a run, and no run lies in it"]
    (tmp_path / "later").rmdir()
    write_run("later")
    watched.refresh()
    assert ([run.name for run in watched.runs], watched.waiting) == (["later"], [])


def test_new_runs_are_searched_periodically(runs, watch):
    now = [1000.0]
    watched = watch("runs", now=now)
    first = watched.runs[0]
    write_run("runs/deeper/a")
    now[0] += SEARCH_EVERY / 2
    watched.refresh()
    assert len(watched.runs) == 2
    now[0] += SEARCH_EVERY
    watched.refresh()
    assert [run.name for run in watched.runs] == ["runs/a", "runs/b", "deeper/a"]
    assert watched.runs[0] is first  # its values are not read again


def test_problem_is_reported_once(runs, watch):
    with (runs / "a" / "journal.jsonl").open("a") as file:
        file.write("no JSON\n")
    watched = watch("runs")
    watched.refresh()
    assert len(watched.problems) == 1
    assert "line 5 is damaged" in watched.problems[0]


def test_damaged_config_is_reported_and_its_run_is_shown(runs, watch):
    (runs / "a" / "config.yaml").write_text("num_epochs: !!int abc\n")
    (runs / "b" / "config.yaml").write_text("num_epochs: 7\n")
    watched = watch("runs")
    assert [run.epochs for run in watched.runs] == [None, 7]
    (problem,) = watched.problems
    assert problem.startswith("the config file runs/a/config.yaml is not YAML")


def test_file_is_refused(tmp_path):
    (tmp_path / "x").write_text("")
    with raises_code("run-path-is-file"):
        RunWatcher([tmp_path / "x"])


def test_misspelled_metric_has_suggestions(runs, watch, tmp_path):
    watched = watch("runs")
    assert watched.problem_with("Loss") is None
    assert watched.problem_with("valid/Loss") is None
    assert (
        watched.problem_with("Acuracy") == "no run has a metric 'Acuracy': did you mean 'Accuracy' or 'train/Accuracy'?"
    )
    assert watch(tmp_path / "later").problem_with("Acuracy") is None  # no metric is known yet
