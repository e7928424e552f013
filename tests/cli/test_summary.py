"""Tests of `learner summary` of a config or run, and of the key `summary`."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.runs import tree_of

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.mark.full
def test_summary_of_a_config(learner, config, workplace):
    before = tree_of(workplace)
    code, out, err = learner("summary", config)
    assert (code, err) == (0, "")
    assert tree_of(workplace) == before
    lines = out.splitlines()
    assert lines[0].split() == ["dict", "(pytree)", "shape", "dtype", "parameters", "bytes", "share"]
    assert lines[1].split() == ["w", "[3]", "float32", "3", "12", "bytes", "100", "%"]
    assert lines[3:6] == [
        "optimizer  SGD, 0 bytes",
        "devices    one device: cpu (cpu:0)",
        "batch      4 rows, one batch a step",
    ]
    assert lines[6] == "length     3 batches = 3 steps an epoch; 2 epochs = 6 steps"
    assert lines[7].startswith("FLOPs      ")
    assert lines[-1].startswith("           a dispatch needs ")


@pytest.mark.full
def test_command_line_overrides_keys(learner, config):
    code, out, _ = learner("summary", "--num_epochs=5", config, "--train.batch_size", 6, "--grads_accumulation=2")
    assert code == 0
    assert "batch      6 rows x 2 batches = 12 rows a step\n" in out
    assert "length     2 batches = 1 step an epoch; 5 epochs = 5 steps\n" in out


def test_summary_of_a_config_as_json(learner, config):
    summary = json.loads(learner("summary", config, "--json")[1])
    assert [row["path"] for row in summary["arrays"]] == ["w"]
    assert (summary["rows"], summary["steps"], summary["memory"]["parameters"]) == (4, 6, 12)
    assert summary["peak"] > summary["temporaries"] >= 0


@pytest.mark.full
def test_depth_of_the_table(learner, config, workplace):
    (workplace / "deep.py").write_text(
        "import jax.numpy as jnp\nfrom mymodule import step as flat\n"
        "def make():\n    return {'a': {'b': {'w': jnp.zeros(3), 'v': jnp.zeros(3)}}}\n"
        "def step(model, batch):\n    return flat({'w': model['a']['b']['w']}, batch)\n"
    )
    words = ("summary", config, "--model=deep.make", "--train_step=deep.step", "--valid_step=deep.step")
    assert learner(*words)[1].splitlines()[3].split()[0] == "v"
    for more in (["--summary.depth=1"], ["--depth", 1]):
        lines = learner(*words, *more)[1].splitlines()
        assert [line.split()[0] for line in lines[1:3]] == ["a", "total"]


@pytest.mark.full
def test_summary_beside_an_existing_run(learner, trained):
    before = tree_of("run")
    assert learner("summary", trained)[0] == 0
    assert learner("summary", "run/config.yaml")[0] == 0
    assert tree_of("run") == before


@pytest.mark.full
@pytest.mark.parametrize(
    ("harm", "mark"),
    [
        (lambda path: None, None),
        (lambda path: os.truncate(path / "progress" / "metadata", 1), "damaged"),
        (lambda path: (path / "state" / "_METADATA").unlink(), "damaged"),
        (lambda path: (path / "manifest.json").write_text("{"), "damaged"),
        (shutil.rmtree, "missing"),
    ],
)
def test_missing_and_damaged_checkpoints_are_marked(learner, trained, harm, mark):
    harm(max(Path("run/checkpoint").glob("[0-9]*"), key=lambda path: int(path.name)))
    code, out, _ = learner("summary", "run")
    (line,) = (line for line in out.splitlines() if line.startswith("checkpoints: "))
    assert code == 0
    assert [word for word in ("missing", "damaged") if word in line] == [mark] * (mark is not None)
    *others, newest = json.loads(learner("summary", "run", "--json")[1])["checkpoints"]
    assert {word for word in ("missing", "damaged") if newest.get(word)} == {mark} - {None}
    assert not any("missing" in entry or "damaged" in entry for entry in others)


@pytest.mark.full
def test_checkpoints_of_a_killed_run(learner, trained):
    saved = json.loads(learner("summary", "run", "--json")[1])["checkpoints"]
    assert saved
    Path("run/summary.json").unlink()
    Path("run/checkpoint/90.partial").mkdir()
    Path("run/checkpoint/100").mkdir()  # not a checkpoint: it has no manifest
    expected = [{key: entry[key] for key in ("epoch", "step", "path")} for entry in saved]
    assert json.loads(learner("summary", "run", "--json")[1])["checkpoints"] == expected
    (line,) = (line for line in learner("summary", "run")[1].splitlines() if line.startswith("checkpoints: "))
    assert all(entry["path"] in line for entry in expected)


def test_time_of_a_start_that_was_killed(learner, workplace):
    """It recorded no parts, but counts, as in `learner compare`."""
    times = {"total": 31.0, "compile": 6.2, "train": 24.8}
    lines = [
        {"event": "start", "time": 1000.0, "epoch": 1, "step": 0},
        {"event": "stop", "time": 1031.0, "epoch": 1, "step": 5, "stopped_by": "ctrl-c", "seconds": times},
        {"event": "start", "time": 2000.0, "epoch": 1, "step": 5},
        {"event": "epoch", "time": 2031.0, "epoch": 1, "step": 10, "values": {"train/Loss": 0.5}},
    ]
    Path("killed").mkdir()
    Path("killed/journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    time = "time: 1 min 02 s: compiling 6.2 s (10 %), training 24.8 s (40 %), not broken down 31.0 s (50 %)"
    assert time in learner("summary", "killed")[1].splitlines()
    assert "1 min 02 s" in learner("compare", "killed")[1]


def test_checkpoints_before_the_first_epoch_has_ended(learner, trained):
    Path("run/summary.json").unlink()
    lines = Path("run/journal.jsonl").read_text().splitlines(keepends=True)
    Path("run/journal.jsonl").write_text("".join(line for line in lines if json.loads(line)["event"] == "start"))
    shown = learner("summary", "run")[1].splitlines()
    checkpoints = "checkpoints: checkpoint/3 (epoch 1), checkpoint/6 (epoch 2)"
    # The run has died, which is when its user needs to know how to continue.
    assert shown[1:] == ["no epoch has ended yet", checkpoints, "next:", "  learner resume run"]


@pytest.mark.full
def test_checkpoints_of_a_killed_run_in_another_directory(learner, config, workplace):
    assert learner("fit", config, "--with_file_checkpointer.directory=elsewhere")[0] == 0
    Path("run/summary.json").unlink()
    saved = json.loads(learner("summary", "run", "--json")[1])["checkpoints"]
    assert [entry["path"] for entry in saved] == [str(workplace / "elsewhere" / name) for name in ("3", "6")]
    shutil.copytree("elsewhere", "run/checkpoint")  # like a copied run, whose journal has the old paths
    saved = json.loads(learner("summary", "run", "--json")[1])["checkpoints"]
    assert [entry["path"] for entry in saved] == ["checkpoint/3", "checkpoint/6"]


@pytest.mark.parametrize(
    ("address", "mode", "problem"),
    [
        ("s3://bucket/run", 0o600, "Orbax cannot store checkpoints at s3://bucket/run"),
        ("gs://bucket/run", 0o666, "can be changed by other users"),
    ],
)
def test_checkpoints_at_an_address_that_is_not_asked(learner, trained, address, mode, problem):
    shutil.rmtree("run/checkpoint")
    Path("run/summary.json").unlink()
    journal = Path("run/journal.jsonl")
    journal.write_text(re.sub(r'(?<="path": ")[^"]*/checkpoint', address, journal.read_text()))
    journal.chmod(mode)
    code, out, err = learner("summary", "run", "--json")
    assert (code, json.loads(out)["checkpoints"]) == (0, [])
    assert f"the checkpoints in {address} are not listed" in err
    assert problem in err


@pytest.mark.parametrize("entry", [None, 3, {}, {"path": 3}, {"path": "\0"}, {"path": "gs://bucket/run/checkpoint/3"}])
def test_malformed_entry_of_a_checkpoint(learner, trained, entry):
    path = Path("run/summary.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "checkpoints": [entry]}))
    (shown,) = json.loads(learner("summary", "run", "--json")[1])["checkpoints"]
    assert shown == ({**entry, "missing": True} if entry == {"path": "\0"} else entry)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.yaml"], "there is no config file a.yaml"),
        (["line.yaml", "line.yaml"], "learner summary takes no 'line.yaml'"),
        (["line.yaml", "--num_epoch=2"], "there is no option 'num_epoch': did you mean 'num_epochs'"),
        (["line.yaml", "--dept=2"], "there is no option 'dept': did you mean 'depth'"),
        (["line.yaml", "--depth=0"], "summary(depth=) is 0: give a whole number, 1 or more"),
        (["line.yaml", "--model=mymodule.liner"], "mymodule has no 'liner': did you mean 'linear'"),
        (["line.yaml", "--metrics=[Accuracy]"], "the metric Accuracy needs logits"),
        (["run", "--depth=2"], "learner summary takes --depth for a config file, not for the directory of a run"),
        (["nowhere"], "there is no directory nowhere"),
        (["."], ". is not the directory of a run: it has neither config.yaml nor journal.jsonl"),
    ],
)
def test_invalid_arguments_are_refused(learner, config, workplace, words, message):
    (workplace / "run").mkdir()
    code, out, err = learner("summary", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_config_without_an_extension(learner, config):
    os.rename("line.yaml", "line")
    assert learner("summary", "line")[0] == 0


def test_directory_named_like_a_config_is_a_run(learner, trained):
    os.rename("run", "run.yaml")
    assert learner("summary", "run.yaml")[1].startswith("2 epochs, 6 steps")


@pytest.mark.full
def test_key_summary_of_a_config(learner, config):
    code, out, err = learner("fit", config, "--summary=true")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["dict", "(pytree)"]
    assert "batch      4 rows, one batch a step" in lines
    assert lines[-4:] == [
        "next:",
        "  learner evaluate run",
        "  learner resume run --num_epochs=4",
        "  learner report run",
    ]
    assert any(line.startswith("run: 2 epochs of 3 steps") for line in lines)
