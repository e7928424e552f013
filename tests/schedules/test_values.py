"""Tests of every schedule against its formula in float64: first step, boundaries, end, and after the end."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import learner.schedules
from learner.schedules import (
    Constant,
    Cosine,
    CosineRestarts,
    Exponential,
    InverseSqrt,
    Linear,
    Mean,
    MultiStep,
    Noam,
    OneCycle,
    Polynomial,
    Product,
    Schedule,
    Sequence,
    Step,
    Sum,
    WarmupCosine,
    WarmupStableDecay,
)


def wave(first, last, t, over):
    return last + (first - last) * (1 + math.cos(math.pi * min(t, over) / over)) / 2


def line(first, last, t, over):
    return first + (last - first) * min(t, over) / over


def one_cycle(t):
    """Return the rate of a cycle with peak 1 over 41 steps: up for int(0.3 * 41) = 12 steps, down for 29."""
    return wave(0.04, 1.0, t, 12) if t < 12 else wave(1.0, 4e-6, t - 12, 29)


def one_cycle_of_lines(t):
    """Return the rate of a piecewise linear cycle: up for 12 steps, down to step int(0.85 * 41) = 34, then to 41."""
    if t < 12:
        return line(0.04, 1.0, t, 12)
    return line(1.0, 0.04, t - 12, 22) if t < 34 else line(0.04, 4e-6, t - 34, 7)


def two_waves(t):
    """Return the rate of two cycles in 44 steps; the second is 3 times as long (33 steps for 11) and half as high."""
    return wave(0.4, 0.1, t, 11) if t < 11 else wave(0.2, 0.1, t - 11, 33)


def stable(t, down):
    """Return the rate that rises from 0.01 to 0.2 in 3 steps, and falls to 0.02 between steps 30 and 41."""
    if t < 3:
        return line(0.01, 0.2, t, 3)
    return 0.2 if t < 30 else 0.2 + (0.02 - 0.2) * down(min(t - 30, 11) / 11)


CASES = {
    "constant": (Constant(0.3), lambda t: 0.3),
    "linear": (Linear(0.1, 0.02, over=41), lambda t: line(0.1, 0.02, t, 41)),
    "linear up": (Linear(0.0, 0.1, over=41), lambda t: line(0.0, 0.1, t, 41)),
    "linear to 0": (Linear(0.1, over=41), lambda t: line(0.1, 0.0, t, 41)),
    "polynomial": (Polynomial(0.1, last=0.02, over=41, power=3.0), lambda t: 0.02 + 0.08 * (1 - min(t, 41) / 41) ** 3),
    "root": (Polynomial(0.1, over=41, power=0.5), lambda t: 0.1 * (1 - min(t, 41) / 41) ** 0.5),
    "cosine": (Cosine(0.1, over=41), lambda t: wave(0.1, 0.0, t, 41)),
    "cosine to a rate": (Cosine(0.1, last=0.02, over=41), lambda t: wave(0.1, 0.02, t, 41)),
    "restarts": (CosineRestarts(0.4, 2, last=0.1, over=44, growth=3.0, factor=0.5), two_waves),
    "exponential": (Exponential(0.1, 0.5, every=41), lambda t: 0.1 * 0.5 ** (t / 41)),
    "exponential with a floor": (Exponential(0.1, 0.5, 41, floor=0.03), lambda t: max(0.1 * 0.5 ** (t / 41), 0.03)),
    "step": (Step(0.1, 0.5, every=41), lambda t: 0.1 * 0.5 ** (t // 41)),
    "multi_step": (MultiStep(0.1, [11, 41], 0.3), lambda t: 0.1 * 0.3 ** ((t >= 11) + (t >= 41))),
    "one_cycle": (OneCycle(1.0, over=41), one_cycle),
    "one_cycle of lines": (OneCycle(1.0, over=41, shape="linear"), one_cycle_of_lines),
    "warmup_stable_decay": (WarmupStableDecay(0.2, 3, 11, 41, first=0.01, last=0.02), lambda t: stable(t, lambda x: x)),
    "warmup_stable_decay, cosine": (
        WarmupStableDecay(0.2, 3, 11, 41, first=0.01, last=0.02, shape="cosine"),
        lambda t: stable(t, lambda x: (1 - math.cos(math.pi * x)) / 2),
    ),
    "warmup_stable_decay, sqrt": (
        WarmupStableDecay(0.2, 3, 11, 41, first=0.01, last=0.02, shape="sqrt"),
        lambda t: stable(t, math.sqrt),
    ),
    "warmup_cosine": (
        WarmupCosine(0.2, 3, over=41, first=0.01, last=0.02),
        lambda t: line(0.01, 0.2, t, 3) if t < 3 else wave(0.2, 0.02, min(t - 3, 38), 38),
    ),
    "warmup_cosine, without a warmup": (WarmupCosine(0.2, 0, over=41), lambda t: wave(0.2, 0.0, t, 41)),
    "inverse_sqrt": (InverseSqrt(0.2, 41), lambda t: 0.2 * t / 41 if t < 41 else 0.2 * (41 / t) ** 0.5),
    "noam": (Noam(512, 41), lambda t: 512**-0.5 * min((t + 1) ** -0.5, (t + 1) * 41**-1.5)),
    "noam, scaled": (Noam(512, 41, scale=2.0), lambda t: 2 * 512**-0.5 * min((t + 1) ** -0.5, (t + 1) * 41**-1.5)),
    "sequence": (
        Sequence([Linear(0.0, 0.1), lambda step: 0.3 / (1 + step), 0.05], [11, 41]),
        lambda t: line(0, 0.1, t, 11) if t < 11 else 0.3 / (1 + t - 11) if t < 41 else 0.05,
    ),
    "sequence in a sequence": (
        Sequence([Sequence([Linear(0.0, 0.1), Cosine(0.1)], [11]), 0.05], [41]),
        lambda t: line(0, 0.1, t, 11) if t < 11 else wave(0.1, 0, t - 11, 30) if t < 41 else 0.05,
    ),
    "product": (
        Product([Linear(0.0, 1.0, over=11), Step(0.4, 0.5, every=41), 0.5]),
        lambda t: line(0, 1, t, 11) * 0.4 * 0.5 ** (t // 41) * 0.5,
    ),
    "sum": (
        Sum([Linear(0.2, over=41), optax.linear_schedule(0.0, 0.1, 11)]),
        lambda t: line(0.2, 0, t, 41) + line(0, 0.1, t, 11),
    ),
    "mean": (
        Mean([Linear(0.2, over=41), 0.1, Step(0.4, 0.5, 11)]),
        lambda t: (line(0.2, 0, t, 41) + 0.1 + 0.4 * 0.5 ** (t // 11)) / 3,
    ),
}
STEPS = [0, 1, 2, 3, 4, 10, 11, 12, 20, 29, 30, 31, 33, 34, 35, 40, 41, 42, 43, 44, 45, 81, 82, 83, 1000]


def test_every_schedule_has_its_formula():
    tested = {type(schedule) for schedule, _ in CASES.values()}
    public = {value for value in vars(learner.schedules).values() if inspect.isclass(value)}
    assert tested == {kind for kind in public if issubclass(kind, Schedule)} - {Schedule}


@pytest.mark.parametrize("name", CASES)
def test_values(name, rates):
    schedule, formula = CASES[name]
    values = rates(schedule, STEPS)
    np.testing.assert_allclose(values, [formula(t) for t in STEPS], rtol=1e-5, atol=1e-9)
    assert values[0] == pytest.approx(formula(0), rel=1e-7)


def test_a_step_may_be_a_number():
    rate = Linear(0.25, over=4)(1)
    assert (float(rate), rate.dtype, rate.weak_type) == (0.1875, jnp.float32, False)
    assert float(Linear(0.25, over=4)(np.int64(2))) == 0.125


@pytest.mark.parametrize("over", [7, 41])
def test_the_end_is_exact(over, rates):
    """Compilers multiply by reciprocals: optax's linear schedule then ends just below 0, and its square root is NaN."""
    for schedule in (Linear(0.1, over=over), Polynomial(0.1, over=over, power=0.5), Cosine(0.1, over=over)):
        before, *after = rates(schedule, [over - 1, over, over + 1])
        assert before > 0
        assert after == [0.0, 0.0]


@pytest.mark.parametrize("every", [1, 7, 41, 47, 61])
def test_stairs_fall_at_exact_multiples(every, rates):
    """`floor(step / every)` is late where the division is compiled to a product."""
    steps = [every * stair + behind for stair in range(1, 8) for behind in (-1, 0)]
    expected = [0.5 ** (step // every) for step in steps]
    assert rates(Step(1.0, 0.5, every), steps) == expected


@pytest.mark.full
def test_rates_equal_optax(rates):
    """Away from the boundaries, which are exact here and rounded in optax."""
    pairs = [
        (Linear(0.1, 0.02, over=40), optax.linear_schedule(0.1, 0.02, 40)),
        (Polynomial(0.1, last=0.02, over=40), optax.polynomial_schedule(0.1, 0.02, 2.0, 40)),
        (Cosine(0.1, last=0.02, over=40), optax.cosine_decay_schedule(0.1, 40, alpha=0.02 / 0.1)),
        (Exponential(0.1, 0.5, 40), optax.exponential_decay(0.1, 40, 0.5)),
        (MultiStep(0.1, [10, 30], 0.5), optax.piecewise_constant_schedule(0.1, {10: 0.5, 30: 0.5})),
        (OneCycle(0.1, 40), optax.cosine_onecycle_schedule(40, 0.1)),
        (OneCycle(0.1, 40, shape="linear"), optax.linear_onecycle_schedule(40, 0.1)),
        (WarmupCosine(0.4, 10, over=40, last=0.1), optax.warmup_cosine_decay_schedule(0.0, 0.4, 10, 40, 0.1)),
        (CosineRestarts(0.4, 2, over=40), optax.sgdr_schedule([_wave(20), _wave(20)])),
        (
            Sequence([Linear(0.0, 0.4), Cosine(0.4, over=30)], [10]),
            optax.warmup_cosine_decay_schedule(0.0, 0.4, 10, 40),
        ),
    ]
    for schedule, optax_schedule in pairs:
        steps = [1, 9, 11, 25, 39]
        with jax.numpy_dtype_promotion("standard"):
            expected = jax.jit(jax.vmap(optax_schedule))(jnp.asarray(steps))
        np.testing.assert_allclose(rates(schedule, steps), expected, rtol=1e-6)


def _wave(steps):
    return {"init_value": 0.4, "peak_value": 0.4, "warmup_steps": 0, "decay_steps": steps}


def test_schedule_in_an_optax_optimizer():
    """By hand: gradients of 1 with rates 0.5, 0.25 and 0 move SGD's parameter to -0.5, -0.75 and -0.75."""
    optimizer = optax.sgd(Linear(0.5, over=2))
    params = jnp.float32(0)
    state = optimizer.init(params)
    for expected in (-0.5, -0.75, -0.75):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(jnp.float32(1), state, params)
        params = optax.apply_updates(params, updates)
        assert float(params) == expected
