"""Tests of optimizers in groups, each of which sees a part of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from learner.optimizers import Group, Groups
from learner.optimizers.configs import OPTIMIZERS, OptimizerConfig
from learner.steps.optimizer_checks import check_optimizer
from tests.support.runs import T, X, line, line_step, quiet

PARAMS = {"body": {"kernel": jnp.ones((4, 4)), "bias": jnp.ones((4,))}, "head": {"kernel": jnp.ones((4, 2))}}
EACH_EXAMPLE = {"DPSGD"}
NEEDED = {
    "DPSGD": {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "seed": 0},
    "ScheduleFree": {"base_optimizer": OPTIMIZERS["SGD"]()},
}
MORE = {
    "polyak": optax.polyak_sgd,
    "sam": lambda lr: optax.contrib.sam(optax.sgd(lr), optax.sgd(0.1), opaque_mode=True),
    "mechanize": lambda lr: optax.contrib.mechanize(optax.adamw(lr)),
    "backtracking": lambda lr: optax.chain(optax.sgd(lr), optax.scale_by_backtracking_linesearch(5)),
    "groups": lambda lr: Groups(optax.lbfgs, [Group("kernel")])(lr),
}
ALL = {**{name: kind(**NEEDED.get(name, {})) for name, kind in OPTIMIZERS.items()}, **MORE}
SAMPLE = {"AdamW", "LBFGS", "Prodigy", "Sophia", "ScheduleFree", "Muon", *MORE}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised within optax
@pytest.mark.parametrize("name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.full) for n in ALL])
def test_every_optimizer_of_optax_in_a_group_and_as_the_rest(name):
    in_group = Groups(optax.sgd, [Group("body", optimizer=ALL[name])])
    as_rest = Groups(ALL[name], [Group("body", lr=lambda step: 0.1, optimizer=optax.sgd)])
    for optimizer in (in_group, as_rest):
        problems = check_optimizer(optimizer, PARAMS, False).problems
        assert bool(problems) == (name in EACH_EXAMPLE)


def test_the_registry_has_all_of_them():
    assert all(isinstance(config, OptimizerConfig) for name, config in ALL.items() if name not in MORE)
    assert len(ALL) > 45


@pytest.mark.full
def test_a_line_search_in_a_group_is_along_its_part(tmp_path):
    """L-BFGS trains the weights, the bias stays as it is: the weights are the least-squares solution for the
    residual.
    """
    optimizer = Groups(optax.sgd, [Group("^w", lr=lambda step: 1.0, optimizer=optax.lbfgs)])
    start = {"w": jnp.zeros((3, 1)), "b": jnp.full((1,), 0.3)}
    builder = quiet(tmp_path / "run").num_epochs(12)
    result = builder.build(start, optimizer, 0.0, train_step=line_step).fit([{"x": X, "t": T}])
    assert result.model["b"] == jnp.float32(0.3)
    expected = np.linalg.lstsq(X.astype(np.float64), T.astype(np.float64) - 0.3)[0]
    np.testing.assert_allclose(result.model["w"], expected, atol=1e-3)


@pytest.mark.full
def test_repeated_gradient_is_that_of_the_part(tmp_path):
    """A step of SAM on the bias alone, by hand: up by 0.1 of its gradient, and down by the gradient there."""

    def sam(lr):
        return optax.contrib.sam(optax.sgd(lr), optax.sgd(0.1), opaque_mode=True)

    optimizer = Groups(optax.sgd, [Group("^b", optimizer=sam)])
    result = quiet(tmp_path / "run").build(line(), optimizer, 0.05, train_step=line_step).fit([{"x": X, "t": T}])
    x, t = X.astype(np.float64), T.astype(np.float64)
    slope = 2 * (0 - t).mean()
    uphill = 0.1 * slope
    np.testing.assert_allclose(result.model["b"][0], -0.05 * 2 * (uphill - t).mean(), rtol=1e-5)
    np.testing.assert_allclose(result.model["w"], 0.05 * 2 * x.T @ t / len(x), rtol=1e-4)


@pytest.mark.full
def test_arguments_beside_the_gradients_are_those_of_the_part():
    seen = []

    def update(updates, state, params=None, *, grad, value_fn, **extra):
        seen.append((jax.tree.leaves(grad), float(value_fn(params))))
        return updates, state

    watching = lambda lr: optax.GradientTransformationExtraArgs(lambda params: (), update)  # noqa: E731
    transform = Groups(optax.sgd, [Group("^b", optimizer=watching)])(1.0)
    params = {"b": jnp.float32(2), "w": jnp.float32(5)}
    value_fn = lambda p: p["b"] * p["w"]  # noqa: E731
    transform.update(params, transform.init(params), params, grad=params, value_fn=value_fn, value=jnp.float32(0))
    assert seen == [([2.0], 10.0)]
