"""Tests of `MetricCollection`: updating, merging and computing the metrics of a split inside a program."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.metrics import (
    R2,
    Accuracy,
    CollectingMetric,
    ExplainedVariance,
    FBeta,
    GradientNorm,
    HostMetric,
    Info,
    IterationSpeed,
    LearningRate,
    Loss,
    Metric,
    Precision,
    Recall,
)
from learner.steps.measure import MetricCollection
from learner.steps.outputs import ClassificationOutput
from learner.training.programs.compilation import CompileTimes


class Largest(Metric):
    """A metric with Python numbers as its first state, and with a merge that is not a sum."""

    name = "Largest"
    fields = ("logits",)

    def init(self):
        return {"largest": -np.inf, "seen": 0}

    def update(self, state, output, info):
        return {"largest": jnp.maximum(state["largest"], output.logits.max()), "seen": state["seen"] + 1}

    def merge(self, a, b):
        return {"largest": jnp.maximum(a["largest"], b["largest"]), "seen": a["seen"] + b["seen"]}

    def compute(self, state):
        return state["largest"]


class Flag(Metric):
    """A metric whose state would be weakly typed."""

    name = "Flag"

    def init(self):
        return 0.0

    def update(self, state, output, info):
        return jnp.where(info.weight > 0, 1.0, 2.0)

    def merge(self, a, b):
        return jnp.where(a > b, 1.0, 2.0)

    def compute(self, state):
        return state


class PerClass(Metric):
    """A metric whose value is an array."""

    name, numeric = "Per Class", False

    def init(self):
        return jnp.zeros(3, jnp.int32)

    def update(self, state, output, info):
        return state + (output.targets[:, None] == jnp.arange(3)[None]).sum(0)

    def merge(self, a, b):
        return a + b

    def compute(self, state):
        return state


class Labels(CollectingMetric):
    name = "Labels"

    def collect(self, output):
        return {"targets": output.targets, "best": output.logits.argmax(-1)}

    def compute(self, rows):
        return float(rows["targets"].sum())


METRICS = [
    Loss(),
    LearningRate(),
    PerClass(),
    Labels(),
    IterationSpeed(),
    Largest(),
    GradientNorm(),
    Accuracy(),
    Flag(),
]
MEASURE = MetricCollection.of(METRICS)
OUTPUTS = [
    ClassificationOutput.from_logits(jnp.array([[2.0, 0.0, 1.0], [0.0, 5.0, 0.0]]), jnp.array([0, 2])),
    ClassificationOutput.from_logits(jnp.array([[0.0, 1.0, 0.0]]), jnp.array([1])),
]


def info(step, weight, norm=None):
    return Info(jnp.int32(step), jnp.float32(weight), jnp.float32(0.5 - 0.1 * step), norm)


def after(batches, step=0):
    """Return the state after a step over some of `OUTPUTS`."""
    state = MEASURE.init()
    for batch in batches:
        state = MEASURE.update(state, OUTPUTS[batch], info(step, 2 - batch))
    return MEASURE.update_step(state, info(step, sum(2 - b for b in batches), jnp.float32(3.0 + step)))


def test_the_collection_contains_metrics_of_the_device():
    assert [m.name for m in MEASURE.metrics] == [
        "Loss",
        "Learning Rate",
        "Per Class",
        "Largest",
        "Gradient Norm",
        "Accuracy",
        "Flag",
    ]
    assert [m.name for m in MEASURE.collecting] == ["Labels"]
    assert not any(isinstance(m, HostMetric) for m in MEASURE.metrics)


@pytest.mark.full
def test_step_names_exclude_non_numeric_metrics():
    assert MEASURE.step_names == ("Loss", "Learning Rate", "Largest", "Gradient Norm", "Accuracy", "Flag")
    assert MEASURE.step_values(after([0])).shape == (6,)


@pytest.mark.full
def test_step_values():
    values = dict(zip(MEASURE.step_names, MEASURE.step_values(after([0, 1])).tolist(), strict=True))
    one = np.log(np.exp(2.0) + 1 + np.exp(1.0)) - 2
    two = np.log(2 + np.exp(5.0))
    three = np.log(2 + np.exp(1.0)) - 1
    np.testing.assert_allclose(values["Loss"], (one + two + three) / 3, rtol=1e-6)
    np.testing.assert_allclose(values["Accuracy"], 2 / 3, rtol=1e-6)
    assert values["Largest"] == 5.0
    assert values["Learning Rate"] == 0.5
    assert values["Gradient Norm"] == 3.0


def test_per_step_metrics_are_updated_once_per_step():
    state = MEASURE.init()
    for batch in (0, 1):
        state = MEASURE.update(state, OUTPUTS[batch], info(7, 1))
    values = MEASURE.values(state)
    assert np.isnan(values["Learning Rate"])
    assert np.isnan(values["Gradient Norm"])
    before = MEASURE.values(after([0]))
    assert before["Loss"] == MEASURE.values(MEASURE.update_step(after([0]), info(1, 2, jnp.float32(9))))["Loss"]


def test_merged_states_cover_all_steps():
    values = MEASURE.values(MEASURE.merge(after([0], step=0), after([1], step=1)))
    both = MEASURE.values(after([0, 1]))
    for name in ("Loss", "Accuracy", "Largest"):
        np.testing.assert_allclose(values[name], both[name], rtol=1e-6)
    np.testing.assert_array_equal(values["Per Class"], [1, 1, 1])
    np.testing.assert_allclose(values["Learning Rate"], 0.4, rtol=1e-6)  # the last rate
    assert values["Gradient Norm"] == 3.5  # the mean norm
    empty = MEASURE.values(MEASURE.merge(MEASURE.init(), after([0])))
    assert empty["Accuracy"] == 0.5


class Fading(Metric):
    """A metric that merges with a factor, which is a constant of the program or an array."""

    fields = ("logits",)

    def __init__(self, name, keep):
        self.name, self._keep = name, keep

    def init(self):
        return jnp.float32(0.0)

    def update(self, state, output, info):
        return output.logits.sum() / 3

    def merge(self, a, b):
        return a * self._keep + b

    def compute(self, state):
        return state


@pytest.mark.full
def test_metrics_with_equal_merges_are_merged_together_with_the_same_bits():
    metrics = [Accuracy(), Fading("A", 0.5), Loss(), PerClass(), Fading("B", 0.25), Accuracy(), GradientNorm()]
    metrics += [Fading("C", 0.5), Fading("D", jnp.float32(0.5)), Fading("E", jnp.float32(0.125)), GradientNorm()]
    measure = MetricCollection.of(metrics)
    assert sorted(measure._mergeable_groups) == [(0, 5), (1, 7), (2, 6, 10), (3,), (4,), (8,), (9,)]

    def states(batch):
        step_info = info(batch, 2, jnp.float32(1 / 3 + batch))
        return tuple(metric.update(metric.init(), OUTPUTS[batch], step_info) for metric in metrics)

    @jax.jit
    def together(states):
        epoch = measure.fresh()
        for state in states:
            epoch = measure.add(epoch, state)
        return measure._unpack(epoch)

    batch_states = [states(batch) for batch in (0, 1, 0, 0)]
    for number, metric in enumerate(metrics):
        alone = metric.init()
        for state in batch_states:
            alone = jax.jit(metric.merge)(alone, state[number])
        merged = together(batch_states)[number]
        assert jax.tree.structure(merged) == jax.tree.structure(alone)
        for x, y in zip(jax.tree.leaves(merged), jax.tree.leaves(alone), strict=True):
            assert (np.asarray(x).tobytes(), x.dtype) == (np.asarray(y).tobytes(), jnp.asarray(y).dtype)


class Constant(Metric):
    """A metric without a state."""

    name = "Constant"

    def __init__(self, name):
        self.name = name

    def init(self):
        return ()

    def update(self, state, output, info):
        return state

    def merge(self, a, b):
        return a

    def compute(self, state):
        return jnp.float32(3)


def test_metrics_without_a_state():
    measure = MetricCollection.of([Constant("A"), Loss(), Constant("B")])
    epoch = jax.jit(lambda: measure.add(measure.fresh(), measure.init()))()
    assert measure.totals(epoch)["B"] == 3


def test_states_of_other_dtypes_are_merged_separately():
    class Seen(Metric):
        fields = ("logits",)

        def __init__(self, name, dtype):
            self.name, self.dtype = name, dtype

        def init(self):
            return jnp.zeros((), self.dtype)

        def update(self, state, output, info):
            return jnp.ones((), self.dtype)

        def merge(self, a, b):
            return jnp.maximum(a, b)

        def compute(self, state):
            return state.astype(jnp.float32)

    kinds = ("bool", "bfloat16", "int8", "float32")
    measure = MetricCollection.of([Seen(f"{kind} {i}", kind) for kind in kinds for i in (1, 2)])
    state = measure.update(measure.init(), OUTPUTS[0], info(0, 2))
    totals = measure.totals(measure.add(measure.fresh(), state))
    assert [float(value) for value in totals.values()] == [1.0] * 8


def test_values_without_batches():
    values = MEASURE.values(MEASURE.init())
    assert np.isnan(values["Loss"])
    assert np.isnan(values["Accuracy"])
    np.testing.assert_array_equal(values["Per Class"], [0, 0, 0])


def test_collected_rows():
    (rows,) = MEASURE.collect(OUTPUTS[0])
    np.testing.assert_array_equal(rows["targets"], [0, 2])
    np.testing.assert_array_equal(rows["best"], [0, 1])


def test_an_empty_collection():
    nothing = MetricCollection.of([])
    assert nothing.init() == ()
    assert nothing.step_values(()).shape == (0,)
    assert nothing.values(()) == {}
    assert nothing.collect(OUTPUTS[0]) == ()
    assert nothing.merge((), ()) == ()


def test_states_are_strongly_typed():
    """A weak type would compile another program at the next dispatch."""
    weak = lambda tree: [x.weak_type for x in jax.tree.leaves(jax.eval_shape(lambda: tree()))]  # noqa: E731
    for make in (MEASURE.init, lambda: after([0, 1]), lambda: MEASURE.merge(after([0]), after([1]))):
        assert not any(weak(make))
    step = jax.jit(lambda state, output: MEASURE.merge(state, MEASURE.update(MEASURE.init(), output, info(0, 1))))
    state = jax.jit(MEASURE.init)()
    with CompileTimes() as times:
        for _ in range(3):
            state = step(state, OUTPUTS[0])
    assert times.count == 1


def test_collections_are_compared_by_value():
    """Collections are static arguments of programs, so equal metrics must be equal collections."""
    assert MetricCollection.of(METRICS) == MEASURE
    assert dataclasses.replace(MEASURE, collecting=()) != MEASURE


class Count(Metric):
    """A metric that counts rows, and the traces of its update."""

    def __init__(self, name, key, factor=1):
        self.name, self.key, self.factor, self.traced = name, key, factor, []

    @property
    def state_key(self):
        return self.key

    def init(self):
        return jnp.uint32(0)

    def update(self, state, output, info):
        self.traced.append(self.name)
        return state + jnp.uint32(len(output.logits))

    def merge(self, a, b):
        return a + b

    def compute(self, state):
        return state.astype(jnp.float32) * self.factor


class DoubleCount(Count):
    """A metric with the same key as `Count`, but another update."""

    def update(self, state, output, info):
        return super().update(state, output, info) + jnp.uint32(len(output.logits))


def test_metrics_with_equal_keys_share_one_state():
    metrics = [Count("one", "a"), Loss(), Count("ten", "a", 10), Count("other", "b"), DoubleCount("twice", "a")]
    metrics += [Count("own", None), Count("own too", None)]
    measure = MetricCollection.of(metrics)
    rows = len(OUTPUTS[0].logits)
    state = measure.update(measure.init(), OUTPUTS[0], info(0, rows))
    assert [len(metric.traced) for metric in metrics if isinstance(metric, Count)] == [1, 0, 1, 1, 1, 1]
    totals = measure.totals(measure.add(measure.add(measure.fresh(), state), state))
    counts = {name: float(value) for name, value in totals.items() if name != "Loss"}
    expected = {"one": 2, "ten": 20, "other": 2, "twice": 4, "own": 2, "own too": 2}
    assert counts == {name: times * rows for name, times in expected.items()}


def test_states_from_before_sharing_are_converted():
    metrics = [Count("one", "a"), Largest(), Count("ten", "a", 10), Count("other", "b")]
    measure = MetricCollection.of(metrics)
    separate = dataclasses.replace(measure, separate=True)
    of_each = separate.add(separate.fresh(), separate.update(separate.init(), OUTPUTS[0], info(0, 2)))
    shared = measure.add(measure.fresh(), measure.update(measure.init(), OUTPUTS[0], info(0, 2)))
    jax.tree.map(np.testing.assert_array_equal, measure.share(of_each), shared)


@pytest.mark.full
def test_subclasses_with_other_attributes_do_not_share_a_state():
    class OfGroup(Precision):
        def __init__(self, group):
            super().__init__(2)
            self.group, self.name = group, f"Group {group}"

        def update(self, state, output, info):
            return super().update(state, dataclasses.replace(output, mask=output.mask == self.group), info)

    class Scaled(R2):
        def __init__(self, factor):
            super().__init__()
            self.factor, self.name = factor, f"Scaled {factor}"

        def second(self, predictions, targets):
            return self.factor * super().second(predictions, targets)

    logits, labels = jnp.eye(2)[jnp.array([0, 1, 0, 1])], jnp.array([0, 1, 1, 0])
    output = ClassificationOutput(jnp.float32(1), logits, labels, jnp.float32(4), jnp.array([0, 0, 1, 1]))
    measure = MetricCollection.of([OfGroup(0), OfGroup(1)])
    values = measure.values(measure.update(measure.init(), output, info(0, 4)))
    assert {name: float(value) for name, value in values.items()} == {"Group 0": 1.0, "Group 1": 0.0}
    assert len(MetricCollection.of([Scaled(1), Scaled(2)]).stateful) == 2
    assert len(MetricCollection.of([Precision(2), FBeta(2), Recall(2), R2(), ExplainedVariance()]).stateful) == 2


def test_values_use_the_metric_at_the_time_of_the_collection():
    metric, values = Count("one", "a"), []
    for metric.factor in (1, 10):
        measure = MetricCollection.of([metric])
        values.append(float(measure.step_values((jnp.uint32(3),))[0]))
    assert values == [3.0, 30.0]


def test_metrics_need_not_be_hashable():
    @dataclasses.dataclass(frozen=True)
    class Weighted(Constant):
        weights: list[int]

    measure = MetricCollection.of([Weighted([1, 2])])
    assert float(measure.values(measure.init())["Constant"]) == 3
