"""Tests of `learner data`, and of the project's data sources in configs."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from learner.cli.configs.config import RunConfig
from learner.cli.configs.sources import source
from learner.cli.help import key_help
from tests.support.codes import named_case, raises_code

ROWS = {"class_path": "mymodule.rows", "init_args": {"count": 10}}


@pytest.fixture
def config(workplace):
    """Return a function that writes a config file and returns its name."""

    def write(**content):
        (workplace / "a.yaml").write_text(yaml.safe_dump(content))
        return "a.yaml"

    return write


def test_every_split_is_printed_and_no_file_is_written(learner, config, workplace):
    path = config(
        train={"dataset": ROWS, "batch_size": 4, "shuffle": True},
        valid={"dev": {"dataset": ROWS, "batch_size": 5}, "ood": {"class_path": "mymodule.batches"}},
        model={"class_path": "mymodule.no_such_model"},
        directory="run",
    )
    before = sorted(workplace.iterdir())
    code, out, err = learner("data", path)
    assert (code, err) == (0, "")
    headings = [line for line in out.splitlines() if " rows of " in line]
    assert headings == [
        "train: 10 rows of ArrayDataset, 3 batches of 4",
        "valid-dev: 10 rows of ArrayDataset, 2 batches of 5",
        "valid-ood: 12 rows of list, 3 batches of 4",
    ]
    assert all(line.isprintable() for line in out.splitlines())
    assert [path for path in sorted(workplace.iterdir()) if path.name != "__pycache__"] == before


def test_command_line_overrides_the_config(learner, config):
    path = config(train={"dataset": ROWS, "batch_size": 4})
    code, out, err = learner("data", path, "--train.batch_size=3", "--train.dataset.count=7", "--items=1", "--rows=2")
    assert (code, err) == (0, "")
    assert "train: 7 rows of ArrayDataset, 3 batches of 3; what follows is of the first 3 rows" in out
    assert out.count("\nitem ") == 1


def test_images_and_text_are_written(learner, config):
    digits = {"class_path": "digits", "init_args": {"split": "valid"}}
    path = config(train={"dataset": digits, "batch_size": 30}, valid=ROWS)
    code, out, err = learner("data", path, "-o", "out/deep")
    assert (code, err) == (0, "")
    assert "the first 64 images: out/deep/train.png" in out
    assert sorted(path.name for path in Path("out/deep").iterdir()) == ["data.txt", "train.png"]
    text = Path("out/deep/data.txt").read_text()
    assert "label: 0: 36, 1: 36" in text
    assert "valid: 10 rows" in text
    with Image.open("out/deep/train.png") as sheet:
        assert sheet.size == (402, 402)


def test_mixture(learner, config):
    """The sources have ten and three rows; the three are repeated."""
    sources = {"many": ROWS, "few": {"class_path": "mymodule.rows", "init_args": {"count": 3}}}
    content = {"class_path": "mix", "init_args": {"sources": sources, "weights": {"many": 1, "few": 3}, "size": 20}}
    code, out, err = learner("data", config(train={"dataset": content, "batch_size": 4}))
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "train: 20 rows of Mixture, 5 batches of 4",
        "a mixture of 20 rows: few 15 (75.00 %; 5.00 times its 3 rows), many 5 (25.00 %; 0.50 times its 10 rows)",
    ]
    content["init_args"]["source_field"] = "source"
    code, out, err = learner("data", config(train={"dataset": content, "views": [{"slice": {"stop": 8}}]}))
    assert (code, err) == (0, "")
    assert "source: 0 (few): " in out
    content["init_args"] |= {"weights": {"manny": 1, "few": -1}, "size": 0}
    code, out, err = learner("data", config(train={"dataset": content}))
    assert (code, out) == (2, "")
    assert "did you mean 'many'?" in err
    assert "the weight of the source 'few' is -1" in err
    assert "the size of a mixture is 0" in err


def test_batch_size_of_all_splits(learner, config):
    path = config(train={"dataset": {"class_path": "digits", "init_args": {"split": "valid"}}}, with_batch_size=100)
    code, out, err = learner("data", path)
    assert (code, err) == (0, "")
    assert "train: 360 rows of ArrayDataset, 4 batches of 100" in out


def test_invalid_data_is_refused(learner, config):
    cases = [
        ({}, [], "train is missing: give it in the config"),
        (
            {"x": 1},
            [],
            "2 problems:\n  1. there is no option 'x': learner fit --help=keys lists all keys\n  2. train is miss",
        ),
        ({"tarin": ROWS}, [], "there is no option 'tarin': did you mean 'train'"),
        ({"train": {"dataset": "cvs"}}, [], "train.dataset: there is no 'cvs': did you mean 'csv'"),
        ({"train": {"dataset": ROWS, "batchsize": 3}}, [], "train has no 'batchsize': did you mean 'batch_size'"),
        ({"train": {"dataset": ROWS}}, ["--rows=0"], "--rows is '0': give a whole number, 1 or more"),
        ({"train": {"dataset": ROWS}}, ["--rows=few"], "--rows is 'few'"),
        ({"train": {"dataset": ROWS}}, ["-o", "mymodule.py"], "the output is mymodule.py, which cannot be a directory"),
        ({"train": {"dataset": {"class_path": "csv", "init_args": {"path": "no.csv"}}}}, [], "there is no file no.csv"),
        (
            {"train": {"dataset": {"class_path": "mnist", "init_args": {"split": "train"}}}},
            [],
            "mnist needs 'directory'",
        ),
        (
            {"train": {"dataset": {"class_path": "mnist", "init_args": {"split": "train", "directory": "no"}}}},
            [],
            "mnist: no is not a directory; get the files from https://",
        ),
    ]
    for content, words, message in cases:
        with named_case((content, words, message)):
            code, out, err = learner("data", config(**content), *words)
            assert (code, out) == (2, "")
            assert message in err


def test_problems_are_reported_together(learner, config):
    code, _, err = learner("data", config(train={"dataset": "cvs"}, valid={"dataset": "digts"}, sed=1))
    assert code == 2
    assert "this config cannot be used, 3 problems:" in err


def test_config_is_required(learner, workplace):
    for words, message in (((), "required: CONFIG"), (("a.yaml", "b.yaml"), "learner data takes no 'b.yaml'")):
        code, _, err = learner("data", *words)
        assert (code, message in err) == (2, True)
    code, out, _ = learner("data", "--help")
    assert (code, out.startswith("usage: learner data CONFIG")) == (0, True)


def write_files(place):
    """Write small files of several formats."""
    (place / "a.csv").write_text("a,b,kind\n1,2,x\n3,4,y\n5,6,x\n")
    (place / "a.jsonl").write_text("".join(json.dumps({"a": i, "b": i + 1}) + "\n" for i in range(3)))
    np.savez(place / "a.npz", x=np.zeros((3, 2), np.float32))
    (place / "a.txt").write_text("some text to read")
    (place / "images" / "one").mkdir(parents=True)
    for i in range(3):
        Image.new("L", (4, 4)).save(place / "images" / "one" / f"{i}.png")


@pytest.mark.parametrize(
    ("name", "arguments", "fields"),
    [
        (
            "csv",
            {"path": "a.csv", "fields": {"x": ["a", "b"], "y": "kind"}, "labels": {"y": None}},
            {"x": (3, 2), "y": (3,)},
        ),
        (
            "csv",
            {"path": "a.csv", "labels": {"kind": ["y", "x"]}, "dtypes": {"a": "uint8"}, "missing": 0},
            {"a": (3,), "b": (3,), "kind": (3,)},
        ),
        ("json_lines", {"path": "a.jsonl", "fields": {"x": ["a", "b"]}}, {"x": (3, 2)}),
        ("numpy_arrays", {"path": "a.npz"}, {"x": (3, 2)}),
        ("numpy_arrays", {"path": {"x": "x.npy"}}, {"x": (3, 2)}),
        ("TextWindows", {"path": "a.txt", "length": 5, "level": "characters"}, {"text": (3, 5), "target": (3, 5)}),
        ("ImageFolder", {"directory": "images", "size": [2, 2], "mode": "L"}, {"image": (3, 2, 2), "label": (3,)}),
        (
            "ForeignDataset",
            {
                "dataset": {"class_path": "learner.data.csv", "init_args": {"path": "a.csv", "labels": {"kind": None}}},
                "fields": ["a"],
            },
            {"a": (3,)},
        ),
    ],
)
def test_sources_in_a_config_and_in_its_saved_text(importable, name, arguments, fields):
    write_files(importable)
    np.save("x.npy", np.zeros((3, 2)))
    for path in (name, f"learner.data.{name}"):
        first = source({"dataset": {"class_path": path, "init_args": arguments}, "batch_size": 3}, "train", 0)
        second = source(yaml.safe_load(yaml.safe_dump(first.config())), "train", 0)
        assert second.config() == first.config()
        for data in (first, second):
            (batch,) = list(data.make())
            assert {field: array.shape for field, array in batch.items()} == fields


def test_arguments_of_sources_are_checked(importable):
    with raises_code("config-arguments-mismatch", "train.dataset.init_args", "'feilds'", "'fields'"):
        source({"dataset": {"class_path": "csv", "init_args": {"path": "a.csv", "feilds": {}}}}, "train", 0)
    with raises_code("config-arguments-mismatch", "train.dataset.init_args.fields", "3"):
        source({"dataset": {"class_path": "csv", "init_args": {"path": "a.csv", "fields": 3}}}, "train", 0)


@pytest.mark.full
def test_run_with_data_from_a_file(learner, workplace, line_config):
    """The model of the other tests needs `x` with three numbers, and `y`."""
    lines = ["a,b,c,y", *(f"{i},{i + 1},{i % 3},{i / 8}" for i in range(8))]
    (workplace / "rows.csv").write_text("\n".join(lines))
    fields = {"x": ["a", "b", "c"], "y": "y"}
    data = {
        "dataset": {
            "class_path": "csv",
            "init_args": {"path": "rows.csv", "fields": fields, "dtypes": {"x": "float32"}},
        }
    }
    content = line_config | {"train": {**data, "batch_size": 4}, "valid": {**data, "batch_size": 8}, "lr": 0.001}
    (workplace / "run.yaml").write_text(yaml.safe_dump(content))
    code, _, err = learner("fit", "run.yaml", "--num_epochs=2")
    assert code == 0, err
    saved = yaml.safe_load(Path("run/config.yaml").read_text())
    assert saved["train"]["dataset"]["init_args"]["fields"] == fields
    assert RunConfig(saved).text() == Path("run/config.yaml").read_text().partition("code.\n")[2]
    assert learner("data", "run/config.yaml")[0] == 0


def test_help_lists_the_sources():
    text = key_help("train.dataset", "", {})
    for name in ("csv(path, fields=null", "mnist(directory, split", "digits(split", "SQLiteTable(path, table"):
        assert f"\n  {name}" in text
    assert "--labels" in key_help("valid.dataset", "csv", {})
