"""Tests of strategies on several devices: placement, shardings and refused input."""

import dataclasses
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from learner import LearnerBuilder
from learner.steps.train_state import TrainState
from learner.strategies import Replicated, Sharded, fsdp
from tests.support.codes import raises_code
from tests.support.small_models import normed_step

FIRST = jax.devices()[:4]
MAKE = {
    "replicated": lambda: Replicated(FIRST),
    "sharded": lambda: Sharded(devices=FIRST),
    "fsdp": lambda: Sharded(rules=fsdp(1), devices=FIRST),
    "mesh": lambda: Sharded({"data": 2, "model": 2}, {"w": (None, "model")}, devices=FIRST),
}


@pytest.fixture(params=MAKE)
def strategy(request):
    return MAKE[request.param]()


def test_placed_arrays_are_replicated(strategy):
    placed = strategy.place({"x": np.arange(3), "key": jax.random.key(1)})
    assert all(x.committed and x.is_fully_replicated and len(x.devices()) == 4 for x in jax.tree.leaves(placed))
    assert strategy.scalar(7) is strategy.scalar(7)
    assert (int(strategy.scalar(7)), strategy.scalar(7).dtype) == (7, jnp.int32)


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_are_spread_in_order_and_completely(strategy, axis):
    rows = np.moveaxis(np.arange(24).reshape(8, 3), 0, axis)
    placed = strategy.put({"x": rows}, axis)["x"]
    shards = {shard.device: np.asarray(shard.data) for shard in placed.addressable_shards}
    if isinstance(strategy, Replicated):
        parts = [shards[device][0] for device in FIRST]
    else:
        parts = [shards[device] for device in FIRST][:: 4 // strategy.mesh.shape["data"]]
    assert len({part.shape for part in parts}) == 1
    np.testing.assert_array_equal(np.concatenate(parts, axis), rows)


def test_a_batch_that_does_not_divide_is_replicated(strategy):
    rows = np.arange(15).reshape(5, 3)
    assert (strategy.divides(8), strategy.divides(5)) == (True, False)
    placed = strategy.put(rows, replicated=True)
    for shard in placed.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data).reshape(5, 3), rows)


def test_simulated_devices_run_one_program_at_a_time(strategy):
    assert strategy.one_at_a_time
    assert not Sharded(devices=FIRST[:1]).one_at_a_time


def test_descriptions_name_devices_and_mesh():
    assert Replicated(FIRST).description == "replicated on 4 devices (cpu)"
    mesh = "sharded over 4 devices (cpu): {'data': 2, 'model': 2}, rows over 'data', the model over 'model'"
    assert MAKE["mesh"]().description == mesh
    assert Sharded({"model": 8}).description.endswith("rows on every device")


def state_of(strategy, optimizer=optax.adam):
    model = {"w": jnp.ones((8, 4)), "b": jnp.zeros(8), "frozen": jnp.ones((16, 2)), "odd": jnp.ones(3)}
    learner = LearnerBuilder("unused").strategy(strategy).build(
        model, optimizer, 0.1, train_step=lambda model, batch: None, trainable=lambda path, x: path != "frozen"
    )  # fmt: skip
    return learner.definition.init_placed()


def test_optimizer_states_are_sharded_like_their_parameters():
    state = state_of(Sharded(rules=fsdp(1), devices=FIRST))
    specs = {jax.tree_util.keystr(path): x.sharding.spec for path, x in jax.tree_util.tree_leaves_with_path(state)}
    expected = {".params['w']": P("data"), ".params['b']": P("data"), ".params['odd']": P()}
    expected[".model_state['frozen']"] = P("data")
    for moment in ("mu", "nu"):
        for name in ("w", "b", "odd"):
            expected[f".opt_state[0].{moment}['{name}']"] = expected[f".params['{name}']"]
    assert {name: specs[name] for name in expected} == expected
    assert all(spec == P() for name, spec in specs.items() if name not in expected)


@pytest.mark.parametrize(
    ("make", "gathered"),
    [
        (lambda: Sharded(devices=FIRST), None),
        (MAKE["mesh"], None),
        (MAKE["fsdp"], {"w": True, "b": True, "odd": False}),
        (lambda: Sharded({"data": 2, "model": 2}, {"w": ("data", "model")}, devices=FIRST), {"w": True, "b": False}),
    ],
    ids=["whole", "model", "fsdp", "both"],
)
def test_parameters_split_over_the_batch_axis_are_gathered_for_computation(make, gathered):
    strategy = make()
    state = state_of(strategy)
    params = {name: x for name, x in state.params.items() if x is not None}
    gather = strategy.gather(dataclasses.replace(state, params=params))
    assert (gather is None) == (gathered is None)
    if gather is None:
        return
    specs = {name: x.sharding.spec for name, x in jax.jit(lambda x: gather("params", x))(params).items()}
    for name, changed in gathered.items():
        assert (specs[name] != params[name].sharding.spec) == changed
        assert "data" not in specs[name]
    grads = jax.jit(jax.grad(lambda x: sum(jnp.sum(y) for y in gather("params", x).values())))(params)
    for name in gathered:
        assert grads[name].sharding.is_equivalent_to(params[name].sharding, params[name].ndim)


def test_an_optimizer_of_second_order_differentiates_a_gathered_loss(tmp_path):
    """A step of Newton's method finds the minimum of a quadratic loss, which is the mean of the rows."""

    def newton(lr):
        def update(grads, state, params, *, value_fn, **extra):
            curved = jax.jvp(jax.grad(value_fn), (params,), (grads,))[1]
            share = jnp.sum(grads["w"] ** 2) / jnp.sum(grads["w"] * curved["w"])
            return jax.tree.map(lambda g: -lr * share * g, grads), state

        return optax.GradientTransformationExtraArgs(lambda params: (), update)

    def step(model, batch):
        return {"loss": jnp.sum((model["w"][None] - batch["x"]) ** 2, (1, 2)).mean()}

    rows = np.arange(8 * 4 * 4, dtype=np.float32).reshape(8, 4, 4) / 64
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None).num_epochs(1)
    learner = builder.strategy(MAKE["fsdp"]()).build({"w": jnp.zeros((4, 4))}, newton, 1.0, train_step=step)
    np.testing.assert_allclose(learner.fit([{"x": rows}]).model["w"], rows.mean(0), rtol=1e-6)


def test_a_replica_is_read_without_copying():
    strategy = Replicated(FIRST)
    placed = strategy.place(np.arange(4.0))
    one = strategy.to_single_device(placed)
    assert one.devices() == {FIRST[0]}
    assert one.unsafe_buffer_pointer() == placed.addressable_data(0).unsafe_buffer_pointer()


# -- wrong input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mesh", "code"),
    [
        ({"data": 3}, "strategy-mesh-device-count"),
        ({"data": 0}, "strategy-mesh-sizes"),
        ({}, "strategy-mesh-sizes"),
        ({"data": "8"}, "strategy-mesh-sizes"),
        (8, "strategy-mesh-type"),
        (fsdp(), "strategy-mesh-type"),
    ],
)
def test_malformed_meshes_are_refused(mesh, code):
    with raises_code(code):
        Sharded(mesh)


def test_explicit_axes_become_automatic():
    """In JAX 0.10, `jax.make_mesh` creates explicit axes by default."""
    explicit = Mesh(np.array(FIRST), ("data",), axis_types=(AxisType.Explicit,))
    strategy = Sharded(explicit)
    assert strategy.mesh.axis_types == (AxisType.Auto,)
    assert (strategy.mesh.shape, [*strategy.devices]) == (explicit.shape, FIRST)
    rows = strategy.put(np.arange(4, dtype=np.float32))
    assert jax.jit(lambda x: x @ x)(rows) == 14  # JAX refuses this with explicit axes


@pytest.mark.parametrize("batch", ["dat", ("dat", "replica")])
def test_an_unknown_batch_axis_is_refused(batch):
    with raises_code("strategy-batch-axis-unknown"):
        Sharded({"data": 4, "model": 2}, batch=batch)


@pytest.mark.parametrize(
    ("mesh", "batch", "divides"),
    [
        ({"model": 8}, "data", True),
        ({"data": 8}, (), True),
        ({"data": 8}, None, True),
        ({"data": 8}, ["replica", "data"], False),
    ],
)
def test_optional_batch_axes(mesh, batch, divides):
    assert Sharded(mesh, batch=batch).divides(7) == divides


@pytest.mark.full
def test_a_run_warns_about_fsdp_that_splits_nothing(tmp_path):
    for min_size, warned in ((33, 1), (32, 0)):
        builder = LearnerBuilder(tmp_path, overwrite=True).renderer(None).strategy(Sharded({"data": 8}, fsdp(min_size)))
        learner = builder.build(
            {"w": jnp.ones((8, 4))}, optax.sgd, 0.1, train_step=lambda m, b: {"loss": (b["x"] @ m["w"]).mean()}
        )
        learner.fit([{"x": np.ones((8, 8), np.float32)}])
        assert (tmp_path / "experiment.log").read_text().count(" WARNING ") == warned


@pytest.mark.parametrize(
    ("mesh", "rules", "batch", "idle"),
    [
        ({"data": 4, "model": 2}, None, "data", ["model"]),
        ({"data": 4, "model": 2}, {"w": (None, "model")}, "data", []),
        ({"data": 8, "model": 1}, None, "data", []),
        ({"batch": 8}, None, "data", ["batch"]),
        ({"data": 4, "replica": 2}, None, ("data", "replica"), []),
    ],
)
def test_unused_mesh_axes_are_warned_about(mesh, rules, batch, idle):
    params = {"w": jax.ShapeDtypeStruct((4, 4), np.float32)}
    state = TrainState(jnp.int32(0), params, {}, (), jnp.float32(1), jax.random.key(0), {})
    texts = Sharded(mesh, rules, batch).warnings(state)
    assert [text.split("'")[1] for text in texts] == idle


def test_all_rule_errors_are_reported_before_compiling(tmp_path):
    strategy = Sharded({"data": 4, "model": 2}, {"nothing": "data", "odd": "data", "w": (None, None, "data")})
    model = {"w": jnp.ones((8, 4)), "odd": jnp.ones(3)}
    builder = LearnerBuilder(tmp_path / "run").strategy(strategy)
    learner = builder.build(model, optax.sgd, 0.1, train_step=lambda model, batch: None)
    with raises_code("learner-untrainable") as caught:
        learner.fit([{"x": np.ones((8, 3), np.float32)}])
    codes = {"strategy-rule-unused", "strategy-axis-does-not-divide", "strategy-rule-axes"}
    assert codes <= {*caught.value.codes}
    text = str(caught.value)
    assert "the rule 'nothing' of Sharded is not used" in text
    assert "odd [3] cannot be split along its axis 0" in text
    assert "w has 2 axes" in text
    assert not (tmp_path / "run").exists()


def test_replicated_refuses_steps_that_need_the_whole_batch(tmp_path):
    builder = LearnerBuilder(tmp_path / "run").devices(2)
    line = {"w": jnp.ones(3)}
    own = builder.build(line, None, 0.1, update=lambda model, batch, lr, rng: (model, None))
    with raises_code("optimizer-needs-whole-batch") as error:
        own.fit([{"x": np.ones((8, 3), np.float32)}])
    assert "use strategy(Sharded())" in error.value.problems[0]
    search = builder.build(line, lambda lr: optax.lbfgs(lr), 0.1, train_step=lambda model, batch: None)
    with raises_code("optimizer-needs-whole-batch") as error:
        search.fit([{"x": np.ones((8, 3), np.float32)}])
    assert "evaluates the loss again" in error.value.problems[0]
    assert "use strategy(Sharded())" in error.value.problems[0]


def test_shape_errors_of_replicas_name_the_devices(tmp_path):
    """With a carry as long as the batch, JAX's exception names the per-device shapes, which the user never wrote."""
    model = {"w": jnp.ones(3), "carry": jnp.ones(8)}
    step = lambda model, batch: {"loss": (batch["x"] @ model["w"] * model["carry"]).mean()}  # noqa: E731
    learner = LearnerBuilder(tmp_path / "run").devices(2).build(model, optax.sgd, 0.1, train_step=step)
    with raises_code("step-trace-failed", "each of 2 devices", "strategy(Sharded())"):
        learner.fit([{"x": np.ones((8, 3), np.float32)}])


def test_a_strategy_of_another_type_is_refused():
    with raises_code("strategy-type"):
        LearnerBuilder("unused").strategy("Sharded")


class Normed(eqx.Module):
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, axis="rows", mode="batch"):
        self.norm = eqx.nn.BatchNorm(3, axis_name=axis, mode=mode)
        self.head = eqx.nn.Linear(3, 2, key=jax.random.key(0))

    def __call__(self, x, state):
        x, state = self.norm(x, state)
        return self.head(x), state


@pytest.mark.full
@pytest.mark.parametrize("axis", ["rows", pytest.param(("rows",), marks=pytest.mark.full)])
def test_equinox_batch_norm_uses_the_rows_of_all_devices(tmp_path, axis):
    batch = {"x": np.arange(24, dtype=np.float32).reshape(8, 3) % 7, "y": np.ones((8, 2), np.float32)}
    builder = LearnerBuilder(tmp_path / "run").strategy(Replicated(8)).with_batch_size(8).num_epochs(1).renderer(None)
    model = eqx.nn.make_with_state(Normed)(axis)
    fitted = builder.build(model, optax.sgd, 0.5, train_step=normed_step).fit(batch).model

    def loss(net, state):
        output, (_, state) = normed_step((net, state), batch)
        return output.loss, state

    net, state = eqx.nn.make_with_state(Normed)(axis)
    grads, state = eqx.filter_grad(loss, has_aux=True)(net, state)
    expected = eqx.apply_updates(net, jax.tree.map(lambda g: -0.5 * g, grads)), state
    arrays = lambda tree: [x for x in jax.tree.leaves(tree) if eqx.is_array(x)]  # noqa: E731
    for got, want in zip(arrays(fitted), arrays(expected), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def lost_step(pair, batch):
    return counted_step(pair, batch)[0]


class Counted(eqx.Module):
    line: eqx.nn.Linear
    count: eqx.nn.StateIndex

    def __init__(self):
        self.line, self.count = eqx.nn.Linear(3, 2, key=jax.random.key(0)), eqx.nn.StateIndex(jnp.int32(0))


def counted_step(pair, batch):
    net, state = pair
    loss = jnp.square(jax.vmap(net.line)(batch["x"]) - batch["y"]).mean()
    return {"loss": loss}, (net, state.set(net.count, state.get(net.count) + 1))


@pytest.mark.parametrize("valid_step", [counted_step, lost_step])
@pytest.mark.parametrize(("train_step", "count"), [(counted_step, 2), (lost_step, 0)])
def test_an_equinox_step_may_set_its_state(tmp_path, train_step, valid_step, count):
    """A state that is not returned is discarded, and so is that of a validation."""
    batch = {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 2), np.float32)}
    builder = LearnerBuilder(tmp_path / "run").with_batch_size(4).num_epochs(1).renderer(None)
    learner = builder.build(
        eqx.nn.make_with_state(Counted)(), optax.sgd, 0.1, train_step=train_step, valid_step=valid_step
    )
    net, state = learner.fit(batch, batch).model
    assert int(state.get(net.count)) == count


def test_equinox_batch_norm_in_ema_mode_is_refused_by_replicated(tmp_path):
    """In this mode, Equinox changes the type of an array in its state."""
    batch = {"x": np.ones((8, 3), np.float32), "y": np.ones((8, 2), np.float32)}
    builder = LearnerBuilder(tmp_path / "run").strategy(Replicated(8)).with_batch_size(8).num_epochs(1).renderer(None)
    learner = builder.build(
        eqx.nn.make_with_state(Normed)(mode="ema"), optax.sgd, 0.5, train_step=normed_step, valid_step=normed_step
    )
    with raises_code("model-batch-norm-mode"):
        learner.fit(batch)


DATA_TENSOR = {"data": 2, "model": 2}
ON_MODEL = {"w": (None, "model")}


@pytest.mark.parametrize(
    ("sizes", "owners", "rules", "exchanges"),
    [
        ({"data": 4}, [0, 0, 1, 1], None, False),
        ({"data": 4}, [0, 0, 1, 1], fsdp(1), False),
        (DATA_TENSOR, [[0, 0], [1, 1]], ON_MODEL, False),
        (DATA_TENSOR, [[0, 1], [0, 1]], ON_MODEL, True),
        (DATA_TENSOR, [[0, 1], [0, 1]], fsdp(1), False),
        (DATA_TENSOR, [[0, 0], [1, 1]], {"w": ("data", "model")}, False),
        ({"model": 4}, [0, 0, 1, 1], ON_MODEL, True),
        ({"model": 4}, [0, 0, 0, 0], ON_MODEL, False),
    ],
)
def test_rows_are_exchanged_where_arrays_stay_sharded_over_processes(sizes, owners, rules, exchanges):
    """Arrays sharded over the axis of the rows are gathered before they are used."""
    strategy = Sharded(sizes, rules, devices=4)
    devices = [SimpleNamespace(process_index=owner) for owner in np.ravel(owners)]
    strategy.mesh = SimpleNamespace(shape=sizes, devices=np.reshape(devices, list(sizes.values())))
    state = SimpleNamespace(params={"w": np.zeros((8, 8))}, model_state={})
    assert strategy.exchanges_rows(state) == exchanges
    assert not Replicated(jax.devices()[:2]).exchanges_rows(state)
