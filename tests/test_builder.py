"""Tests of the builder: each option is checked at once, and all problems of a learner are reported in one error."""

import functools
import inspect
import itertools
import logging
import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import learner.metrics
from learner import (
    Interrupter,
    Learner,
    LearnerBuilder,
    LearnerError,
    Linen,
    MetricEarlyStopping,
    Policy,
    ReduceOnPlateau,
)
from learner.events import Listener
from learner.loggers import MemoryLogger, MetricLogger
from learner.metrics import Accuracy, CollectingMetric, LearningRate, Loss, Metric, TopKAccuracy
from learner.optimizers import AdamW, Ema
from learner.records import CompactRecorder
from learner.renderers import PlainRenderer
from learner.strategies import Replicated, Sharded, fsdp
from learner.training.programs.compilation import CompileTimes
from tests.support.codes import named_case, raises_code
from tests.support.more_metrics import MAKE
from tests.support.runs import Net, batches, build_line, line, line_step, model_bits, quiet, tree_of, valid_data

pytestmark = pytest.mark.usefixtures("compiled_once")


class Words(CollectingMetric):
    """A metric whose value is a text."""

    name = "Words"
    numeric = False

    def collect(self, output):
        return output.targets

    def compute(self, rows):
        return len(rows)

    def text(self, value):
        return f"{value} rows"


class Nameless(Words):
    name = ""


class Slashed(Words):
    name = "a/b"


class Loose(Words):
    name = "top-5_accuracy"


def hook(info, model):
    return None


def call(builder, option, arguments):
    method = getattr(builder, option)
    return method(**arguments) if isinstance(arguments, dict) else method(*arguments)


# For each option: accepted arguments, a tuple or a dict, and rejected arguments with a part of the message.
OPTIONS = {
    "metrics": [(Accuracy(), TopKAccuracy(2))],
    "metric_train": [(Accuracy(), TopKAccuracy(2))],
    "metric_valid": [(Accuracy(), TopKAccuracy(2))],
    "metric_train_numeric": [(Accuracy(), TopKAccuracy(2))],
    "metric_valid_numeric": [(Accuracy(), TopKAccuracy(2))],
    "metric_loggers": [(MemoryLogger(), MemoryLogger()), ()],
    "renderer": [(PlainRenderer(),), (None,)],
    "application_logger": [(True,), (None,), (False,), (logging.getLogger("mine"),)],
    "summary": [(), (False,), (True, 2)],
    "num_epochs": [(3,)],
    "num_steps": [(3,)],
    "valid_every": [(3,), (None, 2), (500, 0, "ood")],
    "valid_first": [(), (False,)],
    "valid_batches": [(3,), (3, True)],
    "grads_accumulation": [(3,), ("auto",), (2, 4), (1, "auto")],
    "steps_per_dispatch": [(3,)],
    "with_batch_size": [(3,)],
    "seed": [(0,), (7,), (2**63 - 1,)],
    "population": [{"seed": range(3)}, {"lr": [1e-4, 1e-3]}],
    "halving": [("valid/Loss",), ("valid/Odd", 2, 1 / 3, "max")],
    "exploit": [("valid/Loss",), ("valid/Odd", 2, 0.5, [0.5, 2.0], "max")],
    "devices": [(1,), (jax.devices()[:1],), (8,), ("all",), ([2, 4],)],
    "strategy": [(Replicated(),), (Sharded(rules=fsdp()),)],
    "precision": [("float32",), ("bfloat16", "highest"), ("float16",), (Policy(compute="bfloat16"),)],
    "remat": [("dots_saveable",), (jax.checkpoint_policies.save_only_these_names("a"),), (None,)],
    "freeze": [("^b$",), (lambda path, x: path == "w",), ()],
    "compilation_cache": [("cache",)],
    "with_file_checkpointer": [
        (),
        (None,),
        (3, 2, 5, "valid/Loss", "max", 2, 10, 60.0, CompactRecorder(), "elsewhere"),
    ],
    "checkpoint": [(3,), ("best",), ("latest",), (None, 12)],
    "resume": [()],
    "initial_from": [
        ("runs/a",),
        ("runs/a", "latest", True),
        (Path("runs/a"), 3),
        ("runs/a", "best", True, 12, [("^", "a.")]),
    ],
    "early_stopping": [(MetricEarlyStopping("valid/Loss"),)],
    "interrupter": [(Interrupter(),)],
    "on_sigterm": [("exit",), ("return",)],
    "on_save_error": [("raise",), ("warn",)],
    "restore_best": [(), (False,)],
    "on_nonfinite": [("raise",), ("stop",), ("skip",), ("skip", 3), ("ignore",)],
    "profile": [((10, 20),), ((0, None),), ([5, 6],)],
    "watchdog": [(60,), (0.5, "log"), (60, "end")],
    "with_time_limit": [(60,), (0.5,)],
    "on_batch": [(lambda batch, rng: batch,), (lambda batch, rng, step: batch,)],
    "after_step": [(lambda model: model,), (lambda model, step: model,)],
    "on_epoch_end": [(hook,), (lambda *args: None,), (lambda info, model, more=1: None,), (print,), (max,)],
    "every": [(3, hook)],
    "learner_class": [(Learner,), (type("Own", (Learner,), {}),)],
}


def attributes(**own):
    metric = Accuracy()
    vars(metric).update(own)
    return metric


NO_COUNT = [0, -1, 1.5, "3", None, True]


def is_refused(name, code, *arguments, field=None):
    return name, arguments, code, {} if field is None else {"name": field}


REFUSED = [
    *(
        is_refused(name, "builder-number-value", value, field=name)
        for name in (
            "num_epochs",
            "num_steps",
            "valid_batches",
            "grads_accumulation",
            "steps_per_dispatch",
        )
        for value in NO_COUNT
    ),
    *(is_refused("with_batch_size", "builder-number-value", value, field="with_batch_size") for value in NO_COUNT),
    is_refused("population", "population-empty"),
    *(is_refused("seed", "builder-number-value", value, field="seed") for value in (-1, 0.5, "0", None, 2**63)),
    *(is_refused("every", "builder-number-value", value, hook, field="every(steps=)") for value in NO_COUNT),
    *(
        is_refused("summary", "builder-number-value", True, value, field="summary(depth=)")
        for value in (0, -1, 1.5, "3", True)
    ),
    *(is_refused("valid_every", "builder-number-value", v, field="valid_every(steps=)") for v in NO_COUNT if v),
    *(is_refused("valid_every", "builder-number-value", None, v, field="valid_every(epochs=)") for v in NO_COUNT),
    is_refused("valid_every", "builder-number-value", 5, -1, field="valid_every(epochs=)"),
    is_refused("valid_every", "builder-valid-split-type", 5, 1, 7),
    is_refused("valid_first", "builder-boolean-value", "yes", field="valid_first"),
    is_refused("valid_batches", "builder-boolean-value", 5, 1, field="valid_batches(shuffle=)"),
    is_refused("with_file_checkpointer", "checkpoint-options-unused", None, 3),
    is_refused("with_file_checkpointer", "checkpoint-options-unused", None, 1, None, "valid/Loss"),
    is_refused("on_save_error", "builder-choice-unknown", "die", field="on_save_error"),
    is_refused("restore_best", "builder-boolean-value", "best", field="restore_best"),
    is_refused("on_nonfinite", "builder-choice-unknown", None, field="on_nonfinite"),
    *(
        is_refused("on_nonfinite", "builder-number-value", "skip", value, field="on_nonfinite(in_a_row=)")
        for value in NO_COUNT
    ),
    is_refused("on_sigterm", "builder-choice-unknown", "die", field="on_sigterm"),
    *(is_refused("with_time_limit", "builder-time-limit-value", value) for value in (0, -1.0, "60", True)),
    *(
        is_refused("profile", "profile-steps-value", value)
        for value in (10, (20, 10), (10, 10), (-1, 5), (1.0, 5), (1, 5.0), (True, 5), (1, 2, 3), "ab", None)
    ),
    *(is_refused("watchdog", "builder-watchdog-value", value) for value in (0, -1.0, "60", True, None, float("inf"))),
    is_refused("watchdog", "builder-choice-unknown", 60, "stop", field="watchdog(then=)"),
    is_refused("with_time_limit", "builder-time-limit-missing"),
    is_refused("every", "builder-hook-type", 2, 3, field="every"),
    is_refused("every", "builder-hook-type", 2, lambda: None, field="every"),
    is_refused("on_epoch_end", "builder-hook-type", None, field="on_epoch_end"),
    is_refused("on_epoch_end", "builder-hook-type", lambda info: None, field="on_epoch_end"),
    is_refused("on_epoch_end", "builder-hook-type", lambda info, model, more: None, field="on_epoch_end"),
    is_refused("on_epoch_end", "builder-hook-type", lambda info, *, model: None, field="on_epoch_end"),
    is_refused("metrics", "metric-not-instance", Accuracy),
    is_refused("metrics", "metric-type", "Accuracy"),
    is_refused("metrics", "metric-name-twice", Accuracy(), Accuracy()),
    is_refused("metrics", "metric-name-twice", attributes(name="Loss")),
    is_refused("metrics", "metric-unnamed", Nameless()),
    is_refused("metrics", "metric-unnamed", attributes(name=3)),
    *(is_refused("metrics", "metric-direction", attributes(higher_is_better=value)) for value in ("min", 1)),
    is_refused("metrics", "metric-fields-type", attributes(fields="logits")),
    is_refused("metric_valid", "metric-wrong-split", attributes(per_step=True)),
    is_refused("metrics", "metric-without-split", attributes(per_step=True, splits=("valid",))),
    is_refused("metric_loggers", "listener-idle", Listener()),
    is_refused("metric_loggers", "listener-idle", type("Misspelled", (MetricLogger,), {"logs": print})()),
    is_refused("metric_loggers", "data-number-value", type("Own", (MetricLogger,), {"log": print, "every_steps": 0})()),
    is_refused("metric_loggers", "listener-monitors-type", type("Own", (MemoryLogger,), {"monitors": "valid/Loss"})()),
    is_refused("renderer", "listener-idle", Listener()),
    is_refused("metrics", "run-metric-name-unusable", Slashed()),
    is_refused("metrics", "run-metric-file-shared", TopKAccuracy(5), Loose()),
    is_refused("metric_valid", "metric-wrong-split", LearningRate()),
    is_refused("metric_train_numeric", "metric-text-not-number", Words()),
    is_refused("metric_valid_numeric", "metric-text-not-number", Words()),
    is_refused("metric_train_numeric", "metric-not-instance", Accuracy),
    is_refused("metric_valid_numeric", "metric-text-not-number", Accuracy(), Words()),
    is_refused("metric_train", "metric-name-twice", Accuracy(), Accuracy()),
    is_refused("metric_loggers", "logger-not-listener", "files"),
    is_refused("metric_loggers", "logger-not-listener", MemoryLogger),
    is_refused("renderer", "renderer-not-listener", "rich"),
    is_refused("application_logger", "logger-application-type", "log.txt"),
    is_refused("application_logger", "logger-application-type", 0),
    is_refused("devices", "device-too-few", 9),
    is_refused("strategy", "strategy-type", "Sharded"),
    is_refused("devices", "device-choice-malformed", "gpu"),
    is_refused("devices", "device-choice-malformed", 0),
    is_refused("devices", "device-choice-malformed", []),
    is_refused("devices", "device-choice-malformed", ["cpu"]),
    *(is_refused("precision", "precision-policy-unknown", v) for v in ("fp16", None, 16)),
    is_refused("precision", "precision-policy-unknown", Policy),
    is_refused("precision", "builder-choice-unknown", "float32", "tf32", field="precision(matmul=)"),
    *(is_refused("remat", "step-remat-unknown", value) for value in ("dots", True, 3)),
    is_refused("freeze", "params-pattern-malformed", "("),
    is_refused("freeze", "params-match-type", 3),
    is_refused("remat", "step-remat-policy-factory", "save_only_these_names"),
    is_refused("with_file_checkpointer", "checkpoint-option-number", 0, field="keep_last"),
    is_refused("with_file_checkpointer", "checkpoint-option-number", 1, -1, field="keep_best"),
    is_refused("with_file_checkpointer", "checkpoint-option-number", 1, 1, 0, field="keep_every"),
    is_refused("with_file_checkpointer", "checkpoint-mode-unknown", 1, 1, None, "valid/Loss", "lowest"),
    is_refused("with_file_checkpointer", "checkpoint-option-number", 1, 1, None, None, None, 0, field="every_epochs"),
    is_refused("with_file_checkpointer", "checkpoint-monitor-value", 1, 1, None, 7),
    *(
        is_refused("with_file_checkpointer", "checkpoint-recorder-type", *(1, 1), *[None] * 6, value)
        for value in ("compact", CompactRecorder)
    ),
    is_refused("checkpoint", "checkpoint-epoch-or-step"),
    is_refused("checkpoint", "checkpoint-epoch-or-step", 1, 6),
    is_refused("checkpoint", "builder-number-value", 0, field="checkpoint(epoch=)"),
    is_refused("checkpoint", "builder-number-value", np.ones(2), field="checkpoint(epoch=)"),
    is_refused("resume", "builder-choice-unknown", 3, field="allow"),
    is_refused("checkpoint", "checkpoint-which-unknown", "bset", field="bset"),
    is_refused("checkpoint", "builder-number-value", None, -1, field="checkpoint(step=)"),
    is_refused("initial_from", "checkpoint-directory-type", "", field="initial_from"),
    is_refused("initial_from", "checkpoint-directory-type", None, field="initial_from"),
    *(
        is_refused("initial_from", "checkpoint-which-unknown", "a", value, field="initial_from")
        for value in ("newest", 0, -1, 1.5, None, True)
    ),
    is_refused("initial_from", "builder-partial-type", "a", "best", "yes"),
    *(
        is_refused("initial_from", "checkpoint-step-value", "a", "best", False, value, field="step")
        for value in (-1, 1.5, "3", True)
    ),
    *(
        is_refused("initial_from", "record-rename-malformed", "a", "best", False, None, rules)
        for rules in ("ab", {"a": "b"}, ["ab"], [("a",)], [("(", "a")], [("a", r"\7")], [("a", 3)], None)
    ),
    is_refused("early_stopping", "stopping-type", 5),
    is_refused("halving", "population-selection-fraction", "valid/Loss", 1, 1.5, field="keep"),
    is_refused("exploit", "population-selection-epochs", "valid/Loss", 0, field="exploit"),
    is_refused("on_batch", "step-batch-transform", 5),
    is_refused("after_step", "step-model-transform", 5),
    *(is_refused("learner_class", "builder-learner-class-type", value) for value in (dict, "Learner", None)),
    is_refused("interrupter", "builder-interrupter-type", Interrupter),
]


def test_no_option_is_left_out():
    public = {name for name, _ in inspect.getmembers(LearnerBuilder, inspect.isfunction) if not name.startswith("_")}
    assert public - {"build"} == set(OPTIONS)


def test_each_option_returns_the_builder(tmp_path):
    for name, arguments in ((name, arguments) for name, values in OPTIONS.items() for arguments in values):
        builder = LearnerBuilder(tmp_path / "run")
        with named_case(f"{name}{arguments}"):
            assert call(builder, name, arguments) is builder


def test_wrong_value_is_rejected_at_once(tmp_path):
    for name, arguments, code, fields in REFUSED:
        with named_case(f"{name}{arguments}"), raises_code(code, **fields):
            getattr(LearnerBuilder(tmp_path / "run"), name)(*arguments)


def test_integers_of_numpy_are_integers(tmp_path):
    def fit(name, integer):
        builder = quiet(tmp_path / name, saves=True).num_epochs(integer(2)).valid_every(steps=integer(2))
        builder.with_file_checkpointer(keep_last=integer(1), every_steps=integer(3)).seed(integer(5))
        builder.early_stopping(MetricEarlyStopping(patience=integer(3))).metrics(Loss())
        learner = build_line(builder, optimizer=Ema(optax.sgd, start=integer(1)))
        return model_bits(learner.fit(batches(), valid_data()).model)

    assert fit("numpy", np.int64) == fit("python", int)
    LearnerBuilder(tmp_path / "devices").devices(np.int64(2)).halving(
        "valid/Loss", every_epochs=np.int64(2)
    )  # accepted
    start = quiet(tmp_path / "started", saves=True).initial_from(tmp_path / "numpy", step=np.int64(12))
    build_line(start).fit(batches())  # writes the options as JSON
    assert dict(Sharded({"data": np.int64(4)}, devices=np.int32(4)).mesh.shape) == {"data": 4}


def test_devices_do_not_replace_a_strategy(tmp_path):
    strategy = Sharded(devices=2)
    builder = LearnerBuilder(tmp_path / "run").devices(1).strategy(strategy)
    with raises_code("builder-devices-after-strategy"):
        builder.devices(8)
    assert build_line(builder).definition.options.devices is strategy


@pytest.mark.parametrize("directory", ["", None, 3])
def test_invalid_directory_is_rejected(directory):
    with raises_code("builder-directory-type"):
        LearnerBuilder(directory)


def test_repr_shows_set_options():
    assert repr(LearnerBuilder("runs/a")) == "LearnerBuilder('runs/a')"
    builder = LearnerBuilder("runs/a").num_epochs(3).with_batch_size(8).metrics(TopKAccuracy(5))
    assert repr(builder) == "LearnerBuilder('runs/a', num_epochs=3, with_batch_size=8, metrics=['Top-5 Accuracy'])"
    assert repr(TopKAccuracy(5)) == "<TopKAccuracy 'Top-5 Accuracy'>"
    stopping = MetricEarlyStopping("valid/Loss", patience=3)
    assert repr(stopping) == "MetricEarlyStopping('valid/Loss', patience=3)"


def test_options_write_nothing(tmp_path):
    builder = LearnerBuilder(tmp_path / "run")
    same_metric = ("metrics", "metric_train_numeric", "metric_valid_numeric")
    of_population = ("population", "halving", "exploit")  # a population has no hooks
    for name, values in OPTIONS.items():
        if name not in ("compilation_cache", *of_population, *same_metric):
            getattr(builder, name)(*values[0])
    build_line(builder)
    assert list(tmp_path.iterdir()) == []


# -- metrics -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_loss_is_registered_once(tmp_path):
    builder = quiet(tmp_path / "run").metrics(Loss()).metric_train(LearningRate())
    result = build_line(builder).fit(batches(), valid_data())
    assert set(result.history) == {"train/Loss", "train/Learning Rate", "valid/Loss"}


def test_build_does_not_change_the_builder(tmp_path):
    builder = quiet(tmp_path / "run").metric_train(LearningRate())
    shown = repr(builder)
    build_line(builder)
    assert repr(builder) == shown
    learner = build_line(builder.metrics(Loss()))
    options = learner.definition.options
    assert [m.name for m in options.train_metrics] == ["Learning Rate", "Loss"]
    assert [m.name for m in options.valid_metrics] == ["Loss"]


def test_one_split_takes_several_metrics(tmp_path):
    builder = quiet(tmp_path / "run").metric_train(LearningRate(), Words()).metric_valid(Words())
    assert [m.name for m in builder._options.train_metrics] == ["Learning Rate", "Words"]
    assert [m.name for m in builder._options.valid_metrics] == ["Words"]


@pytest.mark.full
def test_metrics_run_on_meaningful_splits_and_texts_are_not_plotted(tmp_path):
    memory = MemoryLogger()
    learner = build_line(quiet(tmp_path / "run").metrics(LearningRate(), Words()).metric_loggers(memory))
    result = learner.fit(batches(), valid_data())
    assert {info.key: info.numeric for info in memory.events[0].metrics} == {
        "train/Learning Rate": True,
        "train/Words": False,
        "train/Loss": True,
        "valid/Words": False,
        "valid/Loss": True,
    }
    assert result.history["train/Words"] == ["24 rows"]
    assert (tmp_path / "run/valid/epoch-1/Words.log").read_text() == '"20 rows",final\n'


def made_of(kind):
    """Return a metric with its required arguments."""
    needed = {"classes": 3, "q": 0.9, "field": "penalty"}
    return kind(**{name: needed[name] for name in inspect.signature(kind).parameters if name in needed})


def test_every_exported_metric_can_be_registered(tmp_path):
    exported = (getattr(learner.metrics, name) for name in learner.metrics.__all__)
    kinds = [kind for kind in exported if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, learner.metrics.MetricBase) and not inspect.isabstract(kind)]
    kinds.remove(learner.metrics.GPUUse)  # its package is not installed for tests
    instances = [metric for kind in kinds if (metric := MAKE.get(kind, functools.partial(made_of, kind))()).name]
    assert len(instances) > 6
    quiet(tmp_path).metrics(*instances)


# -- build -------------------------------------------------------------------------------------------------------------


class NoSteps(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))


class Odd(NoSteps):
    def train_step(self):
        return None


class Attribute(NoSteps):
    train_step = 3


def linen():
    import flax.linen as nn

    return nn.Dense(2)


def bad(**values):
    return {**line(), **values}


def growing(lr):
    """An optimizer whose state has another structure after each step."""
    inner = optax.sgd(lr)
    init = lambda params: {"n": jnp.zeros(1)}  # noqa: E731
    update = lambda grads, state, params=None: (inner.update(grads, inner.init(params))[0], {"n": jnp.zeros(2)})  # noqa: E731
    return optax.GradientTransformation(init, update)


BUILDS = {
    "a rate below 0": ({"lr": -0.1}, ["the learning rate is -0.1", "0 or more"]),
    "an infinite rate": ({"lr": math.inf}, ["the learning rate is inf"]),
    "a rate that is NaN": ({"lr": math.nan}, ["the learning rate is nan"]),
    "no rate": ({"lr": None}, ["the learning rate is None", "ReduceOnPlateau(...)"]),
    "a text": ({"lr": "0.1"}, ["the learning rate is '0.1'", "an optax schedule"]),
    "a class": ({"lr": ReduceOnPlateau}, ["the learning rate is the class ReduceOnPlateau", "ReduceOnPlateau(...)"]),
    "a schedule below 0": ({"lr": lambda step: -1.0}, ["starts with -1.0"]),
    "a schedule of several": ({"lr": lambda step: jnp.zeros(2)}, ["schedule", "[2]", "one number"]),
    "a schedule that looks": (
        {"lr": lambda step: 0.1 if step > 3 else 0.2},
        ["with a traced step", "jnp.where(condition"],
    ),
    "a built optimizer": (
        {"optimizer": optax.adamw(1e-3)},
        ["already built", "optax.adamw", "build(model, optimizer, lr)"],
    ),
    "a built optimizer without a rate": (
        {"optimizer": optax.adamw(1e-3), "lr": None},
        ["already built", "build(model, optimizer, lr)"],
    ),
    "an optimizer of nnx": (
        {"optimizer": nnx.Optimizer(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), optax.sgd(0.1), wrt=nnx.Param), "lr": None},
        ["already built", "build(model, optimizer, lr)"],
    ),
    "the class of an optimizer": ({"optimizer": AdamW}, ["is the class AdamW", "AdamW(...)"]),
    "something long": ({"optimizer": ["adamw"] * 1000}, ["the optimizer is ['adamw', ", "…"]),
    "its name": ({"optimizer": "adamw"}, ["the optimizer is 'adamw'"]),
    "no function of a rate": ({"optimizer": lambda: optax.sgd(0.1)}, ["cannot be called with a learning rate"]),
    "what takes an optimizer": (
        {"optimizer": partial(optax.MultiSteps, every_k_schedule=2)},
        ["(MultiSteps) takes an optimizer", "lambda lr: MultiSteps(optax.adamw(lr), ...)"],
    ),
    "no transformation": ({"optimizer": lambda lr: (lr,)}, ["returned tuple for a rate, not an optax transformation"]),
    "a state that does not fit": (
        {"optimizer": growing},
        ["the state of the optimizer (growing)", "n was float32[1] and became float32[2]"],
    ),
    "no parameters": ({"model": {"n": jnp.int32(3)}}, ["no parameters to train", "it has n"]),
    "no arrays": ({"model": {"f": 3}}, ["no parameters to train", "it has no arrays"]),
    "nothing selected": (
        {"trainable": lambda path, x: "head" in path},
        ["no parameters to train", "trainable= selects"],
    ),
    "a pattern as trainable": ({"trainable": "^w"}, ["trainable is '^w'", "such as lambda path, x: 'head' in path"]),
    "a filter for a dict": ({"trainable": nnx.Param}, ["trainable is <class", "Param'>; it needs a predicate"]),
    "a pattern for an nnx model": ({"model": Odd(), "trainable": "^w"}, ["or of an nnx model a filter"]),
    "a dict as trainable": ({"model": Odd(), "trainable": {"w": "yes"}}, ["trainable is {'w': 'yes'}"]),
    "a NaN parameter": (
        {"model": bad(w=jnp.full((3, 1), jnp.nan))},
        ["initial parameters have NaN or infinite values in w"],
    ),
    "infinite parameters": ({"model": bad(b=np.float32([math.inf]))}, ["NaN or infinite values in b"]),
    "an array twice": ({"model": (lambda w: {"a": w, "b": w})(jnp.ones(2))}, ["the same array twice, as a and b"]),
    "a linen module alone": ({"model": linen()}, ["linen module without variables", "Linen(module, variables)"]),
    "no steps": ({"model": NoSteps(), "train_step": None, "valid_step": None}, ["NoSteps", "has no train_step"]),
    "a step without a batch": ({"train_step": lambda model: 0}, ["takes 1 arguments", "(model, batch)"]),
    "a method without a batch": ({"model": Odd(), "train_step": None}, ["takes 1 arguments", "(self, batch)"]),
    "a step that is none": ({"train_step": 3}, ["train_step is 3"]),
    "a method that is none": ({"model": Attribute(), "train_step": None}, ["train_step is 3"]),
    "an update that is none": ({"update": 3, "optimizer": None, "train_step": None}, ["update is 3"]),
    "an update and an optimizer": (
        {"update": lambda *_: None},
        ["update= replaces the train step and the optimizer"],
    ),
}
USUAL = {"model": line(), "optimizer": optax.sgd, "lr": 0.1, "train_step": line_step, "valid_step": line_step}


@pytest.mark.parametrize("what", BUILDS)
def test_wrong_argument_of_build_is_named(tmp_path, what):
    given, parts = BUILDS[what]
    # a valid build creates everything that any build creates
    quiet(tmp_path / "right").build(**{**USUAL, "lr": lambda step: 0.1})
    with CompileTimes() as compiled, pytest.raises(LearnerError) as error:
        quiet(tmp_path / "run").build(**{**USUAL, **given})
    assert all(part in str(error.value) for part in parts), str(error.value)
    assert "2 problems" not in str(error.value)
    assert compiled.count == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "options"), [("batch_size", "'with_batch_size'"), ("steps", "'num_steps' or 'steps_per_dispatch'")]
)
def test_the_name_of_an_option_in_other_libraries_has_a_hint(tmp_path, name, options):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; did you mean {options}"):
        getattr(LearnerBuilder(tmp_path), name)


def test_unknown_name_has_no_hint(tmp_path):
    with pytest.raises(AttributeError, match=r"no attribute 'callbacks'$"):
        LearnerBuilder(tmp_path).callbacks(3)
    assert not hasattr(LearnerBuilder(tmp_path), "__wrapped__")


def test_building_in_a_traced_function_is_refused(tmp_path):
    def make(w):
        return quiet(tmp_path).build({"w": w}, optax.sgd, 0.1, train_step=line_step).init()

    with raises_code("model-traced"):
        jax.vmap(make)(jnp.ones((2, 3)))


def test_donated_arrays_of_the_model_are_named(tmp_path):
    def build(name, model):
        return quiet(tmp_path / name).build(model, optax.sgd, 0.1, train_step=line_step, valid_step=line_step)

    model = line()
    learner, other = build("fit", model), build("other", model)
    model["w"].delete()  # as a program does that gets it in `donate_argnums`
    with raises_code("model-deleted", "(dict)", names="w"):
        learner.fit(batches())
    for use in (other.init, lambda: other.evaluate(valid_data()), lambda: build("again", model)):
        with raises_code("model-deleted", names="w"):
            use()


@pytest.mark.full
def test_a_run_resumes_without_the_arrays_of_its_model(tmp_path):
    builder = quiet(tmp_path / "run").with_file_checkpointer(keep_last=1).num_epochs(1)
    build_line(builder).fit(batches())
    model = line()
    learner = builder.resume().num_epochs(2).build(model, optax.sgd, 0.05, train_step=line_step, valid_step=line_step)
    for array in jax.tree.leaves(model):
        array.delete()
    assert len(learner.fit(batches()).history["train/Loss"]) == 2


def test_missing_learning_rate_is_reported_with_other_problems(tmp_path):
    with raises_code("learning-rate-value", "build(model, optimizer, lr)"):
        quiet(tmp_path / "run").build(line(), optax.sgd, train_step=line_step)
    with raises_code("optimizer-type", "already built", "build(model, optimizer, lr)"):
        quiet(tmp_path / "run").build(line(), optax.sgd(0.1), train_step=line_step)


def test_all_problems_are_one_error(tmp_path):
    (tmp_path / "file").write_text("mine")
    builder = quiet(tmp_path / "file" / "run")
    with pytest.raises(LearnerError) as error:
        builder.build(bad(w=jnp.full((3, 1), jnp.nan)), optax.adamw(1e-3), -1.0, train_step=line_step)
    message = str(error.value)
    assert message.startswith("this learner cannot be built, 4 problems:")
    for part in ("file is a file", "the learning rate is -1.0", "NaN or infinite values in w", "already built"):
        assert part in message
    assert (tmp_path / "file").read_text() == "mine"


def test_updates_have_no_accumulation(tmp_path):
    builder = quiet(tmp_path / "run").grads_accumulation(2)
    with raises_code("step-update-and-accumulation", "grads_accumulation"):
        builder.build(line(), None, 0.1, update=lambda state, batch, lr, rng: (state, None))


def test_update_without_learning_rate_suggests_ignoring_it(tmp_path):
    with raises_code("learning-rate-value", "build(model, None, lr, update=fn), or 0.0 if fn ignores it"):
        quiet(tmp_path / "run").build(line(), update=lambda state, batch, lr, rng: (state, None))


def test_learning_rate_of_zero_is_accepted(tmp_path):
    assert isinstance(build_line(quiet(tmp_path / "run"), 0.0), Learner)


def test_rates_and_optimizers_of_every_kind(tmp_path):
    rates = [0.1, 1, np.float32(0.1), jnp.float32(0.1), optax.constant_schedule(0.1)]
    optimizers = [optax.adamw, partial(optax.sgd, momentum=0.9), lambda lr: optax.sgd(lr)]
    for lr, optimizer in itertools.zip_longest(rates, optimizers, fillvalue=optax.sgd):
        assert isinstance(build_line(quiet(tmp_path / "run"), lr, optimizer), Learner)


@pytest.mark.full
@pytest.mark.parametrize("make", [Net, lambda: Net(), partial(Net, width=3)])
def test_functions_that_make_a_model(tmp_path, make):
    learner = quiet(tmp_path / "run").build(make, optax.sgd, 0.1)
    assert learner.init().params["hidden"]["kernel"].shape[0] == 3


def test_linen_needs_parameters():
    with raises_code("model-linen-variables"):
        Linen(linen(), {"batch_stats": {}})


# -- one builder, several learners -------------------------------------------------------------------------------------


def test_later_changes_of_a_builder_do_not_affect_learners(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(2)
    learner = build_line(builder)
    calls = []
    builder.metrics(Words()).num_epochs(5).on_epoch_end(lambda info, model: calls.append(info.epoch))
    builder.every(steps=1, fn=hook).metric_loggers(MemoryLogger()).early_stopping(MetricEarlyStopping("nothing/at all"))
    result = learner.fit(batches())
    assert result.summary["epochs"] == 2
    assert list(result.history) == ["train/Loss"]
    assert calls == []


@pytest.mark.full
def test_two_learners_of_one_builder_are_two_runs(tmp_path):
    """State of one learner does not reach the other."""
    builder = quiet(tmp_path / "run", overwrite=True).num_epochs(3)
    builder.early_stopping(MetricEarlyStopping("train/Loss", "max", patience=1))
    plateau = ReduceOnPlateau(0.1, "train/Loss", factor=0.5, patience=0, mode="max")
    first, second = build_line(builder, plateau), build_line(builder, plateau)
    one = first.fit(batches())
    two = second.fit(batches())
    assert one.summary["epochs"] == two.summary["epochs"] == 2
    assert one.history == two.history
    assert model_bits(one.model) == model_bits(two.model)
    assert plateau.lr == 0.1


def test_building_leaves_a_run_alone(tmp_path):
    build_line(quiet(tmp_path / "run")).fit(batches())
    before = tree_of(tmp_path)
    build_line(quiet(tmp_path / "run", overwrite=True))
    assert tree_of(tmp_path) == before


def test_a_metric_class_is_abstract_until_it_has_its_functions(tmp_path):
    class Half(Metric):
        name = "Half"

    with pytest.raises(TypeError, match="abstract"):
        quiet(tmp_path).metrics(Half())
