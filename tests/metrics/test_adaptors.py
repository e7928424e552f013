"""Tests of Adapted: metrics of nnx, and classes with the interfaces of CLU and metrax."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct

from learner import LearnerBuilder
from learner.data import DataLoaderBuilder
from learner.errors import LearnerError
from learner.metrics import Accuracy, Adapted, Info
from learner.strategies import Replicated
from tests.support.codes import raises_code
from tests.support.runs import class_step

INFO = Info(jnp.int32(0), jnp.float32(1))


@struct.dataclass
class Average:
    """A metric like CLU's, whose instances are states."""

    total: jax.Array
    count: jax.Array

    @classmethod
    def empty(cls):
        return cls(total=jnp.array(0, jnp.float32), count=jnp.array(0, jnp.int32))

    @classmethod
    def from_model_output(cls, values, mask=None, **_):
        mask = jnp.ones(values.shape, jnp.int32) if mask is None else mask
        return cls(total=(values * mask).sum(), count=mask.sum())

    def merge(self, other):
        return type(self)(self.total + other.total, self.count + other.count)

    def compute(self):
        return self.total / self.count


@struct.dataclass
class WithoutEmpty(Average):
    @classmethod
    def empty(cls):
        raise NotImplementedError("Must override empty()")


class Undecorated(Average):
    pass


@struct.dataclass
class InFloats(Average):
    """A metric like metrax's: its count starts as int32 and gets the dtype of the weights."""

    @classmethod
    def from_model_output(cls, predictions, labels, sample_weights=None):
        weights = jnp.ones_like(predictions) if sample_weights is None else sample_weights
        return cls(total=(jnp.square(predictions - labels) * weights).sum(), count=weights.sum())

    def compute(self):
        return jnp.sqrt(self.total / self.count)


InFloats.__module__ = "metrax.regression_metrics"


def output(**fields):
    return types.SimpleNamespace(**{name: x if x is None else jnp.asarray(x) for name, x in fields.items()})


def value(metric, *outputs):
    """Return the value over outputs whose states are merged in pairs."""
    states = [metric.update(metric.init(), batch, INFO) for batch in outputs] or [metric.init()]
    layout = jax.tree.map(lambda x: (x.shape, x.dtype), metric.init())
    while len(states) > 1:
        states = [metric.merge(*states[:2]), *states[2:]]
        assert jax.tree.map(lambda x: (x.shape, x.dtype), states[0]) == layout
    return metric.compute(states[0])


def test_clu_class():
    metric = Adapted(Average, name="Mine", unit="m", higher_is_better=False, values="x", mask="mask")
    assert (metric.name, metric.unit, metric.higher_is_better, metric.fields) == ("Mine", "m", False, ("x",))
    outputs = output(x=[1.0, 2.0], mask=[1, 0]), output(x=[4.0, 6.0], mask=[1, 1]), output(x=[9.0, 5.0], mask=None)
    assert value(metric, *outputs) == pytest.approx((1 + 4 + 6 + 9 + 5) / 5)
    assert value(metric, *outputs).dtype == jnp.float32
    assert np.isnan(value(metric))


def test_metrax_class():
    metric = Adapted(InFloats, predictions="p", labels="t", sample_weights="w")
    outputs = output(p=[1.0, 2.0], t=[0.0, 0.0], w=[0.5, 0.25]), output(p=[3.0], t=[0.0], w=[0.25])
    assert value(metric, *outputs) == pytest.approx(np.sqrt((0.5 + 1 + 9 / 4) / 1))


WEIGHTED = {"nnx": nnx.metrics.Average("values"), "clu": Average}


@pytest.mark.parametrize("kind", WEIGHTED)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_weights_in_the_mask_count_each_row_once(kind, size):
    metric = Adapted(WEIGHTED[kind], name="Mine", values="x", mask="mask")
    x, weights = np.array([1.0, 2.0, 6.0, 100.0], np.float32), np.array([0.625, 2.5, 0.625, 0.0], np.float32)
    batches = [output(x=x[i : i + size], mask=weights[i : i + size]) for i in range(0, 4, size)]
    assert value(metric, *batches) == 3.0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.uint8])
def test_masks_of_few_bits_count_exactly(dtype):
    metric = Adapted(nnx.metrics.Average("x"), x="x", mask="mask")
    rows = output(x=jnp.arange(400.0) < 100, mask=(np.arange(400) < 257).astype(dtype))
    assert value(metric, rows) == np.float32(100) / 257


@struct.dataclass
class OfSequences(Average):
    """A mean over sequences whose masks are summed and counted in their dtype."""

    @classmethod
    def from_model_output(cls, values, mask):
        total = (jnp.einsum("bl,bl->b", values, mask) / jnp.einsum("bl->b", mask)).sum()
        return cls(total=total, count=(jnp.vdot(mask, mask) > 0) * len(values))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_masks_keep_their_dtype(dtype):
    """The tokens that count are 1 and 3, with the mean 2, and 10."""
    metric = Adapted(OfSequences, values="x", mask="mask")
    x = np.array([[1.0, 3.0, 50.0], [10.0, 50.0, 50.0]], np.float32)
    mask = np.array([[1, 1, 0], [1, 0, 0]], dtype)
    assert value(metric, output(x=x, mask=mask)) == (2 + 10) / 2
    assert value(metric, output(x=x, mask=mask * 4)) == (2 + 10) / 2


def test_nnx_average():
    metric = Adapted(nnx.metrics.Average("x"), x="x", mask="mask")
    assert value(metric, output(x=[1.0, 2.0], mask=None), output(x=[6.0, 5.0], mask=[True, False])) == 3.0
    assert np.isnan(value(metric))


@jax.numpy_dtype_promotion("standard")
def test_users_metric_is_not_changed():
    metric = nnx.metrics.Average("x")
    metric.update(x=jnp.array([100.0]))
    assert value(Adapted(metric, x="x"), output(x=[1.0])) == 1.0
    assert metric.compute() == 100.0


def test_nnx_welford():
    rng = np.random.default_rng(1)
    parts = [rng.normal(3, 2, size).astype(np.float32) for size in (5, 1, 40)]
    for which, expected in (("mean", np.mean), ("standard_deviation", np.std)):
        metric = Adapted(nnx.metrics.Welford("x"), name=which, take=which, x="x")
        actual = value(metric, *(output(x=part) for part in parts))
        assert actual == pytest.approx(expected(np.concatenate(parts)), rel=1e-5)
        with_empty = metric.merge(metric.init(), metric.update(metric.init(), output(x=parts[0]), INFO))
        assert metric.compute(with_empty) == pytest.approx(expected(parts[0]), rel=1e-5)


class Wrapped(nnx.metrics.Metric, pytree=False):
    """A metric like those of metrax.nnx, which wrap a class."""

    def __init__(self):
        self.clu_metric = InFloats.empty()

    def reset(self):
        raise NotImplementedError

    update = compute = reset


def test_metrax_nnx_class():
    metric = Adapted(Wrapped(), predictions="p", labels="t")
    assert metric.name == "InFloats"
    assert value(metric, output(p=[3.0, 4.0], t=[0.0, 1.0])) == 3.0


class WithExtraVariable(nnx.metrics.Average):
    """A metric with a variable that a merge would not combine."""

    def __init__(self):
        super().__init__("x")
        self.positive = nnx.metrics.MetricState(jnp.float32(0))


class MomentsWithExtraVariable(nnx.metrics.Welford):
    def __init__(self):
        super().__init__("x")
        self.largest = nnx.Variable(jnp.float32(0))


@pytest.mark.parametrize(
    ("make", "code", "values"),
    [
        (lambda: Adapted(42, x="x"), "metric-adapted-type", ("42", "from_model_output")),
        (lambda: Adapted(nnx.metrics.Average, x="x"), "metric-not-instance", ("Average",)),
        (lambda: Adapted(Average), "metric-adapted-arguments", ("Average", "{}")),
        (lambda: Adapted(Undecorated, values="x"), "metric-not-pytree", ("Undecorated",)),
        (lambda: Adapted(WithoutEmpty, values="x"), "metric-stateless", ("WithoutEmpty", "Must override")),
        (lambda: Adapted(WithExtraVariable(), x="x"), "metric-not-mergeable", ("WithExtraVariable",)),
        (lambda: Adapted(MomentsWithExtraVariable(), x="x"), "metric-not-mergeable", ()),
        (
            lambda: Adapted(nnx.metrics.MultiMetric(loss=nnx.metrics.Average("loss")), loss="loss"),
            "metric-not-mergeable",
            ("MultiMetric", "give its parts one by one"),
        ),
    ],
    ids=[
        "no metric",
        "a class",
        "no arguments",
        "no pytree",
        "no beginning",
        "more variables",
        "more moments",
        "several",
    ],
)
def test_unsuitable_metrics_are_refused(make, code, values):
    with raises_code(code, *values):
        make()


def test_several_values_are_refused():
    @struct.dataclass
    class Two(Average):
        def compute(self):
            return jnp.array([1.0, 2.0])

    with raises_code("metric-adapted-not-a-number", "Two", "[2]"):
        value(Adapted(Two, values="x"), output(x=[1.0]))


@pytest.mark.full
@pytest.mark.parametrize("devices", [1, 4])
def test_in_a_run(devices, tmp_path):
    """Adapted metrics work in compiled loops, over epochs and devices; a missing field raises before training."""
    adapted = [
        Adapted(nnx.metrics.Accuracy(), name="Theirs", logits="logits", labels="targets"),
        Adapted(Average, name="Mean", values="targets"),
    ]
    builder = LearnerBuilder(tmp_path / "run").metrics(Accuracy(), *adapted).num_epochs(2).renderer(None)
    if devices > 1:
        builder.strategy(Replicated(jax.devices()[:devices]))
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(44, 3)).astype(np.float32), "y": np.arange(44, dtype=np.int32) % 4}
    learner = builder.build({"w": jnp.eye(3, 4)}, optax.sgd, 0.1, train_step=class_step, valid_step=class_step)
    loaders = [DataLoaderBuilder().batch_size(8).build(data) for _ in range(2)]
    history = learner.fit(*loaders).history
    for split in ("train", "valid"):
        assert history[f"{split}/Theirs"] == history[f"{split}/Accuracy"]
        assert history[f"{split}/Mean"] == [1.5, 1.5]
    wrong = LearnerBuilder(tmp_path / "wrong").metrics(Adapted(Average, values="scores")).renderer(None)
    learner = wrong.build({"w": jnp.eye(3, 4)}, optax.sgd, 0.1, train_step=class_step)
    with pytest.raises(LearnerError, match="the metric Average needs scores, which"):
        learner.fit(loaders[0])
