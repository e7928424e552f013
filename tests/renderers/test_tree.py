"""Tests of the arrays of a model as a tree of few rows."""

import pytest

from learner.events import ArrayInfo
from learner.renderers.tree import MOST, ROWS, folded


def array(path, kind="params", trainable=True, dtype="float32"):
    return ArrayInfo(path, (2, 3), dtype, kind, trainable, 24)


def blocks(count):
    return [array(f"blocks.{i}.{layer}.{name}") for i in range(count) for layer in ("a", "b") for name in ("w", "v")]


def shown(rows):
    return [(row.level, row.name, row.arrays) for row in rows]


REST = [(0, "head", 1), (1, "w", 1), (1, "v", 1), (0, "norm.scale.value", 1), (0, "table", 1)]
AB = (2, "a", 2), (2, "b", 2)
MODEL = [*blocks(2), array("head.w"), array("head.v"), array("norm.scale.value"), array("table")]


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        (1, [(0, "blocks", 8), (0, "head", 2), (0, "norm.scale.value", 1), (0, "table", 1)]),
        (2, [(0, "blocks", 1), (1, "0", 4), (1, "1", 4), *REST]),
        (3, [(0, "blocks", 1), (1, "0", 1), *AB, (1, "1", 1), *AB, *REST]),
    ],
)
def test_depth_of_a_tree(depth, expected):
    rows = folded(MODEL, depth)
    assert shown(rows) == [*expected, (0, "total", 1)]
    top = [row for row in rows[:-1] if row.level == 0]
    assert sum(row.bytes for row in top) == rows[-1].bytes == 24 * len(MODEL)
    assert sum(row.parameters for row in top) == rows[-1].parameters == 6 * len(MODEL)


def test_small_model_is_complete():
    assert folded(MODEL) == folded(MODEL, 9)
    assert shown(folded(MODEL))[2:4] == [(2, "a", 1), (3, "w", 1)]


@pytest.mark.parametrize(("count", "depth"), [(5, 4), (6, 3), (13, 3), (14, 2), (39, 2), (40, 1)])
def test_deep_model_is_folded_to_the_limit(count, depth):
    """The limit is 40 rows. There is one row for the top, and each block has seven rows with all four levels, three
    with three, and one with two.
    """
    assert folded(blocks(count)) == folded(blocks(count), depth)
    assert len(folded(blocks(count))) <= ROWS + 1


def test_rows_beyond_the_limit_are_summed():
    many = [array(f"layer{i}") for i in range(2000)]
    rows = folded(many)
    assert len(rows) == ROWS + 1
    assert shown(rows)[-3:] == [(0, "layer38", 1), (0, "...", 2000 - 39), (0, "total", 1)]
    assert sum(row.bytes for row in rows[:-1]) == rows[-1].bytes == 24 * 2000
    assert len(folded(many, 1)) == MOST + 1


def test_limit_inside_a_part():
    """Omitted rows count once, in the part or in the rest."""
    many = [*(array(f"first.layer{i}") for i in range(2000)), array("second")]
    rows = folded(many, 2)
    assert shown(rows)[0] == (0, "first", 1)
    assert shown(rows)[-2:] == [(0, "...", 1), (0, "total", 1)]
    assert sum(row.bytes for row in rows[:-1] if row.level == 0) == rows[-1].bytes


def test_part_shows_properties_that_its_arrays_share():
    held = [array("a.w", trainable=False), array("a.v", trainable=False), array("b.w", "batch_stats", False, "int32")]
    part, single, total = folded(held, 1)
    assert (part.kind, part.dtype, part.shape) == ("frozen", "float32", None)
    assert (single.kind, single.dtype, single.shape, single.parameters) == ("batch_stats", "int32", (2, 3), 0)
    assert (total.kind, total.dtype, total.parameters, total.bytes) == ("", "", 12, 72)
    mixed = folded([array("a.w"), array("a.v", trainable=False, dtype="int32")], 1)[0]
    assert (mixed.kind, mixed.dtype) == ("", "")


def test_model_of_one_array():
    assert shown(folded([array("")])) == [(0, "array", 1), (0, "total", 1)]
