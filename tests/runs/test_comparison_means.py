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
    assert str(compare_means([run.directory for run in runs])) == str(compare_means(compare(runs)))


def test_a_metric_without_a_direction_has_its_last_value(runs):
    means = compare_means(compare(runs, ["Rate", "Score"]), sort="valid/Rate")
    lines = str(means).splitlines()
    assert lines[0].split() == ["lr", "runs", "valid/Rate", "std", "valid/Score", "std"]
    assert [line.split()[:3] for line in lines[1:]] == [["0.1", "3", "0.1"], ["0.2", "2", "0.2"]]


def test_narrow_tables(runs):
    """A wide table is transposed, or else loses its last columns."""
    means = compare_means(compare(runs, ["Score", "Rate"]))
    assert means.lines(width=60)[0].split()[0] == "lr"
    turned = means.lines(width=32)
    assert [line.split()[0] for line in turned[:4]] == ["lr", "runs", "valid/Score", "std"]
    narrow = means.lines(width=24)
    assert narrow[0].split() == ["lr", "runs", "valid/Score"]
    assert narrow[3].startswith("3 further columns")
    for width, lines in ((32, turned), (24, narrow[:3])):
        assert max(map(len, lines)) <= width


def test_runs_without_a_value_are_counted(tmp_path, runs):
    write(tmp_path / "a3", 0.1, 3, [float("nan")], ending="ctrl-c")
    means = compare_means(compare(find_runs([tmp_path]), ["Score"]))
    assert (means.rows[0]["runs"], means.rows[0]["unended"], means.rows[0]["valid/Score best count"]) == (4, 1, 3)
    assert means.rows[0]["valid/Score best mean"] == pytest.approx(0.6)
    assert [line.split()[:5] for line in means.lines()[1:3]] == [
        ["0.1", "3", "of", "4", "0.6"],
        ["0.2", "2", "0.95", "0.07071"],
    ]
    assert means.lines()[3:] == [
        "runs of one row have different numbers of steps, from 2 to 4",
        "1 run has not ended",
        "1 run has no finite value of valid/Score",
    ]
    write(tmp_path / "b2", 0.2, 2, [float("nan")])
    write(tmp_path / "c0", 0.3, 0, [0.1])
    rows = compare_means(compare(find_runs([tmp_path]), ["Score"]), sort="Score").rows
    assert [row["lr"] for row in rows] == [0.3, 0.2, 0.1]  # complete ones first, although 0.1 is the worst


def test_settings_are_named_by_their_ends_and_several_may_repeat(tmp_path):
    for index, (seed, fold, score) in enumerate([(0, 0, 1.0), (1, 1, 3.0), (0, 1, 5.0)]):
        write(tmp_path / str(index), 0.1, seed, [score], extra=f"vars: {{fold: {fold}}}\n")
    comparison = compare(find_runs([tmp_path]), ["Score"])
    assert [row["valid/Score best mean"] for row in compare_means(comparison, ["fold"]).rows] == [3.0, 3.0]
    together = compare_means(comparison, ["seed", "fold"])
    assert (together.settings, together.rows[0]["runs"], together.rows[0]["valid/Score best mean"]) == ((), 3, 3.0)


def record(directory, **fingerprint):
    """Write facts about the data and the programs of a run."""
    journal = directory / "journal.jsonl"
    first, *others = journal.read_text().splitlines()
    start = json.loads(first) | {"fingerprint": fingerprint}
    journal.write_text("\n".join([json.dumps(start), *others]) + "\n")


def write_study(directory, studies):
    """Write a run for each rate, seed, number of training rows, and text of its program."""
    for index, (rate, seed, rows, program) in enumerate(studies):
        write(directory / str(index), rate, seed, [float(index)])
        programs = {"versions": "1", "hashes": {"train": program}}
        record(directory / str(index), data={"train": {"rows": rows}}, programs=programs)
    return compare(find_runs([directory]), ["Score"])


def test_data_that_follows_from_the_seed_does_not_divide_a_row(tmp_path):
    """The rows of a fold or of a random split."""
    means = compare_means(
        write_study(tmp_path, [(0.1, 0, 100, "a"), (0.1, 1, 90, "a"), (0.2, 0, 100, "a"), (0.2, 1, 90, "a")])
    )
    assert (means.settings, means.varying, len(means.rows)) == (("lr",), ("data.train.rows",), 2)
    assert means.lines()[3:] == ["runs of one row also differ in data.train.rows"]


def test_other_data_of_the_same_settings_has_a_row_of_its_own(tmp_path):
    means = compare_means(
        write_study(tmp_path, [(0.1, 0, 100, "a"), (0.1, 1, 100, "a"), (0.1, 0, 50, "a"), (0.1, 1, 50, "a")])
    )
    assert (means.settings, means.varying) == (("data.train.rows",), ())
    assert [row["valid/Score best mean"] for row in means.rows] == [0.5, 2.5]


def test_other_programs_have_rows_of_their_own(tmp_path):
    """A model from Python leaves no other trace, and the studies may share no seed."""
    means = compare_means(
        write_study(tmp_path, [(0.1, 0, 100, "a"), (0.1, 1, 100, "a"), (0.1, 2, 100, "b"), (0.1, 3, 100, "b")])
    )
    assert means.settings == ("train step",)
    assert [(row["runs"], row["seed"], row["valid/Score best mean"]) for row in means.rows] == [
        (2, (0, 1), 0.5),
        (2, (2, 3), 2.5),
    ]


def test_runs_that_are_hard_to_compare_are_named(tmp_path):
    for index, (seed, scores) in enumerate([(0, [1.0]), (0, [1.0]), (1, [1.0, 3.0])]):
        write(tmp_path / str(index), 0.1, seed, scores)
    assert compare_means(compare(find_runs([tmp_path]), ["Score"])).lines()[2:] == [
        "1 run repeats the seed of another run of the row",
        "runs of one row have different numbers of steps, from 2 to 4",
    ]


def test_runs_of_one_seed_are_no_sample(tmp_path):
    """Copies of a run would have an interval of width 0."""
    for index in range(3):
        write(tmp_path / str(index), 0.1, 0, [1.0])
    means = compare_means(compare(find_runs([tmp_path]), ["Score"]))
    assert means.lines()[2:] == ["2 runs repeat the settings of another run of the row"]


def test_a_key_stands_for_the_keys_below_it(tmp_path):
    for index, (first, last) in enumerate([(0.1, 0.0), (0.2, 0.1)]):
        write_run(
            tmp_path / str(index),
            {"valid/Loss": [float(index)]},
            config=f"lr: {{class_path: Cosine, init_args: {{first: {first}, last: {last}}}}}\n",
        )
    comparison = compare(find_runs([tmp_path]))
    assert len(compare_means(comparison, "lr").rows) == 1
    assert len(compare_means(comparison, "first").rows) == 2


def test_ambiguous_keys_are_refused(tmp_path):
    for index in (0, 1):
        write_run(tmp_path / str(index), config=f"vars: {{fold: {index}}}\nmodel: {{fold: {index}}}\n")
    comparison = compare(find_runs([tmp_path]))
    with raises_code("run-column-unknown", "vars.fold", "model.fold"):
        compare_means(comparison, ["fold"])
    assert str(compare_means(comparison, ["vars.fold"])).split()[0] == "model.fold"


def test_texts_have_no_mean(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / str(seed), {"valid/Loss": [1.0], "valid/Matrix": ["1 2"]}, config=f"seed: {seed}\n")
    means = compare_means(compare(find_runs([tmp_path]), ["Matrix", "Loss"]))
    assert (means.metrics, means.texts) == (("valid/Loss",), ("valid/Matrix",))
    assert means.lines()[2:] == ["valid/Matrix is a text and has no mean"]


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
