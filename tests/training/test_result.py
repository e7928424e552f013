"""Tests of `LearningResult`."""

import copy
import gc
import pickle
import re
import shutil
import weakref

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from learner import LearningResult, RegressionOutput
from learner.runs.history import History
from learner.strategies import Replicated, Sharded
from learner.training.programs.executor import Runner
from learner.training.result import BestModel
from tests.support.codes import raises_code
from tests.support.runs import (
    Net,
    batches,
    build_line,
    build_net,
    checkpoint_bits,
    line,
    line_step,
    model_bits,
    quiet,
    scripted,
    shuffled,
    valid_data,
)

pytestmark = pytest.mark.usefixtures("compiled_once")


def result_of(load=lambda: None, find=lambda: None):
    history = History()
    history.record("train", 1, 6, {"Loss": 0.5})
    return LearningResult("the model", history, "num_epochs", {"steps": 6}, load, find)


def test_attributes_and_repr():
    result = result_of()
    assert (result.model, result.stopped_by, result.summary) == ("the model", "num_epochs", {"steps": 6})
    assert result.history["train/Loss"] == [0.5]
    assert repr(result) == "LearningResult(stopped_by='num_epochs', history=['train/Loss'])"


def test_arrays_on_the_device_at_the_end_of_a_run(tmp_path, monkeypatch):
    """The parameters and two moments of Adam, and a copy of the parameters, which outlives the learner."""

    def count():
        gc.collect()
        return sum(x.shape == (3, 71) for x in jax.live_arrays())

    during, rebuild = [], Runner.rebuild
    monkeypatch.setattr(Runner, "rebuild", lambda *given: during.append(count()) or rebuild(*given))
    data = {"x": np.ones((8, 3), np.float32), "t": np.ones((8, 71), np.float32)}
    learner = quiet(tmp_path / "run").with_batch_size(4).build(line(3, 71), optax.adam, 0.1, train_step=line_step)
    given = count()
    result = learner.fit(data)
    assert (during, count()) == ([given + 4], given + 4)
    del learner
    assert count() == given + 1
    assert result.model["w"].shape == (3, 71)


def test_the_best_model_is_read_lazily_and_once():
    read = []
    result = result_of(lambda: read.append("best") or BestModel("best model", 2, 12))
    assert read == []
    assert (result.best_model, result.best_epoch, result.best_step) == ("best model", 2, 12)
    assert read == ["best"]


def test_the_best_epoch_is_found_once_without_reading_the_model():
    found = []
    result = result_of(find=lambda: found.append("best") or (2, 12))
    assert found == []
    assert (result.best_epoch, result.best_step, result.best_epoch) == (2, 12, 2)
    assert found == ["best"]


@pytest.mark.full
def test_a_result_can_be_copied_and_its_parts_can_be_pickled(tmp_path):
    learner = build_line(quiet(tmp_path / "run", saves=True))
    result = learner.fit(batches(), valid_data())
    for copied in (copy.copy(result), copy.deepcopy(result)):
        assert copied.stopped_by == "num_epochs"
        assert model_bits(copied.model) == model_bits(result.model)
        assert model_bits(copied.best_model) == model_bits(result.best_model)
    parts = pickle.loads(pickle.dumps((result.history, result.summary, result.model)))
    assert dict(parts[0]) == dict(result.history)
    assert parts[1] == result.summary
    assert model_bits(parts[2]) == model_bits(result.model)


@pytest.mark.full
def test_what_needs_the_run_is_not_pickled(tmp_path):
    learner = build_line(quiet(tmp_path / "run").population(lr=[0.1, 0.2]))
    result = learner.fit(batches())
    single = build_line(quiet(tmp_path / "single")).fit(batches())
    for value in (learner, result, result[0], single):
        with raises_code("learner-not-picklable"):
            pickle.dumps(value)
    for value in (learner, result[0]):
        with raises_code("learner-not-picklable"):
            copy.deepcopy(value)
    assert copy.deepcopy(result)[1] is result[1]
    assert copy.copy(learner).definition is learner.definition


@pytest.mark.full
def test_the_models_of_a_population_go_with_its_result(tmp_path):
    result = build_line(quiet(tmp_path / "run").population(lr=[0.1, 0.2])).fit(batches())
    member = weakref.ref(result[0])
    assert result[0] is member()
    del result
    gc.collect()
    assert member() is None


@pytest.fixture(scope="module")
def second_best(tmp_path_factory, compiled_once):
    """Return a result and its directory; the second of three epochs has the lowest validation loss."""
    directory = tmp_path_factory.mktemp("second") / "run"
    builder = quiet(directory).num_epochs(3).with_file_checkpointer(keep_last=1)
    learner = builder.build(line(), optax.sgd, 0.05, train_step=line_step, valid_step=scripted_step)
    return learner.fit(shuffled(), scripted(9.0, 1.0, 4.0)), directory


@pytest.mark.full
def test_the_best_epoch_is_that_of_an_intact_checkpoint(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer(keep_last=3)
    learner = builder.build(line(), optax.sgd, 0.05, train_step=line_step, valid_step=scripted_step)
    result = learner.fit(shuffled(), scripted(9.0, 1.0, 4.0))
    file = tmp_path / "run" / "checkpoint" / "12" / "state" / "_METADATA"
    file.write_bytes(file.read_bytes()[:-1])
    assert (result.best_epoch, result.best_step) == (3, 18)
    stored = checkpoint_bits(tmp_path / "run", 18)["model"]
    assert model_bits(result.best_model) == {f"['{name}']": stored[f"['params']['{name}']"] for name in ("b", "w")}


def scripted_step(model, batch):
    return RegressionOutput.from_predictions(0 * batch["t"], batch["t"])


@pytest.mark.full
def test_the_best_model_comes_from_the_best_checkpoint(second_best):
    result, directory = second_best
    assert result.history["valid/Loss"] == [9.0, 1.0, 4.0]
    stored = checkpoint_bits(directory, 12)["model"]
    assert model_bits(result.best_model) == {f"['{name}']": stored[f"['params']['{name}']"] for name in ("b", "w")}
    assert model_bits(result.best_model) != model_bits(result.model)
    assert (result.best_epoch, result.best_step) == (2, 12)


@pytest.mark.full
def test_the_best_model_has_the_original_type_and_is_in_eval_mode(tmp_path):
    result = build_net(quiet(tmp_path / "run", saves=True)).fit(shuffled(), valid_data())
    assert model_bits(result.best_model) == model_bits(result.model)
    assert result.best_model is not result.model
    assert type(result.best_model) is Net
    assert result.best_model.drop.deterministic
    assert result.best_model.norm.use_running_average


@pytest.mark.full
@pytest.mark.parametrize("strategy", [Replicated, pytest.param(Sharded, marks=pytest.mark.full)])
def test_the_best_model_is_on_one_device_like_the_last(strategy, tmp_path):
    builder = quiet(tmp_path / "run", saves=True).strategy(strategy(devices=2))
    result = build_net(builder).fit(shuffled(), valid_data())
    leaves = [jax.tree.leaves(nnx.state(model, nnx.Param)) for model in (result.best_model, result.model)]
    assert [x.devices() for x in leaves[0]] == [x.devices() for x in leaves[1]] == [{jax.devices()[0]}] * len(leaves[0])
    assert model_bits(result.best_model) == model_bits(result.model)


def test_a_result_outlives_its_directory(tmp_path):
    """The model and the history are in memory; only the best model is read from disk."""
    given = line()
    result = build_line(quiet(tmp_path / "run", saves=True)).fit(batches())
    shutil.rmtree(tmp_path / "run")
    assert np.isfinite(result.model["w"]).all()
    assert model_bits(result.model) != model_bits(given)
    assert len(result.history["train/Loss"]) == 1
    with raises_code("learner-best-unreadable", "there is no checkpoint in"):
        _ = result.best_model


def test_a_notebook_shows_the_best_values(second_best):
    content = second_best[0]._repr_html_()
    assert "ended at epoch 3, step 18: num_epochs" in content
    rows = [re.findall("<t[hd][^>]*>([^<]*)<", row) for row in content.split("<tr>")]
    assert ["valid/Loss", "9", "1", "2", "4"] in rows
