import pytest

from learner.cli.sources import source, sources
from learner.errors import LearnerError

DATASET = {"class_path": "mymodule.rows", "init_args": {"count": 6}}


def test_a_loader(importable):
    made = source({"dataset": DATASET, "batch_size": 4, "shuffle": True, "drop_last": True}, "train", seed=3)
    assert repr(made.make()).endswith("in 1 batches, shuffled with seed 3)")
    assert made.config() == {
        "dataset": {"class_path": "mymodule.rows", "init_args": {"count": 6, "size": 3}},
        "batch_size": 4,
        "shuffle": True,
        "drop_last": True,
    }
    assert source(made.config(), "train", seed=3).config() == made.config()


def test_shuffling(importable):
    orders = {}
    for said in (False, True, 3):
        loader = source({"dataset": DATASET, "batch_size": 4, "shuffle": said}, "train", seed=3).make()
        orders[said] = list(loader.order(1))
    assert orders[False] == [0, 1, 2, 3, 4, 5]
    assert orders[True] == orders[3] != orders[False]


def test_data_as_they_are(importable):
    assert set(source({"dataset": DATASET}, "train", 0).make()) == {"x", "y"}
    assert set(source(DATASET, "train", 0).make()) == {"x", "y"}
    made = source("mymodule.batches", "train", 0)
    assert len(made.make()) == 3
    assert made.config() == {"class_path": "mymodule.batches"}


def test_a_batcher(importable):
    (importable / "batchers.py").write_text(
        "import numpy as np\ndef count(items): return {'n': np.array([len(items)])}\n"
    )
    made = source({"dataset": "mymodule.rows", "batch_size": 5, "batcher": "batchers.count"}, "train", 0)
    assert made.config()["batcher"] == "batchers.count"
    assert [batch["n"].tolist() for batch in made.make()] == [[5], [5], [2]]


def test_several(importable):
    made = sources({"dev": {"dataset": DATASET, "batch_size": 2}, "ood": DATASET}, "valid", 0)
    assert {name: type(each.make()).__name__ for name, each in made.items()} == {"dev": "DataLoader", "ood": "dict"}
    assert sources(DATASET, "valid", 0).whole


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"dataset": DATASET, "batchsize": 4}, "train has no 'batchsize': did you mean 'batch_size'"),
        ({"batch_size": 4}, "train has no 'dataset'; it needs the import path of a dataset"),
        ({"dataset": DATASET, "batch_size": "x"}, "train.batch_size is 'x': it needs int"),
        ({"dataset": "mymodule.row", "batch_size": 4}, "train.dataset is 'mymodule.row', but mymodule has no 'row'"),
        ({"dataset": DATASET, "batch_size": 4, "shuffle": "yes"}, "train.shuffle is 'yes': it needs int"),
        (3, "train is 3; it needs an import path"),
    ],
)
def test_what_is_no_source(importable, value, message):
    with pytest.raises(LearnerError, match=message):
        source(value, "train", 0)
