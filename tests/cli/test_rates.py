"""Tests of `learner plot-lr` and `learner find-lr`."""

import numpy as np
import pytest
import yaml

from learner.cli.rates import range_plot, rate_plot
from learner.diagnostics.rate_range import RangeTest
from learner.schedules import RunLength
from learner.util.distribution import install_hint
from tests.support.runs import tree_of

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def config(workplace, line_config):
    """Write a config of two epochs of three steps with a cosine schedule, and return its name."""
    lr = {"class_path": "Cosine", "init_args": {"first": 0.1}}
    (workplace / "line.yaml").write_text(yaml.safe_dump(line_config | {"num_epochs": 2, "lr": lr}))
    return "line.yaml"


def test_plot_of_the_rate(learner, config, workplace):
    before = tree_of(workplace)
    code, out, err = learner("plot-lr", config)
    assert (code, err) == (0, "")
    assert out.splitlines()[-3:] == [
        "Cosine(first=0.1) in 6 steps",
        "2 epochs of 3 steps, 6 steps in all",
        "the rate is 0.1 at first, at most 0.1, and 0.0067 in the last step",  # (1 + cos(5/6 pi)) / 20
    ]
    assert any(0x2800 < ord(mark) < 0x2900 for mark in out)
    assert tree_of(workplace) == before


def test_plot_makes_no_model_and_reads_no_row(learner, config, workplace):
    """The plot needs only the length of the data."""
    (workplace / "closed.py").write_text(
        "class Closed:\n"
        "    def __len__(self):\n        return 12\n"
        "    def __getitem__(self, index):\n        raise AssertionError('a row was read')\n"
        "def model():\n    raise AssertionError('a model was made')\n"
    )
    words = ("--model=closed.model", "--train.dataset=closed.Closed", "--num_epochs=1")
    code, out, err = learner("plot-lr", config, *words)
    assert (code, err) == (0, "")
    assert "Cosine(first=0.1) in 3 steps" in out


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["--lr=0.25", "--num_epochs=1"], ["0.25 in every step", "1 epoch of 3 steps, 3 steps in all"]),
        (["--lr=ReduceOnPlateau", "--lr.lr=0.5"], ["0.5 in every step; ReduceOnPlateau lowers the rate"]),
        (["--lr.over=4", "--num_steps=5"], ["ends after 4 of 5 steps; from there on the rate stays 0"]),
        (["--grads_accumulation=2", "--lr.over=1", "--lr.unit=epochs"], ["2 epochs of 2 steps", "ends after 2 of 4"]),
        (["--lr=CosineDecaySchedule", "--lr.init_value=0.5", "--lr.decay_steps=6"], ["at most 0.5, and 0.0335 in"]),
        (
            ["--lr=MultiStep", "--lr.first=0.1", "--lr.milestones=[2, 9]"],
            ["milestones[1] of MultiStep(", ") is not reached: it is step 9, and there are 6 steps"],
        ),
        (["--num_steps=4"], ["1.33333 epochs of 3 steps, 4 steps in all"]),
    ],
)
def test_description_of_the_rate(learner, config, words, messages):
    code, out, _ = learner("plot-lr", config, *words)
    assert code == 0
    assert [text for text in messages if text not in out] == []


def test_schedules_of_groups(learner, config, workplace):
    group = "{match: w, lr: {class_path: Linear, init_args: {first: 0.4, over: 3}}}"
    words = ("--optimizer=Groups", "--optimizer.optimizer=SGD", f"--optimizer.groups=[{group}, {{match: b, lr: 2.0}}]")
    code, out, _ = learner("plot-lr", config, *words)
    assert code == 0
    assert out.splitlines()[-3:] == [
        "group 0: Linear(first=0.4, over=3.0)",
        "group 0: the rate is 0.4 at first, at most 0.4, and 0 in the last step",
        "group 0: the schedule Linear(first=0.4, over=3.0) ends after 3 of 6 steps; from there on the rate stays 0",
    ]
    assert [text for text in ("learning rate", "group 0", "Cosine(first=0.1) in 6 steps") if text not in out] == []
    code, _, err = learner("plot-lr", config, *words, "--optimizer.groups.0.lr.over=0.0")
    assert (code, "over is 0.0; it needs a number of steps greater than 0" in err) == (2, True)


@pytest.mark.full
def test_plot_in_a_file(learner, config, workplace):
    code, out, _ = learner("plot-lr", config, "-o", "rate.png")
    assert code == 0
    assert out.splitlines()[-1] == "rate.png"
    assert (workplace / "rate.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["plot-lr"], "the following arguments are required: CONFIG; learner plot-lr CONFIG"),
        (["find-lr"], "the following arguments are required: CONFIG; learner find-lr CONFIG"),
        (["plot-lr", "line.yaml", "-o", "rate.jpg"], "it needs the name of a .png file"),
        (["find-lr", "line.yaml", "-o", "nowhere/a.png"], "it needs the name of a .png file"),
        (["plot-lr", "line.yaml", "--lr.first=-1"], "Cosine: first is -1.0; it needs a number 0 or more"),
        (["find-lr", "line.yaml", "--stepz=3"], "there is no option 'stepz': did you mean 'steps'?"),
        (["plot-lr", "line.yaml", "--num_epoch=1"], "there is no option 'num_epoch': did you mean 'num_epochs'"),
        (
            ["plot-lr", "line.yaml", "--lr=WarmupStableDecay", "--lr.peak=1", "--lr.warmup=5", "--lr.decay=2"],
            "decay=2.0): a warm-up of 5 steps and a decay of 2 do not fit into its 6 steps",
        ),
        (["find-lr", "line.yaml", "--steps=1"], "steps is 1; it needs a whole number, 2 or more"),
        (["find-lr", "line.yaml", "--lowest=a"], "lowest is 'a'; it needs a rate"),
    ],
)
def test_invalid_arguments_are_refused(learner, config, words, messages):
    code, _, err = learner(*words)
    assert code == 2
    assert messages in err


def test_data_of_unknown_length(learner, config, workplace):
    (workplace / "endless.py").write_text("def make():\n    return iter([])\n")
    code, _, err = learner("plot-lr", config, "--train=endless.make", "--lr=0.1")
    assert code == 2
    assert "the run's length is not known" in err
    code, out, _ = learner("plot-lr", config, "--train=endless.make", "--num_steps=5", "--num_epochs=null")
    assert code == 0
    assert "Cosine(first=0.1) in 5 steps\n5 steps\n" in out


@pytest.mark.parametrize(("words", "package"), [([], "plotext"), (["-o", "rate.png"], "matplotlib")])
def test_missing_package_is_an_error(learner, config, monkeypatch, words, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    code, out, err = learner("plot-lr", config, *words)
    assert (code, out) == (2, "")
    assert f"a plot needs {package}, which is not installed: {install_hint('plots')}" in err


@pytest.mark.full
def test_range_test(learner, config, workplace):
    before = tree_of(workplace)
    code, out, err = learner("find-lr", config, "--lowest=1e-3", "--highest=100", "--steps=40", "--smoothing=0.5")
    assert (code, err) == (0, "")
    assert "loss by learning rate" in out
    assert [line.split() for line in out.splitlines() if line.startswith("step ")] == [
        ["step", "rate", "loss", "smoothed"]
    ]
    assert "the loss falls fastest at the rate" in out
    assert tree_of(workplace) == before


@pytest.mark.full
def test_range_test_in_a_file(learner, config, workplace):
    code, out, _ = learner("find-lr", config, "--steps=5", "-o", "range.png")
    assert code == 0
    assert out.splitlines()[-1] == "range.png"
    assert (workplace / "range.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in workplace.iterdir() if path.suffix == "") == []


@pytest.mark.full
def test_range_test_without_plotext(learner, config, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, _ = learner("find-lr", config, "--steps=5")
    assert code == 0
    assert out.startswith("step ")


@pytest.mark.full
def test_plot_of_a_long_run_has_1000_points():
    plot, lines = rate_plot(lambda step: 1.0 / (1 + step), None, RunLength(10**6, None))
    steps, rates = plot.lines["learning rate"]
    assert (len(steps), steps[0], steps[-1]) == (1000, 0, 999_999)
    np.testing.assert_allclose(rates, [1.0 / (1 + step) for step in steps], rtol=1e-6)
    assert lines[1] == "1,000,000 steps"


def test_losses_far_above_the_first_are_not_plotted():
    result = RangeTest(np.geomspace(0.1, 1.0, 4), np.array([2.0, 1.0, 3.1, 2.9]), 4, 0.0)
    assert [x for x in range_plot(result).lines["loss"][1] if x == x] == [2.0, 1.0, 2.9]
