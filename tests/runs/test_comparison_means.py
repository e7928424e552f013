"""Tests of tables of means over runs."""

import json

import pytest

from learner.runs import compare, compare_means, find_runs
from tests.support.codes import raises_code
from tests.support.written import write_run

RUNS = {  # the rate, the seed, and the scores after each epoch: higher is better
    "a0": (0.1, 0, [0.5, 0.7]),
    "b0": (0.2, 0, [0.9, 0.8]),
    "a1": (0.1, 1, [0.9, 0.6]),
    "b1": (0.2, 1, [1.0, 0.4]),
    "a2": (0.1, 2, [0.2, 0.2]),
}


def write(directory, rate, seed, scores, ending="num_epochs", extra=""):
    config = f"seed: {seed}\nlr: {rate}\n{extra}"
    write_run(directory, {"valid/Score": scores, "valid/Rate": [rate]}, config=config, ending=ending)
    facts = {
        "valid/Score": {"higher_is_better": True, "unit": ""},
        "valid/Rate": {"higher_is_better": None, "unit": ""},
    }
    (directory / "summary.json").write_text(json.dumps({"metrics": facts}))


@pytest.fixture
def runs(tmp_path):
    for name, (rate, seed, scores) in RUNS.items():
        write(tmp_path / name, rate, seed, scores)
    return find_runs([tmp_path])


def test_runs_that_differ_in_the_seed_share_a_row(runs):
    means = compare_means(compare(runs, ["Score"]))
    assert (means.over, means.settings, means.varying) == (("seed",), ("lr",), ())
    first, second = means.rows
    assert [first["lr"], first["runs"], second["lr"], second["runs"]] == [0.1, 3, 0.2, 2]
    # The best values are 0.7, 0.9, 0.2 and 0.9, 1; the last ones 0.7, 0.6, 0.2 and 0.8, 0.4.
    assert first["valid/Score best mean"] == pytest.approx(0.6)
    assert first["valid/Score best std"] == pytest.approx(0.13**0.5)
    assert second["valid/Score best mean"] == pytest.approx(0.95)
    assert second["valid/Score last mean"] == pytest.approx(0.6)
    assert second["valid/Score last std"] == pytest.approx(0.08**0.5)


def test_table_of_means(runs):
    means = compare_means(compare(runs, ["Score"]), sort="Score")
    lines = str(means).splitlines()
    assert lines[0].split() == ["lr", "runs", "valid/Score", "std", "95", "%", "interval"]
    # The 97.5 % quantile of Student's t distribution with two degrees of freedom is 4.302653.
    assert [line.split() for line in lines[1:]] == [
        ["0.2", "2", "0.95", "0.07071"],
        ["0.1", "3", "0.6", "0.3606", "-0.2957", "to", "1.496"],
    ]
    assert lines[1] in means._repr_html_()


def test_a_metric_without_a_direction_has_its_last_value(runs):
    means = compare_means(compare(runs, ["Rate", "Score"]), sort="valid/Rate")
    lines = str(means).splitlines()
    assert lines[0].split() == ["lr", "runs", "valid/Rate", "std", "valid/Score", "std"]
    assert [line.split()[:3] for line in lines[1:]] == [["0.1", "3", "0.1"], ["0.2", "2", "0.2"]]


def test_wide_tables_are_transposed(runs):
    lines = compare_means(compare(runs, ["Score"])).lines(width=30)
    assert [line.split()[0] for line in lines] == ["lr", "runs", "valid/Score", "std", "95"]
    assert max(map(len, lines)) <= 50


def test_runs_without_a_value_are_counted(tmp_path, runs):
    write(tmp_path / "a3", 0.1, 3, [float("nan")], ending="ctrl-c")
    means = compare_means(compare(find_runs([tmp_path]), ["Score"]))
    assert (means.rows[0]["runs"], means.rows[0]["unended"], means.rows[0]["valid/Score best count"]) == (4, 1, 3)
    assert means.rows[0]["valid/Score best mean"] == pytest.approx(0.6)
    assert means.lines()[3:] == ["1 of 6 runs have not ended", "1 run without a finite value of valid/Score"]


def test_settings_are_named_by_their_ends_and_several_may_repeat(tmp_path):
    for index, (seed, fold, score) in enumerate([(0, 0, 1.0), (1, 1, 3.0), (0, 1, 5.0)]):
        write(tmp_path / str(index), 0.1, seed, [score], extra=f"vars: {{fold: {fold}}}\n")
    comparison = compare(find_runs([tmp_path]), ["Score"])
    assert [row["valid/Score best mean"] for row in compare_means(comparison, ["fold"]).rows] == [3.0, 3.0]
    together = compare_means(comparison, ["seed", "fold"])
    assert (together.settings, together.rows[0]["runs"], together.rows[0]["valid/Score best mean"]) == ((), 3, 3.0)


def test_facts_that_differ_within_a_row_are_named(tmp_path):
    """Folds have different rows: this must not divide their row, and a mixture of data sets must not be silent."""
    for index, (rate, seed, rows) in enumerate([(0.1, 0, 100), (0.1, 1, 90), (0.2, 0, 100), (0.2, 1, 90)]):
        write(tmp_path / str(index), rate, seed, [1.0])
        journal = tmp_path / str(index) / "journal.jsonl"
        first, *others = journal.read_text().splitlines()
        start = json.loads(first) | {"fingerprint": {"data": {"train": {"rows": rows}}}}
        journal.write_text("\n".join([json.dumps(start), *others]) + "\n")
    means = compare_means(compare(find_runs([tmp_path]), ["Score"]))
    assert (means.settings, means.varying, len(means.rows)) == (("lr",), ("data.train.rows",), 2)
    assert means.lines()[3:] == ["runs of one row also differ in data.train.rows"]


def test_unknown_columns_are_refused(runs):
    comparison = compare(runs, ["Score"])
    with raises_code("run-column-unknown"):
        compare_means(comparison, ["sed"])
    with raises_code("run-column-unknown"):
        compare_means(comparison, sort="valid/Loss")


def test_one_run_is_a_row(runs):
    """A table of a study that has just begun: the seed does not differ yet."""
    means = compare_means(compare(runs[:1], ["Score"]))
    assert (means.settings, means.rows[0]["runs"]) == ((), 1)
    assert [line.split() for line in means.lines()] == [["runs", "valid/Score", "std"], ["1", "0.7", "-"]]
