"""Tests of the dispatched programs: results against NumPy, and the number of compilations."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerBuilder
from learner.metrics import CollectingMetric, LearningRate, MeanAbsoluteError
from learner.steps.buffers import BatchBuffer, ResidentBatches
from learner.steps.program import Programs, has_convolution
from learner.training.programs.compilation import CompileTimes
from tests.support.runs import regression_step
from tests.support.stopped import some

# -- a linear model in NumPy -------------------------------------------------------------------------------------------

ROWS, SIZE, RATE = 22, 4, 0.1  # 5 full micro-batches and one of 2 rows
_rng = np.random.default_rng(8)
DATA = {
    "x": _rng.normal(size=(ROWS, 3)).astype(np.float32),
    "y": _rng.normal(size=(ROWS, 2)).astype(np.float32),
}
ORDER = _rng.permutation(ROWS).astype(np.int32)
START = _rng.normal(size=(3, 2)).astype(np.float32)


def micro_batch(index: int) -> dict[str, np.ndarray]:
    rows = ORDER[index * SIZE : (index + 1) * SIZE]
    return {name: x[rows] for name, x in DATA.items()}


@dataclasses.dataclass
class NumpyDescent:
    """Gradient descent in float64; each step uses the rows of some micro-batches."""

    w: np.ndarray = dataclasses.field(default_factory=lambda: START.astype(np.float64))
    losses: list[float] = dataclasses.field(default_factory=list)
    weights: list[int] = dataclasses.field(default_factory=list)
    absolute: list[float] = dataclasses.field(default_factory=list)
    predictions: list[np.ndarray] = dataclasses.field(default_factory=list)

    def step(self, *indices: int, update: bool = True) -> None:
        batches = [micro_batch(i) for i in indices]
        x, y = (np.concatenate([np.float64(batch[name]) for batch in batches]) for name in ("x", "y"))
        error = x @ self.w - y
        self.predictions.append(x @ self.w)
        self.losses.append((error**2).mean())
        self.absolute.append(np.abs(error).mean())
        self.weights.append(len(x))
        if update:
            self.w = self.w - RATE * 2 * x.T @ error / error.size

    def steps(self, *groups: tuple[int, ...]) -> "NumpyDescent":
        for group in groups:
            self.step(*group)
        return self


class Predictions(CollectingMetric):
    name, fields = "Predictions", ("predictions",)

    def collect(self, output):
        return {"p": output.predictions}

    def compute(self, rows):
        raise NotImplementedError("these tests check the collected rows")


@dataclasses.dataclass
class Lab:
    """The compiled programs of a run."""

    accumulate: int

    def __post_init__(self):
        builder = LearnerBuilder("unused").grads_accumulation(self.accumulate)
        builder.metrics(MeanAbsoluteError(), Predictions()).metric_train(LearningRate())
        learner = builder.build(
            {"w": jnp.asarray(START)}, optax.sgd, RATE, train_step=regression_step, valid_step=regression_step
        )
        self.step, self.state = learner.definition.step, learner.init()
        self.tree = jax.tree.structure(self.state)
        self.programs = Programs(self.step, self.tree)
        names = ("train", "train_tail", "train_single", "begin", "add", "add_tail", "finish")
        self.jit = {name: jax.jit(getattr(self.programs, name)) for name in names}
        self.jit |= {name: jax.jit(getattr(self.programs, name)) for name in ("valid", "valid_single", "valid_tail")}

    @property
    def leaves(self) -> list[Any]:
        return jax.tree.leaves(self.state)

    def empty(self, kind: str = "train") -> Any:
        """Return the packed metric states without rows."""
        measure = self.step.train_metrics if kind == "train" else self.step.valid_metrics
        return jax.jit(measure.fresh)()

    def rows(self, room: int = 8) -> ResidentBatches:
        return ResidentBatches(jax.tree.map(lambda x: jnp.asarray(x[ORDER]), DATA), SIZE, room)

    def stack(self, first: int, count: int, room: int = 8, last: int | None = None) -> BatchBuffer:
        """Return a buffer with `count` micro-batches from `first` on; the rest is NaN."""
        buffer = {name: np.full((room, SIZE, *x.shape[1:]), np.nan, np.float32) for name, x in DATA.items()}
        for i in range(count):
            for name, x in micro_batch(first + i).items():
                buffer[name][i] = x
        return BatchBuffer(buffer, None if last is None else micro_batch(last))

    def check(self, leaves: list[Any], expected: NumpyDescent, steps: int) -> None:
        state = self.tree.unflatten(leaves)
        np.testing.assert_allclose(state.params["w"], expected.w, rtol=1e-5, atol=1e-6)
        assert state.step == steps

    def check_values(self, values: Any, expected: NumpyDescent) -> None:
        """Compare the values and weights of each step; values are in the order of `step_names`."""
        count = len(expected.losses)
        names = self.step.train_metrics.step_names
        columns = dict(zip(names, np.asarray(values.numbers).T, strict=True))
        np.testing.assert_allclose(columns["Loss"][:count], expected.losses, rtol=1e-5)
        np.testing.assert_allclose(columns["Mean Absolute Error"][:count], expected.absolute, rtol=1e-5)
        np.testing.assert_allclose(columns["Learning Rate"][:count], RATE, rtol=1e-6)
        np.testing.assert_array_equal(values.weights[:count], expected.weights)
        assert not np.any(values.numbers[count:])  # the rest of the buffer is zero
        assert not np.any(values.weights[count:])

    def check_epoch(self, epoch: Any, expected: NumpyDescent) -> None:
        """Compare the metrics over all steps."""
        values = self.step.train_metrics.totals(epoch)
        for name, each in (("Loss", expected.losses), ("Mean Absolute Error", expected.absolute)):
            np.testing.assert_allclose(values[name], np.average(each, weights=expected.weights), rtol=1e-5)


_labs: dict[int, Lab] = {}


def lab_of(accumulate: int) -> Lab:
    if accumulate not in _labs:
        _labs[accumulate] = Lab(accumulate)
    return _labs[accumulate]


i32 = jnp.int32
GROUPS = {  # the first 5 micro-batches, by the number per step
    1: [(0,), (1,), (2,), (3,), (4,)],
    2: [(0, 1), (2, 3), (4,)],
    3: [(0, 1, 2), (3, 4)],
}


def feeds(lab: Lab, streams: bool, first: int, count: int) -> tuple[Any, Any]:
    """Return a feed and the cursor of its first micro-batch."""
    return (lab.stack(first, count), i32(0)) if streams else (lab.rows(), i32(first))


both_feeds = pytest.mark.parametrize("streams", [False, True], ids=["rows", "stack"])
accumulations = pytest.mark.parametrize("accumulate", some(GROUPS, {3}))


# -- training ----------------------------------------------------------------------------------------------------------


@both_feeds
@accumulations
def test_the_loop_runs_the_steps_of_its_micro_batches(accumulate, streams):
    lab = lab_of(accumulate)
    feed, cursor = feeds(lab, streams, 0, 5)
    leaves, epoch, cursor, values = lab.jit["train"](lab.leaves, lab.empty(), feed, cursor, i32(5))
    expected = NumpyDescent().steps(*GROUPS[accumulate])
    lab.check(leaves, expected, len(expected.losses))
    lab.check_values(values, expected)
    lab.check_epoch(epoch, expected)
    assert cursor == 5


@both_feeds
@accumulations
def test_a_dispatch_may_be_cut_between_any_two_steps(accumulate, streams):
    """Both parts leave the bits of one loop over all steps, and no further program is compiled."""
    lab, groups = lab_of(accumulate), GROUPS[accumulate]
    feed, cursor = feeds(lab, streams, 0, 5)
    whole, _, _, values = lab.jit["train"](lab.leaves, lab.empty(), feed, cursor, i32(5))
    for cut in range(1, len(groups)):
        first = sum(map(len, groups[:cut]))
        (feed, cursor), (rest, start) = feeds(lab, streams, 0, first), feeds(lab, streams, first, 5 - first)
        arguments, count, left = (lab.leaves, lab.empty(), feed, cursor), i32(first), i32(5 - first)
        with CompileTimes() as times:
            leaves, epoch, cursor, one = lab.jit["train"](*arguments, count)
            leaves, epoch, _, two = lab.jit["train"](leaves, epoch, rest, start if streams else cursor, left)
        assert times.count == 0
        for a, b in zip(map(raw, leaves), map(raw, whole), strict=True):
            np.testing.assert_array_equal(a, b)
        lab.check_epoch(epoch, NumpyDescent().steps(*groups))
        joined = np.concatenate([one.numbers[:cut], two.numbers[: len(groups) - cut]])
        np.testing.assert_array_equal(joined, values.numbers[: len(groups)])


def raw(x: Any) -> Any:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


@pytest.mark.full
@both_feeds
@pytest.mark.parametrize(
    ("accumulate", "group"), some([(1, (5,)), (2, (5,)), (2, (4, 5)), (3, (3, 4, 5))], {(3, (3, 4, 5))})
)
def test_a_ragged_micro_batch_ends_its_step(accumulate, group, streams):
    lab, full = lab_of(accumulate), len(group) - 1
    feed, cursor = (lab.stack(group[0], full, accumulate, last=5), i32(0)) if streams else (lab.rows(), i32(group[0]))
    leaves, epoch, cursor, values = lab.jit["train_tail"](lab.leaves, lab.empty(), feed, cursor, i32(full))
    expected = NumpyDescent().steps(group)
    lab.check(leaves, expected, 1)
    lab.check_values(values, expected)
    lab.check_epoch(epoch, expected)
    assert cursor == (full + 1 if streams else 6)


@both_feeds
def test_a_single_step_has_no_loop(streams):
    lab = lab_of(1)
    feed, cursor = feeds(lab, streams, 2, 1)
    arguments = lab.leaves, lab.empty(), feed, cursor, i32(1)
    leaves, epoch, cursor, values = lab.jit["train_single"](*arguments)
    expected = NumpyDescent().steps((2,))
    lab.check(leaves, expected, 1)
    lab.check_values(values, expected)
    lab.check_epoch(epoch, expected)
    assert cursor == (1 if streams else 3)
    assert " while[" not in str(jax.make_jaxpr(lab.programs.train_single)(*arguments))
    assert " while[" in str(jax.make_jaxpr(lab.programs.train)(*arguments))


@both_feeds
@pytest.mark.parametrize("group", [(0,), (0, 1, 2), (4, 5)])
def test_micro_batches_are_accumulated_one_by_one(group, streams):
    lab = lab_of(3)
    acc, cursor, index, collected = lab.jit["begin"](lab.leaves), i32(group[0]), i32(0), []
    for i in group:
        feed, name = lab.rows(), "add_tail" if i == 5 else "add"
        if streams:
            feed, cursor, name = BatchBuffer(None, micro_batch(i)), i32(0), "add_tail"
        acc, cursor, index, rows = lab.jit[name](lab.leaves, acc, feed, cursor, index)
        collected.append(rows[0]["p"])
    leaves, epoch, values = lab.jit["finish"](lab.leaves, acc, lab.empty())
    expected = NumpyDescent().steps(group)
    lab.check(leaves, expected, 1)
    lab.check_values(values, expected)
    lab.check_epoch(epoch, expected)
    assert index == len(group)
    np.testing.assert_allclose(np.concatenate(collected), expected.predictions[0], rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_update_is_dispatched_like_a_step():
    """Gradient descent is written as an update, and runs in two loops and a ragged batch."""

    def update(state, batch, lr, rng):
        output, grads = jax.value_and_grad(lambda w: regression_step({"w": w}, batch).loss)(state["w"])
        result = regression_step(state, batch)
        return {"w": state["w"] - lr * grads}, dataclasses.replace(result, loss=output)

    builder = LearnerBuilder("unused").metrics(MeanAbsoluteError(), LearningRate())
    learner = builder.build({"w": jnp.asarray(START)}, None, RATE, update=update)
    lab = lab_of(1)
    state = learner.init()
    programs = Programs(learner.definition.step, jax.tree.structure(state))
    train, tail = jax.jit(programs.train), jax.jit(programs.train_tail)
    leaves, epoch = jax.tree.leaves(state), jax.jit(learner.definition.step.train_metrics.fresh)()
    leaves, epoch, cursor, _ = train(leaves, epoch, lab.rows(), i32(0), i32(2))
    leaves, epoch, cursor, values = train(leaves, epoch, lab.rows(), cursor, i32(3))
    leaves, epoch, cursor, last = tail(leaves, epoch, lab.rows(), cursor, i32(0))
    expected = NumpyDescent().steps((0,), (1,), (2,), (3,), (4,), (5,))
    state = programs.tree.unflatten(leaves)
    np.testing.assert_allclose(state.params["w"], expected.w, rtol=1e-5, atol=1e-6)
    assert (state.step, cursor) == (6, 6)
    names = learner.definition.step.train_metrics.step_names
    np.testing.assert_allclose(values.numbers[:3, names.index("Loss")], expected.losses[2:5], rtol=1e-5)
    np.testing.assert_allclose(last.numbers[0, names.index("Loss")], expected.losses[5], rtol=1e-5)
    assert last.weights.tolist() == [2]
    loss = learner.definition.step.train_metrics.totals(epoch)["Loss"]
    np.testing.assert_allclose(loss, np.average(expected.losses, weights=expected.weights), rtol=1e-5)


# -- validation --------------------------------------------------------------------------------------------------------


def evaluated(*groups: tuple[int, ...]) -> NumpyDescent:
    expected = NumpyDescent()
    for group in groups:
        expected.step(*group, update=False)
    return expected


@pytest.mark.full
@both_feeds
def test_validation_computes_the_metrics_of_each_batch(streams):
    lab = lab_of(3)  # accumulation does not affect validation
    names = lab.step.valid_metrics.step_names
    assert names == ("Mean Absolute Error", "Loss")
    feed, cursor = feeds(lab, streams, 0, 5)
    epoch, cursor, number, values = lab.jit["valid"](lab.leaves, lab.empty("valid"), feed, cursor, i32(0), i32(5))
    expected = evaluated((0,), (1,), (2,), (3,), (4,))
    np.testing.assert_allclose(values.numbers[:5], np.stack([expected.absolute, expected.losses], 1), rtol=1e-5)
    assert not values.numbers[5:].any()
    np.testing.assert_array_equal(values.weights[:5], [4] * 5)
    assert (cursor, number) == (5, 5)

    feed = lab.stack(5, 0, last=5) if streams else lab.rows()
    epoch, cursor, number, values = lab.jit["valid_tail"](lab.leaves, epoch, feed, cursor, number)
    expected.step(5, update=False)
    np.testing.assert_allclose(values.numbers[0], [expected.absolute[5], expected.losses[5]], rtol=1e-5)
    assert values.weights.tolist() == [2]
    assert (cursor, number) == (6, 6)
    over_all = lab.step.valid_metrics.totals(epoch)
    np.testing.assert_allclose(over_all["Loss"], np.average(expected.losses, weights=expected.weights), rtol=1e-5)


def test_validation_of_a_single_batch_has_no_loop():
    lab = lab_of(1)
    arguments = lab.leaves, lab.empty("valid"), lab.rows(), i32(3), i32(7)
    epoch, cursor, number, values = lab.jit["valid_single"](*arguments)
    np.testing.assert_allclose(values.numbers[0, 1], evaluated((3,)).losses[0], rtol=1e-5)
    assert (cursor, number) == (4, 8)
    np.testing.assert_allclose(lab.step.valid_metrics.totals(epoch)["Loss"], values.numbers[0, 1], rtol=1e-6)
    assert " while[" not in str(jax.make_jaxpr(lab.programs.valid_single)(*arguments))


def test_outputs_equal_those_of_the_valid_step():
    lab = lab_of(1)
    output = jax.jit(lab.programs.outputs)(lab.leaves, micro_batch(1), i32(1))
    np.testing.assert_allclose(output.predictions, evaluated((1,)).predictions[0], rtol=1e-5, atol=1e-6)


# -- collecting --------------------------------------------------------------------------------------------------------


@both_feeds
@accumulations
def test_loops_collect_the_rows_of_every_micro_batch(accumulate, streams):
    """The shape is `[steps, micro-batches, rows, ...]`; the rest of an incomplete group is unused."""
    lab = lab_of(accumulate)
    feed, cursor = feeds(lab, streams, 0, 5)
    *_, values = lab.jit["train"](lab.leaves, lab.empty(), feed, cursor, i32(5))
    collected = np.asarray(values.rows[0]["p"])
    assert collected.shape[1:] == (accumulate, SIZE, 2)
    expected = NumpyDescent().steps(*GROUPS[accumulate])
    for i, predictions in enumerate(expected.predictions):
        rows = collected[i].reshape(-1, 2)
        np.testing.assert_allclose(rows[: len(predictions)], predictions, rtol=1e-5, atol=1e-6)
    assert values.tail == ()


@pytest.mark.full
@both_feeds
@pytest.mark.parametrize(("accumulate", "group"), [(1, (5,)), (3, (4, 5)), (3, (5,))])
def test_tails_collect_full_and_ragged_micro_batches(accumulate, group, streams):
    lab, full = lab_of(accumulate), len(group) - 1
    feed, cursor = (lab.stack(group[0], full, accumulate, last=5), i32(0)) if streams else (lab.rows(), i32(group[0]))
    *_, values = lab.jit["train_tail"](lab.leaves, lab.empty(), feed, cursor, i32(full))
    (expected,) = NumpyDescent().steps(group).predictions
    if accumulate == 1:
        rows = np.asarray(values.rows[0]["p"]).reshape(-1, 2)
    else:
        full_rows = np.asarray(values.rows[0]["p"]).reshape(-1, 2)[: full * SIZE]
        rows = np.concatenate([full_rows, values.tail[0]["p"]])
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_validation_collects_every_batch():
    lab = lab_of(1)
    epoch, _, number, values = lab.jit["valid"](lab.leaves, lab.empty("valid"), lab.rows(), i32(1), i32(1), i32(3))
    collected = np.asarray(values.rows[0]["p"])
    assert collected.shape == (8, 1, SIZE, 2)
    expected = evaluated((1,), (2,), (3,)).predictions
    np.testing.assert_allclose(collected[:3, 0], expected, rtol=1e-5, atol=1e-6)
    *_, values = lab.jit["valid_tail"](lab.leaves, epoch, lab.rows(), i32(5), number)
    tail = np.asarray(values.rows[0]["p"]).reshape(-1, 2)
    np.testing.assert_allclose(tail, evaluated((5,)).predictions[0], rtol=1e-5, atol=1e-6)


# -- compilations ------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("accumulate", [1, 3])
def test_all_lengths_share_one_program_and_ragged_ends_another(accumulate):
    lab = Lab(accumulate)
    leaves, epoch, feed, zero = lab.leaves, lab.empty(), lab.rows(), i32(0)
    counts = [i32(count) for count in (1, 2, 5, 3, 4, 5)]
    with CompileTimes() as times:
        for count in counts:
            leaves, epoch, _, _ = lab.jit["train"](leaves, epoch, feed, zero, count)
    assert times.count == 1
    with CompileTimes() as times:
        for count in counts[: accumulate - 1] or [zero]:
            leaves, epoch, _, _ = lab.jit["train_tail"](leaves, epoch, feed, zero, count)
    assert times.count == 1


# -- convolutions ------------------------------------------------------------------------------------------------------


def convolve(x):
    return jax.lax.conv_general_dilated(x, jnp.ones((2, 1, 3)), (1,), "SAME")


IMAGE = jnp.ones((1, 1, 8))
SEEN = {
    "plain": convolve,
    "jit": jax.jit(convolve),
    "scan": lambda x: jax.lax.scan(lambda c, _: (convolve(c)[:, :1], None), x, None, 2)[0],
    "loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, c: convolve(c)[:, :1], x),
    "branch": lambda x: jax.lax.cond(x.sum() > 0, convolve, lambda x: jnp.zeros((1, 2, 8)), x),
    "checkpoint": jax.checkpoint(convolve),
    "vmap": jax.vmap(convolve),
    "gradient": jax.grad(lambda x: jax.jit(convolve)(x).sum()),
    "deep": jax.jit(lambda x: jax.lax.map(jax.checkpoint(jax.jit(convolve)), x)),
}


@pytest.mark.parametrize("name", SEEN)
def test_a_convolution_is_found_at_any_depth(name):
    x = IMAGE[None] if name in ("vmap", "deep") else IMAGE
    assert has_convolution(jax.make_jaxpr(SEEN[name])(x).jaxpr)


def test_other_programs_have_no_convolution():
    assert not has_convolution(
        jax.make_jaxpr(jax.jit(lambda x: jax.lax.map(jnp.tanh, x @ x.T)))(jnp.ones((3, 3))).jaxpr
    )
