"""Tests of the checks of steps before compilation: all problems are reported at once."""

import dataclasses
import functools
import random
import threading
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
    GeneratedOutput,
    LearnerBuilder,
    LearnerError,
    LearnerWarning,
    Linen,
    RegressionOutput,
    SequenceOutput,
    TrainOutput,
    eval_mode,
)
from learner.metrics import (
    AUROC,
    R2,
    Accuracy,
    Aggregate,
    By,
    CollectingMetric,
    ConfusionMatrix,
    FieldMean,
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
from learner.schedules import Linear
from learner.training.checks.step_checks import check_predict, trace_train, trace_valid
from learner.training.programs.compilation import CompileTimes
from tests.support.codes import raises_code
from tests.support.runs import line
from tests.support.small_models import BATCH as BATCH_OF_CASES
from tests.support.small_models import EquinoxNet, dict_step, make_dict, make_normed, normed_step

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
    """Return a built learner."""
    builder = LearnerBuilder("unused").metrics(*metrics).grads_accumulation(accumulate)
    given = model() if given is None else given
    update = options.get("update")
    optimizer = None if update else optax.adam
    return builder.build(given, optimizer, 0.1, train_step=None if update else train, valid_step=valid, **options)


def traced(train=classify, *metrics, batch=BATCH, **options):
    learner = learner_for(train, *metrics, **options)
    return trace_train(learner.definition.step, jax.eval_shape(learner.init), batch)


def checked(train=classify, *metrics, **options):
    step = traced(train, *metrics, **options)
    return step.problems, step.own_grads


def checked_valid(valid=classify, *metrics, batch=BATCH, split="valid", **options):
    learner = learner_for(classify, *metrics, valid=valid, **options)
    return trace_valid(learner.definition.step, jax.eval_shape(learner.init), batch, split).problems


# -- valid steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 3])
def test_valid_steps_have_no_problems_and_are_not_compiled(accumulate):
    metrics = Accuracy(), TopKAccuracy(2), LearningRate(), GradientNorm(), IterationSpeed()
    learner = learner_for(classify, *metrics, valid=classify, accumulate=accumulate)
    state = jax.eval_shape(learner.init)
    with CompileTimes() as times:
        step = trace_train(learner.definition.step, state, BATCH)
        assert (step.problems, step.facts) == ([], {"own_grads": False, "unfrozen": ()})
        assert trace_valid(learner.definition.step, state, BATCH, "valid").problems == []
        assert check_predict(learner.definition.step, state, BATCH) == []
    assert times.count == 0


def test_a_variable_of_nnx_may_be_the_loss():
    assert checked(lambda m, b: {"loss": nnx.Variable(loss_of(m))}) == ([], False)


@pytest.mark.full
def test_no_tracer_outlives_its_trace():
    """With `jax.checking_leaks`, users search for tracers that their steps keep."""
    kept = []

    def keeping(model, batch):
        kept.append(loss_of(model))
        return classify(model, batch)

    with jax.checking_leaks():
        assert checked(classify, Accuracy()) == ([], False)
        assert checked_valid(classify, Accuracy()) == []
        with pytest.raises(Exception, match="Leaked"):
            checked(keeping)


@pytest.mark.full
@pytest.mark.parametrize("sizes", [(4,), (4, 3)])
def test_a_step_that_uses_a_tracer_of_an_earlier_call_is_refused(tmp_path, sizes):
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


def test_a_step_that_computes_its_own_gradients_is_detected():
    def train(model, batch):
        return TrainOutput(jax.grad(lambda m: classify(m, batch).loss)(model), classify(model, batch))

    assert checked(train, Accuracy()) == ([], True)


def test_an_update_is_checked():
    def update(state, batch, lr, rng):
        return state, classify(state, batch)

    assert checked(update=update) == ([], False)
    (problem,), _ = checked(None, MeanAbsoluteError(), update=update)
    assert "the metric Mean Absolute Error needs predictions" in problem
    (problem,), _ = checked(update=lambda state, batch, lr, rng: (state, None))
    assert problem.startswith("update= returned nothing (None)")


@pytest.mark.parametrize("returns", [lambda state, output: (output, state), lambda state, output: output])
def test_an_update_that_does_not_return_a_state_and_an_output_is_refused(returns):
    with raises_code("step-update-returns"):
        checked(update=lambda state, batch, lr, rng: returns(state, classify(state, batch)))


@pytest.mark.parametrize(
    "output",
    [
        Own(jnp.float32(1)),
        Own(jnp.float16(1), 3),
        Own(jnp.bfloat16(1), jnp.int32(3)),
        Own(1.5, 2.5),
    ],
)
def test_custom_outputs_are_accepted(output):
    assert checked(lambda m, b: output) == ([], False)


class NamedOutput(NamedTuple):
    loss: Any
    extra: Any


def test_a_named_tuple_of_two_fields_is_an_output():
    assert checked(lambda m, b: NamedOutput(loss_of(m), b["x"])) == ([], False)


class Modes(nnx.Module):
    """A model whose mode determines the dtype of its loss."""

    def __init__(self):
        self.w, self.drop = nnx.Param(jnp.ones(2)), nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def train_step(self, batch):
        loss = self.drop(self.w[...]).sum()
        return Own(loss if not self.drop.deterministic else loss.astype(jnp.int32))

    valid_step = train_step


def test_steps_are_traced_in_their_modes():
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


@pytest.mark.parametrize("case", WRONG)
def test_a_malformed_output_is_a_problem(case):
    step, text = WRONG[case]
    problems, _ = checked(step, Accuracy())
    assert len(problems) == 1  # metrics are not checked
    assert text.format("train_step") in problems[0]
    (problem,) = checked_valid(step, Accuracy())
    assert text.format("valid_step") in problem


def test_a_missing_output_beside_own_gradients_is_a_problem():
    (problem,), own = checked(lambda m, b: TrainOutput({"w": m["w"]}, None))
    assert own
    assert "train_step returned nothing (None)" in problem


def test_the_message_shows_a_valid_output():
    (problem,), _ = checked(lambda m, b: None)
    assert "ClassificationOutput.from_logits(logits, labels)" in problem
    (problem,), _ = checked(lambda m, b: NoTree(loss_of(m)))
    assert "@jax.tree_util.register_dataclass" in problem


# -- batches -----------------------------------------------------------------------------------------------------------


def test_a_missing_key_is_an_error():
    batch = {"image": BATCH["x"], "label": BATCH["label"]}
    with raises_code("batch-missing-key", name="train_step", key="x"):
        checked(batch=batch)
    with raises_code("batch-missing-key", name="valid_step (on valid-dev)", key="x"):
        checked_valid(batch=batch, split="valid-dev")
    learner = learner_for(valid=classify)
    with raises_code("batch-missing-key", name="valid_step", key="x"):
        check_predict(learner.definition.step, jax.eval_shape(learner.init), batch)


def test_other_key_errors_are_raised_unchanged():
    def train(model, batch):
        return {}["x"]

    with pytest.raises(KeyError):
        checked(train)


CONFIG = {"temperature": 0.5}


@pytest.mark.parametrize("batch", [BATCH, {**BATCH, "more": ({"y": BATCH["label"]},)}])
def test_a_key_error_of_another_dict_is_not_attributed_to_the_batch(batch):
    def train(model, batch):
        assert type(batch) is dict
        return Own((batch["x"] @ model["w"]).sum() / CONFIG["temprature"])

    with pytest.raises(KeyError, match="temprature") as raised:
        checked(train, batch=batch)
    assert "while tracing train_step with a train batch" in "".join(raised.value.__notes__)


def unpacked(model, batch):
    label, _, x = batch
    return ClassificationOutput.from_logits(x.astype(jnp.float32) @ model["w"], label)


@pytest.mark.parametrize(
    ("step", "missing", "read"),
    [
        (unpacked, "'str' object has no attribute 'astype'", "read batch['x']"),
        (lambda m, b: Own((b.x @ m["w"]).sum()), "'dict' object has no attribute 'x'", "read batch['x']"),
        (lambda m, b: Own((b.label * m["w"]).sum()), "'dict' object has no attribute 'label'", "read batch['label']"),
        (lambda m, b: Own((b.astype(int) * m["w"]).sum()), "attribute 'astype'", "read batch['x']"),
    ],
    ids=["unpacked", "attribute", "another attribute", "passed as a whole"],
)
def test_a_dict_that_a_step_reads_as_arrays_is_an_error(step, missing, read):
    keys = "The batch is a dict with 'x', 't', 'label'"
    with raises_code("batch-is-dict", missing, keys, read, name="train_step"):
        checked(step)
    with raises_code("batch-is-dict", missing, keys, read, name="valid_step (on valid-dev)"):
        checked_valid(step, split="valid-dev")


def test_other_missing_attributes_are_raised_unchanged():
    for step in (lambda m, b: CONFIG.temperature, lambda m, b: "adam".x, lambda m, b: b["x"].pixels):
        with pytest.raises(AttributeError) as raised:
            checked(step)
        assert "while tracing train_step with a train batch" in "".join(raised.value.__notes__)


def test_a_missing_nested_key_is_named_with_its_path():
    batch = {"in": ({"pixels": BATCH["x"], "size": BATCH["label"]}, BATCH["x"])}

    def train(model, batch):
        return Own((jax.tree.map(lambda x: x, batch)["in"][0]["image"] @ model["w"]).sum())

    expected = ("batch-missing-key", "batch", "'in'", "][0][", "'image'", "batch['in']", "[0]", "'pixels'", "'size'")
    with raises_code(*expected):
        checked(train, batch=batch)


def test_a_key_that_a_step_handles_is_not_an_error():
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
def test_a_pair_with_a_loss_instead_of_an_output_is_refused(returned, named):
    with raises_code("step-output-without-loss", f"first element, {named},", "(output, model)", "has_aux"):
        checked(returned)


@pytest.mark.parametrize("make", [model, lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0))])
def test_a_pair_of_a_loss_and_gradients_is_refused(make):
    def train(model, batch):
        grad = nnx.value_and_grad if isinstance(model, nnx.Module) else jax.value_and_grad
        return grad(lambda m: m(batch["x"]).sum() if callable(m) else loss_of(m))(model)

    with raises_code("step-output-without-loss", "first element, float32[],", "TrainOutput(grads, output)"):
        checked(train, given=make())


def test_a_pair_of_outputs_is_refused():
    def both(model, batch):
        output = classify(model, batch)
        return output, RegressionOutput.from_predictions(output.logits[:, 0], output.logits[:, 1])

    with raises_code("step-output-pair", "RegressionOutput", "(output, model)"):
        checked(both)


def test_a_pair_of_dicts_is_refused():
    with raises_code("step-output-pair", "(output, model)"):
        checked(lambda model, batch: ({"loss": loss_of(model)}, {"loss": loss_of(model), "logits": batch["x"]}))


def test_errors_of_the_step_are_raised_unchanged():
    def train(model, batch):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as raised:
        checked(train)
    listed = "label: int32[4], t: float32[4, 2], x: float32[4, 3]"
    assert f"while tracing train_step with a train batch ({listed})" in raised.value.__notes__


def transposed(model, batch):
    return Own((batch["x"].T @ model["w"]).sum())  # [3, 4] @ [3, 3]


WIDE = {"x": np.zeros((4, 32), np.float32)}


def test_shape_errors_name_the_batch_and_the_line():
    with pytest.raises(LearnerError) as raised:
        checked(transposed)
    listed = "label: int32[4], t: float32[4, 2], x: float32[4, 3]"
    text = f"train_step cannot be traced with a train batch ({listed}): TypeError: dot_general requires contracting"
    assert str(raised.value).startswith(text)
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


def test_a_metric_that_needs_a_concrete_value_names_the_alternatives():
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
def test_a_step_that_needs_a_concrete_value_names_the_alternatives(looks):
    with raises_code("step-needs-value", "train_step", "jax.debug.print('{}', x)", "jnp.where(") as raised:
        checked(lambda m, b: Own(loss_of(m) * looks(loss_of(m))))
    assert f"({__file__}, line {looks.__code__.co_firstlineno})" in str(raised.value)
    assert "state" not in str(raised.value)


def test_a_layer_of_equinox_without_a_key_is_an_error():
    given = {"w": line(3, 3)["w"], "drop": equinox.nn.Dropout(0.5)}

    def step(model, batch):
        return Own(model["drop"](batch["x"] @ model["w"]).sum())

    with raises_code("step-needs-key", "train_step", __file__, "(model, batch, rng)", "jax.random.split(rng, len(x))"):
        checked(step, given=given)
    assert checked_valid(step, given=given) == []  # eval mode needs no key


@pytest.mark.parametrize(
    ("exchange", "advice"),
    [
        (lambda x: jax.lax.pmean(x, "data"), "averaged for you: leave pmean and psum out"),
        (lambda x: jax.lax.all_gather(x, "data")[0], "With strategy(Sharded()) a step has all rows of the batch"),
    ],
)
def test_an_unbound_axis_is_an_error(exchange, advice):
    def train(model, batch):
        return classify({"w": exchange(model["w"])}, batch)

    with raises_code("step-axis-unbound", "train_step", "axis name: data. Gradients", advice, "test_step_checks.py"):
        checked(train)


@pytest.mark.parametrize(
    ("changed", "change", "advice"),
    [
        (nnx.metrics.Average(), lambda metric, x: metric.update(values=x), "metrics() of the builder"),
        (nnx.Rngs(0), lambda rngs, x: rngs(), "(model, batch, rng)"),
        (nnx.BatchNorm(3, rngs=nnx.Rngs(0)), lambda layer, x: layer(x), "an attribute of the model"),
        (nnx.BatchNorm(3, rngs=nnx.Rngs(0)), lambda layer, x: jax.checkpoint(layer)(x), "nnx.remat"),
    ],
    ids=["metric", "rngs", "layer", "checkpoint"],
)
def test_a_change_of_an_nnx_object_outside_of_the_model_is_an_error(changed, change, advice):
    def train(model, batch):
        change(changed, batch["x"])
        return classify(model, batch)

    with raises_code("step-changes-nnx-object", "train_step", "Cannot mutate", advice, "test_step_checks.py"):
        checked(train)


def test_an_nnx_optimizer_outside_of_the_step_is_an_error():
    given = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(given, optax.sgd(0.1), wrt=nnx.Param)

    def train(model, batch):
        loss, grads = nnx.value_and_grad(lambda m: of_module(m, batch).loss)(model)
        optimizer.update(model, grads)
        return Own(loss)

    with raises_code("step-changes-nnx-object", "updates the model: return the output with the loss only"):
        checked(train, given=given)


def test_layers_of_flax_that_do_not_fit_the_data_are_errors():
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
def test_labels_outside_the_classes_are_a_problem(batch):
    low, high = batch["label"].min(), batch["label"].max()
    (problem,), _ = checked(batch=batch)
    assert f"the labels 'label' go from {low} to {high}" in problem
    assert "the logits of train_step have 3 classes (0 to 2)" in problem
    (problem,) = checked_valid(batch=batch)
    assert "the logits of valid_step have 3 classes" in problem


def test_labels_inside_the_classes_are_accepted():
    assert checked(batch=labelled(0, 1, 2, 2, dtype=np.uint8)) == ([], False)
    assert checked(batch=labelled(2, 2, 2, 2, dtype=np.int64)) == ([], False)


def test_masked_and_ignored_labels_are_not_checked():
    def masked(model, batch):
        return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["label"], batch["label"] >= 0)

    def ignored_by_loss(model, batch):
        return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["label"], ignore_label=-100)

    def ignored(model, batch):
        return Own(loss_of(model), 4, batch["x"] @ model["w"], batch["label"])

    batch = labelled(0, -100, 2, 1)
    assert checked(masked, batch=batch) == ([], False)
    assert checked(ignored_by_loss, batch=batch) == ([], False)
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
def test_labels_that_a_nested_metric_ignores_are_not_checked(wrapped):
    def with_groups(model, batch):
        return WithGroups(**vars(own_labels(model, batch)), label=batch["label"])

    batch = labelled(0, -100, 2, -100)
    assert checked(with_groups, wrapped(Accuracy(ignore_label=-100)), batch=batch) == ([], False)
    (problem,), _ = checked(with_groups, wrapped(Accuracy()), batch=batch)
    assert "go from -100 to 2" in problem


def test_labels_without_a_reader_are_not_checked():
    """For example, the loss is custom and only validation has a metric of labels."""
    batch = labelled(0, -100, 2, 9)
    assert checked(own_labels, Loss(), batch=batch) == ([], False)
    assert checked(own_labels, batch=labelled(9, 9, 9, 9)) == ([], False)


def test_the_error_of_labels_names_ignore_label_and_the_mask():
    for labels, ignored in (((0, -100, -100, 7), -100), ((255, 0, 1, 2), 255)):
        (problem,), _ = checked(batch=labelled(*labels))
        assert problem.endswith(f"to ignore some of them, give from_logits ignore_label={ignored}, or a mask")
        (problem,), _ = checked(own_labels, Accuracy(), batch=labelled(*labels))
        assert problem.endswith(f"such as labels != {ignored}, or its metrics ignore_label={ignored}")


@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        ((1, 2, 3, 3), "; if they count from 1, subtract 1 from the labels; otherwise they need 4 logits"),
        ((0, 1, 2, 3), "; they need 4 logits"),
        ((1, 2, 3, 6), "; they need 7 logits"),
        ((1, -1, 3, 2), "; if they count from 1, subtract 1 from the labels; otherwise they need 4 logits; to ignore"),
        ((0, 255, 255, 2), "; to ignore some of them, give from_logits ignore_label=255, or a mask"),
    ],
)
def test_the_error_of_labels_has_a_matching_remedy(labels, advice):
    (problem,), _ = checked(batch=labelled(*labels))
    assert f"3 classes (0 to 2){advice}" in problem
    assert ("mask" in problem) == (min(labels) < 0 or max(labels) == 255)


def test_computed_labels_are_not_checked():
    def shifted(model, batch):
        return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["label"] - 1)

    assert checked(shifted, batch=labelled(1, 2, 3, 3)) == ([], False)


def test_nested_labels_of_sequences_are_checked():
    def train(model, batch):
        return SequenceOutput.from_logits(batch["in"]["x"] @ model["w"], batch["in"]["y"])

    batch = {"in": {"x": np.ones((2, 5, 3), np.float32), "y": np.full((2, 5), 7)}}
    (problem,), _ = checked(train, batch=batch)
    assert "the labels 'in.y' go from 7 to 7" in problem


def test_traced_labels_are_not_checked():
    learner = learner_for()
    state = learner.init()
    problems = []
    jax.eval_shape(
        lambda batch: problems.append(trace_train(learner.definition.step, state, batch).problems), labelled(9, 9, 9, 9)
    )
    assert problems == [[]]


# -- metrics -----------------------------------------------------------------------------------------------------------


class Counting(Metric):
    """A valid metric; subclasses differ from it in one respect."""

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


class Forgets(Counting):
    def update(self, state, output, info):
        pass


class Nothing(Counting):
    def compute(self, state):
        pass


class CollectsLengths(CollectingMetric):
    name, fields = "Collects", ("lengths",)

    def collect(self, output):
        return output.lengths

    def compute(self, rows):
        return 0.0


class CollectsMean(CollectsLengths):
    fields = ("logits",)

    def collect(self, output):
        return output.logits.mean()


class CannotCollect(CollectingMetric):
    name = "Collects"

    def collect(self, output):
        raise ValueError("cannot be")

    def compute(self, rows):
        return 0.0


class OfTheRate(Counting):
    def update(self, state, output, info):
        return state + info.learning_rate


def test_a_validation_has_no_learning_rate():
    assert checked(classify, OfTheRate()) == ([], False)
    (problem,) = checked_valid(classify, OfTheRate())
    assert "the metric Counting cannot be computed from valid_step's output" in problem


@pytest.mark.parametrize("metric", [Counting(), Vector(), OfTheStep()])
def test_valid_metrics_have_no_problems(metric):
    assert checked(classify, metric) == ([], False)


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (MeanAbsoluteError(), "the metric Mean Absolute Error needs predictions, which"),
        (NeedsTwo(), "the metric Counting needs predictions, lengths, which"),
        (CollectsLengths(), "the metric Collects needs lengths, which"),
        (CannotCollect(), f"the metric Collects cannot be computed from train_step's output: {CANNOT_BE}"),
        (Raises(), f"the metric Counting cannot be computed from train_step's output: {CANNOT_BE}"),
        (WidensInUpdate(), "update of the metric Counting changed its state from ['float32[]'] to ['float32[2]']"),
        (RetypesInMerge(), "merge of the metric Counting changed its state from ['float32[]'] to ['int32[]']"),
        (Forgets(), "update of the metric Counting returned nothing (None)"),
        (Nothing(), "compute of the metric Counting returned nothing (None)"),
        (
            CollectsMean(),
            "collect of the metric Collects returned an array [] for a batch of 4 rows",
        ),
        (GivesTwo(), "the metric Counting gives [2] numbers; one that is numeric gives a scalar"),
        (TopKAccuracy(5), "Top-5 Accuracy"),
    ],
)
def test_invalid_metrics_are_problems(metric, text):
    (problem,), _ = checked(classify, metric)
    assert text in problem
    (problem,) = checked_valid(classify, metric)
    assert text.replace("train_step", "valid_step") in problem


def test_available_fields_are_listed():
    (problem,), _ = checked(classify, MeanAbsoluteError())
    assert problem.endswith("train_step's ClassificationOutput does not have; it has loss, logits, targets, weight")
    (problem,), _ = checked(lambda m, b: Own(loss_of(m)), Accuracy())
    assert problem.endswith("train_step's Own does not have; it has loss")


def test_all_problems_are_reported_at_once():
    problems, _ = checked(classify, MeanAbsoluteError(), GivesTwo(), Accuracy(), batch=labelled(0, 0, 0, 4))
    assert len(problems) == 3
    for problem, part in zip(problems, ("labels", "Mean Absolute Error", "Counting"), strict=True):
        assert part in problem


def test_a_regression_that_would_broadcast_is_an_error():
    with raises_code("output-regression-shapes"):
        checked(lambda m, b: RegressionOutput.from_predictions(b["x"] @ m["w"], b["t"]))


# -- metrics of classes and of numbers ---------------------------------------------------------------------------------


def test_metrics_with_unsuitable_scores_are_problems():
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


def test_labels_that_a_collecting_metric_ignores_are_not_checked():
    batch = {**BATCH, "label": np.array([0, -100, 2, 1], np.int32)}
    (problem,), _ = checked(classify, AUROC(), batch=batch)
    assert "the labels 'label' go from -100 to 2" in problem
    assert checked(classify, AUROC(ignore_label=-100), batch=batch) == ([], False)


# -- parameters that a step replaces -----------------------------------------------------------------------------------


def written(train, given, **options):
    return traced(train, given=given, **options).written


def counted(model, batch):
    """Return a model with a new carry and a cast of the weights."""
    cast = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), {"w": model["w"]})
    return classify(model, batch), {**cast, "carry": model["carry"] + 1}


class Layers(nnx.Module):
    """Layers in a loop and inside `nnx.jit`, with statistics, noise and a weight that each call normalizes."""

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


@pytest.mark.full
def test_unchanged_parameters_are_not_named():
    assert written(classify, model()) == []
    assert written(lambda model, batch: (classify(model, batch), model), model()) == []
    assert written(lambda model, batch: (classify(model, batch), jax.jit(lambda m: m)(model)), model()) == []
    assert written(of_module, Layers()) == []
    module = linen.Sequential([linen.Dense(4), linen.BatchNorm(use_running_average=False), linen.Dense(3)])
    assert written(of_module, Linen(module, module.init(jax.random.key(0), BATCH["x"]))) == []


def test_an_optimizer_inside_the_step_of_a_module_is_named():
    def step(model, batch):
        loss, grads = nnx.value_and_grad(lambda m: of_module(m, batch).loss)(model)
        nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param).update(model, grads)
        return Own(loss)

    assert written(step, nnx.Linear(3, 3, rngs=nnx.Rngs(0))) == ["bias", "kernel"]


class Blocks(nnx.Module):
    """Rematerialised layers in a loop, which return every parameter as it was."""

    def __init__(self):
        self.layers = nnx.vmap(lambda rngs: nnx.Linear(3, 3, rngs=rngs), axis_size=2)(nnx.Rngs(3).split(2))

    def __call__(self, x):
        block = nnx.remat(lambda layer, x: jnp.tanh(layer(x)))
        return nnx.scan(lambda x, layer: block(layer, x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.layers)


@pytest.mark.parametrize(
    "make",
    [Blocks, lambda: nnx.SpectralNorm(nnx.Linear(3, 3, use_bias=False, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(1))],
    ids=["scan of remat", "spectral norm"],
)
def test_layers_that_replace_all_parameters_of_a_module_are_not_named(make):
    assert written(of_module, make()) == []


@pytest.mark.full
def test_a_run_warns_about_replaced_parameters(tmp_path):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    builder.build({**model(), "carry": jnp.zeros(2)}, optax.sgd, 0.1, train_step=counted).fit([BATCH])
    assert "train_step replaces carry in its model, which has no effect" in (tmp_path / "experiment.log").read_text()


class Counting(nnx.Module):
    """Counts calls in an attribute and in a variable, keeps the last shape, and sets the mode of a part."""

    def __init__(self):
        self.head, self.count, self.kept = nnx.Linear(3, 3, rngs=nnx.Rngs(0)), 0, nnx.Variable(jnp.array(0))
        self.teacher = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        self.count, self.last, self.head.width = self.count + 1, x.shape, x.shape[-1]
        self.kept[...] += 1
        self.teacher.eval()
        return self.teacher(self.head(x))


def assigned(given):
    return sorted(traced(of_module, given=given).assigned)


@pytest.mark.full
def test_attributes_that_a_step_assigns_are_named():
    assert assigned(Counting()) == ["count"]  # a step may read back its other assignments itself
    assert assigned(Layers()) == []


def counting(model, batch):
    model["n"] = model["n"] + 1
    return classify(model, batch)


def counting_in_a_variable(model, batch):
    model["n"][...] += 1
    model["scratch"], model["w"] = batch["x"], model["w"] * 1
    return classify(model, batch)


def for_itself(model, batch):
    model["w"], model["scratch"] = jax.jit(lambda x: x)(model["w"]), batch["x"]
    return classify(model, batch)


@pytest.mark.parametrize(
    ("step", "number", "names", "count"),
    [
        (counting, jnp.int32(0), ["n"], 0),
        (lambda model, batch: (counting(model, batch), model), jnp.int32(0), [], 3),
        (counting_in_a_variable, nnx.BatchStat(jnp.int32(0)), ["w"], 3),
        (for_itself, jnp.int32(0), [], 0),
    ],
    ids=["lost", "returned", "variable", "unchanged"],
)
def test_items_that_a_step_assigns_without_returning_them_are_named(tmp_path, step, number, names, count):
    """A variable outside of a module keeps what a step assigns, as those of modules do."""
    given = {**model(), "n": number}
    assert list(traced(step, given=given).lost) == names
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None).num_epochs(1)
    result = builder.build(given, optax.sgd, 0.1, train_step=step).fit([BATCH] * 3).model
    assert int(result["n"] if isinstance(number, jax.Array) else result["n"][...]) == count
    assert result.keys() == given.keys()
    assert ("in the containers of its model" in (tmp_path / "experiment.log").read_text()) == bool(names)


class Stateful(nnx.Module):
    """Assigns attributes whose previous values, such as None and 1, also exist elsewhere in the model."""

    def __init__(self, **held):
        self.attention = nnx.MultiHeadAttention(1, 3, decode=False, rngs=nnx.Rngs(0))  # contains both
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
def test_attributes_that_share_their_value_are_named(attributes, names):
    """nnx visits each object once, and all occurrences of 1 or None are one object."""
    assert assigned(Stateful(**attributes)) == names


@pytest.mark.parametrize("name", ["array", "carry"])
def test_arrays_in_place_of_none_are_named(name):
    """Newer versions of flax refuse them."""
    try:
        outcome = assigned(Stateful(**{name: None}))
    except LearnerError as error:
        outcome = error.code
    assert outcome in ([name], "step-trace-failed")


@pytest.mark.full
def test_a_run_warns_about_assigned_attributes(tmp_path):
    """The count is the same in each step, so a warm-up that reads it would never progress."""
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    result = builder.build(Counting(), optax.sgd, 0.1, train_step=of_module).fit([BATCH])
    assert (result.model.count, result.model.kept[...]) == (0, 1)
    assert "of its model, which has no effect: attributes" in (tmp_path / "experiment.log").read_text()


def test_an_equinox_state_that_a_step_does_not_return_is_noticed():
    def loses_state(given, step):
        return traced(step, given=given, batch=BATCH_OF_CASES).loses_state

    assert loses_state(make_normed(), lambda model, batch: normed_step(model, batch)[0])
    assert not loses_state(make_normed(), normed_step)
    assert not loses_state(make_dict(), lambda model, batch, rng: dict_step(model, batch, rng)[0])


class Normed(nnx.Module):
    def __init__(self, evaluated):
        rngs = nnx.Rngs(0)
        self.hidden, self.norm = nnx.Linear(3, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        for name in evaluated:
            getattr(self, name).eval()


def of_modes(model, batch):
    predictions = model.drop(model.norm(model.hidden(batch["x"])))
    return RegressionOutput.from_predictions(predictions, batch["y"])


def of_fixed_norm(model, batch):
    predictions = model.drop(eval_mode(model.norm)(model.hidden(batch["x"])))
    return RegressionOutput.from_predictions(predictions, batch["y"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("evaluated", "frozen", "step", "named"),
    [
        ((), "", of_modes, []),
        ((), "norm", of_modes, []),
        (("norm",), "", of_modes, ["norm"]),
        (("norm",), "", of_fixed_norm, []),
        (("norm", "drop"), "", of_modes, []),  # a whole model that is trained on
        (("norm", "drop"), "hidden", of_modes, []),
        (("norm", "drop"), "norm", of_modes, ["norm"]),
        (("norm", "drop"), "norm", of_fixed_norm, []),
    ],
)
def test_layers_in_eval_mode_that_a_step_runs_in_train_mode_are_named(evaluated, frozen, step, named):
    for model, prefix, of_model in (
        (Normed(evaluated), "", step),
        ({"net": Normed(evaluated)}, "net.", lambda model, batch: step(model["net"], batch)),
    ):
        trainable = (lambda path, x: frozen not in path) if frozen else None
        found = traced(of_model, given=model, trainable=trainable, batch=BATCH_OF_CASES)
        assert found.switched == [prefix + name for name in named]


@pytest.mark.parametrize(
    ("step", "frozen", "named"),
    [
        (of_modes, "norm", ["norm"]),
        (of_modes, "norm.bias", []),  # its scale is trained
        (of_modes, "hidden", []),
        (of_modes, "", []),
        (of_fixed_norm, "norm", []),
    ],
)
def test_frozen_layers_whose_statistics_change_are_named(step, frozen, named):
    trainable = (lambda path, x: frozen not in path) if frozen else None
    for model, prefix, of_model in (
        (Normed(()), "", step),
        ({"net": Normed(())}, "net.", lambda model, batch: step(model["net"], batch)),
    ):
        found = traced(of_model, given=model, trainable=trainable, batch=BATCH_OF_CASES)
        assert found.moving == [prefix + name for name in named]


def test_a_frozen_linen_layer_whose_statistics_change_is_named(tmp_path):
    module = linen.Sequential([linen.BatchNorm(use_running_average=False), linen.Dense(2)])
    net = Linen(module, module.init(jax.random.key(0), BATCH_OF_CASES["x"]))

    def step(model, batch):
        return RegressionOutput.from_predictions(model(batch["x"]), batch["y"])

    builder = LearnerBuilder(tmp_path / "run").renderer(None).freeze("^layers_0")
    with pytest.warns(LearnerWarning, match="frozen, but train_step changes the statistics"):
        builder.build(net, optax.sgd, 0.1, train_step=step).fit([BATCH_OF_CASES])


def test_equinox_layers_in_eval_mode_that_a_step_runs_in_train_mode_are_named(tmp_path):
    pair = [EquinoxNet(), equinox.nn.inference_mode(EquinoxNet(seed=1))]

    def summed(model, batch, rng):
        outputs = [EquinoxNet.train_step(net, batch, rng) for net in model]
        return dataclasses.replace(outputs[0], loss=outputs[0].loss + outputs[1].loss)

    def fixed(model, batch, rng):
        return summed([model[0], eval_mode(model[1])], batch, rng)

    for fn, named in ((summed, ["1.drop"]), (fixed, [])):
        assert traced(fn, given=pair, batch=BATCH_OF_CASES).switched == named
    LearnerBuilder(tmp_path).renderer(None).build(pair, optax.sgd, 0.1, train_step=summed).fit([BATCH_OF_CASES])
    assert "1.drop of the model was in eval mode" in (tmp_path / "experiment.log").read_text()


def traced_update(change, given):
    return traced(given=given, update=lambda state, batch, lr, rng: change(state, batch))


def test_attributes_that_an_update_assigns_are_named():
    def update(state, batch):
        return state, of_module(state["net"], batch)

    step = traced_update(update, {"net": Counting(), "rate": jnp.ones(())})
    assert (step.assigned, step.is_unchanged) == (["net.count"], True)
    assert traced_update(lambda net, batch: (net, of_module(net, batch)), Counting()).assigned == ["count"]


def test_an_update_that_returns_its_parameters_unchanged_is_noticed():
    def forgets(state, batch):
        _ = jax.tree.map(lambda w: w + 1, state)
        return state, classify(state, batch)

    def changes(state, batch):
        return {"w": state["w"] + 1}, classify(state, batch)

    def counts(state, batch):
        return {**state, "count": state["count"] + 1}, Own(jnp.float32(0))

    assert traced_update(forgets, model()).is_unchanged
    assert not traced_update(changes, model()).is_unchanged
    assert traced_update(counts, {"w": jnp.ones(()), "count": jnp.int32(0)}).is_unchanged


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "lr", "warnings"),
    [
        (lambda w, lr: w - lr, 0.1, []),
        (lambda w, lr: w - 1, 0.1, ["ignores the learning rate"]),
        (lambda w, lr: w - 1, 0.0, []),
        (lambda w, lr: w, 0.0, ["returns its parameters unchanged"]),
    ],
)
def test_a_run_warns_about_updates_without_effect(tmp_path, change, lr, warnings):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    update = lambda state, batch, lr, rng: ({"w": change(state["w"], lr)}, classify(state, batch))  # noqa: E731
    builder.build(model(), None, lr, update=update).fit([BATCH])
    log = (tmp_path / "experiment.log").read_text()
    assert [
        text for text in ("ignores the learning rate", "returns its parameters unchanged") if text in log
    ] == warnings


def thrice(step):
    return jnp.where(step < 3, 0.1, 0.0)


@pytest.mark.full
@pytest.mark.parametrize(
    ("optimizer", "lr", "weight", "warns"),
    [
        (lambda lr: optax.MultiSteps(optax.sgd(lr), 2), thrice, 0.1, True),  # the updates of steps 1, 3, 5, ...
        (lambda lr: optax.MultiSteps(optax.sgd(thrice), 2), 0.0, 0.3, False),
        (lambda lr: optax.MultiSteps(optax.sgd(lr), 2), 0.1, 0.6, False),
        (lambda lr: optax.MultiSteps(optax.sgd(lr), 2), optax.constant_schedule(0.1), 0.6, False),
        (lambda lr: optax.MultiSteps(optax.sgd(lr), 2), Linear(0.1, over=10), 0.25, True),
        (lambda lr: optax.MultiSteps(optax.sgd(lr), 2), Linear(0.1), 0.3, False),
        (optax.sgd, thrice, 0.3, False),
    ],
)
def test_a_run_warns_about_an_optimizer_that_accumulates_with_a_schedule(tmp_path, optimizer, lr, weight, warns):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    learner = builder.build({"w": jnp.zeros(1)}, optimizer, lr, train_step=lambda m, b: Own(-m["w"][0] * b["x"].mean()))
    trained = learner.fit([{"x": np.ones(2, np.float32)}] * 12).model
    np.testing.assert_allclose(trained["w"], [weight], rtol=1e-6)
    assert ("optax.MultiSteps" in (tmp_path / "experiment.log").read_text()) == warns


def test_a_run_warns_about_python_numbers_in_a_tree_of_arrays(tmp_path):
    def step(model, batch):
        return Own(((batch["x"] @ model["w"]) * model["scale"] - 1).mean() ** 2)

    for index, (scale, warns) in enumerate([(1.0, True), (np.float32(1), False)]):
        builder = LearnerBuilder(tmp_path / str(index)).renderer(None).with_file_checkpointer(None)
        builder.build({**model(), "scale": scale}, optax.sgd, 0.1, train_step=step).fit([BATCH])
        assert ("not trained: scale" in (tmp_path / str(index) / "experiment.log").read_text()) == warns


class Normalized(nnx.Module):
    def __init__(self):
        self.body = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.norm = nnx.SpectralNorm(self.body, rngs=nnx.Rngs(1))
        self.head = nnx.Linear(3, 3, rngs=nnx.Rngs(2))


@pytest.mark.parametrize(
    ("body", "normalizes"),
    [
        (lambda model, x: model.norm(x, update_stats=True), True),
        (lambda model, x: model.body(x), False),
        (nnx.remat(lambda model, x: model.body(x)), False),  # assigns every parameter as it was
        (nnx.jit(lambda model, x: model.body(x)), False),
    ],
    ids=["normalized", "called", "remat", "jit"],
)
def test_a_run_warns_about_frozen_parameters_that_a_step_changes(tmp_path, body, normalizes):
    def step(model, batch):
        return ClassificationOutput.from_logits(model.head(body(model, batch["x"])), batch["label"])

    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None).freeze("^body")
    result = builder.build(Normalized(), optax.sgd, 0.0, train_step=step).fit([BATCH])
    changed = not np.array_equal(result.model.body.kernel[...], Normalized().body.kernel[...])
    assert (changed, "train_step assigns body.kernel" in (tmp_path / "experiment.log").read_text()) == (normalizes,) * 2


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


def test_host_numbers_that_are_equal_in_each_trace_are_accepted():
    """One step draws a mask with a constant seed; during another, a different thread draws."""

    def masked(model, batch):
        np.random.seed(0)
        return classify(model, {**batch, "x": batch["x"] * np.random.rand()})

    def beside(model, batch):
        thread = threading.Thread(target=np.random.rand)
        thread.start()
        thread.join()
        return classify(model, batch)

    assert host_generators(masked) == host_generators(beside) == []


def test_generators_without_a_readable_state_are_skipped():
    system, of_pcg = random.SystemRandom(), np.random.RandomState(np.random.PCG64(0))

    def names_them(model, batch):
        return classify(model, batch) if model is not None else (system, of_pcg, later)

    assert host_generators(names_them) == []
    later = 1


def host_generators(step, builder=None):
    builder = LearnerBuilder("unused") if builder is None else builder
    learner = builder.build(model(), optax.sgd, 0.1, train_step=step)
    return list(trace_train(learner.definition.step, jax.eval_shape(learner.init), BATCH).host_generators)


@pytest.mark.full
def test_a_run_warns_about_host_numbers(tmp_path):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    noisy = lambda model, batch: classify(model, {**batch, "x": batch["x"] + np.random.rand()})  # noqa: E731
    builder.build(model(), optax.sgd, 0.1, train_step=noisy).fit([BATCH])
    assert "draws random numbers from np.random" in (tmp_path / "experiment.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize("noise", [np.random.rand, lambda: 0.5])
def test_a_run_warns_about_host_numbers_in_validation(tmp_path, noise):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    noisy = lambda model, batch: classify(model, {**batch, "x": batch["x"] + noise()})  # noqa: E731
    data = {"valid": [BATCH], "other": [BATCH]}
    builder.build(model(), optax.sgd, 0.1, train_step=classify, valid_step=noisy).fit([BATCH], data)
    log = (tmp_path / "experiment.log").read_text()
    assert log.count("valid_step draws random numbers from np.random when") == (noise is np.random.rand)


# -- nothing to train --------------------------------------------------------------------------------------------------


@jax.custom_vjp
def straight_through(x):
    return jax.lax.stop_gradient(jnp.round(x))


straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, g: (g,))


def through_a_reference(model, batch):
    reference = jax.new_ref(jnp.zeros(3))
    reference[...] = model["w"].sum(0)
    return {"loss": reference[...].sum()}


def is_constant(train, given=None):
    return traced(train, given=given).is_constant


@pytest.mark.full
def test_a_loss_without_parameters_is_detected():
    stopped = jax.jit(lambda x: jax.lax.stop_gradient(x))
    assert is_constant(lambda model, batch: {"loss": batch["x"].sum()})
    assert is_constant(lambda model, batch: {"loss": stopped(model["w"]).sum() + batch["x"].sum()})
    assert not is_constant(classify)
    assert not is_constant(lambda model, batch: {"loss": straight_through(model["w"]).sum()})
    assert not is_constant(through_a_reference)
    assert not is_constant(lambda model, batch: {"loss": stopped(model["w"]).sum() + 1e-6 * model["w"].sum()})
    assert not is_constant(of_module, Layers())


@pytest.mark.full
@pytest.mark.parametrize(
    ("optimizer", "lr", "train", "warned"),
    [
        (lambda lr: optax.adam(1e-3), 0.1, classify, "ignores the learning rate"),
        (lambda lr: optax.adam(1e-3), 0.0, classify, None),
        pytest.param(
            lambda lr: optax.masked(optax.sgd(lr), lambda params: {"w": jax.tree.leaves(params)[0].ndim == 2}),
            0.1,
            classify,
            None,
            marks=pytest.mark.full,
        ),
        (optax.adam, 0.1, classify, None),
        (optax.adam, 0.1, lambda model, batch: {"loss": batch["x"].sum()}, "depends on no parameter"),
    ],
)
def test_a_run_warns_if_nothing_is_trained(tmp_path, optimizer, lr, train, warned):
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    builder.build(model(), optimizer, lr, train_step=train).fit([BATCH])
    warnings = [line for line in (tmp_path / "experiment.log").read_text().splitlines() if "WARNING" in line]
    assert [warned in line for line in warnings] == [True] * (warned is not None)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_gradients_without_a_loss_scale_are_warned_about(tmp_path, precision):
    sam = lambda lr: optax.contrib.sam(optax.sgd(lr), optax.sgd(0.1), sync_period=2, opaque_mode=True)  # noqa: E731
    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None).precision(precision)
    builder.build(model(), sam, 0.1, train_step=classify).fit([BATCH])
    log = (tmp_path / "experiment.log").read_text()
    assert ("differentiates the loss again" in log) is (precision == "float16")


@pytest.mark.full
def test_linen_statistics_outside_the_state_are_warned_about(tmp_path):
    module = linen.BatchNorm(use_running_average=True)
    variables = module.init(jax.random.key(0), BATCH["x"])

    def train(model, batch):
        return RegressionOutput.from_predictions(module.apply(model, batch["x"]), batch["x"])

    builder = LearnerBuilder(tmp_path).renderer(None).with_file_checkpointer(None)
    builder.build(variables, optax.sgd, 0.1, train_step=train).fit([BATCH])
    assert "Linen(module, variables) updates them" in (tmp_path / "experiment.log").read_text()


class DropLayer(linen.Module):
    """A layer of a loop that receives keys for dropout in each mode."""

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


@pytest.mark.full
@pytest.mark.parametrize(
    ("valid_step", "rngs", "warns"),
    [
        (in_its_mode, ("dropout",), True),
        (in_eval_mode, ("dropout",), False),
        (with_a_key, ("dropout",), False),
        (in_its_mode, ("dropout", "noise"), False),  # the draws may be intended noise
    ],
)
def test_linen_dropout_in_validation_is_warned_about(deep, valid_step, rngs, warns):
    """`test_a_run_warns_about_host_numbers_in_validation` covers how a run shows these warnings."""
    texts = draw_warnings(Linen(Deep(), deep, rngs), in_its_mode, valid_step, BATCH)
    assert ["validation has dropout" in text for text in texts] == [True] * warns


@pytest.fixture(scope="module")
def deep():
    return Deep(deterministic=True).init(jax.random.key(0), BATCH["x"])


def draw_warnings(model, train_step, valid_step, batch):
    learner = learner_for(train_step, given=model, valid=valid_step)
    return trace_valid(learner.definition.step, jax.eval_shape(learner.init), batch, "valid").draw_warnings


@pytest.mark.full
@pytest.mark.parametrize(("predict_step", "warns"), [(in_its_mode, True), (in_eval_mode, False), (with_a_key, False)])
def test_linen_dropout_in_predictions_is_warned_about(deep, predict_step, warns):
    learner = learner_for(in_its_mode, given=Linen(Deep(), deep), predict_step=predict_step)
    texts = check_predict(learner.definition.step, jax.eval_shape(learner.init), BATCH)
    assert [text.startswith("predict_step draws") for text in texts] == [True] * warns


def test_host_numbers_in_predictions_are_warned_about(tmp_path):
    noisy = lambda model, batch: batch["x"] @ model["w"] + np.random.rand()  # noqa: E731
    learner = LearnerBuilder(tmp_path).build(model(), optax.sgd, 0.1, train_step=classify, predict_step=noisy)
    with pytest.warns(UserWarning, match="predict_step draws random numbers from np.random") as caught:
        list(learner.predict([BATCH, BATCH]))
    assert [warning.filename for warning in caught] == [__file__]


class Noisy(NamedTuple):
    x: Any
    t: Any
    rng: Any


@pytest.mark.full
def test_a_batch_field_named_rng_is_not_dropout(deep):
    def valid_step(model, batch):
        return in_eval_mode(model, {"x": batch.x + batch.rng, "t": batch.t})

    def step(model, batch):
        return in_its_mode(model, {"x": batch.x, "t": batch.t})

    batch = Noisy(BATCH["x"], BATCH["t"], BATCH["x"])
    assert draw_warnings(Linen(Deep(), deep, ("dropout",)), step, valid_step, batch) == []


class OfComplex(MeanMetric):
    name, fields = "Of Complex", ("predictions",)

    def update(self, state, output, info):
        return state.add(jnp.abs(output.predictions))


def test_metrics_of_real_numbers_refuse_complex_fields():
    def step(model, batch):
        z = jax.lax.complex(batch["x"] @ model["w"], batch["x"] @ model["w"])[:, 0]
        return {"loss": jnp.abs(z).mean(), "predictions": z, "targets": z}

    whole = Aggregate("Sum", {"a": OfComplex()}, lambda a: a, higher_is_better=False)
    assert checked(step, OfComplex(), whole) == ([], False)
    (problem,), _ = checked(step, MeanAbsoluteError())
    assert "the metric Mean Absolute Error is of real numbers, and predictions, targets of train_step's" in problem


def test_a_mean_of_a_field_needs_its_rows():
    def step(model, batch):
        each = (batch["x"] @ model["w"])[:, 0]
        return {"loss": each.mean(), "each": each, "heads": jnp.stack([each.mean()] * 3), "two": jnp.tile(each, 2)}

    assert checked(step, FieldMean("each"), FieldMean("loss", "Mean"), FieldMean("two")) == ([], False)
    (problem,), _ = checked(step, FieldMean("heads"))
    assert "that field of train_step's output has the shape [3] for 4 rows" in problem


def test_a_generated_output_without_a_loss_is_known():
    def valid(scored):
        def step(model, batch):
            output = classify(model, batch)
            tokens = batch["label"][:, None]
            return GeneratedOutput.of(tokens, tokens, scored=output if scored else None)

        return step

    def has_loss(step):
        learner = learner_for(classify, valid=step)
        return trace_valid(learner.definition.step, jax.eval_shape(learner.init), BATCH, "valid").has_loss

    assert [has_loss(step) for step in (classify, valid(True), valid(False))] == [True, True, False]
