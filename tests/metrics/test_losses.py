"""Tests of Loss and Perplexity."""

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import Info, Loss, Metric, Perplexity
from tests.support.codes import raises_code

BOTH = [Loss(), Perplexity()]


def epoch(metric: Metric, batches: list[tuple[Any, Any]]) -> float:
    """Return the value over batches of (loss, weight)."""
    state = metric.init()
    for loss, weight in batches:
        info = Info(jnp.int32(0), jnp.asarray(weight, jnp.float32))
        state = metric.merge(state, metric.update(metric.init(), types.SimpleNamespace(loss=loss), info))
    return float(metric.compute(state))


@pytest.mark.parametrize(
    ("batches", "mean"),
    [
        ([(2.0, 1), (5.0, 2)], 4.0),
        ([(2.0, 32), (np.nan, 0), (2.0, 5)], 2.0),
        ([(np.inf, 0), (1.5, 0.5)], 1.5),
        ([(1.0, 3), (np.nan, 1)], np.nan),
        ([(np.nan, 0)], np.nan),
        ([(np.inf, 1), (1.0, 1)], np.inf),
        ([(-1.0, 1), (1.0, 3)], 0.5),
    ],
)
def test_batches_are_weighted(batches: list[tuple[float, float]], mean: float) -> None:
    arrays = [(jnp.float32(loss), weight) for loss, weight in batches]
    assert_equal = np.testing.assert_allclose
    assert_equal(epoch(BOTH[0], arrays), mean, rtol=1e-7)
    assert_equal(epoch(BOTH[1], arrays), np.exp(mean), rtol=3e-7)


def test_perplexity_is_not_a_mean_of_perplexities() -> None:
    batches = [(jnp.log(2.0), 1.0), (jnp.log(8.0), 1.0)]
    np.testing.assert_allclose(epoch(Perplexity(), batches), 4.0, rtol=1e-6)


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_losses_of_any_dtype_are_averaged_in_float32(metric: Metric, dtype: str) -> None:
    batches = [(jnp.asarray(1.0, dtype), 2**20), (jnp.asarray(2.0, dtype), 1)]
    mean = 1 + 1 / (2**20 + 1)
    np.testing.assert_allclose(
        epoch(metric, batches), {"Loss": mean, "Perplexity": np.exp(mean)}[metric.name], rtol=2e-7
    )


@pytest.mark.parametrize("loss", [1.5, np.float32(1.5), np.array(1.5)], ids=lambda x: type(x).__name__)
def test_loss_may_be_a_python_number(loss: Any) -> None:
    assert epoch(Loss(), [(loss, 3)]) == 1.5


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
def test_weights_beyond_2_to_the_24_are_not_lost(metric: Metric) -> None:
    """A million batches of 10 001 tokens; every thousandth batch has another loss."""

    @jax.jit
    def run(losses: Any) -> Any:
        def body(i: Any, state: Any) -> Any:
            info = Info(i, jnp.float32(10_001))
            loss = jnp.where(i % 1000 == 0, losses[1], losses[0])
            return metric.merge(state, metric.update(metric.init(), types.SimpleNamespace(loss=loss), info))

        return jax.lax.fori_loop(0, 10**6, body, metric.init())

    state = run(jnp.array([0.1, 3.0]))
    assert state.weight.value() == np.float32(10_001 * 10**6)
    mean = 0.999 * float(np.float32(0.1)) + 0.001 * 3
    np.testing.assert_allclose(
        metric.compute(state), {"Loss": mean, "Perplexity": np.exp(mean)}[metric.name], rtol=3e-7
    )


@pytest.mark.parametrize("metric", BOTH, ids=lambda m: m.name)
def test_loss_that_is_no_scalar_raises(metric: Metric) -> None:
    with raises_code("metric-loss-shape", metric.name, "(4,)"):
        epoch(metric, [(jnp.ones(4), 4)])
