"""Tests of the guide: its scripts equal the code in its README, and print the output shown there."""

import contextlib
import dataclasses
import gzip
import importlib
import itertools
import json
import re
import shlex
import shutil
import struct
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from learner.cli.main import main
from learner.data import digits
from learner.runs.history import read_history
from tests.support.shown import assert_shown

GUIDE = Path(__file__).parents[2] / "examples" / "guide"
README = (GUIDE / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
MODULES = ("data", "inference", "model", "training")

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Return a copy of the guide, with default settings. Its modules are removed afterwards, as they have common
    names.
    """
    shutil.copytree(GUIDE, tmp_path / "guide", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    monkeypatch.chdir(tmp_path / "guide")
    monkeypatch.syspath_prepend(str(tmp_path / "guide"))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield tmp_path / "guide"
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command of the README. Return its exit code, and its output on both streams."""

    def command(line):
        program, *words = shlex.split(line)
        code = 0
        if program == "python":
            monkeypatch.setattr(sys, "argv", words)
            with contextlib.suppress(SystemExit):
                code = 2
                importlib.import_module(words[0].removesuffix(".py")).main()
                code = 0
        elif program == "cat":
            print(Path(words[0]).read_text(), end="")
        else:
            assert program == "learner"
            code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def shown(language):
    return [text for kind, text in BLOCKS if kind == language]


def test_the_code_that_is_shown_is_that_of_the_files():
    files = [(GUIDE / f"{name}.py").read_text() for name in MODULES]
    assert len(shown("python")) >= 8
    for code in shown("python"):
        assert sum(code in text for text in files) == 1, code


def test_links_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) >= 6
    for link in links:
        assert (GUIDE / link).exists(), link


@pytest.mark.full
def test_a_short_training_leaves_a_record_that_answers(place):
    training, inference = (importlib.import_module(name) for name in ("training", "inference"))
    assert shown("yaml")[0] == Path("small.yaml").read_text()
    config = dataclasses.replace(training.TrainingConfig.load("small.yaml"), batch_size=479, num_epochs=1)
    result = training.train(config, "runs/small")
    assert training.TrainingConfig.load("runs/small/training.json") == config
    model, valid = inference.load("runs/small"), digits("valid")
    answers = inference.infer(model, [valid[index] for index in range(len(valid))])
    assert np.mean(answers == valid.arrays["label"]) == pytest.approx(result.history["valid/Accuracy"][-1], abs=0.01)
    assert nnx.state(model, nnx.Param)["hidden"]["kernel"].shape == (4 * 4 * 16, 32)


def test_errors_print_what_is_shown(run):
    wrong, messages = shown("yaml")[1:], [text for text in shown("text") if "error:" in text]
    assert len(wrong) == len(messages) == 2
    for content, message in zip(wrong, messages, strict=True):
        Path("wrong.yaml").write_text(content)
        code, _, err = run("python training.py --config=wrong.yaml")
        assert code == 2
        assert err.endswith(message)


def test_the_batcher_scales_and_adds_a_channel(place):
    pixels = np.array([[0, 0.2], [1, 0.4]], np.float32)
    batch = importlib.import_module("data").DigitBatcher()([{"image": pixels, "label": 3}] * 2)
    expected = (np.array([0, 0.2, 1, 0.4]) - 0.1307) / 0.3081
    np.testing.assert_allclose(batch["image"][1].ravel(), expected, rtol=1e-5)
    assert (batch["image"].shape, batch["label"].tolist()) == ((2, 2, 2, 1), [3, 3])
    assert (batch["image"].dtype, batch["label"].dtype) == (np.float32, np.int32)


@pytest.mark.full
def test_it_trains_on_the_files_of_mnist(place, run):
    """Digits of scikit-learn, enlarged to the size of MNIST's images, in files of MNIST's format."""
    for split, name, count in (("train", "train", 479), ("valid", "t10k", 64)):
        arrays = {key: array[:count] for key, array in digits(split).arrays.items()}
        images = np.pad((np.kron(arrays["image"], np.ones((3, 3))) * 255).astype(np.uint8), ((0, 0), (2, 2), (2, 2)))
        labels = arrays["label"].astype(np.uint8)
        for what, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            Path("mnist").mkdir(exist_ok=True)
            Path(f"mnist/{name}-{what}.gz").write_bytes(gzip.compress(header + array.tobytes()))
    Path("mnist.yaml").write_text("{num_epochs: 1, batch_size: 479, model: {channels: [2, 3]}}")
    code, out, err = run("python training.py --mnist=mnist --config=mnist.yaml --directory=runs/mnist")
    assert (code, err) == (0, "")
    assert "1 epoch of 1 step," in out
    code, out, err = run("python inference.py --mnist=mnist --directory=runs/mnist --count=64")
    assert (code, err) == (0, "")
    assert [int(line.split()[-1]) for line in out.splitlines()] == digits("valid").arrays["label"][:64].tolist()


def test_both_image_sizes_are_accepted(place):
    config = importlib.import_module("model").ModelConfig(channels=(2, 3), hidden=4)
    for size in (8, 28):
        shape = jax.ShapeDtypeStruct((2, size, size, 1), np.float32)
        assert jax.eval_shape(lambda images: config.init(nnx.Rngs(0))(images), shape).shape == (2, 10)


@pytest.mark.full
def test_the_commands_print_what_is_shown(run, place):
    commands = [line for text in shown("sh") for line in text.splitlines()]
    assert commands[0] == "cd examples/guide"
    printed = {}
    for line in commands[1:]:
        code, printed[line], err = run(line)
        assert (code, err) == (0, "")
    for (kind, line), (other, text) in itertools.pairwise(BLOCKS):
        if kind == "sh" and other == "text":
            assert_shown(text, printed[line.strip()])
    assert json.loads(shown("json")[0]) == json.loads(printed["cat runs/guide/training.json"])
    ours, theirs = read_history("runs/guide"), read_history("runs/yaml")
    assert ours.keys() == theirs.keys()
    for key, values in ours.items():
        assert values == theirs[key], key
    assert max(ours["valid/Accuracy"]) > 0.95
