"""Tests of `learner export`."""

import os

import numpy as np
import pytest
import yaml

from learner import load_checkpoint, load_model


@pytest.fixture
def run(workplace, line_config, learner):
    """Train a run of three epochs, all of whose checkpoints are kept, and return its directory."""
    (workplace / "line.yaml").write_text(yaml.safe_dump(line_config))
    words = [
        "--num_epochs=3",
        "--with_file_checkpointer.keep_last=3",
        "--with_file_checkpointer.record=CompactRecorder",
    ]
    assert learner("fit", "line.yaml", *words)[0] == 0
    return "run"


def test_model_of_a_checkpoint_is_exported(run, learner):
    given = {"w": np.zeros(3, np.float32)}
    for words, which in (((), "latest"), (("--checkpoint=2",), 2), (("--checkpoint=best",), "best")):
        code, out, _ = learner("export", run, "-o", "line.safetensors", *words)
        expected = load_checkpoint(run, which, given)
        assert code == 0
        where = f"the model of step {expected.step} (epoch {expected.epoch}) in full precision"
        assert out == f"line.safetensors: {os.path.getsize('line.safetensors')} bytes, {where}\n"
        np.testing.assert_array_equal(load_model("line.safetensors", given)["w"], expected.model["w"])
    assert learner("export", run, "-o", "line.mpk.gz", "--precision=half")[0] == 0
    with open("line.mpk.gz", "rb") as ours, open("run/checkpoint/model-3.mpk.gz", "rb") as theirs:
        assert ours.read() == theirs.read()
    code, _, err = learner("export", run, "-o", "x.mpk", "--checkpoint=7")
    assert (code, "there is no checkpoint of the end of epoch 7" in err) == (2, True)
    assert not os.path.exists("x.mpk")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "learner export DIR -o FILE"),
        (["-o", "x.mpk"], "learner export DIR -o FILE"),
        (["nowhere", "-o", "x.mpk"], "there is no directory nowhere"),
        (["nowhere", "-o", "x.pt"], "x.pt has no extension of a record"),
        (["nowhere", "-o", "no/x.mpk"], "a directory that exists"),
        (["nowhere", "-o", "x.mpk", "--precision=f16"], "it needs 'full' or 'half' or 'double'"),
    ],
)
def test_invalid_arguments_are_refused(learner, workplace, words, message):
    code, out, err = learner("export", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert os.listdir() == ["mymodule.py"]


def test_directories_links_pipes_and_devices_are_not_replaced(run, learner):
    os.mkfifo("pipe.csv")
    os.mkdir("folder.csv")
    for name in ("null.csv", "null.safetensors"):
        os.symlink("/dev/null", name)
    for words in (
        ["pipe.csv", "--format=csv"],
        ["folder.csv", "--format=csv"],
        ["null.csv", "--format=csv"],
        ["null.safetensors"],
    ):
        before = os.lstat(words[0])
        code, out, err = learner("export", run, "-o", *words)
        assert (code, out, f"the output {words[0]} is " in err) == (2, "", True)
        assert os.lstat(words[0]) == before
