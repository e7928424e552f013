"""Tests of `learner sweep`: members, directories, resuming, results, and errors before training."""

import contextlib
import errno
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from learner.cli.configs.config import RunConfig
from learner.cli.configs.sweep_groups import groups_of
from learner.cli.main import main
from learner.cli.sweep import sweep
from learner.cli.sweeps.other_processes import journal_version, nonfinite_failure
from learner.cli.sweeps.sweep_plan import SweepPlan, sweep_plan
from learner.cli.sweeps.sweep_report import Outcome, SweepReport, has_ended, metric_of
from learner.cli.usage import sweep_parser
from learner.config.sweep_space import SweepMember
from learner.errors import LearnerError, NonFiniteError, ProcessError
from learner.runs.find import find_runs
from learner.runs.history import read_history
from learner.runs.layout import read_summary
from learner.runs.sweep_file import refuse_other_sweep, write_sweep
from tests.support.codes import raises_code
from tests.support.runs import tree_of

pytestmark = pytest.mark.usefixtures("compiled_once")

HOOK = """

def press(info, model):
    import os, pathlib

    calls = pathlib.Path("calls")
    calls.write_text((calls.read_text() if calls.exists() else "") + "x")
    if len(calls.read_text()) == 3:  # the first epoch of the second member
        os.kill(os.getpid(), int(os.environ["SIGNAL"]))
"""
UNLUCKY = """

def unlucky_model(size: int):
    return 1 / 0 if size == 13 else linear(size)


def unlucky_rows(count: int):
    return 1 / 0 if count == 13 else rows(count)
"""
DIVERGES = """

def explode(learning_rate):
    return optax.sgd(jnp.where(learning_rate > 1, jnp.nan, learning_rate))
"""


def plan_of(*words):
    return sweep_plan(sweep_parser().read(list(words)))


def best(directory):
    return read_summary(Path(directory))["metrics"]["valid/Loss"]["best"]["value"]


def write(line_config, **changes):
    Path("line.yaml").write_text(yaml.safe_dump({**line_config, **changes}, sort_keys=False))
    return "line.yaml"


NAMES = [f"00{i}-lr={lr}-seed={seed}" for i, (lr, seed) in enumerate([(0.1, 0), (0.1, 1), (0.05, 0), (0.05, 1)])]
SWEEP = ("--lr=0.1,0.05", "--seed=0..1", "--num_epochs=1")


@pytest.fixture(scope="module")
def _swept(shared_workplace, compiled_once):
    """Train two rates with two seeds once, and return what the command prints."""
    with contextlib.chdir(shared_workplace), contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["sweep", "line.yaml", *SWEEP]) == 0
    del sys.modules["mymodule"]  # each test imports another one
    return out.getvalue()


@pytest.fixture
def swept(_swept, shared_workplace, config, importable):
    """Copy the sweep of two rates and two seeds, which has ended, to `run-sweep`; return what the command printed."""
    shutil.copytree(shared_workplace / "run-sweep", "run-sweep")
    return _swept


def test_members_equal_runs_of_fit_and_the_table_has_their_means(learner, swept):
    """The command that is printed for the best member trains it alone."""
    assert [run.directory.name for run in find_runs(["run-sweep"])] == NAMES
    assert [line.split()[:2] for line in swept.splitlines()[:4]] == [[f"{i + 1}/4", NAMES[i]] for i in range(4)]
    # the table has means over seeds, and names the best member
    values = {name: best(f"run-sweep/{name}") for name in NAMES[:2]}
    table = swept.split("\n\n")[1].splitlines()
    assert table[0].split("  ")[0] == "lr"
    rates, counts, means = zip(*(line.split()[:3] for line in table[1:]), strict=True)
    assert (rates, counts) == (("0.1", "0.05"), ("2", "2"))  # the best is first
    np.testing.assert_allclose(float(means[0]), np.mean(list(values.values())), rtol=1e-3)
    name = min(values, key=values.get)
    assert f"best configuration: lr=0.1\nits best member: run-sweep/{name}, valid/Loss" in swept
    command = shlex.split(swept.splitlines()[-1].removeprefix("by itself: "))
    assert (command[:2], command[-1]) == (["learner", "fit"], "--directory=run-sweep-best")
    assert learner(*command[1:])[0] == 0
    places = ("run-sweep-best", f"run-sweep/{name}")
    alone, member = (list(read_history(Path(place))["valid/Loss"]) for place in places)
    assert alone == member
    alone, member = (yaml.safe_load(Path(place, "config.yaml").read_text()) for place in places)
    assert alone | {"directory": None} == member | {"directory": None}


def test_command_of_a_member(importable, config, line_config):
    planned = plan_of(write(line_config, sweep={"lr": [0.01, 0.1], "model.size": "3..3"}), "--num_epochs=1")
    command = "learner fit line.yaml --model.size=3 --num_epochs=1 --lr=0.1 --directory=run-sweep-best"
    assert planned.command(planned.members[1]) == command


@pytest.mark.full
def test_section_of_a_config_and_overriding_options(importable, config, line_config):
    section = {"lr": [0.1, 0.2], "seed": "0..3", "optimizer.momentum": "uniform:0:0.9", "size": 2, "sweep_seed": 1}
    flags = plan_of(
        config, "--lr=0.1,0.2", "--seed=0..3", "--optimizer.momentum=uniform:0:0.9", "--size=2", "--sweep-seed=1"
    )
    path = write(line_config, sweep=section)
    assert plan_of(path).members == flags.members
    assert len(flags.members) == 16
    other = plan_of(path, "--seed=5", "--size=3", "--lr=0.3,0.4", "--directory=other")
    assert [list(member.values)[-1] for member in other.members] == ["lr"] * 6
    assert (other.shared, str(other.directory)) == ({"seed": 5, "directory": "other"}, "other")
    zipped = write(line_config, sweep={"lr": [0.1, 0.2], "seed": [0, 1], "zipped": True, "metric": "train/Loss"})
    assert [tuple(member.values.values()) for member in plan_of(zipped).members] == [(0.1, 0), (0.2, 1)]
    assert plan_of(zipped).metric == "train/Loss"


def test_other_commands_ignore_the_section(learner, line_config, workplace):
    path = write(line_config, sweep={"lr": [0.1, 0.2]})
    for words in (["fit", path, "--print_config"], ["data", path], ["plot-lr", path]):
        code, out, _ = learner(*words)
        assert (code, "sweep" in out) == (0, False), words


@pytest.mark.parametrize(
    ("word", "values"),
    [
        ("--optimizer=SGD,Adam", ["SGD", "Adam"]),
        ("--train.batch_size=2,4", [2, 4]),
        ("--optimizer.clip_norm=1.0,null", [1.0, None]),
        ("--train_step.scale=1,2", [1, 2]),
        (
            "--with_file_checkpointer={keep_last: 1, keep_best: 2},{keep_last: 3}",
            [{"keep_last": 1, "keep_best": 2}, {"keep_last": 3}],
        ),
    ],
)
def test_every_key_may_have_several_values(importable, config, word, values):
    key = word[2:].partition("=")[0]
    assert [member.values for member in plan_of(config, word).members] == [{key: value} for value in values]


def test_argument_of_each_object_is_set_after_the_object(importable, config, line_config):
    planned = plan_of(config, "--optimizer=SGD,Adam", "--optimizer.clip_norm=1.0", "--num_epochs=1")
    assert [member.values for member in planned.members] == [
        {"optimizer": name, "optimizer.clip_norm": 1.0} for name in ("SGD", "Adam")
    ]
    assert planned.shared == {"num_epochs": 1}
    first = plan_of(config, "--optimizer.clip_norm=1.0", "--optimizer=SGD,Adam", "--num_epochs=1")
    assert (first.members, first.shared) == (planned.members, planned.shared)
    section = plan_of(write(line_config, sweep={"optimizer.clip_norm": 1.0}), "--optimizer=SGD,Adam")
    assert section.members == planned.members
    with raises_code("config-arguments-mismatch", "Adam has no argument 'momentum'", "section sweep: optimizer: ["):
        plan_of(config, "--optimizer=SGD,Adam", "--optimizer.momentum=0.5,0.9")


@pytest.mark.full
def test_objects_with_their_own_arguments(learner, line_config, importable):
    objects = [{"class_path": "Adam"}, {"class_path": "SGD", "init_args": {"momentum": 0.9}}]
    path = write(line_config, num_epochs=1, sweep={"optimizer": objects})
    learners = [plan_of(path).learner(group, with_data=False) for group in plan_of(path).groups]
    assert [learner.definition.options.config_text.count("momentum: 0.9") for learner in learners] == [0, 1]
    code, out, _ = learner("sweep", path)
    assert code == 0
    first, second = out.splitlines()[:2]
    assert first.startswith("1/2  000-optimizer=Adam  valid/Loss ")
    assert second.startswith("2/2  001-optimizer=SGD  SGD(momentum=0.9)  valid/Loss ")
    assert {line.split()[0] for line in out.split("\n\n")[1].splitlines()[1:]} == {"Adam", "SGD(momentum=0.9)"}


@pytest.mark.parametrize("several", [[0.5, 0.9], "uniform:0:1"])
def test_values_inside_an_object_are_not_expanded(importable, line_config, several):
    objects = [{"class_path": "Adam"}, {"class_path": "SGD", "init_args": {"momentum": several}}]
    with raises_code("config-arguments-mismatch", "optimizer.init_args.momentum is ", "list an object for each value"):
        plan_of(write(line_config, sweep={"optimizer": objects}))


def test_value_with_commas_inside_is_one_value(importable, config):
    planned = plan_of(config, "--lr=0.1,0.2", "--with_file_checkpointer={keep_last: 1, keep_best: 2}", "--metrics=[]")
    assert planned.shared == {"with_file_checkpointer": {"keep_last": 1, "keep_best": 2}, "metrics": []}


@pytest.mark.full
def test_start_options_of_the_config_are_ignored(learner, line_config, workplace):
    path = write(line_config, overwrite=True, checkpoint={"epoch": 1}, num_epochs=1)
    words = ("sweep", path, "--lr=0.1,0.2", "--member=0")
    assert learner(*words)[0] == 0
    assert learner(*words)[1].count(", kept\n") == 1


def test_members_share_compiled_programs(swept):
    logs = [(run.directory / "experiment.log").read_text() for run in find_runs(["run-sweep"])]
    assert ["0 programs compiled" in log for log in logs[1:]] == [True] * 3


def test_urls_of_listeners_are_neither_saved_nor_printed(importable, config):
    planned = plan_of(config, "--lr=0.1,0.2", "--metric_loggers=Webhook", "--metric_loggers.url=http://host/secret")
    planned.open()
    assert "secret" not in Path("run-sweep/sweep.json").read_text()
    assert "secret" not in planned.command(planned.members[0])


@pytest.mark.full
def test_members_have_separate_directories_of_checkpoints_and_loggers(learner, line_config, workplace):
    mirror = {"class_path": "learner.loggers.RunMirror", "init_args": {"url": str(workplace / "copy")}}
    events = {"class_path": "TensorBoard", "init_args": {"directory": "events/"}}
    checkpoints = {"keep_last": 1, "directory": str(workplace / "saved")}
    rows = {"class_path": "Csv", "init_args": {"path": str(workplace / "values.csv")}}
    loggers = [mirror, events, rows, "JsonLines"]
    path = write(line_config, num_epochs=1, with_file_checkpointer=checkpoints, metric_loggers=loggers)
    assert learner("sweep", path, "--lr=0.1,0.2")[0] == 0
    for place in ("saved", "copy", "events"):
        assert sorted(path.name for path in (workplace / place).iterdir()) == ["000-lr=0.1", "001-lr=0.2"]
    assert sorted(path.name for path in workplace.glob("values*")) == ["values-000-lr=0.1.csv", "values-001-lr=0.2.csv"]
    assert [read_summary(run.directory)["epochs"] for run in find_runs(["run-sweep"])] == [1, 1]
    assert best("run-sweep/000-lr=0.1") != best("run-sweep/001-lr=0.2")


@pytest.mark.full
def test_first_and_last_of_many_numbers_are_checked(importable, config, monkeypatch):
    checked = []
    learner_of = RunConfig.learner
    monkeypatch.setattr(RunConfig, "learner", lambda run, **how: checked.append(run) or learner_of(run, **how))
    assert len(plan_of(config, "--seed=0..99", "--optimizer=SGD,Adam").members) == 200
    assert len(checked) == 3  # seed 0 with each optimizer, and seed 99
    with raises_code("builder-number-value", "num_epochs is 0"):
        plan_of(config, "--num_epochs=99,98,97,96,95,94,93,92,91,0,1")


@pytest.mark.full
def test_references_use_the_values_of_members(importable, line_config):
    planned = plan_of(write(line_config, vars={"n": 1}, num_epochs="${vars.n}"), "--vars.n=1,2")
    learners = [planned.learner(group, with_data=False) for group in planned.groups]
    assert [learner.definition.options.num_epochs for learner in learners] == [1, 2]


def test_variables_without_references_are_refused(importable, line_config):
    path = write(line_config, vars={"epochs": 1}, num_epochs="${vars.epochs}")
    for words in (["--vars.epohcs=1,2"], ["--vars.epohcs=2", "--seed=0,1"]):
        with raises_code("config-variable-unused", "did you mean 'epochs'?", key="vars.epohcs"):
            plan_of(path, *words)


def test_variables_of_some_members_are_accepted(importable, line_config):
    """Another class drops the arguments with the reference, and one of the swept values is a reference."""
    optimizer = {"class_path": "Adam", "init_args": {"b1": "${vars.b1}"}}
    path = write(line_config, vars={"b1": 0.9}, optimizer=optimizer)
    assert len(plan_of(path, "--optimizer.class_path=Adam,SGD", "--vars.b1=0.8").members) == 2
    path = write(line_config, vars={"rate": 0.1}, sweep={"lr": [0.5, "${vars.rate}"]})
    assert len(plan_of(path, "--vars.rate=0.2").members) == 2


@pytest.mark.full
@pytest.mark.parametrize(("number", "code_of_signal"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_sweep_resumes(learner, line_config, workplace, monkeypatch, number, code_of_signal):
    """The second member is interrupted after its first epoch; the third is missing."""
    with open("mymodule.py", "a") as file:
        file.write(HOOK)
    monkeypatch.setenv("SIGNAL", str(int(number)))
    path = write(line_config, num_epochs=2, on_epoch_end="mymodule.press")
    words = ("sweep", path, "--seed=0..2")
    code, out, err = learner(*words)
    assert (code, out.count("\n")) == (code_of_signal, 1)
    assert "the same command resumes the sweep" in err
    assert [run.status.word for run in find_runs(["run-sweep"])] == ["ended", "stopped"]
    assert not (workplace / "run-sweep" / "002-seed=2").exists()
    before = tree_of(Path("run-sweep/000-seed=0"))
    code, out, err = learner(*words)
    assert (code, err, out.count(", kept\n")) == (0, "", 1)
    assert tree_of(Path("run-sweep/000-seed=0")) == before
    assert [read_summary(run.directory)["stopped_by"] for run in find_runs(["run-sweep"])] == ["num_epochs"] * 3
    assert len(Path("calls").read_text()) == 6  # no epoch is repeated
    assert learner("fit", path, "--seed=1")[0] == 0
    one, member = (read_history(Path(place)) for place in ("run", "run-sweep/001-seed=1"))
    assert list(one["valid/Loss"]) == list(member["valid/Loss"])


@pytest.mark.full
def test_ended_sweep_does_not_change(learner, swept, config, importable):
    before = tree_of(importable)
    code, out, _ = learner("sweep", config, *SWEEP)
    assert (code, out.count(", kept\n")) == (0, 4)
    assert tree_of(importable) == before
    with raises_code("sweep-different", "train.batch_size was 4 and is 6"):
        plan_of(config, *SWEEP, "--train.batch_size=6").open()
    with raises_code("sweep-different", "has trained 000-lr=0.1-seed=0, 001-lr=0.1-seed=1,"):
        plan_of(config, "--lr=0.3,0.05", *SWEEP[1:]).open()
    plan_of(config, *SWEEP, "--renderer=PlainRenderer").open()  # listeners may differ


@pytest.mark.full
def test_members_that_were_resumed_alone_are_named(learner, swept, config):
    assert learner("resume", f"run-sweep/{NAMES[1]}", "--num_epochs=3")[0] == 0
    lines = learner("sweep", config, *SWEEP)[1].splitlines()
    assert lines[-1] == f"resumed alone, after the 1 epoch of the sweep: {NAMES[1]} (3 epochs)"


@pytest.mark.full
def test_sweep_grows(learner, swept, config):
    """Existing members keep their names and files, and new ones have the next numbers."""
    before = {name: tree_of(Path("run-sweep", name)) for name in NAMES}
    grown = ("sweep", config, "--lr=0.05,0.1", "--seed=0..2", "--num_epochs=1")
    code, out, err = learner(*grown, "--member=5")  # like a task of a job array
    assert (code, err, out[:24]) == (0, "", "6/6  005-lr=0.1-seed=2  ")
    code, out, err = learner(*grown)
    assert (code, err, out.count(", kept\n"), out.count("\n0.")) == (0, "", 5, 2)  # the table has a row for each rate
    assert {name: tree_of(Path("run-sweep", name)) for name in NAMES} == before
    new = ["004-lr=0.05-seed=2", "005-lr=0.1-seed=2"]
    assert [run.directory.name for run in find_runs(["run-sweep"])] == NAMES + new
    content = json.loads(Path("run-sweep/sweep.json").read_text())
    assert [each["directory"] for each in content["members"]] == NAMES + new
    with raises_code("sweep-different", "has trained 004-lr=0.05-seed=2, 005-lr=0.1-seed=2,"):
        plan_of(config, *SWEEP).open()
    with raises_code("sweep-different", "has trained 000-lr=0.1-seed=0,"):  # a member is missing
        plan_of(config, "--lr=0.1,0.05,0.3", "--seed=1..3", "--num_epochs=1").open()


@pytest.mark.full
def test_random_members_stay_when_their_number_grows(config, importable):
    words = [config, "--lr=loguniform:1e-3:1e-1", "--seed=0..1"]
    small = plan_of(*words, "--size=2")
    small.open()
    grown = plan_of(*words, "--size=3")
    assert (grown.members[:4], len(grown.members)) == (small.members, 6)
    grown.open()


@pytest.mark.full
def test_sweep_fails_if_all_members_diverge(learner, line_config, workplace):
    with open("mymodule.py", "a") as file:
        file.write(DIVERGES)
    path = write(line_config, num_epochs=1, optimizer="mymodule.explode")
    code, _, err = learner("sweep", path, "--lr=2.0,3.0")
    assert (code, "2 members failed" in err) == (1, True)
    code, out, _ = learner("sweep", path, "--lr=2.0,3.0", "--json")
    results = json.loads(out)
    assert (code, results["best"], results["command"], results["metric"]) == (1, None, None, None)
    assert all(each["failure"].startswith("NonFiniteError: ") for each in results["members"])


@pytest.mark.full
@pytest.mark.parametrize(("error", "code"), [(errno.ENOSPC, 74), (errno.EPIPE, 141)])
def test_sweep_continues_without_its_output(swept, config, importable, monkeypatch, capsys, error, code):
    """The table of the results, at the end, reports it."""

    class Broken(io.TextIOWrapper):
        def write(self, text):
            raise OSError(error, os.strerror(error))

    shutil.rmtree("run-sweep/003-lr=0.05-seed=1")
    with open(os.devnull, "wb") as null:
        monkeypatch.setattr(sys, "stdout", Broken(null))
        assert main(["sweep", config, *SWEEP]) == code
    assert read_summary(Path("run-sweep/003-lr=0.05-seed=1"))["epochs"] == 1
    message = "learner: standard output cannot be written: No space left on device\n"
    assert capsys.readouterr().err == (message if code == 74 else "")


def test_single_member_is_trained_like_a_task_of_a_job_array(learner, line_config, workplace):
    """The first member diverges, which does not end the sweep."""
    with open("mymodule.py", "a") as file:
        file.write(DIVERGES)
    words = ("sweep", write(line_config, num_epochs=1, optimizer="mymodule.explode"), "--lr=2.0,0.1,0.2")
    code, out, err = learner(*words, "--member=1")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"2/3  001-lr=0.1  valid/Loss \S+ at epoch 1, num_epochs, .+\n", out)
    assert [run.directory.name for run in find_runs(["run-sweep"])] == ["001-lr=0.1"]
    assert {path.name for path in Path("run-sweep").iterdir()} == {"sweep.json", "001-lr=0.1"}
    code, out, err = learner(*words, "--member=0")
    assert (code, out.startswith("1/3  000-lr=2.0  failed: ")) == (1, True)
    assert json.loads(learner(*words, "--member=1", "--json")[1])["best"] == "001-lr=0.1"
    code, out, _ = learner(*words)  # trains the missing members, and prints the table
    assert (code, out.count(", kept\n"), "best configuration: lr=" in out) == (0, 1, True)
    assert re.search(r"^1/3  000-lr=2.0  failed: .*finite", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--member=2"], "sweep-member-unknown"),
        (["--member=-1"], "sweep-member-unknown"),
        (["--member=1.0"], "sweep-member-unknown"),
        (["--member=first"], "sweep-member-unknown"),
        (["--member=0", "--together"], "sweep-member-together"),
    ],
)
def test_invalid_members_are_refused(config, importable, words, code):
    with raises_code(code):
        sweep([config, "--lr=0.1,0.2", *words])
    assert not Path("run-sweep").exists()


def test_tasks_of_a_job_array_may_write_the_sweep_file_at_once(tmp_path, monkeypatch):
    """Another task writes the file, and creates its member, between any two accesses of this task to the disk."""
    members = [{"directory": "000-lr=0.1", "values": {"lr": 0.1}}, {"directory": "001-lr=0.2", "values": {"lr": 0.2}}]

    def open_sweep():
        refuse_other_sweep(tmp_path / "sweep", {"seed": 0}, members)
        write_sweep(tmp_path / "sweep", {"seed": 0}, members)

    def interrupted(name, number):
        """Run the other task before this call of a method of paths. Return True if there was such a call."""
        method, calls = getattr(Path, name), []

        def call(self, *arguments, **named):
            calls.append(self)
            if len(calls) == number:
                with monkeypatch.context() as other:
                    other.setattr(Path, name, method)
                    open_sweep()
                    (tmp_path / "sweep" / "000-lr=0.1").mkdir(exist_ok=True)
            return method(self, *arguments, **named)

        with monkeypatch.context() as patch:
            patch.setattr(Path, name, call)
            open_sweep()
        return len(calls) >= number

    for name in ("exists", "mkdir", "replace"):
        number = 1
        while interrupted(name, number):
            assert {path.name for path in (tmp_path / "sweep").iterdir()} == {"sweep.json", "000-lr=0.1"}
            shutil.rmtree(tmp_path / "sweep")
            number += 1
        assert number > 1
        shutil.rmtree(tmp_path / "sweep")


SIZES = "--model.size=3,4,3", "--seed=0,1,2", "--zipped", "--num_epochs=1"


@pytest.mark.full
def test_member_with_a_wrong_value_fails_alone_and_may_be_corrected(learner, config, importable):
    """The data has three features."""
    code, out, err = learner("sweep", config, *SIZES)
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert re.fullmatch(r"2/3  001-size=4-seed=1  failed: LearnerError: train_step cannot be traced .*, .* s", lines[1])
    assert (lines[2][:23], lines[6].split()) == ("3/3  002-size=3-seed=2 ", ["4", "0", "of", "1", "-"])
    assert lines[7].startswith("1 member failed; 001-size=4-seed=1: LearnerError: ")
    with raises_code("sweep-different", "has trained 000-size=3-seed=0,"):
        plan_of(config, "--model.size=4,3,3", *SIZES[1:]).open()
    code, out, err = learner("sweep", config, "--model.size=3,3,3", *SIZES[1:])
    assert (code, err, out.count(", kept\n")) == (0, "", 2)
    assert out.splitlines()[2].startswith("3/3  003-size=3-seed=1  valid/Loss ")
    assert "failed" not in out


@pytest.mark.full
def test_first_member_with_a_wrong_value_ends_the_sweep(learner, config):
    """The corrected command may have any other settings, because nothing has trained."""
    code, _, err = learner("sweep", config, "--model.size=4,3")
    assert (code, "while training 000-size=4" in err) == (2, True)
    assert not Path("run-sweep/001-size=3").exists()
    assert learner("sweep", config, "--lr=0.1,0.2", "--num_epochs=1")[0] == 0
    assert [run.directory.name for run in find_runs(["run-sweep"])] == ["000-lr=0.1", "001-lr=0.2"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), ProcessError("gone", code="process-ended")])
def test_fault_of_the_machine_ends_the_sweep(config, importable, monkeypatch, error):
    """The first member has ended."""

    class Failing:
        def fit(self):
            if isinstance(error, OSError):
                raise LearnerError("the disk is full", code="run-disk-full") from error
            raise error

    sweep([config, "--lr=0.1,0.2", "--num_epochs=1", "--member=0"])
    monkeypatch.setattr(SweepPlan, "learner", lambda *_, **__: Failing())
    with pytest.raises(LearnerError) as raised:
        sweep([config, "--lr=0.1,0.2", "--num_epochs=1"])
    assert raised.value.__notes__ == ["while training 001-lr=0.2"]


@pytest.mark.full
def test_sweep_gets_more_epochs(learner, line_config, workplace):
    """The members equal runs that `learner resume` makes longer: the schedule has the length of the longer run."""
    schedule = {"class_path": "Cosine", "init_args": {"first": 0.1}}
    words = ("sweep", write(line_config, num_epochs=1, lr=schedule), "--seed=0..1")
    assert learner(*words)[0] == 0
    shutil.copytree("run-sweep/000-seed=0", "alone")
    assert learner("resume", "alone", "--trust", "--num_epochs=2")[0] == 0
    code, out, _ = learner(*words, "--num_epochs=2", "--member=0")
    assert (code, out.count("at epoch 2, num_epochs")) == (0, 1)
    alone, member = (read_history(Path(place)) for place in ("alone", "run-sweep/000-seed=0"))
    assert [alone[key] for key in alone] == [member[key] for key in alone]
    grown = learner(*words, "--num_epochs=2", "--seed=0..2")[1]
    assert grown.count(", kept\n") == 1
    assert "2 members were resumed from a shorter run: a schedule that depends on the length" in grown
    best_member = json.loads(learner(*words, "--num_epochs=2", "--seed=0..2", "--json")[1])["best"]
    assert ("by itself: " in grown) == (best_member == "002-seed=2")
    assert [read_summary(run.directory)["epochs"] for run in find_runs(["run-sweep"])] == [2, 2, 2]
    with raises_code("sweep-different", "num_epochs was 2 and is 1"):
        plan_of(*words[1:], "--seed=0..2").open()


HOLD = """
import sys
from pathlib import Path
from learner.runs.lock import locked

with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""
RELEASE = """

def release(info, model):
    import os, pathlib, signal

    note = pathlib.Path("holder")
    if note.exists():
        os.kill(int(note.read_text()), signal.SIGKILL)
        os.waitpid(int(note.read_text()), 0)
        note.unlink()
"""


@contextlib.contextmanager
def held(directory):
    """Hold the lock of a directory in another process, whose id is in the file `holder`."""
    directory.mkdir(parents=True)
    command = [sys.executable, "-c", HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        Path("holder").write_text(str(process.pid))
        yield
        process.stdin.close()


def test_members_in_use_are_left_to_the_other_process(learner, config, importable):
    words = ("sweep", config, "--lr=0.1,0.2", "--num_epochs=1")
    plan_of(*words[1:]).open()
    with held(Path("run-sweep/000-lr=0.1")):
        code, out, err = learner(*words)
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert [line.split("  ")[1] for line in lines[:2]] == ["001-lr=0.2", "000-lr=0.1"]
        assert lines[1].endswith("  in use by another process")
        assert "1 member is in use by another process, and missing here: 000-lr=0.1" in lines
        assert lines[lines.index("") + 3].split() == ["0.1", "0", "of", "1", "-"]
        code, _, err = learner(*words, "--member=0")
        assert (code, "is in use" in err) == (2, True)
        results = json.loads(learner(*words, "--json")[1])
        assert [each["in_use"] for each in results["members"]] == [True, False]
    code, out, _ = learner(*words)
    assert (code, out.count(", kept\n"), "in use" in out) == (0, 1, False)


@pytest.mark.full
def test_member_that_is_released_is_trained_at_the_end(learner, line_config, importable):
    with open("mymodule.py", "a") as file:
        file.write(RELEASE)
    path = write(line_config, num_epochs=1, on_epoch_end="mymodule.release")
    plan_of(path, "--lr=0.1,0.2").open()
    with held(Path("run-sweep/000-lr=0.1")):
        code, out, _ = learner("sweep", path, "--lr=0.1,0.2")
    assert (code, out.count("num_epochs, "), "in use" in out) == (0, 2, False)


def test_failure_in_another_process(tmp_path):
    """Interrupted runs and other errors may have another end here."""

    def append(**entry):
        with (tmp_path / "journal.jsonl").open("a") as file:
            file.write(json.dumps({"time": 0.0, "epoch": 1, "step": 1, **entry}) + "\n")
        return journal_version(tmp_path)

    assert nonfinite_failure(tmp_path, None) == ""
    start = append(event="start")
    error = NonFiniteError("the loss isn't finite. Try x", code="step-nonfinite")
    failed = append(event="error", error=repr(error))
    expected = "NonFiniteError: the loss isn't finite. Try x"
    assert [nonfinite_failure(tmp_path, since) for since in (None, start, failed)] == [expected, expected, ""]
    append(event="error", error=repr(LearnerError("x", code="y")))
    assert nonfinite_failure(tmp_path, failed) == ""
    append(event="start")
    assert nonfinite_failure(tmp_path, failed) == ""


def test_error_of_the_users_code_ends_the_sweep(learner, config):
    code, _, err = learner("sweep", config, "--lr=0.1,0.2", "--train_step=mymodule.broken_step")
    assert code in (1, 2)
    assert "ZeroDivisionError" in err
    assert not Path("run-sweep/001-lr=0.2").exists()


@pytest.fixture
def unlucky(line_config, workplace):
    with open("mymodule.py", "a") as file:
        file.write(UNLUCKY)
    train = {"dataset": {"class_path": "mymodule.unlucky_rows", "init_args": {"count": 12}}, "batch_size": 4}
    model = {"class_path": "mymodule.unlucky_model", "init_args": {"size": 3}}
    return write(line_config, num_epochs=1, model=model, train=train)


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--model.size=13,3"], "000-size=13"),
        (["--train.dataset.count=13,12"], "000-count=13"),
        (["--model.size=13,3", "--lr=0.1,0.05", "--zipped", "--together"], "population-0-size=13/000-size=13-lr=0.1"),
    ],
)
def test_member_that_cannot_be_built_fails_alone(learner, unlucky, words, name):
    code, out, err = learner("sweep", unlucky, *words)
    assert (code, err) == (1, "")
    assert out.startswith(f"1/2  {name}  failed: ZeroDivisionError: division by zero, ")
    assert "num_epochs" in out.splitlines()[1]
    assert f"1 member failed; {name}: ZeroDivisionError: division by zero\n" in out


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--model.size=13", "--seed=0,1"], "while checking --seed=0"),
        (["--train.dataset.count=13", "--seed=0,1"], "while training 000-seed=0"),
        (["--model.size=3,13", "--member=1"], "while training 001-size=13"),
    ],
)
def test_sweep_without_a_member_that_can_be_built_shows_the_error(learner, unlucky, options, named):
    code, _, err = learner("sweep", unlucky, *options)
    assert (code, "ZeroDivisionError: " in err, named in err) == (1, True, True)


@pytest.mark.full
def test_results_as_json(learner, swept, config):
    """The table has a row for each rate, whose mean is over its seeds."""
    code, out, err = learner("sweep", config, *SWEEP, "--json")
    results = json.loads(out)
    values = [best(f"run-sweep/{name}") for name in NAMES]
    winner = NAMES[int(np.argmin(values))]
    assert (code, results["metric"], results["higher_is_better"], results["best"]) == (0, "valid/Loss", False, winner)
    assert [(each["values"], each["epoch"], each["stopped_by"]) for each in results["members"]] == [
        ({"lr": lr, "seed": seed}, 1, "num_epochs") for lr in (0.1, 0.05) for seed in (0, 1)
    ]
    np.testing.assert_allclose([each["best"] for each in results["members"]], values)
    means = [np.mean(values[:2]), np.mean(values[2:])]
    np.testing.assert_allclose([each["mean"] for each in results["configurations"]], means)
    assert re.search(r" --lr=0.1 --seed=[01] --directory=run-sweep-best$", results["command"])
    assert "4/4" in err


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ([], ["sweep-empty"]),
        (["--lr=0.1"], ["sweep-empty"]),
        (["--lr="], ["sweep-values-empty"]),
        (["--seed=3..1"], ["sweep-range"]),
        (["--lr=loguniform:0:1", "--size=2"], ["population-range"]),
        (["--lr=1,2", "--size=2"], ["sweep-size-unused"]),
        (["--lr=logunifrm:1e-4:1e-3", "--size=2"], ["sweep-distribution"]),
        (["--lr=uniform:0:1"], ["sweep-size-missing"]),
        (["--lr=uniform:0:1", "--size=0"], ["sweep-option-value"]),
        (["--lr=1,2", "--sweep_seed=a"], ["sweep-option-value"]),
        (["--lr=1,1"], ["sweep-member-twice"]),
        (["--lr=1,2", "--seed=1,2,3", "--zipped"], ["sweep-lengths"]),
        (["--lr=1,2", "--resume=true"], ["sweep-key-fixed"]),
        (["--lr=1,2", "--overwrite=true"], ["sweep-key-fixed"]),
        (["--lr=1,2", "--directory=a,b"], ["sweep-key-fixed"]),
        (["--lr=1,2", "--metric_loggers.url=a,b"], ["sweep-key-fixed"]),
        (["--lrr=1,2"], ["config-key-unknown"]),
        (["--lr=1,2", "--metric=valid/Accurcy"], ["sweep-metric-unknown"]),
        (["--lr=1,2", "--halving.monitor=valid/Lost"], ["monitor-metric"]),
        (["--lr=1,2", "--exploit.monitor=valid/Lost"], ["monitor-metric"]),
        (["--lr=1,2", "--early_stopping.monitor=valid/Lost", "--early_stopping.patience=1"], ["monitor-metric"]),
        (["--lr=1,2", "--with_file_checkpointer.monitor=valid/Lost"], ["monitor-metric"]),
        (["--train.batch_size=2,0"], ["data-number-value"]),
        (
            ["--lr=1,2", "--optimizer.momentun=0,1", "--num_epochs=0,1"],
            ["config-arguments-mismatch", "builder-number-value"],
        ),
        (
            ["--lrr=3..1", "--seed=2..1", "--model.sise=1,2"],
            ["sweep-range", "sweep-range", "config-key-unknown", "config-arguments-mismatch"],
        ),
    ],
)
def test_mistakes_are_reported_together_before_writing(importable, config, words, codes):
    with pytest.raises(LearnerError) as raised:
        plan_of(config, *words)
    assert sorted(raised.value.codes) == sorted(codes), raised.value
    assert {path.name for path in importable.iterdir()} <= {"line.yaml", "mymodule.py", "__pycache__"}


@pytest.mark.parametrize("section", [3, ["lr"], {1: 2}])
def test_malformed_section_is_refused(line_config, workplace, section):
    with raises_code("sweep-section-type"):
        plan_of(write(line_config, sweep=section))


def test_config_is_required(learner, workplace):
    assert learner("sweep", "--lr=1,2")[0] == 2
    assert "learner sweep CONFIG" in learner("sweep")[2]
    assert "there is no config file none.yaml" in learner("sweep", "none.yaml")[2]


def test_help_does_not_import_jax():
    code = "import sys; sys.modules['jax'] = None\nfrom learner.cli.main import main\nmain(['sweep', '--help'])"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.startswith("usage: learner sweep CONFIG... [--KEY=VALUES ...]")


def outcome(values, numbers, stopped_by="num_epochs"):
    metrics = {
        key: {"higher_is_better": higher, "best": None if number is None else {"epoch": 1, "step": 1, "value": number}}
        for key, (higher, number) in numbers.items()
    }
    return Outcome(SweepMember("name", values), {"stopped_by": stopped_by, "metrics": metrics})


def test_deciding_metric():
    one = outcome({}, {"train/Loss": (False, 1.0), "valid-a/Loss": (False, 1.0), "valid-a/Odd": (None, 1.0)})
    assert metric_of(one, None) == ("valid-a/Loss", False)
    assert metric_of(one, None, "train/Loss", "max") == ("train/Loss", True)
    assert metric_of(one, "train/Loss", "valid-a/Odd", "max") == ("train/Loss", False)
    assert metric_of(one, None, "valid-a/Odd", "max") == ("valid-a/Odd", True)
    with raises_code("sweep-metric-unknown", "'valid/Loss'", "'valid-a/Loss'"):
        metric_of(one, "valid/Loss")
    with raises_code("sweep-metric-unknown", "valid-a/Odd"):
        metric_of(one, "valid-a/Odd")
    assert metric_of(outcome({}, {"train/Loss": (False, 1.0)}), None) == ("train/Loss", False)


def test_members_without_a_finite_value_are_last():
    def member(seed, rate, value):
        return outcome({"lr": rate, "seed": seed}, {"valid/Accuracy": (True, value)})

    failed = Outcome(SweepMember("failed", {"lr": 3, "seed": 0}), None, "the loss is not finite")
    members = [member(0, 1, "NaN"), member(1, 1, 0.5), member(0, 2, 0.25), member(1, 2, 0.75), failed]
    report = SweepReport("valid/Accuracy", True, members)
    spreads = [spread for spread, _ in report.configurations()]
    assert [(spread.values["lr"], spread.count, spread.total, spread.mean) for spread in spreads[:2]] == [
        (2, 2, 2, 0.5),
        (1, 1, 2, 0.5),
    ]
    assert (spreads[2].values, spreads[2].count) == ({"lr": 3}, 0)
    assert report.best()[1] is members[3]
    assert [line.split()[1:5] for line in report.lines(Path("runs"), "command")[2:4]] == [
        ["1", "of", "2", "0.5"],
        ["0", "of", "1", "-"],
    ]
    results = report.to_json(Path("runs"), None)
    json.dumps(results, allow_nan=False)
    assert [(each["count"], each["total"]) for each in results["configurations"]] == [(2, 2), (1, 2), (0, 1)]
    assert SweepReport("valid/Accuracy", True, [failed]).best() is None


def test_configuration_that_lost_members_is_ranked_last_and_the_table_counts_them():
    """Its remaining member has the best value of all."""

    def member(seed, rate, value):
        return outcome({"lr": rate, "seed": seed}, {"valid/Loss": (False, value)})

    failed = [
        Outcome(SweepMember("failed", {"lr": 1, "seed": seed}), None, "LearnerError: x. Try y") for seed in (1, 2)
    ]
    members = [member(0, 1, 0.125), *failed, member(3, 1, "NaN"), *(member(seed, 2, 0.5) for seed in range(4))]
    report = SweepReport("valid/Loss", False, members)
    assert (report.best()[0].values, report.best()[1]) == ({"lr": 2}, members[4])
    lines = report.lines(Path("runs"), None)
    assert [line.split()[:5] for line in lines[1:3]] == [["2", "4", "0.5", "0", "0.5"], ["1", "1", "of", "4", "0.125"]]
    assert lines[3:7] == [
        "2 members failed; failed: LearnerError: x. Try y",
        "1 member has no finite value of valid/Loss",
        "configurations that lack the value of a member are ranked after the others",
        "",
    ]


def test_folds_of_a_configuration_are_averaged():
    values = {(1, 0): 0.5, (1, 1): 1.0, (2, 0): 0.25, (2, 1): 0.75}
    members = [
        outcome({"lr": lr, "vars.fold": fold}, {"valid/Loss": (False, value)}) for (lr, fold), value in values.items()
    ]
    spreads = [spread for spread, _ in SweepReport("valid/Loss", False, members).configurations()]
    assert [(spread.values, spread.count, spread.mean) for spread in spreads] == [
        ({"lr": 2}, 2, 0.5),
        ({"lr": 1}, 2, 0.75),
    ]
    assert spreads[0].std == pytest.approx(0.125**0.5)


@pytest.mark.parametrize(
    ("stopped_by", "ended"),
    [("num_epochs", True), ("num_steps", True), ("early stopping: x", True), ("ctrl-c", False), ("time limit", False)],
)
def test_members_that_have_ended(tmp_path, stopped_by, ended):
    (group,) = groups_of([SweepMember("name", {"lr": 1})])
    assert not has_ended(tmp_path, group, {})
    (tmp_path / "name").mkdir()
    (tmp_path / "name" / "summary.json").write_text(json.dumps({"stopped_by": stopped_by}))
    assert has_ended(tmp_path, group, {}) == ended
