"""Tests of parameter groups, with values by hand."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner.errors import LearnerError
from learner.optimizers import Clipped, Ema, Group, Groups
from learner.optimizers.configs import AdamW
from learner.optimizers.groups import with_weight_decay
from learner.schedules import Constant, Cosine
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.runs import T, X, batches, line_step, quiet

PARAMS = {
    "conv1": {"kernel": jnp.ones(2), "bias": jnp.ones(2)},
    "conv2": {"kernel": jnp.ones(2), "bias": jnp.ones(2)},
    "head": {"kernel": jnp.ones(2)},
}


def updates(optimizer, rate=0.5, steps=1):
    with jax.numpy_dtype_promotion("standard"):
        transform = optimizer(jnp.float32(rate))
        state = transform.init(PARAMS)
        for _ in range(steps):
            changed, state = transform.update(PARAMS, state, PARAMS)
    return {path: float(x[0]) for path, x in named_leaves(changed).items()}


def test_groups_with_own_factors_schedules_optimizers_and_decays():
    grouped = Groups(
        optax.sgd,
        [
            Group(r"conv1\.kernel", lr=2.0),
            Group(lambda path, x: path.endswith("bias"), lr=lambda step: 0.01 * (step + 1)),
            Group("head", optimizer=lambda lr: optax.sgd(lr * 4)),
            Group("conv2.kernel", optimizer=optax.adamw, weight_decay=0.0),
        ],
    )
    moved = updates(grouped)
    assert moved == pytest.approx(
        {
            "conv1.kernel": -1.0,
            "conv1.bias": -0.01,
            "conv2.bias": -0.01,
            "head.kernel": -2.0,
            "conv2.kernel": -0.5,  # Adam's first step is the rate; decay would add to it
        },
        rel=1e-5,
    )
    assert updates(grouped, steps=3)["conv1.bias"] == pytest.approx(-0.03)


def test_rates_that_optax_injects_follow_the_schedule_of_a_group():
    """The first rate is 0, so a group that keeps it would not change its parameters."""
    injected = lambda lr: optax.inject_hyperparams(optax.sgd)(2 * lr)  # noqa: E731
    warmed_up = Group("bias", optimizer=injected, lr=lambda step: 0.01 * step)
    grouped = Groups(injected, [warmed_up, Group("head", lr=0.5)])
    for steps in (1, 2, 4):
        moved = updates(grouped, steps=steps)
        assert moved["conv1.bias"] == pytest.approx(-0.02 * (steps - 1))
        assert (moved["conv1.kernel"], moved["head.kernel"]) == (-1.0, -0.5)
    with jax.numpy_dtype_promotion("standard"):
        transform = grouped(jnp.float32(0.5))
        changed, _ = transform.update(PARAMS, transform.init(PARAMS))  # without the parameters, as optax allows
    assert changed["head"]["kernel"].tolist() == [-0.5, -0.5]


def test_parameters_in_no_group_are_the_rest():
    assert updates(Groups(optax.sgd, [{"match": "head", "lr": 0.0}])) == {
        "conv1.kernel": -0.5,
        "conv1.bias": -0.5,
        "conv2.kernel": -0.5,
        "conv2.bias": -0.5,
        "head.kernel": 0.0,
    }


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([Group("conv1"), Group("bias")], r"overlap: conv1\.bias in groups 0 and 1"),
        ([Group("conv"), Group("kernel$")], r"overlap: conv1\.kernel, conv2\.kernel in groups 0 and 1"),
        ([Group("haed")], r"group 0 of Groups, 'haed' matches no parameter: choose from .*'head.kernel'"),
        ([Group("head"), Group(["conv1", "norm"])], r"group 1 of Groups, 'norm' matches no parameter"),
        ([Group(lambda path, x: False)], "group 0 of Groups, <lambda> chooses no parameter of conv1.bias"),
        ([Group("head", weight_decay=0.1)], r"weight_decay=0\.1, and its optimizer \(sgd\) has no such argument"),
    ],
)
def test_groups_that_do_not_fit_are_named_when_the_learner_is_built(tmp_path, groups, message):
    step = lambda model, batch: line_step({"w": model["head"]["kernel"], "b": 0}, batch)  # noqa: E731
    with pytest.raises(LearnerError, match=message):
        quiet(tmp_path / "run").build(PARAMS, Groups(optax.sgd, groups), 0.1, train_step=step)


def test_errors_for_frozen_and_many_parameters_are_short(tmp_path):
    frozen = quiet(tmp_path / "run").freeze("^conv")
    with raises_code("params-pattern-unmatched", "among the trained parameters", "'^conv'"):
        frozen.build(PARAMS, Groups(optax.sgd, [Group("^conv")]), 0.1, train_step=line_step)
    params = {f"w{n:03}": jnp.ones(1) for n in range(100)}
    with raises_code("optimizer-groups-overlap", "w007 and 92 more in groups 0 and 1"):
        Groups(optax.sgd, [Group("w"), Group("w0")])(1.0).init(params)


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: Groups(optax.sgd, []), "optimizer-groups-type", ("[]",)),
        (lambda: Groups(optax.sgd, Group("head")), "optimizer-groups-type", ()),
        (lambda: Groups(optax.sgd, [{"lr": 2.0}]), "optimizer-group-match-missing", ()),
        (
            lambda: Groups(optax.sgd, [{"match": "head", "rate": 2.0}]),
            "optimizer-group-key-unknown",
            ("'rate'", "'match'", "'lr'"),
        ),
        (lambda: Groups(optax.sgd, ["head"]), "optimizer-group-type", ("'head'",)),
        (lambda: Groups(None, [Group("head")]), "optimizer-type", ("the optimizer of Groups", "None")),
        (
            lambda: updates(Groups(optax.sgd, [Group("head", lr=Cosine(0.1))])),
            "optimizer-group-length-unknown",
            ("first=0.1",),
        ),
        (lambda: Group("head", lr=Cosine), "optimizer-group-lr", ()),
        (lambda: Group(3), "params-match-type", ("3",)),
        (lambda: Group(lambda path: True), "params-predicate-signature", ("<lambda>",)),
        (
            lambda: updates(Groups(optax.sgd, [Group("head", optimizer=Cosine(0.1, over=3))])),
            "optimizer-inner-type",
            ("ArrayImpl",),
        ),
        (lambda: Group("head", optimizer=optax.sgd(0.1)), "optimizer-already-built", ("the optimizer of a group",)),
        (lambda: Groups(optax.adamw(1e-3), [Group("head")]), "optimizer-already-built", ("the optimizer of Groups",)),
        (
            lambda: updates(Groups(optax.sgd, [Group(re.compile("haed"))])),
            "params-pattern-unmatched",
            ("group", "0", "'haed'", "'head.kernel'"),
        ),
        (lambda: updates(Groups(optax.sgd, [Group(re.compile(b"head"))])), "params-match-type", ()),
        (lambda: Group("head", lr=lambda step: -1.0), "optimizer-group-lr", ("-1.0",)),
        (lambda: Group("head", lr=lambda step: jnp.ones(2)), "optimizer-group-lr", ()),
        (lambda: Group("head", weight_decay="1e-3"), "optimizer-group-weight-decay", ("1e-3",)),
        (lambda: Group("head", weight_decay=float("nan")), "optimizer-group-weight-decay", ("nan",)),
        (lambda: Groups(optax.sgd, 3), "optimizer-groups-type", ("3",)),
        (lambda: Group("head", lr=-1.0), "optimizer-group-lr", ("-1.0",)),
        (lambda: updates(Groups(optax.sgd, [Group("(")])), "params-pattern-malformed", ()),
    ],
)
def test_wrong_arguments(make, code, values):
    with raises_code(code, *values):
        make()


def test_a_compiled_expression():
    moved = updates(Groups(optax.sgd, [Group(re.compile("HEAD", re.IGNORECASE), lr=2.0), Group([re.compile("s$")])]))
    assert (moved["head.kernel"], moved["conv1.bias"], moved["conv1.kernel"]) == (-1.0, -0.5, -0.5)


def test_weight_decay_of_an_optimizer_from_a_config():
    assert with_weight_decay(AdamW(b1=0.8), 0.5) == AdamW(b1=0.8, weight_decay=0.5)


def test_weight_decay_of_a_wrapped_optimizer():
    inner = with_weight_decay(Ema(Clipped(optax.adamw, norm=1.0)), 0.5)
    assert inner.optimizer.optimizer.keywords == {"weight_decay": 0.5}


@pytest.mark.full
@pytest.mark.parametrize(
    "grouped",
    [
        Groups(optax.sgd, [Group("^b$", lr=0.1)]),
        lambda lr: Groups(optax.sgd, [Group("^b$", lr=Constant(0.005))])(lr),  # made while the update is traced
    ],
    ids=["factor", "constant"],
)
def test_a_run_trains_each_group_at_its_rate(tmp_path, grouped):
    """Compare with SGD by hand: `b` at a tenth of the rate."""
    start = {"w": jnp.zeros((3, 1)), "b": jnp.zeros((1,))}
    result = quiet(tmp_path / "run").num_epochs(2).build(start, grouped, 0.05, train_step=line_step).fit(batches())
    w, b = np.zeros((3, 1)), np.zeros(1)
    for _ in range(2):
        for first in range(0, 24, 4):
            x, t = X[first : first + 4].astype(np.float64), T[first : first + 4].astype(np.float64)
            error = 2 * (x @ w + b - t) / 4
            w, b = w - 0.05 * x.T @ error, b - 0.005 * error.sum(0)
    np.testing.assert_allclose(result.model["w"], w, rtol=1e-4)
    np.testing.assert_allclose(result.model["b"], b, rtol=1e-4)
    assert all(isinstance(x, jax.Array) for x in result.model.values())
