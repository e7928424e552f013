"""Tests of the executor: parameters, statistics, metrics and values do not depend on how steps are dispatched."""

import itertools
import platform

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learner import ClassificationOutput, LearnerBuilder
from learner.data import DataLoaderBuilder
from learner.data.batch_arrays import batch_arrays
from learner.data.sharding import Batches
from learner.data.source import source_of
from learner.metrics import Accuracy, CollectingMetric, LearningRate
from learner.steps.program import has_convolution
from learner.strategies import SingleDevice
from learner.training.feed.dispatches import Feeder
from learner.training.feed.group import DispatchGrouping
from learner.training.feed.place import Placer
from learner.training.setup.dispatch_plan import make_runner
from tests.support.runs import bits, quiet
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("optimized", "compiled_once")

SIZE, EPOCHS = 4, 2
x86_only = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="bits between two programs are XLA's to keep, it does on x86"
)


# -- models ------------------------------------------------------------------------------------------------------------


class Classifier(nnx.Module):
    """A classifier with running statistics and dropout around `body`."""

    def __init__(self, width, rngs):
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.drop = nnx.Dropout(0.3, rngs=rngs)
        self.head = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.drop(nnx.relu(self.norm(self.body(x)))))

    def train_step(self, batch):
        return ClassificationOutput.from_logits(self(batch["x"]), batch["y"])

    def valid_step(self, batch, rng):
        noise = 0.01 * jax.random.uniform(rng, (len(batch["x"]), 3))
        return ClassificationOutput.from_logits(self(batch["x"]) + noise, batch["y"])


class Mlp(Classifier):
    def __init__(self):
        rngs = nnx.Rngs(0)
        super().__init__(8, rngs)
        self.first = nnx.Linear(8, 8, rngs=rngs)

    def body(self, x):
        return self.first(x.reshape(x.shape[0], -1)[:, :8])


class Cnn(Classifier):
    def __init__(self):
        rngs = nnx.Rngs(0)
        super().__init__(6, rngs)
        self.first = nnx.Conv(1, 6, (3,), rngs=rngs)

    def body(self, x):
        return nnx.relu(self.first(x.reshape(x.shape[0], -1, 1))).mean(axis=1)


class Transformer(Classifier):
    def __init__(self):
        rngs = nnx.Rngs(0)
        super().__init__(8, rngs)
        self.embed = nnx.Linear(4, 8, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(2, 8, decode=False, dropout_rate=0.1, rngs=rngs)
        self.layer_norm = nnx.LayerNorm(8, rngs=rngs)

    def body(self, x):
        tokens = self.embed(x.reshape(x.shape[0], -1, 4))
        return (tokens + self.attend(self.layer_norm(tokens))).mean(axis=1)


MODELS = {"mlp": Mlp, "cnn": Cnn, "transformer": Transformer}


class Predicted(CollectingMetric):
    """A metric that collects all logits."""

    name, fields = "Predicted", ("logits",)

    def collect(self, output):
        return output.logits

    def compute(self, rows):
        raise NotImplementedError("these tests look at what was collected")


# -- one runner, many passes -------------------------------------------------------------------------------------------


def rows_of(count):
    rng = np.random.default_rng(5)
    return {"x": rng.normal(size=(count, 12)).astype(np.float32), "y": rng.integers(0, 3, count).astype(np.int32)}


class Lab:
    """Programs that are compiled once; each pass over the data starts from the same state."""

    def __init__(self, model="mlp", accumulate=1, rows=22):
        builder = LearnerBuilder("unused").grads_accumulation(accumulate)
        builder.metrics(Accuracy(), Predicted()).metric_train(LearningRate())
        schedule = optax.cosine_decay_schedule(1e-2, 20)
        learner = builder.build(MODELS[model](), optax.adamw, schedule)
        self.accumulate, self.strategy = accumulate, SingleDevice()
        self.first = jax.device_get(jax.tree.leaves(_raw(learner.init())))
        self.state = learner.init()
        self.runner = make_runner(learner.definition.step, learner.init(), self.strategy)
        self.loader = DataLoaderBuilder().batch_size(SIZE).shuffle(seed=1).build(rows_of(rows))
        self.feeders, self.wholes = {}, {}

    def feeder(self, streams=False, k=32, loop=True, split="train"):
        """Return the feeder of a split; its limit is `self.limit`."""
        key = streams, k, loop, split
        if key not in self.feeders:
            source = Streamed(self.loader) if streams else self.loader
            source = source_of(source, split) if not streams else source
            plan = DispatchGrouping(
                self.accumulate if split == "train" else 1, max(k, 8), loop, lambda step: self.limit(step), k
            )
            first = batch_arrays(next(iter(self.loader.epoch(1))), split)
            self.feeders[key] = Feeder(source, self.strategy, plan, first, pytest.fail)
        return self.feeders[key]

    def begin(self, leaves=None, metrics=None):
        """Reset the runner to the first state, or to a given one."""
        kept = jax.tree.leaves(self.state) if leaves is None else leaves
        self.runner.leaves = jax.tree.leaves(self.strategy.place(self.runner.copy(kept)))
        return self.runner.start("train", metrics)

    def train(self, limits=(32,), position=(1, 0, 0), keep_at=None, leaves=None, metrics=None, **how):
        """Return the record of a training pass, and a copy of the state at step `keep_at`."""
        self.limit = wild(limits)
        tally, record, step = self.begin(leaves, metrics), Record(), position[2]
        dispatches = self.feeder(**how).open(*position, EPOCHS)
        for dispatch in dispatches:
            record.add(self.runner.train(tally, dispatch), dispatch, self.accumulate)
            step += dispatch.steps
            if step == keep_at:
                at = (
                    dispatch.epoch + dispatch.ends_epoch,
                    0 if dispatch.ends_epoch else self._batch(dispatch, step),
                    step,
                )
                metrics = None if dispatch.ends_epoch else self.runner.copy(tally.metrics)
                record.kept = at, self.runner.copy(self.runner.leaves), metrics
            if dispatch.ends_epoch:
                record.epochs.append(jax.device_get(self.runner.values("train", tally)))
                tally = self.runner.start("train")
        dispatches.close()
        record.state = self.runner.state
        return record

    def whole(self, streams):
        """Return the record of training in the longest possible dispatches, and its bits. The result is cached."""
        if streams not in self.wholes:
            record = self.train(streams=streams)
            self.wholes[streams] = record, record.bits
        return self.wholes[streams]

    def _batch(self, dispatch, step):
        steps = -(-len(self.loader) // self.accumulate)
        return (step - (dispatch.epoch - 1) * steps) * self.accumulate

    def valid(self, limits=(32,), **how):
        self.limit = wild(limits)
        tally, record = self.runner.start("valid"), Record()
        dispatches = self.feeder(split="valid", **how).open(1, 0, 0, 1)
        for dispatch in dispatches:
            record.add(self.runner.valid(tally, dispatch), dispatch, 1)
        dispatches.close()
        record.epochs.append(jax.device_get(self.runner.values("valid", tally)))
        record.state = self.runner.state
        return record


class Streamed:
    """The batches of a loader as a stream, which the prefetching thread reads and places."""

    split, batches, rows, has_rows, share, first_part = "train", None, None, False, None, False
    claimed_batches = None

    def __init__(self, loader):
        self._loader = loader

    def open(self, epoch, start=0, state=None, warn=None):
        return Batches(iter(self._loader.epoch(epoch, start)))


def _raw(tree):
    return jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, tree)


def wild(limits):
    endless = itertools.cycle(limits)
    return lambda step: next(endless)


class Record:
    """The outcome of a pass: the state, the values of each step and those of each epoch."""

    def __init__(self):
        self.numbers, self.weights, self.rows, self.epochs, self.dispatches = [], [], [], [], []

    def add(self, values, dispatch, accumulate):
        values = jax.device_get(values)
        self.numbers.extend(values.numbers[: dispatch.steps].copy())
        self.weights.extend(values.weights[: dispatch.steps].tolist())
        self.dispatches.append((dispatch.kind, dispatch.steps))
        if values.rows:
            full = values.rows[0].reshape(-1, *values.rows[0].shape[2:])
            tails = 1 if values.tail else 0
            self.rows.extend(full[: dispatch.batches - tails].reshape(-1, 3).copy())
        for tail in values.tail if isinstance(values.tail, list) else [values.tail] if values.tail else []:
            self.rows.extend(tail[0].copy())

    @property
    def bits(self):
        state = jax.tree.leaves(_raw(self.state))
        tree = [np.asarray(x).copy() for x in state], self.numbers, self.weights, self.rows, self.epochs
        return bits(tree)


_labs = {}


def lab_of(*key):
    if key not in _labs:
        _labs[key] = Lab(*key)
    return _labs[key]


def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


# -- cuts --------------------------------------------------------------------------------------------------------------

WAYS = [
    *(("mlp", n, streams) for n, streams in ((1, True), (2, False), (2, True), (3, False))),
    ("cnn", 1, False),
    ("transformer", 3, True),
]
limits = st.lists(st.integers(1, 7), min_size=1, max_size=8)


@pytest.mark.parametrize(("model", "accumulate", "streams"), some(WAYS, {("mlp", 2, False)}))
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(limits=limits)
def test_dispatches_of_any_lengths_leave_the_same_bits(model, accumulate, streams, limits):
    """The lengths of dispatches depend on the clock. The run has dropout, statistics, a schedule and a ragged batch."""
    lab = lab_of(model, accumulate)
    whole, expected = lab.whole(streams)
    assert max(steps for _, steps in whole.dispatches) > 1 or lab.accumulate == 3
    assert lab.train(limits, streams=streams).bits == expected


@pytest.mark.parametrize(("model", "accumulate", "streams"), some(WAYS, {("mlp", 2, True)}))
@pytest.mark.full
def test_a_pass_from_any_step_leaves_the_same_bits(model, accumulate, streams):
    """The pass starts from a copy of the state and of the metrics, as in a checkpoint."""
    lab = lab_of(model, accumulate)
    whole = lab.train([1], streams=streams)
    steps = len(whole.numbers)
    for step in range(1, steps):
        position, leaves, metrics = lab.train([1], keep_at=step, streams=streams).kept
        tail = lab.train([2, 1], position, leaves=leaves, metrics=metrics, streams=streams)
        assert position[2] == step
        assert bits(jax.tree.leaves(_raw(tail.state))) == bits(jax.tree.leaves(_raw(whole.state)))
        assert bits(tail.numbers) == bits(whole.numbers[step:])
        assert bits(tail.epochs[-1]) == bits(whole.epochs[-1])
        if position[0] == 1:
            assert bits(tail.epochs[0]) == bits(whole.epochs[0])


@pytest.mark.parametrize(
    ("model", "accumulate", "streams", "ks"),
    [
        *(full("mlp", n, s, (1, 2, 5, 32)) for n, s in ((2, False), (2, True), (3, True))),
        full("cnn", 1, False, (1, 2, 5, 32)),
        full("transformer", 3, True, (1, 2, 5, 32)),
    ],
)
def test_any_number_of_steps_per_dispatch_leaves_the_same_bits(model, accumulate, streams, ks):
    """The three programs have buffers for 2 steps (used for 1 and 2), for 5 and for 32."""
    lab = lab_of(model, accumulate)
    records = {k: lab.train([k], k=k, streams=streams) for k in ks}
    assert [max(steps for _, steps in records[k].dispatches) for k in (1, 2)] == [1, 1 if accumulate == 3 else 2]
    assert {k: record.bits == records[32].bits for k, record in records.items()} == dict.fromkeys(records, True)


@x86_only
@pytest.mark.parametrize(
    ("model", "accumulate", "loop"),
    [
        ("mlp", 2, True),
        ("mlp", 3, False),
        ("cnn", 1, True),
        ("transformer", 3, False),
    ],
)
@pytest.mark.full
def test_resident_data_and_the_same_batches_streamed_leave_the_same_bits(model, accumulate, loop):
    """One program gathers the rows, the other reads them from a buffer, with and without a loop."""
    lab = lab_of(model, accumulate)
    assert lab.train(loop=loop).bits == lab.train(loop=loop, streams=True).bits


@pytest.mark.parametrize(("model", "accumulate"), [full("mlp", 2), full("cnn", 1), full("transformer", 3)])
def test_without_a_loop_the_numbers_are_the_same_to_rounding(model, accumulate):
    """These are different programs, which XLA may round differently."""
    lab = lab_of(model, accumulate)
    looped, single = lab.train(), lab.train(loop=False)
    assert {kind for kind, _ in single.dispatches} == ({"parts"} if accumulate > 1 else {"single", "tail"})
    np.testing.assert_allclose(np.stack(single.numbers), np.stack(looped.numbers), rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(np.stack(single.rows), np.stack(looped.rows), rtol=2e-2, atol=1e-3)
    assert single.weights == looped.weights


# -- validation --------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("streams", [False, full(True)])
@settings(max_examples=4, deadline=None)
@given(limits=limits)
def test_validation_in_dispatches_of_any_lengths_has_the_same_bits(streams, limits):
    """The random key of a batch is derived from its number in the split."""
    lab = lab_of("mlp", 2)
    lab.begin()
    before = bits(jax.tree.leaves(_raw(lab.runner.state)))
    whole, cut = lab.valid(streams=streams), lab.valid(limits, streams=streams)
    assert cut.bits == whole.bits
    assert bits(jax.tree.leaves(_raw(lab.runner.state))) == before
    assert len(whole.numbers) == 6
    assert len({row.tobytes() for row in whole.rows}) == 22


@pytest.mark.full
def test_outputs_equal_those_of_validation():
    lab = lab_of("mlp", 2)
    lab.begin()
    whole = lab.valid()
    batches = list(lab.loader.epoch(1))
    logits = [jax.device_get(lab.runner.outputs(batch, number).logits) for number, batch in enumerate(batches)]
    np.testing.assert_allclose(np.concatenate(logits), np.stack(whole.rows), rtol=1e-5, atol=1e-6)


# -- the runner's state ------------------------------------------------------------------------------------------------


def test_values_of_steps_include_weights_and_rates():
    """22 rows are read in batches of 4, two per step."""
    record = lab_of("mlp", 2).train()
    assert record.weights == [8, 8, 6] * EPOCHS
    assert len(record.rows) == 22 * EPOCHS
    rates = [float(numbers[list_of_names().index("Learning Rate")]) for numbers in record.numbers]
    np.testing.assert_allclose(rates, [0.5e-2 * (1 + np.cos(np.pi * step / 20)) for step in range(6)], rtol=1e-6)


def list_of_names():
    return ["Accuracy", "Learning Rate", "Loss"]


def test_the_values_of_an_epoch_are_weighted_means_over_its_steps():
    record = lab_of("mlp", 2).train()
    for epoch, values in enumerate(record.epochs):
        steps = slice(3 * epoch, 3 * epoch + 3)
        for name in ("Loss", "Accuracy"):
            per_step = [numbers[list_of_names().index(name)] for numbers in record.numbers[steps]]
            np.testing.assert_allclose(values[name], np.average(per_step, weights=record.weights[steps]), rtol=1e-6)


def test_a_copy_of_the_state_survives_training():
    lab = lab_of("mlp", 2)
    tally = lab.begin()
    lab.limit = wild([1])
    original, copy = lab.runner.leaves, lab.runner.copy(lab.runner.leaves)
    before = bits(_raw(copy))
    dispatches = lab.feeder().open(1, 0, 0, 1)
    lab.runner.train(tally, next(dispatches))
    assert any(leaf.is_deleted() for leaf in original)
    assert bits(_raw(copy)) == before


def test_the_initial_state_survives_training():
    """Placing may not copy, and the runner donates its own arrays."""
    lab = lab_of("mlp", 2)
    lab.train()
    assert bits(jax.tree.leaves(_raw(lab.state))) == bits([*lab.first])


def test_set_lr_scale_changes_only_the_scale():
    lab = lab_of("mlp", 2)
    lab.begin()
    before = lab.runner.copy(lab.runner.state)
    lab.runner.set_lr_scale(0.25)
    after = lab.runner.state
    assert (float(after.lr_scale), after.lr_scale.committed, after.lr_scale.weak_type) == (0.25, True, False)
    rest = lambda state: bits(_raw((state.step, state.params, state.model_state, state.opt_state, state.rng)))  # noqa: E731
    assert rest(after) == rest(before)


@pytest.mark.parametrize(("model", "expected"), [("mlp", False), full("cnn", True)])
def test_the_traced_programs_show_convolutions(model, expected):
    lab = lab_of(model, 2)
    for kind in ("train", "valid"):
        assert has_convolution(lab.runner.traced(kind, lab.feeder(split=kind).example())) == expected


def test_memory_does_not_grow_with_the_micro_batches_of_a_step(tmp_path, monkeypatch):
    """Micro-batch i is all i, and the gradient its mean. 16 of them have 84 MB, more than a buffer. A CPU computes each
    of them at once; elsewhere, only the wait before the next one is placed limits their number.
    """
    rows, width, placed, events = 64, 20_480, [], []
    place, wait = Placer.place, jax.block_until_ready
    monkeypatch.setattr(Placer, "place", lambda *args: events.append("place") or place(*args))
    monkeypatch.setattr(jax, "block_until_ready", lambda x: events.append("wait") or wait(x))

    def batches():
        for number in range(32):
            placed.append(sum(x.shape == (rows, width) for x in jax.live_arrays()))
            yield {"x": np.full((rows, width), number, np.float32)}

    def step(params, batch):
        return {"loss": (batch["x"] @ params["w"]).mean()}

    builder = quiet(tmp_path / "run").grads_accumulation(16).num_steps(2)
    result = builder.build({"w": jnp.zeros(width)}, optax.sgd, 0.5, train_step=step).fit(batches)
    np.testing.assert_array_equal(result.model["w"], -0.5 * (7.5 + 23.5))
    assert max(placed) <= 3
    assert "".join(event[0] for event in events).count("pw" * 16) == 2
