"""Tests of the checks before a run: data, steps, metrics and monitors are refused before compiling and writing."""

import dataclasses
import itertools
import os
import traceback

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from learner import (
    ClassificationOutput,
    GeneratedOutput,
    LearnerError,
    MetricEarlyStopping,
    ReduceOnPlateau,
    RegressionOutput,
    TrainOutput,
)
from learner.data import ArrayDataset, DataLoaderBuilder, csv
from learner.metrics import Accuracy, CollectingMetric, ExactMatch, LearningRate, Perplexity
from learner.runs.lock import locked
from learner.training.checked_inputs import read_checked
from learner.training.monitors import default_monitor
from learner.training.options import Options
from learner.training.programs.compilation import CompileTimes
from tests.support import runs
from tests.support.codes import raises_code
from tests.support.runs import (
    BATCH,
    ROWS,
    LastRow,
    Net,
    T,
    X,
    Y,
    arrays,
    batches,
    build_line,
    line,
    line_step,
    quiet,
    tree_of,
    valid_data,
)
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")


class Words(CollectingMetric):
    name = "Words"
    numeric = False

    def collect(self, output):
        return output.targets

    def compute(self, rows):
        return len(rows)


def refused(learner, *data, directory=None):
    """Return the message of the error of `fit`; check that nothing was compiled, written or changed."""
    before = tree_of(directory) if directory else {}
    with CompileTimes() as compiled, pytest.raises(LearnerError) as error:
        learner.fit(*data)
    assert compiled.count == 0
    place = learner.definition.options.directory
    assert (tree_of(directory) if directory else os.path.exists(place)) == (before if directory else False)
    return str(error.value)


def changed(**fields):
    """Return the batches with fields changed by functions; `None` removes a field."""
    changed_batches = [{**batch, **{k: f(batch[k]) for k, f in fields.items() if f}} for batch in batches()]
    return [{k: v for k, v in batch.items() if fields.get(k, True)} for batch in changed_batches]


def exhausted():
    used = iter(batches())
    list(used)
    return used


@dataclasses.dataclass
class NoTree:
    loss: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class OwnOutput:
    loss: jax.Array
    weight: jax.Array


def classify(model, batch):
    return ClassificationOutput.from_logits(batch["x"] @ jnp.broadcast_to(model["w"], (3, 3)), batch["y"])


def loss_of(batch):
    return jnp.mean(batch["x"])


# -- data --------------------------------------------------------------------------------------------------------------

DATA = {
    "nothing": (None, ["no training data", "fit(train, valid)"]),
    "an empty list": ([], ["train data has no batches", "empty"]),
    "a generator function without batches": (lambda: iter(()), ["train data has no batches"]),
    "an exhausted generator": (exhausted(), ["train data has no batches"]),
    "a builder of loaders": (DataLoaderBuilder().batch_size(4), ["DataLoaderBuilder", ".build(dataset)"]),
    "a dataset": (ArrayDataset(arrays()), ["ArrayDataset", "with_batch_size(n)"]),
    "a list-like dataset": (
        type("Mine", (), {"__len__": lambda self: 3, "__getitem__": lambda self, i: i})(),
        ["a dataset (Mine)", "with_batch_size(n)"],
    ),
    "a dict of arrays": (arrays(), ["a dict with x, t, y", "needs a loader"]),
    "an array": (X, ["of type ndarray", "needs a loader"]),
    "a path": ("data/train", ["of type str", "needs a loader"]),
    "a number": (7, ["of type int", "needs a loader"]),
    "a missing key": (changed(t=None), ["train_step reads batch['t']", "a batch has 'x', 'y'"]),
    "leaves of different lengths": (changed(t=lambda t: t[:-1]), ["'t' [3, 1]", "'x' [4, 3]", "common leading axis"]),
    "a number among the arrays": (changed(t=lambda t: 1.0), ["'t' []", "common leading axis"]),
    "no rows": (changed(x=lambda x: x[:0], t=lambda t: t[:0], y=lambda y: y[:0]), ["train data has 0 rows"]),
    "texts": (changed(t=lambda t: np.array(["a"] * len(t))), ["'t' of a train batch", "hold numbers"]),
    "objects": (changed(t=lambda t: np.array([None] * len(t))), ["'t' of a train batch", "dtype object"]),
    "rows of several lengths": (changed(t=lambda t: np.array([[1], [1, 2]], dtype=object)), ["'t'", "dtype object"]),
    "arrays in a tuple": ((X, X[:, 0]), ["a tuple of arrays of shapes [", "build({'x': x, 'y': y})"]),
    "numbers": ([1, 2, 3], ["the array []", "A loader yields batches: dicts", "DataLoaderBuilder().batch_size(32)"]),
    "words": (["one", "two"], ["the array of a train batch has dtype <U3", "A loader yields batches"]),
    "lists in a dict": ([{"x": [[1.0], [2.0]], "t": [1.0, 2.0]}], ["'t.0' []", "Lists are read number by number"]),
    "lists of numbers": ([[1, 2], [3, 4]], ["'0' [], '1' []", "A loader yields batches"]),
    "items": ([{"x": X[0], "t": 1.0}] * 4, ["'t' [], 'x' [3]", "DataLoaderBuilder().batch_size(32).build(items)"]),
    "batches without arrays": ([{}], ["holds no arrays", "{}"]),
    "batches that are None": ([None], ["holds no arrays", "None"]),
}


class Streamed:
    """A dataset of items like Hugging Face's streamed ones."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)

    def batch(self, batch_size):
        """Return the items in batches, as data."""


Streamed.__module__ = "datasets.streamed"


@pytest.mark.parametrize("make", [grain.MapDataset.source, Streamed], ids=["Grain", "Hugging Face"])
@pytest.mark.parametrize("item", [{"x": X[0], "t": 1.0}, {"x": X[0], "t": "a"}, {"x": X[0], "t": np.zeros(2)}])
def test_items_of_data_that_makes_batches_itself(tmp_path, make, item):
    data = make([item] * 4)
    advice = f"call .batch(n) on the {type(data).__name__}: with_batch_size does not apply"
    for message in (
        refused(build_line(quiet(tmp_path / "run").with_batch_size(2)), data),
        refused(build_line(quiet(tmp_path / "run").with_batch_size(2)), runs.batches(), data),
    ):
        assert advice in message
        assert "DataLoaderBuilder" not in message


@pytest.mark.parametrize("kind", DATA)
def test_unusable_training_data_is_refused(tmp_path, kind):
    data, parts = DATA[kind]
    message = refused(build_line(quiet(tmp_path / "run")), data)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    "kind", [kind for kind in DATA if kind not in ("nothing", "a dict of arrays", "an exhausted generator")]
)
def test_unusable_validation_data_is_refused(tmp_path, kind):
    data, parts = DATA[kind]
    message = refused(build_line(quiet(tmp_path / "run")), batches(), data)
    expected = [part.replace("train_step", "valid_step (on valid)").replace("train ", "valid ") for part in parts]
    assert all(part in message for part in expected), message


def test_an_unusable_set_of_several_is_named(tmp_path):
    message = refused(build_line(quiet(tmp_path / "run")), batches(), {"dev": valid_data(), "ood": []})
    assert "the valid-ood data has no batches" in message
    message = refused(build_line(quiet(tmp_path / "run")), batches(), {"dev": valid_data(), "ood": changed(t=None)})
    assert "valid_step (on valid-ood) reads batch['t']" in message


@pytest.mark.parametrize(("data", "part"), [(arrays(), "arrays (x, t, y)"), ({}, "nothing")])
def test_a_dict_without_loaders_is_refused(tmp_path, data, part):
    message = refused(build_line(quiet(tmp_path / "run")), batches(), data)
    assert "the validation data" in message
    assert part in message


class Tensor:
    """A tensor of another library that NumPy can read."""

    def __init__(self, array):
        self.array, self.shape, self.ndim = array, array.shape, array.ndim

    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize("kind", ["tensors", "columns"])
def test_a_dict_of_arrays_of_another_library_is_one_validation_set(tmp_path, kind):
    from learner.training.feed.inputs import read_valid

    frame = pytest.importorskip("pandas").DataFrame
    columns = {"x": np.arange(5.0, dtype=np.float32), "t": np.arange(5)}
    data = dict(frame(columns)) if kind == "columns" else {name: Tensor(array) for name, array in columns.items()}
    options = Options(tmp_path / "run", batch_size=5)
    inputs = read_valid(options, data, None)
    jax.tree.map(np.testing.assert_array_equal, inputs.first_batches, {"valid": columns})
    frames = {"a": frame(columns), "b": frame(columns)}
    assert list(read_valid(options, frames, None).valid) == ["valid-a", "valid-b"]
    assert list(read_valid(options, [frame(columns)], None).valid) == ["valid"]  # a list is read as batches


@pytest.mark.parametrize("make", [valid_data, lambda: ArrayDataset(arrays()), lambda: itertools.repeat({})])
def test_a_list_of_loaders_needs_names(tmp_path, make):
    learner = build_line(quiet(tmp_path / "run"))
    with raises_code("data-validation-type", "list of loaders"):
        learner.fit(batches(), [make(), make()])


@pytest.mark.parametrize("name", ["a/b", "a\\b", "a\nb", "a" * 300])
def test_unusable_names_of_validation_sets_are_refused(tmp_path, name):
    message = refused(build_line(quiet(tmp_path / "run")), batches(), {name: valid_data()})
    assert f"{f'valid-{name}'!r} cannot be the name of a metric or split" in message


def test_validation_sets_that_would_share_files_are_refused(tmp_path):
    message = refused(build_line(quiet(tmp_path / "run")), batches(), {"a b": valid_data(), "A_b": valid_data()})
    assert "'valid-a b' and 'valid-A_b' would share their files" in message


@pytest.mark.parametrize("split", ["train", "valid"])
def test_iterators_that_are_needed_more_than_once_are_refused(tmp_path, split):
    data = {"train": batches(), "valid": batches()} | {split: iter(batches())}
    message = refused(build_line(quiet(tmp_path / "run").num_epochs(3)), data["train"], data["valid"])
    assert f"the {split} data" in message
    assert "num_epochs is 3" in message
    assert "generator function itself" in message


def other_width(batch):
    return {**batch, "x": batch["x"].repeat(2, axis=1)}


@pytest.mark.full
@pytest.mark.parametrize("split", some(["train", "valid"], ("valid",)))
def test_a_later_batch_of_another_shape_is_an_error_that_names_it(tmp_path, split):
    """The batch comes in the program with a loop, and in the one of a single step."""
    for data in (batches()[:2], batches()[:1]):
        data = {"train": batches(), "valid": batches()} | {split: [*data, other_width(batches()[2])]}
        with pytest.raises(LearnerError) as raised:
            build_line(quiet(tmp_path / "run", overwrite=True)).fit(data["train"], data["valid"])
        step = "the train step" if split == "train" else "valid_step"
        message = (
            f"{step} cannot be traced with a {split} batch (t: float32[4, 1], x: float32[4, 6], y: int32[4]): TypeError"
        )
        assert str(raised.value).startswith(message)
        assert f"({runs.__file__}, line " in str(raised.value)


@pytest.mark.full
def test_a_batch_of_another_shape_in_a_custom_loop_is_an_error(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    state, _ = learner.train_step(learner.init(), batches()[0])
    with raises_code("step-trace-failed", "train_step", "the batch (t", "float32[4, 1]", "float32"):
        learner.train_step(state, other_width(batches()[0]))
    learner.valid_step(state, batches()[0])
    with raises_code("step-trace-failed", "valid_step", "the batch (t", "float32[4, 1]", "float32"):
        learner.valid_step(state, other_width(batches()[0]))


# -- steps -------------------------------------------------------------------------------------------------------------

STEPS = {
    "returns nothing": (lambda m, b: None, ["train_step returned nothing (None)", "return an output with a loss"]),
    "returns an array": (
        lambda m, b: b["x"] * 2.0,
        ["train_step returned an array of shape [4, 3]", "no field 'loss'"],
    ),
    "returns a dict without a loss": (
        lambda m, b: {"lost": loss_of(b)},
        ["train_step returned dict", "no field 'loss'"],
    ),
    "returns no pytree": (lambda m, b: NoTree(loss_of(b)), ["NoTree", "register_dataclass"]),
    "loss of each row": (
        lambda m, b: OwnOutput(b["x"].mean(1), jnp.float32(4)),
        ["the loss of train_step has shape [4]", "one number"],
    ),
    "an integer loss": (lambda m, b: OwnOutput(b["y"].sum(), jnp.float32(4)), ["dtype int32", "floating-point"]),
    "a weight of each row": (
        lambda m, b: OwnOutput(loss_of(b), jnp.ones(4)),
        ["the weight of train_step's output has shape [4]", "one number"],
    ),
    "float labels": (
        lambda m, b: ClassificationOutput.from_logits(b["x"], b["t"][:, 0]),
        ["labels of dtype float32", "integer class numbers"],
    ),
    "labels of another shape": (
        lambda m, b: ClassificationOutput.from_logits(b["x"], b["y"][:2]),
        ["labels of shape (2,)", "[batch, classes] and [batch]"],
    ),
    "predictions of another shape": (
        lambda m, b: RegressionOutput.from_predictions(b["x"] @ m["w"], b["t"][:, 0]),
        ["predictions of shape (4, 1)", "targets of shape (4,)"],
    ),
    "gradients that do not fit": (
        lambda m, b: TrainOutput({"w": m["w"]}, line_step(m, b)),
        ["gradients", "missing: b"],
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_malformed_train_steps_are_refused(tmp_path, case):
    step, parts = STEPS[case]
    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=step)
    message = refused(learner, batches())
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("case", [case for case in STEPS if case != "gradients that do not fit"])
def test_malformed_valid_steps_are_refused(tmp_path, case):
    step, parts = STEPS[case]
    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=line_step, valid_step=step)
    message = refused(learner, batches(), batches())
    expected = [part.replace("train_step", "valid_step") for part in parts]
    assert all(part in message for part in expected), message


@pytest.mark.parametrize("labels", [Y - 1, Y + 1], ids=["below", "above"])
@pytest.mark.parametrize("where", ["train", "valid"])
def test_labels_outside_the_classes_are_refused(tmp_path, labels, where):
    wrong = [{"x": X[:8], "y": labels[:8]}]
    right = [{"x": X[:8], "y": Y[:8]}]
    data = (wrong, right) if where == "train" else (right, wrong)
    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=classify, valid_step=classify)
    message = refused(learner, *data)
    assert f"the labels 'y' go from {labels[:8].min()} to {labels[:8].max()}" in message
    assert f"{where}_step have 3 classes (0 to 2)" in message


def test_validation_data_without_a_valid_step_is_refused(tmp_path):
    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=line_step)
    message = refused(learner, batches(), batches())
    assert "there is validation data, but there is no valid_step" in message
    assert "build(..., valid_step=fn)" in message


def test_training_without_a_train_step_is_refused(tmp_path):
    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, valid_step=line_step)
    assert "there is no train_step" in refused(learner, batches())


class Growing(Net):
    def train_step(self, batch):
        self.extra = nnx.BatchStat(jnp.zeros(2))
        return super().train_step(batch)


class Widening(Net):
    def train_step(self, batch):
        output = super().train_step(batch)
        self.norm.mean[...] = self.norm.mean[...].astype(jnp.float16)
        return output


@pytest.mark.full
def test_a_step_that_adds_variables_is_refused(tmp_path):
    learner = quiet(tmp_path / "run").build(Growing(), optax.sgd, 0.1)
    message = refused(learner, batches())
    assert "new: extra" in message
    assert "before training" in message


def test_a_step_that_changes_a_dtype_of_the_model_is_refused(tmp_path):
    def step(model, batch):
        return line_step(model, batch), {**model, "n": jnp.float32(1)}

    learner = quiet(tmp_path / "run").build({**line(), "n": jnp.int32(0)}, optax.sgd, 0.1, train_step=step)
    message = refused(learner, batches())
    assert "n was int32[] and became float32[]" in message


def test_an_update_that_changes_a_dtype_of_the_state_is_refused(tmp_path):
    def update(state, batch, lr, rng):
        return {**state, "w": state["w"].astype(jnp.bfloat16)}, line_step(state, batch)

    learner = quiet(tmp_path / "run").build(line(), None, 0.1, update=update)
    assert "w was float32[3, 1] and became bfloat16[3, 1]" in refused(learner, batches())


def test_an_update_without_an_output_is_refused(tmp_path):
    learner = quiet(tmp_path / "run").build(line(), None, 0.1, update=lambda state, batch, lr, rng: state)
    assert "update= returned dict; it needs to return (state, output)" in refused(learner, batches())


# -- metrics and monitors ----------------------------------------------------------------------------------------------


def test_a_metric_with_missing_fields_is_refused(tmp_path):
    message = refused(build_line(quiet(tmp_path / "run").metrics(Accuracy())), batches(), batches())
    assert "the metric Accuracy needs logits, which train_step's RegressionOutput does not have" in message
    assert "it has loss, predictions, targets, weight" in message
    assert "valid_step's RegressionOutput" in message


MONITORS = {
    "early stopping": lambda b, key: (b.early_stopping(MetricEarlyStopping(key)), 0.1),
    "ReduceOnPlateau": lambda b, key: (b, ReduceOnPlateau(0.1, key)),
    "the checkpointer": lambda b, key: (b.with_file_checkpointer(monitor=key), 0.1),
}


@pytest.mark.parametrize("case", MONITORS)
@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("valid/Los", ["'valid/Los', which no metric provides", "did you mean 'valid/Loss'"]),
        ("Precision@5", ["which no metric provides", "choose from 'train/Learning Rate', 'train/Loss', 'valid/Loss'"]),
        ("valid/Words", ["'valid/Words', which is not a number"]),
        ("custom/Length", ["'custom/Length', a number that a hook returns", "there is no hook"]),
        ("train/Learning Rate", ["no direction of its own", "mode='min' or mode='max'"]),
    ],
)
def test_unusable_monitors_are_refused(tmp_path, case, key, parts):
    builder, lr = MONITORS[case](quiet(tmp_path / "run").metric_train(LearningRate()).metric_valid(Words()), key)
    message = refused(build_line(builder, lr), batches(), batches())
    assert f"{case} monitors" in message
    assert all(part in message for part in parts), message


def test_a_monitor_of_missing_validation_data_is_refused(tmp_path):
    builder = quiet(tmp_path / "run").early_stopping(MetricEarlyStopping("valid/Loss"))
    message = refused(build_line(builder), batches())
    assert "early stopping monitors 'valid/Loss', and there is no validation data; choose from 'train/" in message
    assert "train/Loss" in message


def test_a_mistake_in_a_function_that_is_both_steps_is_reported_once(tmp_path):
    def wrong(model, batch):
        return RegressionOutput.from_predictions(batch["x"] @ jnp.zeros(7), batch["t"])

    def other(model, batch):
        return RegressionOutput.from_predictions(batch["x"] @ jnp.zeros(7), batch["t"])

    for valid_step, number in ((wrong, 1), (other, 2)):
        learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=wrong, valid_step=valid_step)
        with raises_code("step-trace-failed") as raised:
            learner.fit(batches(), batches())
        assert len(raised.value.codes) == number


def test_the_default_monitor():
    assert default_monitor([]) == "train/Loss"
    assert default_monitor(["valid"]) == "valid/Loss"
    assert default_monitor(["valid-dev", "valid-ood"]) == "valid-dev/Loss"


# -- all problems ------------------------------------------------------------------------------------------------------


def test_all_problems_of_a_run_are_one_error(tmp_path):
    """The run would overwrite another one, which does not change."""
    build_line(quiet(tmp_path / "run")).fit(batches())
    builder = quiet(tmp_path / "run", overwrite=True).metrics(Accuracy()).num_epochs(2)
    builder.early_stopping(MetricEarlyStopping("valid/Accurate")).with_file_checkpointer(monitor="Loss")
    learner = builder.build(
        line(), optax.sgd, ReduceOnPlateau(0.1, "valid/Lost"), train_step=line_step, valid_step=lambda m, b: b["z"]
    )
    message = refused(learner, batches(), iter(batches()), directory=tmp_path)
    for part in (
        "7 problems",
        "the metric Accuracy needs logits",
        "valid_step (on valid) reads batch['z']",
        "early stopping monitors 'valid/Accurate'",
        "ReduceOnPlateau monitors 'valid/Lost'",
        "the checkpointer monitors 'Loss'",
        "the valid data is an iterator",
    ):
        if part != "7 problems":
            assert part in message, part
    assert "6 problems" in message


def test_an_exception_of_the_step_is_raised_unchanged(tmp_path):
    def step(model, batch):
        raise ZeroDivisionError("mine")

    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=step)
    with pytest.raises(ZeroDivisionError, match="mine"):
        learner.fit(batches())
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_user_is_the_cause_of_the_one_of_all_problems(tmp_path):
    """Otherwise neither the traceback nor a debugger shows the user's frames."""

    def step(model, batch):
        width = 7
        return line_step(model, {**batch, "x": batch["x"][:, : width - 6]})

    nothing = lambda model, batch: None  # noqa: E731
    learner = quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=step, valid_step=nothing)
    with raises_code("learner-untrainable") as raised:
        learner.fit(batches(), batches())
    error, frames = raised.value, traceback.walk_tb(raised.value.__cause__.__traceback__)
    assert (len(error.problems), isinstance(error.__cause__, TypeError)) == (2, True)
    assert [frame.f_locals["width"] for frame, _ in frames if frame.f_code is step.__code__] == [7]


def test_the_learner_can_be_fitted_after_an_error(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    refused(learner, [])
    assert learner.fit(batches()).summary["steps"] == -(-ROWS // BATCH)


def test_valid_input_is_accepted_without_compiling(tmp_path):
    definition = build_line(quiet(tmp_path / "run")).definition
    with CompileTimes() as compiled:
        inputs = read_checked(definition, batches(), {"a": valid_data(), "b": batches()})
    assert compiled.count == 0
    assert list(inputs.valid) == ["valid-a", "valid-b"]
    assert inputs.first_batches["train"]["t"].tolist() == T[:BATCH].tolist()
    assert definition.step.own_grads is False


# -- batch sizes and validation ---------------------------------------------------------------------------------------


def warnings_of(directory):
    return [line for line in (directory / "experiment.log").read_text().splitlines() if "WARNING" in line]


@pytest.mark.full
@pytest.mark.parametrize(
    "valid",
    [
        pytest.param(arrays(), marks=pytest.mark.full, id="one split"),
        pytest.param({"a": arrays(), "b": arrays()}, id="several splits"),
    ],
)
def test_a_dict_of_arrays_is_a_dataset_with_a_batch_size(tmp_path, valid):
    splits = ["valid"] if "x" in valid else ["valid-a", "valid-b"]
    learner = build_line(quiet(tmp_path / "run").num_epochs(1).with_batch_size(BATCH))
    result = learner.fit({name: jnp.asarray(x) for name, x in arrays().items()}, valid)
    expected = build_line(quiet(tmp_path / "loaders").num_epochs(1)).fit(
        DataLoaderBuilder().batch_size(BATCH).shuffle(0).build(arrays()),
        {name: DataLoaderBuilder().batch_size(BATCH).build(arrays()) for name in ("a", "b")},
    )
    assert result.history["train/Loss"] == expected.history["train/Loss"]
    assert [result.history[f"{split}/Loss"] for split in splits] == [expected.history["valid-a/Loss"]] * len(splits)
    assert learner.evaluate(arrays()) == {"Loss": result.history[f"{splits[0]}/Loss"][-1]}
    assert warnings_of(tmp_path / "run") == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("variable", "launcher"),
    [("SLURM_STEP_NUM_TASKS", "SLURM"), pytest.param("OMPI_COMM_WORLD_SIZE", "MPI", marks=pytest.mark.full)],
)
def test_an_unconnected_process_is_warned_about(tmp_path, monkeypatch, variable, launcher):
    for count in (1, 3):
        monkeypatch.setenv(variable, str(count))
        build_line(quiet(tmp_path / str(count)).num_epochs(1)).fit(batches(), valid_data())
    assert warnings_of(tmp_path / "1") == []
    (text,) = warnings_of(tmp_path / "3")
    assert f"{launcher} started 3 processes" in text
    assert "--distributed" in text


def test_arrays_of_several_lengths_are_refused(tmp_path):
    wrong = {**arrays(), "t": T[:5]}
    learner = build_line(quiet(tmp_path / "run").with_batch_size(BATCH))
    assert "arrays with a common first axis" in refused(learner, wrong)
    mixed = {"a": valid_data(), "x": X}
    assert "the validation data is a dict with a, x" in refused(learner, batches(), mixed)


SIZED = {
    "a loader": lambda: DataLoaderBuilder().batch_size(5).build(arrays()),
    "a list": lambda: batches(5),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", some(SIZED, {"a loader"}))
def test_an_unused_batch_size_is_warned_about(tmp_path, kind):
    for size in (BATCH, 5):
        build_line(quiet(tmp_path / str(size)).num_epochs(1).with_batch_size(size)).fit(SIZED[kind](), valid_data())
    (text,) = warnings_of(tmp_path / str(BATCH))
    assert f"with_batch_size({BATCH}) is not used for the train data, which comes in batches of 5 already" in text
    assert warnings_of(tmp_path / "5") == []


@pytest.mark.full
def test_ids_that_float32_rounds_are_warned_about(tmp_path):
    for name, first in (("run", 2.0**24 + 1), ("small", 1.0)):
        train = {**arrays(), "id": first + np.arange(len(X))}
        build_line(quiet(tmp_path / name).num_epochs(1).with_batch_size(BATCH)).fit(train)
    (text,) = warnings_of(tmp_path / "run")
    assert "'id' of a train batch holds 167772" in text
    assert warnings_of(tmp_path / "small") == []


@pytest.mark.full
@pytest.mark.parametrize("kind", ["arrays", "a view", "a loader", "validation data", "both"])
def test_rounded_ids_are_found_in_all_rows(tmp_path, kind):
    few = {**arrays(), "id": np.arange(len(X), dtype=float)}
    ids = {**few, "id": np.where(np.arange(len(X)) == len(X) - 1, 16777217.0, few["id"])}
    train, valid = {
        "arrays": (ids, None),
        "a view": (ArrayDataset(ids).shuffle(seed=0), None),
        "a loader": (DataLoaderBuilder().batch_size(BATCH).build(ids), few),
        "validation data": (few, {"a": DataLoaderBuilder().batch_size(BATCH).build(ids)}),
        "both": (ids, ids),
    }[kind]
    learner = build_line(quiet(tmp_path / "run").num_epochs(1).with_batch_size(BATCH))
    learner.fit(train, valid)
    (text,) = warnings_of(tmp_path / "run")
    split = "valid-a" if kind == "validation data" else "train"
    assert f"'id' of a {split} batch holds 16777217" in text


@pytest.mark.full
def test_validation_windows_that_overlap_training_are_warned_about(tmp_path):
    series = ArrayDataset({"x": np.arange(60, dtype=np.float32)})

    def step(model, batch):
        return {"loss": ((model["w"].sum() - batch["x"]) ** 2).mean()}

    def fit(name, train, *valid):
        builder = quiet(tmp_path / name).num_epochs(1).with_batch_size(BATCH)
        builder.build(line(), optax.sgd, 1e-6, train_step=step, valid_step=step).fit(train, *valid)
        return warnings_of(tmp_path / name)

    train, valid = series.windows(5, stride=1).split([0.8, 0.2], seed=0)
    loader = DataLoaderBuilder().batch_size(BATCH).build(train)
    (text,) = fit(
        "drawn", loader, {"a": valid, "b": DataLoaderBuilder().batch_size(BATCH).build({"x": np.ones((8, 5))})}
    )
    assert "windows of valid-a consist of values that windows of train also contain" in text
    assert fit("by time", series.slice(0, 48).windows(5, stride=1), series.slice(44, 60).windows(5, stride=1)) == []
    assert fit("alone", train) == []


@pytest.mark.full
@pytest.mark.parametrize(("size", "batches", "count"), [(5, None, 1), (4, None, 0), (5, 2, 0)])
def test_validation_rows_that_are_left_out_are_warned_about(tmp_path, size, batches, count):
    """Of 24 rows, unless batches of 4 divide them, or the run validates on some batches only."""
    valid = DataLoaderBuilder().batch_size(size).drop_last().build(arrays())
    builder = quiet(tmp_path / "run").num_epochs(1)
    build_line(builder if batches is None else builder.valid_batches(batches)).fit(SIZED["a loader"](), valid)
    assert sum("without drop_last" in text for text in warnings_of(tmp_path / "run")) == count


@pytest.mark.parametrize(
    ("stops_by", "checkpoints", "count"),
    [
        ("valid/Accuracy", {}, 1),
        ("valid/Accuracy", {"monitor": "valid/Loss"}, 0),
        ("valid/Accuracy", {"keep_best": 0}, 0),
        ("valid/Loss", {}, 0),
    ],
)
def test_early_stopping_by_another_metric_than_the_best_is_warned_about(tmp_path, stops_by, checkpoints, count):
    builder = quiet(tmp_path / "run").num_epochs(1).metrics(Accuracy()).with_file_checkpointer(**checkpoints)
    builder.early_stopping(MetricEarlyStopping(stops_by))
    data = [{"x": np.ones((4, 3), np.float32), "label": np.zeros(4, np.int32)}]

    def step(model, batch):
        return ClassificationOutput.from_logits(batch["x"] @ model["w"], batch["label"])

    builder.build({"w": jnp.ones((3, 2))}, optax.sgd, 0.1, train_step=step, valid_step=step).fit(data, data)
    assert sum("early stopping follows" in text for text in warnings_of(tmp_path / "run")) == count


@pytest.mark.full
def test_a_batch_size_may_apply_to_validation_only(tmp_path):
    build_line(quiet(tmp_path / "run").with_batch_size(BATCH)).fit(SIZED["a loader"](), arrays())
    assert warnings_of(tmp_path / "run") == []


@pytest.mark.full
@pytest.mark.parametrize("several", some([False, True], (True,)))
def test_texts_encoded_differently_in_validation_are_warned_about(tmp_path, several):
    """One of two files lacks a text. Views of one table and longer lists of labels have the same encoding."""
    columns = [f"{x},{kind}" for x, kind in zip(range(6), ["bus", "car", "tram"] * 2, strict=True)]
    (tmp_path / "train.csv").write_text("\n".join(["x,kind", *columns]))
    (tmp_path / "valid.csv").write_text("\n".join(["x,kind", *columns[1:3]]))
    train = csv(tmp_path / "train.csv", ["x", "kind"], labels=["kind"])
    sorted_alone = csv(tmp_path / "valid.csv", ["x", "kind"], labels=["kind"])
    alike = csv(tmp_path / "valid.csv", ["x", "kind"], labels={"kind": ["bus", "car", "tram", "ship"]})
    assert train.arrays["kind"][2] != sorted_alone.arrays["kind"][1]

    def squares(model, batch):
        return {"loss": ((model["w"][0] - batch["kind"].astype(jnp.float32)) ** 2).mean()}

    def fit(name, valid):
        builder = quiet(tmp_path / name).num_epochs(1).with_batch_size(3)
        builder.build(line(), optax.sgd, 0.01, train_step=squares, valid_step=squares).fit(train, valid)
        return [text for text in warnings_of(tmp_path / name) if "numbers its texts" in text]

    split = "valid-night" if several else "valid"
    (text,) = fit("run", {"day": train, "night": sorted_alone} if several else sorted_alone)
    assert f"'kind' numbers its texts differently in {split} than in train: 0 is 'bus' in train and 'car' in" in text
    (text,) = fit("mapped", sorted_alone.map(dict))
    assert text.endswith("Ignore this warning if a function of map renumbers them")
    assert fit("alike", {"day": train.slice(2), "night": alike} if several else alike) == []
    (tmp_path / "names.csv").write_text("x,kind\n1,a.png\n2,b.png")  # distinct texts, like file names, are not compared
    assert fit("names", csv(tmp_path / "names.csv", ["x", "kind"], labels=["kind"])) == []


def test_validation_inside_epochs_needs_validation_data(tmp_path):
    learner = build_line(quiet(tmp_path / "run").num_epochs(1).valid_every(2))
    assert refused(learner, batches()).startswith("valid_every is 2, and there is no validation data: give it to fit")
    learner.overview(batches())  # an overview needs no validation data
    builders = {
        "valid_first": lambda builder: builder.valid_first(),
        "valid_every(epochs=)": lambda builder: builder.valid_every(epochs=2),
        "valid_batches": lambda builder: builder.valid_batches(3),
    }
    for name, scheduled in builders.items():
        with raises_code("learner-valid-every-without-data", name=name):
            build_line(scheduled(quiet(tmp_path / "run"))).fit(batches())


@pytest.mark.parametrize("valid", [valid_data(), {"ood": valid_data()}], ids=["one split", "another"])
def test_a_schedule_of_an_unknown_split_is_refused(tmp_path, valid):
    with raises_code("learner-valid-split-unknown", split="oood"):
        build_line(quiet(tmp_path / "run").valid_every(5, split="oood")).fit(batches(), valid)


def endless_batches():
    while True:
        yield from batches()


ENDLESS = {
    "cycle": lambda: itertools.cycle(batches()),
    "repeat": lambda: itertools.repeat(batches()[0]),
    "Grain": lambda: (
        grain.MapDataset.source([{k: v[i] for k, v in arrays().items()} for i in range(ROWS)]).batch(BATCH).repeat()
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", some(ENDLESS, {"Grain"}))
def test_endless_validation_is_refused(tmp_path, kind):
    make = ENDLESS[kind]
    learner = build_line(quiet(tmp_path / "run").num_epochs(1))
    message = "the valid data has no end, and a validation reads it to its end: limit it by valid_batches(n)"
    assert refused(learner, batches(), make()).startswith(message)
    with raises_code("data-validation-endless"):
        learner.evaluate(make())
    assert next(iter(learner.predict(make()))).loss >= 0  # the reader of predictions can stop


@pytest.mark.full
def test_a_finite_repeat_is_accepted(tmp_path):
    result = build_line(quiet(tmp_path / "run").num_epochs(1)).fit(batches(), itertools.repeat(batches()[0], 2))
    assert len(result.history["valid/Loss"]) == 1


VALID = {
    "a function without an end": lambda: endless_batches,
    "shuffled on the device": lambda: DataLoaderBuilder().batch_size(BATCH).shuffle(1).build(arrays()),
    "Grain without an end": ENDLESS["Grain"],
}


@pytest.mark.full
@pytest.mark.parametrize("kind", some(VALID, ("shuffled on the device",)))
def test_valid_batches_limits_each_validation_to_the_first_batches(tmp_path, kind):
    data = VALID[kind]()
    first = list(itertools.islice(data() if callable(data) else data, 2))
    build = lambda name: build_line(quiet(tmp_path / name).num_epochs(2).metrics(LastRow()))  # noqa: E731
    limited = build_line(quiet(tmp_path / "run").num_epochs(2).metrics(LastRow()).valid_batches(2))
    result, expected = limited.fit(batches(), VALID[kind]()), build("whole").fit(batches(), first)
    for key in ("valid/Loss", "valid/Last Row"):
        assert result.history[key] == expected.history[key]
    assert len(limited.evaluate(batches())) == 2


@pytest.mark.full
def test_valid_batches_may_exceed_the_data(tmp_path):
    result = build_line(quiet(tmp_path / "run").num_epochs(1).valid_batches(99)).fit(batches(), batches())
    expected = build_line(quiet(tmp_path / "whole").num_epochs(1)).fit(batches(), batches())
    assert result.history["valid/Loss"] == expected.history["valid/Loss"]


@pytest.mark.full
def test_a_long_validation_is_warned_about_once(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.training.validation.MANY_BATCHES", 10)

    def long():
        for _ in range(20):
            yield from batches()

    builder = quiet(tmp_path / "run").num_epochs(1).valid_every(1).steps_per_dispatch(1)
    build_line(builder).fit(batches()[:2], long)
    texts = warnings_of(tmp_path / "run")
    assert len(texts) == 2  # one per validation
    for text in texts:
        assert "the valid data has given 10 batches and has not ended, and training 1 since the last" in text


class Reading:
    """Data that counts its open iterators, which might have worker processes."""

    def __init__(self, data):
        self.data, self.open = data, 0

    def __call__(self):
        self.open += 1
        try:
            yield from self.data
        finally:
            self.open -= 1


WRONG = [{"x": np.zeros((4, 7), np.float32), "y": np.zeros(4, np.float32)}]


@pytest.mark.parametrize(
    ("train", "valid", "build"),
    [
        (WRONG, None, build_line),
        (batches(), ["text"], build_line),
        (batches(), WRONG, build_line),
        (batches(), batches(), lambda builder: build_line(builder.valid_every(steps=2, split="other"))),
        (batches(), batches(), lambda builder: build_line(builder.valid_batches(1, shuffle=True))),
        (batches(), batches(), lambda builder: builder.build(line(), optax.sgd, 0.1, train_step=line_step)),
    ],
)
def test_a_run_that_is_refused_closes_its_data(train, valid, build, tmp_path):
    """The data is closed while the error is still referenced, as in a notebook."""
    train, valid = Reading(train), None if valid is None else Reading(valid)
    learner = build(quiet(tmp_path / "run").num_epochs(1))
    with pytest.raises(LearnerError) as error:
        learner.fit(train, valid)
    assert (train.open, valid and valid.open) == (0, valid and 0), error


def test_a_directory_in_use_closes_the_data(tmp_path):
    train = Reading(batches())
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"), raises_code("run-in-use") as error:
        build_line(quiet(tmp_path / "run")).fit(train)
    assert train.open == 0, error


def test_an_evaluation_that_is_refused_closes_its_data(tmp_path):
    data, learner = Reading(WRONG), build_line(quiet(tmp_path / "run"))
    for use in (learner.evaluate, lambda data: list(learner.predict(data))):
        with pytest.raises(LearnerError) as error:
            use(data)
        assert data.open == 0, error


def test_errors_of_a_gradient_name_the_line_of_the_operation(tmp_path):
    """The step itself is traced without its gradient before."""

    def step(model, batch):
        loss, _ = jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0] * model["w"][0, 0], c[1] + 1), (1.0, 0))
        return {"loss": loss}

    with raises_code("step-trace-failed") as error:
        quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=step).fit(batches())
    assert "train_step cannot be traced with a train batch" in str(error.value)
    assert f"({__file__}, line {step.__code__.co_firstlineno + 1}" in str(error.value)


@pytest.mark.parametrize(("monitor", "count"), [("valid/Loss", 1), ("valid/Exact Match", 0)])
def test_a_monitored_loss_that_is_missing_is_warned_about(tmp_path, monitor, count):
    def valid(model, batch):
        tokens = jnp.zeros((len(batch["x"]), 2), jnp.int32)
        return GeneratedOutput.of(tokens, tokens)

    builder = quiet(tmp_path / "run", saves=True).num_epochs(1).metric_valid(ExactMatch(), Perplexity())
    builder.early_stopping(MetricEarlyStopping(monitor)).with_file_checkpointer(monitor="valid/Exact Match")
    builder.build(line(), optax.sgd, 0.1, train_step=line_step, valid_step=valid).fit(batches(), batches())
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert log.count("valid/Loss is monitored, and it is NaN") == count
    assert "the loss of valid is nan" not in log
    assert log.count("valid/Perplexity of epoch 1 is not defined (NaN)") == 1
    assert "valid/Loss of epoch 1 is not" not in log
