"""Tests of confusion matrices that are read back from their tables."""

import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import ConfusionMatrix
from learner.metrics.counts import Count
from learner.reports.confusion_matrices import Matrix, matrices, monitor_of, read_matrix
from learner.runs import RunReader
from tests.support.codes import named_case
from tests.support.written import write_run


def metric_value(counts):
    """Return the value of the metric for these counts, whose last row and column count rows outside of the classes."""
    low = jnp.asarray(np.array(counts, np.uint32))
    return Count(jnp.zeros_like(low), low)


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        (["cat", "dog"], [[3, 1, 0], [0, 12345, 0], [0, 0, 0]]),
        (["0", "1", "2"], [[3, 1, 0, 0], [0, 5, 0, 0], [0, 0, 7, 0], [0, 0, 0, 0]]),
        (["a b", "a b c"], [[1, 2, 0], [3, 4, 0], [0, 0, 0]]),  # spaces, at the same places in each
        (["3", "none"], [[1, 2, 0], [3, 4, 0], [0, 0, 0]]),
        (["Ж", "日本"], [[1, 2, 0], [3, 4, 0], [0, 0, 0]]),
        (["x" * 60, "<b>"], [[1, 2, 0], [3, 4, 0], [0, 0, 0]]),
    ],
)
def test_text_of_the_metric_round_trips(names, counts):
    matrix = read_matrix(ConfusionMatrix(names).text(metric_value(counts)))
    assert (matrix.labels, matrix.predicted) == (tuple(names), tuple(names))
    assert matrix.counts.tolist() == np.array(counts)[:-1, :-1].tolist()


@pytest.mark.parametrize(
    ("counts", "rows", "columns"),
    [
        ([[1, 2, 5], [3, 4, 0], [0, 0, 0]], 2, 3),
        ([[1, 2, 0], [3, 4, 0], [5, 0, 0]], 3, 2),
        ([[1, 2, 5], [3, 4, 0], [0, 6, 0]], 3, 3),
    ],
)
def test_rows_outside_of_the_classes_are_named_none(counts, rows, columns):
    matrix = read_matrix(ConfusionMatrix(["a", "b"]).text(metric_value(counts)))
    assert matrix.counts.tolist() == np.array(counts)[:rows, :columns].tolist()
    assert (matrix.labels, matrix.predicted) == (("a", "b", "none")[:rows], ("a", "b", "none")[:columns])


def test_other_texts_are_not_matrices():
    cases = [
        "",
        "label",
        "label  a",
        "label  a\n",
        "a table\nof something",
        "label  a\na      x",
        "label  a\nb      1",
        "label  a  b\na      1   ",
        "label  a\na      1\nb      2\nc      3",
        "label  a\na      \u0663",
        "label  a\na      -1",
        f"label  {'a':>5000}\na      {'9' * 5000}",
        f"label  {'a':>25}\na      {2**64:>25}",
        "label  \ud800\na      1",
        "cats 0.5, dogs 0.75",
    ]
    for text in cases:
        with named_case(text):
            assert read_matrix(text) is None


@pytest.mark.parametrize(("rows", "columns"), [(200, 200), (200, 201), (201, 200), (201, 201)])
def test_text_of_many_classes_round_trips(rows, columns):
    """The text has a line for each pair with rows. Some classes are never a label, and never predicted."""
    counts = np.random.default_rng(0).poisson(0.05, (201, 201))
    counts[rows:] = counts[:, columns:] = counts[7] = counts[:, 7] = 0
    counts[rows - 1, 3] = counts[3, columns - 1] = 5
    text = ConfusionMatrix(200).text(metric_value(counts))
    assert len(text.splitlines()) < 3000
    matrix = read_matrix(text)
    np.testing.assert_array_equal(matrix.counts, counts[:rows, :columns])
    names = (*map(str, range(200)), "none")
    assert (matrix.labels, matrix.predicted) == (names[:rows], names[:columns])


def test_inconsistent_pairs_are_not_matrices():
    def pairs(*lines):
        rows = [("label", "predicted", "rows"), *(line.split() for line in lines)]
        return read_matrix("\n".join(f"{label:5}  {name:>9}  {number:>4}" for label, name, number in rows))

    assert pairs("a a 1", "a none 12", "b b 0").counts.tolist() == [[1, 0, 12], [0, 0, 0]]
    assert pairs("a a 1", "a c 12", "b b 0") is None  # c has no row of its own
    assert pairs("a a 1", "b b 2", "a a 3") is None  # twice
    assert pairs("a b 1", "c d 12") is None  # no class at all
    assert pairs("a a 1", "b b -2") is None


def test_short_text_of_many_classes_takes_little_memory():
    """5,000 classes have 25 million pairs; the text lists 5,001 of them."""
    number = 5000
    lines = [f"{name:<5}  {name:>9}  {3:>4}" for name in range(number)]
    text = "\n".join(["label  predicted  rows", lines[0], f"{0:<5}  {7:>9}  {9:>4}", *lines[1:]])
    tracemalloc.start()
    try:
        matrix = read_matrix(text)
        assert matrix.mistaken(3) == [("0", "7", 9, 0.75)]
        assert (matrix.picture().shape, matrix.accuracy) == ((1000, 1000), 15000 / 15009)
        np.testing.assert_allclose(matrix.right, [0.25, *[1] * (number - 1)])
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


MATRIX = Matrix.of(("a", "b", "c"), ("a", "b", "c"), np.array([[6, 2, 0], [0, 0, 0], [1, 3, 4]], np.uint64))


def test_shares_of_labels():
    np.testing.assert_allclose(MATRIX.shares, [[0.75, 0.25, 0], [0, 0, 0], [0.125, 0.375, 0.5]])
    np.testing.assert_allclose(MATRIX.right, [0.75, np.nan, 0.5])
    extra = Matrix.of(("a", "none"), ("a",), np.array([[6], [2]], np.uint64))
    np.testing.assert_allclose(extra.right, [1, np.nan])


def test_rows_outside_of_the_classes_are_never_right():
    """Not even if neither the label nor the prediction is one of the classes."""
    names = ("a", "b", "none")
    matrix = Matrix.of(names, names, np.array([[3, 1, 0], [0, 2, 0], [0, 1, 5]], np.uint64))
    np.testing.assert_allclose(matrix.right, [0.75, 1, np.nan])
    assert (matrix.classes, matrix.accuracy) == (2, 5 / 12)
    assert matrix.mistaken(1) == [("none", "none", 5, 5 / 6)]
    assert Matrix.of(("none", "b"), ("none", "b"), np.array([[3, 1], [0, 2]], np.uint64)).accuracy == 5 / 6


def test_mistakes_are_sorted_by_count():
    assert MATRIX.mistaken(5) == [("c", "b", 3, 0.375), ("a", "b", 2, 0.25), ("c", "a", 1, 0.125)]
    assert MATRIX.mistaken(1) == [("c", "b", 3, 0.375)]


def test_picture_equals_the_one_of_the_metric():
    counts = [[3, 1, 0], [0, 2, 0], [0, 0, 0]]
    metric = ConfusionMatrix(2)
    read = read_matrix(metric.text(metric_value(counts)))
    np.testing.assert_array_equal(read.picture(), metric.picture(metric_value(counts)))
    assert read.picture(0.5)[::192, ::192].tolist() == [[34, 128], [255, 0]]


# -- of a run ----------------------------------------------------------------------------------------------------------


def text(hits):
    return f"label  a  b\na      {hits}  0\nb      0  {hits}"


def run_with(tmp_path, losses, **others):
    values = {
        "valid/Loss": losses,
        "valid/M": [text(n + 1) for n in range(len(losses))],
        "valid/T": ["x"] * len(losses),
    }
    return RunReader(write_run(tmp_path / "a", values, **others))


def test_newest_and_best_matrix(tmp_path):
    entries = matrices(run_with(tmp_path, [0.8, 0.6, 0.7]))
    assert [(key, title, point.epoch, matrix.counts[0, 0]) for key, title, point, matrix in entries] == [
        ("valid/M", "the newest", 3, 3),
        ("valid/M", "the best by valid/Loss", 2, 2),
    ]


def test_newest_matrix_is_the_best(tmp_path):
    ((key, title, point, _),) = matrices(run_with(tmp_path, [0.8, 0.6]))
    assert (key, title, point.epoch) == ("valid/M", "the newest, and the best by valid/Loss", 2)


def test_monitor_selects_the_best(tmp_path):
    config = "with_file_checkpointer: {monitor: train/Loss}\n"
    values = {"train/Loss": [1.0, 2.0], "valid/Loss": [2.0, 1.0], "valid-ood/Loss": [1.0, 2.0]}
    assert monitor_of(RunReader(write_run(tmp_path / "a", values, config=config))) == "train/Loss"
    assert monitor_of(RunReader(write_run(tmp_path / "b", values))) == "valid/Loss"
    assert monitor_of(RunReader(write_run(tmp_path / "c", {"train/Loss": [1.0]}))) == "train/Loss"
    assert monitor_of(RunReader(write_run(tmp_path / "d", {"train/A": [1.0]}, config=config))) is None
    assert monitor_of(RunReader(write_run(tmp_path / "e", {"valid/Loss": [float("nan")]}))) is None
