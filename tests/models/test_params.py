"""Tests of parts of models by path, replaced parameters, and modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from learner import eval_mode, partition_params, train_mode, trainable_params, with_parameters
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.small_models import BATCH, CASES, Everything, make_dict, make_linen
from tests.support.stopped import some


def names(tree):
    return list(named_leaves(tree))


GRADS = {"conv1": {"bias": 1.0, "kernel": 2.0}, "conv10": {"kernel": 3.0}, "head": [4.0, 5.0]}
GRADS = jax.tree.map(jnp.float32, GRADS)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (("conv1",), ["conv1.bias", "conv1.kernel"]),  # and nothing of conv10
        (("conv1.kernel",), ["conv1.kernel"]),
        (("head.1", "conv10"), ["conv10.kernel", "head.1"]),
        ((lambda path, x: float(x) > 2,), ["conv10.kernel", "head.0", "head.1"]),
        (("conv1", lambda path, x: path.endswith("kernel")), ["conv1.bias", "conv1.kernel", "conv10.kernel"]),
        (("conv1", "conv10", "head"), names(GRADS)),
    ],
)
def test_partition_covers_all_parameters(chosen, expected):
    part, rest = partition_params(GRADS, *chosen)
    assert names(part) == expected
    assert names(rest) == [name for name in names(GRADS) if name not in expected]
    both = {**named_leaves(part), **named_leaves(rest)}
    assert both == named_leaves(GRADS)


@pytest.mark.parametrize(
    ("chosen", "code", "values"),
    [
        (("conv2",), "params-partition-unmatched", ("partition_params", "'conv2'", "'conv1'")),
        (("conv1.kernal",), "params-partition-unmatched", ("'conv1.kernel'",)),
        (("kernel",), "params-partition-unmatched", ("'conv1.kernel'", "'conv10.kernel'")),
        (("zzz",), "params-partition-unmatched", ("'zzz'", "'conv1'", "'conv10'", "'head'")),
        (("con",), "params-partition-unmatched", ("partition_params", "'con'")),
        (("conv2", "haed"), "params-partition-unmatched", ("2", "'conv2'", "'haed'", "'head'")),
        ((lambda path, x: False,), "params-partition-unmatched", ("'conv1'", "'conv10'", "'head'")),
        ((3,), "params-partition-type", ("3",)),
        ((lambda path: True,), "params-predicate-signature", ()),
        ((), "params-partition-unmatched", ("partition_params",)),
    ],
)
def test_invalid_paths(chosen, code, values):
    with raises_code(code, *values):
        partition_params(GRADS, *chosen)


def test_partition_of_a_partition_has_no_removed_parameters():
    _, rest = partition_params(GRADS, "conv1")
    with raises_code("params-partition-unmatched", "partition_params", "'conv1'"):
        partition_params(rest, "conv1")


@pytest.mark.full
@pytest.mark.parametrize("case", some(CASES, {CASES[2], CASES[5]}), ids=str)
def test_parameters_are_replaced_in_a_model(case):
    """Replace all parameters by their value plus one hundred; the given model and everything else stay unchanged."""
    model = case.make()
    before = {name: np.array(x) for name, x in case.arrays(model).items()}
    params = trainable_params(model)
    more = with_parameters(model, jax.tree.map(lambda x: x + jnp.ones((), x.dtype) * 100, params))
    after = case.arrays(more)
    moved = [name for name in after if not np.array_equal(after[name], before[name])]
    assert len(moved) == len(names(params))
    for name in moved:
        np.testing.assert_allclose(after[name], before[name] + 100, rtol=1e-6)
    assert all(np.array_equal(x, before[name]) for name, x in case.arrays(model).items())
    for name, x in named_leaves(trainable_params(more)).items():
        np.testing.assert_allclose(x, named_leaves(params)[name] + np.float32(100), rtol=1e-6)


def test_flat_dict_by_path_is_accepted():
    model = with_parameters(Everything(), {"head.bias": jnp.float32([7, 8])})
    assert model.head.bias[...].tolist() == [7, 8]
    assert model.layers[0].kernel is model.layers[1].kernel


def test_other_parameters_are_one_error():
    wrong = {
        "head.bais": jnp.zeros(2),
        "head.kernel": jnp.zeros((2, 3)),
        "norm.scale": jnp.zeros(3, jnp.int32),
        "norm.bias": "zeros",
    }
    with raises_code("params-differ", "4") as error:
        with_parameters(Everything(), wrong)
    text = str(error.value)
    assert "no 'head.bais': did you mean 'head.bias'" in text
    assert "head.kernel of the model is float32[3, 2], and float32[2, 3] was given" in text
    assert "norm.scale of the model is float32[3], and int32[3] was given" in text
    assert "norm.bias of the model is float32[3], and a str was given" in text


def test_a_state_of_nnx_is_a_tree_of_arrays():
    state = nnx.state(Everything(), nnx.Param)
    part, rest = partition_params(state, "head")
    assert names(part) == ["head.bias", "head.kernel"]
    assert not set(names(part)) & set(names(rest))
    assert names(trainable_params(state)) == names(trainable_params(Everything()))


def test_trainable_argument():
    assert names(trainable_params(make_linen(), lambda path, x: "head" in path)) == ["head.bias", "head.kernel"]
    assert names(trainable_params(Everything(), nnx.PathContains("norm"))) == ["norm.bias", "norm.scale"]


@pytest.mark.full
@pytest.mark.parametrize("case", some(CASES, {CASES[1], CASES[2], CASES[3]}), ids=str)
def test_modes(case):
    model = case.make()
    has_modes = case.random or case.statistics
    evaluated = eval_mode(model)
    assert case.in_eval(evaluated)
    if has_modes and case.name not in ("dict", "linen"):  # linen models are in train mode only within a train step
        assert not case.in_eval(model)
    if case.name not in ("dict", "list"):
        assert not case.in_eval(train_mode(evaluated))
    for name, x in case.arrays(evaluated).items():
        np.testing.assert_array_equal(x, case.arrays(model)[name], err_msg=name)


def test_model_in_eval_mode_is_a_copy():
    model = Everything()
    evaluated = eval_mode(model)
    first = evaluated(BATCH["x"])
    model(BATCH["x"])  # statistics
    model.head.bias[...] = jnp.ones(2)
    np.testing.assert_array_equal(evaluated(BATCH["x"]), first)


def test_a_linen_model_goes_through_jit():
    model = make_linen()
    there = jax.jit(lambda model: with_parameters(model, {"head": {"bias": jnp.ones(2)}}))(model)
    assert there.module == model.module
    assert there.variables["params"]["head"]["bias"].tolist() == [1, 1]
    assert sorted(names(there)) == sorted(f"variables.{name}" for name in names(model.variables))


def test_dict_keeps_leaves_that_are_not_arrays():
    model = with_parameters(make_dict(), {"head": {"w": jnp.zeros((3, 2))}})
    assert model["keep"] == 0.8
    assert model["seen"].dtype == jnp.int32
