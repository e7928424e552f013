"""Tests of boolean trees that select parameters, for models of every library."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import trainable_params
from learner.models.adapters import adapter_of
from learner.models.masks import as_predicate, mask_problems
from learner.models.params import named_arrays
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.runs import arrays, batches, line, line_step, quiet
from tests.support.small_models import CASES


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_mask_selects_trained_parameters(case):
    model = case.make()
    everything = adapter_of(model).params
    names = list(named_leaves(everything))
    chosen = set(names[::2])
    mask = jax.tree.unflatten(jax.tree.structure(everything), [name in chosen for name in names])
    assert list(named_leaves(adapter_of(model, mask).params)) == names[::2]
    assert list(named_leaves(trainable_params(model, mask))) == names[::2]


def test_a_state_of_nnx_with_booleans():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    mask = jax.tree.map(lambda x: x.ndim > 1, nnx.state(model, nnx.Param))
    assert list(named_leaves(adapter_of(model, mask).params)) == ["kernel"]


@pytest.mark.full
def test_a_masked_run_changes_what_an_optimizer_with_that_mask_does(tmp_path):
    mask = {"w": True, "b": False}
    builder = quiet(tmp_path / "run").num_steps(3)
    result = builder.build(line(), optax.sgd, 0.05, train_step=line_step, trainable=mask).fit(batches())
    model = {name: jnp.asarray(x) for name, x in line().items()}
    optimizer = optax.partition({True: optax.sgd(0.05), False: optax.set_to_zero()}, mask)
    opt_state = optimizer.init(model)
    for batch in batches()[:3]:
        updates, opt_state = optimizer.update(jax.grad(lambda m, b=batch: line_step(m, b).loss)(model), opt_state)
        model = optax.apply_updates(model, updates)
    np.testing.assert_allclose(result.model["w"], model["w"], rtol=1e-6)
    assert not model["b"].any()
    assert not result.model["b"].any()


def test_freeze_is_applied_to_a_mask_as_well(tmp_path):
    model = {"body": line(), "head": line()}
    step = lambda m, batch: line_step(m["head"], batch)  # noqa: E731
    builder = quiet(tmp_path / "run").freeze("bias|b$")
    learner = builder.build(model, optax.sgd, 0.1, train_step=step, trainable={"body": False, "head": True})
    assert list(named_leaves(learner.init().params)) == ["head.w"]


def test_a_parameter_without_a_boolean_is_an_error():
    with raises_code("model-trainable-structure", path="b"):
        adapter_of(line(), {"w": True})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_name_that_the_model_lacks_is_a_problem(case):
    model = case.make()
    params = adapter_of(model).params
    mask = named_leaves(jax.tree.map(lambda x: True, params))
    assert mask_problems(mask, named_arrays(model)) == []
    assert mask_problems(jax.tree.map(lambda x: True, params), named_arrays(model)) == []
    (problem,) = mask_problems({**mask, "typo": False}, named_arrays(model))
    assert (problem.code, problem.fields) == ("model-trainable-unmatched", {"path": "typo"})


def test_names_above_parameters_and_of_other_leaves_are_known():
    mask = {"body": False, "head": {"w": True, "n": False}}
    assert mask_problems(mask, ["body.layer.w", "head.w", "head.n"]) == []
    assert mask_problems(lambda path, x: True, ["w"]) == []


class Tied(nnx.Module):
    def __init__(self):
        self.body = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        self.drop = nnx.Dropout(0.5)  # without arrays
        self.tied = self.body

    def train_step(self, batch):
        return {"loss": self.tied(self.drop(self.body(batch["x"]))).mean()}


@pytest.mark.full
@pytest.mark.parametrize("make", [Tied, lambda: Tied], ids=["made", "function"])
def test_modules_without_arrays_and_second_paths_are_known(make, tmp_path):
    build = lambda **mask: quiet(tmp_path / "run").build(make(), optax.sgd, 0.1, trainable=mask)  # noqa: E731
    for tied in ({"tied": {"kernel": True, "bias": False}}, {}):
        learner = build(body={"kernel": True, "bias": False}, drop=False, **tied)
        assert list(named_leaves(learner.init().params)) == ["body.kernel"]
    with raises_code("model-trainable-second-path", path="tied.kernel"):
        build(body={"kernel": True, "bias": False}, tied=False)
    with raises_code("model-trainable-unmatched", path="drip"):
        build(body=True, drip=False)


@pytest.mark.parametrize("make", [line, lambda: line], ids=["made", "function"])
def test_a_misspelled_name_is_reported_with_other_problems(make, tmp_path):
    builder = quiet(tmp_path / "run").freeze("nothing")
    with raises_code("learner-unbuildable") as raised:
        builder.build(make(), optax.sgd, 0.1, train_step=line_step, trainable={"w": True, "b": True, "typo": False})
    assert raised.value.codes == ("model-trainable-unmatched", "params-pattern-unmatched")


def test_other_values_of_trainable_are_not_masks():
    for trainable in (None, nnx.LoRAParam, (nnx.Param, ...), True, lambda path, x: True, {"w": arrays(1)}):
        assert as_predicate(trainable) is trainable
