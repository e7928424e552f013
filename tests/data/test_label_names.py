"""Tests of names of labels, which views keep."""

import numpy as np
import pytest

from learner.data import ArrayDataset, ImageFolder, csv, digits, mix, view
from learner.data.label_names import label_names
from tests.support.codes import raises_code


@pytest.fixture
def pets(tmp_path):
    (tmp_path / "pets.csv").write_text("x,kind\n1,dog\n2,cat\n3,dog\n")
    return csv(tmp_path / "pets.csv", ["x", "kind"], labels=["kind"])


def test_views_keep_label_names(pets):
    kinds = {"kind": ("cat", "dog")}
    assert label_names(pets) == kinds
    assert label_names(pets.slice(1).shuffle(seed=0)) == kinds
    assert label_names(pets.concat(pets.slice(1))) == kinds
    assert label_names(mix({"a": pets, "b": pets.slice(1)}, size=4)) == kinds


@pytest.mark.parametrize(
    "view_of",
    [
        lambda d: d.slice(0, 2),
        lambda d: d.slice(0, 3, 2),
        lambda d: d.split([0.67, 0.33])[0],
        lambda d: d.select([2, 0]),
        lambda d: d.shuffle(),
        lambda d: d.shuffle().slice(1),
        lambda d: d.concat(d.shuffle()),
        lambda d: d.k_fold(3)[1][0],
        lambda d: d.windows(2, 1),
        lambda d: d.shuffle().windows(2),
        lambda d: d.filter(lambda item: item["x"] > 1),
    ],
)
def test_views_have_the_labels_of_their_source(pets, view_of):
    assert view_of(pets).labels == {"kind": ("cat", "dog")}


def test_views_without_labels(pets):
    unlabelled = ArrayDataset({**pets.arrays})
    assert pets.concat(unlabelled).labels == unlabelled.shuffle().labels == view([1, 2]).labels == {}
    assert pets.map(lambda item: item).labels == {}  # which may change the numbers


def test_conflicting_label_names_are_refused(pets, tmp_path):
    (tmp_path / "more.csv").write_text("x,kind\n1,dog\n2,eel\n")
    (tmp_path / "eels.csv").write_text("x,kind\n1,eel\n")
    more, eels = (csv(tmp_path / name, ["x", "kind"], labels=["kind"]) for name in ("more.csv", "eels.csv"))
    with raises_code("data-labels-conflict", "0 is 'cat' in dataset 0 and 'dog' in dataset 2", field="kind"):
        pets.concat(pets.slice(1), more)
    with raises_code("data-labels-conflict", "0 is 'dog' in source 'a' and 'eel' in source 'b'"):
        mix({"a": more, "b": eels.shuffle(seed=1)})


def test_longer_lists_of_names_may_be_joined(pets, tmp_path):
    (tmp_path / "eels.csv").write_text("x,kind\n7,eel\n")
    eels = csv(tmp_path / "eels.csv", ["x", "kind"], labels={"kind": ["cat", "dog", "eel"]})
    assert pets.concat(eels).arrays["kind"].tolist() == [1, 0, 1, 2]
    assert label_names(pets.concat(eels)) == {"kind": ("cat", "dog", "eel")}


def test_functions_of_the_user_are_not_called(pets):
    assert label_names(pets.map(lambda item: pytest.fail("called"))) == {}


def test_label_names_of_image_folders(tmp_path):
    image = pytest.importorskip("PIL.Image").fromarray(np.zeros((2, 2, 3), np.uint8))
    for kind in ("dog", "cat"):
        (tmp_path / kind).mkdir()
        image.save(tmp_path / kind / "1.png")
    assert label_names(ImageFolder(tmp_path)) == {"label": ["cat", "dog"]}


def test_data_without_label_names():
    assert [label_names(data) for data in (digits("valid"), view([1, 2]), [1, 2], None)] == [{}] * 4


def test_names_that_one_part_lacks(pets):
    assert label_names(pets.concat(ArrayDataset(dict(pets.arrays)))) == {}
    assert label_names(pets.map(str), behind_functions=True) == {"kind": ("cat", "dog")}
