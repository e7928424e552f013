"""Tests of sharding rules: the axis that splits each array, and errors in rules."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from learner.strategies import fsdp
from learner.strategies.rules import Rules
from tests.support.codes import raises_code

LEAVES = {
    "layers.0.attention.kernel": jax.ShapeDtypeStruct((8, 12), jnp.float32),
    "layers.0.mlp.kernel": jax.ShapeDtypeStruct((8, 32), jnp.float32),
    "layers.0.mlp.bias": jax.ShapeDtypeStruct((32,), jnp.float32),
}
SIZES = {"data": 4, "model": 2}


@given(st.lists(st.integers(1, 40), max_size=4), st.integers(1, 9), st.integers(0, 200))
def test_fsdp_splits_the_largest_axis_that_divides(shape, count, min_size):
    spec = fsdp(min_size).spec(shape, {"data": count})
    split = [axis for axis, entry in enumerate(spec) if entry is not None]
    size = 1
    for length in shape:
        size *= length
    divisible = [length for length in shape if length % count == 0]
    assert len(split) == (1 if divisible and size >= min_size else 0)
    if split:
        assert shape[split[0]] == max(divisible)


@pytest.mark.parametrize(
    "rules",
    [
        {"attention": (None, "model"), "kernel": ["data", None], "bias": "model"},
        [("attention", P(None, "model")), ("kernel", ("data",)), (r"mlp\.bias$", [["model"]])],
        [{"attention": (None, "model")}, {"kernel": "data", "bias": ("model",)}],
    ],
)
def test_the_first_rule_that_matches_counts(rules):
    read = Rules.of(rules)
    specs = {path: read.spec(path, leaf.shape, SIZES) for path, leaf in LEAVES.items()}
    attention, kernel, bias = specs.values()
    assert (attention, kernel[0], bias[0]) in [(P(None, "model"), "data", name) for name in ("model", ("model",))]
    assert read.problems(LEAVES, SIZES) == []


def test_fsdp_applies_to_arrays_that_earlier_rules_do_not_match():
    read = Rules.of([("bias", None), fsdp(1, axis="model")])
    assert [read.spec(path, leaf.shape, SIZES) for path, leaf in LEAVES.items()] == [
        P(None, "model"),
        P(None, "model"),
        P(),
    ]


def test_fsdp_has_a_name():
    assert Rules.of("fsdp") == Rules.of(["fsdp"]) == Rules.of(fsdp())
    assert Rules.of([{"bias": None}, "fsdp"]) == Rules.of([("bias", None), fsdp()])


def test_without_rules_nothing_is_split():
    assert Rules.of(None).spec("any", (8, 8), SIZES) == P()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"kernel": "modle"}, "the rule 'kernel' splits over 'modle', and the mesh has 'data', 'model'"),
        (fsdp(axis="fsdp"), "fsdp splits over 'fsdp', and the mesh has 'data', 'model'"),
        ({"kernel": ("data", "data")}, "the rule 'kernel' splits over 'data' twice"),
        ({r"layers\.0\.mpl\.kernel": "data"}, "matches none of the 3 arrays; did you mean 'layers.0.mlp.kernel'"),
        ({"zzz": "data"}, "the rule 'zzz' of Sharded is not used: it matches none of the 3 arrays; choose from "),
        ([("kernel", "data"), ("attention", "model")], "an earlier rule takes all that it matches (layers.0.att"),
        (
            {"attention.kernel": (None, ("data", "model"))},
            "layers.0.attention.kernel [8, 12] cannot be split along its axis 1: 12 is not a multiple of 8, the size "
            "of 'data' and 'model'",
        ),
        ({"bias": (None, "model")}, "layers.0.mlp.bias has 1 axes ([32]), and its rule of Sharded splits 2"),
    ],
)  # fmt: skip
def test_rules_that_do_not_fit_the_arrays_are_problems(rules, message):
    (problem,) = Rules.of(rules).problems(LEAVES, SIZES)
    assert message in problem


@pytest.mark.parametrize(
    ("rules", "warned"),
    [
        (fsdp(min_size=257), True),  # the largest array has 8 * 32 elements
        (fsdp(min_size=256), False),
        ([{"attention": (None, "model")}, fsdp(min_size=257)], False),
        ({"bias": None}, False),
        ([{".*": None}, fsdp(min_size=1)], False),  # no array reaches fsdp
    ],
)
def test_fsdp_that_splits_nothing_is_warned_about(rules, warned):
    assert bool(Rules.of(rules).warnings(LEAVES, SIZES)) == warned
    assert Rules.of(rules).warnings(LEAVES, dict.fromkeys(SIZES, 1)) == []


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ("fdsp", "strategy-rules-type"),
        (3, "strategy-rules-type"),
        (["kernel"], "strategy-rule-malformed"),
        ([("kernel", "data", "model")], "strategy-rule-malformed"),
        ({"kernel": (1,)}, "strategy-rule-axes"),
        ({"kernel": 1}, "strategy-rule-axes"),
        ({"(": "data"}, "strategy-rule-pattern"),
    ],
)
def test_malformed_rules_are_refused(rules, code):
    with raises_code(code):
        Rules.of(rules)


@pytest.mark.parametrize("size", [-1, 1.5, True])
def test_invalid_minimum_sizes_are_refused(size):
    with raises_code("strategy-fsdp-min-size"):
        fsdp(size)
