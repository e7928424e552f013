"""Tests of optax's optimizers as classes of configs."""

import dataclasses
import importlib
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner.optimizers.configs import OPTIMIZERS, AdamW, OptimizerConfig, ScheduleFree
from tests.support.codes import raises_code

NEEDED = {
    "DPSGD": {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "seed": 0},
    "ScheduleFree": {"base_optimizer": OPTIMIZERS["SGD"]()},
}


def optax_optimizers():
    """Yield the public functions of optax that take a learning rate, by name."""
    for module in (optax, optax.contrib):
        for name in dir(module):
            value = getattr(module, name)
            if callable(value) and not inspect.isclass(value) and not name.startswith("_"):
                try:
                    parameters = inspect.signature(value).parameters
                except ValueError:
                    continue
                if "learning_rate" in parameters:
                    yield name, value


def test_every_optimizer_of_optax_has_a_class():
    expected = {value for name, value in optax_optimizers() if not name.startswith("scale_by_")}
    assert {optimizer.function for optimizer in OPTIMIZERS.values()} == expected
    assert len(OPTIMIZERS) == len(expected) > 40


def expected_default(field, theirs):
    """Return the default of a field, from the parameter of optax's function."""
    ours = {"clip_norm": None, "weight_decay_on": "all", "key": 0}
    if field.name in ours:
        return ours[field.name]
    default = theirs[field.name].default
    if default is inspect.Parameter.empty:
        return dataclasses.MISSING
    return getattr(default, "__name__", None) if "dtype" in field.name else default


def test_fields_are_the_parameters_with_their_defaults(parameters):
    for name, optimizer in OPTIMIZERS.items():
        theirs, fields = parameters(optimizer.function), dataclasses.fields(optimizer)
        defaults = {field.name: field.default for field in fields}
        assert defaults == {field.name: expected_default(field, theirs) for field in fields}, name
        left_out = theirs.keys() - defaults.keys() - {"learning_rate", "seed"}
        assert [name for name in left_out if name not in optimizer.__doc__] == [], name


def test_call_with_a_rate_returns_the_transformation():
    for name, optimizer in OPTIMIZERS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # optax deprecates some of its functions
            transformation = optimizer(**NEEDED.get(name, {}))(1e-2)
        assert callable(transformation.update), name
        with jax.numpy_dtype_promotion("standard"):
            assert jax.tree.leaves(jax.eval_shape(transformation.init, {"w": jnp.ones((4, 4))})) is not None, name


def test_rate_and_settings_are_passed_on():
    transformation = OPTIMIZERS["SGD"](momentum=0.5)(0.1)
    params = {"w": jnp.float32(1.0)}
    state = transformation.init(params)
    first, state = transformation.update({"w": jnp.float32(2.0)}, state, params)
    second, _ = transformation.update({"w": jnp.float32(2.0)}, state, params)
    assert first["w"] == pytest.approx(-0.2)  # 0.1 * 2
    assert second["w"] == pytest.approx(-0.3)  # 0.1 * (2 + 0.5 * 2)


def test_clip_norm_is_applied_first():
    transformation = OPTIMIZERS["SGD"](clip_norm=1.0)(0.1)
    params = {"w": jnp.zeros(2)}
    update, _ = transformation.update({"w": jnp.array([3.0, 4.0])}, transformation.init(params), params)
    np.testing.assert_allclose(update["w"], [-0.06, -0.08], rtol=1e-6)  # the norm 5 is clipped to 1


@pytest.mark.full
def test_weight_decay_may_exclude_biases():
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    transformation = AdamW(weight_decay=0.5, weight_decay_on="kernels")(1.0)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = transformation.update(jax.tree.map(jnp.zeros_like, params), transformation.init(params), params)
    assert (updates["kernel"][0, 0], updates["bias"][0]) == (-0.5, 0.0)


def test_inner_optimizer_has_the_same_rate():
    rates = []

    class Recorder(OptimizerConfig):
        def __call__(self, learning_rate):
            rates.append(learning_rate)
            return optax.sgd(learning_rate)

    ScheduleFree(base_optimizer=Recorder())(0.25)
    assert rates == [0.25]


def test_rate_may_be_traced():
    update = jax.jit(lambda lr, grads: AdamW(b1=0.0, eps=0.0, weight_decay=0.0)(lr).update(grads, state, grads)[0])
    grads = jnp.array([2.0, -3.0])
    state = AdamW()(1.0).init(grads)
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(update(jnp.float32(0.5), grads), [-0.5, 0.5], rtol=1e-5)  # the sign, times the rate


def test_error_of_optax_names_the_optimizer():
    class Picky(OptimizerConfig):
        function = staticmethod(lambda learning_rate: (_ for _ in ()).throw(ValueError("too picky")))

    picky = dataclasses.make_dataclass("Picky", [("clip_norm", float | None, None)], bases=(Picky,))
    with raises_code("optimizer-refused"):
        picky()(0.1)


def test_configs_of_earlier_versions_find_the_classes():
    """The `config.yaml` of a run names them by the module in which they were, and the run still resumes."""
    earlier = importlib.import_module("learner.cli.optimizers")
    assert {name: getattr(earlier, name) for name in OPTIMIZERS} == dict(OPTIMIZERS)
    assert earlier.Optimizer is OptimizerConfig
