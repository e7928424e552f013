"""Check that the best epoch is kept, however rarely a run saves."""

import dataclasses
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import optax
import pytest

import learner.checkpoint
from learner import Interrupter, MetricEarlyStopping, RegressionOutput, Updates, load_checkpoint
from learner.checkpoint import CheckpointStore
from learner.metrics import CollectingMetric, LearningRate, MeanAbsoluteError
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    build_line,
    checkpoint_bits,
    journal_of,
    line,
    line_step,
    model_bits,
    noisy_step,
    quiet,
    saved_steps,
    scripted,
    shuffled,
    streamed,
    tree_of,
    valid_data,
)
from tests.support.stopped import CrashError, all_of, same, some, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")

LOSSES = 1.77, 1.3, math.nan, 1.3, 2.29, 1.63  # of two equally good epochs the first is best, and NaN never is


def constant_step(model, batch):
    return RegressionOutput.from_predictions(0 * batch["t"], batch["t"])


def build(builder, valid_step=constant_step):
    return builder.build(line(), optax.sgd, 0.05, train_step=line_step, valid_step=valid_step)


def models_of(builder):
    """Record the model at the end of each epoch, while the builder's run trains."""
    models = {}
    builder.on_epoch_end(lambda info, model: models.__setitem__(info.epoch, model_bits(model)))
    return models


def saves_of(directory):
    return [entry["step"] for entry in journal_of(directory) if entry["event"] == "save"]


@pytest.mark.full
def test_the_best_of_short_epochs_with_the_defaults(tmp_path):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(6)
    models = models_of(builder)
    result = build(builder).fit(shuffled(), scripted(*LOSSES))
    assert result.history["valid/Loss"] == pytest.approx(LOSSES, nan_ok=True)
    assert saved_steps(tmp_path / "run") == [2 * STEPS, 6 * STEPS]
    assert model_bits(result.best_model) == models[2]
    assert (result.best_epoch, result.best_step) == (2, 2 * STEPS)
    loaded = load_checkpoint(tmp_path / "run")
    assert (loaded.epoch, loaded.score) == (2, pytest.approx(1.3))
    marks = {entry["epoch"]: entry["best"] for entry in result.summary["checkpoints"]}
    assert marks == {2: True, 6: False}


@pytest.mark.full
def test_the_best_may_be_the_last_and_is_written_once(tmp_path):
    result = build(quiet(tmp_path / "run", saves=True).num_epochs(2)).fit(shuffled(), scripted(2.0, 1.0))
    assert saves_of(tmp_path / "run") == [2 * STEPS]
    assert model_bits(result.best_model) == model_bits(result.model)


@pytest.mark.full
def test_best_is_saved_before_each_checkpoint(tmp_path):
    """A killed run resumes from the newest checkpoint, and repeats all training that could be better than the best on
    disk.
    """
    builder = quiet(tmp_path / "run").with_file_checkpointer(keep_last=1, every_epochs=3).num_epochs(6)
    build(builder).fit(shuffled(), scripted(math.nan, 1.3, 3.8, 1.2, 2.29, 1.63))
    assert saves_of(tmp_path / "run") == [2 * STEPS, 3 * STEPS, 4 * STEPS, 6 * STEPS]
    assert saved_steps(tmp_path / "run") == [4 * STEPS, 6 * STEPS]


@pytest.mark.full
def test_no_more_than_the_newest_without_best_checkpoints(tmp_path):
    builder = quiet(tmp_path / "run").with_file_checkpointer(keep_last=1, keep_best=0, every_epochs=3).num_epochs(6)
    build(builder).fit(shuffled(), scripted(*LOSSES))
    assert saves_of(tmp_path / "run") == [3 * STEPS, 6 * STEPS]
    assert saved_steps(tmp_path / "run") == [6 * STEPS]


@pytest.mark.full
def test_early_stopping_agrees_on_the_best(tmp_path):
    stopping = MetricEarlyStopping("valid/Loss", patience=3)
    builder = quiet(tmp_path / "run", saves=True).num_epochs(9).early_stopping(stopping)
    result = build(builder).fit(shuffled(), scripted(*LOSSES))
    assert result.stopped_by == "early stopping: valid/Loss has not improved on 1.3 for 3 validations"
    assert load_checkpoint(tmp_path / "run").epoch == 2


def rare(directory, epochs, **options):
    """Return the builder of a run that saves rarely."""
    return quiet(directory).num_epochs(epochs).with_file_checkpointer(**{"keep_last": 1, "every_epochs": 100} | options)


@pytest.mark.full
@pytest.mark.parametrize("stops", [False, True])
def test_a_best_between_saves_is_not_one_of_the_newest(tmp_path, stops):
    """Epochs 3 and 6 are due; the fourth is the best, also if the run stops after it."""
    losses = (math.nan, 1.3, 3.8, 1.2, 2.29, 1.63)
    make = lambda: rare(tmp_path / "run", 6, keep_last=2, every_epochs=3)  # noqa: E731
    if stops:
        stop = Interrupter()
        builder = make().interrupter(stop).on_epoch_end(lambda info, model: stop.stop() if info.epoch == 4 else None)
        build(builder).fit(shuffled(), scripted(*losses))
        assert saved_steps(tmp_path / "run") == [3 * STEPS, 4 * STEPS]
        losses = losses[4:]
    build(make().resume()).fit(shuffled(), scripted(*losses))
    assert saved_steps(tmp_path / "run") == [3 * STEPS, 4 * STEPS, 6 * STEPS]


@pytest.mark.full
def test_a_validation_that_a_stop_has_interrupted_may_be_the_best(tmp_path):
    """It begins again after resuming, within its epoch."""
    stop, number = Interrupter(), itertools.count(1)
    losses = scripted(3.0, 2.0, 1.0)

    def interrupted():
        if next(number) == 3:
            stop.stop("for the night")
        return losses()

    make = lambda: rare(tmp_path / "run", 2).valid_every(steps=4)  # noqa: E731
    build(make().interrupter(stop)).fit(shuffled(), interrupted)
    build(make().resume()).fit(shuffled(), scripted(1.0, 3.0, 3.0, 3.0))
    assert load_checkpoint(tmp_path / "run").step == 8


@pytest.mark.full
def test_the_last_step_is_saved_with_its_validation(tmp_path):
    """A save is due there before the run ends and validates once more."""
    builder = quiet(tmp_path / "run").num_steps(8).with_file_checkpointer(every_steps=4)
    build(builder).fit(shuffled(), scripted(2.0, 1.0))
    assert load_checkpoint(tmp_path / "run", step=8).score == pytest.approx(1.0)


@pytest.mark.full  # by default, test_store.py changes the monitor
@pytest.mark.parametrize("every", [1, 100])
def test_best_by_another_monitor(tmp_path, every):
    def fit(epochs, monitor, *losses):
        builder = rare(tmp_path / "run", epochs, monitor=monitor, every_epochs=every).resume()
        return build(builder.metrics(MeanAbsoluteError())).fit(shuffled(), scripted(*losses))

    assert fit(2, "valid/Loss", 0.04, 0.0225).best_epoch == 2
    result = fit(5, "valid/Mean Absolute Error", 0.01, 0.0064, 0.0081)  # the errors are 0.1, 0.08, 0.09
    assert result.best_epoch == 4
    assert {entry["epoch"]: entry["best"] for entry in result.summary["checkpoints"]} == {4: True, 5: False}
    assert load_checkpoint(tmp_path / "run").score == pytest.approx(0.08)


@pytest.mark.full
def test_a_validation_inside_an_epoch_may_be_the_best(tmp_path):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(2).valid_every(steps=4)
    build(builder).fit(shuffled(), scripted(3.0, 2.0, 1.0, 4.0))
    loaded = load_checkpoint(tmp_path / "run")
    assert (loaded.step, loaded.epoch, loaded.score) == (8, None, pytest.approx(1.0))


# -- whatever ends the run ---------------------------------------------------------------------------------------------


class OftenBest:
    """The rate is highest in the first epoch, so that it is the best; momentum and random inputs continue."""

    every_epochs = 100

    def build(self, directory, epochs=4):
        builder = quiet(directory).num_epochs(epochs).metric_train(LearningRate())
        saves = {"monitor": "train/Learning Rate", "mode": "max", "every_epochs": self.every_epochs}
        return builder.with_file_checkpointer(1, 1, **saves)

    def fit(self, builder):
        schedule = optax.cosine_decay_schedule(2e-2, 5 * STEPS)
        learner = builder.build(line(), optax.adam, schedule, train_step=noisy_step, valid_step=line_step)
        return learner.fit(streamed(), valid_data())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, compiled_once):
    """Return the directory of an uninterrupted run, and all its results."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    return directory, all_of(directory, OftenBest().fit(OftenBest().build(directory)))


@pytest.fixture
def whole(uninterrupted):
    return uninterrupted[1]


@pytest.mark.full
def test_checkpoints_of_a_complete_run(whole, tmp_path):
    assert whole["checkpoints"] == [STEPS, 4 * STEPS]
    alone = OftenBest().fit(OftenBest().build(tmp_path / "run").with_file_checkpointer(None))
    assert model_bits(alone.model) == whole["model"]  # the copies change no bit


@pytest.mark.full
@pytest.mark.parametrize("step", [STEPS, STEPS + 2])
def test_stopped_run_has_its_best_and_resumes_to_the_bit(tmp_path, whole, step):
    """A run that fails also has its best epoch, which is tested by default."""
    directory, kind = tmp_path / "run", OftenBest()
    kind.fit(stopping_at(kind.build(directory), step))
    assert saved_steps(directory) == sorted({STEPS, step})
    assert load_checkpoint(directory).step == STEPS
    same(all_of(directory, kind.fit(kind.build(directory).resume())), whole)


@pytest.mark.full
def test_resumed_from_the_best_to_the_bit(tmp_path, uninterrupted):
    whole, expected = uninterrupted
    directory, kind = shutil.copytree(whole, tmp_path / "run"), OftenBest()
    before = checkpoint_bits(directory, STEPS)
    same(all_of(directory, kind.fit(kind.build(directory).checkpoint("best"))), expected)
    assert checkpoint_bits(directory, STEPS) == before


@pytest.mark.full
def test_a_run_that_fails_saves_its_best_first(tmp_path, whole):
    directory, kind = tmp_path / "run", OftenBest()

    def crash(info, model):
        if info.step == 2 * STEPS + 2:
            raise CrashError

    with pytest.raises(CrashError):
        kind.fit(kind.build(directory).every(steps=1, fn=crash))
    assert saved_steps(directory) == [STEPS]
    assert saves_of(directory) == [STEPS]
    same(all_of(directory, kind.fit(kind.build(directory).resume())), whole)


@pytest.mark.full
@pytest.mark.parametrize("epoch", some([1, 2], {1}))
def test_hook_that_fails_at_the_end_of_an_epoch_keeps_the_epoch(tmp_path, whole, epoch):
    """The first epoch is the best. A run that resumes from it calls the hook again."""
    directory, kind, called = tmp_path / "run", OftenBest(), []

    def crash(info, model):
        if info.epoch == epoch:
            raise CrashError

    with pytest.raises(CrashError):
        kind.fit(kind.build(directory).on_epoch_end(crash))
    assert saved_steps(directory) == [STEPS]
    result = kind.fit(kind.build(directory).resume().on_epoch_end(lambda info, model: called.append(info.epoch)))
    assert called[0] == (1 if epoch == 1 else 2)
    same(all_of(directory, result), whole)


@pytest.mark.full
def test_last_epoch_is_saved_once_its_hook_succeeds(tmp_path):
    directory, kind, called = tmp_path / "run", OftenBest(), []

    def crash(info, model):
        raise CrashError

    with pytest.raises(CrashError):
        kind.fit(kind.build(directory).num_epochs(1).on_epoch_end(crash))
    kind.fit(kind.build(directory).num_epochs(1).resume().on_epoch_end(lambda info, model: called.append(info.epoch)))
    assert (called, saved_steps(directory)) == ([1], [STEPS])


@pytest.mark.full
def test_a_model_that_a_hook_has_changed_is_not_changed_twice(tmp_path):
    """The copy must not contain the change of the first hook, which a run that resumes from it calls again."""
    directory, kind = tmp_path / "run", OftenBest()

    def crash(info, model):
        raise CrashError

    with pytest.raises(CrashError):
        kind.fit(kind.build(directory).on_epoch_end(lambda info, model: Updates(model=model)).on_epoch_end(crash))
    assert saved_steps(directory) == []


class FailsAtTheThird(CollectingMetric):
    """A metric that ends the reporter with an error."""

    name = "Third"
    higher_is_better = True
    fields = ("targets",)
    seen = 0

    def collect(self, output):
        return {"targets": output.targets}

    def compute(self, rows):
        self.seen += 1
        if self.seen == 3:
            raise CrashError
        return 0.0


@pytest.mark.full
def test_run_whose_reporter_fails_saves_its_best_first(tmp_path):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(4).metric_valid(FailsAtTheThird())
    with pytest.raises(CrashError):
        build(builder).fit(shuffled(), scripted(*LOSSES))
    assert saved_steps(tmp_path / "run") == [2 * STEPS]
    assert load_checkpoint(tmp_path / "run").epoch == 2


@pytest.mark.full
def test_nonfinite_error_names_the_best(tmp_path):
    passes = []

    def make():
        passes.append(1)
        x = np.ones((4, 3), np.float32)
        bad = np.full((4, 1), np.inf if len(passes) == 4 else 1.0, np.float32)
        return iter([{"x": x, "t": np.ones((4, 1), np.float32)}, {"x": x, "t": bad}])

    builder = quiet(tmp_path / "run", saves=True).num_epochs(6)
    checkpoint = str((tmp_path / "run" / "checkpoint" / "4").absolute())
    with raises_code("step-nonfinite", step=8, epoch=4, checkpoint=checkpoint):
        build(builder).fit(make, scripted(*LOSSES))
    assert saved_steps(tmp_path / "run") == [4]


@pytest.mark.full
def test_a_best_that_could_not_be_written_is_written_at_the_end(tmp_path, monkeypatch):
    failed, save = [], CheckpointStore.save

    def full_at_first(self, step, items, progress):
        if step == 2 * STEPS and not failed:
            failed.append(step)
            raise OSError(28, "No space left on device")
        save(self, step, items, progress)

    monkeypatch.setattr(CheckpointStore, "save", full_at_first)
    builder = quiet(tmp_path / "run").with_file_checkpointer(keep_last=1, every_epochs=3).num_epochs(6)
    build(builder.on_save_error("warn")).fit(shuffled(), scripted(*LOSSES))
    assert failed == [2 * STEPS]
    assert saved_steps(tmp_path / "run") == [2 * STEPS, 6 * STEPS]


@pytest.mark.full
def test_waiting_best_is_moved_to_the_host(tmp_path, monkeypatch):
    """As on an accelerator, whose memory is separate from the host's: the waiting state is on the host."""
    moved, to_host = [], learner.checkpoint.best.Snapshot.to_host

    def moving(self):
        moved.append(self.step)
        return to_host(self)

    monkeypatch.setattr(learner.checkpoint.best.Snapshot, "to_host", moving)
    monkeypatch.setattr("learner.training.checkpoints.save_decisions.IN_PLACE", ())
    builder = quiet(tmp_path / "run", saves=True).num_epochs(6)
    models = models_of(builder)
    result = build(builder).fit(shuffled(), scripted(*LOSSES))
    assert moved == [STEPS, 2 * STEPS]
    assert model_bits(result.best_model) == models[2]


# -- restored ----------------------------------------------------------------------------------------------------------


def test_restore_best_makes_the_best_model_the_result(tmp_path):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(6).restore_best()
    models = models_of(builder)

    def valid_step(model, batch):
        output = constant_step(model, batch)
        return dataclasses.replace(output, predictions=line_step(model, batch).predictions)

    learner = build(builder, valid_step)
    result = learner.fit(shuffled(), scripted(*LOSSES))
    assert model_bits(result.model) == models[2] != models[6]
    (batch,) = scripted(1.0)()
    (output,) = learner.predict([batch])
    assert output.predictions == pytest.approx(np.asarray(line_step(result.model, batch).predictions))


@pytest.mark.full
def test_a_run_with_restore_best_resumes_from_its_last_step(tmp_path):
    """Also after a stop within an epoch, and once the run has ended; the result is the best epoch so far."""
    straight = build(quiet(tmp_path / "straight", saves=True).num_epochs(6))
    straight.fit(shuffled(), scripted(*LOSSES))
    run = tmp_path / "run"

    def begun(epochs):
        return quiet(run, saves=True).num_epochs(epochs).restore_best().resume()

    builder = begun(6)
    models = models_of(builder)
    result = build(stopping_at(builder, 2 * STEPS + 3)).fit(shuffled(), scripted(*LOSSES))
    assert model_bits(result.model) == models[2]
    for _ in range(2):  # the second time, nothing is left to train
        result = build(begun(6)).fit(shuffled(), scripted(*LOSSES[2:]))
        assert (model_bits(result.model), result.best_epoch) == (models[2], 2)
    assert checkpoint_bits(run, 6 * STEPS) == checkpoint_bits(tmp_path / "straight", 6 * STEPS)


def test_restore_best_needs_checkpoints(tmp_path):
    with raises_code("checkpoint-restore-best-unsaved"):
        build(quiet(tmp_path / "run").with_file_checkpointer(None).restore_best())


# -- without one -------------------------------------------------------------------------------------------------------


def test_best_model_needs_checkpoints(tmp_path):
    result = build_line(quiet(tmp_path / "run")).fit(shuffled())
    with raises_code("learner-best-not-kept"):
        _ = result.best_model
    assert "checkpoint" not in json.dumps(sorted(tree_of(tmp_path / "run")))


# -- killed ------------------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys, time
from test_best import SavedRarely

def kill(info, model):
    while info.epoch == 3:
        time.sleep(0.01)
        if os.path.exists(os.path.join(sys.argv[1], "checkpoint", "12", "manifest.json")):
            os.kill(os.getpid(), signal.SIGKILL)

kind = SavedRarely()
kind.fit(kind.build(sys.argv[1]).on_epoch_end(kill))
"""


class SavedRarely(OftenBest):
    """Save every second epoch; the first epoch is the best."""

    every_epochs = 2

    def build(self, directory, epochs=5):
        return super().build(directory, epochs)


@pytest.mark.full
def test_killed_run_ends_with_the_overall_best(tmp_path):
    """The best epoch is written before the newest, so that a kill loses no candidate."""
    tests = Path(__file__).parents[1]
    paths = [tests / "reliability", Path(learner.__file__).parents[1]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "run"], env=environment, timeout=200)
    assert done.returncode == -signal.SIGKILL
    assert saved_steps(tmp_path / "run") == [STEPS, 2 * STEPS]
    kind = SavedRarely()
    resumed = all_of(tmp_path / "run", kind.fit(kind.build(tmp_path / "run").resume()))
    same(resumed, all_of(tmp_path / "whole", kind.fit(kind.build(tmp_path / "whole"))))
    assert resumed["checkpoints"] == [STEPS, 5 * STEPS]
