"""Tests of the loader benchmark: both sides return equal rows, and ratios are computed correctly."""

import importlib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(monkeypatch):
    """Return the module, which is not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.data")


def rows_of(epochs):
    """Return all rows of an epoch, sorted."""
    batches = list(epochs())
    flat = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    rows = np.concatenate([x.reshape(len(x), -1).astype(np.float64) for x in flat.values()], axis=1)
    return rows[np.lexsort(rows.T)], [len(next(iter(batch.values()))) for batch in batches]


@pytest.mark.full
def test_both_sides_give_the_same_rows(data):
    pairs = data.in_memory(0.001) + [
        candidate for candidate in data.through_grain(0.01, [0]) if "augmented" not in candidate.name
    ]
    assert len(pairs) == 8
    for pair in pairs:
        (ours, sizes), (bare, bare_sizes) = rows_of(pair.ours), rows_of(pair.bare)
        assert (sizes, sum(sizes)) == (bare_sizes, pair.rows), pair.name
        np.testing.assert_array_equal(ours, bare, err_msg=pair.name)


def test_both_sides_augment_alike(data):
    (pair,) = [candidate for candidate in data.through_grain(0.01, [0]) if candidate.name == "small rows, augmented"]
    pixels = [np.concatenate([batch["image"] for batch in side()]) for side in (pair.ours, pair.bare)]
    assert pixels[0].shape == pixels[1].shape
    np.testing.assert_allclose(pixels[0].mean(), pixels[1].mean(), atol=0.02)
    np.testing.assert_allclose(pixels[0].var(), 1 / 12 + 0.01, rtol=0.1)


def test_a_ratio_is_the_loaders_time_by_the_others(data):
    pair = data.Pair("name", lambda: iter([]), lambda: iter([]), rows=100, goal=1.3)
    assert data.line(pair, [3.0, 2.0, 4.0], [2.0, 2.0, 2.0]).split() == [
        "name", "1.5", "(1", "to", "2)", "33", "rows/s", "goal", "<=", "1.3"
    ]  # fmt: skip
    assert "goal" not in data.line(data.Pair("name", pair.ours, pair.bare, 100, None), [1.0], [1.0])


def test_sides_take_turns(data):
    order = []

    def side(name):
        def epoch():
            order.append(name)
            yield {"x": np.zeros(3)}

        return epoch

    closed = []
    pair = data.Pair("pair", side("a"), side("b"), 3, None, lambda: closed.append(True))
    ours, bare = data.measure(pair, rounds=3, least=0)
    assert (len(ours), len(bare), closed) == (3, 3, [True])
    assert "".join(order) == "abba" + "ab" + "ba" + "ab"
    with pytest.raises(AssertionError):
        data.seconds(side("a"), 4)


@pytest.mark.full
def test_the_command_runs(data, capsys):
    data.main(["--quick", "--rounds", "1", "--workers", "0"])
    assert capsys.readouterr().out.count("rows/s") == 6 + 4
