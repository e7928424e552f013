"""Tests of Subset, By and Aggregate."""

import dataclasses
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from scipy import stats
from sklearn import metrics as sklearn_metrics

from learner import LearnerBuilder
from learner.data import ArrayDataset
from learner.errors import LearnerError
from learner.metrics import (
    AUROC,
    Accuracy,
    Adapted,
    Aggregate,
    AveragePrecision,
    By,
    CollectingMetric,
    ExactMatch,
    GradientNorm,
    Head,
    Info,
    IoUPerClass,
    IterationSpeed,
    LearningRate,
    Loss,
    MeanAbsoluteError,
    MeanSquaredError,
    ParameterNorm,
    Perplexity,
    SpearmanCorrelation,
    Subset,
    TokenAccuracy,
    UpdateRatio,
)
from learner.training.reporting.row_collector import RowCollector
from tests.support.codes import raises_code
from tests.support.more_metrics import value_of


def output(**fields):
    return types.SimpleNamespace(**{"mask": None} | {name: jnp.asarray(x) for name, x in fields.items()})


ROWS = output(predictions=[1.0, 2.0, 3.0, 4.0], targets=[1.0, 1.0, 1.0, 1.0], group=[0, 1, 1, 7])


def value(metric, *outputs):
    return value_of(metric, *outputs)


def test_rows_of_a_group():
    metric = Subset(MeanAbsoluteError(), "group", 1, "dogs")
    assert (metric.name, metric.higher_is_better) == ("Mean Absolute Error of dogs", False)
    assert metric.fields == ("predictions", "targets", "group")
    assert value(metric, ROWS) == 1.5
    assert value(metric, ROWS, output(predictions=[9.0], targets=[0.0], group=[1])) == 4.0
    assert np.isnan(value(Subset(MeanAbsoluteError(), "group", 5), ROWS))
    assert Subset(MeanAbsoluteError(), "group", 5).name == "Mean Absolute Error of group 5"
    assert "group = 5" in Subset(MeanAbsoluteError(), "group", 5).undefined


def test_masked_rows_do_not_count():
    rows = output(predictions=[1.0, 2.0, np.nan], targets=[1.0, 1.0, 1.0], group=[1, 1, 1], mask=[1, 1, 0])
    assert value(Subset(MeanAbsoluteError(), "group", 1), rows) == 0.5


@pytest.mark.full
def test_tokens_of_a_group():
    tokens = {"predictions": [[1, 2, 3], [4, 5, 6]], "targets": [[1, 2, 0], [0, 5, 0]]}
    rows = output(**tokens, group=[1, 0])
    assert value(Subset(TokenAccuracy(), "group", 1), rows) == pytest.approx(2 / 3)
    masked = output(**tokens, group=[1, 0], mask=[[1, 1, 0], [1, 1, 1]])
    assert value(Subset(ExactMatch(), "group", 1), masked) == 1
    assert value(Subset(ExactMatch(), "group", 0), masked) == 0
    by_token = output(**tokens, group=[[1, 0, 1], [0, 1, 1]], mask=[1, 1])
    assert value(Subset(TokenAccuracy(), "group", 1), by_token) == 0.5
    assert (
        value(Subset(TokenAccuracy(), "group", 1), output(**tokens, group=[[1, 0, 1], [0, 1, 1]], mask=[1, 0])) == 0.5
    )


def test_a_table():
    metric = By(MeanAbsoluteError(), "group", {0: "cats", 1: "dogs", 2: "owls"})
    assert (metric.name, metric.numeric) == ("Mean Absolute Error by group", False)
    assert metric.text(value(metric, ROWS)) == "cats 0, dogs 1.5, owls nan"
    assert By(MeanAbsoluteError(), "group", ["cats", "dogs"]).text(jnp.array([1.0, 2.5])) == "cats 1, dogs 2.5"


@pytest.mark.full
def test_groups_equal_selected_rows():
    rng = np.random.default_rng(2)
    logits, targets, group = rng.normal(size=(60, 5)).astype(np.float32), rng.integers(0, 5, 60), rng.integers(0, 3, 60)
    parts = [slice(0, 1), slice(1, 8), slice(8, 60)]
    outputs = [
        output(logits=logits[p], targets=targets[p].astype(np.int32), group=group[p].astype(np.int32)) for p in parts
    ]
    actual = value(By(Accuracy(), "group", ["a", "b", "c"]), *outputs)
    best = logits.argmax(-1)
    expected = [sklearn_metrics.accuracy_score(targets[group == g], best[group == g]) for g in range(3)]
    np.testing.assert_array_equal(actual, np.float32(expected))


def adapted(**arguments):
    return Adapted(nnx.metrics.Accuracy(), name="Theirs", logits="logits", labels="targets", **arguments)


@pytest.mark.full
def test_numbers_of_groups():
    """Groups may be given as texts, as from a config, as NumPy integers, or as booleans."""
    assert value(Subset(MeanAbsoluteError(), "group", np.int64(1)), ROWS) == 1.5
    kinds = output(predictions=[1.0, 4.0], targets=[1.0, 1.0], kind=[0, 7])
    as_text = By(MeanAbsoluteError(), "kind", {"0": "cats", "-1": "none", "7": "owls"})
    assert as_text.text(value(as_text, kinds)) == "cats 0, none nan, owls 3"
    flags = output(predictions=[1.0, 4.0], targets=[1.0, 1.0], group=[False, True])
    assert value(Subset(MeanAbsoluteError(), "group", True), flags) == 3
    assert Subset(MeanAbsoluteError(), "group", True).name == "Mean Absolute Error of group True"


@pytest.mark.parametrize("number", ["cats", 1.5, None, "1.0", 2**31])
def test_wrong_numbers_of_groups(number):
    expected = ("metric-subset-value", "group", "Accuracy")
    with raises_code(*expected):
        Subset(Accuracy(), "group", number)
    with raises_code("metric-group-names"):
        By(Accuracy(), "group", {number: "cats"})


@pytest.mark.parametrize("names", [3, {"cats": 0}, {0: "a", "0": "b"}, {0: ["a"]}, [["a"]], {"a"}, [1, 2], []], ids=str)
def test_wrong_names_of_groups(names):
    with raises_code("metric-group-names", "{0", "'cats'", "1", "'dogs'"):
        By(Accuracy(), "group", names)


def test_groups_of_a_metric_of_another_package():
    rows = output(logits=np.eye(4, dtype=np.float32), targets=[0, 1, 0, 3], group=[0, 0, 1, 1])
    metric = By(adapted(mask="mask"), "group", ["cats", "dogs"])
    assert metric.text(value(metric, rows)) == "cats 1, dogs 0.5"


# -- of rows that are collected ----------------------------------------------------------------------------------------


def collected_value(metric, *outputs):
    """Return the value over the collected rows of several outputs."""
    parts = [jax.jit(lambda fields: metric.collect(types.SimpleNamespace(**fields)))(dict(vars(o))) for o in outputs]
    return metric.compute(jax.tree.map(lambda *xs: np.concatenate(xs), *parts))


def make_columns(seed=3, rows=120):
    rng = np.random.default_rng(seed)
    columns = {"logits": rng.normal(size=rows), "targets": rng.integers(0, 2, rows), "group": rng.integers(0, 3, rows)}
    columns["mask"] = rng.integers(0, 2, rows)
    return {name: x.astype(np.float32 if name == "logits" else np.int32) for name, x in columns.items()}


def auroc_of(columns, group):
    is_in_group = (columns["group"] == group) & (columns["mask"] == 1)
    return sklearn_metrics.roc_auc_score(columns["targets"][is_in_group], columns["logits"][is_in_group])


def test_ranks_within_each_group():
    columns = make_columns()
    outputs = [output(**{name: x[part] for name, x in columns.items()}) for part in (slice(0, 7), slice(7, 120))]
    by = By(AUROC("binary", classes=1), "group", {0: "cats", 2: "dogs", 9: "owls"})
    assert (by.name, by.numeric, by.fields) == ("AUROC (binary) by group", False, ("logits", "targets", "group"))
    expected = [auroc_of(columns, group) for group in (0, 2)]
    np.testing.assert_allclose(collected_value(by, *outputs), [*expected, np.nan], rtol=1e-6)
    assert by.text(np.array([0.5, np.nan])[[0, 1, 1]]) == "cats 0.5, dogs nan, owls nan"
    subset = Subset(AUROC("binary", classes=1), "group", 2, "dogs")
    assert (subset.name, subset.numeric, subset.higher_is_better) == ("AUROC (binary) of dogs", True, True)
    assert collected_value(subset, *outputs) == pytest.approx(expected[1], rel=1e-6)
    nobody = Subset(AUROC("binary", classes=1), "group", 9)
    assert np.isnan(collected_value(nobody, *outputs))
    assert "group = 9" in nobody.undefined


def test_table_of_a_group_without_rows():
    columns = make_columns()
    table = Subset(AUROC("none", classes=["cat", "dog"]), "group", 9)
    assert table.text(
        collected_value(table, output(**columns | {"logits": np.eye(2, dtype=np.float32)[columns["targets"]]}))
    )


@pytest.mark.full
def test_ranks_of_groups_in_a_run(tmp_path):
    """Groups and scores of a row stay together in any order of rows."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Scores:
        loss: jax.Array
        logits: jax.Array
        targets: jax.Array
        group: jax.Array
        mask: jax.Array
        weight: jax.Array

    def step(model, batch):
        logits, rows = batch["logits"] * model["w"], jnp.float32(len(batch["mask"]))
        return Scores(jnp.mean(logits), logits, batch["targets"], batch["group"], batch["mask"], rows)

    columns = make_columns()
    builder = LearnerBuilder(tmp_path / "run").renderer(None).num_epochs(1).with_batch_size(8)
    builder.metrics(
        By(AUROC("binary", classes=1), "group", ["a", "b", "c"]), Subset(AUROC("binary", classes=1), "group", 1, "b")
    )
    learner = builder.build({"w": jnp.float32(1)}, optax.sgd, 0.0, train_step=step, valid_step=step)
    data = ArrayDataset(columns)
    history = learner.fit(data, data).history
    expected = [auroc_of(columns, group) for group in range(3)]
    for split in ("train", "valid"):
        assert history[f"{split}/AUROC (binary) of b"] == [pytest.approx(expected[1], rel=1e-6)]
        written = history[f"{split}/AUROC (binary) by group"][0].replace(",", "").split()
        assert written[::2] == ["a", "b", "c"]
        np.testing.assert_allclose([float(x) for x in written[1::2]], expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: Subset(Loss(), "group", 0), "metric-group-whole-batch", ("Subset", "Loss")),
        (lambda: By(GradientNorm(), "group", ["a"]), "metric-group-whole-batch", ("By", "Gradient Norm")),
        (lambda: By(AUROC("none"), "group", ["a"]), "metric-group-not-a-number", ("AUROC",)),
        (lambda: Subset(AUROC(), "group", "cats"), "metric-subset-value", ("cats", "group", "AUROC")),
        (
            lambda: collected_value(
                Subset(AUROC(), "group", 0), output(**make_columns() | {"group": np.zeros((120, 2), np.int32)})
            ),
            "metric-group-type",
            ("group", "int32[120, 2]"),
        ),
        (
            lambda: collected_value(
                Subset(AUROC(), "group", 0), output(**make_columns() | {"group": np.zeros(6, np.int32)})
            ),
            "metric-group-shape",
            ("group", "(6,)", "AUROC"),
        ),
        (lambda: Subset(IterationSpeed(), "group", 0), "metric-type", ("Subset",)),
        (lambda: By(IoUPerClass(2), "group", ["a"]), "metric-group-not-a-number", ("IoU",)),
        (lambda: By(adapted(), "group", ["a"]), "metric-group-mask-unread", ("By", "Theirs")),
        (
            lambda: Subset(Aggregate("A", {"a": Accuracy(), "b": adapted()}, lambda a, b: a), "group", 0),
            "metric-group-mask-unread",
            ("Subset", "Theirs"),
        ),
        (lambda: By(Accuracy(), "group", {}), "metric-group-names", ("{}",)),
        (lambda: By(Accuracy(), "group", ["a", "a"]), "metric-group-names", ("['a', 'a']",)),
        (lambda: By(Accuracy(), "group", "ab"), "metric-group-names", ("'ab'",)),
        (
            lambda: value(Subset(Accuracy(), "group", 0), output(group=[0.5])),
            "metric-group-type",
            ("group", "float32[1]"),
        ),
        (
            lambda: value(Subset(Accuracy(), "group", 0), output(group=[0, 1], mask=[1, 1, 1])),
            "metric-group-mask-shape",
            ("group", "(2,)", "(3,)"),
        ),
    ],
)
def test_wrong_arguments_of_groups(make, code, values):
    with raises_code(code, *values):
        make()


# -- of several metrics ------------------------------------------------------------------------------------------------


def test_aggregate_of_values_of_the_epoch():
    """The function is applied to the values of the epoch, not averaged over batches."""
    metrics = {"a": MeanAbsoluteError(), "b": MeanSquaredError()}
    ratio = Aggregate("Ratio", metrics, lambda b, a: b / a, higher_is_better=False, unit="m")
    batches = output(predictions=[1.0], targets=[0.0]), output(predictions=[3.0], targets=[0.0])
    assert value(ratio, *batches) == pytest.approx((1 + 9) / (1 + 3))
    assert (ratio.name, ratio.unit, ratio.higher_is_better) == ("Ratio", "m", False)
    assert (ratio.fields, ratio.splits, ratio.per_step, ratio.requires) == (
        ("predictions", "targets"),
        ("train", "valid"),
        False,
        (),
    )
    assert np.isnan(value(ratio))


def test_aggregate_of_metrics_of_steps():
    metric = Aggregate("Angle", {"a": UpdateRatio(), "b": ParameterNorm()}, lambda a, b: a * b)
    assert (metric.requires, metric.splits, metric.per_step) == (("param_norm", "update_norm"), ("train",), True)
    info = Info(jnp.int32(0), jnp.float32(1), update_norm=jnp.float32(3), param_norm=jnp.float32(4))
    assert metric.compute(metric.update(metric.init(), None, info)) == 3.0


def mean_of_ranks(**options):
    metrics = {"a": Head(AUROC("binary", classes=1), "one"), "b": Head(SpearmanCorrelation(), "other")}
    return Aggregate("Mean", metrics, lambda a, b: jnp.maximum((a + b) / 2, -1), **options)


def test_aggregate_of_metrics_that_collect_rows():
    columns = make_columns()
    rows = {"one": columns, "other": {"predictions": columns["logits"], "targets": columns["group"].astype(np.float32)}}
    parts = slice(0, 7), slice(7, 120)
    outputs = [types.SimpleNamespace(mask=None, **jax.tree.map(lambda x, p=p: x[p], rows)) for p in parts]
    counted = columns["mask"] == 1
    auroc = sklearn_metrics.roc_auc_score(columns["targets"][counted], columns["logits"][counted])
    correlation = stats.spearmanr(columns["logits"], columns["group"]).statistic
    metric = mean_of_ranks(higher_is_better=True, unit="m")
    assert collected_value(metric, *outputs) == pytest.approx((auroc + correlation) / 2, rel=1e-6)
    assert (metric.name, metric.unit, metric.higher_is_better, metric.numeric) == ("Mean", "m", True, True)
    assert metric.fields == ("one.logits", "one.targets", "other.predictions", "other.targets")


def test_subset_of_an_aggregate_of_metrics_that_collect_rows():
    columns = make_columns()
    metric = Subset(Aggregate("A", {"a": AUROC("binary", classes=1)}, lambda a: 2 * a), "group", 2, "dogs")
    assert collected_value(metric, output(**columns)) == pytest.approx(2 * auroc_of(columns, 2), rel=1e-6)


def test_aggregate_of_an_undefined_metric_that_collects_rows():
    class Undefined(AUROC):
        def compute(self, rows):
            return None

    metric = Aggregate("A", {"a": Undefined("binary", classes=1)}, lambda a: 1 - a)
    assert np.isnan(collected_value(metric, output(**make_columns())))


class Total(CollectingMetric):
    """The sum of a field, with its padding."""

    def __init__(self, field, pad_value=None):
        self.name, self.fields = f"Total {field}", (field,)
        self.pads_rows, self.pad_value = pad_value is not None, pad_value

    def collect(self, output):
        return getattr(output, *self.fields)

    def compute(self, rows):
        return rows.sum()


def test_metrics_of_an_aggregate_pad_their_own_rows():
    """Two rows of two numbers get a third one, to be as long as the last row."""
    parts = {
        "z": Total("x", 7),
        "b": Head(Total("x", 20), "head"),
        "a": Subset(Total("x", 300), "group", 0),
        "c": Total("rows"),
    }
    metric = Aggregate("All", parts, lambda z, b, a, c: z + 100 * b + 10_000 * (a + c))
    outputs = [
        types.SimpleNamespace(
            x=np.ones(shape), head={"x": np.full(shape, 2)}, rows=np.ones(len(group)), group=np.array(group), mask=None
        )
        for shape, group in (((2, 2), [0, 1]), ((1, 3), [1]))
    ]
    totals = {"z": 7 + 2 * 7, "b": 2 * 7 + 2 * 20, "a": 2 + 300, "c": 3}
    assert ragged_value(metric, *outputs) == totals["z"] + 100 * totals["b"] + 10_000 * (totals["a"] + totals["c"])
    with raises_code("metric-row-shapes-differ", name="All"):
        ragged_value(Aggregate("All", {**parts, "c": Total("x")}, lambda z, b, a, c: c), *outputs)


def ragged_value(metric, *outputs):
    """Return the value of batches of several lengths, collected as in a run."""
    rows = RowCollector(None, None)
    for out in outputs:
        tail = (jax.device_get(metric.collect(out)),)
        dispatched = types.SimpleNamespace(split="train", batches=1, count=1)
        rows.add(dispatched, types.SimpleNamespace(rows=(), tail=tail, nonfinite=np.zeros(1)), [metric])
    return metric.compute(rows.rows("train", metric.name))


@pytest.mark.full
def test_aggregate_of_metrics_that_collect_rows_in_a_run(tmp_path):
    def step(model, batch):
        logits, rows = batch["logits"] * model["w"], jnp.float32(len(batch["mask"]))
        return {"loss": jnp.mean(logits), "logits": logits, "targets": batch["targets"], "weight": rows}

    ranks = {"x": AUROC("binary", classes=1), "y": AveragePrecision("binary", classes=1)}
    builder = LearnerBuilder(tmp_path / "run").renderer(None).num_epochs(2).with_batch_size(8)
    builder.metrics(Aggregate("Score", ranks, lambda x, y: x / y, higher_is_better=True))
    builder.with_file_checkpointer(monitor="valid/Score")
    learner = builder.build({"w": jnp.float32(1)}, optax.sgd, 0.0, train_step=step, valid_step=step)
    columns = {name: x for name, x in make_columns().items() if name in ("logits", "targets", "mask")}
    history = learner.fit(ArrayDataset(columns), ArrayDataset(columns)).history
    truth, scores = columns["targets"], columns["logits"]
    expected = sklearn_metrics.roc_auc_score(truth, scores) / sklearn_metrics.average_precision_score(truth, scores)
    for split in ("train", "valid"):
        assert history[f"{split}/Score"] == [pytest.approx(expected, rel=1e-6)] * 2


def test_subclass_of_aggregate():
    class Score(Aggregate):
        def __init__(self):
            super().__init__("Score", {"a": MeanAbsoluteError()}, lambda a: -a)

    assert value(Score(), output(predictions=[1.0], targets=[4.0])) == -3


def test_subclass_of_aggregate_does_not_combine_metrics_that_collect_rows():
    class Score(Aggregate):
        def __init__(self):
            super().__init__("My Score", {"a": AUROC()}, lambda a: -a)

    with raises_code("metric-combined-subclass", "Score", "AUROC", "Aggregate(...)"):
        Score()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Aggregate("A", {}, max), r"metrics of A is \{\}; it needs metrics by name"),
        (lambda: Aggregate("A", [Loss()], max), "metrics of A is "),
        (lambda: Aggregate("A", {"a": IterationSpeed()}, max), "A is of .*IterationSpeed"),
        (lambda: Aggregate("A", {"a": IoUPerClass(2)}, max), "A is of .*IoUPerClass"),
        (
            lambda: Aggregate("A", {"a": Loss(), "b": LearningRate()}, max),
            "A combines Loss, Learning Rate; it needs metrics of one kind",
        ),
        (
            lambda: Aggregate("A", {"a": Loss(), "b": AUROC()}, max),
            "A combines Loss, AUROC; it needs metrics of one kind.*BinnedAUROC",
        ),
        (lambda: Aggregate("A", {"a": AUROC("none")}, max), "A is of .*AUROC"),
        (
            lambda: Aggregate("A", {"a": Loss(), "b": Perplexity()}, 1),
            "function of A is 1; it needs a function of a, b",
        ),
        (lambda: value(Aggregate("A", {"a": Loss()}, lambda b: b)), "the function of A cannot take a: "),
        (
            lambda: Aggregate("A", {"a": AUROC()}, lambda b: b).collect(output(**make_columns())),
            "the function of A cannot take a: ",
        ),
        (
            lambda: Aggregate("A", {"a": AUROC()}, math.sqrt).collect(output(**make_columns())),
            "the function of A ",
        ),
        (
            lambda: Aggregate("A", {"a": AUROC()}, lambda a: jnp.stack([a, a])).collect(output(**make_columns())),
            r"the metric A gives \[2\] numbers; one that is numeric gives a scalar",
        ),
        *(
            (
                lambda name=name, function=function: value(Aggregate(name, {"a": Loss(), "b": Perplexity()}, function)),
                f"the function of {name} is traced: a, b have no values there.*jnp.maximum.*jnp.where",
            )
            for name, function in (
                ("Largest", lambda a, b: max(a, b)),
                ("Root", lambda a, b: math.sqrt(a * b)),
                ("Larger", lambda a, b: np.maximum(np.asarray(a), b)),
                ("Chosen", lambda a, b: [1.0, 2.0][a.astype(int)]),
            )
        ),
    ],
)
def test_wrong_aggregates(make, words):
    with pytest.raises(LearnerError, match=words):
        make()
