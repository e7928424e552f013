"""Tests of extra arguments of optimizers, and of every optax wrapper in the check of `build`."""

import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from learner import LearnerError
from learner.optimizers import Clipped, Ema
from learner.steps.extra import accepting, extra_arguments, filter_kwargs
from learner.steps.optimizer_checks import check_optimizer
from tests.support.runs import batches, build_line, line, line_step, quiet

PARAMS = {"w": jnp.ones((3, 4)), "b": jnp.ones((4,))}
ASCENT = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))


def sam(lr, opaque_mode=True):
    return optax.contrib.sam(optax.sgd(lr), ASCENT, opaque_mode=opaque_mode)


def everywhere(value):
    return jax.tree.map(lambda _: value, PARAMS)


WRAPPERS = {
    "apply_if_finite": lambda lr: optax.apply_if_finite(optax.sgd(lr), 3),
    "chain": lambda lr: optax.chain(optax.clip(1.0), optax.polyak_sgd(lr)),
    "conditionally_mask": lambda lr: optax.conditionally_mask(optax.sgd(lr), lambda step: step > 1),
    "conditionally_transform": lambda lr: optax.conditionally_transform(optax.sgd(lr), lambda step: step > 1),
    "flatten": lambda lr: optax.flatten(optax.adam(lr)),
    "lookahead": lambda lr: optax.lookahead(optax.sgd(lr), 5, 0.5),
    "masked": lambda lr: optax.masked(optax.adam(lr), everywhere(True)),
    "multi_transform": lambda lr: optax.multi_transform({1: optax.sgd(lr)}, everywhere(1)),
    "named_chain": lambda lr: optax.named_chain(("clip", optax.clip(1.0)), ("adam", optax.adam(lr))),
    "partition": lambda lr: optax.partition({1: optax.sgd(lr)}, everywhere(1)),
    "selective_transform": lambda lr: optax.selective_transform(optax.sgd(lr), freeze_mask=everywhere(False)),
    "with_extra_args_support": lambda lr: optax.with_extra_args_support(optax.sgd(lr)),
    "inject_hyperparams": lambda lr: optax.inject_hyperparams(optax.adam)(learning_rate=lr),
    "inject_stateful_hyperparams": lambda lr: optax.inject_stateful_hyperparams(optax.sgd)(learning_rate=lr),
    "lbfgs": lambda lr: optax.lbfgs(lr, linesearch=optax.scale_by_backtracking_linesearch(5)),
    "contrib.galore": lambda lr: optax.contrib.galore(lr, rank=2),
    "contrib.scale_by_galore": lambda lr: optax.chain(optax.contrib.scale_by_galore(2), optax.scale(-lr)),
    "contrib.sophia": optax.contrib.sophia,
    "contrib.mechanize": lambda lr: optax.contrib.mechanize(optax.adamw(lr)),
    "contrib.sam": sam,
    "contrib.schedule_free": lambda lr: optax.contrib.schedule_free(optax.sgd(lr), lr),
    "contrib.split_real_and_imaginary": lambda lr: optax.contrib.split_real_and_imaginary(optax.adam(lr)),
}
OTHERS = {
    "MultiSteps": lambda lr: optax.MultiSteps(optax.polyak_sgd(lr), 2),
    "reduce_on_plateau": lambda lr: optax.chain(optax.sgd(lr), optax.contrib.reduce_on_plateau()),
    "ema of sam": Ema(sam),
    "clipped sam": Clipped(sam, norm=1.0),
}
REFUSED = {
    "lookahead": "is made with optax.lookahead, which trains pairs of parameters",
    "transparent sam": "use sam(..., opaque_mode=True), which computes the second gradient",
    "sam in a chain": "sam(optax.chain(...), ...), or give your own update function **extra_args",
}
MORE_REFUSED = {
    "transparent sam": lambda lr: sam(lr, opaque_mode=False),
    "sam in a chain": lambda lr: optax.chain(optax.clip(1.0), sam(lr)),
}


def wrappers():
    """Yield the name of every public optax function that takes a transformation and returns one."""
    for prefix, module in (("", optax), ("contrib.", optax.contrib)):
        for name, thing in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(thing):
                continue
            signature = inspect.signature(thing)
            annotations = [str(p.annotation) for p in signature.parameters.values()]
            takes = any("GradientTransformation" in text for text in annotations)
            if takes and "GradientTransformation" in str(signature.return_annotation):
                yield prefix + name


def test_the_table_is_complete():
    assert set(wrappers()) == set(WRAPPERS)


@pytest.mark.parametrize("name", [*WRAPPERS, *OTHERS, *MORE_REFUSED])
def test_each_wrapper_works_or_names_the_remedy(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # warnings of optax
        problems = check_optimizer({**WRAPPERS, **OTHERS, **MORE_REFUSED}[name], PARAMS, False).problems
    if name in REFUSED:
        assert len(problems) == 1
        assert REFUSED[name] in problems[0]
    else:
        assert problems == []


def test_optimizers_that_evaluate_the_gradient_again_need_the_whole_batch():
    (problem,) = check_optimizer(sam, PARAMS, True).problems
    assert "evaluates the loss again in each step" in problem


@pytest.mark.full
def test_sharpness_aware_steps_equal_jax(tmp_path):
    """Each step ascends by 0.05 along the gradient, and descends from its start by the gradient found there."""
    result = build_line(quiet(tmp_path / "run"), 0.1, Ema(sam, decay=0.0, warmup=False)).fit(batches())

    def loss(params, batch):
        return line_step(params, batch).loss

    params = line()
    for batch in batches():
        grads = jax.grad(loss)(params, batch)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        uphill = jax.tree.map(lambda p, g, n=norm: p + 0.05 * g / n, params, grads)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(uphill, batch))
    for name, expected in params.items():
        np.testing.assert_allclose(result.model[name], expected, rtol=1e-5)


def test_an_unusable_optimizer_is_refused_before_writing(tmp_path):
    with pytest.raises(LearnerError, match=r"the optimizer \(<lambda>\) is made with optax\.lookahead"):
        build_line(quiet(tmp_path / "run"), optimizer=WRAPPERS["lookahead"])
    assert not (tmp_path / "run").exists()


def test_arguments_that_an_update_does_not_take_are_omitted():
    def update(updates, state, params=None, *, value):
        return updates, value

    picky = optax.GradientTransformationExtraArgs(lambda params: jnp.float32(0), update)
    extra = extra_arguments(PARAMS, jnp.float32(3), step=jnp.int32(5))
    assert sorted(extra) == ["grad", "step", "value"]
    assert list(filter_kwargs(picky, extra)) == ["value"]
    assert filter_kwargs(optax.GradientTransformation(picky.init, picky.update), extra) == {}
    assert accepting(picky).update(PARAMS, 0, PARAMS, **extra)[1] == 3
