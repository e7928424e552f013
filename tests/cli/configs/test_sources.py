"""Tests of data in configs."""

import numpy as np
import pytest
import yaml

from learner.cli.configs.sources import source, sources
from learner.config.mappings import yaml_text
from learner.data.source import source_of
from learner.errors import LearnerError
from tests.support.codes import named_case, raises_code

DATASET = {"class_path": "mymodule.rows", "init_args": {"count": 6}}


def test_loader(importable):
    data = source({"dataset": DATASET, "batch_size": 4, "shuffle": True, "drop_last": True}, "train", seed=3)
    assert repr(data.make()).endswith("in 1 batches, shuffled with seed 3)")
    assert data.config() == {
        "dataset": {"class_path": "mymodule.rows", "init_args": {"count": 6, "size": 3}},
        "batch_size": 4,
        "shuffle": True,
        "drop_last": True,
    }
    assert source(data.config(), "train", seed=3).config() == data.config()


def test_shuffling_with_a_seed(importable):
    orders = {}
    for content in (False, True, 3):
        loader = source({"dataset": DATASET, "batch_size": 4, "shuffle": content}, "train", seed=3).make()
        orders[content] = list(loader.order(1))
    assert orders[False] == [0, 1, 2, 3, 4, 5]
    assert orders[True] == orders[3] != orders[False]
    with raises_code("config-arguments-mismatch", "'yes'", "true or false", key="train.shuffle"):
        source({"dataset": DATASET, "batch_size": 4, "shuffle": "yes"}, "train", seed=3)


def test_data_without_a_loader(importable):
    assert set(source({"dataset": DATASET}, "train", 0).make()) == {"x", "y"}
    assert set(source(DATASET, "train", 0).make()) == {"x", "y"}
    data = source("mymodule.batches", "train", 0)
    assert len(data.make()) == 3
    assert data.config() == {"class_path": "mymodule.batches"}


def test_generator_function_is_called_in_each_epoch(importable):
    (importable / "streams.py").write_text(
        "import numpy as np\n\ndef rows(count: int = 3):\n    yield from ({'x': np.full(3, i)} for i in range(count))\n"
    )
    given = {"class_path": "streams.rows", "init_args": {"count": 2}}
    for content, expected in (("streams.rows", [0, 1, 2]), (given, [0, 1])):
        data = source_of(source(content, "train", 0).make(), "train")
        assert [[int(row["x"][0]) for row in data.open(epoch)] for epoch in (1, 2)] == [expected] * 2
    data = source({"class_path": "stream", "init_args": {"items": given}}, "train", 0)
    assert [batch["x"].shape for _ in range(2) for batch in data.make().batch(2)] == [(2, 3)] * 2
    assert data.config() == {"class_path": "stream", "init_args": {"items": given, "size": None, "batched": False}}


def test_file_with_the_name_of_a_module(importable):
    """Python has a package `encodings`, with hundreds of names."""
    with raises_code("config-name-missing", "and others") as raised:
        source({"dataset": "encodings.npz", "batch_size": 4}, "train", 0)
    assert len(str(raised.value)) < 300
    (importable / "encodings.npz").write_bytes(b"")
    with raises_code("data-path-unread", "class_path: numpy_arrays"):
        source({"dataset": "encodings.npz", "batch_size": 4}, "train", 0)


@pytest.mark.parametrize(("path", "reader"), [("nope.npz", "numpy_arrays"), ("data/nope.csv.gz", "csv")])
def test_file_in_place_of_data_is_refused(importable, path, reader):
    """The error names a missing file, and a reader for an existing file."""
    for content in (path, {"dataset": path, "batch_size": 4}):
        with raises_code("data-file-missing", path):
            source(content, "train", 0)
    (importable / "data").mkdir()
    (importable / path).write_bytes(b"")
    with raises_code("data-path-unread", "{class_path: " + reader, f"init_args: {{path: {path}}}"):
        source({"dataset": path, "batch_size": 4}, "train", 0)
    with raises_code("config-module-missing"):
        source({"dataset": "nosuchmodule.rows"}, "train", 0)


@pytest.mark.parametrize("path", [["b.csv", "a.csv"], "[ab].csv"])
def test_table_of_several_files(importable, path):
    for name, numbers in (("a.csv", "1\n2"), ("b.csv", "3")):
        (importable / name).write_text(f"x\n{numbers}\n")
    data = source({"dataset": {"class_path": "csv", "init_args": {"path": path}}, "batch_size": 3}, "train", 0)
    (batch,) = data.make()
    assert batch["x"].tolist() == ([3, 1, 2] if isinstance(path, list) else [1, 2, 3])
    assert data.config()["dataset"]["init_args"]["path"] == path


def test_batcher(importable):
    (importable / "batchers.py").write_text(
        "import numpy as np\n\ndef count(items): return {'n': np.array([len(items)])}\n\ncount.any_rows = True\n"
    )
    data = source({"dataset": "mymodule.rows", "batch_size": 5, "batcher": "batchers.count"}, "train", 0)
    assert data.config()["batcher"] == "batchers.count"
    assert [batch["n"].tolist() for batch in data.make()] == [[5], [5], [2]]


def test_views_one_after_another(importable):
    (importable / "changes.py").write_text(
        "def scaled(item, by: float): return {'x': item['x'] * by}\ndef large(item): return item['x'][0] > 3\n"
    )
    content = {
        "dataset": {"class_path": "mymodule.rows", "init_args": {"count": 12, "size": 1}},
        "views": [
            {"part": {"which": 1, "fractions": [0.25, 0.75], "seed": None}},
            {"concat": [{"class_path": "mymodule.rows", "init_args": {"count": 2, "size": 1}}]},
            {"slice": {"stop": -2}},
            {"map": {"class_path": "changes.scaled", "init_args": {"by": 12.0}}},
            {"filter": "changes.large"},
            {"select": [0, 2, -1]},
            "shuffle",
        ],
        "batcher": {"class_path": "Pad", "init_args": {"multiple": 2}},
        "batch_size": 3,
    }
    data = source(content, "train", 0)
    (batch,) = data.make()
    assert sorted(batch["x"].tolist()) == [[4.0, 0.0], [6.0, 0.0], [11.0, 0.0]]
    assert batch["mask"].tolist() == [[True, False]] * 3
    full = data.config()
    assert full["views"][2] == {"slice": {"stop": -2, "start": None, "step": 1}}
    assert full["views"][6] == {"shuffle": {"seed": 0}}
    assert source(full, "train", 0).config() == full
    assert [rows["x"].tolist() for rows in source(full, "train", 0).make()] == [batch["x"].tolist()]


def test_views_without_a_loader_and_of_several_functions(importable):
    (importable / "changes.py").write_text(
        "def twice(item): return item['x'] * 2\n"
        "def first(x): return x[0]\n"
        "def shifted(x, rng): return x + rng.random()\n"
    )
    data = source({"dataset": DATASET, "views": [{"map": ["changes.twice", "changes.first"]}]}, "train", 0)
    assert list(data.make()) == pytest.approx([2 * i * 3 / 18 for i in range(6)])
    augmented = source(
        {"dataset": {"class_path": "digits", "init_args": {"split": "valid"}}, "views": {"slice": 4}}, "v", 0
    )
    assert len(augmented.make()) == 356
    data = source({"dataset": DATASET, "views": [{"augment": {"fn": "changes.shifted", "seed": 3}}]}, "train", 0)
    assert repr(data.make()).endswith(".augment(shifted, seed=3): 6 items")


def test_fold_sample_and_windows(importable):
    dataset = {"class_path": "mymodule.rows", "init_args": {"count": 10, "size": 1}}
    views = [
        {"fold": {"which": 1, "k": 5, "part": "train"}},
        {"sample": {"size": 6, "replacement": True}},
        {"windows": 3},
    ]
    data = source({"dataset": dataset, "views": views, "batch_size": 2}, "train", 0)
    (batch,) = data.make()
    assert batch["x"].shape == (2, 3, 1)


def test_methods_that_return_several_datasets_name_the_view_in_their_place(importable):
    for view, remedy in {"split": "{part: {which: 0", "k_fold": "{fold: {which: 0"}.items():
        with raises_code("config-view-unknown", remedy):
            source({"dataset": DATASET, "views": {view: 3}}, "train", 0)


def test_an_option_of_the_loader_inside_the_dataset_belongs_one_level_up(importable):
    inside = {**(DATASET if isinstance(DATASET, dict) else {"class_path": DATASET}), "batch_size": 2}
    with raises_code("config-argument-beside-class-path", "train: {dataset: {class_path: ...}, batch_size: ...}"):
        source({"dataset": inside}, "train", 0)


def test_several_splits(importable):
    data = sources({"dev": {"dataset": DATASET, "batch_size": 2}, "ood": DATASET}, "valid", 0)
    assert {name: type(split.make()).__name__ for name, split in data.items()} == {"dev": "DataLoader", "ood": "dict"}
    assert sources(DATASET, "valid", 0).is_bare


def test_mistakes_of_a_source_are_reported_together(importable):
    content = {
        "dataset": "digts",
        "batchsize": 4,
        "views": [{"slise": 3}, {"slice": {"stop": 2}}, {"slice": {"stp": 3}}],
        "batcher": "pad",
        "num_workers": "many",
    }
    with pytest.raises(LearnerError) as raised:
        sources({"dev": content, "ood": {"batch_size": 2}}, "valid", 0)
    problems = (
        "valid.dev.dataset: there is no 'digts': did you mean 'digits'",
        "valid.dev has no 'batchsize': did you mean 'batch_size'",
        "valid.dev.views.0: there is no view 'slise'",
        "valid.dev.views.2.slice has no argument 'stp'",
        "valid.dev.batcher: there is no 'pad': did you mean 'Pad'",
        "valid.dev.num_workers is 'many': it needs a whole number",
        "valid.ood has no 'dataset'",
    )
    assert len(raised.value.problems) == len(problems)
    for problem, part in zip(raised.value.problems, problems, strict=True):
        assert problem.startswith(part)


MISTAKES_AT_RUN_TIME = [
    ({"views": [{"slice": 2}, {"slice": 5}]}, "train.views.1: slice", "data-view-empty"),
    ({"views": [{"part": {"which": 0, "fractions": [0.5, 0.6]}}]}, "train.views.0: ", "data-fractions-sum"),
    ({"views": "shuffle", "batch_size": 0}, "train.batch_size: batch_size is 0", "data-number-value"),
    ({"batch_size": 30, "drop_last": True}, "train: drop_last", "data-drop-last-leaves-none"),
    (
        {"views": [{"filter": "changes.none"}], "batch_size": 2},
        "filter(none) (train.views.0)",
        "data-filter-keeps-none",
    ),
    (
        {"dataset": "mymodule.batches", "views": [{"slice": 2}, {"windows": 3}]},
        "train.views.1: ",
        "data-windows-too-large",
    ),
    ({"dataset": {"class_path": "csv", "init_args": {"path": "no.csv"}}}, "train.dataset: csv", "data-file-missing"),
]


@pytest.mark.parametrize(("content", "place", "code"), MISTAKES_AT_RUN_TIME)
def test_errors_while_data_are_made_have_their_place(importable, content, place, code):
    (importable / "changes.py").write_text("def none(item): return False\n")
    with raises_code(code, place):
        source({"dataset": DATASET, **content}, "train", 0).make()


def test_options_that_the_loader_refuses_are_reported_together(importable):
    with pytest.raises(LearnerError) as raised:
        source({"dataset": DATASET, "batch_size": 0, "num_workers": -1}, "train", 0).make()
    assert [problem.split(":")[0] for problem in raised.value.problems] == ["train.batch_size", "train.num_workers"]


@pytest.mark.parametrize("name", ["map", "augment", "filter"])
def test_errors_of_functions_while_items_are_read_have_their_place(importable, name):
    (importable / "changes.py").write_text("def same(item): return item\ndef fails(item, rng=None): return item['z']\n")
    views = [{"map": ["changes.same", "changes.same"]}, {name: "changes.fails"}, {"map": "changes.same"}]
    with pytest.raises(KeyError) as raised:
        list(source({"dataset": DATASET, "views": views, "batch_size": 2}, "train", 0).make())
    (note,) = [note for note in raised.value.__notes__ if note.startswith("while calling")]
    assert note.startswith(f"while calling {name}(fails")
    assert note.endswith(" (train.views.1)")


def test_a_function_that_returns_nothing(importable, monkeypatch):
    monkeypatch.setattr("mymodule.rows", lambda: None)
    with raises_code("config-data-none", "train: ", path="mymodule.rows"):
        source("mymodule.rows", "train", 0).make()


def test_config_object_is_not_data(importable):
    (importable / "settings.py").write_text(
        "from learner import Config\nclass Data(Config):\n    size: int = 3\nmade = Data()\n"
    )
    for content in ("settings.Data", "settings.made"):
        with raises_code("config-dataset-is-config", f"train.dataset is {content}"):
            source({"dataset": content, "batch_size": 2}, "train", 0)
        with raises_code("config-dataset-is-config", content, key="train"):
            source(content, "train", 0)


def test_malformed_sources_are_refused(importable):
    cases = [
        ({"dataset": DATASET, "batchsize": 4}, "config-key-unknown", ["'batchsize'", "'batch_size'"]),
        ({"batch_size": 4}, "config-dataset-missing", ["'dataset'"]),
        ({"dataset": DATASET, "batch_size": "x"}, "config-arguments-mismatch", ["train.batch_size", "'x'"]),
        (
            {"dataset": "mymodule.row", "batch_size": 4},
            "config-name-missing",
            ["train.dataset", "'mymodule.row'", "'row'"],
        ),
        (
            {"dataset": DATASET, "batch_size": 4, "shuffle": "yes"},
            "config-arguments-mismatch",
            ["train.shuffle", "'yes'"],
        ),
        (3, "config-recipe-type", ["is 3"]),
        (
            {"class_path": "digits", "batch_size": 4, "views": []},
            "config-argument-beside-class-path",
            ["'batch_size'", "'views'", "train: {dataset: {class_path: ...}, batch_size: ...}"],
        ),
        ({"dataset": "digts", "batch_size": 4}, "config-name-unknown", ["train.dataset", "'digts'", "'digits'"]),
        ({"dataset": DATASET, "batcher": "pad"}, "config-name-unknown", ["train.batcher", "'pad'", "'Pad'"]),
        (
            {"dataset": DATASET, "batcher": {"class_path": "Pad", "init_args": {"len": 3}}},
            "config-arguments-mismatch",
            ["'len'"],
        ),
        (
            {"dataset": DATASET, "views": [{"slise": 3}]},
            "config-view-unknown",
            ["train.views.0", "'slise'", "'slice'"],
        ),
        ({"dataset": DATASET, "views": [{"k_fold": 3}]}, "config-view-unknown", ["train.views.0", "'k_fold'"]),
        ({"dataset": DATASET, "views": 3}, "config-view-malformed", ["train.views.0", "is 3"]),
        ({"dataset": DATASET, "views": [{"slice": 3, "shuffle": 1}]}, "config-view-malformed", ["train.views.0"]),
        (
            {"dataset": DATASET, "views": [{"slice": {"stp": 3}}]},
            "config-arguments-mismatch",
            ["train.views.0.slice", "'stp'"],
        ),
        (
            {"dataset": DATASET, "views": [{"slice": {"stop": "x"}}]},
            "config-arguments-mismatch",
            ["train.views.0.slice.stop", "'x'"],
        ),
        ({"dataset": DATASET, "views": ["map"]}, "config-arguments-mismatch", ["train.views.0.map", "'fn'"]),
        (
            {"dataset": DATASET, "views": [{"part": {"which": 0}}]},
            "config-arguments-mismatch",
            ["train.views.0.part", "'fractions'"],
        ),
    ]
    for value, code, shown in cases:
        with named_case((value, code, shown)), raises_code(code, *shown):
            source(value, "train", 0)


def test_mixture_keeps_the_order_of_its_sources(importable):
    """A saved config draws the rows of the first one."""
    rows = {
        name: {"class_path": "mymodule.rows", "init_args": {"count": n, "size": 1}} for name, n in (("z", 9), ("a", 4))
    }
    mixed = {"class_path": "mix", "init_args": {"sources": rows, "weights": {"a": 1, "z": 2}, "seed": 3}}
    first = source({"dataset": mixed, "batch_size": 5}, "train", 0)
    saved = source(yaml.safe_load(yaml_text(first.config())), "train", 0)
    for batch, expected in zip(saved.make().epoch(2), first.make().epoch(2), strict=True):
        np.testing.assert_array_equal(batch["x"], expected["x"])
    assert saved.make().dataset.names == ("z", "a")
