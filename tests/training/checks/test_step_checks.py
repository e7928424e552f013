"""Looking at steps before anything is compiled: every mismatch is said, all at once, and nothing is made."""

import dataclasses
import functools
import random
import threading
import warnings
from typing import Any, NamedTuple

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from learner import (
    ClassificationOutput,
    LearnerBuilder,
    LearnerError,
    Linen,
    RegressionOutput,
    SequenceOutput,
    TrainOutput,
)
from learner.metrics import (
    AUROC,
    R2,
    Accuracy,
    Aggregate,
    By,
    CollectingMetric,
    ConfusionMatrix,
    GradientNorm,
    IterationSpeed,
    LearningRate,
    Loss,
    MeanAbsoluteError,
    MeanMetric,
    Metric,
    Precision,
    Subset,
    TopKAccuracy,
)
from learner.training.checks.step_checks import check_predict, check_train, check_valid, trace_train
from learner.training.programs.compilation import CompileTimes
from learner.util.trees import nonfinite_leaves
from tests.support.codes import raises_code
from tests.support.runs import line

BATCH = {
    "x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3),
    "t": np.ones((4, 2), np.float32),
    "label": np.array([0, 1, 2, 1], np.int32),
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Own:
    loss: Any
    weight: Any = None
    logits: Any = None
    targets: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class WithGroups(Own):
    label: Any = None


def model():
    return line(3, 3, bias=False, value=1.0)


def classify(model, batch):
    return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["label"])


def loss_of(model):
    return model["w"].sum()


def learner_for(train=classify, *metrics, valid=None, given=None, accumulate=1, **options):
    """A built learner; the first state is known by its shapes alone."""
    builder = LearnerBuilder("unused").metrics(*metrics).grads_accumulation(accumulate)
    given = model() if given is None else given
    update = options.get("update")
    optimizer = None if update else optax.adam
    return builder.build(given, optimizer, 0.1, train_step=None if update else train, valid_step=valid, **options)


def checked(train=classify, *metrics, batch=BATCH, **options):
    learner = learner_for(train, *metrics, **options)
    return check_train(learner.definition.step, jax.eval_shape(learner.init), batch)


def checked_valid(valid=classify, *metrics, batch=BATCH, split="valid", **options):
    learner = learner_for(classify, *metrics, valid=valid, **options)
    return check_valid(learner.definition.step, jax.eval_shape(learner.init), batch, split)


# -- what is right -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
def test_nothing_is_wrong_and_nothing_is_compiled(accumulate):
    metrics = Accuracy(), TopKAccuracy(2), LearningRate(), GradientNorm(), IterationSpeed()
    learner = learner_for(classify, *metrics, valid=classify, accumulate=accumulate)
    state = jax.eval_shape(learner.init)
    with CompileTimes() as times:
        assert check_train(learner.definition.step, state, BATCH) == ([], False)
        assert check_valid(learner.definition.step, state, BATCH, "valid") == []
        assert check_predict(learner.definition.step, state, BATCH) == []
    assert times.count == 0


def test_a_variable_of_nnx_may_be_the_loss():
    assert checked(lambda m, b: {"loss": nnx.Variable(loss_of(m))}) == ([], False)


def test_no_tracer_outlives_its_trace():
    """With `jax.checking_leaks`, users look for tracers that their own steps keep."""
    kept = []

    def keeping(model, batch):
        kept.append(loss_of(model))
        return classify(model, batch)

    with jax.checking_leaks():
        assert checked(classify, Accuracy()) == ([], False)
        assert checked_valid(classify, Accuracy()) == []
        with pytest.raises(Exception, match="Leaked"):
            checked(keeping)


@pytest.mark.parametrize("sizes", [(4,), (4, 3)])
def test_a_step_that_uses_a_traced_value_of_an_earlier_call(tmp_path, sizes):
    kept = [0.0]

    def keeping(model, batch):
        output = classify(model, batch)
        loss = output.loss + 0.0 * kept[-1]
        kept.append(loss)
        return dataclasses.replace(output, loss=loss)

    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    batches = [jax.tree.map(lambda x, n=n: x[:n], BATCH) for n in sizes]
    with raises_code("step-keeps-tracer", "kept", "jax.checking_leaks()"):
        builder.build(model(), optax.sgd, 0.1, train_step=keeping).fit(batches)


def test_a_step_that_computes_its_own_gradients_is_known():
    def train(model, batch):
        return TrainOutput(jax.grad(lambda m: classify(m, batch).loss)(model), classify(model, batch))

    assert checked(train, Accuracy()) == ([], True)


def test_an_update_is_looked_at_too():
    def update(state, batch, lr, rng):
        return state, classify(state, batch)

    assert checked(update=update) == ([], False)
    (problem,), _ = checked(None, MeanAbsoluteError(), update=update)
    assert "the metric Mean Absolute Error needs predictions" in problem
    (problem,), _ = checked(update=lambda state, batch, lr, rng: (state, None))
    assert problem.startswith("update= returned nothing (None)")


@pytest.mark.parametrize(
    "output",
    [
        Own(jnp.float32(1)),
        Own(jnp.float16(1), 3),
        Own(jnp.bfloat16(1), jnp.int32(3)),
        Own(1.5, 2.5),
    ],
)
def test_outputs_of_ones_own(output):
    assert checked(lambda m, b: output) == ([], False)


class NamedOutput(NamedTuple):
    loss: Any
    extra: Any


def test_a_named_tuple_of_two_is_an_output_and_no_pair():
    assert checked(lambda m, b: NamedOutput(loss_of(m), b["x"])) == ([], False)


class Modes(nnx.Module):
    """Tells in its loss's dtype which mode it is in."""

    def __init__(self):
        self.w, self.drop = nnx.Param(jnp.ones(2)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def train_step(self, batch):
        loss = self.drop(self.w[...]).sum()
        return Own(loss if not self.drop.deterministic else loss.astype(jnp.int32))

    valid_step = train_step


def test_the_train_step_is_tried_in_train_mode_and_the_valid_step_in_eval_mode():
    assert checked(None, given=Modes()) == ([], False)
    (problem,) = checked_valid(Modes.valid_step, given=Modes())
    assert "the loss of valid_step has dtype int32" in problem


# -- outputs -----------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    logits: Any
    labels: Any
    more: Any


@dataclasses.dataclass
class NoTree:
    loss: Any


class Plain:
    def __init__(self, logits):
        self.logits, self._hidden = logits, 1


WRONG = {
    "nothing": (lambda m, b: None, "{0} returned nothing (None)"),
    "an array": (lambda m, b: b["x"], "{0} returned an array of shape [4, 3], which has no field 'loss'"),
    "a scalar": (lambda m, b: loss_of(m), "{0} returned an array of shape [], which has no field 'loss'"),
    "a number": (lambda m, b: 1.5, "{0} returned float, which has no field 'loss'"),
    "a dict without a loss": (lambda m, b: {"lost": loss_of(m)}, "{0} returned dict, which has no field 'loss'"),
    "a named tuple": (
        lambda m, b: Pair(b["x"], b["label"], 1),
        "{0} returned Pair with logits, labels, more, which has no field 'loss'",
    ),
    "an object": (lambda m, b: Plain(b["x"]), "{0} returned Plain with logits, which has no field 'loss'"),
    "no pytree": (lambda m, b: NoTree(loss_of(m)), "{0} returned NoTree, which JAX does not know as a pytree"),
    "losses of tasks": (lambda m, b: {"loss": {"a": loss_of(m), "b": 0.0}}, "the loss of {0} is a dict; it needs one"),
    "no loss": (lambda m, b: {"loss": None}, "the loss of {0} is nothing (None); it needs one number"),
    "loss per row": (lambda m, b: Own(b["x"].sum(1)), "the loss of {0} has shape [4]; it needs one number"),
    "loss in an array": (lambda m, b: Own(loss_of(m)[None]), "the loss of {0} has shape [1]; it needs one number"),
    "integer loss": (lambda m, b: Own(b["label"].sum()), "the loss of {0} has dtype int32"),
    "bool loss": (lambda m, b: Own(loss_of(m) > 0), "the loss of {0} has dtype bool"),
    "complex loss": (lambda m, b: Own(loss_of(m).astype(jnp.complex64)), "the loss of {0} has dtype complex64"),
    "weight per row": (lambda m, b: Own(loss_of(m), jnp.ones(4)), "the weight of {0}'s output has shape [4]"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_output_is_said(what):
    step, said = WRONG[what]
    problems, _ = checked(step, Accuracy())
    assert len(problems) == 1  # metrics cannot be tried
    assert said.format("train_step") in problems[0]
    (problem,) = checked_valid(step, Accuracy())
    assert said.format("valid_step") in problem


def test_a_wrong_output_next_to_gradients_of_ones_own():
    (problem,), own = checked(lambda m, b: TrainOutput({"w": m["w"]}, None))
    assert own
    assert "train_step returned nothing (None)" in problem


def test_the_message_shows_what_is_right():
    (problem,), _ = checked(lambda m, b: None)
    assert "ClassificationOutput.from_logits(logits, labels)" in problem
    (problem,), _ = checked(lambda m, b: NoTree(loss_of(m)))
    assert "@jax.tree_util.register_dataclass" in problem


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_key_that_is_not_there_is_named_with_those_that_are():
    batch = {"image": BATCH["x"], "label": BATCH["label"]}
    with raises_code("batch-missing-key", name="train_step", key="x"):
        checked(batch=batch)
    with raises_code("batch-missing-key", name="valid_step (on valid-dev)", key="x"):
        checked_valid(batch=batch, split="valid-dev")
    learner = learner_for(valid=classify)
    with raises_code("batch-missing-key", name="valid_step", key="x"):
        check_predict(learner.definition.step, jax.eval_shape(learner.init), batch)


def test_another_key_error_is_the_steps_own():
    def train(model, batch):
        return {}["x"]

    with pytest.raises(KeyError):
        checked(train)


CONFIG = {"temperature": 0.5}


@pytest.mark.parametrize("batch", [BATCH, {**BATCH, "more": ({"y": BATCH["label"]},)}])
def test_a_key_error_of_something_else_is_not_blamed_on_the_batch(batch):
    def train(model, batch):
        assert type(batch) is dict
        return Own((batch["x"] @ model["w"]).sum() / CONFIG["temprature"])

    with pytest.raises(KeyError, match="temprature") as raised:
        checked(train, batch=batch)
    assert "while tracing train_step with a train batch" in "".join(raised.value.__notes__)


def test_a_key_deep_in_a_batch_is_named_with_its_place():
    batch = {"in": ({"pixels": BATCH["x"], "size": BATCH["label"]}, BATCH["x"])}

    def train(model, batch):
        return Own((jax.tree.map(lambda x: x, batch)["in"][0]["image"] @ model["w"]).sum())

    expected = ("batch-missing-key", "batch", "'in'", "][0][", "'image'", "batch['in']", "[0]", "'pixels'", "'size'")
    with raises_code(*expected):
        checked(train, batch=batch)


def test_a_key_that_a_step_does_without_is_no_error():
    def train(model, batch):
        assert batch.get("weights") is None
        try:
            batch["missing"]
        except KeyError:
            return Own(loss_of(model) / CONFIG["temprature"])

    with pytest.raises(KeyError, match="temprature"):
        checked(train)


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (lambda m, b: (loss_of(m), {"logits": b["x"]}), "float32[]"),
        (lambda m, b: (loss_of(m), b["x"]), "float32[]"),
        (lambda m, b: (b["x"], b["label"]), "float32[4, 3]"),
        (lambda m, b: (None, m), "NoneType"),
        (lambda m, b: ({"lost": loss_of(m)}, m), "dict"),
    ],
)
def test_a_pair_of_a_loss_and_more_is_no_pair_of_an_output_and_a_model(returned, named):
    with raises_code("step-output-without-loss", f"first element, {named},", "(output, model)", "has_aux"):
        checked(returned)


def test_a_pair_of_outputs_is_refused():
    def both(model, batch):
        output = classify(model, batch)
        return output, RegressionOutput.from_predictions(output.logits[:, 0], output.logits[:, 1])

    with raises_code("step-output-pair", "RegressionOutput", "(output, model)"):
        checked(both)


def test_a_pair_of_dicts_is_refused():
    with raises_code("step-output-pair", "(output, model)"):
        checked(lambda model, batch: ({"loss": loss_of(model)}, {"loss": loss_of(model), "logits": batch["x"]}))


def test_errors_of_the_step_come_as_they_are():
    def train(model, batch):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as raised:
        checked(train)
    listed = "label: int32[4], t: float32[4, 2], x: float32[4, 3]"
    assert f"while tracing train_step with a train batch ({listed})" in raised.value.__notes__


def transposed(model, batch):
    return Own((batch["x"].T @ model["w"]).sum())  # [3, 4] @ [3, 3]


WIDE = {"x": np.zeros((4, 32), np.float32)}


def test_a_model_that_does_not_fit_the_data_is_told_with_the_batch():
    with pytest.raises(LearnerError) as raised:
        checked(transposed)
    listed = "label: int32[4], t: float32[4, 2], x: float32[4, 3]"
    said = f"train_step cannot be traced with a train batch ({listed}): TypeError: dot_general requires contracting"
    assert str(raised.value).startswith(said)
    line = transposed.__code__.co_firstlineno + 1
    assert str(raised.value).endswith(f"({__file__}, line {line})")
    assert type(raised.value.__cause__) is TypeError
    with raises_code("step-trace-failed", "valid_step", "a valid-b batch (x", "float32"):
        checked_valid(lambda m, b: Own((b["x"] @ m["w"]).sum()), batch=WIDE, split="valid-b")
    learner = learner_for(valid=lambda m, b: b["x"] @ m["w"])
    with raises_code("step-trace-failed", "valid_step", "the batch (x", "float32[4, 32]"):
        check_predict(learner.definition.step, jax.eval_shape(learner.init), WIDE)


class Looking(MeanMetric):
    name = "Looking"
    higher_is_better = None
    fields = ("logits",)

    def update(self, state, output, info):
        return state.add(float(output.logits.sum()), info.weight)


def test_a_metric_that_needs_a_value_gets_the_functions_that_do_not():
    (problem,), _ = checked(classify, Looking())
    number = Looking.update.__code__.co_firstlineno + 1
    assert f"shape float32[] ({__file__}, line {number}). Print with jax.debug.print" in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    "looks",
    [
        lambda loss: float(loss),
        lambda loss: 1 if loss > 0 else 2,
        lambda loss: loss.item(),
        lambda loss: np.asarray(loss),
        lambda loss: [1, 2][loss.astype(int)],
    ],
)
def test_a_step_that_needs_a_value_gets_the_functions_that_do_not(looks):
    with raises_code("step-needs-value", "train_step", "jax.debug.print('{}', x)", "jnp.where(") as raised:
        checked(lambda m, b: Own(loss_of(m) * looks(loss_of(m))))
    assert f"({__file__}, line {looks.__code__.co_firstlineno})" in str(raised.value)
    assert "state" not in str(raised.value)


def test_a_layer_of_equinox_that_needs_a_key():
    given = {"w": line(3, 3)["w"], "drop": equinox.nn.Dropout(0.5)}

    def step(model, batch):
        return Own(model["drop"](batch["x"] @ model["w"]).sum())

    with raises_code("step-needs-key", "train_step", __file__, "(model, batch, rng)", "jax.random.split(rng, len(x))"):
        checked(step, given=given)
    assert checked_valid(step, given=given) == []  # in eval mode it needs none


def test_an_axis_of_pmap_is_not_needed():
    def train(model, batch):
        return classify(jax.lax.pmean(model, "data"), batch)

    with raises_code("step-axis-unbound", "train_step", "leave pmean and psum out", "test_step_checks.py"):
        checked(train)


def test_layers_of_flax_that_do_not_fit_the_data():
    module = linen.Dense(2)
    given = Linen(module, module.init(jax.random.key(0), jnp.ones((1, 64))))
    with raises_code("step-trace-failed", "a train batch (x", "float32[4, 32]", "ScopeParamShapeError"):
        checked(lambda m, b: Own(m(b["x"]).sum()), given=given, batch=WIDE)
    with raises_code("step-trace-failed", "a train batch (x", "float32[4, 32]", "TypeError", "dot_general"):
        checked(lambda m, b: Own(m(b["x"]).sum()), given=nnx.Linear(64, 2, rngs=nnx.Rngs(0)), batch=WIDE)


def test_predicting_needs_no_loss():
    learner = learner_for(valid=lambda m, b: b["x"] @ m["w"])
    check_predict(learner.definition.step, jax.eval_shape(learner.init), BATCH)


# -- labels ------------------------------------------------------------------------------------------------------------


def labelled(*labels, dtype=np.int32):
    return {**BATCH, "label": np.array(labels, dtype)}


@pytest.mark.parametrize("batch", [labelled(0, 1, 3, 1), labelled(-1, 0, 1, 2), labelled(9, 9, 9, 9, dtype=np.uint8)])
def test_labels_outside_of_the_classes(batch):
    low, high = batch["label"].min(), batch["label"].max()
    (problem,), _ = checked(batch=batch)
    assert f"the labels 'label' go from {low} to {high}" in problem
    assert "the logits of train_step have 3 classes (0 to 2)" in problem
    (problem,) = checked_valid(batch=batch)
    assert "the logits of valid_step have 3 classes" in problem


def test_labels_inside_of_the_classes():
    assert checked(batch=labelled(0, 1, 2, 2, dtype=np.uint8)) == ([], False)
    assert checked(batch=labelled(2, 2, 2, 2, dtype=np.int64)) == ([], False)


def test_labels_that_do_not_count_may_be_anything():
    def masked(model, batch):
        return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["label"], batch["label"] >= 0)

    def ignored(model, batch):
        return Own(loss_of(model), 4, batch["x"] @ model["w"], batch["label"])

    batch = labelled(0, -100, 2, 1)
    assert checked(masked, batch=batch) == ([], False)
    assert checked(ignored, Accuracy(ignore_label=-100), batch=batch) == ([], False)
    assert checked(ignored, Accuracy(ignore_label=-100), batch=labelled(*[-100] * 4)) == ([], False)
    (problem,), _ = checked(ignored, Accuracy(ignore_label=-100), batch=labelled(0, -100, 5, 1))
    assert "go from 0 to 5" in problem
    (problem,), _ = checked(ignored, Accuracy(), batch=batch)
    assert "go from -100 to 2" in problem


def own_labels(model, batch):
    return Own(loss_of(model), 4, batch["x"] @ model["w"], batch["label"])


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda metric: Subset(metric, "label", 0),
        lambda metric: By(metric, "label", ["cats"]),
        lambda metric: Aggregate("A", {"a": Loss(), "b": Subset(metric, "label", 0)}, lambda a, b: a + b),
    ],
    ids=["subset", "by", "aggregate of a subset"],
)
def test_labels_that_a_metric_within_another_ignores_may_be_anything(wrapped):
    def with_groups(model, batch):
        return WithGroups(**vars(own_labels(model, batch)), label=batch["label"])

    batch = labelled(0, -100, 2, -100)
    assert checked(with_groups, wrapped(Accuracy(ignore_label=-100)), batch=batch) == ([], False)
    (problem,), _ = checked(with_groups, wrapped(Accuracy()), batch=batch)
    assert "go from -100 to 2" in problem


def test_labels_that_nothing_reads_may_be_anything():
    """As where only validation has a metric of them, and the loss is one's own."""
    batch = labelled(0, -100, 2, 9)
    assert checked(own_labels, Loss(), batch=batch) == ([], False)
    assert checked(own_labels, batch=labelled(9, 9, 9, 9)) == ([], False)


def test_the_error_of_labels_says_how_some_do_not_count():
    for labels, ignored in (((0, -100, -100, 7), -100), ((255, 0, 1, 2), 255)):
        (problem,), _ = checked(batch=labelled(*labels))
        assert problem.endswith(f"to ignore some of them, give the output a mask, such as labels != {ignored}")
        (problem,), _ = checked(own_labels, Accuracy(), batch=labelled(*labels))
        assert problem.endswith(f"such as labels != {ignored}, or its metrics ignore_label={ignored}")


@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        ((1, 2, 3, 3), "; if they count from 1, subtract 1 from the labels; otherwise they need 4 logits"),
        ((0, 1, 2, 3), "; they need 4 logits"),
        ((1, 2, 3, 6), "; they need 7 logits"),
        ((1, -1, 3, 2), "; if they count from 1, subtract 1 from the labels; otherwise they need 4 logits; to ignore"),
        ((0, 255, 255, 2), "; to ignore some of them, give the output a mask, such as labels != 255"),
    ],
)
def test_the_error_of_labels_has_the_remedy_of_their_values(labels, advice):
    (problem,), _ = checked(batch=labelled(*labels))
    assert f"3 classes (0 to 2){advice}" in problem
    assert ("mask" in problem) == (min(labels) < 0 or max(labels) == 255)


def test_labels_that_the_step_makes_cannot_be_told():
    def shifted(model, batch):
        return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["label"] - 1)

    assert checked(shifted, batch=labelled(1, 2, 3, 3)) == ([], False)


def test_labels_of_sequences_deep_in_a_batch():
    def train(model, batch):
        return SequenceOutput.from_logits(batch["in"]["x"] @ model["w"], batch["in"]["y"])

    batch = {"in": {"x": np.ones((2, 5, 3), np.float32), "y": np.full((2, 5), 7)}}
    (problem,), _ = checked(train, batch=batch)
    assert "the labels 'in.y' go from 7 to 7" in problem


def test_labels_that_are_traced_cannot_be_told():
    learner = learner_for()
    state = learner.init()
    found = []
    jax.eval_shape(lambda batch: found.append(check_train(learner.definition.step, state, batch)), labelled(9, 9, 9, 9))
    assert found == [([], False)]


# -- metrics -----------------------------------------------------------------------------------------------------------


class Counting(Metric):
    """A metric that is right; others differ from it in one thing."""

    name = "Counting"

    def init(self):
        return jnp.zeros((), jnp.float32)

    def update(self, state, output, info):
        return state + info.weight

    def merge(self, a, b):
        return a + b

    def compute(self, state):
        return state


class WidensInUpdate(Counting):
    def update(self, state, output, info):
        return jnp.stack([state, state])


class RetypesInMerge(Counting):
    def merge(self, a, b):
        return (a + b).astype(jnp.int32)


class GivesTwo(Counting):
    def compute(self, state):
        return jnp.stack([state, state])


CANNOT_BE = f"ValueError: cannot be ({__file__}, line "


class Raises(Counting):
    def update(self, state, output, info):
        raise ValueError("cannot be")


class NeedsTwo(Counting):
    fields = ("loss", "predictions", "lengths")


class Vector(Counting):
    numeric = False

    def compute(self, state):
        return jnp.stack([state, state])


class OfTheStep(Counting):
    per_step = True

    def update(self, state, output, info):
        assert output is None
        return state + info.grad_norm


class CollectsLengths(CollectingMetric):
    name, fields = "Collects", ("lengths",)

    def collect(self, output):
        return output.lengths

    def compute(self, rows):
        return 0.0


class CannotCollect(CollectingMetric):
    name = "Collects"

    def collect(self, output):
        raise ValueError("cannot be")

    def compute(self, rows):
        return 0.0


@pytest.mark.parametrize("metric", [Counting(), Vector(), OfTheStep()])
def test_metrics_that_fit(metric):
    assert checked(classify, metric) == ([], False)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (MeanAbsoluteError(), "the metric Mean Absolute Error needs predictions, which"),
        (NeedsTwo(), "the metric Counting needs predictions, lengths, which"),
        (CollectsLengths(), "the metric Collects needs lengths, which"),
        (CannotCollect(), f"the metric Collects cannot be computed from train_step's output: {CANNOT_BE}"),
        (Raises(), f"the metric Counting cannot be computed from train_step's output: {CANNOT_BE}"),
        (WidensInUpdate(), "update of the metric Counting changed its state from ['float32[]'] to ['float32[2]']"),
        (RetypesInMerge(), "merge of the metric Counting changed its state from ['float32[]'] to ['int32[]']"),
        (GivesTwo(), "the metric Counting gives [2] numbers; one that is numeric gives a scalar"),
        (TopKAccuracy(5), "Top-5 Accuracy"),
    ],
)
def test_metrics_that_do_not_fit(metric, said):
    (problem,), _ = checked(classify, metric)
    assert said in problem
    (problem,) = checked_valid(classify, metric)
    assert said.replace("train_step", "valid_step") in problem


def test_the_fields_that_are_there_are_listed():
    (problem,), _ = checked(classify, MeanAbsoluteError())
    assert problem.endswith("train_step's ClassificationOutput does not have; it has loss, logits, targets, weight")
    (problem,), _ = checked(lambda m, b: Own(loss_of(m)), Accuracy())
    assert problem.endswith("train_step's Own does not have; it has loss")


def test_all_that_is_wrong_is_said_at_once():
    problems, _ = checked(classify, MeanAbsoluteError(), GivesTwo(), Accuracy(), batch=labelled(0, 0, 0, 4))
    assert len(problems) == 3
    for problem, part in zip(problems, ("labels", "Mean Absolute Error", "Counting"), strict=True):
        assert part in problem


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_leaves_that_are_not_finite_are_named():
    tree = {
        "a": {"nan": np.array([1.0, np.nan]), "fine": jnp.ones(2)},
        "b": [jnp.array(jnp.inf), jnp.array(-jnp.inf, jnp.bfloat16), jnp.array([1, 2])],
        "c": np.array(1e308),
        "d": jnp.array([jnp.nan * 1j], jnp.complex64),
        "e": np.zeros((0, 3)),
    }
    assert nonfinite_leaves(tree) == ["a.nan", "b.0", "b.1", "d"]
    assert nonfinite_leaves({}) == []


def test_a_regression_that_would_broadcast():
    with raises_code("output-regression-shapes"):
        checked(lambda m, b: RegressionOutput.from_predictions(b["x"] @ m["w"], b["t"]))


# -- metrics of classes and of numbers ---------------------------------------------------------------------------------


def test_metrics_of_scores_that_are_given_something_else():
    problems, _ = checked(classify, Precision(4), AUROC("binary"), R2(), ConfusionMatrix(3))
    assert len(problems) == 3
    assert "the metric Precision cannot be computed from train_step's output: Precision got" in problems[0]
    assert "it has classes=4, and needs as many logits for each row" in problems[0]
    assert "the metric R2 needs predictions, which train_step's ClassificationOutput does not have" in problems[1]
    assert "the metric AUROC (binary) cannot be computed" in problems[2]

    def only_labels(model, batch):
        return Own(loss_of(model), logits=batch["label"], targets=batch["label"])

    (problem,), _ = checked(only_labels, Precision(3))
    assert "it needs scores (floating-point logits), not predicted classes" in problem


def test_a_label_that_a_collecting_metric_ignores_is_none_outside_of_the_classes():
    batch = {**BATCH, "label": np.array([0, -100, 2, 1], np.int32)}
    (problem,), _ = checked(classify, AUROC(), batch=batch)
    assert "the labels 'label' go from -100 to 2" in problem
    assert checked(classify, AUROC(ignore_label=-100), batch=batch) == ([], False)


# -- parameters that a step replaces -----------------------------------------------------------------------------------


def written(train, given, **options):
    learner = learner_for(train, given=given, **options)
    return trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH).written


def counted(model, batch):
    """A step that hands on a carry, and a cast of the rest."""
    cast = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), {"w": model["w"]})
    return classify(model, batch), {**cast, "carry": model["carry"] + 1}


class Layers(nnx.Module):
    """Layers in a loop, inside of `nnx.jit`, with statistics, noise and a weight that each call normalises."""

    def __init__(self):
        self.norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
        self.dropout, self.head = nnx.Dropout(0.5, rngs=nnx.Rngs(1)), nnx.Linear(3, 3, rngs=nnx.Rngs(2))
        make = nnx.vmap(lambda rngs: nnx.Linear(3, 3, rngs=rngs), axis_size=2)
        self.layers = make(nnx.Rngs(3).split(2))

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x, layer):
            return jnp.tanh(layer(x))

        x = nnx.jit(lambda norm, x: norm(x))(self.norm, forward(x, self.layers))
        self.head.kernel[...] /= jnp.linalg.norm(self.head.kernel[...])
        return nnx.remat(lambda head, x: head(x))(self.head, self.dropout(x))


def of_module(model, batch):
    return ClassificationOutput.from_logits(model(batch["x"]), batch["label"])


def test_a_trained_parameter_that_a_step_replaces_is_named():
    carrying = {**model(), "carry": jnp.zeros(2)}
    assert written(counted, carrying) == ["carry"]
    assert written(counted, carrying, trainable=lambda name, _: name == "w") == []


def test_what_a_step_hands_on_as_it_is_is_not_named():
    assert written(classify, model()) == []
    assert written(lambda model, batch: (classify(model, batch), model), model()) == []
    assert written(lambda model, batch: (classify(model, batch), jax.jit(lambda m: m)(model)), model()) == []
    assert written(of_module, Layers()) == []
    module = linen.Sequential([linen.Dense(4), linen.BatchNorm(use_running_average=False), linen.Dense(3)])
    assert written(of_module, Linen(module, module.init(jax.random.key(0), BATCH["x"]))) == []


def test_the_run_warns_of_parameters_that_a_step_replaces(tmp_path):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    builder.build({**model(), "carry": jnp.zeros(2)}, optax.sgd, 0.1, train_step=counted).fit([BATCH])
    assert "train_step replaces carry in its model, which has no effect" in (tmp_path / "experiment.log").read_text()


class Counting(nnx.Module):
    """Counts its calls, keeps the last shape, sets the mode of a part, and counts in a variable."""

    def __init__(self):
        self.head, self.count, self.kept = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), 0, nnx.Variable(jnp.array(0))
        self.teacher = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        self.count, self.last, self.head.width = self.count + 1, x.shape, x.shape[-1]
        self.kept[...] += 1
        self.teacher.eval()
        return self.teacher(self.head(x))


def assigned(given):
    learner = learner_for(of_module, given=given)
    return sorted(trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH).assigned)


def test_attributes_that_a_step_assigns_are_named():
    assert assigned(Counting()) == ["count"]  # the others are scratch, which the same step may read
    assert assigned(Layers()) == []


class Stateful(nnx.Module):
    """Assigns attributes whose values, such as None and 1, it also holds elsewhere."""

    def __init__(self, **held):
        self.attention = nnx.MultiHeadAttention(1, 3, decode=False, rngs=nnx.Rngs(0))  # with both
        self.head, self.kept = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), nnx.data((jnp.zeros(3), jnp.zeros(3)))
        self.names = tuple(held)
        for name, value in held.items():
            setattr(self, name, value)

    def __call__(self, x):
        self.attention.eval()
        x = self.attention(x[:, None])[:, 0]
        self.kept = nnx.data((x[0], x[1]))
        values = {"array": x, "carry": (x, {"c": x}), "number": 2, "pair": (1, 2)}
        for name in self.names:
            setattr(self, name, values[name])
        return self.head(x)


@pytest.mark.parametrize(
    ("attributes", "names"),
    [
        ({"number": 1}, ["number"]),
        ({"pair": (1, 1)}, ["pair.1"]),
        ({"number": 2, "pair": (1, 2)}, []),
        ({}, []),
    ],
)
def test_attributes_that_share_their_value_with_others_are_named(attributes, names):
    """nnx visits an object once, and 1 or None is one object wherever it stands."""
    assert assigned(Stateful(**attributes)) == names


@pytest.mark.parametrize("name", ["array", "carry"])
def test_arrays_in_the_place_of_none_are_named(name):
    """Newer versions of flax refuse them by themselves."""
    try:
        found = assigned(Stateful(**{name: None}))
    except LearnerError as error:
        found = error.code
    assert found in ([name], "step-trace-failed")


def test_the_run_warns_of_attributes_that_a_step_assigns(tmp_path):
    """The count is the same at each step: the loss of a warm-up that reads it would never change."""
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    result = builder.build(Counting(), optax.sgd, 0.1, train_step=of_module).fit([BATCH])
    assert (result.model.count, result.model.kept[...]) == (0, 1)
    assert "of its model, which has no effect: attributes" in (tmp_path / "experiment.log").read_text()


HOST = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("draw", "names"),
    [
        (lambda: np.random.rand(), ["np.random"]),
        (lambda: random.random(), ["random"]),
        (lambda: jax.random.uniform(jax.random.key(0)), []),
    ],
)
def test_global_generators_that_a_step_draws_from_are_named(draw, names):
    def noisy(model, batch):
        return classify(model, {**batch, "x": batch["x"] + draw()})

    assert host_generators(noisy) == names


def test_generators_of_a_step_and_of_on_batch_are_named():
    rng, unused = np.random.RandomState(0), np.random.default_rng(1)

    def augment(batch, key):
        return {**batch, "x": batch["x"] * rng.rand()}

    def noisy(model, batch):
        def inner():
            return unused.normal() if model is None else HOST.normal()

        return classify(model, {**batch, "x": batch["x"] + inner()})

    class Step:
        def __init__(self):
            self.rng = np.random.default_rng(2)

        def __call__(self, model, batch):
            return classify(model, {**batch, "x": batch["x"] + self.rng.normal()})

    assert host_generators(noisy) == ["HOST"]
    assert host_generators(Step()) == host_generators(functools.partial(Step().__call__)) == ["rng"]
    assert host_generators(classify, LearnerBuilder("unused").on_batch(augment)) == ["rng"]


def test_numbers_of_the_host_that_are_the_same_in_each_trace_are_right():
    """A constant mask of a seed, and another thread that draws meanwhile."""

    def masked(model, batch):
        np.random.seed(0)
        return classify(model, {**batch, "x": batch["x"] * np.random.rand()})

    def beside(model, batch):
        thread = threading.Thread(target=np.random.rand)
        thread.start()
        thread.join()
        return classify(model, batch)

    assert host_generators(masked) == host_generators(beside) == []


def test_generators_without_a_state_end_nothing():
    system, of_pcg = random.SystemRandom(), np.random.RandomState(np.random.PCG64(0))

    def names_them(model, batch):
        return classify(model, batch) if model is not None else (system, of_pcg, later)

    assert host_generators(names_them) == []
    later = 1


def host_generators(step, builder=None):
    builder = LearnerBuilder("unused") if builder is None else builder
    learner = builder.build(model(), optax.sgd, 0.1, train_step=step)
    return list(trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH).host_generators)


def test_the_run_warns_of_numbers_that_the_host_draws(tmp_path):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    noisy = lambda model, batch: classify(model, {**batch, "x": batch["x"] + np.random.rand()})  # noqa: E731
    builder.build(model(), optax.sgd, 0.1, train_step=noisy).fit([BATCH])
    assert "draws random numbers from np.random" in (tmp_path / "experiment.log").read_text()


@pytest.mark.parametrize("noise", [np.random.rand, lambda: 0.5])
def test_the_run_warns_of_numbers_that_the_host_draws_in_validation(tmp_path, noise):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    noisy = lambda model, batch: classify(model, {**batch, "x": batch["x"] + noise()})  # noqa: E731
    data = {"valid": [BATCH], "other": [BATCH]}
    builder.build(model(), optax.sgd, 0.1, train_step=classify, valid_step=noisy).fit([BATCH], data)
    log = (tmp_path / "experiment.log").read_text()
    assert log.count("valid_step draws random numbers from np.random when") == (noise is np.random.rand)


# -- what is not trained -----------------------------------------------------------------------------------------------


@jax.custom_vjp
def straight_through(x):
    return jax.lax.stop_gradient(jnp.round(x))


straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (g,))


def through_a_reference(model, batch):
    reference = jax.new_ref(jnp.zeros(3))
    reference[...] = model["w"].sum(0)
    return {"loss": reference[...].sum()}


def is_constant(train, given=None):
    learner = learner_for(train, given=given)
    return trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH).is_constant


def test_a_loss_without_parameters_is_known():
    stopped = jax.jit(lambda x: jax.lax.stop_gradient(x))
    assert is_constant(lambda model, batch: {"loss": batch["x"].sum()})
    assert is_constant(lambda model, batch: {"loss": stopped(model["w"]).sum() + batch["x"].sum()})
    assert not is_constant(classify)
    assert not is_constant(lambda model, batch: {"loss": straight_through(model["w"]).sum()})
    assert not is_constant(through_a_reference)
    assert not is_constant(lambda model, batch: {"loss": stopped(model["w"]).sum() + 1e-6 * model["w"].sum()})
    assert not is_constant(of_module, Layers())


@pytest.mark.parametrize(
    ("optimizer", "lr", "train", "warned"),
    [
        (lambda lr: optax.adam(1e-3), 0.1, classify, "ignores the learning rate"),
        (lambda lr: optax.adam(1e-3), 0.0, classify, None),
        (
            lambda lr: optax.masked(optax.sgd(lr), lambda params: {"w": jax.tree.leaves(params)[0].ndim == 2}),
            0.1,
            classify,
            None,
        ),
        (optax.adam, 0.1, classify, None),
        (optax.adam, 0.1, lambda model, batch: {"loss": batch["x"].sum()}, "depends on no parameter"),
    ],
)
def test_a_run_warns_where_nothing_is_trained(tmp_path, optimizer, lr, train, warned):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    builder.build(model(), optimizer, lr, train_step=train).fit([BATCH])
    warnings = [line for line in (tmp_path / "experiment.log").read_text().splitlines() if "WARNING" in line]
    assert [warned in line for line in warnings] == [True] * (warned is not None)


def test_statistics_of_linen_that_are_no_state_are_warned_of(tmp_path):
    module = linen.BatchNorm(use_running_average=True)
    variables = module.init(jax.random.key(0), BATCH["x"])

    def train(model, batch):
        return RegressionOutput.from_predictions(module.apply(model, batch["x"]), batch["x"])

    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    builder.build(variables, optax.sgd, 0.1, train_step=train).fit([BATCH])
    assert "Linen(module, variables) updates them" in (tmp_path / "experiment.log").read_text()


class DropLayer(linen.Module):
    """Layers of a loop, which gets keys for dropout in each mode."""

    deterministic: bool

    @linen.compact
    def __call__(self, x, _):
        return linen.Dropout(0.5, deterministic=self.deterministic)(linen.Dense(3)(x)), None


class Deep(linen.Module):
    deterministic: bool = False

    @linen.compact
    def __call__(self, x):
        split = {"params": True, "dropout": True}
        layers = linen.scan(DropLayer, variable_axes={"params": 0}, split_rngs=split, length=2)(self.deterministic)
        return linen.Dense(2)(layers(x, None)[0])


def in_its_mode(model, batch):
    return RegressionOutput.from_predictions(model(batch["x"]), batch["t"])


def in_eval_mode(model, batch):
    return in_its_mode(Linen(model.module.clone(deterministic=True), model.variables), batch)


def with_a_key(model, batch, rng):
    return in_its_mode(model, batch)


@pytest.mark.parametrize(
    ("valid_step", "rngs", "warns"),
    [
        (in_its_mode, ("dropout",), True),
        (in_eval_mode, ("dropout",), False),
        (with_a_key, ("dropout",), False),
        (in_its_mode, ("dropout", "noise"), False),  # it may be noise that was asked for
    ],
)
def test_dropout_of_linen_in_validation_is_warned_of(tmp_path, valid_step, rngs, warns):
    variables = Deep(deterministic=True).init(jax.random.key(0), BATCH["x"])
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    learner = builder.build(
        Linen(Deep(), variables, rngs), optax.sgd, 0.1, train_step=in_its_mode, valid_step=valid_step
    )
    learner.fit([BATCH], [BATCH])
    assert ("validation has dropout" in (tmp_path / "experiment.log").read_text()) == warns


@pytest.mark.parametrize(("predict_step", "warns"), [(in_its_mode, True), (in_eval_mode, False), (with_a_key, False)])
def test_dropout_of_linen_in_predictions_is_warned_of(tmp_path, predict_step, warns):
    variables = Deep(deterministic=True).init(jax.random.key(0), BATCH["x"])
    steps = {"train_step": in_its_mode, "predict_step": predict_step}
    learner = LearnerBuilder(tmp_path).build(Linen(Deep(), variables), optax.sgd, 0.1, **steps)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(learner.predict([BATCH, BATCH]))
    assert [(str(each.message).startswith("predict_step draws"), each.filename) for each in caught] == (
        [(True, __file__)] if warns else []
    )


def test_numbers_that_the_host_draws_in_predictions_are_warned_of(tmp_path):
    noisy = lambda model, batch: batch["x"] @ model["w"] + np.random.rand()  # noqa: E731
    learner = LearnerBuilder(tmp_path).build(model(), optax.sgd, 0.1, train_step=classify, predict_step=noisy)
    with pytest.warns(UserWarning, match="predict_step draws random numbers from np.random"):
        list(learner.predict([BATCH]))


class Noisy(NamedTuple):
    x: Any
    t: Any
    rng: Any


def test_a_field_of_the_batch_is_no_dropout(tmp_path):
    def valid_step(model, batch):
        return in_eval_mode(model, {"x": batch.x + batch.rng, "t": batch.t})

    def step(model, batch):
        return in_its_mode(model, {"x": batch.x, "t": batch.t})

    batch = Noisy(BATCH["x"], BATCH["t"], BATCH["x"])
    variables = Deep(deterministic=True).init(jax.random.key(0), batch.x)
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    model = Linen(Deep(), variables, ("dropout",))
    builder.build(model, optax.sgd, 0.1, train_step=step, valid_step=valid_step).fit([batch], [batch])
    assert "validation has dropout" not in (tmp_path / "experiment.log").read_text()
