"""Tests of clipping, noise and weight decay."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import LearnerBuilder, LearnerWarning
from learner.optimizers import Clipped, Noisy, kernels, run_key
from learner.steps.run_key import run_keys
from tests.support.codes import raises_code

pytestmark = pytest.mark.usefixtures("optax_promotion")
GRADS = {"w": jnp.array([6.0, -8.0]), "b": jnp.array([24.0])}  # norms 10 and 24, together 26


@pytest.fixture
def optax_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def updates(optimizer):
    transform = optimizer(jnp.float32(1.0))
    changed, _ = transform.update(GRADS, transform.init(GRADS), {"w": jnp.array([30.0, 40.0]), "b": jnp.array([0.5])})
    return {name: (-x).tolist() for name, x in changed.items()}


@pytest.mark.full
@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"norm": 13.0}, {"w": [3.0, -4.0], "b": [12.0]}),
        ({"norm": 30.0}, {"w": [6.0, -8.0], "b": [24.0]}),
        ({"tensor_norm": 12.0}, {"w": [6.0, -8.0], "b": [12.0]}),
        ({"value": 7.0}, {"w": [6.0, -7.0], "b": [7.0]}),
        ({"value": 8.0, "tensor_norm": 5.0}, {"w": [3.0, -4.0], "b": [5.0]}),
        ({"adaptive": 2.0}, {"w": [6.0, -8.0], "b": [1.0]}),  # twice the norm of the parameter: 0.5 for b
    ],
)
def test_clipping(limits, expected):
    clipped = updates(Clipped(optax.sgd, **limits))
    assert clipped["w"] == pytest.approx(expected["w"], rel=1e-5)
    assert clipped["b"] == pytest.approx(expected["b"], rel=1e-5)


def test_zero_gradient_stays_zero():
    transform = Clipped(optax.sgd, tensor_norm=1.0)(1.0)
    assert transform.update({"w": jnp.zeros(2)}, transform.init({"w": jnp.zeros(2)}))[0]["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("limits", "code", "values"),
    [
        ({}, "optimizer-clip-limit-missing", ("tensor_norm",)),
        ({"norm": 0.0}, "optimizer-clip-limit-value", ("norm", "0.0")),
        ({"value": "1"}, "optimizer-clip-limit-value", ("value",)),
    ],
)
def test_invalid_limits(limits, code, values):
    with raises_code(code, *values):
        Clipped(optax.sgd, **limits)


@pytest.mark.full
def test_noise_has_the_variance_that_was_asked_for_and_falls():
    transform = Noisy(optax.sgd, eta=0.25, gamma=2.0, seed=1)(1.0)
    zeros = {"w": jnp.zeros(20_000)}
    first, state = transform.update(zeros, transform.init(zeros))
    second, _ = transform.update(zeros, state)
    assert np.var(first["w"]) == pytest.approx(0.25, rel=0.05)
    assert np.var(second["w"]) == pytest.approx(0.25 / 4, rel=0.05)
    with raises_code("optimizer-noise-value", name="eta", value=-1):
        Noisy(optax.sgd, eta=-1)


def noise_of(directory, optimizer, seed=0, members=(), **values):
    """Return the parameters after steps of noise alone, of a run or of each member of a population."""
    builder = LearnerBuilder(directory).renderer(None).with_file_checkpointer(None).num_epochs(1).seed(seed)
    if members:
        builder.population(seed=members, **values)
    model = (lambda rngs: {"w": jnp.zeros(2)}) if members else {"w": jnp.zeros(2)}
    learner = builder.build(model, optimizer, 0.1, train_step=lambda m, b: {"loss": (b["x"] @ m["w"]).mean() * 0.0})
    result = learner.fit([{"x": np.ones((4, 2), np.float32)}] * 3)
    return [each.model["w"].tolist() for each in (result if members else [result])]


def test_noise_follows_the_seed_of_the_run(tmp_path):
    noisy = Noisy(optax.sgd, eta=1.0)
    one, same, other = (noise_of(tmp_path / name, noisy, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert one == same != other
    fixed = Noisy(optax.sgd, eta=1.0, seed=7)
    assert noise_of(tmp_path / "d", fixed, seed=1) == noise_of(tmp_path / "e", fixed, seed=2)


def test_members_of_a_population_have_their_own_noise(tmp_path):
    """The noise of a run with the member's seed."""
    noisy = Noisy(optax.sgd, eta=1.0)
    first, second = noise_of(tmp_path / "p", noisy, members=[1, 2])
    assert first != second
    np.testing.assert_allclose([second], noise_of(tmp_path / "c", noisy, seed=2), rtol=1e-6)


def test_members_with_the_same_noise_are_warned_about(tmp_path):
    """An optimizer of optax keeps the key that it was given."""
    same = lambda lr: optax.noisy_sgd(lr, eta=1.0, key=jax.random.key(0))  # noqa: E731
    with pytest.warns(LearnerWarning, match="rng_key"):
        first, second = noise_of(tmp_path / "p", same, members=[1, 2])
    assert first == second

    def own(lr, chain):
        return optax.noisy_sgd(lr, eta=1.0, key=jax.random.key(jnp.int32(chain)))

    first, second = noise_of(tmp_path / "q", own, members=[1, 2], chain=[1, 2], zipped=True)
    assert first != second


def test_each_call_within_an_optimizer_has_another_key():
    """The noise of two groups of parameters must not be the same."""
    with run_keys(jax.random.key(3)):
        first, second = run_key(), run_key()
    with run_keys(jax.random.key(3)):
        assert run_key() == first != second
    assert run_key() == run_key()  # outside of a run


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)


@pytest.mark.full
def test_biases_and_norms_do_not_decay_in_stacked_layers_too():
    one = nnx.as_pure(nnx.state(Block(nnx.Rngs(0)), nnx.Param))
    stacked = jax.tree.map(lambda x: jnp.stack([x, x]), one)
    expected = {"linear": {"kernel": True, "bias": False}, "norm": {"scale": False, "bias": False}}
    assert kernels(one) == kernels(stacked) == expected
    module = Block(nnx.Rngs(0))
    nnx.update(module, stacked)
    in_dict = kernels({"block": module})
    assert jax.tree.leaves(in_dict) == jax.tree.leaves(expected)
    transform = optax.adamw(1.0, weight_decay=0.5, mask=kernels)
    zeros = jax.tree.map(jnp.zeros_like, one)
    changed, _ = transform.update(zeros, transform.init(one), one)
    np.testing.assert_allclose(changed["linear"]["kernel"], -0.5 * one["linear"]["kernel"])
    assert float(jnp.abs(changed["norm"]["scale"]).max()) == 0.0
