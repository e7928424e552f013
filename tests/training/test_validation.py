"""Tests of validation: schedules, decisions, rows and resuming."""

import itertools
import math
import types

import numpy as np
import optax
import pytest

from learner import Interrupter, MetricEarlyStopping, ReduceOnPlateau, RegressionOutput
from learner.data import DataLoaderBuilder
from learner.metrics import AUROC, Accuracy, IterationSpeed, LearningRate
from learner.training.monitors import monitored_on_host
from learner.training.validation import Validator
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    LastRow,
    T,
    arrays,
    batches,
    build_line,
    checkpoint_bits,
    line,
    line_step,
    model_bits,
    quiet,
    scripted,
    shuffled,
)
from tests.support.stopped import all_of, same, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")


def points(result, key="valid/Loss"):
    return [(point.epoch, point.step) for point in result.history.points(key)]


def scripted_step(model, batch):
    return RegressionOutput.from_predictions(0 * batch["t"], batch["t"])


# -- schedules ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_validation_every_n_epochs_and_after_the_last(tmp_path):
    result = build_line(quiet(tmp_path / "run").num_epochs(5).valid_every(epochs=2)).fit(shuffled(), batches(8))
    assert points(result) == [(2, 2 * STEPS), (4, 4 * STEPS), (5, 5 * STEPS)]
    assert len(result.history["train/Loss"]) == 5


def test_validation_every_n_steps(tmp_path):
    """Step 12 ends an epoch, and step 18 ends the run."""
    builder = quiet(tmp_path / "run").num_epochs(3).valid_every(steps=4, epochs=0)
    result = build_line(builder).fit(shuffled(), batches(8))
    assert points(result) == [(1, 4), (2, 8), (2, 12), (3, 16), (3, 18)]


def test_each_split_has_its_own_schedule(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(3).valid_every(epochs=2).valid_every(steps=4, epochs=0, split="ood")
    result = build_line(builder).fit(shuffled(), {"iid": batches(8), "ood": batches(8)})
    assert points(result, "valid-iid/Loss") == [(2, 12), (3, 18)]
    assert points(result, "valid-ood/Loss") == [(1, 4), (2, 8), (2, 12), (3, 16), (3, 18)]


def test_the_last_step_ends_with_a_validation(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(9).num_steps(2 * STEPS).valid_every(epochs=5)
    assert points(build_line(builder).fit(shuffled(), batches(8))) == [(2, 2 * STEPS)]


@pytest.mark.full
def test_the_last_step_ends_with_a_validation_of_all_splits(tmp_path):
    """Step 4 lies inside the epoch, and one of the splits is due there."""
    builder = quiet(tmp_path / "run").num_steps(4).valid_every(steps=2, epochs=0, split="ood")
    result = build_line(builder).fit(shuffled(), {"iid": batches(8), "ood": batches(8)})
    assert points(result, "valid-ood/Loss") == [(1, 2), (1, 4)]
    assert points(result, "valid-iid/Loss") == [(1, 4)]


@pytest.mark.full
def test_validation_before_the_first_step(tmp_path):
    called = []
    builder = quiet(tmp_path / "run").num_epochs(1).valid_first()
    builder.every(3, lambda info, model: called.append(info.step))
    result = build_line(builder).fit(shuffled(), batches(8))
    assert points(result) == [(0, 0), (1, STEPS)]
    assert result.history["valid/Loss"][0] == pytest.approx(np.mean(T**2), rel=1e-6)  # the initial line is zero
    assert called == [3, 6]


@pytest.mark.full
def test_the_model_before_the_first_step_may_be_the_best(tmp_path):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(2).valid_first().restore_best()
    learner = builder.build(line(value=0.5), optax.sgd, 0.05, train_step=line_step, valid_step=scripted_step)
    result = learner.fit(shuffled(), scripted(1.0, 2.0, 3.0))
    assert (result.best_epoch, result.best_step) == (0, 0)
    assert model_bits(result.model) == model_bits(line(value=0.5))


# -- decisions ---------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_decisions_are_made_when_their_metric_is_measured(tmp_path):
    """The losses are 1, 2, 3 and 4 after the epochs 2, 4, 6 and 8: a patience of 2 validations ends at epoch 6."""
    plateau = ReduceOnPlateau(0.04, "valid/Loss", factor=0.5, patience=0)
    builder = quiet(tmp_path / "run", saves=True).num_epochs(8).valid_every(epochs=2).metric_train(LearningRate())
    builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=2))
    learner = builder.build(line(), optax.sgd, plateau, train_step=line_step, valid_step=scripted_step)
    result = learner.fit(shuffled(), scripted(1.0, 2.0, 3.0, 4.0))
    assert result.stopped_by.startswith("early stopping")
    assert result.summary["epochs"] == 6
    assert result.history["train/Learning Rate"] == pytest.approx([0.04] * 4 + [0.02] * 2)
    assert result.best_epoch == 2


@pytest.mark.full
def test_the_monitor_may_belong_to_a_split_with_its_own_schedule(tmp_path):
    builder = (
        quiet(tmp_path / "run", saves=True)
        .num_epochs(3)
        .with_file_checkpointer(monitor="valid-ood/Loss", every_epochs=9)
    )
    builder.valid_every(steps=4, epochs=0, split="ood")
    learner = builder.build(line(), optax.sgd, 0.05, train_step=line_step, valid_step=scripted_step)
    result = learner.fit(shuffled(), {"iid": scripted(*range(3, 0, -1)), "ood": scripted(5.0, 1.0, 2.0, 3.0, 4.0)})
    assert (result.best_epoch, result.best_step) == (2, 8)


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_each_validation_reads_the_same_sample_of_rows(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(2).seed(5).with_batch_size(4).metrics(LastRow())
    result = build_line(builder.valid_batches(2, shuffle=True)).fit(arrays(), arrays())
    loader = DataLoaderBuilder().batch_size(4).shuffle(5).build(arrays())
    drawn = np.concatenate([batch["t"] for batch in itertools.islice(loader, 2)]).astype(np.float64)[:, 0]
    assert not np.array_equal(drawn, T[:8, 0])
    assert result.history["valid/Last Row"] == [pytest.approx(np.dot(np.arange(1, 9), drawn))] * 2


def test_batches_cannot_be_sampled(tmp_path):
    with raises_code("data-validation-not-shuffled", split="valid"):
        build_line(quiet(tmp_path / "run").valid_batches(2, shuffle=True)).fit(batches(), batches())


def test_the_log_describes_the_rows_of_a_validation(tmp_path):
    build_line(quiet(tmp_path / "run").valid_batches(2)).fit(batches(), batches())
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert "each validation of valid reads at most 2 batches, the first ones" in log


# -- resuming ----------------------------------------------------------------------------------------------------------


def scheduled(directory):
    builder = quiet(directory).num_epochs(4).with_file_checkpointer(every_epochs=9, keep_best=1, monitor="valid-b/Loss")
    builder.valid_first().valid_every(epochs=3).valid_every(steps=4, split="b").resume()
    return builder.early_stopping(MetricEarlyStopping("valid-a/Loss", patience=9))


class Stopping:
    """Validation data that stops the run before its second batch; reading only the first batch does not."""

    def __init__(self, interrupter):
        self.interrupter = interrupter

    def __call__(self):
        for number, batch in enumerate(batches()):
            if number == 1:
                self.interrupter.stop("here")
            yield batch


def fit_scheduled(builder, second=None):
    return build_line(builder).fit(shuffled(), {"a": batches(), "b": batches if second is None else second})


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled_once):
    """Return everything that an uninterrupted run leaves."""
    directory = tmp_path_factory.mktemp("whole")
    return all_of(directory, fit_scheduled(scheduled(directory)))


@pytest.mark.parametrize("step", [pytest.param(s, marks=() if s == 8 else pytest.mark.full) for s in (3, 6, 8, 18)])
def test_a_schedule_resumes_to_the_bit(tmp_path, step, whole):
    fit_scheduled(stopping_at(scheduled(tmp_path / "run"), step))
    same(all_of(tmp_path / "run", fit_scheduled(scheduled(tmp_path / "run"))), whole)


@pytest.mark.full
def test_a_stop_in_the_initial_validation_resumes(tmp_path, whole):
    interrupter = Interrupter()
    fit_scheduled(scheduled(tmp_path / "run").interrupter(interrupter), Stopping(interrupter))
    assert checkpoint_bits(tmp_path / "run", 0)
    result = fit_scheduled(scheduled(tmp_path / "run"))
    assert points(result, "valid-a/Loss") == [(0, 0), (3, 18), (4, 24)]
    same(all_of(tmp_path / "run", result), whole)


# -- values of several processes ---------------------------------------------------------------------------------------


class Second:
    """The second of two processes; the first one has measured other values."""

    count, index = 2, 1

    def __init__(self):
        self.sent = []

    def all_reduce_json(self, value, combine, what):
        self.sent.append(value)
        return combine([{"valid/AUROC": 0.5}, value])


def share_monitored(reporter, processes, on_host):
    validator = types.SimpleNamespace(_reporter=reporter, _processes=processes, _on_host=on_host)
    Validator.share_monitored(validator, 7)


def test_monitored_values_are_those_of_process_0():
    processes, replaced = Second(), []
    newest = {"valid/AUROC": math.inf, "valid/Loss": 0.25}
    reporter = types.SimpleNamespace(newest=lambda at: newest if at == 7 else {}, replace_newest=replaced.append)
    share_monitored(reporter, processes, ["train/Iteration Speed", "valid/AUROC"])
    assert processes.sent == [{"valid/AUROC": math.inf}]
    assert replaced == [{"valid/AUROC": 0.5}]


def test_processes_do_not_wait_for_metrics_of_the_devices():
    processes = Second()
    share_monitored(None, processes, [])
    assert processes.sent == []
    share_monitored(None, types.SimpleNamespace(count=1), ["valid/AUROC"])


def monitored(directory, key, **checkpoints):
    builder = quiet(directory, saves=True).metrics(Accuracy(), AUROC()).metric_train(IterationSpeed())
    builder.with_file_checkpointer(**checkpoints).early_stopping(MetricEarlyStopping(key))
    return monitored_on_host(build_line(builder).definition.options, ["valid"], None)


def test_collecting_metrics_and_those_of_the_machine_are_on_the_host(tmp_path):
    assert monitored(tmp_path / "run", "valid/Accuracy") == []
    assert monitored(tmp_path / "run", "custom/AUROC") == []
    assert monitored(tmp_path / "run", "valid/AUROC") == ["valid/AUROC"]
    both = monitored(tmp_path / "run", "train/Iteration Speed", monitor="valid/AUROC")
    assert both == ["train/Iteration Speed", "valid/AUROC"]
