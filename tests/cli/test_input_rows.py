"""Tests of the rows that predictions and evaluations read from files."""

import json

import numpy as np
import pytest

from learner.cli.input_rows import read_rows
from tests.support.codes import raises_code

TRAINED = "area,city,price\n20.5,Rome,1\n30.5,Bern,2\n40.5,Rome,3\n50.5,Bern,4\n"
FIELDS = {"numbers": ["area"], "city": "city", "price": "price"}
TEXTS = ["Rome", "Bern"]  # not sorted


def doubled(item):
    return {**item, "numbers": 2 * item["numbers"]}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trained.csv").write_text(TRAINED)

    def make(views=(), split="valid", path="trained.csv", **arguments):
        arguments = {"fields": FIELDS, "labels": {"city": TEXTS}, **arguments, "path": path}
        dataset = {"class_path": "learner.data.csv", "init_args": arguments}
        return {split: {"dataset": dataset, "views": list(views), "batch_size": 2, "shuffle": True, "drop_last": True}}

    return make


def write_recorded(directory, **labels):
    """Write a journal that has recorded the texts of labels."""
    start = {"event": "start", "fingerprint": {"data": {"train": {"labels": labels}}}}
    directory.mkdir()
    (directory / "journal.jsonl").write_text(json.dumps(start) + "\n")


def rows_of(content, text=TRAINED, needs_targets=False, directory="no-run", suffix=".csv"):
    """Return the columns of a file with this text, and the fields that it lacks."""
    with open(f"new{suffix}", "w") as file:
        file.write(text)
    loader, lacking = read_rows(f"new{suffix}", directory, content, needs_targets)
    batches = list(loader)
    return {name: np.concatenate([batch[name] for batch in batches]).tolist() for name in batches[0]}, lacking


@pytest.mark.parametrize(
    "views",
    [
        [],
        [{"slice": {"stop": 1}}],
        ["shuffle", {"part": {"which": 1, "fractions": [0.5, 0.5]}}, {"fold": {"which": 0, "k": 2, "part": "valid"}}],
    ],
)
def test_all_rows_are_read_in_order_as_the_config_reads_them(config, views):
    rows, lacking = rows_of(config(views))
    assert rows == {"numbers": [[20.5], [30.5], [40.5], [50.5]], "city": [0, 1, 0, 1], "price": [1, 2, 3, 4]}
    assert lacking == []


def test_views_that_change_rows_stay(config):
    views = [{"slice": {"stop": 1}}, {"map": f"{__name__}.doubled"}]
    assert rows_of(config(views))[0]["numbers"] == [[41.0], [61.0], [81.0], [101.0]]
    single = config()
    single["valid"]["views"] = {"map": f"{__name__}.doubled"}  # as sources take it, too
    assert rows_of(single)[0]["numbers"] == [[41.0], [61.0], [81.0], [101.0]]


@pytest.mark.parametrize("split", ["valid", "train"])
@pytest.mark.parametrize("form", ["loader", "several", "bare"])
def test_the_source_is_found_in_each_form_of_a_config(config, split, form):
    content = config(split=split)
    if form == "several":
        content[split] = {"other": {"dataset": "digits"}, "one": content[split]}
    if form == "bare":
        content[split] = content[split]["dataset"]
    assert rows_of(content)[0]["city"] == [0, 1, 0, 1]


def test_rows_without_targets_are_read_for_predictions_alone(config):
    text = "city,area\nBern,7.5\n"
    assert rows_of(config(), text) == ({"numbers": [[7.5]], "city": [1]}, ["price"])
    every_column = config(fields=None, labels={"city": TEXTS, "kind": ["a", "b"]}, dtypes={"price": "int32"})
    assert rows_of(every_column, text) == ({"area": [7.5], "city": [1]}, ["price", "kind"])
    with raises_code("data-columns-unreadable"):
        rows_of(config(), text, needs_targets=True)
    for misspelled in ("city,aera\nBern,7.5\n", "ciy,area\nBern,7.5\n"):
        with raises_code("data-columns-unreadable", "did you mean"):
            rows_of(config(), misspelled)
    with raises_code("data-columns-unreadable", "'rooms'"):  # a part of a field
        rows_of(config(fields={"numbers": ["area", "rooms"], "city": "city"}), text)
    with raises_code("data-columns-unreadable"):  # a wrong type is no column that is missing
        rows_of(config(dtypes={"numbers": "text"}), text)


def test_labels_have_the_numbers_of_training(config, tmp_path):
    write_recorded(tmp_path / "run", city=TEXTS)
    text = "area,city\n7.5,Bern\n"
    for labels in ({"city": None}, ["city"]):
        assert rows_of(config(labels=labels), text, directory="run")[0]["city"] == [1]
        with raises_code("cli-data-labels", names=["city"]):
            rows_of(config(labels=labels), text)
    assert rows_of(config(labels=["city"], unknown={"city": 9}), "area,city\n7.5,Oslo\n", directory="run")[0][
        "city"
    ] == [9]
    target = config(
        labels={"city": TEXTS, "price": None}, unknown={"price": 0}
    )  # labels that the file lacks matter to nobody
    assert rows_of(target, text)[0]["city"] == [1]


def test_directories_of_images_are_read_with_the_classes_of_training(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for folder in ("trained/cat", "trained/dog", "new/dog"):
        (tmp_path / folder).mkdir(parents=True)
        image.new("RGB", (2, 2)).save(tmp_path / folder / "a.png")
    arguments = {"directory": "trained", "classes": None}
    content = {"valid": {"dataset": {"class_path": "ImageFolder", "init_args": arguments}}}
    with raises_code("cli-data-labels", names=["label"]):
        read_rows("new", "no-run", content, needs_targets=True)
    write_recorded(tmp_path / "run", label=["cat", "dog"])
    (batch,) = read_rows("new", "run", content, needs_targets=True)[0]
    assert batch["label"].tolist() == [1]
    arguments["classes"] = ["dog", "cat"]
    (batch,) = read_rows("new", "no-run", content, needs_targets=True)[0]
    assert batch["label"].tolist() == [0]
    with raises_code("cli-data-file", path="new"):
        read_rows("new", "run", {"valid": {"dataset": "digits"}}, needs_targets=True)


@pytest.mark.parametrize("views", [[{"windows": {"size": 2}}], [{"concat": {"others": ["digits"]}}]])
def test_windows_and_joined_data_are_refused(config, views):
    with raises_code("cli-data-file", path="new.csv"):
        rows_of(config(views))


def test_other_files_are_refused(config):
    with raises_code("cli-data-file", "class_path: json_lines", path="new.jsonl"):
        rows_of(config(), suffix=".jsonl")
    with raises_code("cli-data-file", path="new.rows"):
        rows_of(config(), suffix=".rows")
    with raises_code("cli-data-file"):
        rows_of({"train": "mymodule.batches"})
    with raises_code("data-file-missing", "trained.csv"):
        read_rows("traimed.csv", "no-run", config(), needs_targets=False)
