"""Tests of data of other libraries; stand-ins have the protocols of PyTorch, Hugging Face and TensorFlow."""

from typing import ClassVar

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.utils import Bunch

from learner.data import ArrayDataset, DataLoaderBuilder, Dataset, DatasetReport, ForeignDataset, as_dataset
from learner.data.batch_arrays import batch_arrays
from learner.data.source import source_of
from tests.support.codes import raises_code


class Tensor:
    """A tensor like PyTorch's, which converts to NumPy if it is detached, on the CPU, and not bfloat16."""

    def __init__(self, array, dtype="torch.float32", attached=True, device="cuda"):
        self._array, self.dtype, self._attached, self._device = np.asarray(array), dtype, attached, device

    @property
    def shape(self):
        return self._array.shape

    def detach(self):
        return Tensor(self._array, self.dtype, False, self._device)

    def cpu(self):
        return Tensor(self._array, self.dtype, self._attached, "cpu")

    def float(self):
        return Tensor(self._array.astype(np.float32), "torch.float32", self._attached, self._device)

    def numpy(self):
        if self._attached or self._device != "cpu" or self.dtype == "torch.bfloat16":
            raise TypeError("can't convert the tensor to NumPy")
        return self._array

    __array__ = numpy


class TorchDataset:
    """A map-style dataset like PyTorch's."""

    __module__ = "torch.utils.data.dataset"

    def __init__(self, rows):
        self._rows = rows

    def __getitem__(self, index):
        return self._rows[index]

    def __len__(self):
        return len(self._rows)


class HuggingFace:
    """A dataset like `datasets.Dataset`, which can be iterated too, and has lists unless a format is set."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, columns, form=None):
        self._columns, self._form = columns, form

    @property
    def format(self):
        return {"type": self._form}

    def with_format(self, form):
        return HuggingFace(self._columns, form)

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, index):
        item = {name: column[index] for name, column in self._columns.items()}
        return {name: np.array(value) if self._form else value for name, value in item.items()}

    def __iter__(self):
        return (self[i] for i in range(len(self)))


class DatasetDict(dict):
    __module__ = "datasets.dataset_dict"


class TensorFlow:
    """A dataset like `tf.data.Dataset`."""

    def __init__(self, batches, length=None):
        self._batches, self._length = batches, length
        self.read = 0

    def __len__(self):
        if self._length is None:
            raise TypeError("The dataset length is unknown.")
        return self._length

    def __iter__(self):
        raise AssertionError("tensors of TensorFlow are not asked for")

    def as_numpy_iterator(self):
        self.read += 1
        return iter(self._batches)


TORCH = TorchDataset([(Tensor([i, 1.5]), i) for i in range(5)])
FACES = HuggingFace({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "label": [0, 1, 0], "text": ["a", "b", "c"]})


class WithFeatures(HuggingFace):
    """A dataset with features, as `datasets.Features`, with names of classes."""

    class ClassLabel:
        names: ClassVar = ["cat", "dog"]

    features: ClassVar = {"x": object(), "label": ClassLabel()}


def test_label_names():
    data = as_dataset(WithFeatures({"x": [1.0, 2.0, 3.0], "label": [0, 1, 1]}))
    assert data.labels == {"label": ("cat", "dog")}
    assert "label: 0 (cat): 1, 1 (dog): 2" in str(DatasetReport(data.shuffle(1))).splitlines()
    assert as_dataset(FACES).labels == {}


# -- bunches -----------------------------------------------------------------------------------------------------------


def test_bunch():
    digits = load_digits()
    data = as_dataset(digits)
    assert isinstance(data, ArrayDataset)
    assert {name: array.shape for name, array in data.arrays.items()} == {
        "data": (1797, 64),
        "images": (1797, 8, 8),
        "target": (1797,),
    }
    np.testing.assert_array_equal(data.arrays["target"], digits.target)
    loader = DataLoaderBuilder().batch_size(50).build(load_iris())
    assert loader.num_items() == 150
    assert source_of(load_iris(), "train", batch_size=50).peek(1)["data"].shape == (50, 4)


def test_feature_names_are_no_field():
    x, y = make_classification(20, random_state=0)
    names = np.array([f"f{i}" for i in range(20)])
    bunch = Bunch(data=x, target=y, feature_names=names, DESCR="text")
    assert list(as_dataset(bunch).arrays) == ["data", "target"]


def test_bunches_of_texts():
    with raises_code("data-bunch-without-data", "data, target"):
        as_dataset(Bunch(data=["a text", "another"], target=[0, 1]))
    with raises_code("data-bunch-dtype", "<U1", name="target"):
        as_dataset(Bunch(data=np.zeros((2, 3)), target=np.array(["a", "b"])))


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def test_dataset_of_tensors():
    (first, second) = list(DataLoaderBuilder().batch_size(3).build(TORCH))
    assert [part.tolist() for part in first] == [[[0, 1.5], [1, 1.5], [2, 1.5]], [0, 1, 2]]
    assert second[1].tolist() == [3, 4]
    assert len(source_of(TORCH, "train", batch_size=2).peek(1)[0]) == 2


def test_names_of_fields():
    named = ForeignDataset(TORCH, fields=["image", "label"])
    (batch,) = list(DataLoaderBuilder().batch_size(5).build(named))
    assert batch["label"].tolist() == [0, 1, 2, 3, 4]
    assert batch["image"].shape == (5, 2)
    assert repr(named) == "ForeignDataset(5 items of TorchDataset)"
    with raises_code("data-foreign-parts-differ", "TorchDataset", "2", "1"):
        ForeignDataset(TORCH, fields=["image"])[0]
    with raises_code("data-foreign-parts-differ", "list", "one part, a int", "2"):
        ForeignDataset([1, 2], fields=["image", "label"])[0]
    with raises_code("data-foreign-not-indexable", "int"):
        ForeignDataset(3)
    with raises_code("data-fields-value", "['a', 'a']"):
        ForeignDataset([(1, 2), (3, 4)], fields=["a", "a"])


def test_loader_of_tensors():
    """Batches of PyTorch's `DataLoader` are lists of tensors."""
    batches = [[Tensor(np.zeros((4, 3)), "torch.bfloat16"), Tensor(np.arange(4))] for _ in range(2)]
    for source in (source_of(batches, "train"), source_of(iter(batches), "train")):
        x, y = batch_arrays(source.peek(1), "train")
        assert (str(x.dtype), x.shape) == ("bfloat16", (4, 3))
        assert y.tolist() == [0, 1, 2, 3]


# -- Hugging Face ------------------------------------------------------------------------------------------------------


def test_hugging_face_dataset():
    data = as_dataset(FACES)
    assert isinstance(data, Dataset)
    assert len(data) == 3
    assert data[1]["x"].tolist() == [3, 4]
    chosen = ForeignDataset(FACES, fields=["label", "x"])
    (batch,) = list(DataLoaderBuilder().batch_size(3).build(chosen))
    assert {name: array.tolist() for name, array in batch.items()} == {
        "x": [[1, 2], [3, 4], [5, 6]],
        "label": [0, 1, 0],
    }
    with raises_code("data-field-missing", "HuggingFace", "'label'", field="lable"):
        ForeignDataset(FACES, fields=["lable"])[0]


def test_batch_size_of_an_iterable_dataset():
    numbers = HuggingFace({"x": [[1.0], [2.0], [3.0]]})
    assert source_of(numbers, "train", batch_size=2).peek(1)["x"].tolist() == [[1], [2]]
    with raises_code("data-dataset-without-batches"):
        source_of(numbers, "train")


def test_format_of_the_user_is_kept():
    assert as_dataset(FACES.with_format("torch"))._data._form == "torch"
    assert as_dataset(FACES)._data._form == "numpy"


def test_dataset_dict_is_refused():
    for read in (as_dataset, lambda data: source_of(data, "train")):
        with raises_code("data-split-missing", "DatasetDict", "'train'", "'test'"):
            read(DatasetDict(train=FACES, test=FACES))


# -- TensorFlow --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, 2])
def test_tf_data(length):
    data = TensorFlow([{"x": np.zeros((4, 2))}, {"x": np.ones((2, 2))}], length)
    source = source_of(data, "train")
    assert source.batches == length
    for epoch in (1, 2, 3):
        assert [batch["x"].sum() for batch in source.open(epoch)] == [0, 4]
    assert data.read == 3
    assert [len(batch["x"]) for batch in source.open(1, start=1)] == [2]


# -- other data --------------------------------------------------------------------------------------------------------


def test_other_data_is_not_wrapped():
    ours = ArrayDataset(np.zeros(3))
    items = [1, 2]
    assert as_dataset(ours) is ours
    assert as_dataset(items) is items
    with raises_code("data-dataset-type", "int"):
        as_dataset(3)


def test_values_of_items():
    item = ForeignDataset([{"a": [[1, 2], [3, 4]], "b": "text", "c": 2.5, "d": [1, [2]], "e": ["x"], "f": []}])[0]
    assert item["a"].tolist() == [[1, 2], [3, 4]]
    assert {name: value for name, value in item.items() if name != "a"} == {
        "b": "text",
        "c": 2.5,
        "d": [1, [2]],
        "e": ["x"],
        "f": [],
    }
