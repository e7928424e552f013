"""Every metric that the package exports, and what has to hold for all of them."""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

import learner.metrics
from learner.metrics import (
    Accuracy,
    GradientNorm,
    HostMetric,
    Info,
    IterationSpeed,
    LearningRate,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
    Metric,
    MetricBase,
    Perplexity,
    TopKAccuracy,
)
from learner.steps.outputs import ClassificationOutput, RegressionOutput, SequenceOutput

ROWS, LENGTH, CLASSES, VALUES = 101, 5, 7, 3
Data = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A metric on one kind of data, and its value over kept rows by other means. Counts are exact, means nearly."""

    metric: Metric
    kind: str
    expected: Callable[[np.ndarray, np.ndarray], float]
    exact: bool = False

    def __str__(self) -> str:
        return f"{self.metric.name}-{self.kind}"


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> float:
    logits = logits.astype(np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return sklearn_metrics.log_loss(targets, probabilities, labels=range(CLASSES))


def accuracy(logits: np.ndarray, targets: np.ndarray) -> float:
    return sklearn_metrics.accuracy_score(targets, logits.argmax(-1))


def accuracy_without_2(logits: np.ndarray, targets: np.ndarray) -> float:
    return accuracy(logits[targets != 2], targets[targets != 2])


def top_3(logits: np.ndarray, targets: np.ndarray) -> float:
    return sklearn_metrics.top_k_accuracy_score(targets, logits, k=3, labels=range(CLASSES))


def squared(predictions: np.ndarray, targets: np.ndarray) -> float:
    return sklearn_metrics.mean_squared_error(targets.astype(np.float64), predictions.astype(np.float64))


def absolute(predictions: np.ndarray, targets: np.ndarray) -> float:
    return sklearn_metrics.mean_absolute_error(targets.astype(np.float64), predictions.astype(np.float64))


def perplexity(logits: np.ndarray, targets: np.ndarray) -> float:
    return float(np.exp(cross_entropy(logits, targets)))


BY_ROWS = [
    Case(Loss(), "classes", cross_entropy),
    Case(Loss(), "tokens", cross_entropy),
    Case(Loss(), "number", squared),
    Case(Loss(), "numbers", squared),
    Case(Perplexity(), "classes", perplexity),
    Case(Perplexity(), "tokens", perplexity),
    Case(Accuracy(), "classes", accuracy, exact=True),
    Case(Accuracy(), "tokens", accuracy, exact=True),
    Case(Accuracy(ignore_label=2), "classes", accuracy_without_2, exact=True),
    Case(Accuracy(ignore_label=2), "tokens", accuracy_without_2, exact=True),
    Case(TopKAccuracy(3), "classes", top_3, exact=True),
    Case(TopKAccuracy(3), "tokens", top_3, exact=True),
    Case(MeanAbsoluteError(), "number", absolute),
    Case(MeanAbsoluteError(), "numbers", absolute),
    Case(MeanSquaredError(), "number", squared),
    Case(MeanSquaredError(), "numbers", squared),
]
BY_STEPS = [LearningRate(), GradientNorm()]
ON_HOST = [IterationSpeed()]
PAIRWISE = [case for case in BY_ROWS if case.kind in ("tokens", "numbers")]
TRACED = [case.metric for case in PAIRWISE] + BY_STEPS
ALL: list[MetricBase] = [*TRACED, *ON_HOST]


def with_and_without_mask(case: Case) -> list[Any]:
    """By default each kind of data is tested one way, and each metric both ways."""
    usual = case.kind in ("tokens", "number")
    return [
        pytest.param(case, masked, id=f"{case}-{how}", marks=() if masked == usual else pytest.mark.full)
        for masked, how in ((False, "all"), (True, "masked"))
    ]


KINDS_AND_MASKS = [param for case in BY_ROWS for param in with_and_without_mask(case)]


def make_data(kind: str, masked: bool) -> Data:
    """The whole split. What is masked is NaN, and has labels that no model knows."""
    rng = np.random.default_rng(3)
    shape = {"classes": (ROWS,), "tokens": (ROWS, LENGTH), "number": (ROWS,), "numbers": (ROWS, VALUES)}[kind]
    mask = rng.random(shape if kind == "tokens" else (ROWS,)) < (0.6 if masked else 2)
    if kind in ("classes", "tokens"):
        scores = rng.normal(size=(*shape, CLASSES)).astype(np.float32)
        targets = rng.integers(0, CLASSES, shape).astype(np.int32)
    else:
        scores, targets = rng.normal(size=(2, *shape)).astype(np.float32)
    scores[~mask], targets[~mask] = np.nan, -100
    return {"scores": scores, "targets": targets} | ({"mask": mask.astype(np.int32)} if masked else {})


def make_output(kind: str, data: Data) -> Any:
    scores, targets = jnp.asarray(data["scores"]), jnp.asarray(data["targets"])
    mask = jnp.asarray(data["mask"]) if "mask" in data else None
    if kind == "classes":
        return ClassificationOutput.from_logits(scores, targets, mask)
    if kind == "tokens":
        return SequenceOutput.from_logits(scores, targets, mask)
    return RegressionOutput.from_predictions(scores, targets, mask)


def make_info(step: Any, weight: Any = 1.0) -> Info:
    """The rates and norms of steps 0, 1, 2, ... are 1, 1/2, 1/4, ... and 3, 4, 5, ..."""
    step, weight = jnp.asarray(step, jnp.int32), jnp.asarray(weight, jnp.float32)
    real = step.astype(jnp.float32)
    return Info(step, weight, jnp.exp2(-real), real + 3.0)


def cut(data: Data, size: int) -> list[Data]:
    return [{k: v[i : i + size] for k, v in data.items()} for i in range(0, ROWS, size)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def batch_state(metric: Metric, kind: str, data: Data, step: Any = 0) -> Any:
    """The state of one batch, made as a program makes it."""
    if metric.per_step:
        return metric.update(metric.init(), None, make_info(step))
    output = make_output(kind, data)
    return metric.update(metric.init(), output, make_info(step, output.weight))


@functools.partial(jax.jit, static_argnums=0)
def merged(metric: Metric, a: Any, b: Any) -> Any:
    return metric.merge(a, b)


@functools.partial(jax.jit, static_argnums=0)
def value_of(metric: Metric, state: Any) -> Any:
    return metric.compute(state)


@functools.partial(jax.jit, static_argnums=(0, 1))
def step_value(metric: Metric, kind: str, data: Data) -> Any:
    """Updated and computed in one program, as steps are: XLA sees what is constant."""
    return metric.compute(batch_state(metric, kind, data))


def epoch_state(metric: Metric, kind: str, batches: list[Data]) -> Any:
    state = metric.init()
    for step, batch in enumerate(batches):
        state = merged(metric, state, batch_state(metric, kind, batch, np.int32(step)))
    return state


@functools.cache
def epoch_values(kind: str, masked: bool, size: int) -> dict[str, dict[int, Any]]:
    """The values of an epoch in batches of `size`, by the index of the case: all metrics of a kind in one program.

    Of the whole split in one batch also the value that is computed in the program itself, as that of a step is: there
    XLA sees what is constant.
    """
    metrics = {i: case.metric for i, case in enumerate(BY_ROWS) if case.kind == kind}

    def compute(states: Any) -> Any:
        return {i: metric.compute(states[i]) for i, metric in metrics.items()}

    @jax.jit
    def add(states: Any, data: Data) -> Any:
        new = {i: batch_state(metric, kind, data) for i, metric in metrics.items()}
        return {i: metric.merge(states[i], new[i]) for i, metric in metrics.items()}, compute(new)

    states = {i: metric.init() for i, metric in metrics.items()}
    for batch in cut(make_data(kind, masked), size):
        states, values = add(states, batch)
    return {"epoch": jax.jit(compute)(states)} | ({"step": values} if size == ROWS else {})


def states(metric: Metric, count: int = 4) -> list[Any]:
    """States of different rows."""
    batches = cut(make_data(kind_of(metric), masked=True), 20)[:count]
    return [batch_state(metric, kind_of(metric), batch, np.int32(step)) for step, batch in enumerate(batches)]


def kind_of(metric: Metric) -> str:
    return "numbers" if "predictions" in metric.fields else "tokens"


def kept(data: Data) -> tuple[np.ndarray, np.ndarray]:
    keep = data["mask"].astype(bool) if "mask" in data else np.ones(data["targets"].shape, bool)
    return data["scores"][keep], data["targets"][keep]


def layout(tree: Any) -> Any:
    """Structure, shapes, dtypes, and that no type is weak."""
    avals = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), jax.eval_shape(lambda: tree))
    assert not any(weak for *_, weak in jax.tree.leaves(avals, is_leaf=lambda x: isinstance(x, tuple)))
    return avals


def assert_same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_no_metric_is_left_out() -> None:
    exported = [getattr(learner.metrics, name) for name in learner.metrics.__all__]
    metrics = {x for x in exported if inspect.isclass(x) and issubclass(x, MetricBase) and not inspect.isabstract(x)}
    assert metrics - {MetricBase} == {type(metric) for metric in ALL}
    assert {type(case.metric) for case in BY_ROWS} == {type(case.metric) for case in PAIRWISE}


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "masked"), KINDS_AND_MASKS)
def test_epoch_is_right_and_the_same_for_every_batch_size(case: Case, masked: bool) -> None:
    data = make_data(case.kind, masked)
    expected = np.float32(case.expected(*kept(data)))
    for size in (1, 7, ROWS):
        for how, values in epoch_values(case.kind, masked, size).items():
            value = values[BY_ROWS.index(case)]
            assert value.dtype == np.float32
            np.testing.assert_allclose(value, expected, rtol=0 if case.exact else 1e-6, err_msg=f"{how}, {size} rows")


@pytest.mark.parametrize("case", PAIRWISE, ids=str)
def test_bfloat16_is_computed_in_float32(case: Case) -> None:
    data = make_data(case.kind, masked=True)
    data["scores"] = data["scores"].astype(jnp.bfloat16)
    if case.kind == "numbers":
        data["targets"] = data["targets"].astype(jnp.bfloat16)
    value = step_value(case.metric, case.kind, data)
    scores, targets = kept(data)
    if isinstance(case.metric, TopKAccuracy):
        # Among equal scores scikit-learn takes the last class and we the first: so give it the classes in reverse.
        scores, targets = scores[:, ::-1], CLASSES - 1 - targets
    expected = case.expected(scores.astype(np.float32), targets if case.exact else targets.astype(np.float32))
    np.testing.assert_allclose(value, np.float32(expected), rtol=0 if case.exact else 1e-6)


@pytest.mark.parametrize("metric", TRACED, ids=lambda m: m.name)
def test_no_rows_are_nan(metric: Metric) -> None:
    assert np.isnan(value_of(metric, metric.init()))
    assert np.isnan(value_of(metric, merged(metric, metric.init(), metric.init())))


@pytest.mark.parametrize("metric", [case.metric for case in PAIRWISE], ids=lambda m: m.name)
def test_a_batch_that_is_all_masked_counts_nothing(metric: Metric) -> None:
    data = cut(make_data(kind_of(metric), masked=True), 20)[0]
    data["scores"][:], data["mask"][:] = np.nan, 0
    state = batch_state(metric, kind_of(metric), data)
    assert np.isnan(value_of(metric, state))
    before = states(metric)[0]
    assert_same(merged(metric, before, state), before)


@pytest.mark.parametrize("metric", [case.metric for case in PAIRWISE], ids=lambda m: m.name)
def test_nan_that_counts_is_seen(metric: Metric) -> None:
    data = make_data(kind_of(metric), masked=False)
    data["scores"][:] = np.nan
    value = step_value(metric, kind_of(metric), data)
    assert value == 0 if metric.higher_is_better else np.isnan(value)


# -- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", TRACED, ids=lambda m: m.name)
def test_states_keep_their_layout(metric: Metric) -> None:
    start = metric.init()
    one = batch_state(metric, kind_of(metric), make_data(kind_of(metric), masked=False))
    assert layout(start) == layout(one) == layout(merged(metric, start, one)) == layout(merged(metric, one, one))
    assert layout(value_of(metric, one)) == ((), jnp.dtype("float32"), False)


@pytest.mark.parametrize("metric", TRACED, ids=lambda m: m.name)
def test_merge_is_associative_and_commutative(metric: Metric) -> None:
    a, b, c, d = states(metric)
    merge, value = functools.partial(merged, metric), functools.partial(value_of, metric)
    expected = value(merge(merge(merge(a, b), c), d))
    orders = [merge(a, merge(b, merge(c, d))), merge(merge(a, b), merge(c, d)), merge(merge(d, b), merge(c, a))]
    np.testing.assert_allclose([value(order) for order in orders], expected, rtol=3e-7)
    assert value(a) != expected


@pytest.mark.parametrize("metric", TRACED, ids=lambda m: m.name)
def test_init_is_the_identity_of_merge(metric: Metric) -> None:
    state = states(metric)[1]
    assert_same(merged(metric, state, metric.init()), state)
    assert_same(merged(metric, metric.init(), state), state)


@pytest.mark.parametrize("metric", TRACED, ids=lambda m: m.name)
def test_updating_is_merging(metric: Metric) -> None:
    """A step's micro-batches update one state; an epoch's batches are merged."""
    kind = kind_of(metric)
    batches = cut(make_data(kind, masked=True), 60)

    @jax.jit
    def step_of_two(batches: list[Data]) -> Any:
        state = metric.init()
        for step, batch in enumerate(batches):
            output = None if metric.per_step else make_output(kind, batch)
            state = metric.update(state, output, make_info(step, 1.0 if output is None else output.weight))
        return metric.compute(state)

    expected = value_of(metric, epoch_state(metric, kind, batches))
    np.testing.assert_allclose(step_of_two(batches), expected, rtol=3e-7)


@pytest.mark.parametrize("metric", TRACED, ids=lambda m: m.name)
def test_inside_a_loop_with_a_traced_count(metric: Metric) -> None:
    kind = kind_of(metric)
    batches = cut(make_data(kind, masked=True), 20)[:4]
    stacked = {k: np.stack([batch[k] for batch in batches]) for k in batches[0]}

    @jax.jit
    def loop(stacked: Data, count: Any) -> Any:
        def body(i: Any, state: Any) -> Any:
            batch = {k: jax.lax.dynamic_index_in_dim(v, i, keepdims=False) for k, v in stacked.items()}
            return metric.merge(state, batch_state(metric, kind, batch, i))

        return jax.lax.fori_loop(0, count, body, metric.init())

    for count in (0, 3):
        value = value_of(metric, loop(stacked, np.int32(count)))
        np.testing.assert_allclose(value, value_of(metric, epoch_state(metric, kind, batches[:count])), rtol=3e-7)


@pytest.mark.parametrize("metric", TRACED, ids=lambda m: m.name)
def test_under_vmap(metric: Metric) -> None:
    kind = kind_of(metric)
    batches = cut(make_data(kind, masked=True), 20)[:3]
    stacked = {k: np.stack([batch[k] for batch in batches]) for k in batches[0]}

    def one(data: Data, step: Any) -> Any:
        return value_of(metric, merged(metric, metric.init(), batch_state(metric, kind, data, step)))

    alone = [one(batch, np.int32(step)) for step, batch in enumerate(batches)]
    np.testing.assert_allclose(jax.jit(jax.vmap(one))(stacked, np.arange(3, dtype=np.int32)), alone, rtol=3e-7)


# -- what is said of them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [case.metric for case in PAIRWISE], ids=lambda m: m.name)
def test_fields_are_those_that_are_read(metric: Metric) -> None:
    kind = kind_of(metric)
    output = jax.eval_shape(functools.partial(make_output, kind), make_data(kind, masked=False))
    info = jax.eval_shape(make_info, 0, 1.0)
    only = {name: getattr(output, name) for name in metric.fields}

    def update(fields: dict[str, Any], info: Info) -> Any:
        return metric.update(metric.init(), types.SimpleNamespace(**fields), info)

    assert jax.tree.structure(jax.eval_shape(update, only, info)) == jax.tree.structure(metric.init())
    for name in only:
        with pytest.raises(AttributeError, match=name):
            jax.eval_shape(update, {k: v for k, v in only.items() if k != name}, info)


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
def test_name_unit_direction_and_description_are_set(metric: MetricBase) -> None:
    own = {name for cls in type(metric).__mro__ if cls.__module__ != "learner.metrics.base" for name in vars(cls)}
    assert {"unit", "higher_is_better", "description"} <= own
    assert metric.name == metric.name.strip()
    assert metric.name.isprintable()
    assert not set(metric.name) & set('/\\:*?"<>|.')
    assert metric.description.isprintable()
    assert metric.description
    assert metric.numeric
    assert set(metric.splits) <= {"train", "valid"}
    assert isinstance(metric, HostMetric | Metric)
    assert metric.text(0.25) == "0.25"


def test_names_are_unique_per_parameter_set() -> None:
    instances = [
        *(case.metric for case in BY_ROWS if case.kind == "tokens"),
        *(Accuracy(ignore_label=label) for label in (0, 1, -1, -100)),
        *(TopKAccuracy(k, label) for k in (1, 2, 5) for label in (None, 0, -1)),
        MeanAbsoluteError(),
        MeanSquaredError(),
        *BY_STEPS,
        *ON_HOST,
    ]
    names = [metric.name for metric in instances]
    assert len(set(names)) == len(names)
    assert {"Loss", "Accuracy", "Top-5 Accuracy", "Mean Absolute Error", "Learning Rate", "Iteration Speed"} <= set(
        names
    )


def test_directions() -> None:
    better = {metric.name: metric.higher_is_better for metric in ALL}
    assert {name for name, higher in better.items() if higher} >= {"Accuracy", "Top-3 Accuracy", "Iteration Speed"}
    assert {name for name, higher in better.items() if higher is None} == {"Learning Rate", "Gradient Norm"}
    assert {name for name, higher in better.items() if higher is False} == {
        "Loss",
        "Perplexity",
        "Mean Absolute Error",
        "Mean Squared Error",
    }
