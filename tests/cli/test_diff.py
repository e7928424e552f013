"""Tests of `learner diff`."""

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from learner.cli.main import main
from tests.support.runs import batches, build_line, quiet, tree_of


@pytest.mark.full
def test_diff_of_two_runs(learner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lr in (("a", 0.05), ("b", 0.1)):
        build_line(quiet(tmp_path / name), lr).fit(batches())
    code, out, _ = learner("diff", "a", "b")
    assert code == 1
    assert out.splitlines()[0].split() == ["settings", "lr", "0.05", "0.1"]
    assert "train/Loss parts at step 2" in out
    code, out, _ = learner("diff", "a", "b", "--json", "--tolerance=2")
    assert (code, json.loads(out)["parting"]) == (0, None)
    assert learner("diff", "a", "a")[:2] == (0, "train/Loss of 6 steps is the same\n")
    code, _, err = learner("diff", "a", "nowhere")
    assert (code, "no directory nowhere" in err) == (2, True)


@pytest.mark.full
def test_diff_of_a_run_and_a_config(learner, line_config, importable):
    """Keys that a config omits have their defaults, and do not differ. Values are not compared."""
    Path("line.yaml").write_text(yaml.safe_dump(line_config))
    assert learner("fit", "line.yaml", "--num_epochs=1")[0] == 0
    Path("more.yaml").write_text(yaml.safe_dump({**line_config, "num_epochs": 1, "directory": "other"}))
    before = tree_of(Path("run"))
    assert learner("diff", "run", "more.yaml")[:2] == (0, "no setting differs\n")
    Path("more.yaml").write_text(yaml.safe_dump({**line_config, "num_epochs": 1, "lr": 0.5, "seed": 7}))
    code, out, _ = learner("diff", "run", "more.yaml")
    assert (code, [line.split() for line in out.splitlines()[:-1]]) == (
        1,
        [["settings", "lr", "0.1", "0.5"], ["settings", "seed", "0", "7"]],
    )
    code, out, _ = learner("diff", "run", "more.yaml", "--json")
    assert json.loads(out)["settings"] == {"lr": [0.1, 0.5], "seed": [0, 7]}
    assert tree_of(Path("run")) == before
    assert learner("diff", "run", "more.yaml", "--replay=2")[0] == 2
    Path("run", "config.yaml").unlink()
    code, _, err = learner("diff", "run", "more.yaml")
    assert (code, "was started from Python" in err) == (2, True)


# -- replay ------------------------------------------------------------------------------------------------------------

RANDOM = """
import jax

from learner import Updates
from mymodule import step


def halve(info, model):
    return Updates(lr_scale=0.5)


def drawn(rngs):
    return {"w": jax.random.normal(rngs.params(), (3,))}
"""


@pytest.fixture(scope="module")
def runs(shared_workplace, compiled_once):
    """Train runs of six steps with checkpoints of steps 3 and 6, and return their directory, with the modules of their
    configs.
    """
    (shared_workplace / "random_line.py").write_text(RANDOM)
    drawn = "--model=random_line.drawn"
    with contextlib.chdir(shared_workplace), contextlib.redirect_stdout(io.StringIO()):
        for name, *words in (
            ("one", drawn),
            ("twin", drawn),
            ("order", drawn, "--train.shuffle=false"),
            ("rate", drawn, "--lr=0.2"),
            ("updated", drawn, "--every={steps: 4, fn: random_line.halve}"),
        ):
            words = (f"--directory={name}", "--valid=null", "--valid_step=null", *words)
            assert main(["fit", "line.yaml", *words]) == 0
    for name in ("mymodule", "random_line"):
        del sys.modules[name]
    return shared_workplace


@pytest.fixture
def fresh_modules():
    """Import the modules of the runs anew in each test."""
    yield
    for name in ("mymodule", "random_line"):
        sys.modules.pop(name, None)


@pytest.fixture
def among_runs(runs, fresh_modules, monkeypatch):
    """Change to the directory of the runs, and check that it does not change."""
    monkeypatch.chdir(runs)
    before = tree_of(runs)
    yield runs
    assert {name: x for name, x in tree_of(runs).items() if "__pycache__" not in name} == {
        name: x for name, x in before.items() if "__pycache__" not in name
    }


@pytest.mark.full
def test_replay_without_a_difference(learner, among_runs):
    code, out, err = learner("diff", "one", "twin", "--replay=5")
    assert (code, out.splitlines()) == (
        0,
        ["train/Loss of 6 steps is the same", "replayed from the checkpoints of step 3 to step 5: no array differs"],
    )
    assert err.count("is trusted") == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("other", "step", "heading", "first"),
    [
        ("rate", 1, "replay: the states before the first step differ already", "lr_scale differs in 1 of 1 values"),
        ("order", 1, "replayed from the states before the first step: step 1 differs", "batch/x differs in 12 of 12"),
        ("order", 4, "replay: the checkpoints of step 3 differ already: replay an earlier step, up to 3,", "params/w"),
    ],
)
def test_replay_finds_the_first_array_that_differs(learner, among_runs, other, step, heading, first):
    code, out, _ = learner("diff", "one", other, f"--replay={step}")
    lines = out[out.index("\nreplay") :].splitlines()
    assert (code, lines[1].startswith(heading), lines[2].strip().startswith(first)) == (1, True, True), out


@pytest.mark.full
def test_schedules_that_differ_at_the_second_step(learner, config):
    rate = "{class_path: Linear, init_args: {first: 0.1, last: %s, over: 6, unit: steps}}"
    for name, last in (("slow", 0.05), ("slower", 0.01)):
        assert learner("fit", config, f"--directory={name}", f"--lr={rate % last}")[0] == 0
    code, out, _ = learner("diff", "slow", "slower", "--replay=3", "--json", "--tolerance=9")
    replay = json.loads(out)["replay"]
    assert (code, replay["start"], replay["stop"], replay["step"]) == (1, 0, 3, 2)
    assert (replay["difference"]["path"], replay["difference"]["kinds"]) == ("params/w", ["float32[3]", "float32[3]"])
    assert replay["explanation"] == "replayed from the states before the first step: step 2 differs"


@pytest.mark.full
def test_replay_of_changed_code(learner, runs, fresh_modules, tmp_path, monkeypatch):
    shutil.copytree(runs, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    module = tmp_path / "copy" / "mymodule.py"
    module.write_text(module.read_text().replace("scale: float = 1.0", "scale: float = 2.0"))
    code, out, _ = learner("diff", "one", "twin", "--replay=2", "--json")
    replay = json.loads(out)["replay"]
    assert (code, replay["step"], len(replay["losses"])) == (0, None, 2)
    assert ["the loss of step 1 is" in note for note in replay["notes"]] == [True, True]
    assert [note.split(":")[0] for note in replay["notes"]] == ["one", "twin"]
    for other, notes in (("twin", 2), ("one", 1)):
        out = learner("diff", "one", other, "--replay=2")[1]
        assert out.count("devices or versions differ from those of the run") == notes


@pytest.mark.full
def test_steps_after_an_update_by_a_hook_are_refused(learner, among_runs):
    """The hook changes the run after step 4, and the checkpoints are of step 3."""
    assert learner("diff", "one", "updated", "--replay=4", "--tolerance=9")[0] == 0
    for pair in (("one", "updated"), ("updated", "one")):
        code, _, err = learner("diff", *pair, "--replay=5")
        assert (code, "updated was changed by a hook (Updates) after step 4" in err) == (2, True)


@pytest.mark.full
def test_invalid_replays_are_refused(learner, among_runs, tmp_path):
    for step in ("0", "7"):
        code, _, err = learner("diff", "one", "twin", f"--replay={step}")
        assert (code, f"--replay is {step}; one has the steps 1 to 6" in err) == (2, True)
    build_line(quiet(tmp_path / "python")).fit(batches())
    code, _, err = learner("diff", tmp_path / "python", "one", "--replay=1")
    assert (code, "the run was started from Python" in err, "load_checkpoint" in err) == (2, True, True)
    code, _, err = learner("diff", "one", "twin", "--replay=soon")
    assert (code, "invalid int value: 'soon'" in err) == (2, True)


@pytest.mark.full
def test_replay_of_an_untrusted_run_is_refused(learner, among_runs, tmp_path):
    shutil.copytree("one", tmp_path / "foreign")
    (tmp_path / "foreign" / "config.yaml").chmod(0o666)
    words = ["diff", "one", tmp_path / "foreign", "--replay=1"]
    code, _, err = learner(*words)
    assert (code, "--trust" in err, "mymodule" in sys.modules) == (2, True, False)
    assert learner(*words, "--trust")[0] == 0
