"""Tests of `SingleDevice`: placement, compilation and donation on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerBuilder, RegressionOutput
from learner.strategies import SingleDevice, choose_devices
from learner.training.programs.compilation import CompileTimes
from tests.support.runs import T, X

DATA = {"x": X[:8], "y": T[:8]}
TREE = {"x": np.arange(3, dtype=np.float32), "key": jax.random.key(1), "n": np.int32(2)}


def squares(model, batch):
    return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])


@pytest.fixture(params=[0, 3], ids=["first device", "another"])
def strategy(request):
    return SingleDevice(jax.devices()[request.param])


@pytest.mark.parametrize("method", ["place", "put"])
def test_placed_arrays_are_committed_to_the_device(strategy, method):
    placed = getattr(strategy, method)(TREE if method == "place" else {"x": TREE["x"]})
    assert all(x.committed and x.devices() == {strategy.device} for x in jax.tree.leaves(placed))
    np.testing.assert_array_equal(np.asarray(placed["x"]), TREE["x"])
    assert not any(x.weak_type for x in jax.tree.leaves(placed) if x.dtype == jnp.float32)


def test_an_array_on_another_device_is_moved(strategy):
    elsewhere = jax.device_put(TREE["x"], jax.devices()[5])
    assert strategy.place(elsewhere).devices() == {strategy.device}


def test_a_program_runs_on_the_device_and_compiles_once(strategy):
    program = strategy.compile(lambda x, n: x * n.astype(jnp.float32))
    x, n = strategy.place(TREE["x"]), strategy.scalar(2)
    with CompileTimes() as times:
        once = program(x, n)
        twice = program(once, strategy.scalar(3))
    assert times.count == 1
    assert once.devices() == twice.devices() == {strategy.device}
    assert twice.tolist() == [0, 6, 12]


def test_results_that_do_not_depend_on_arguments_are_committed(strategy):
    """With uncommitted results, the next program would compile twice: for them and for its own results."""
    result = strategy.compile(lambda x: jnp.zeros(3))(strategy.place(TREE["x"]))
    assert result.committed
    assert result.devices() == {strategy.device}


def test_donated_arguments_are_deleted(strategy):
    program = strategy.compile(lambda x, y: (x + y, y), donate=(0,))
    x, y = strategy.place(np.ones(3, np.float32)), strategy.place(np.ones(3, np.float32))
    program(x, y)
    assert (x.is_deleted(), y.is_deleted()) == (True, False)


def test_scalars_are_placed_once(strategy):
    first = strategy.scalar(5)
    assert strategy.scalar(5) is first
    assert (int(first), first.dtype, first.weak_type, first.committed) == (5, jnp.int32, False, True)
    assert int(strategy.scalar(6)) == 6


def test_scalars_need_no_implicit_transfer(strategy):
    with jax.transfer_guard("disallow"):
        strategy.scalar(11)
        strategy.place(np.ones(3))


def test_the_description_names_the_device(strategy):
    assert strategy.platform == "cpu"
    assert strategy.description == f"one device: cpu ({strategy.device})"


def test_the_default_is_the_default_device_of_jax():
    assert SingleDevice().device == jax.devices()[0]
    with jax.default_device(jax.devices()[2]):
        assert SingleDevice().device == choose_devices(None).devices[0] == choose_devices(1).devices[0]
        assert SingleDevice().device == jax.devices()[2]
    with jax.default_device("cpu"):
        assert SingleDevice().device == jax.devices("cpu")[0]


@pytest.mark.parametrize(
    "model", [{"w": jnp.zeros((3, 1))}, lambda: {"w": jnp.zeros((3, 1))}], ids=["object", "function"]
)
def test_a_run_uses_the_default_device_of_jax(tmp_path, model):
    with jax.default_device(jax.devices()[3]):
        learner = LearnerBuilder(tmp_path).renderer(None).build(model, optax.sgd, 0.1, train_step=squares)
        trained = learner.fit([DATA]).model
    assert trained["w"].devices() == {jax.devices()[3]}


def test_a_model_on_a_device_that_the_run_does_not_use_is_warned_about(tmp_path):
    for index, chosen, warns in ((3, None, True), (0, None, False), (3, [0], False)):
        model = jax.device_put({"w": jnp.zeros((3, 1))}, jax.devices()[index])
        directory = tmp_path / f"{index}-{chosen}"
        builder = LearnerBuilder(directory).renderer(None)
        if chosen is not None:
            builder.devices(chosen)
        builder.build(model, optax.sgd, 0.1, train_step=squares).fit([DATA])
        assert ("arrays are on" in (directory / "experiment.log").read_text()) == warns
