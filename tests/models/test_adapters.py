"""Tests of the adapters for every kind of model: splitting, merging, modes, randomness, trainable parameters."""

import dataclasses
import functools
import sys
import types
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import LearnerBuilder, LearnerError, Linen, RegressionOutput
from learner.models.adapters import MOST_CONSTANT, abstract_adapter, adapter_of
from learner.models.base import ModelAdapter
from learner.models.params import trainable_params
from learner.steps.measure import MetricCollection
from learner.steps.step import StepFunctions
from learner.steps.step_definition import step_fn
from learner.strategies import Sharded, SingleDevice
from learner.util.trees import named_leaves
from tests.support.codes import raises_code
from tests.support.small_models import (
    BATCH,
    CASES,
    ROWS,
    Case,
    Ensemble,
    EquinoxNet,
    Everything,
    LinenNet,
    Member,
    assert_equal_arrays,
    copied,
    make_linen,
)


def all_but_slow() -> list[Any]:
    return [pytest.param(c, marks=pytest.mark.full if c.name == "nnx_vmapped" else (), id=str(c)) for c in CASES]


all_cases = pytest.mark.parametrize("case", all_but_slow())


def pairwise(*names: str) -> Any:
    """Run these cases by default, the others in the full suite."""
    marks = lambda case: () if case.name in names else pytest.mark.full  # noqa: E731
    return pytest.mark.parametrize("case", [pytest.param(c, marks=marks(c), id=c.name) for c in CASES])


KEY = jax.random.key(5)


def step_of(case: Case, model: Any = None, trainable: Any = None) -> StepFunctions:
    model = case.make() if model is None else model
    train, valid = (step_fn(model, name, case.step) for name in ("train_step", "valid_step"))
    nothing = MetricCollection.of([])
    return StepFunctions(adapter_of(model, trainable), train, None, valid, nothing, nothing, optimizer=optax.sgd)


def one_step(step: StepFunctions, batch: Any = BATCH, state: Any = None, lr: float = 0.1) -> Any:
    """Return the state after a compiled step."""
    state = step.init(lr, 0) if state is None else state
    return jax.jit(lambda state, batch: step.unrolled_step(state, [batch])[0])(state, batch)


@functools.cache
def after_one_step(name: str) -> Any:
    """Return the step of a case, the state before it and the state after."""
    step = step_of(next(case for case in CASES if case.name == name))
    state = step.init(0.1, 0)
    return step, state, one_step(step, state=state)


def canonical(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Convert 64-bit numbers to 32-bit ones, as devices do."""
    return {name: x.astype(jax.dtypes.canonicalize_dtype(x.dtype)) for name, x in arrays.items()}


# -- splitting and putting together ------------------------------------------------------------------------------------


@all_cases
def test_split_and_merge_lose_nothing(case):
    adapter = adapter_of(case.make())
    before = named_leaves((adapter.params, adapter.model_state))
    model = adapter.merge(adapter.params, adapter.model_state, KEY, train=True)
    after = named_leaves(adapter.read_all(model))
    assert list(before) == list(after)
    for name, x in before.items():
        np.testing.assert_array_equal(after[name], x, err_msg=name)
    assert_equal_arrays(case.arrays(model), case.arrays(case.make()))


@all_cases
def test_every_array_is_in_the_state_once(case):
    adapter, arrays = adapter_of(case.make()), case.arrays(case.make())
    leaves = jax.tree.leaves((adapter.params, adapter.model_state))
    assert sorted(np.asarray(x).tobytes() for x in leaves) == sorted(x.tobytes() for x in arrays.values())
    assert all(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(adapter.params))


@all_cases
def test_rebuild_gives_a_new_model_of_the_same_type_in_eval_mode(case):
    given = case.make()
    adapter = adapter_of(given)
    state = StepFunctions.init(step_of(case, given), 0.1, 0)
    model = adapter.rebuild(state.params, state.model_state)
    assert type(model) is type(given)
    assert model is not given
    assert case.in_eval(model)
    assert_equal_arrays(case.arrays(model), canonical(case.arrays(given)))
    again = adapter_of(model)  # the returned model can be trained again
    assert list(named_leaves(again.params)) == list(named_leaves(adapter.params))


@all_cases
def test_leaves_that_are_not_arrays_are_kept(case):
    adapter = adapter_of(case.make())
    model = adapter.rebuild(adapter.params, adapter.model_state)
    if isinstance(model, Everything):
        assert (model.width, model.label, model.activation) == (3, "everything", nnx.tanh)
    elif isinstance(model, EquinoxNet):
        assert (model.name, model.activation) == ("net", jnp.tanh)
    elif case.name == "nnx_dict":
        assert (model["body"].drop.rate, model["body"].hidden.out_features) == (0.5, 4)
    elif isinstance(model, dict):
        assert model["keep"] == 0.8
    elif isinstance(model, list):
        assert model[2:] == [jnp.tanh, "affine", 2]


@pairwise("nnx")
def test_the_given_model_is_neither_changed_nor_donated(case, tmp_path):
    given = case.make()
    before, mode = copied(case.arrays(given)), case.in_eval(given)
    learner = LearnerBuilder(tmp_path / "run").build(given, optax.sgd, 0.1, **case.steps)
    step, state = jax.jit(learner.train_step, donate_argnums=0), learner.init()
    for _ in range(2):
        state, _ = step(state, BATCH)
    jax.jit(learner.valid_step)(state, BATCH)
    assert_equal_arrays(case.arrays(given), before)  # a donated array would be unreadable
    assert case.in_eval(given) == mode
    trained = learner.model_of(state)
    assert any(not np.array_equal(x, before[name]) for name, x in case.arrays(trained).items())


@pytest.mark.parametrize("wrap", [nnx.Param, nnx.data])
def test_python_number_in_a_module_is_rejected(wrap):
    class Scaled(nnx.Module):
        def __init__(self):
            self.scale, self.count = wrap(2.0), nnx.Variable(0)  # the second is state, which JAX makes an array

    with raises_code("model-leaf-number", name="scale", value=2.0):
        adapter_of(Scaled())
    with raises_code("model-leaf-number", name="nets.0.scale", value=2.0):
        adapter_of({"nets": [Scaled()]})


def test_a_numpy_number_in_a_module_is_a_parameter():
    class Scaled(nnx.Module):
        def __init__(self):
            self.scale = nnx.Param(np.log(2.0))  # a float64 scalar, which is also a Python float

    params = adapter_of(Scaled()).params
    np.testing.assert_allclose(jax.tree.leaves(params), [0.6931472], rtol=1e-6)


def test_variables_of_several_arrays_are_refused():
    class Model(nnx.Module):
        def __init__(self, values):
            self.scale, self.values = nnx.Param(jnp.ones(2)), values

    arrays = {"a": jnp.ones(2), "b": jnp.ones(2)}
    for variable in (nnx.Param(arrays), nnx.Variable(arrays), nnx.BatchStat([*arrays.values()])):
        with raises_code("model-variable-of-several", name="values"):
            adapter_of(Model(variable))
    for variable in (
        nnx.Variable(None),
        nnx.Intermediate((jnp.ones(2), jnp.ones(2))),
        nnx.Dict(a=nnx.Param(jnp.ones(1))),
    ):
        adapter_of(Model(variable))


@pytest.mark.full
def test_shared_parameters_stay_shared():
    step, _, after = after_one_step("nnx")
    assert "layers.1.kernel" not in named_leaves(step.adapter.params)
    model = step.adapter.rebuild(after.params, after.model_state)
    assert model.layers[0].kernel is model.layers[1].kernel
    assert model.layers[0].bias is not model.layers[1].bias


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pairwise("nnx", "equinox_state")
def test_training_updates_the_statistics_and_evaluation_does_not(case):
    step, state, after = after_one_step(case.name)
    before = case.arrays(step.adapter.rebuild(state.params, state.model_state))
    arrays = case.arrays(step.adapter.rebuild(after.params, after.model_state))
    changed = {name for name, x in arrays.items() if not np.array_equal(x, before[name])}
    trained = {name for name, x in before.items() if name not in case.statistics and x.dtype == np.float32}
    if case.name == "nnx":
        trained -= {"shift"}  # a plain attribute is carried, not trained
    assert changed == {*trained, *case.statistics}

    evaluated = jax.jit(lambda state, batch: step.evaluate(state, batch, jnp.int32(0)))
    first, second = evaluated(after, BATCH), evaluated(after, BATCH)
    assert first.loss == second.loss
    model = step.adapter.merge(after.params, after.model_state, KEY, train=False)
    assert case.in_eval(model)
    step.valid(model, jax.tree.map(jnp.asarray, BATCH), KEY)
    unchanged = case.arrays(model)
    assert_equal_arrays(unchanged, arrays)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES[:1] + CASES[2:3], ids=str)
def test_running_statistics_are_those_of_the_activations(case):
    step, _, state = after_one_step(case.name)
    arrays = {name: np.float64(x) for name, x in case.arrays(case.make()).items()}
    if case.name == "nnx":
        x = np.tanh(BATCH["x"] @ arrays["layers.0.kernel"] + arrays["layers.0.bias"])
        x = np.tanh(x @ arrays["layers.0.kernel"] + arrays["layers.1.bias"])
    else:
        x = np.tanh(BATCH["x"] @ arrays["['params']['hidden']['kernel']"] + arrays["['params']['hidden']['bias']"])
    mean, var = case.statistics[:2]
    got = case.arrays(step.adapter.rebuild(state.params, state.model_state))
    np.testing.assert_allclose(got[mean], 0.1 * x.mean(0), atol=1e-6)
    np.testing.assert_allclose(got[var], 0.9 + 0.1 * x.var(0), atol=1e-6)


def test_evaluation_uses_the_running_statistics_and_no_dropout():
    step = step_of(CASES[0])
    output = jax.jit(lambda state: step.evaluate(state, BATCH, jnp.int32(0)))(step.init(0.1, 0))
    arrays = {name: np.float64(x) for name, x in CASES[0].arrays(Everything()).items()}
    x = np.tanh(BATCH["x"] @ arrays["layers.0.kernel"] + arrays["layers.0.bias"])
    x = np.tanh(x @ arrays["layers.0.kernel"] + arrays["layers.1.bias"]) / np.sqrt(1 + 1e-5)  # mean 0, variance 1
    expected = x @ arrays["head.kernel"] + arrays["head.bias"] + [0.0, 0.5]
    np.testing.assert_allclose(output.predictions, expected, rtol=1e-5, atol=1e-6)


# -- randomness --------------------------------------------------------------------------------------------------------


def losses_with(step: StepFunctions, keys: list[Any]) -> list[float]:
    """Return the train loss of the first step under each root key."""
    state = step.init(0.1, 0)

    @jax.jit
    def loss(key):
        fixed = dataclasses.replace(state, rng=key)
        return step.accumulate_micro_batch(fixed, step.begin(fixed), BATCH, jnp.int32(0))[0].loss

    return [float(loss(key)) for key in keys]


@pytest.mark.full
@pairwise("linen", "equinox")
def test_random_masks_are_a_function_of_the_key(case):
    step = step_of(case)
    one, same, other = losses_with(step, [KEY, KEY, jax.random.key(6)])
    assert one == same
    assert (one != other) == case.random


@pytest.mark.full
def test_random_masks_do_not_depend_on_the_streams_of_the_model():
    fresh, used = Everything(), Everything()
    used.drop.rngs = nnx.Rngs(99).dropout.fork()
    used.drop(jnp.ones((2, 2)))  # advances the stream's count
    assert losses_with(step_of(CASES[0], fresh), [KEY]) == losses_with(step_of(CASES[0], used), [KEY])


def test_masks_differ_from_step_to_step_and_from_micro_batch_to_micro_batch():
    step = step_of(CASES[0])
    state = step.init(0.1, 0)

    @jax.jit
    def loss(number, index):
        at = dataclasses.replace(state, step=number)
        return step.accumulate_micro_batch(at, step.begin(at), BATCH, index)[0].loss

    numbers = [float(loss(jnp.int32(i), jnp.int32(j))) for i in range(2) for j in range(2)]
    assert len(set(numbers)) == 4


class Noise(nnx.Module):
    """A model that returns the numbers of its random streams."""

    def __init__(self):
        self.scale = nnx.Param(jnp.ones(()))
        self.one, self.two = nnx.Dropout(0.5, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def draw(self):
        x = jnp.ones((64,))
        return self.one(x), self.one(x), self.two(x)


def test_masks_differ_between_streams_and_calls():
    adapter = adapter_of(Noise())
    masks = [np.asarray(x) for x in adapter.merge(adapter.params, adapter.model_state, KEY, train=True).draw()]
    again = [np.asarray(x) for x in adapter.merge(adapter.params, adapter.model_state, KEY, train=True).draw()]
    for i in range(3):
        assert 0 < (masks[i] == 0).sum() < 64
        np.testing.assert_array_equal(masks[i], again[i])
        assert not np.array_equal(masks[i], masks[i - 1])


def test_streams_of_nnx_modules_in_a_dict_start_from_the_key():
    given = {"a": Noise(), "b": [Noise() for _ in range(11)]}
    adapter = adapter_of(given)
    assert adapter.model_state == {}
    model = adapter.merge(adapter.params, adapter.model_state, KEY, train=True)
    layers = [layer for noise in (model["a"], *model["b"]) for layer in (noise.one, noise.two)]
    for i, layer in enumerate(layers):
        for count in range(2):
            key = jax.random.fold_in(jax.random.fold_in(KEY, i), count)
            kept = jax.random.bernoulli(key, 0.5, (64,))
            np.testing.assert_array_equal(layer(jnp.ones((64,))) != 0, kept)
    assert given["a"].one.rngs.count[...] == 0


def test_modules_in_a_dict_may_share_their_random_streams():
    rngs = nnx.Rngs(0)

    class Holder(nnx.Module):
        def __init__(self):
            self.scale, self.rngs = nnx.Param(jnp.ones(())), rngs

    adapter = adapter_of({"a": Holder(), "b": Holder()})
    model = adapter.merge(adapter.params, adapter.model_state, KEY, train=True)
    key = jax.random.fold_in(KEY, 0)
    drawn = [float(model[name].rngs.uniform()) for name in ("a", "b")]
    assert drawn == [float(jax.random.uniform(jax.random.fold_in(key, count))) for count in range(2)]


@pytest.mark.full
def test_members_of_a_vmapped_model_draw_different_masks():
    adapter = adapter_of(Ensemble())
    model = adapter.merge(adapter.params, adapter.model_state, KEY, train=True)
    masks = nnx.vmap(lambda member: member.drop(jnp.ones((64,))))(model.members)
    assert masks.shape == (3, 64)
    assert len({np.asarray(mask).tobytes() for mask in masks}) == 3


def test_linen_calls_draw_different_masks():
    module = nn.Dropout(0.5, deterministic=False)
    adapter = adapter_of(Linen(module, {"params": {"unused": jnp.ones(())}}))
    model = adapter.merge(adapter.params, adapter.model_state, KEY, train=True)
    one, two = np.asarray(model(jnp.ones((64,)))), np.asarray(model(jnp.ones((64,))))
    assert not np.array_equal(one, two)
    model = adapter.merge(adapter.params, adapter.model_state, KEY, train=True)
    np.testing.assert_array_equal(model(jnp.ones((64,))), one)


class LinenNoise(nn.Module):
    def __call__(self, x):
        return x + jax.random.normal(self.make_rng("noise"), x.shape)


def test_a_linen_stream_that_is_missing_is_named_with_the_remedy():
    given = Linen(LinenNoise(), {"params": {"unused": jnp.ones(())}})
    adapter = adapter_of(given)
    for train in (True, False):
        running = adapter.merge(adapter.params, adapter.model_state, KEY, train=train)
        with raises_code("model-linen-stream", "LinenNoise", __file__, "rngs=('dropout', 'noise')", name="noise"):
            running(jnp.ones((4,)))
        assert running(jnp.ones((4,)), rngs={"noise": KEY}).shape == (4,)
    with raises_code("model-linen-stream", "model(x, rngs={'noise': jax.random.key(0)})", name="noise"):
        given(jnp.ones((4,)))
    with raises_code("model-linen-stream", "module.clone(deterministic=True)", name="dropout"):
        Linen(nn.Dropout(0.5, deterministic=False), given.variables)(jnp.ones((4,)))


class Sowing(nn.Module):
    """A module that sows its output, and has running statistics."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        self.sow("losses", "output", x)
        return x


X = np.float32([[1], [3]])


def sowing(*collections: str) -> Linen:
    variables = Sowing().init(KEY, X, train=False)
    return Linen(Sowing(), {name: variables[name] for name in ("params", "batch_stats", *collections)})


def test_a_call_returns_what_a_linen_module_sows_and_keeps_its_statistics():
    adapter = adapter_of(sowing())
    running = adapter.merge(adapter.params, adapter.model_state, KEY, train=True)
    out, sown = running(X, train=True, mutable=["losses"])
    np.testing.assert_allclose(out, [[-1], [1]], rtol=1e-4)
    assert {name: [x.tolist() for x in jax.tree.leaves(tree)] for name, tree in sown.items()} == {
        "losses": [out.tolist()]
    }
    assert adapter.read(running)["collections"]["batch_stats"]["BatchNorm_0"]["mean"].tolist() == [1.0]  # half of 2
    out, changed = running(X, train=True, mutable=["batch_stats"])  # as in loops of flax
    assert list(changed) == ["batch_stats"]
    assert adapter.read(running)["collections"]["batch_stats"]["BatchNorm_0"]["mean"].tolist() == [1.5]
    running = adapter.merge(adapter.params, adapter.model_state, KEY, train=False)
    out, sown = running(X, train=False, mutable="losses")
    np.testing.assert_allclose(sown["losses"]["output"][0], X, rtol=1e-4)
    assert isinstance(running(X, train=False), jax.Array)


def test_errors_of_linen_collections_have_a_remedy():
    adapter = adapter_of(sowing("losses"))  # `init` sows, too
    running = adapter.merge(adapter.params, adapter.model_state, KEY, train=True)
    running(X, train=True)
    with raises_code("model-structure-changed", "losses.output.1", "mutable="):
        adapter.read(running)
    running = adapter.merge(adapter.params, adapter.model_state, KEY, train=False)
    with raises_code("model-linen-mode", __file__, "model.train", name="batch_stats"):
        running(X, train=True)


def test_linen_streams_that_are_given_to_a_call():
    given, x = Linen(LinenNoise(), {"params": {"unused": jnp.ones(())}}, "noise"), jnp.ones((4,))
    drawn = given.module.apply(given.variables, x, rngs={"noise": KEY})
    np.testing.assert_array_equal(given(x, rngs={"noise": KEY}), drawn)
    np.testing.assert_array_equal(given(x, rngs=KEY), given.module.apply(given.variables, x, rngs=KEY))
    adapter = adapter_of(given)
    for train in (True, False):
        running = adapter.merge(adapter.params, adapter.model_state, KEY, train=train)
        assert not np.array_equal(running(x), drawn)
        np.testing.assert_array_equal(running(x, rngs={"noise": KEY}), drawn)


# -- what is differentiated --------------------------------------------------------------------------------------------


@pytest.mark.full
@pairwise("nnx_vmapped")
def test_untrainable_parameters_do_not_change(case):
    step = step_of(case, trainable=lambda path, x: case.head in path)
    everything = step_of(case)
    names = set(named_leaves(everything.adapter.params))
    trained = {name for name in names if case.head in name}
    assert 0 < len(trained) < len(names)
    assert set(named_leaves(step.adapter.params)) == trained
    before, after = step.init(0.1, 0), one_step(step)
    was, now = (named_leaves(adapter_of(step.adapter.rebuild(s.params, s.model_state)).params) for s in (before, after))
    assert {name for name in names if not np.array_equal(was[name], now[name])} == trained


def test_a_predicate_sees_paths_and_arrays():
    seen = {}

    def only_matrices(path, x):
        seen[path] = x.shape
        return x.ndim == 2

    adapter = adapter_of(Everything(), only_matrices)
    assert sorted(named_leaves(adapter.params)) == ["head.kernel", "layers.0.kernel"]
    assert seen["head.kernel"] == (3, 2)
    assert "norm.mean" not in seen  # statistics are not passed to the predicate


class Scale(nnx.Param):
    """A custom kind of parameter."""


class Scaled(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear, self.norm = nnx.Linear(3, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.scale, self.offset = Scale(jnp.ones(2)), Offset(jnp.zeros(2))

    def train_step(self, batch):
        x = self.drop(self.norm(self.linear(batch["x"])))
        return RegressionOutput.from_predictions(x * self.scale[...][None] + self.offset[...][None], batch["y"])


class Offset(nnx.Variable):
    """No parameter, unless trainable= selects it."""


LINEAR = ["linear.bias", "linear.kernel"]
FILTERS = {
    "type": (Scale, ["scale"]),
    "other_type": (Offset, ["offset"]),
    "any": (nnx.Any(Scale, Offset), ["offset", "scale"]),
    "not": (nnx.All(nnx.Param, nnx.Not(Scale)), [*LINEAR, "norm.bias", "norm.scale"]),
    "path": (nnx.PathContains("linear"), LINEAR),
    "path_with_statistics": (nnx.PathContains("norm"), ["norm.bias", "norm.scale"]),
    "all": (..., [*LINEAR, "norm.bias", "norm.scale", "offset", "scale"]),
}


@pytest.mark.full
@pytest.mark.parametrize("name", FILTERS)
def test_nnx_filters_choose_what_is_trained(name):
    given, expected = FILTERS[name]
    model = Scaled()
    step = dataclasses.replace(
        step_of(CASES[0], Everything()), adapter=adapter_of(model, given), train=step_fn(model, "train_step", None)
    )
    assert sorted(named_leaves(step.adapter.params)) == expected
    in_dict = adapter_of({"net": [model]}, given)
    assert sorted(named_leaves(in_dict.params)) == [f"net.0.{path}.value" for path in expected]
    assert named_leaves(trainable_params({"net": [model]}, given)).keys() == named_leaves(in_dict.params).keys()
    if name != "all":
        return
    before, after = step.init(0.1, 0), one_step(step)
    was, now = (CASES[0].arrays(step.adapter.rebuild(s.params, s.model_state)) for s in (before, after))
    assert {n for n in was if not np.array_equal(was[n], now[n])} == {*expected, "norm.mean", "norm.var"}


def test_modes_of_layers_are_those_before_training():
    everything = Everything()
    everything.drop.eval()
    net = EquinoxNet()
    frozen = eqx.nn.inference_mode(EquinoxNet(seed=1))
    modes = [adapter_of(model).given_modes for model in (everything, {"net": everything}, (net, frozen), make_linen())]
    assert modes == [
        {"drop": True, "norm": False},
        {"net.drop": True, "net.norm": False},
        {"0.drop": False, "1.drop": True},
        {},
    ]


def test_equinox_state_is_never_differentiated():
    case = next(case for case in CASES if case.name == "equinox_state")
    adapter = adapter_of(case.make())
    assert not any(name.startswith("1") for name in named_leaves(adapter.params))
    assert sum(x.dtype == jnp.float32 for x in adapter.model_state.values()) == 2


# -- wrong models ------------------------------------------------------------------------------------------------------


class Adding(nnx.Module):
    """A model whose step changes its variables by `change`."""

    def __init__(self, change):
        self.scale, self.change = nnx.Param(jnp.ones(2)), change
        self.old = nnx.BatchStat(jnp.zeros(2))

    def train_step(self, batch):
        self.change(self)
        return RegressionOutput.from_predictions(batch["y"] * self.scale[...][None], batch["y"])


def add_param(model):
    model.extra = nnx.Param(jnp.ones(2))


def add_statistic(model):
    model.extra = nnx.BatchStat(jnp.ones(2))


def keep_an_intermediate(model):
    model.extra = nnx.Intermediate(jnp.ones(2))


def remove_statistic(model):
    del model.old


def remove_param(model):
    del model.scale
    model.scale = nnx.BatchStat(jnp.ones(2))


def widen_statistic(model):
    model.old.set_value(jnp.zeros(3))


def retype_statistic(model):
    model.old.set_value(jnp.zeros(2, jnp.int32))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (add_param, "new: extra"),
        (add_statistic, "new: extra"),
        (keep_an_intermediate, "new: extra"),
        (remove_statistic, "missing: old"),
        (remove_param, "scale"),
        (widen_statistic, "old was float32[2] and became float32[3]"),
        (retype_statistic, "old was float32[2] and became int32[2]"),
    ],
)
def test_a_step_that_changes_the_variables_is_an_error_that_names_them(change, difference):
    with pytest.raises(LearnerError, match="a step changed") as error:
        one_step(step_of(CASES[0], Adding(change)))
    assert difference in str(error.value)


class SowingSize(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones((3, 2)))

    def __call__(self, x):
        self.sow(nnx.Intermediate, "size", jnp.abs(x).mean())
        return x @ self.w


def test_a_step_captures_what_an_nnx_module_sows():
    def captures(model, batch):
        predictions, sown = nnx.capture(model, nnx.Intermediate)(batch["x"])
        output = RegressionOutput.from_predictions(predictions, batch["y"])
        return dataclasses.replace(output, loss=output.loss + sown["size"][0])

    def keeps(model, batch):
        return RegressionOutput.from_predictions(model(batch["x"]), batch["y"])

    one_step(step_of(dataclasses.replace(CASES[0], step=captures), SowingSize()))
    with (
        pytest.warns(DeprecationWarning, match="nnx.capture"),
        raises_code("model-structure-changed", "new: size", "nnx.capture"),
    ):
        one_step(step_of(dataclasses.replace(CASES[0], step=keeps), SowingSize()))


class LinenAdding(nn.Module):
    @nn.compact
    def __call__(self, x, more):
        if more:
            self.variable("batch_stats", "extra", jnp.zeros, (2,))
        self.sow("intermediates", "x", x)  # a missing collection is not requested
        return nn.BatchNorm(use_running_average=False)(nn.Dense(2)(x))


@pytest.mark.full
@pytest.mark.parametrize("more", [False, True])
def test_a_linen_step_that_adds_variables(more):
    module = LinenAdding()
    model = Linen(module, module.init(jax.random.key(0), jnp.ones((2, 3)), False))
    model.variables.pop("intermediates", None)
    case = dataclasses.replace(CASES[2], step=lambda m, b: RegressionOutput.from_predictions(m(b["x"], more), b["y"]))
    if not more:
        one_step(step_of(case, model))
        return
    with raises_code("model-structure-changed", "a step changed the variables", "new", "batch_stats.extra"):
        one_step(step_of(case, model))


def more_leaves(model, batch):
    return {**model, "extra": jnp.zeros(())}


def fewer_leaves(model, batch):
    return {"w": model["w"]}


def other_names(model, batch):
    return {"w": model["w"], "z": model["n"]}


def other_shape(model, batch):
    return {**model, "n": jnp.zeros((3,), jnp.int32)}


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (more_leaves, "new: extra"),
        (fewer_leaves, "missing: n"),
        (other_names, "new: z; missing: n"),
        (other_shape, "n was int32[] and became int32[3]"),
        (lambda model, batch: [model["w"], model["n"]], "new: 0, 1"),
    ],
)
def test_a_step_that_returns_another_tree_is_an_error_that_names_it(change, difference):
    def train(model, batch):
        return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"]), change(model, batch)

    case = dataclasses.replace(CASES[-2], step=train)
    with pytest.raises(LearnerError) as error:
        one_step(step_of(case, {"w": jnp.ones((3, 2)), "n": jnp.int32(0)}))
    assert difference in str(error.value)


def test_one_array_in_two_places_of_a_pytree_is_an_error():
    w = jnp.ones((3, 3))
    with raises_code("model-array-shared", "layers.0.w", name="layers.1.w"):
        adapter_of({"layers": [{"w": w}, {"w": w}]})
    net = EquinoxNet()
    tied = eqx.tree_at(lambda net: net.head.bias, net, net.hidden.bias)
    with raises_code("model-array-shared", "hidden.bias", name="head.bias"):
        adapter_of(tied)
    with raises_code("model-array-shared"):
        adapter_of(Linen(LinenNet(), {"params": {"a": w, "b": w}}))
    adapter_of({"a": w, "b": jnp.copy(w)})
    adapter_of({"a": w, "b": w}, shared=True)  # the state of update=
    adapter_of({"w": w, "rate": 0.1, "again": 0.1, "act": jnp.tanh, "too": jnp.tanh})  # no arrays


def test_two_leaves_of_one_name_are_an_error():
    with raises_code("model-leaf-name-twice", "a.b"):
        adapter_of({"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2, jnp.int32)}})


def test_a_module_of_pytorch_is_an_error(monkeypatch):
    torch = types.ModuleType("torch.nn")
    torch.Module = type("Module", (), {})
    monkeypatch.setitem(sys.modules, "torch.nn", torch)
    with raises_code("model-of-pytorch", "(Net)", 'layout="torch"'):
        adapter_of(type("Net", (torch.Module,), {})())


@pytest.mark.parametrize("module", [nn.Dense(2), LinenNet()], ids=["Dense", "LinenNet"])
def test_a_linen_module_without_variables_is_an_error(module):
    with raises_code("model-linen-without-variables", type(module).__name__, "(module, variables)"):
        adapter_of(module)


def test_linen_variables_without_params_are_an_error():
    with raises_code("model-linen-variables", "['batch_stats']"):
        Linen(LinenNet(), {"batch_stats": {}})


def test_an_input_in_the_place_of_linen_variables_is_an_error():
    with raises_code("model-linen-variables", "Array([[0., 0., 0.]]"):
        Linen(LinenNet(), jnp.zeros((1, 3)))


@dataclasses.dataclass
class Unregistered:
    w: object


class NoParameters(nnx.Module):
    def __init__(self):
        self.stat = nnx.BatchStat(jnp.zeros(2))


@pytest.mark.parametrize(
    ("make", "trainable", "code", "values"),
    [
        (NoParameters, None, "model-nothing-to-train", ("NoParameters",)),
        (lambda: {"n": jnp.arange(3)}, None, "model-nothing-to-train", ("n (int32)",)),
        (dict, None, "model-nothing-to-train", ("it has no arrays",)),
        (lambda: 3, None, "model-nothing-to-train", ("it has no arrays",)),
        (lambda: Unregistered(jnp.ones(2)), None, "model-nothing-to-train", ("jax.tree_util.register_dataclass",)),
        (lambda: {"w": jnp.ones(2)}, lambda path, x: False, "model-nothing-to-train", ()),
        (Everything, lambda path, x: "typo" in path, "model-nothing-to-train", ()),
        (Everything, nnx.LoRAParam, "model-nothing-to-train", ()),
        (CASES[2].make, lambda path, x: False, "model-nothing-to-train", ()),
    ],
)
def test_a_model_without_parameters_is_an_error(make, trainable, code, values):
    model = make()
    with raises_code(code, *values):
        adapter_of(model, trainable)


def test_equinox_is_recognised_without_being_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "equinox")
    adapter_of({"w": jnp.ones(2)})
    assert "equinox" not in sys.modules


@pytest.mark.full
def test_kind_of_each_adapter():
    kinds = [adapter_of(case.make()).kind for case in CASES]
    assert kinds == ["flax.nnx", "flax.nnx", "flax.linen", "equinox", "equinox", "pytree", "pytree", "pytree"]


@pytest.mark.full
def test_an_adapter_takes_the_gradients_of_its_library():
    model = Everything()
    adapter: ModelAdapter = adapter_of(model)

    def loss(model):
        return model(jnp.asarray(BATCH["x"])).sum()

    grads = adapter.grads(nnx.grad(loss)(model))
    assert list(named_leaves(grads)) == list(named_leaves(adapter.params))
    np.testing.assert_allclose(grads["head"]["bias"], [ROWS, ROWS])
    net = EquinoxNet()
    adapter = adapter_of(net)
    grads = adapter.grads(eqx.filter_grad(lambda net: net.head(jnp.ones(3)).sum())(net))
    assert jax.tree.structure(grads) == jax.tree.structure(adapter.params)
    np.testing.assert_array_equal(grads.head.bias, [1.0, 1.0])


def test_a_module_of_booleans_selects_parameters_although_it_can_be_called():
    spec = eqx.tree_at(lambda net: net.head, jax.tree.map(lambda _: False, EquinoxNet()), replace=True)
    params = adapter_of(EquinoxNet(), spec).params
    expected, _ = eqx.partition(EquinoxNet(), spec)
    assert list(named_leaves(params)) == list(named_leaves(expected))
    with raises_code("model-trainable-type"):
        adapter_of(EquinoxNet(), EquinoxNet())


def test_a_predicate_takes_a_path_and_an_array():
    with raises_code("params-predicate-signature"):
        adapter_of({"w": jnp.ones(2)}, lambda path: True)


# -- models that are not made ------------------------------------------------------------------------------------------


def numbers(tree: Any) -> list[np.ndarray]:
    keys = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [np.asarray(jax.random.key_data(x) if keys(x) else jnp.asarray(x)) for x in jax.tree.leaves(tree)]


def as_arrays(adapter: ModelAdapter) -> Any:
    """Convert NumPy's 64-bit numbers to 32-bit ones."""
    return jax.tree.map(jnp.asarray, (adapter.params, adapter.model_state))


@pytest.mark.full
@all_cases
def test_model_made_in_a_program_equals_the_functions(case: Case) -> None:
    calls = []

    def make() -> Any:
        calls.append(1)
        return case.make()

    adapter, model = abstract_adapter(make)
    expected = adapter_of(case.make())
    assert type(model) is type(case.make())
    leaves = jax.tree.leaves((adapter.params, adapter.model_state))
    assert leaves
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in leaves)
    assert adapter.fresh is not None
    state = jax.jit(adapter.fresh)(jax.random.key(0))
    assert len(calls) == 1
    assert adapter.note is None
    assert list(named_leaves(state)) == list(named_leaves((expected.params, expected.model_state)))
    for a, b in zip(numbers(state), numbers((expected.params, expected.model_state)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    whole = adapter.rebuild(*state)
    assert_equal_arrays(case.arrays(whole), case.arrays(expected.rebuild(*as_arrays(expected))))
    assert case.in_eval(whole)
    for a, b in zip(numbers(adapter.streams), numbers(expected.streams), strict=True):
        np.testing.assert_array_equal(a, b)
    assert jax.tree.structure(adapter.frozen) == jax.tree.structure(adapter.model_state)


@pairwise("linen")
def test_abstract_model_trains_like_a_made_one(case: Case) -> None:
    step = step_of(case)
    unmade = dataclasses.replace(step, adapter=abstract_adapter(case.make)[0])
    a, b = one_step(step), one_step(unmade)
    for x, y in zip(numbers(a), numbers(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def test_trainable_selects_parameters_of_an_abstract_model() -> None:
    adapter, _ = abstract_adapter(make_pair, lambda path, x: x.shape == (2,))
    assert list(named_leaves(adapter.params)) == ["b"]
    assert list(adapter.model_state) == ["w"]


def make_pair() -> dict[str, Any]:
    return {"w": jnp.ones(3), "b": jnp.zeros(2)}


def test_functions_that_cannot_be_traced_are_called() -> None:
    rngs = nnx.Rngs(0)
    cases = {
        "TraceContextError": lambda: nnx.Linear(2, 2, rngs=rngs),  # draws from a stream outside of the function
        "TracerArrayConversionError": lambda: {"w": np.asarray(jnp.ones(2)) * 2},
    }
    for error, make in cases.items():
        adapter, model = abstract_adapter(make)
        assert adapter.fresh is None
        assert error in (adapter.note or "")
        assert model is not None
        assert all(isinstance(x, jax.Array | np.ndarray) for x in jax.tree.leaves(adapter.params))


def test_existing_arrays_are_not_part_of_a_program() -> None:
    there = jnp.ones(MOST_CONSTANT // 4 + 1)
    adapter, _ = abstract_adapter(lambda: {"w": there})
    assert (adapter.fresh, adapter.params["w"] is there) == (None, True)
    assert f"{MOST_CONSTANT + 4} bytes of arrays" in (adapter.note or "")
    small, _ = abstract_adapter(lambda: {"w": jnp.ones(3) * jnp.float32(2), "table": np.ones(7, np.float32)})
    assert small.fresh is not None


class Holding(nnx.Module):
    def __init__(self, hold: Any) -> None:
        self.out, self.pair = nnx.Linear(2, 2, rngs=nnx.Rngs(0)), hold((jnp.ones(2), jnp.zeros(2)))


class Graph(Holding, pytree=False):
    pass


def test_nnx_rejects_arrays_in_static_containers() -> None:
    """As for a model passed as an object: tracers that outlive their trace failed in the fingerprint of the run."""
    with pytest.raises(ValueError, match="static attribute 'pair'"):
        abstract_adapter(lambda: Holding(tuple))
    assert abstract_adapter(lambda: Graph(tuple))[0].fresh is not None
    adapter, _ = abstract_adapter(lambda: Holding(nnx.data))
    assert adapter.fresh is not None
    assert {path: x.shape for path, x in named_leaves(adapter.model_state).items()} == {"pair.0": (2,), "pair.1": (2,)}


def test_problems_of_a_model_are_reported_before_it_is_made() -> None:
    with raises_code("model-nothing-to-train", "has no parameters to train"):
        abstract_adapter(lambda: {"n": jnp.arange(3)})


ABSTRACT = {
    "nnx": lambda: nnx.eval_shape(lambda: Member(nnx.Rngs(0))),
    "linen": lambda: jax.eval_shape(make_linen),
    "equinox": lambda: eqx.filter_eval_shape(EquinoxNet),
    "one leaf": lambda: {"w": jnp.ones((3, 2)), "b": jax.ShapeDtypeStruct((2,), jnp.float32)},
    "a function": lambda: lambda: nnx.eval_shape(lambda: Member(nnx.Rngs(0))),
}


@pytest.mark.parametrize("strategy", [SingleDevice, lambda: Sharded(devices=1, rules="fsdp")], ids=["one", "fsdp"])
@pytest.mark.parametrize("kind", ABSTRACT)
def test_model_of_shapes_is_rejected(kind: str, strategy: Any) -> None:
    builder = LearnerBuilder("unused").strategy(strategy())
    with raises_code("model-only-shapes"):
        builder.build(ABSTRACT[kind](), optax.sgd, 0.1, train_step=lambda model, batch: None)


def test_numbers_of_numpy_are_trained_and_integers_may_be_sizes():
    model = {"log_scale": np.log(0.5), "half": np.float16(0.5), "count": np.int32(3), "python": 0.5}
    adapter = adapter_of(model)
    assert list(named_leaves(adapter.params)) == ["half", "log_scale"]
    assert adapter.model_state == {}
    assert adapter.constants == ["python"]
    module = eqx.nn.Lambda(functools.partial(jnp.multiply, np.sqrt(4.0)))  # a setting of a module
    assert list(named_leaves(adapter_of({"w": jnp.ones(1), "scale": module}).params)) == ["w"]
    assert (
        adapter_of(eqx.nn.Sequential([eqx.nn.Dropout(0.5), eqx.nn.Linear(2, 2, key=jax.random.key(0))])).constants == []
    )
    rebuilt = adapter.rebuild(adapter.params, adapter.model_state)
    assert rebuilt == model


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40])
def test_integers_that_do_not_fit_are_refused(number):
    with raises_code("model-integer-too-large", "table", "int32", name="table"):
        adapter_of({"w": jnp.ones(2), "table": np.array([1, number])})
    assert adapter_of({"w": jnp.ones(2), "table": np.array([1, 2**31 - 1])}).model_state["table"][1] == 2**31 - 1
    with jax.enable_x64(True):
        adapter_of({"w": jnp.ones(2), "table": np.array([1, number])})
