"""Tests of evaluation and prediction: values, recorded evaluations, and following a run."""

import gc
import json
import shutil
import signal
import threading
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from learner import ClassificationOutput, LearnerError, LearnerWarning, Linen, LossScale, Policy, RegressionOutput
from learner.data import DataLoaderBuilder, PerProcess, csv
from learner.data.batch_arrays import batch_arrays
from learner.data.source import source_of
from learner.distributed.process_group import SingleProcess
from learner.metrics import (
    AUROC,
    Accuracy,
    By,
    CollectingMetric,
    ConfusionMatrix,
    PearsonCorrelation,
    Perplexity,
    Recall,
    Subset,
)
from learner.optimizers import Ema
from learner.reports import html_report
from learner.runs import RunReader, compare
from learner.runs.evaluations import check_split
from learner.strategies import Sharded
from learner.training import passes
from learner.training.evaluation import Evaluator
from learner.training.feed.inputs import Inputs
from learner.training.follow import follow
from learner.training.reporting.reporter import Reporter
from tests.support.codes import raises_code
from tests.support.process_groups import errors_of_all, groups
from tests.support.runs import (
    ROWS,
    STEPS,
    X,
    arrays,
    batches,
    build_line,
    line,
    line_predictions,
    line_step,
    model_bits,
    quiet,
    scripted,
    shuffled,
)
from tests.support.small_models import BATCH, CASES
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")
LOSSES = 2.0, 1.0, 3.0, 4.0


def loss(model, data):
    """Return the mean squared error in float64."""
    errors = data["x"].astype(np.float64) @ np.asarray(model["w"]) + np.asarray(model["b"]) - data["t"]
    return float(np.mean(errors**2))


def valid_step(model, batch):
    """Return the loss that the data prescribes, if any, so that the second epoch is the best."""
    return (
        line_step(model, batch) if "own" not in batch else RegressionOutput.from_predictions(0 * batch["t"], batch["t"])
    )


def build(builder):
    return builder.build(line(), optax.sgd, 0.05, train_step=line_step, valid_step=valid_step)


def valid():
    make = scripted(*LOSSES)
    return lambda: iter([{**batch, "own": batch["t"]} for batch in make()])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory, compiled_once):
    """Return the directory, learner and result of a run whose second epoch is the best, and its models by epoch. Tests
    must not write into the directory.
    """
    directory, models = tmp_path_factory.mktemp("fitted") / "run", {}
    builder = quiet(directory, saves=True).num_epochs(4)
    builder.on_epoch_end(lambda info, model: models.__setitem__(info.epoch, model))
    learner = build(builder)
    return directory, learner, learner.fit(shuffled(), valid()), models


@pytest.fixture
def trained(fitted, tmp_path):
    """Return a learner for a copy of that run, and the models by epoch."""
    shutil.copytree(fitted[0], tmp_path / "run")
    return build(quiet(tmp_path / "run")), fitted[3]


def test_the_best_checkpoint_is_evaluated_into_the_run(tmp_path, trained):
    learner, models = trained
    values = learner.evaluate(batches(), split="test")
    assert values == {"Loss": pytest.approx(loss(models[2], arrays()), rel=1e-6)}

    (entry,) = [json.loads(text) for text in (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()]
    assert (entry["epoch"], entry["step"], entry["values"]) == (2, 2 * STEPS, {"test/Loss": values["Loss"]})
    reader = RunReader(tmp_path / "run")
    assert [(p.epoch, p.step, p.value) for p in reader.points("test/Loss")] == [(2, 2 * STEPS, values["Loss"])]
    assert reader.metrics["test/Loss"].higher_is_better is False
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]["test/Loss"]
    assert summary["best"] == {"value": values["Loss"], "epoch": 2, "step": 2 * STEPS}
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert f"evaluated checkpoint/{2 * STEPS} (epoch 2, best): test/Loss" in log
    assert "test/Loss" in compare([reader]).metrics
    assert "test/Loss" in html_report.report([reader])


@pytest.mark.full
def test_a_checkpoint_can_be_chosen(tmp_path, trained):
    _, models = trained
    for checkpoint, epoch in (("latest", 4), (4, 4), ("best", 2)):
        learner = build(quiet(tmp_path / "run"))
        values = learner.evaluate(batches(), checkpoint=checkpoint)
        assert values["Loss"] == pytest.approx(loss(models[epoch], arrays()), rel=1e-6)
    learner = build(quiet(tmp_path / "run").checkpoint("latest"))
    assert learner.evaluate(batches(), "test")["Loss"] == pytest.approx(loss(models[4], arrays()), rel=1e-6)
    with raises_code("checkpoint-not-found"):
        learner.evaluate(batches(), checkpoint=3)


def test_values_of_a_run_that_cannot_be_written_to_are_returned(trained, monkeypatch):
    def denied(*args):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("learner.training.evaluation.record_evaluation", denied)
    learner, models = trained
    with pytest.warns(UserWarning, match="the evaluation could not be written to .*: Permission denied"):
        values = learner.evaluate(batches(), split="test")
    assert values["Loss"] == pytest.approx(loss(models[2], arrays()), rel=1e-6)


@pytest.mark.full
def test_hooks_evaluate_the_current_model(tmp_path):
    """Other threads cannot evaluate, and the evaluations do not affect the run."""
    losses, errors = [], []

    def hook(info, model):
        losses.append((learner.evaluate(batches())["Loss"], loss(model, arrays())))
        outputs = np.concatenate([x.predictions for x in learner.predict(batches())])
        np.testing.assert_allclose(outputs, arrays()["x"] @ np.asarray(model["w"]) + np.asarray(model["b"]), rtol=1e-5)

    def at_end(info, model):
        hook(info, model)
        thread = threading.Thread(target=lambda: errors.append(error_of(lambda: learner.evaluate(batches()))))
        thread.start()
        thread.join()

    builder = quiet(tmp_path / "hooks").num_epochs(2)
    learner = build(builder.every(2, hook).on_epoch_end(at_end))
    result = learner.fit(shuffled(), batches())
    measured, expected = zip(*losses, strict=True)
    np.testing.assert_allclose(measured, expected, rtol=1e-6)
    assert len(set(measured)) == 6  # an epoch has six steps, and two hooks run at its end
    assert errors == ["learner-evaluate-while-training"] * 2
    plain = build(quiet(tmp_path / "plain").num_epochs(2)).fit(shuffled(), batches())
    assert model_bits(result.model) == model_bits(plain.model)
    assert learner.evaluate(batches())["Loss"] == pytest.approx(loss(result.model, arrays()), rel=1e-6)


@pytest.mark.full
def test_dropped_and_shuffled_rows_are_warned_about(tmp_path):
    learner = build(quiet(tmp_path))
    loader = DataLoaderBuilder().batch_size(5)
    data = arrays()
    with pytest.warns(UserWarning, match="leaves out the rows behind the last full batch") as of_rows:
        learner.evaluate(loader.drop_last().build(data))
    with pytest.warns(UserWarning, match="its predictions come in that order") as of_order:
        assert len(list(learner.predict(DataLoaderBuilder().batch_size(5).shuffle(seed=0).build(data)))) == 5
    assert [of_rows[0].filename, of_order[0].filename] == [__file__] * 2
    learner.evaluate(DataLoaderBuilder().batch_size(5).shuffle(seed=0).build(data))  # the order does not matter
    learner.evaluate(DataLoaderBuilder().batch_size(4).drop_last().build(data))  # drops none of 24 rows


@pytest.mark.full
def test_warnings_about_a_checkpoint_have_the_users_line(tmp_path, trained):
    loader = DataLoaderBuilder().batch_size(5).drop_last().build(arrays())
    for arguments in ({"checkpoint": "best"}, {"split": "test"}):
        with pytest.warns(UserWarning, match="leaves out the rows behind the last full batch") as caught:
            build(quiet(tmp_path / "run")).evaluate(loader, **arguments)
        assert [each.filename for each in caught] == [__file__]


class Dropping(linen.Module):
    """A module with dropout that no argument switches off."""

    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(linen.Dropout(0.5, deterministic=False)(x))


def of_dropping(directory, **options):
    def step(model, batch):
        return RegressionOutput.from_predictions(model(batch["x"]), batch["t"])

    model = Linen(Dropping(), Dropping().init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X))
    return quiet(directory, **options).num_epochs(1).build(model, optax.sgd, 0.05, train_step=step, valid_step=step)


@pytest.mark.full
def test_an_evaluation_gives_the_warnings_of_its_step_once(tmp_path):
    learner = of_dropping(tmp_path / "run", saves=True)
    with pytest.warns(UserWarning, match="valid_step draws from the random stream 'dropout'") as caught:
        learner.evaluate({"a": batches(), "b": batches()})
    learner.evaluate(batches())
    assert [each.filename for each in caught] == [__file__]

    trained = of_dropping(tmp_path / "run2", saves=True)
    trained.fit(batches(), batches())
    assert "draws from the random stream" in (tmp_path / "run2" / "experiment.log").read_text()
    trained.evaluate(batches())  # the run has warned
    with pytest.warns(UserWarning, match="valid_step draws from the random stream 'dropout'"):
        of_dropping(tmp_path / "run2").evaluate(batches(), checkpoint="best")


def test_an_evaluation_gives_the_reason_of_an_undefined_value_once(tmp_path):
    builder = quiet(tmp_path / "run").metric_valid(PearsonCorrelation())
    learner = builder.build(line(bias=False), valid_step=line_step)  # weights of 0 predict 0 for each row
    with pytest.warns(LearnerWarning, match="predictions are constant") as caught:
        values = learner.evaluate({"a": batches(), "b": batches()})
    assert len(caught) == 1
    assert str(caught[0].message).startswith("a/Pearson Correlation is not defined (NaN): ")
    assert np.isnan([values["a/Pearson Correlation"], values["b/Pearson Correlation"]]).all()
    with pytest.warns(LearnerWarning, match=r"^Pearson Correlation is not defined \(NaN\): "):
        learner.evaluate(batches())
    learner.evaluate(batches())


def test_an_evaluation_gives_the_reason_of_a_metric_of_a_loss_that_is_not_finite(tmp_path):
    builder = quiet(tmp_path / "run").metric_valid(Perplexity())
    learner = builder.build(line(bias=False), valid_step=lambda model, batch: {"loss": jnp.float32(jnp.nan)})
    with pytest.warns(LearnerWarning, match=r"^Perplexity is not defined \(NaN\): it is made of the loss") as caught:
        assert np.isnan(learner.evaluate(batches())["Perplexity"])
    assert len(caught) == 1


def test_a_warning_that_is_an_error_is_raised_by_each_evaluation(tmp_path):
    learner = of_dropping(tmp_path / "run")
    for _ in range(2):
        with pytest.raises(UserWarning, match="valid_step draws from the random stream 'dropout'"):
            learner.evaluate(batches())


class Slow(CollectingMetric):
    """Computes until it is allowed to end."""

    name, splits = "Slow", ("valid",)
    began, end = threading.Event(), threading.Event()

    def collect(self, output):
        return output.predictions

    def compute(self, rows):
        self.began.set()
        self.end.wait(30)
        return 0.0


def test_ctrl_c_does_not_wait_for_a_metric(tmp_path, monkeypatch):
    learner, main, senders, wait = build(quiet(tmp_path).metrics(Slow())), threading.get_ident(), [], Reporter.wait

    def send():
        Slow.began.wait(30)
        signal.pthread_kill(main, signal.SIGINT)

    # Not before: Python drops an exception in the callback of a weak reference, such as to a thread that has ended.
    def wait_and_send(reporter):
        senders.append(threading.Thread(target=send))
        senders[0].start()
        wait(reporter)

    monkeypatch.setattr(Reporter, "wait", wait_and_send)
    try:
        with pytest.raises(KeyboardInterrupt):
            learner.evaluate(batches())
        (reporter,) = (each for each in threading.enumerate() if each.name == "learner-reporter")  # it still computes
    finally:
        Slow.end.set()
    reporter.join()
    senders[0].join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_a_callback_of_the_garbage_collector_ends_an_evaluation(tmp_path, monkeypatch):
    """Python drops the exception there."""
    learner, wait, numbers = build(quiet(tmp_path)), Reporter.wait, iter([signal.SIGINT])

    def interrupt(phase, info):
        for number in numbers:
            signal.raise_signal(number)

    def wait_interrupted(reporter):
        gc.callbacks.append(interrupt)
        gc.collect()
        gc.callbacks.remove(interrupt)
        wait(reporter)

    monkeypatch.setattr(Reporter, "wait", wait_interrupted)
    with pytest.raises(KeyboardInterrupt):
        learner.evaluate(batches())


def error_of(call):
    try:
        call()
    except LearnerError as error:
        return error.code


@pytest.mark.full
def test_evaluating_a_new_model_in_a_run_directory_is_warned_about(tmp_path, trained):
    """`fit` refuses the directory; evaluating random weights would otherwise go unnoticed."""
    for call in ("evaluate", "predict"):
        learner = build(quiet(tmp_path / "run"))
        with pytest.warns(UserWarning, match=r"checkpoint\('best'\)") as caught:
            list(getattr(learner, call)(batches()))
        assert len(caught) == 1
    build(quiet(tmp_path / "run", overwrite=True)).evaluate(batches())  # a new run will replace the old one


OPTIMIZERS = {
    "sgd": optax.sgd,
    "adam": optax.adam,
    "averages": Ema(optax.adam, 0.5),
    "schedule-free": lambda lr: optax.contrib.schedule_free_sgd(lr),
}


@pytest.mark.full
@pytest.mark.parametrize("trained_by", some(OPTIMIZERS, ("averages",)))
def test_evaluation_needs_no_optimizer(tmp_path, trained_by):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(2)
    result = builder.build(line(), OPTIMIZERS[trained_by], 0.05, train_step=line_step).fit(shuffled())
    expected = loss(result.model, arrays())  # the result has the evaluated parameters
    for optimizer, lr in ((None, None), (optax.rmsprop, 0.1), (Ema(optax.sgd, 0.9), 0.1)):
        later = quiet(tmp_path / "run").checkpoint("latest").build(line(), optimizer, lr, valid_step=line_step)
        assert later.evaluate(batches())["Loss"] == pytest.approx(expected, rel=1e-6)
        assert later.evaluate(batches(), checkpoint=2)["Loss"] == pytest.approx(expected, rel=1e-6)
        alone = quiet(tmp_path / "run").build(line(), optimizer, lr, valid_step=line_step)
        assert alone.evaluate(batches(), checkpoint=2)["Loss"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.full
def test_averages_are_sharded_like_their_parameters_without_the_optimizer(tmp_path):
    model = {"w": jnp.zeros((8, 8)), "b": jnp.zeros(8)}
    rng = np.random.default_rng(0)
    data = {name: rng.normal(size=(16, 8)).astype(np.float32) for name in ("x", "t")}

    def fsdp(directory, **options):
        return quiet(directory, **options).strategy(Sharded(rules="fsdp")).with_batch_size(8)

    learner = fsdp(tmp_path / "run", saves=True).build(model, Ema(optax.adam, 0.5), 0.05, train_step=line_step)
    result = learner.fit(data)
    later = fsdp(tmp_path / "run").checkpoint("latest").build(model, valid_step=line_step)
    assert later.evaluate(data)["Loss"] == pytest.approx(loss(result.model, data), rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("case", some(CASES, [case for case in CASES if case.name in ("linen", "dict")]), ids=str)
def test_evaluation_needs_no_freeze_patterns(tmp_path, case):
    learner = quiet(tmp_path / "run", saves=True).freeze(case.head).build(case.make(), optax.sgd, 0.05, **case.steps)
    learner.fit([BATCH])
    later = quiet(tmp_path / "run").checkpoint("latest").build(case.make(), **case.steps)
    assert later.evaluate([BATCH]) == learner.evaluate([BATCH])
    assert later.evaluate([BATCH], checkpoint=1) == learner.evaluate([BATCH])
    with raises_code("resume-differs"):  # there is no optimizer state for them
        quiet(tmp_path / "run").num_epochs(2).resume().build(case.make(), optax.sgd, 0.05, **case.steps).fit([BATCH])


def test_training_without_an_optimizer_is_refused(tmp_path):
    learner = quiet(tmp_path / "run").build(line(), train_step=line_step, valid_step=line_step)
    assert learner.evaluate(batches())["Loss"] == pytest.approx(loss(line(), arrays()), rel=1e-6)
    for train in (
        lambda: learner.fit(shuffled()),
        lambda: learner.train_step(learner.init(), batches()[0]),
        lambda: learner.overview(shuffled()),
        lambda: learner.find_lr(shuffled()),
    ):
        with raises_code("optimizer-type"):
            train()
    with raises_code("optimizer-type"):  # a population only has `fit`
        quiet(tmp_path / "run").population(lr=[0.1]).build(line, train_step=line_step, lr=0.1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_several_sets_are_evaluated_at_once(tmp_path, trained):
    trained[0].evaluate({"clean": batches(), "noisy": batches(8)}, split="test")
    assert {"test-clean/Loss", "test-noisy/Loss"} <= {*RunReader(tmp_path / "run").history}


@pytest.mark.full
def test_tables_are_available_as_arrays(tmp_path):
    """Arrays have the names of metrics, after those of sets if there are several. The values themselves are texts."""

    def step(model, batch):
        return ClassificationOutput.from_logits(batch["x"], batch["t"])

    tables = ConfusionMatrix(2), Recall(2, average="none"), Subset(ConfusionMatrix(2), "targets", 1, "ones")
    tables += (By(Accuracy(), "targets", ["zeros", "ones"]), AUROC(average="none"))
    builder = quiet(tmp_path / "run").with_batch_size(3)
    for metric in tables:
        builder = builder.metric_valid(metric)
    learner = builder.build(line(), optax.sgd, 0.05, train_step=line_step, valid_step=step)
    logits = np.array([[1, 0], [0, 1], [1, 0], [0, 1]], np.float32)  # predicts the classes 0, 1, 0, 1
    data = {"x": logits, "t": np.array([0, 0, 1, 1], np.int32)}
    values = learner.evaluate(data)
    assert isinstance(values["Recall (per class)"], str)
    assert {name: array.tolist() for name, array in values.arrays.items()} == {
        "Confusion Matrix": [[1, 1], [1, 1]],
        "Recall (per class)": [0.5, 0.5],
        "Confusion Matrix of ones": [[0, 0], [1, 1]],
        "Accuracy by targets": [0.5, 0.5],
        "AUROC (per class)": [0.5, 0.5],
    }
    several = learner.evaluate({"a": data, "b": data})
    assert several.arrays["b/Confusion Matrix"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.full
def test_a_dict_of_arrays_is_one_set(tmp_path, trained):
    learner = build(quiet(tmp_path / "run").with_batch_size(4))
    assert learner.evaluate(arrays(), split="test")["Loss"] == pytest.approx(loss(trained[1][2], arrays()), rel=1e-6)
    assert "test/Loss" in RunReader(tmp_path / "run").history
    followed = follow(learner.definition, arrays(), "test", is_running=lambda: False)
    assert [evaluation.epoch for evaluation in followed] == [4]  # the other checkpoint that was kept


def test_reserved_and_invalid_split_names_are_refused(trained):
    for split in ("valid", "train", "custom", "valid-ood", "a/b", "", "../x", 3):
        with raises_code("run-evaluation-split"):
            trained[0].evaluate(batches(), split=split)
    for split in ("valid2", "train_2", "customers"):  # without a hyphen, they are no splits of a run
        assert check_split(split) == split


def test_evaluating_a_split_without_a_run_is_an_error(tmp_path):
    with raises_code("run-not-a-run"):
        build_line(quiet(tmp_path / "run")).evaluate(batches(), split="test")
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_an_extended_run_keeps_its_evaluations(tmp_path, trained):
    trained[0].evaluate(batches(), split="test")
    build(quiet(tmp_path / "run", saves=True).num_epochs(5).resume()).fit(shuffled(), valid())
    assert "test/Loss" in json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]
    build(quiet(tmp_path / "run", saves=True, overwrite=True)).fit(shuffled(), valid())
    assert not (tmp_path / "run" / "evaluations.jsonl").exists()


@pytest.mark.full
def test_repeated_steps_lose_their_evaluation(tmp_path, trained):
    trained[0].evaluate(batches(), split="test", checkpoint="latest")
    build(quiet(tmp_path / "run", saves=True).num_epochs(4).checkpoint(2)).fit(shuffled(), valid())
    assert "test/Loss" not in RunReader(tmp_path / "run").history


@pytest.mark.full
def test_a_follower_evaluates_each_checkpoint_once(tmp_path):
    run, seen, models = tmp_path / "run", [], {}

    def train(epochs):
        builder = quiet(run).num_epochs(epochs).with_file_checkpointer(keep_last=2).resume()
        builder.on_epoch_end(lambda info, model: models.__setitem__(info.epoch, model))
        build_line(builder).fit(shuffled(), batches())

    train(2)
    epochs = iter((3, 4))
    for attempt in range(2):  # the second follower has nothing to evaluate
        definition = build_line(quiet(run)).definition
        polls = iter([True, True, False] if attempt == 0 else [False])
        evaluations = follow(
            definition, batches(), "eval", is_running=lambda polls=polls: next(polls), sleep=lambda: train(next(epochs))
        )
        seen += [(evaluation.epoch, evaluation.values["Loss"]) for evaluation in evaluations]
    assert [epoch for epoch, _ in seen] == [1, 2, 3, 4]
    assert [value for _, value in seen] == [pytest.approx(loss(models[n], arrays()), rel=1e-6) for n in (1, 2, 3, 4)]
    assert RunReader(run).history["eval/Loss"] == [value for _, value in seen]


@pytest.mark.full
def test_a_follower_ignores_splits_with_similar_names(tmp_path):
    learner = build_line(quiet(tmp_path / "run", saves=True).num_epochs(1))
    learner.fit(shuffled(), batches())
    learner.evaluate(batches(), split="eval-large")
    for data, epochs in (
        (batches(), [1]),
        ({"large": batches(), "small": batches(8)}, [1]),
        ({"large": batches()}, []),
    ):
        followed = follow(learner.definition, data, "eval", is_running=lambda: False)
        assert [evaluation.epoch for evaluation in followed] == epochs


class Second(SingleProcess):
    """The second of two processes, which receives the results of the first one."""

    index = 1

    def __init__(self, *results):
        self._results = list(results)

    def run_on_primary(self, function):
        return self._results.pop(0)


@pytest.mark.full
def test_followers_of_several_processes_evaluate_the_same_checkpoints(tmp_path, monkeypatch):
    """Only the first process looks for checkpoints, because other processes might see more. Each look uses a new
    process group, so that a failed evaluation affects only its own group.
    """
    run = tmp_path / "run"
    build_line(quiet(run).num_epochs(3).with_file_checkpointer(keep_last=3)).fit(shuffled(), batches())
    groups = [Second(False, [STEPS]), Second(True, [3 * STEPS])]
    monkeypatch.setattr("learner.training.follow.hosts", lambda: groups.pop(0))
    definition = build_line(quiet(run)).definition
    followed = follow(definition, batches(), "eval", is_running=lambda: pytest.fail("asked"), sleep=lambda: None)
    assert [evaluation.epoch for evaluation in followed] == [1, 3]


@pytest.mark.full
def test_a_removed_checkpoint_is_skipped(tmp_path, monkeypatch):
    builder = quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer(keep_last=3)
    build_line(builder).fit(shuffled(), batches())
    evaluate = Evaluator.evaluate_checkpoint

    def removed(self, data, split, *, step):
        if step == 2 * STEPS:
            for path in sorted((tmp_path / "run" / "checkpoint" / str(step)).rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        return evaluate(self, data, split, step=step)

    monkeypatch.setattr(Evaluator, "evaluate_checkpoint", removed)
    followed = follow(build_line(quiet(tmp_path / "run")).definition, batches(), "eval", is_running=lambda: False)
    assert [evaluation.epoch for evaluation in followed] == [1, 3]


def test_evaluating_a_checkpoint_does_not_change_the_model(fitted):
    _, learner, result, _ = fitted
    learner.evaluate(batches(), checkpoint="best")
    assert learner.evaluate(batches())["Loss"] == pytest.approx(loss(result.model, arrays()), rel=1e-6)
    (batch,) = DataLoaderBuilder().batch_size(24).build(arrays())
    (output,) = learner.predict([batch])
    assert output.predictions == pytest.approx(np.asarray(line_step(result.model, batch).predictions))
    assert model_bits(result.model) != model_bits(result.best_model)


# -- predict steps -----------------------------------------------------------------------------------------------------


def twice(model, batch):
    return 2 * line_predictions(model, batch["x"])


class Halves(nnx.Module):
    """A model with a predict step that returns a dict without a loss."""

    def __init__(self):
        self.scale = nnx.Param(jnp.full((), 0.5))

    def predict_step(self, batch):
        return {"half": batch["x"] * self.scale, "row": batch["x"].sum(1)}


def unlabelled(size=5):
    return [{"x": X[start : start + size]} for start in range(0, ROWS, size)]


def test_rows_without_labels_are_predicted(tmp_path):
    model = {"w": jnp.array([[1.0], [2.0], [3.0]]), "b": jnp.array([4.0])}
    learner = quiet(tmp_path).build(model, optax.sgd, 0.1, train_step=line_step, predict_step=twice)
    predictions = np.concatenate([*learner.predict(unlabelled())])
    np.testing.assert_allclose(predictions, 2 * (X @ [[1.0], [2.0], [3.0]] + 4), rtol=1e-5, atol=1e-6)
    with raises_code("step-valid-missing"):
        learner.evaluate(unlabelled())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_may_have_a_predict_step(tmp_path, precision):
    builder = quiet(tmp_path).precision(precision)
    learner = builder.build(Halves(), optax.sgd, 0.1, train_step=lambda model, batch: {"loss": model.scale[...]})
    outputs = [*learner.predict(unlabelled())]
    assert [output["half"].shape for output in outputs] == [(len(batch["x"]), 3) for batch in unlabelled()]
    assert {output["half"].dtype for output in outputs} == {np.dtype("float32")}
    np.testing.assert_allclose(np.concatenate([output["half"] for output in outputs]), X / 2, rtol=1e-2)


@pytest.mark.parametrize("model", [line(), jnp.array([[1.0], [2.0], [3.0]]), nnx.Linear(3, 1, rngs=nnx.Rngs(0))])
def test_a_pair_of_predictions_is_returned_completely(tmp_path, model):
    step = lambda model, batch: (batch["x"][:, 0], {"half": batch["x"] / 2})  # noqa: E731
    learner = quiet(tmp_path).build(model, predict_step=step)
    first, second = zip(*learner.predict(unlabelled()), strict=True)
    np.testing.assert_array_equal(np.concatenate(first), X[:, 0])
    np.testing.assert_allclose(np.concatenate([output["half"] for output in second]), X / 2)


@pytest.mark.parametrize("model", [line(), jnp.array([[1.0], [2.0], [3.0]]), Halves()], ids=["dict", "array", "nnx"])
def test_a_model_returned_with_the_predictions_is_discarded(tmp_path, model):
    learner = quiet(tmp_path).build(model, predict_step=lambda model, batch: (batch["x"], model))
    np.testing.assert_array_equal(np.concatenate([*learner.predict(unlabelled())]), X)


def test_a_pair_without_a_model_is_refused_as_output_of_a_valid_step(tmp_path):
    def pair(model, batch):
        return line_step(model, batch), batch["x"]

    learner = quiet(tmp_path).build(line(), optax.sgd, 0.1, train_step=line_step, valid_step=pair)
    for use in (learner.fit, learner.evaluate, lambda data: list(learner.predict(data))):
        with raises_code("step-output-pair", "float32", "(output, model)"):
            use(*[batches()] * (2 if use == learner.fit else 1))


def test_missing_labels_in_predictions_suggest_a_predict_step(tmp_path):
    learner = build(quiet(tmp_path))
    with raises_code("batch-missing-key", "predict_step", key="t"):
        list(learner.predict(unlabelled()))
    learner = quiet(tmp_path).build(line(), optax.sgd, 0.1, train_step=line_step, predict_step=line_step)
    with raises_code("batch-missing-key", "predict_step reads batch['t']"):
        list(learner.predict(unlabelled()))


@pytest.mark.parametrize("label", [np.int32(3), np.array(3), jnp.int32(3), 3])
def test_a_single_row_without_an_axis_of_rows_is_refused(tmp_path, label):
    learner = build(quiet(tmp_path).with_batch_size(4))
    with raises_code("data-validation-type", "label has no axis of rows"):
        list(learner.predict({"x": X[0], "label": label}))


@pytest.mark.full
def test_predicting_from_a_checkpoint_needs_only_a_predict_step(tmp_path):
    trained = build_line(quiet(tmp_path).with_file_checkpointer()).fit(batches()).model
    learner = quiet(tmp_path).checkpoint("latest").build(line(), predict_step=twice)
    predictions = np.concatenate([*learner.predict(unlabelled())])
    np.testing.assert_allclose(predictions, 2 * (X @ np.asarray(trained["w"]) + np.asarray(trained["b"])), rtol=1e-5)
    with raises_code("step-valid-missing"):
        learner.evaluate(unlabelled())


def test_a_predict_step_with_other_arguments_is_refused(tmp_path):
    with raises_code("step-function-signature"):
        quiet(tmp_path).build(line(), optax.sgd, 0.1, train_step=line_step, predict_step=lambda batch: batch)


@pytest.mark.full
def test_texts_encoded_differently_than_in_training_are_warned_about(tmp_path):
    """The test file lacks one of the texts. Learners after `fit`, of a checkpoint and of a finished run warn."""
    rows = [f"{number},{kind}" for number, kind in enumerate(["bus", "car", "tram"])]
    (tmp_path / "train.csv").write_text("\n".join(["x,kind", *rows]))
    (tmp_path / "test.csv").write_text("\n".join(["x,kind", *rows[1:]]))
    read = lambda name, labels: csv(tmp_path / name, ["x", "kind"], labels=labels)  # noqa: E731
    train, alone = (read(name, ["kind"]) for name in ("train.csv", "test.csv"))
    with_all = read("test.csv", {"kind": ["bus", "car", "tram"]})
    assert [data.arrays["kind"].tolist() for data in (alone, with_all)] == [[0, 1], [1, 2]]

    def step(model, batch):
        return {"loss": ((model["w"][0] - batch["kind"].astype(jnp.float32)) ** 2).mean()}

    def learner(**start):
        builder = quiet(tmp_path / "run", saves=True).with_batch_size(3)
        for option, arguments in start.items():
            builder = getattr(builder, option)(*arguments)
        return builder.build(line(), optax.sgd, 0.01, train_step=step, valid_step=step)

    first = learner()
    first.fit(train)
    finished = learner(resume=())
    finished.fit(train)
    for tested in (first, learner(checkpoint=(1,)), finished):
        tested.evaluate(with_all)
        for evaluate in (tested.evaluate, lambda data, tested=tested: list(tested.predict(data))):
            with pytest.warns(UserWarning, match="'kind' numbers its texts differently in the data than in train"):
                evaluate(alone)
    with pytest.warns(UserWarning, match="0 is 'bus' in train and 'car' in the data"):
        first.evaluate(alone, split="test")


@pytest.mark.parametrize(
    "call",
    [
        lambda learner: learner.evaluate(batches()),
        lambda learner: [*learner.predict(batches())],
        lambda learner: learner.evaluate(batches(), checkpoint="latest"),
    ],
)
def test_another_precision_than_the_run_had_is_a_warning(tmp_path, call):
    scaled = Policy(compute="float16", loss_scale=LossScale(8.0))
    build_line(quiet(tmp_path, saves=True).precision(scaled).remat("dots_saveable")).fit(batches())
    for precision, count in (("float16", 0), ("float32", 1)):
        learner = build_line(quiet(tmp_path).precision(precision).checkpoint("latest"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(learner)
        assert [("float16" in str(each.message), "float32" in str(each.message)) for each in caught] == [
            (True, True)
        ] * count


# -- predictions of several processes ----------------------------------------------------------------------------------


def errors_of_predictions(monkeypatch, *data_of_each, exchanges=True):
    """Return the error and the number of outputs of each process that predicts its data."""
    monkeypatch.setattr(passes, "check_predict", lambda *arguments: [])
    members, _ = groups(len(data_of_each))
    yielded = [0] * len(data_of_each)
    strategy = SimpleNamespace(exchanges_rows=lambda state: exchanges)
    runner = SimpleNamespace(strategy=strategy, state=None, outputs=lambda arrays, number: arrays)

    def run(index):
        source = source_of(data_of_each[index], "valid")
        inputs = Inputs(None, {"valid": source}, {"valid": batch_arrays(source.peek(1), "valid")})
        for rows, outputs in passes.predict(SimpleNamespace(step=None), runner, inputs, members[index]):
            assert len(outputs["x"]) == rows
            yielded[index] += 1

    return errors_of_all(len(data_of_each), run), yielded


def of_values(*values, rows=3):
    return [{"x": np.full((rows, 2), value, np.float32)} for value in values]


@pytest.mark.parametrize("mark", [lambda data: data, PerProcess])
def test_processes_whose_devices_share_rows_must_predict_the_same_data(monkeypatch, mark):
    """The contents of a list are known before it is read, those of a function's batches are not."""
    same, last = of_values(1, 2), of_values(1, 3)
    assert errors_of_predictions(monkeypatch, mark(same), mark(same)) == ([None, None], [2, 2])
    for one, other, outputs in [
        (same, of_values(3, 2), 0),
        (same, of_values(1, 2, rows=4), 0),
        (same, last, 0),
        (lambda: iter(same), lambda: iter(of_values(3, 2)), 0),
        (lambda: iter(same), lambda: iter(last), 2),
    ]:
        errors, yielded = errors_of_predictions(monkeypatch, mark(one), mark(other))
        assert {error.code for error in errors} == {"learner-predict-data-differs"}
        assert yielded == [outputs] * 2


def test_rows_in_memory_are_compared_before_the_first_prediction(monkeypatch):
    loaders = [DataLoaderBuilder().batch_size(2).build({"x": np.arange(end - 4.0, end)}) for end in (4, 4)]
    assert errors_of_predictions(monkeypatch, *loaders) == ([None, None], [2, 2])
    loaders[1] = DataLoaderBuilder().batch_size(2).build({"x": np.array([0.0, 1.0, 2.0, 7.0])})
    errors, yielded = errors_of_predictions(monkeypatch, *loaders)
    assert {error.code for error in errors} == {"learner-predict-data-differs"}
    assert yielded == [0, 0]


def test_processes_may_predict_other_rows_if_their_devices_do_not_share_them(monkeypatch):
    data = of_values(1, 2), of_values(3, 4, rows=5)
    assert errors_of_predictions(monkeypatch, *data, exchanges=False) == ([None, None], [2, 2])
