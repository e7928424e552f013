"""Tests of resuming when something has changed: the change applies, or one error lists all differences."""

import json
import shutil

import jax
import numpy as np
import optax
import pytest

from learner import MetricEarlyStopping, ReduceOnPlateau
from learner.metrics import R2, ExplainedVariance, LearningRate, MeanAbsoluteError
from learner.metrics.pairs import PairMetric
from learner.runs.history import read_history
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    LastRow,
    batches,
    build_line,
    checkpoint_bits,
    line,
    line_step,
    model_bits,
    progress_of,
    quiet,
    saved_steps,
    tamper,
    tree_of,
    valid_data,
)
from tests.support.stopped import some, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")


def saving(directory, epochs=2):
    return quiet(directory).num_epochs(epochs).with_file_checkpointer(keep_last=9)


def log_of(directory):
    return (directory / "experiment.log").read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compiled_once):
    """A run of one epoch, and one that stopped within its second."""
    directory = tmp_path_factory.mktemp("runs")
    build_line(saving(directory / "one", 1)).fit(batches(), valid_data())
    build_line(stopping_at(saving(directory / "inside"), STEPS + 2)).fit(batches(), valid_data())
    return directory


@pytest.fixture
def one_epoch(runs, tmp_path):
    """A run of one epoch."""
    return shutil.copytree(runs / "one", tmp_path / "run")


@pytest.fixture
def inside(runs, tmp_path):
    """A run that stopped within its second epoch."""
    return shutil.copytree(runs / "inside", tmp_path / "run")


def by_hand(*rates):
    """Train with SGD, one epoch for each rate."""
    params = line()
    for rate in rates:
        for batch in batches():
            grads = jax.grad(lambda params, batch: line_step(params, batch).loss)(params, batch)
            params = jax.tree.map(lambda p, g, rate=rate: p - np.float32(rate) * g, params, grads)
    return params


@pytest.mark.full
@pytest.mark.parametrize(
    ("lr", "second"),
    [
        pytest.param(lambda step: 0.02, 0.02, marks=pytest.mark.full),
        (ReduceOnPlateau(0.03, "valid/Loss"), 0.03),
    ],
    ids=["schedule", "plateau"],
)
def test_changed_learning_rate_and_seed_apply_from_the_checkpoint(one_epoch, lr, second):
    """The random keys remain those of the run."""
    result = build_line(saving(one_epoch).seed(5).resume(), lr).fit(batches(), valid_data())
    expected = by_hand(0.05, second)
    for name in ("w", "b"):
        np.testing.assert_allclose(result.model[name], expected[name], rtol=2e-6)
    assert "learning rate: 0.05 -> " in log_of(one_epoch)
    assert "seed: 0 -> 5, and the random keys stay those of the run" in log_of(one_epoch)
    assert progress_of(one_epoch, 12)["root_key"] == progress_of(one_epoch, 6)["root_key"]


@pytest.mark.full
def test_from_a_plateau_to_a_float(tmp_path):
    build_line(saving(tmp_path / "run", 1), ReduceOnPlateau(0.05, "valid/Loss")).fit(batches(), valid_data())
    result = build_line(saving(tmp_path / "run").resume(), 0.01).fit(batches(), valid_data())
    np.testing.assert_allclose(result.model["w"], by_hand(0.05, 0.01)["w"], rtol=2e-6)


@pytest.mark.full
@pytest.mark.parametrize(
    ("recorded", "second"),
    [(True, 0.005), (False, 0.025)],  # a fifth of the rate that the plateau has lowered to 0.025
)
def test_another_initial_rate_of_a_plateau(tmp_path, recorded, second):
    """Checkpoints of older versions, which do not record the initial rate, resume with the lowered rate, silently."""

    def fit(epochs, rate):
        plateau = ReduceOnPlateau(rate, "valid/Loss", factor=0.5, patience=0, min_delta=1e6)  # lowers from epoch 2 on
        builder = saving(tmp_path / "run", epochs).resume()
        return build_line(builder.metric_train(LearningRate()), plateau).fit(batches(), valid_data())

    fit(2, 0.05)
    if not recorded:
        progress = progress_of(tmp_path / "run", 2 * STEPS)
        del progress["plateau"]["initial"], progress["fingerprint"]["settings"]["initial learning rate"]
        tamper(tmp_path / "run", 2 * STEPS, progress)
    result = fit(4, 0.01)
    rates = [0.05, 0.05, second, second / 2]
    np.testing.assert_allclose(result.history["train/Learning Rate"], rates, rtol=1e-6)
    np.testing.assert_allclose(result.model["w"], by_hand(*rates)["w"], rtol=1e-5)
    assert ("initial learning rate: 0.05 -> 0.01" in log_of(tmp_path / "run")) == recorded


@pytest.mark.full
@pytest.mark.parametrize("numbers_first", [True, False])
def test_between_a_number_and_a_schedule_that_a_plateau_lowers(tmp_path, numbers_first):
    """The state of one has a rate, and that of the other a factor."""
    rates = [0.05, optax.constant_schedule(0.05)]
    for epochs, rate in enumerate(rates if numbers_first else rates[::-1], 1):
        builder = saving(tmp_path / "run", epochs).resume()
        result = build_line(builder, ReduceOnPlateau(rate, "valid/Loss")).fit(batches(), valid_data())
    np.testing.assert_allclose(result.model["w"], by_hand(0.05, 0.05)["w"], rtol=2e-6)
    assert "plateau: {" in log_of(tmp_path / "run")


@pytest.mark.full
@pytest.mark.parametrize("name", some(["jax", "device", "machine"], {"device"}))
def test_another_version_or_machine(one_epoch, name):
    """The only warning: the rate is unchanged."""
    progress = progress_of(one_epoch, 6)
    progress["made_on"][name] = "another"
    tamper(one_epoch, 6, progress)
    build_line(saving(one_epoch).resume()).fit(batches(), valid_data())
    (warning,) = [line for line in log_of(one_epoch).splitlines() if "WARNING" in line]
    assert f"{name}: another -> " in warning
    assert "last bits" in warning


@pytest.mark.full
def test_other_metrics_from_the_end_of_an_epoch(one_epoch):
    result = build_line(saving(one_epoch).metrics(MeanAbsoluteError()).resume()).fit(batches(), valid_data())
    assert len(result.history["train/Loss"]) == 2
    assert len(result.history["train/Mean Absolute Error"]) == 1
    assert read_history(one_epoch).to_json() == result.history.to_json()


def test_other_metrics_inside_an_epoch(inside):
    before = tree_of(inside)
    with raises_code("resume-differs") as error:
        build_line(saving(inside).metrics(LastRow()).resume()).fit(batches(), valid_data())
    message = str(error.value)
    assert f"step {STEPS + 2} lies inside epoch 2" in message
    assert "with the metrics Loss of the train split in flight, but now there are Last Row, Loss" in message
    assert "resume(allow='metrics') or --resume.allow=metrics" in message
    assert tree_of(inside) == before


@pytest.mark.full
def test_allowed_other_metrics_inside_an_epoch(inside):
    """The epoch's values cover the rest of the epoch, and nothing else changes."""
    result = build_line(saving(inside).metrics(LastRow()).resume(allow="metrics")).fit(batches(), valid_data())
    whole = build_line(saving(inside.parent / "whole")).fit(batches(), valid_data())
    assert model_bits(result.model) == model_bits(whole.model)
    targets = np.concatenate([batch["t"][:, 0] for batch in batches()[2:]]).astype(np.float64)
    np.testing.assert_allclose(result.history["train/Last Row"], np.arange(1, len(targets) + 1) @ targets, rtol=1e-6)


@pytest.mark.full
def test_checkpoint_inside_an_epoch_with_unshared_metric_states(tmp_path):
    """In earlier versions, each metric had its own state; later, metrics with equal keys share one."""
    metrics = R2(), ExplainedVariance()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PairMetric, "state_key", None)
        stopped = stopping_at(saving(tmp_path / "run").metrics(*metrics), STEPS + 2)
        build_line(stopped).fit(batches(), valid_data())
    result = build_line(saving(tmp_path / "run").metrics(*metrics).resume()).fit(batches(), valid_data())
    whole = build_line(saving(tmp_path / "whole").metrics(*metrics)).fit(batches(), valid_data())
    assert result.history.to_json() == whole.history.to_json()


def test_several_differences_are_one_error(inside):
    learner = build_line(saving(inside).metrics(LastRow()).grads_accumulation(2).resume(), optimizer=optax.adam)
    with raises_code("resume-differs") as error:
        learner.fit(batches(3), valid_data())
    assert len(error.value.problems) == 3
    for part in ("opt_state/0.mu.w: saved nothing", "rows per batch 4 -> 3", "metrics Loss of the train"):
        assert part in str(error.value)


def test_other_frozen_parameters_name_what_to_do(one_epoch):
    with raises_code("resume-differs", "initial_from", "Group with a schedule"):
        build_line(saving(one_epoch).freeze("b").resume()).fit(batches(), valid_data())


@pytest.mark.full
def test_another_optimizer_that_is_allowed(one_epoch):
    with raises_code("resume-differs") as error:
        build_line(saving(one_epoch).resume(), optimizer=optax.adam).fit(batches(), valid_data())
    assert "resume(allow='optimizer') or --resume.allow=optimizer" in str(error.value)
    assert "initial_from" not in str(error.value)
    builder = saving(one_epoch).resume(allow=("optimizer", "metrics"))
    result = build_line(builder, 0.01, optax.adam).fit(batches(), valid_data())
    params, optimizer = by_hand(0.05), optax.adam(0.01)
    state = optimizer.init(params)
    for batch in batches():
        grads = jax.grad(lambda params, batch: line_step(params, batch).loss)(params, batch)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(result.model["w"], params["w"], rtol=1e-5)
    assert "the optimizer begins with a new state" in log_of(one_epoch)


@pytest.mark.full
def test_early_stopping_state_belongs_to_its_metric(tmp_path):
    """Another metric was added before the monitored one."""
    make = lambda n: saving(tmp_path / "run", n).valid_every(steps=STEPS)  # noqa: E731
    build_line(make(2).early_stopping(MetricEarlyStopping("valid/Loss", mode="max", patience=3))).fit(
        batches(), valid_data()
    )
    builder = make(9).early_stopping(MetricEarlyStopping("train/Loss", patience=99))
    builder.early_stopping(MetricEarlyStopping("valid/Loss", mode="max", patience=3))
    result = build_line(builder.resume()).fit(batches(), valid_data())
    assert result.stopped_by.startswith("early stopping: valid/Loss has not improved")
    assert result.summary["epochs"] == 4  # the first validation is the best, and the patience is three


LOST = {"train/epoch-2/Loss.log": "resume-log-changed", "journal.jsonl": "resume-log-changed"}


@pytest.mark.full
@pytest.mark.parametrize("lost", some(LOST, {"train/epoch-2/Loss.log"}))
def test_damaged_logs(inside, lost):
    (inside / lost).write_text("")
    before = tree_of(inside)
    with raises_code(LOST[lost], file=str(inside / lost)) as error:
        build_line(saving(inside).resume()).fit(batches(), valid_data())
    assert "resume(allow='logs') or --resume.allow=logs" in str(error.value)
    of_starts = ("experiment.log", "journal.jsonl")
    after = tree_of(inside)
    assert [path for path in {*before, *after} if before.get(path) != after.get(path) and path not in of_starts] == []
    result = build_line(saving(inside).resume(allow="logs")).fit(batches(), valid_data())
    assert result.stopped_by == "num_epochs"
    assert len(result.history["train/Loss"]) == 2


def test_values_of_allow(tmp_path):
    with raises_code("builder-choice-unknown", name="allow", value="everything"):
        quiet(tmp_path).resume(allow="everything")
    with raises_code("builder-choice-unknown", name="allow", value=True):
        quiet(tmp_path).resume(True)


# -- what no run can have written --------------------------------------------------------------------------------------

MALFORMED = {
    "an epoch before the first": lambda p: p["position"].update(epoch=0),
    "a batch before the first": lambda p: p["position"].update(batch=-4),
    "another step": lambda p: p["position"].update(step=9),
    "a step as a text": lambda p: p["position"].update(step="8"),
    "a further part of the position": lambda p: p["position"].update(more=1),
    "something else that is due": lambda p: p["position"].update(due="everything"),
    "no key": lambda p: p.pop("root_key"),
    "a key that is too large": lambda p: p.update(root_key=[2**40, 0]),
    "a score that is a text": lambda p: p.update(score="best"),
    "no early stopping": lambda p: p.update(early_stopping=None),
    "the end of something": lambda p: p.update(ends_epoch=[1]),
    "no history": lambda p: p.update(history=None),
    "logs elsewhere": lambda p: p["log"].update(files={"../../x.log": 0}),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_invalid_progress(inside, what):
    progress = progress_of(inside, STEPS + 2)
    MALFORMED[what](progress)
    tamper(inside, STEPS + 2, progress)
    before = tree_of(inside)
    with raises_code("resume-log-position" if what == "logs elsewhere" else "resume-progress-malformed"):
        build_line(saving(inside).resume()).fit(batches(), valid_data())
    assert tree_of(inside) == before


@pytest.mark.full
def test_metrics_in_flight_with_too_large_headers(inside):
    """Headers of zarr and OCDBT determine how much memory is allocated."""
    import orbax.checkpoint as ocp

    place = inside / "checkpoint" / str(STEPS + 2)
    with ocp.PyTreeCheckpointer() as checkpointer:
        state = checkpointer.restore(place / "state")
        assert state["in_flight"]["states"].keys() == {"0"}
        state["in_flight"]["states"]["0"] = np.zeros(2**26, np.float32)
        checkpointer.save(place / "state", state, force=True)
    tamper(inside, STEPS + 2, progress_of(inside, STEPS + 2))
    with raises_code("checkpoint-claims-too-much", place=str(place / "state"), claimed=2**28):
        build_line(saving(inside).resume()).fit(batches(), valid_data())


@pytest.mark.full
def test_empty_summary(one_epoch):
    (one_epoch / "summary.json").write_text("{}")
    result = build_line(saving(one_epoch, 1).resume()).fit(batches(), valid_data())
    assert result.stopped_by == "num_epochs"
    assert json.loads((one_epoch / "summary.json").read_text())["steps"] == STEPS
    assert saved_steps(one_epoch) == [6]
    assert checkpoint_bits(one_epoch, 6)
