"""Compare runs on one device and on several, with every strategy."""

import dataclasses
import functools
import itertools
import tempfile
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from learner import ClassificationOutput, LearnerBuilder
from learner.strategies import Replicated, Sharded, fsdp
from tests.support.spread import KINDS, Cnn, labelled, leaves_of, same_numbers, train

pytestmark = pytest.mark.usefixtures("compiled_once")


def first(count):
    return jax.devices()[:count]


STRATEGIES = {
    "replicated-2": lambda kind: Replicated(first(2)),
    **{f"replicated-{n}": functools.partial(lambda n, kind: Replicated(first(n)), n) for n in (1, 3, 8)},
    **{f"sharded-{n}": functools.partial(lambda n, kind: Sharded(devices=first(n)), n) for n in (1, 3, 8)},
    **{f"fsdp-{n}": functools.partial(lambda n, kind: Sharded(rules=fsdp(1), devices=first(n)), n) for n in (2, 8)},
    "model": lambda kind: Sharded({"data": 2, "model": 2}, KINDS[kind].rules, devices=first(4)),
    "model-and-fsdp": lambda kind: Sharded({"data": 4, "model": 2}, [KINDS[kind].rules, fsdp(1)]),
}
# 24 divides over 1, 2, 3 and 8 devices; 125 rows end with 5, fewer than 8 devices; 25 never divides.
SIZES = [(1, 24), (4, 25), (1, 25), (4, 24)]  # micro-batches per step, rows per batch
MATRIX = [  # each strategy with two kinds of models and of sizes; each kind with all sizes
    (strategy, tuple(KINDS)[(i + j) % len(KINDS)], *SIZES[(i + 2 * j) % len(SIZES)])
    for (i, strategy), j in itertools.product(enumerate(STRATEGIES), (0, 1))
]
PAIRS = {("replicated-2", "mlp", 1, 25)}  # programs for few devices compile faster; test_larger.py tests FSDP


def cases():
    return [
        pytest.param(*case, marks=() if case in PAIRS else pytest.mark.full, id="-".join(map(str, case)))
        for case in dict.fromkeys([*MATRIX, *sorted(PAIRS)])
    ]


@functools.cache
def on_one_device(kind, accumulate, batch, dropout=0.0):
    return train(Path(tempfile.mkdtemp()) / "run", kind, None, accumulate, batch, dropout=dropout)


@pytest.mark.parametrize(("strategy", "kind", "accumulate", "batch"), cases())
def test_numbers_equal_those_of_one_device(tmp_path, strategy, kind, accumulate, batch):
    one = on_one_device(kind, accumulate, batch)
    chosen = STRATEGIES[strategy](kind)
    other = train(tmp_path / "run", kind, chosen, accumulate, batch)
    same_numbers(one, other)
    assert other.weights.sum() == one.weights.sum()
    uneven = batch == 25 and not chosen.divides(25)
    assert len([line for line in other.warnings if "cannot be spread evenly" in line]) == 2 * uneven
    assert len(other.warnings) == 2 * uneven
    assert len(other.programs) <= len(one.programs)


@pytest.mark.parametrize(("kind", "count"), [("mlp", 2), ("cnn", 8)])
@pytest.mark.full
def test_random_masks_equal_those_of_one_device_if_programs_see_all_rows(tmp_path, kind, count):
    other = train(tmp_path / "run", kind, Sharded(rules=fsdp(1), devices=first(count)), 4, dropout=0.5)
    same_numbers(on_one_device(kind, 4, 24, dropout=0.5), other)


@pytest.mark.full
def test_random_masks_differ_between_replicas_and_are_reproducible(tmp_path):
    one, two = (train(tmp_path / str(i), "mlp", Replicated(first(2)), dropout=0.5) for i in range(2))
    same_numbers(one, two, 0, 0)
    assert not np.allclose(one.steps["Loss"], on_one_device("mlp", 1, 24, dropout=0.5).steps["Loss"], rtol=1e-3)


@pytest.mark.full
def test_masks_of_replicas_differ_and_are_reproducible(tmp_path):
    def step(model, batch, rng):
        kept = jax.random.bernoulli(rng, 0.5, batch["x"].shape)
        return ClassificationOutput.from_logits(kept.astype("float32") @ model["w"], batch["y"])

    left = []
    for name in ("one", "two"):
        builder = LearnerBuilder(tmp_path / name).devices(8).renderer(None).application_logger(None)
        learner = builder.build({"w": np.zeros((6, 4), np.float32)}, optax.sgd, 1.0, train_step=step)
        result = learner.fit([{"x": np.ones((8, 6), np.float32), "y": np.zeros(8, np.int32)}])
        left.append(np.asarray(result.model["w"]))
    np.testing.assert_array_equal(left[0], left[1])
    # One step from zero: the gradient of column 1 is a quarter of the mean of the masks, so it has eighths if each row
    # has its own mask, and is 0 or 1/4 if all rows share one.
    means = left[0][:, 1] * -4
    assert set(np.unique(means)) - {0.0, 1.0}


@pytest.mark.full  # by default, the tests above use SGD on two devices, which hides it as little
@pytest.mark.parametrize("make", [lambda: Replicated(first(4)), lambda: Sharded(rules=fsdp(1))], ids=["pmap", "fsdp"])
def test_gradients_equal_those_of_jax_on_the_batch(tmp_path, make):
    """SGD shows an average of averages or a sum that is averaged again; Adam would hide both."""
    data = labelled((5, 5, 1), 24, 5)
    model = Cnn(0.0)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    params, rest = nnx.as_pure(params), nnx.as_pure(rest)

    def loss(params):
        return nnx.merge(graph, params, rest).train_step(data).loss

    expected = leaves_of(jax.grad(loss)(params))
    before = leaves_of(params)
    builder = LearnerBuilder(tmp_path / "run").strategy(make()).renderer(None)
    result = builder.build(model, optax.sgd, 1.0).fit([data])
    after = leaves_of(nnx.as_pure(nnx.state(result.model, nnx.Param)))
    for name, gradient in expected.items():
        np.testing.assert_allclose(before[name] - after[name], gradient, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_unsynchronised_statistics_are_those_of_each_devices_rows(tmp_path):
    """By hand: the running mean moves by a tenth of the way to the mean of the devices' means, which is the mean of the
    batch; the running variance to the mean of their variances, which is less than the batch's.
    """
    x = np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1) * np.ones((8, 5, 5, 1), np.float32)
    data = {"x": x, "y": np.zeros(8, np.int32)}
    moved = {}
    for sync in (True, False):
        model = Cnn(0.0)
        model.conv.kernel[...] = np.ones_like(model.conv.kernel[...])
        builder = LearnerBuilder(tmp_path / str(sync)).strategy(Replicated(first(4), sync_batch_norm=sync))
        moved[sync] = builder.renderer(None).build(model, optax.sgd, 0.0).fit([data]).model.norm
    hidden = nnx.Conv(1, 1, (3, 3), rngs=nnx.Rngs(0))
    hidden.kernel[...] = np.ones_like(hidden.kernel[...])
    rows = np.asarray(hidden(x), np.float64)
    shares = rows.reshape(4, -1)
    for sync, variance in ((True, rows.var()), (False, shares.var(1).mean())):
        np.testing.assert_allclose(moved[sync].mean[...], 0.1 * rows.mean(), rtol=1e-4)
        np.testing.assert_allclose(moved[sync].var[...], 0.9 + 0.1 * variance, rtol=1e-4)


def test_a_batch_without_weight_is_left_out_of_synchronised_gradients(tmp_path):
    """One of four micro-batches is padding that is not finite."""
    data = [labelled((4,), 8, seed) | {"mask": np.ones(8, bool)} for seed in range(4)]
    data[1] |= {"x": np.full((8, 4), np.nan, np.float32), "mask": np.zeros(8, bool)}

    class Net(nnx.Module):
        def __init__(self):
            self.hidden, self.head = nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 4, rngs=nnx.Rngs(1))
            self.norm = nnx.BatchNorm(8, rngs=nnx.Rngs(2))

        def train_step(self, batch):
            logits = self.head(self.norm(self.hidden(batch["x"])))
            return ClassificationOutput.from_logits(logits, batch["y"], batch["mask"])

    kernels = []
    for count in (1, 2):
        builder = LearnerBuilder(tmp_path / str(count)).renderer(None).devices(first(count)).grads_accumulation(2)
        kernels.append(builder.build(Net(), optax.sgd, 0.1).fit(data).model.head.kernel[...])
    np.testing.assert_allclose(kernels[1], kernels[0], rtol=1e-5)


@pytest.mark.full
def test_linens_batch_norm_is_synchronised_too(tmp_path):
    import flax.linen as nn

    from learner import Linen

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dense(4)(nn.BatchNorm(use_running_average=not train)(x))

    def step(model, batch):
        return ClassificationOutput.from_logits(model(batch["x"], train=model.train), batch["y"])

    data = labelled((6,), 24, 5)
    left = []
    for name, strategy in (("one", None), ("two", Replicated(first(2)))):
        module = Net()
        model = Linen(module, module.init(jax.random.key(0), data["x"], train=False))
        builder = LearnerBuilder(tmp_path / name).renderer(None).num_epochs(2)
        builder = builder if strategy is None else builder.strategy(strategy)
        learner = builder.build(model, optax.sgd, 0.5, train_step=step, valid_step=step)
        left.append(leaves_of(learner.fit([data] * 2).model.variables))
    for name in left[0]:
        np.testing.assert_allclose(left[1][name], left[0][name], rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.full
def test_batch_norm_of_modules_in_a_dict_is_synchronised_too(tmp_path):
    def step(model, batch):
        hidden = nnx.relu(model["norm"](model["hidden"](batch["x"])))
        return ClassificationOutput.from_logits(model["out"](hidden), batch["y"])

    data = labelled((6,), 24, 5)
    left = []
    for name, strategy in (("one", None), ("two", Replicated(first(2)))):
        rngs = nnx.Rngs(0)
        layers = {"hidden": nnx.Linear(6, 8, rngs=rngs), "norm": nnx.BatchNorm(8, rngs=rngs)}
        model = {**layers, "out": nnx.Linear(8, 4, rngs=rngs)}
        builder = LearnerBuilder(tmp_path / name).renderer(None).num_epochs(2)
        builder = builder if strategy is None else builder.strategy(strategy)
        learner = builder.build(model, optax.sgd, 0.5, train_step=step, valid_step=step)
        left.append(leaves_of(learner.fit([data] * 2).model))
    for name in left[0]:
        np.testing.assert_allclose(left[1][name], left[0][name], rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.full
@pytest.mark.parametrize(
    "weights",
    [
        pytest.param(np.repeat([3, 1], 12), id="3 to 1"),
        pytest.param(np.repeat([0, 1], 12), id="0 to 1", marks=pytest.mark.full),
    ],
)
def test_weights_that_differ_between_devices_reach_all_statistics(tmp_path, weights):
    """The rows of one device contribute to the statistics of the others, so their gradients do, too."""

    def step(model, batch):
        loss = optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"])
        weight = batch["w"].sum()
        return Weighted((loss * batch["w"]).sum() / jax.numpy.maximum(weight, 1), weight)

    class Net(nnx.Module):
        def __init__(self):
            self.hidden, self.norm = nnx.Linear(6, 8, rngs=nnx.Rngs(0)), nnx.BatchNorm(8, rngs=nnx.Rngs(1))
            self.out = nnx.Linear(8, 4, rngs=nnx.Rngs(2))

        def __call__(self, x):
            return self.out(nnx.relu(self.norm(self.hidden(x))))

    data = {**labelled((6,), 24, 5), "w": weights.astype(np.float32)}
    left = []
    for name, strategy in (("one", None), ("two", Replicated(first(2)))):
        builder = LearnerBuilder(tmp_path / name).renderer(None)
        builder = builder if strategy is None else builder.strategy(strategy)
        model = builder.build(Net(), optax.sgd, 1.0, train_step=step).fit([data]).model
        left.append(leaves_of(nnx.as_pure(nnx.state(model, nnx.Any(nnx.Param, nnx.BatchStat)))))
    for name in left[0]:
        np.testing.assert_allclose(left[1][name], left[0][name], rtol=2e-5, atol=2e-6, err_msg=name)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Weighted:
    loss: jax.Array
    weight: jax.Array


@pytest.mark.full
def test_infinite_values_of_model_state_are_kept(tmp_path):
    """An attention mask, for example. The batches have several shapes, so that micro-batches are added one by one."""

    class Net(nnx.Module):
        def __init__(self):
            self.mask = nnx.Variable(jax.numpy.array([0.0, 0.0, 0.0, -np.inf]))
            self.out = nnx.Linear(6, 4, rngs=nnx.Rngs(0))

        def train_step(self, batch):
            return ClassificationOutput.from_logits(self.out(batch["x"]) + self.mask[None], batch["y"] % 3)

    batches = [labelled((6,), rows, rows) for rows in (8, 6, 8, 8)]
    left = []
    for name, strategy in (("one", None), ("two", Replicated(first(2)))):
        builder = LearnerBuilder(tmp_path / name).renderer(None).grads_accumulation(3)
        builder = builder if strategy is None else builder.strategy(strategy)
        left.append(builder.build(Net(), optax.sgd, 0.1).fit(batches).model)
    assert left[1].mask[...].tolist() == [0.0, 0.0, 0.0, -np.inf]
    np.testing.assert_allclose(left[1].out.kernel[...], left[0].out.kernel[...], rtol=2e-5, atol=2e-6)


@pytest.mark.full
def test_update_functions_if_programs_see_all_rows(tmp_path):
    def update(model, batch, lr, rng):
        def loss(w):
            return ((batch["x"] @ w - 1) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(model["w"])
        return {"w": model["w"] - lr * grads}, Weighted(value, jax.numpy.float32(24))

    batches, left = [labelled((6,), 24, seed) for seed in range(3)], []
    for name, strategy in (("one", None), ("eight", Sharded(rules=fsdp(1))), ("two", Sharded(devices=first(2)))):
        builder = LearnerBuilder(tmp_path / name).renderer(None)
        builder = builder if strategy is None else builder.strategy(strategy)
        learner = builder.build({"w": np.zeros((6, 8), np.float32)}, None, 0.1, update=update)
        left.append(np.asarray(learner.fit(batches).model["w"]))
    np.testing.assert_allclose(left[1], left[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(left[2], left[0], rtol=1e-5, atol=1e-6)
