"""Tests of the files that hold a model's outputs for all rows of some data."""

import csv
import json
import sys

import ml_dtypes
import numpy as np
import pyarrow.parquet
import pytest

from learner.cli.predictions import MOST_COLUMNS, joined, write_outputs
from learner.util.distribution import install_hint
from tests.support.codes import raises_code

ARRAYS = {
    "kind": np.int32([7, -1]),
    "ok": np.array([True, False]),
    "logits": np.float32([[0.1, np.inf], [np.nan, -2.5]]),
    "half": np.array([0.1, 0.5], ml_dtypes.bfloat16),
    "box": np.arange(8, dtype=np.float64).reshape(2, 2, 2) / 3,
}
BOXES = ["box.0.0", "box.0.1", "box.1.0", "box.1.1"]
THIRDS = [str(number / 3) for number in range(8)]


def test_a_csv_file_has_a_column_for_each_number(tmp_path):
    """Numbers of 32 bits have their shortest texts, which name them without a doubt."""
    write_outputs(tmp_path / "a.CSV", ARRAYS)
    with (tmp_path / "a.CSV").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["kind", "ok", "logits.0", "logits.1", "half", *BOXES]
    assert rows == [
        ["7", "True", "0.1", "Infinity", "0.100097656", *THIRDS[:4]],
        ["-1", "False", "NaN", "-2.5", "0.5", *THIRDS[4:]],
    ]


def test_json_lines_have_lists(tmp_path):
    write_outputs(tmp_path / "a.jsonl", ARRAYS)
    first, second = (json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines())
    assert first["logits"] == [0.1, "Infinity"]
    assert second == {
        "kind": -1,
        "ok": False,
        "logits": ["NaN", -2.5],
        "half": 0.5,
        "box": ARRAYS["box"][1].tolist(),
    }


def test_parquet_has_the_types_and_bits_of_the_arrays(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.cli.predictions.CHUNK", 1)
    write_outputs(tmp_path / "a.parquet", ARRAYS)
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    types = dict(zip(table.schema.names, map(str, table.schema.types), strict=True))
    assert types == {
        "kind": "int32",
        "ok": "bool",
        "logits.0": "float",
        "logits.1": "float",
        "half": "float",
        **dict.fromkeys(BOXES, "double"),
    }
    np.testing.assert_array_equal(table["logits.0"].to_numpy(), ARRAYS["logits"][:, 0])
    np.testing.assert_array_equal(table["box.1.0"].to_numpy(), ARRAYS["box"][:, 1, 0])


def test_npz_has_the_arrays_as_they_are(tmp_path):
    write_outputs(tmp_path / "a.npz", {"box": ARRAYS["box"]})
    with np.load(tmp_path / "a.npz") as arrays:
        np.testing.assert_array_equal(arrays["box"], ARRAYS["box"])


KINDS = ["flat", "house", "hut"]


def test_numbers_of_labels_are_their_texts_in_tables(tmp_path):
    arrays = {"kind": np.array([2, 0]), "top": np.uint8([[0, 1], [2, 1]]), "part": np.int32([3, 0]), "x": np.ones(2)}
    labels = {**dict.fromkeys(("kind", "top", "part", "x"), KINDS), "other": KINDS}
    write_outputs(tmp_path / "a.csv", arrays, labels)
    assert (tmp_path / "a.csv").read_text().splitlines()[1:] == ["hut,flat,house,3,1.0", "flat,hut,house,0,1.0"]
    write_outputs(tmp_path / "a.jsonl", arrays, labels)
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])["top"] == ["flat", "house"]
    write_outputs(tmp_path / "a.parquet", arrays, labels)
    assert pyarrow.parquet.read_table(tmp_path / "a.parquet")["kind"].to_pylist() == ["hut", "flat"]
    write_outputs(tmp_path / "a.npz", arrays, labels)
    with np.load(tmp_path / "a.npz") as written:
        assert written["kind"].tolist() == [2, 0]


def test_a_run_predicts_the_texts_of_its_labels(learner, workplace):
    """The texts are those of the training data, in a file that lacks them."""
    (workplace / "houses.csv").write_text("area,kind\n1,hut\n9,house\n1,hut\n9,house\n")
    (workplace / "new.csv").write_text("area\n9\n1\n")
    (workplace / "houses.py").write_text(HOUSES)
    (workplace / "houses.yaml").write_text(HOUSES_CONFIG)
    assert learner("fit", "houses.yaml")[0] == 0
    assert learner("predict", "runs/houses", "new.csv", "-o", "new-kinds.csv")[0] == 0
    assert (workplace / "new-kinds.csv").read_text().split() == ["kind", "house", "hut"]


HOUSES = """
import jax.numpy as jnp
from learner import ClassificationOutput

def model():
    return {"w": jnp.array([[0.0, -1.0]]), "b": jnp.array([[0.0, 5.0]])}

def logits(model, batch):
    return batch["area"][:, None] @ model["w"] + model["b"]

def step(model, batch):
    return ClassificationOutput.from_logits(logits(model, batch), batch["kind"])

def predict(model, batch):
    return {"kind": logits(model, batch).argmax(-1)}
"""
HOUSES_CONFIG = """
directory: runs/houses
model: houses.model
optimizer: {class_path: SGD}
lr: 0.0001
train_step: houses.step
predict_step: houses.predict
num_epochs: 1
train:
  dataset: {class_path: csv, init_args: {path: houses.csv, labels: {kind: null}, dtypes: {area: float32}}}
  batch_size: 2
"""


@pytest.mark.parametrize("array", [np.complex64([1, 2]), np.zeros((2, MOST_COLUMNS + 1), np.float32)])
def test_arrays_that_make_no_table_are_refused(tmp_path, array):
    with raises_code("cli-output-table", name="large"):
        write_outputs(tmp_path / "a.csv", {"small": np.zeros(2), "large": array})
    assert not list(tmp_path.iterdir())


def test_parquet_without_pyarrow_is_refused_before_predicting(learner, trained, workplace, monkeypatch):
    np.savez(workplace / "data.npz", x=np.ones((7, 3), np.float32), y=np.ones(7, np.float32))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr("learner.cli.evaluate.joined", pytest.fail)
    code, _, err = learner("predict", "run", "data.npz", "-o", "out.parquet")
    assert (code, install_hint("parquet") in err) == (2, True)


def test_outputs_without_a_row_for_each_row_are_named():
    batches = [(rows, {"p": np.zeros((rows, 2)), "mean": np.float32(1), "classes": np.zeros(3)}) for rows in (4, 3)]
    arrays, others = joined(batches)
    assert ({name: x.shape for name, x in arrays.items()}, others) == ({"p": (7, 2)}, ["classes", "mean"])


def test_outputs_whose_rows_differ_in_shape_are_refused_at_once():
    def batches():
        yield 2, {"p": np.zeros((2, 8))}
        yield 1, {"p": np.zeros((1, 4))}
        pytest.fail("the rest is not computed")

    with raises_code("cli-output-ragged", name="p"):
        joined(batches())
