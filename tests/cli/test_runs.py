"""Tests of `learner compare`, `learner plot`, `learner report` and exports of numbers."""

import csv
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from learner.util.text import size
from tests.support.tfevents import scalars
from tests.support.written import write_run


@pytest.fixture
def two(workplace):
    """Write two runs in `runs`."""
    write_run("runs/a", config="seed: 0\n")
    write_run("runs/b", {"train/Loss": [0.9], "valid/Loss": [float("inf")]}, config="seed: 1\n")


def test_compare_two_runs(two, learner):
    code, out, err = learner("compare", "runs", "--sort", "valid/Loss")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["run", "status", "epochs", "steps", "time", "seed", "valid/Loss", "epoch", "last"]
    assert [line[0] for line in lines[1:]] == ["a", "b"]
    assert lines[1][-4:] == ["0", "0.6", "2", "0.7"]


def test_compare_as_json_and_csv(two, learner):
    rows = json.loads(learner("compare", "runs", "--json")[1])
    assert [row["seed"] for row in rows] == [0, 1]
    assert rows[1]["valid/Loss last"] == "Infinity"
    table = list(csv.DictReader(io.StringIO(learner("compare", "runs", "--csv", "--metric=train/Loss")[1])))
    assert [row["train/Loss best"] for row in table] == ["0.4", "0.9"]
    assert "valid/Loss best" not in table[0]


def test_compare_means_over_seeds(two, learner):
    write_run("runs/c", {"train/Loss": [0.8], "valid/Loss": [0.8, 0.9]}, config="seed: 2\n")
    code, out, err = learner("compare", "runs", "--over", "seed", "--metric", "valid/Loss", "--sort=valid/Loss")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["runs", "valid/Loss", "std"]
    assert lines[1].split() == ["2", "of", "3", "0.7", "0.1414"]  # of 0.6 and 0.8; the third one is infinite
    assert lines[-1] == "1 run has no finite value of valid/Loss"
    (row,) = json.loads(learner("compare", "runs", "--over=seed", "--json")[1])
    assert (row["runs"], row["valid/Loss best mean"], row["valid/Loss last mean"]) == (3, 0.7, 0.8)
    (line,) = csv.DictReader(io.StringIO(learner("compare", "runs", "--over=seed", "--csv")[1]))
    assert (line["valid/Loss best count"], line["seed"]) == ("2", "0;1;2")
    assert learner("compare", "runs", "--over=seed", "--metric=valid/Loss", "--sort=train/Loss")[0] == 0
    assert learner("compare", "runs", "--over=sed")[0] != 0


def test_number_of_settings_is_bounded(workplace, learner):
    for number in (1, 2):
        write_run(f"runs/{number}", config="".join(f"key{i}: {number}\n" for i in range(8)))
    out = learner("compare", "runs")[1]
    assert "key5" in out
    assert "key6" not in out
    assert out.endswith("2 further settings that differ: --all\n")
    assert "key7" in learner("compare", "runs", "--all")[1]


def test_plot_in_the_terminal_and_in_a_file(two, learner):
    code, out, err = learner("plot", "runs/a", "Loss")
    assert (code, err) == (0, "")
    assert "train/Loss" in out
    assert "optimizer step" in out
    command = [sys.executable, "-m", "learner", "plot", "runs/a", "Loss"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "JAX_PLATFORMS": "cpu"}
    plain = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (plain.returncode, plain.stderr, b"train/Loss" in plain.stdout) == (0, b"", True)
    # As in the POSIX locale, for which Python chooses another handler of errors.
    environment["PYTHONIOENCODING"] = "ascii:surrogateescape"
    posix = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (posix.returncode, posix.stderr, posix.stdout) == (0, b"", plain.stdout)
    code, out, err = learner("plot", "runs", "valid/Loss", "-o", "loss.png", "--x=epoch", "--log", "--smooth=.5")
    assert (code, out, err) == (0, "loss.png\n", "")
    with open("loss.png", "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_lines_that_a_plot_leaves_out_are_counted(workplace, learner):
    for number in range(10):
        write_run(f"runs/{number}", {"valid/Loss": [1.0 + number]})
    for words, last in ([], "2 further lines: name runs to choose"), (["-o", "loss.png"], "loss.png"):
        code, out, err = learner("plot", "runs", "valid/Loss", *words)
        assert (code, err, out.splitlines()[-1]) == (0, "", last)
    assert learner("plot", "runs/9", "runs/8", "valid/Loss")[1].splitlines()[-1] == "• 8   ⠤ 9"


def test_summary_as_json(two, learner):
    summary = json.loads(learner("summary", "runs/a", "--json")[1])
    metric = summary.pop("metrics")["valid/Loss"]
    assert summary == {
        "status": "ended",
        "why": "num_epochs",
        "epochs": 3,
        "steps": 6,
        "seconds": 31.0,
        "spent": {},
        "checkpoints": [],
        "config": {"seed": 0},
    }
    assert metric["best"] == {"epoch": 2, "step": 4, "value": 0.6}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare"], "the following arguments are required: DIR; see learner compare --help"),
        (["compare", "nowhere"], "there is no directory nowhere"),
        (["compare", "afile"], "afile is a file: give the directory of a run"),
        (["ask", "stop", "afile"], "afile is a file: give the directory of a run"),
        (["diff", "runs/a", "afile"], "afile is a file: give the directory of a run"),
        (["summary", "runs"], "runs is not the directory of a run: it has neither config.yaml nor journal.jsonl"),
        (["compare", "runs", "--srot=a"], "learner compare takes no '--srot=a': did you mean '--sort'"),
        (["compare", "runs", "--json", "--csv"], "--json and --csv exclude each other"),
        (["plot", "runs", "Los"], "none of 2 runs has a metric 'Los': did you mean"),
        (["plot", "runs", "Loss", "--x=hours"], "invalid choice: 'hours'"),
        (["plot", "runs", "Loss", "-o", "loss.pdf"], "it needs the name of a .png file"),
        (["summary", "runs/a", "--jsn"], "learner summary takes no '--jsn': did you mean '--json'?"),
    ],
)
def test_invalid_arguments_are_refused(two, learner, words, message):
    Path("afile").touch()
    code, out, err = learner(*words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("command", ["compare", "plot", "summary"])
def test_help(workplace, learner, command):
    code, out, _ = learner(command, "--help")
    assert code == 0
    assert out.startswith(f"usage: learner {command} ")
    assert max(map(len, out.splitlines())) <= 120


def test_export_of_numbers_as_a_table(two, learner):
    code, out, err = learner("export", "runs/a", "--format=csv")
    assert (code, err) == (0, "")
    assert out.startswith("runs/a/numbers.csv: ")
    assert out.endswith(", 6 rows\n")
    assert learner("export", "runs/a", "--format=jsonl", "-o", "m.jsonl")[1].startswith("m.jsonl: ")
    with open("m.jsonl") as file:
        assert json.loads(file.readline())["metric"] == "Loss"


def test_export_of_numbers_for_tensorboard(two, learner):
    code, out, err = learner("export", "runs/a", "--format=tensorboard")
    assert (code, err) == (0, "")
    files = [path for path in Path("runs/a/numbers.tensorboard").rglob("*") if path.is_file()]
    assert len(files) == 3  # of the run, and of two splits
    assert out.startswith(f"runs/a/numbers.tensorboard: {size(sum(path.stat().st_size for path in files))}, ")
    assert out.endswith("records: tensorboard --logdir runs/a/numbers.tensorboard\n")
    assert scalars("runs/a/numbers.tensorboard")["valid/epoch/Loss"][0] == (2, pytest.approx(0.8))
    assert learner("export", "runs/a", "--format=tensorboard", "-o", "of a")[1].endswith("--logdir 'of a'\n")
    code, _, err = learner("export", "runs/a", "--format=tensorboard", "-o", "no/where")
    assert code == 2
    assert "it needs a name in a directory that exists" in err


@pytest.mark.full
def test_report(two, learner):
    code, out, err = learner("report", "runs", "-o", "r.html", "--title=mine")
    assert (code, err) == (0, "")
    assert out.startswith("r.html: ")
    assert out.endswith(" MB, 2 runs\n")
    assert learner("report", "runs/a")[1].startswith("runs/a/report.html: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["export", "runs/a", "--format=xls"],
            "the format is 'xls': choose from 'csv', 'jsonl', 'parquet', 'tensorboard'",
        ),
        (["export", "runs/a", "--format=csv", "--precision=half"], "there is no option --precision of --format"),
        (["export", "runs", "--format=csv"], "runs has no journal.jsonl: it is not the directory of a run"),
        (["export", "runs/a", "--format=csv", "-o", "-"], "nothing is written to standard output: -o needs the name"),
        (["export", "runs/a", "--format=csv", "-o", "no/m.csv"], "it needs the name of a .csv file in a directory"),
        (
            ["export", "runs/a", "--format=csv", "-o", "m.jsonl"],
            "the output is m.jsonl; it needs the name of a .csv file",
        ),
        (["report", "runs", "-o", "r.pdf"], "it needs the name of an .html file in a directory that exists"),
    ],
)
def test_invalid_formats_and_files_are_refused(two, learner, words, message):
    code, out, err = learner(*words)
    assert (code, out) == (2, "")
    assert message in err


def test_options_between_arguments(two, learner):
    assert learner("compare", "runs/a", "--json", "runs/b")[0] == 0
    assert learner("plot", "runs/a", "--log", "Loss")[0] == 0


def test_warning_is_one_line(two, learner):
    with open("runs/b/config.yaml", "w") as file:
        file.write("[1]")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        _, _, err = learner("compare", "runs")
    assert err.startswith("learner: the config file runs/b/config.yaml is a list")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "value", ["!!int abc", "!!timestamp x", "1" * 5000, "0x" + "f" * 5000, "[" * 30_000, "&a [*a]"]
)
def test_damaged_config_of_one_run_is_a_warning(two, learner, value):
    write_run("runs/c", config=f"seed: 2\nlr: {value}\n")
    for command in (["compare", "runs"], ["summary", "runs/c", "--json"], ["report", "runs", "-o", "report.html"]):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            code, out, err = learner(*command)
        assert code == 0, err
        damaged = [line for line in err.splitlines() if line.startswith("learner: the config file runs/c/config.yaml ")]
        assert len(damaged) == 1
        assert err.count("\n") == 1
        if command[0] == "compare":
            assert [line.split()[0] for line in out.splitlines()] == ["run", "a", "b", "c"]
