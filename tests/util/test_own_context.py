"""Tests of runs inside `jax.set_mesh` and `jax.transfer_guard`, and of models with sharding annotations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from learner import LearnerBuilder, Linen, RegressionOutput
from learner.models.adapters import adapter_of
from learner.strategies import Sharded, SingleDevice
from tests.support.runs import T, X
from tests.support.stopped import some

DATA = {"x": X[:8], "y": T[:8]}
WARNED = "the strategy places them differently"


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2, 2), ("data", "model"), (AxisType.Auto,) * 2, devices=jax.devices()[:4])


class Annotated(nnx.Module):
    def __init__(self, rngs):
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "model"))
        self.hidden = nnx.Linear(3, 4, kernel_init=init, rngs=rngs)
        self.head = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.hidden(x)))


def fit(directory, strategy, model=None, constrain=lambda x: x):
    def train(model, batch):
        return RegressionOutput.from_predictions(constrain(model(batch["x"])), batch["y"])

    builder = LearnerBuilder(directory, overwrite=True).renderer(None).with_batch_size(4).num_epochs(2)
    make = (lambda: nnx.Linear(3, 1, rngs=nnx.Rngs(0))) if model is None else model
    learner = builder.strategy(strategy).build(make, optax.sgd, 0.1, train_step=train, valid_step=train)
    result = learner.fit(DATA, DATA)
    return result.history["train/Loss"], learner.evaluate(DATA), len(list(learner.predict(DATA)))


@pytest.mark.parametrize("kind", [pytest.param("sharded", marks=pytest.mark.full), "single"])
def test_an_ambient_mesh_changes_no_result(tmp_path, mesh, kind):
    strategy = Sharded(mesh) if kind == "sharded" else SingleDevice()
    expected = fit(tmp_path, strategy)
    with jax.set_mesh(mesh):
        assert fit(tmp_path, strategy) == expected
        assert not jax.sharding.get_abstract_mesh().empty


@pytest.mark.full
@pytest.mark.parametrize("strategy", [SingleDevice(), Sharded(devices=2)], ids=["single", "sharded"])
def test_a_global_transfer_guard_allows_the_transfers_of_a_run(tmp_path, strategy):
    expected = fit(tmp_path, strategy)
    before = jax.config.jax_transfer_guard
    jax.config.update("jax_transfer_guard", "disallow")
    try:
        assert fit(tmp_path, strategy) == expected
        with pytest.raises(Exception, match="Disallowed"):
            jnp.add(np.ones(2), 1)
    finally:
        jax.config.update("jax_transfer_guard", before)


def learner_of(directory, model):
    step = lambda m, b: RegressionOutput.from_predictions(b["x"] @ m["w"], b["y"])  # noqa: E731
    builder = LearnerBuilder(directory).renderer(None).with_batch_size(4)
    return builder.build(model, optax.sgd, 0.1, train_step=step, valid_step=step)


def weights():
    return {"w": jnp.zeros((3, 1))}


CALLS = {
    "init": lambda learner: np.asarray(learner.init().params["w"]).tolist(),
    "train_step": lambda learner: float(learner.train_step(learner.init(), DATA)[1]["Loss"]),
    "valid_step": lambda learner: float(learner.valid_step(learner.init(), DATA)["Loss"]),
    "overview": lambda learner: [(x.path, x.shape) for x in learner.overview(DATA).arrays],
    "sharding_report": lambda learner: learner.sharding_report(DATA).per_device("parameters"),
    "find_lr": lambda learner: list(learner.find_lr(DATA, steps=3).losses),
}
EXPLICIT = jax.make_mesh((4,), ("x",), (AxisType.Explicit,), devices=jax.devices()[:4])


@pytest.mark.parametrize("call", some(list(CALLS), ["train_step"]))
def test_calls_without_a_run_work_in_a_mesh_and_under_a_transfer_guard(tmp_path, call):
    model = weights()
    expected = CALLS[call](learner_of(tmp_path, model))
    with jax.set_mesh(EXPLICIT):
        assert CALLS[call](learner_of(tmp_path, model)) == expected
        assert CALLS[call](learner_of(tmp_path, weights)) == expected
    learner = learner_of(tmp_path, model)
    with jax.transfer_guard("disallow"):
        assert CALLS[call](learner) == expected


def test_single_steps_in_a_mesh_can_be_transformed_and_see_it(tmp_path, mesh):
    rows = PartitionSpec("data")

    def step(model, batch):
        x = jax.lax.with_sharding_constraint(batch["x"], rows)
        return RegressionOutput.from_predictions(x @ model["w"], batch["y"])

    learner = LearnerBuilder(tmp_path).build(weights(), optax.sgd, 0.1, train_step=step, valid_step=step)
    state, batches = learner.init(), jax.tree.map(lambda x: np.stack([x, 2 * x]), DATA)
    with jax.set_mesh(mesh):
        assert np.isfinite(learner.train_step(state, DATA)[1]["Loss"])
        losses = jax.vmap(learner.valid_step, (None, 0))(state, batches)["Loss"]
        assert np.asarray(jax.grad(lambda x: learner.valid_step(state, {**DATA, "x": x})["Loss"])(DATA["x"])).any() == 0
    np.testing.assert_allclose(losses[1], 4 * losses[0], rtol=1e-6)  # the weights are 0


@pytest.mark.full
@pytest.mark.parametrize("model", [weights, lambda: Annotated(nnx.Rngs(0))], ids=["dict", "annotated"])
def test_a_function_makes_a_model_in_a_mesh_with_explicit_axes(tmp_path, model):
    def step(model, batch):
        y = batch["x"] @ model["w"] if isinstance(model, dict) else model(batch["x"])
        return RegressionOutput.from_predictions(y, batch["y"])

    mesh = jax.make_mesh((2,), ("model",), (AxisType.Explicit,), devices=jax.devices()[:2])
    with jax.set_mesh(mesh):
        learner = LearnerBuilder(tmp_path).renderer(None).build(model, optax.sgd, 0.1, train_step=step)
        assert np.isfinite(learner.fit([DATA]).history["train/Loss"]).all()


@pytest.mark.full
def test_a_step_may_constrain_shardings_on_the_mesh_of_the_strategy(tmp_path, mesh):
    strategy = Sharded(mesh)
    rows = NamedSharding(strategy.mesh, PartitionSpec("data"))
    constrained = fit(tmp_path, strategy, constrain=lambda x: jax.lax.with_sharding_constraint(x, rows))
    np.testing.assert_allclose(constrained[0], fit(tmp_path, strategy)[0], rtol=1e-6)


@pytest.mark.full
def test_annotations_of_modules_in_a_dict_are_found(mesh):
    with jax.set_mesh(mesh):
        adapter = adapter_of({"net": Annotated(nnx.Rngs(0)), "w": jnp.ones(2)})
    assert adapter.annotations == {"net.hidden.kernel.value": (None, "model")}


@pytest.mark.full
def test_annotations_without_a_matching_rule_are_warned_about(tmp_path, mesh):
    def make():
        with jax.set_mesh(mesh):
            return Annotated(nnx.Rngs(0))

    for rules, warned in (([], True), ([{"hidden.kernel": (None, "model")}], False)):
        fit(tmp_path, Sharded(mesh, rules), make())
        log = (tmp_path / "experiment.log").read_text()
        assert ("annotates hidden.kernel" in log) == (WARNED in log) == warned


@pytest.mark.full
@pytest.mark.parametrize(("rules", "warned"), [([], True), ([{"kernel": (None, "model")}], False)])
def test_annotations_of_linen_modules_are_compared_with_the_rules(tmp_path, mesh, rules, warned):
    module = linen.Dense(2, kernel_init=linen.with_partitioning(linen.initializers.ones, (None, "model")))
    model = Linen(module, module.init(jax.random.key(0), X[:1]))
    learner = LearnerBuilder(tmp_path).renderer(None).strategy(Sharded(mesh, rules))
    learner.build(model, optax.sgd, 0.1, train_step=lambda m, b: {"loss": m(b["x"]).mean()}).fit([DATA])
    log = (tmp_path / "experiment.log").read_text()
    assert ("annotates kernel.value" in log) == (WARNED in log) == warned


@pytest.mark.full
@pytest.mark.parametrize(
    ("annotation", "rule"),
    [
        (("model",), ("model", None)),
        (("model", None), ("model",)),
        (lambda mesh: NamedSharding(mesh, PartitionSpec(None, "model")), (None, "model")),
    ],
)
def test_annotations_with_a_matching_rule_are_not_warned_about(tmp_path, mesh, annotation, rule):
    given = annotation(mesh) if callable(annotation) else annotation
    model = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    model.kernel = nnx.Param(model.kernel[...], out_sharding=given, mesh=mesh)
    builder = LearnerBuilder(tmp_path).renderer(None).strategy(Sharded(mesh, [{"kernel": rule}]))
    learner = builder.build(model, optax.sgd, 0.1, train_step=lambda m, b: {"loss": m(b["x"]).mean()})
    learner.fit([{"x": np.ones((4, 4), np.float32)}])
    assert WARNED not in (tmp_path / "experiment.log").read_text()
