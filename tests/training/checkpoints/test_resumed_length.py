"""Tests of runs that resume with epochs of another length."""

import shutil

import numpy as np
import pytest

from learner.metrics import LearningRate
from learner.runs import RunReader
from learner.schedules import Cosine, Exponential, Linear, MultiStep, Sequence, Step, WarmupCosine
from tests.support.codes import raises_code
from tests.support.runs import arrays, build_line, model_bits, progress_of, quiet, tamper
from tests.support.stopped import some, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")
RATE, BEFORE, TOTAL = 0.01, 12, 16  # two epochs of 6 steps, then two of 2
STEPS = np.arange(BEFORE, TOTAL)


def fit(directory, schedule, epochs, size, stop=None):
    builder = quiet(directory, saves=True).num_epochs(epochs).with_batch_size(size).metrics(LearningRate()).resume()
    builder = builder if stop is None else stopping_at(builder, stop)
    return build_line(builder, schedule).fit(arrays(24))


def rates(directory):
    """Return the learning rates of the steps with the new length."""
    return RunReader(directory).steps("train/Learning Rate").mean[BEFORE:]


SCHEDULES = {
    "the rest of the run": (Cosine(RATE), RATE * (1 + np.cos(np.pi * STEPS / TOTAL)) / 2),
    "a fraction": (Linear(RATE, over=1.0, unit="fraction"), RATE * (1 - STEPS / TOTAL)),
    "epochs": (Linear(RATE, over=4, unit="epochs"), RATE * np.array([2, 1.5, 1, 0.5]) / 4),
    "each epoch": (Step(RATE, 0.5, every=1, unit="epochs"), RATE * np.array([0.25, 0.25, 0.125, 0.125])),
    "a milestone": (MultiStep(RATE, [3], unit="epochs"), RATE * np.array([1, 1, 0.1, 0.1])),
    "parts": (Sequence([RATE, Linear(1.0, over=1, unit="epochs")], [3], unit="epochs"), [RATE, RATE, 1.0, 0.5]),
    "steps": (Linear(RATE, over=20), RATE * (1 - STEPS / 20)),
    # The second part has begun at step 3, half an epoch, and so continues after one and a half of its epochs.
    "a part in epochs after steps": (
        Sequence([Linear(0.0, RATE, over=3), Step(RATE, 0.5, every=1, unit="epochs")], [3]),
        RATE * np.array([0.5, 0.25, 0.25, 0.125]),
    ),
    "a part in steps until an epoch": (
        Sequence([Linear(0.0, RATE, over=20), 1.0], [3], unit="epochs"),
        [RATE * 12 / 20, RATE * 13 / 20, 1.0, 1.0],
    ),
}


@pytest.mark.parametrize("name", some(SCHEDULES, ("the rest of the run", "epochs")))
def test_schedules_follow_epochs_of_another_length(tmp_path, name):
    """Two of four epochs are trained with small batches, and the others with large ones."""
    schedule, expected = SCHEDULES[name]
    fit(tmp_path / "run", schedule, 2, 4)
    result = fit(tmp_path / "run", schedule, 4, 12)
    assert result.summary["steps"] == TOTAL
    np.testing.assert_allclose(rates(tmp_path / "run"), expected, rtol=1e-5, atol=1e-9)
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert log.count(" WARNING ") == 1  # about the change


def test_epochs_that_change_twice_count_as_they_were(tmp_path):
    """One epoch of 6 steps, two of 2 and two of 3. A part begins in the middle of the second one."""
    schedule = Sequence([1.0, Step(RATE, 0.5, every=1, unit="epochs")], [7])
    for epochs, size in ((1, 4), (3, 12), (5, 8)):
        fit(tmp_path / "run", schedule, epochs, size)
    # Its epochs end in the middle of others, too: at the steps 9, 11.5 and 14.5.
    expected = [1.0] * 7 + [RATE * 0.5**n for n in (0, 0, 1, 1, 1, 2, 2, 2, 3)]
    actual = RunReader(tmp_path / "run").steps("train/Learning Rate").mean
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_parts_that_have_ended_fit_into_their_own_epochs(tmp_path):
    """A warm-up of one epoch of 6 steps leaves room for the decay, though later epochs have 2 or 12."""
    warmed_up = WarmupCosine(0.1, warmup=1, unit="epochs")
    for milestones, unit, size in (([2], "epochs", 12), ([2], "epochs", 2), ([12], "steps", 12)):
        schedule, directory = Sequence([warmed_up, RATE], milestones, unit=unit), tmp_path / f"{unit}-{size}"
        fit(directory, schedule, 2, 4)
        fit(directory, schedule, 3, size)
        np.testing.assert_allclose(rates(directory), RATE)


def test_a_warm_up_may_be_longer_than_a_run_of_short_epochs(tmp_path):
    """Four epochs of 2 steps have only 8, but the run has 16."""
    fit(tmp_path / "run", RATE, 2, 4)
    fit(tmp_path / "run", WarmupCosine(RATE, warmup=10), 4, 12)
    np.testing.assert_allclose(rates(tmp_path / "run"), RATE * (1 + np.cos(np.pi * (STEPS - 10) / 6)) / 2, rtol=1e-5)
    for size, warmup in ((12, 20), (4, 100)):  # with epochs of the last length, and of the first
        with raises_code("learner-untrainable"):
            fit(tmp_path / "run", WarmupCosine(RATE, warmup=warmup), 5, size)


@pytest.mark.parametrize("warmup", [20, 24])
def test_a_schedule_that_does_not_fit_a_resumed_run_of_equal_epochs_is_refused(tmp_path, warmup):
    fit(tmp_path / "run", RATE, 2, 4)
    with raises_code("learner-untrainable"):
        fit(tmp_path / "run", WarmupCosine(RATE, warmup=warmup), 3, 4)


def test_a_warm_up_fits_the_run_that_resumes_from_an_older_checkpoint(tmp_path):
    """The newest checkpoint is damaged. From the one before, 12 steps are followed by two epochs of 2."""
    builder = quiet(tmp_path / "run").num_epochs(3).with_batch_size(4).with_file_checkpointer()
    build_line(builder.metrics(LearningRate()), RATE).fit(arrays(24))
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "18" / "state")
    fit(tmp_path / "run", WarmupCosine(RATE, warmup=12), 4, 12)
    np.testing.assert_allclose(rates(tmp_path / "run"), RATE * (1 + np.cos(np.pi * (STEPS - 12) / 4)) / 2, rtol=1e-5)


def test_accumulation_that_changes_inside_an_epoch(tmp_path):
    """Epoch 2 has two steps of 1 batch, and two of 3 and 1 batches; later ones have two steps."""
    schedule = Step(RATE, 0.5, every=1, unit="epochs")
    fit(tmp_path / "run", schedule, 4, 4, stop=8)
    builder = quiet(tmp_path / "run", saves=True).num_epochs(4).with_batch_size(4).metrics(LearningRate())
    result = build_line(builder.grads_accumulation(3).resume(allow="data"), schedule).fit(arrays(24))
    assert result.summary["steps"] == 14
    actual = RunReader(tmp_path / "run").steps("train/Learning Rate").mean[6:]
    np.testing.assert_allclose(actual, RATE * 0.5 ** np.array([1, 1, 1, 1, 2, 2, 3, 3]), rtol=1e-6)


def test_checkpoint_of_an_earlier_version_resumes_as_it_was(tmp_path):
    """A milestone behind the first epoch, the only one of another length, stays at its step."""
    decay = Exponential(RATE, 0.5, every=4)
    schedule = Sequence([Linear(0.0, RATE, over=1, unit="epochs"), decay], [1], unit="epochs")
    for name in ("new", "old"):
        fit(tmp_path / name, schedule, 1, 4)
        fit(tmp_path / name, schedule, 3, 12)
    progress = progress_of(tmp_path / "old", 10)
    assert progress.pop("epoch_changes") == [[1, 6]]
    tamper(tmp_path / "old", 10, {**progress, "steps_ahead": 4})
    for name in ("new", "old"):
        fit(tmp_path / name, schedule, 5, 12)
        actual = RunReader(tmp_path / name).steps("train/Learning Rate").mean[6:]
        np.testing.assert_allclose(actual, RATE * 0.5 ** (np.arange(8) / 4), rtol=1e-6)


def test_checkpoint_of_an_earlier_version_has_only_the_sum_of_changes(tmp_path):
    fit(tmp_path / "run", 0.1, 2, 4)
    fit(tmp_path / "run", 0.1, 3, 12)
    progress = progress_of(tmp_path / "run", 14)
    assert progress.pop("epoch_changes") == [[2, 12]]
    tamper(tmp_path / "run", 14, {**progress, "steps_ahead": 8})
    fit(tmp_path / "run", Step(RATE, 0.5, every=1, unit="epochs"), 4, 12)
    np.testing.assert_allclose(rates(tmp_path / "run")[2:], [RATE / 8, RATE / 8], rtol=1e-6)


@pytest.mark.parametrize("stop", some([13, 14], [13]))
def test_a_run_whose_epochs_changed_resumes_to_the_bit(tmp_path, stop):
    schedule = Cosine(RATE)
    for name in ("whole", "stopped"):
        fit(tmp_path / name, schedule, 2, 4)
    whole = fit(tmp_path / "whole", schedule, 4, 12)
    fit(tmp_path / "stopped", schedule, 4, 12, stop=stop)
    resumed = fit(tmp_path / "stopped", schedule, 4, 12)
    assert model_bits(resumed.model) == model_bits(whole.model)
    assert resumed.history["train/Loss"] == whole.history["train/Loss"]
    np.testing.assert_array_equal(rates(tmp_path / "stopped"), rates(tmp_path / "whole"))
    assert (tmp_path / "stopped" / "experiment.log").read_text().count(" WARNING ") == 1
    again = fit(tmp_path / "stopped", schedule, 4, 12)  # has nothing left to train
    assert again.summary["steps"] == TOTAL
