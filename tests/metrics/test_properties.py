"""Tests of properties that hold for every public metric, and of values against other libraries."""

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
from scipy import stats
from sklearn import metrics as sklearn_metrics

import learner.metrics
from learner.metrics import (
    AUROC,
    MRR,
    NDCG,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    BinnedAUROC,
    BinnedAveragePrecision,
    BrierScore,
    CalibrationError,
    CohenKappa,
    CollectingMetric,
    ConfusionMatrix,
    ExplainedVariance,
    FBeta,
    FieldMean,
    GradientNorm,
    Hamming,
    HostMetric,
    Info,
    IterationSpeed,
    Jaccard,
    LearningRate,
    Loss,
    Matthews,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    Metric,
    MetricBase,
    PearsonCorrelation,
    Perplexity,
    Precision,
    QuantileLoss,
    Recall,
    RootMeanSquaredError,
    SpearmanCorrelation,
    Specificity,
    TopKAccuracy,
)
from learner.steps.outputs import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput
from tests.support import more_metrics

ROWS, LENGTH, CLASSES, VALUES = 105, 5, 7, 3  # 15 batches of 7: one shape, compiled once
Data = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """A metric, a kind of data, and a function that returns the expected value for the rows that count.

    Fractions are exact. Other values have a relative tolerance of 1e-6, and `signed` ones, which may be near 0, an
    absolute one too.
    """

    metric: Any
    kind: str
    expected: Callable[[np.ndarray, np.ndarray], float]
    exact: bool = False
    signed: bool = False

    def near(self, value: Any, expected: float, what: str = "") -> None:
        """Assert that the value is within the tolerance of the case."""
        rtol, atol = 0 if self.exact else 1e-6, 1e-6 if self.signed else 0
        np.testing.assert_allclose(value, np.float32(expected), rtol=rtol, atol=atol, err_msg=what)

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


def in_rows(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the relevant classes and the scores of the rows that have a relevant one, without equal scores: the
    smaller class comes first.
    """
    relevant = targets.astype(float) if logits.shape == targets.shape else one_hot(targets)
    kept = relevant.any(-1)
    return relevant[kept], logits[kept].astype(np.float64) - 1e-12 * np.arange(CLASSES)


def ndcg_at_3(logits: np.ndarray, targets: np.ndarray) -> float:
    return sklearn_metrics.ndcg_score(*in_rows(logits, targets), k=3)


def mrr(logits: np.ndarray, targets: np.ndarray) -> float:
    relevant, logits = in_rows(logits, targets)
    best = np.where(relevant == 1, logits, -np.inf).max(-1, keepdims=True)
    return np.mean(1 / (1 + (logits > best).sum(-1)))


def squared(predictions: np.ndarray, targets: np.ndarray) -> float:
    return sklearn_metrics.mean_squared_error(targets.astype(np.float64), predictions.astype(np.float64))


def absolute(predictions: np.ndarray, targets: np.ndarray) -> float:
    return sklearn_metrics.mean_absolute_error(targets.astype(np.float64), predictions.astype(np.float64))


def perplexity(logits: np.ndarray, targets: np.ndarray) -> float:
    return float(np.exp(cross_entropy(logits, targets)))


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits.astype(np.float64)))


def by_label(score: Callable[..., Any], **arguments: Any) -> Callable[[np.ndarray, np.ndarray], float]:
    """Return an expected value from a scikit-learn function of labels and predicted classes."""

    def expected(logits: np.ndarray, targets: np.ndarray) -> float:
        predicted = (logits > 0).astype(int) if logits.shape == targets.shape else logits.argmax(-1)
        return score(targets.astype(int), predicted, **arguments)

    return expected


def by_class(score: Callable[..., Any], average: str = "macro", **arguments: Any) -> Any:
    """Return an expected value from a scikit-learn function with an average over classes."""
    return by_label(score, labels=range(CLASSES), average=average, zero_division=np.nan, **arguments)


def one_hot(targets: np.ndarray) -> np.ndarray:
    return np.eye(CLASSES)[targets.astype(int)]


def specificity(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the recall of all other classes."""
    others, predicted = 1 - one_hot(targets), 1 - one_hot(logits.argmax(-1))
    return sklearn_metrics.recall_score(others, predicted, average="macro")


def without_zero_division(score: Callable[..., Any]) -> Any:
    return by_label(score, labels=range(CLASSES), average="macro")


def brier(logits: np.ndarray, targets: np.ndarray) -> float:
    return np.square(softmax(logits) - one_hot(targets)).sum(-1).mean()


def brier_of_labels(logits: np.ndarray, targets: np.ndarray) -> float:
    return sklearn_metrics.mean_squared_error(targets, sigmoid(logits))


def calibration(logits: np.ndarray, targets: np.ndarray) -> float:
    """Return the calibration error, bin by bin as in the paper."""
    probabilities, right = softmax(logits).max(-1), logits.argmax(-1) == targets
    gaps = []
    for low in np.arange(15) / 15:
        inside = (probabilities > low) & (probabilities <= low + 1 / 15)
        gaps.append(abs(right[inside].sum() - probabilities[inside].sum()))
    return sum(gaps) / len(targets)


def binned(score: Callable[..., Any]) -> Any:
    """Return an expected value from probabilities rounded up to 50 bins."""

    def expected(logits: np.ndarray, targets: np.ndarray) -> float:
        return score(one_hot(targets), np.ceil(softmax(logits) * 50), average="macro")

    return expected


def one_against_the_rest(score: Callable[..., Any], average: str = "macro") -> Any:
    def expected(logits: np.ndarray, targets: np.ndarray) -> float:
        several = logits.shape == targets.shape
        present, probabilities = (targets, logits) if several else (one_hot(targets), softmax(logits))
        return score(present, probabilities, average=average)

    return expected


def exactly(score: Callable[..., Any], **arguments: Any) -> Any:
    """Return an expected value from a scikit-learn function of targets and predictions in float64."""

    def expected(predictions: np.ndarray, targets: np.ndarray) -> float:
        return score(targets.astype(np.float64), predictions.astype(np.float64), **arguments)

    return expected


def each_output(score: Callable[..., Any]) -> Any:
    """Return the mean over outputs of a SciPy function of one output."""

    def expected(predictions: np.ndarray, targets: np.ndarray) -> float:
        columns = zip(*(x.astype(np.float64).reshape(len(x), -1).T for x in (predictions, targets)), strict=True)
        return np.mean([score(p, t).statistic for p, t in columns])

    return expected


FIRST = [
    Case(Loss(), "classes", cross_entropy),
    Case(Loss(), "tokens", cross_entropy),
    Case(Loss(), "number", squared),
    Case(Loss(), "numbers", squared),
    Case(FieldMean("loss"), "classes", cross_entropy),
    Case(FieldMean("predictions"), "number", lambda predictions, targets: predictions.mean(dtype=float), signed=True),
    Case(FieldMean("predictions"), "numbers", lambda predictions, targets: predictions.mean(dtype=float), signed=True),
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
MORE = [
    Case(Precision(CLASSES), "tokens", by_class(sklearn_metrics.precision_score)),
    Case(
        Precision(CLASSES, average="micro"), "classes", by_class(sklearn_metrics.precision_score, "micro"), exact=True
    ),
    Case(Precision(CLASSES, average="weighted"), "labels", by_class(sklearn_metrics.precision_score, "weighted")),
    Case(Recall(CLASSES, average="weighted"), "tokens", by_class(sklearn_metrics.recall_score, "weighted")),
    Case(Recall(CLASSES), "labels", by_class(sklearn_metrics.recall_score)),
    Case(BalancedAccuracy(CLASSES), "tokens", by_label(sklearn_metrics.balanced_accuracy_score)),
    Case(FBeta(CLASSES), "tokens", by_class(sklearn_metrics.f1_score)),
    Case(FBeta(CLASSES, beta=2), "classes", by_class(sklearn_metrics.fbeta_score, beta=2)),
    Case(FBeta(CLASSES, average="micro"), "labels", by_class(sklearn_metrics.f1_score, "micro")),
    Case(Specificity(CLASSES), "tokens", specificity),
    Case(Jaccard(CLASSES), "tokens", without_zero_division(sklearn_metrics.jaccard_score)),
    Case(Jaccard(CLASSES), "labels", without_zero_division(sklearn_metrics.jaccard_score)),
    Case(Matthews(CLASSES), "tokens", by_label(sklearn_metrics.matthews_corrcoef), signed=True),
    Case(CohenKappa(CLASSES), "classes", by_label(sklearn_metrics.cohen_kappa_score), signed=True),
    Case(
        CohenKappa(CLASSES, weights="quadratic"),
        "tokens",
        by_label(sklearn_metrics.cohen_kappa_score, weights="quadratic"),
        signed=True,
    ),
    Case(Hamming(), "tokens", by_label(sklearn_metrics.hamming_loss), exact=True),
    Case(Hamming(), "labels", by_label(sklearn_metrics.hamming_loss), exact=True),
    Case(NDCG(3), "tokens", ndcg_at_3),
    Case(NDCG(3), "labels", ndcg_at_3),
    Case(MRR(), "tokens", mrr),
    Case(MRR(), "labels", mrr),
    Case(BrierScore(), "tokens", brier),
    Case(BrierScore(), "labels", brier_of_labels),
    Case(CalibrationError(), "tokens", calibration),
    Case(BinnedAUROC(CLASSES, bins=50), "tokens", binned(sklearn_metrics.roc_auc_score)),
    Case(BinnedAveragePrecision(CLASSES, bins=50), "tokens", binned(sklearn_metrics.average_precision_score)),
    Case(RootMeanSquaredError(), "numbers", lambda p, t: np.sqrt(squared(p, t))),
    Case(MeanAbsolutePercentageError(), "numbers", exactly(sklearn_metrics.mean_absolute_percentage_error)),
    Case(QuantileLoss(0.9), "numbers", exactly(sklearn_metrics.mean_pinball_loss, alpha=0.9)),
    Case(R2(), "number", exactly(sklearn_metrics.r2_score), signed=True),
    Case(R2(VALUES), "numbers", exactly(sklearn_metrics.r2_score), signed=True),
    Case(
        ExplainedVariance(VALUES, average="variance"),
        "numbers",
        exactly(sklearn_metrics.explained_variance_score, multioutput="variance_weighted"),
        signed=True,
    ),
    Case(PearsonCorrelation(VALUES), "numbers", each_output(stats.pearsonr), signed=True),
]
BY_ROWS = FIRST + MORE
COLLECTED = [
    Case(AUROC(), "tokens", one_against_the_rest(sklearn_metrics.roc_auc_score)),
    Case(AUROC(average="weighted"), "classes", one_against_the_rest(sklearn_metrics.roc_auc_score, "weighted")),
    Case(AUROC(average="micro"), "labels", one_against_the_rest(sklearn_metrics.roc_auc_score, "micro")),
    Case(AveragePrecision(), "tokens", one_against_the_rest(sklearn_metrics.average_precision_score)),
    Case(AveragePrecision(), "labels", one_against_the_rest(sklearn_metrics.average_precision_score)),
    Case(SpearmanCorrelation(VALUES), "numbers", each_output(stats.spearmanr)),
    Case(SpearmanCorrelation(), "number", each_output(stats.spearmanr)),
]
TOGETHER = [
    case.metric
    for case in MORE
    if case.kind in ("labels", "numbers") or type(case.metric) in (Precision, Matthews, CalibrationError, BinnedAUROC)
]
"""Metrics of MORE that one program measures: all of labels and numbers (-m full), and one of each kind of state."""
TABLES = [ConfusionMatrix(CLASSES), Precision(CLASSES, average="none")]
BY_STEPS = [LearningRate(), GradientNorm()]
ON_HOST = [IterationSpeed()]
PAIRWISE = [case for case in BY_ROWS if case.kind in ("tokens", "numbers")]
TRACED = [case.metric for case in PAIRWISE] + BY_STEPS
ALL: list[MetricBase] = [*TRACED, *(case.metric for case in COLLECTED), *TABLES, *ON_HOST]
FURTHER: list[Any] = [case.metric for case in (*more_metrics.CASES, *more_metrics.COLLECTED)]


def one_of_each_class(metrics: list[Any]) -> list[Any]:
    """Return one metric of each class as parameters; all but one of each kind of state are marked as full."""
    first = {type(metric): metric for metric in reversed(metrics)}
    marks = lambda m: () if type(m) in (Loss, Accuracy, LearningRate) else pytest.mark.full  # noqa: E731
    return [pytest.param(m, id=m.name, marks=marks(m)) for m in metrics if first[type(m)] is m]


def first_cases(cases: list[Case]) -> list[Any]:
    """Return the cases as parameters; those of MORE are marked as full."""
    return [pytest.param(case, id=str(case), marks=pytest.mark.full if case in MORE else ()) for case in cases]


EACH_BY_ROWS, EACH_TRACED = one_of_each_class([case.metric for case in PAIRWISE]), one_of_each_class(TRACED)


def with_and_without_mask(case: Case) -> list[Any]:
    """Return a case with and without a mask; by default tokens have a mask, and numbers of several outputs none."""
    usual = case.kind == "tokens"
    return [
        pytest.param(
            case,
            masked,
            id=f"{case}-{masking}",
            marks=()
            if masked == usual and case.kind in ("tokens", "numbers") and case not in MORE
            else pytest.mark.full,
        )
        for masked, masking in ((False, "all"), (True, "masked"))
    ]


KINDS_AND_MASKS = [param for case in BY_ROWS for param in with_and_without_mask(case)]


def make_data(kind: str, masked: bool) -> Data:
    """Return a whole split. Masked rows have NaN scores and labels outside of the classes."""
    rng = np.random.default_rng(3)
    shape = {"tokens": (ROWS, LENGTH), "numbers": (ROWS, VALUES)}.get(kind, (ROWS,))
    mask = rng.random(shape if kind == "tokens" else (ROWS,)) < (0.6 if masked else 2)
    if kind == "labels":
        scores, targets = rng.normal(size=(ROWS, CLASSES)).astype(np.float32), rng.integers(0, 2, (ROWS, CLASSES))
        targets = targets.astype(np.int32)
    elif kind in ("classes", "tokens"):
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
    if kind == "labels":
        return MultiLabelOutput.from_logits(scores, targets, mask)
    return RegressionOutput.from_predictions(scores, targets, mask)


def make_info(step: Any, weight: Any = 1.0) -> Info:
    """Return the info of a step; learning rates are 1, 1/2, 1/4, ..., and norms 3, 4, 5, ..."""
    step, weight = jnp.asarray(step, jnp.int32), jnp.asarray(weight, jnp.float32)
    real = step.astype(jnp.float32)
    return Info(step, weight, jnp.exp2(-real), real + 3.0)


def cut(data: Data, size: int) -> list[Data]:
    return [{k: v[i : i + size] for k, v in data.items()} for i in range(0, ROWS, size)]


@functools.partial(jax.jit, static_argnums=(0, 1))
def batch_state(metric: Metric, kind: str, data: Data, step: Any = 0) -> Any:
    """Return the state of one batch, computed by a compiled program."""
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
    """Return the value of one batch from a single program, as for a step: XLA knows the constants."""
    return metric.compute(batch_state(metric, kind, data))


def epoch_state(metric: Metric, kind: str, batches: list[Data]) -> Any:
    state = metric.init()
    for step, batch in enumerate(batches):
        state = merged(metric, state, batch_state(metric, kind, batch, np.int32(step)))
    return state


@functools.cache
def epoch_programs(kind: str, more: bool) -> tuple[Any, Any, Any]:
    """Return the initial states of all metrics of a kind by the index of the case, the program that adds a batch and
    returns its values too, and the program that computes the values of an epoch.
    """
    metrics = {i: case.metric for i, case in enumerate(BY_ROWS) if case.kind == kind and (case in MORE) == more}

    def compute(states: Any) -> Any:
        return {i: metric.compute(states[i]) for i, metric in metrics.items()}

    def add(states: Any, data: Data) -> Any:
        new = {i: batch_state(metric, kind, data) for i, metric in metrics.items()}
        return {i: metric.merge(states[i], new[i]) for i, metric in metrics.items()}, compute(new)

    return {i: metric.init() for i, metric in metrics.items()}, jax.jit(add), jax.jit(compute)


@functools.cache
def epoch_values(kind: str, masked: bool, size: int, more: bool) -> dict[str, dict[int, Any]]:
    """Return the values of an epoch in batches of `size`, by the index of the case.

    With the whole split in one batch, the values computed by the program that adds the batch are returned as "step":
    there XLA knows the number of rows.
    """
    states, add, compute = epoch_programs(kind, more)
    for batch in cut(make_data(kind, masked), size):
        states, values = add(states, batch)
    return {"epoch": compute(states)} | ({"step": values} if size == ROWS else {})


def collected(metric: CollectingMetric, kind: str, batches: list[Data]) -> Any:
    """Return the collected rows of all batches."""
    names = ("predictions", "targets", "mask") if kind.startswith("number") else ("logits", "targets", "mask")
    values = [(*(batch[k] for k in ("scores", "targets")), batch.get("mask")) for batch in batches]
    rows = [metric.collect(types.SimpleNamespace(**dict(zip(names, value, strict=True)))) for value in values]
    return {name: np.concatenate([np.asarray(row[name]) for row in rows]) for name in rows[0]}


def states(metric: Metric, count: int = 4) -> list[Any]:
    """Return states of different rows."""
    batches = cut(make_data(kind_of(metric), masked=True), 20)[:count]
    return [batch_state(metric, kind_of(metric), batch, np.int32(step)) for step, batch in enumerate(batches)]


def kind_of(metric: Metric) -> str:
    return "numbers" if "predictions" in metric.fields else "tokens"


def kept(data: Data) -> tuple[np.ndarray, np.ndarray]:
    rows = data["targets"].shape[: max(1, data["scores"].ndim - 1)]
    keep = data["mask"].astype(bool) if "mask" in data else np.ones(rows, bool)
    return data["scores"][keep], data["targets"][keep]


def layout(tree: Any) -> Any:
    """Return structure, shapes and dtypes, and assert that no type is weak."""
    avals = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), jax.eval_shape(lambda: tree))
    assert not any(weak for *_, weak in jax.tree.leaves(avals, is_leaf=lambda x: isinstance(x, tuple)))
    return avals


def atol(metric: Metric) -> float:
    """Return the absolute tolerance, which is 0 unless values may be near 0."""
    return 1e-6 if any(case.signed for case in BY_ROWS if case.metric is metric) else 0


def assert_same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_every_metric_is_tested() -> None:
    exported = [getattr(learner.metrics, name) for name in learner.metrics.__all__]
    metrics = {x for x in exported if inspect.isclass(x) and issubclass(x, MetricBase) and not inspect.isabstract(x)}
    assert metrics - {MetricBase} == {type(metric) for metric in ALL} | more_metrics.TYPES
    assert {type(case.metric) for case in BY_ROWS} == {type(case.metric) for case in PAIRWISE}


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "masked"), KINDS_AND_MASKS)
def test_values_for_every_batch_size(case: Case, masked: bool) -> None:
    data = make_data(case.kind, masked)
    expected = case.expected(*kept(data))
    for size in (1, 8, ROWS):  # 13 batches of 8, and one of 1
        for program, values in epoch_values(case.kind, masked, size, case in MORE).items():
            value = values[BY_ROWS.index(case)]
            assert value.dtype == np.float32
            case.near(value, expected, f"{program}, {size} rows")


@functools.cache
def values_in_batches_of_7(kind: str) -> dict[int, Any]:
    """Return the values of more metrics over a masked split in batches of 7, merged forwards and backwards by one
    program.
    """
    metrics = {i: case.metric for i, case in enumerate(MORE) if case.kind == kind and case.metric in TOGETHER}
    data = make_data(kind, masked=True)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": "0"})  # compiled in half the time
    def run(batches: Data) -> Any:
        states = jax.vmap(lambda data: {i: batch_state(metric, kind, data) for i, metric in metrics.items()})(batches)

        def merge(a: Any, b: Any) -> Any:
            return {i: metric.merge(a[i], b[i]) for i, metric in metrics.items()}

        def compute(state: Any) -> Any:
            return {i: metric.compute(state[i]) for i, metric in metrics.items()}

        def add(both: Any, ends: Any) -> Any:
            return (merge(both[0], ends[0]), merge(ends[1], both[1])), None

        start = {i: metric.init() for i, metric in metrics.items()}
        ends = states, jax.tree.map(lambda x: x[::-1], states)
        both = jax.lax.scan(add, (start, start), ends)[0]
        return jax.lax.map(compute, jax.tree.map(lambda *x: jnp.stack(x), *both))

    return run({k: v.reshape(-1, 7, *v.shape[1:]) for k, v in data.items()})


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=() if case.kind in ("classes", "tokens") else pytest.mark.full)
        for case in MORE
        if case.metric in TOGETHER
    ],
)
def test_values_in_any_order_of_batches(case: Case) -> None:
    expected = case.expected(*kept(make_data(case.kind, masked=True)))
    for order, value in zip(
        ("forwards", "backwards"), values_in_batches_of_7(case.kind)[MORE.index(case)], strict=True
    ):
        assert value.dtype == np.float32
        case.near(value, expected, order)


@pytest.mark.parametrize("case", COLLECTED, ids=str)
def test_values_of_collected_rows(case: Case) -> None:
    data = make_data(case.kind, masked=True)
    expected = case.expected(*kept(data))
    case.near(case.metric.compute(collected(case.metric, case.kind, cut(data, 60))), expected)


@pytest.mark.full
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", COLLECTED, ids=str)
def test_values_of_collected_rows_for_every_batch_size(case: Case, masked: bool) -> None:
    data = make_data(case.kind, masked)
    expected = case.expected(*kept(data))
    for size in (1, 7, ROWS):
        case.near(case.metric.compute(collected(case.metric, case.kind, cut(data, size))), expected, f"{size} rows")


@pytest.mark.parametrize("case", COLLECTED, ids=str)
def test_value_of_masked_collected_rows_is_nan(case: Case) -> None:
    data = make_data(case.kind, masked=True)
    data["scores"][:], data["mask"][:] = np.nan, 0
    assert np.isnan(case.metric.compute(collected(case.metric, case.kind, [data])))


@pytest.mark.parametrize("case", COLLECTED, ids=str)
def test_nan_in_collected_rows_makes_the_value_nan(case: Case) -> None:
    data = make_data(case.kind, masked=False)
    data["scores"][0] = np.nan
    assert np.isnan(case.metric.compute(collected(case.metric, case.kind, [data])))


@pytest.mark.parametrize("case", first_cases(PAIRWISE))
def test_bfloat16_is_computed_in_float32(case: Case) -> None:
    data = make_data(case.kind, masked=True)
    data["scores"] = data["scores"].astype(jnp.bfloat16)
    if case.kind == "numbers":
        data["targets"] = data["targets"].astype(jnp.bfloat16)
    value = step_value(case.metric, case.kind, data)
    scores, targets = kept(data)
    if isinstance(case.metric, TopKAccuracy):
        # Among equal scores scikit-learn ranks the last class first, and learner the first: reverse the classes.
        scores, targets = scores[:, ::-1], CLASSES - 1 - targets
    expected = case.expected(scores.astype(np.float32), targets if case.exact else targets.astype(np.float32))
    case.near(value, expected)


@pytest.mark.parametrize("metric", EACH_TRACED)
def test_value_without_rows_is_nan(metric: Metric) -> None:
    assert np.isnan(value_of(metric, metric.init()))
    assert np.isnan(value_of(metric, merged(metric, metric.init(), metric.init())))


@pytest.mark.parametrize("metric", EACH_BY_ROWS)
def test_masked_batch_does_not_count(metric: Metric) -> None:
    data = cut(make_data(kind_of(metric), masked=True), 20)[0]
    data["scores"][:], data["mask"][:] = np.nan, 0
    state = batch_state(metric, kind_of(metric), data)
    assert np.isnan(value_of(metric, state))
    before = states(metric)[0]
    assert_same(merged(metric, before, state), before)


@pytest.mark.parametrize("metric", EACH_BY_ROWS)
def test_nan_makes_the_value_nan_or_wrong(metric: Metric) -> None:
    data = cut(make_data(kind_of(metric), masked=False), 20)[0]
    data["scores"][:] = np.nan
    value = step_value(metric, kind_of(metric), data)
    if isinstance(metric, Accuracy | TopKAccuracy | Hamming):
        assert value == (0 if metric.higher_is_better else 1)
    else:
        assert np.isnan(value)


# -- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", EACH_TRACED)
def test_states_keep_their_layout(metric: Metric) -> None:
    start = metric.init()
    one = states(metric)[0]
    assert layout(start) == layout(one) == layout(merged(metric, start, one)) == layout(merged(metric, one, one))
    assert layout(value_of(metric, one)) == ((), jnp.dtype("float32"), False)


@pytest.mark.parametrize("metric", EACH_TRACED)
def test_merge_is_associative_and_commutative(metric: Metric) -> None:
    a, b, c, d = states(metric)
    merge, value = functools.partial(merged, metric), functools.partial(value_of, metric)
    expected = value(merge(merge(merge(a, b), c), d))
    orders = [merge(a, merge(b, merge(c, d))), merge(merge(a, b), merge(c, d)), merge(merge(d, b), merge(c, a))]
    np.testing.assert_allclose([value(order) for order in orders], expected, rtol=3e-7, atol=atol(metric))
    assert value(a) != expected


@pytest.mark.parametrize("metric", EACH_TRACED)
def test_init_is_the_identity_of_merge(metric: Metric) -> None:
    state = states(metric)[1]
    assert_same(merged(metric, state, metric.init()), state)
    assert_same(merged(metric, metric.init(), state), state)


@pytest.mark.parametrize("metric", EACH_TRACED)
def test_update_equals_merge(metric: Metric) -> None:
    """Micro-batches of a step update one state, and batches of an epoch are merged; both give the same value."""
    kind = kind_of(metric)
    batches = cut(make_data(kind, masked=True), 20)[:2]

    @jax.jit
    def step_of_two(batches: list[Data]) -> Any:
        state = metric.init()
        for step, batch in enumerate(batches):
            output = None if metric.per_step else make_output(kind, batch)
            state = metric.update(state, output, make_info(step, 1.0 if output is None else output.weight))
        return metric.compute(state)

    expected = value_of(metric, epoch_state(metric, kind, batches))
    np.testing.assert_allclose(step_of_two(batches), expected, rtol=3e-7, atol=atol(metric))


@pytest.mark.parametrize("metric", EACH_TRACED)
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
        np.testing.assert_allclose(
            value, value_of(metric, epoch_state(metric, kind, batches[:count])), rtol=3e-7, atol=atol(metric)
        )


@pytest.mark.parametrize("metric", EACH_TRACED)
def test_under_vmap(metric: Metric) -> None:
    kind = kind_of(metric)
    batches = cut(make_data(kind, masked=True), 20)[:3]
    stacked = {k: np.stack([batch[k] for batch in batches]) for k in batches[0]}

    def one(data: Data, step: Any) -> Any:
        return value_of(metric, merged(metric, metric.init(), batch_state(metric, kind, data, step)))

    alone = [one(batch, np.int32(step)) for step, batch in enumerate(batches)]
    np.testing.assert_allclose(
        jax.jit(jax.vmap(one))(stacked, np.arange(3, dtype=np.int32)), alone, rtol=3e-7, atol=atol(metric)
    )


# -- descriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", EACH_BY_ROWS)
def test_fields_are_read(metric: Metric) -> None:
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


@pytest.mark.parametrize(
    "metric", [*ALL, *FURTHER, *more_metrics.ON_STEPS, *more_metrics.ON_HOST], ids=lambda m: m.name
)
def test_name_unit_direction_and_description_are_set(metric: Any) -> None:
    kind = metric if isinstance(metric, type) else type(metric)
    own = {name for cls in kind.__mro__ if cls.__module__ != "learner.metrics.base" for name in vars(cls)}
    assert {"unit", "higher_is_better", "description"} <= own
    assert metric.name == metric.name.strip() != ""
    assert metric.name.isprintable()
    assert not set(metric.name) & set('/\\:*?"<>|')
    assert not metric.name.startswith(".")
    assert metric.description.isprintable()
    assert metric.description
    assert metric.numeric == (metric not in TABLES)
    assert set(metric.splits) <= {"train", "valid"}
    assert issubclass(kind, HostMetric | Metric | CollectingMetric)
    assert metric is kind or not metric.numeric or metric.text(0.25) == "0.25"


def test_names_are_unique() -> None:
    instances = [
        *{case.metric for case in BY_ROWS + COLLECTED if case.kind in ("tokens", "numbers")} - {BY_ROWS[3].metric},
        *(Accuracy(ignore_label=label) for label in (0, 1, -1, -100)),
        *(TopKAccuracy(k, label) for k in (1, 2, 5) for label in (None, 0, -1)),
        *(FBeta(9, beta, average) for beta in (0.5, 2) for average in ("macro", "micro", "binary", "none")[:2]),
        *(Recall(9, threshold=t, top_k=k) for t, k in ((0.25, None), (0.5, None), (None, 1), (None, 2))),
        *(CohenKappa(9, weights) for weights in ("none", "linear")),
        *(CalibrationError(bins, norm, -1) for bins in (15, 20) for norm in ("expected", "max")),
        *(R2(average=average) for average in ("uniform", "variance")[1:]),
        *(AUROC(average, ignore_label=-1) for average in ("macro", "none")),
        *(BinnedAUROC(9, bins, average) for bins in (10, 20) for average in ("macro", "none")),
        *(QuantileLoss(q) for q in (0.1, 0.5)),
        *BY_STEPS,
        *ON_HOST,
    ]
    names = [metric.name for metric in instances]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    usual = {"Loss", "Accuracy", "Top-5 Accuracy", "Precision", "F1", "AUROC", "R2", "Learning Rate", "F0.5 (micro)"}
    assert usual <= set(names)


def test_directions() -> None:
    better = {metric.name: metric.higher_is_better for metric in [*ALL, *FURTHER]}
    assert {name for name, higher in better.items() if higher is None} == {
        "Learning Rate",
        "Gradient Norm",
        "Confusion Matrix",
        "predictions",
    }
    assert {name for name, higher in better.items() if higher is False} == {
        "Loss",
        "Perplexity",
        "Hamming Loss",
        "Brier Score",
        "Calibration Error",
        "Mean Absolute Error",
        "Mean Squared Error",
        "Root Mean Squared Error",
        "Mean Absolute Percentage Error",
        "Quantile Loss 0.9",
        "Word Error Rate ending at 3",
        "Character Error Rate",
    }
