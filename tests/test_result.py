"""What `fit` returns."""

import shutil

import numpy as np
import optax
import pytest
from flax import nnx
from runs import (
    Net,
    batches,
    bits,
    build_line,
    checkpoint_bits,
    line,
    model_bits,
    quiet,
    scripted,
    shuffled,
    valid_data,
)

from learner import LearningResult, RegressionOutput
from learner.history import History

pytestmark = pytest.mark.usefixtures("compiled_once")


def result_of(load=lambda: None):
    history = History()
    history.record("train", 1, 6, {"Loss": 0.5})
    return LearningResult("the model", history, "num_epochs", {"steps": 6}, load)


def test_what_it_holds():
    result = result_of()
    assert (result.model, result.stopped_by, result.summary) == ("the model", "num_epochs", {"steps": 6})
    assert result.history["train/Loss"] == [0.5]
    assert repr(result) == "LearningResult(stopped_by='num_epochs', history=['train/Loss'])"


def test_the_best_model_is_read_once_and_only_when_asked_for():
    read = []
    result = result_of(lambda: read.append("best") or "best model")
    assert read == []
    assert (result.best_model, result.best_model) == ("best model", "best model")
    assert read == ["best"]


@pytest.fixture(scope="module")
def second_best(tmp_path_factory, compiled_once):
    """The loss of the second of three epochs is the lowest, as the validation data has it."""
    directory = tmp_path_factory.mktemp("second") / "run"
    builder = quiet(directory).num_epochs(3).with_file_checkpointer(keep_last=1)
    learner = builder.build(Net(), optax.sgd, 0.05, valid_step=lambda model, batch: scripted_step(batch))
    return learner.fit(shuffled(), scripted(9.0, 1.0, 4.0)), directory


def scripted_step(batch):
    return RegressionOutput.from_predictions(0 * batch["t"], batch["t"])


def test_the_best_model_is_that_of_the_best_checkpoint(second_best):
    result, directory = second_best
    assert result.history["valid/Loss"] == [9.0, 1.0, 4.0]
    stored = checkpoint_bits(directory, 12)["model"]
    best = nnx.as_pure(nnx.state(result.best_model, nnx.Param))
    assert bits(best["hidden"]["kernel"])[""] == stored["['params']['hidden.kernel']"]
    assert model_bits(result.best_model) != model_bits(result.model)


def test_the_best_model_is_as_it_was_given_and_in_eval_mode(second_best):
    result, _ = second_best
    assert type(result.best_model) is Net
    assert result.best_model.drop.deterministic
    assert result.best_model.norm.use_running_average


def test_the_best_may_be_the_last(tmp_path):
    result = build_line(quiet(tmp_path / "run").num_epochs(2)).fit(batches(), valid_data())
    assert result.history["valid/Loss"][1] < result.history["valid/Loss"][0]
    assert model_bits(result.best_model) == model_bits(result.model)


def test_without_checkpoints_there_is_no_best_model(tmp_path):
    result = build_line(quiet(tmp_path / "run").with_file_checkpointer(None)).fit(batches())
    assert result.best_model is None
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_a_result_does_not_hang_on_its_directory(tmp_path):
    """The model and the history are in memory; only the best model is read from the disk."""
    given = line()
    result = build_line(quiet(tmp_path / "run")).fit(batches())
    shutil.rmtree(tmp_path / "run")
    assert np.isfinite(result.model["w"]).all()
    assert model_bits(result.model) != model_bits(given)
    assert len(result.history["train/Loss"]) == 1
    assert result.best_model is None
