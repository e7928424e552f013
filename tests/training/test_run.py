"""Tests of runs: position, decisions, hooks, saves, errors in threads, and listeners."""

import itertools
import re
import threading
import time
import traceback
import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import learner.training.checkpoints.saving
import learner.training.stopping
from learner import (
    Image,
    Interrupter,
    LearnerError,
    LearnerWarning,
    MetricEarlyStopping,
    ReduceOnPlateau,
    RegressionOutput,
    load_checkpoint,
)
from learner.checkpoint import CheckpointStore
from learner.events import (
    EpochEnded,
    EpochStarted,
    ListenerThread,
    Message,
    RunEnded,
    RunFailed,
    RunStarted,
    Saved,
    SplitEnded,
    StepsEnded,
)
from learner.loggers import MemoryLogger, RunFiles, Webhook
from learner.metrics import CollectingMetric, LearningRate
from learner.runs.history import read_history
from learner.schedules import Linear
from learner.training.feed.dispatch import Dispatch
from learner.training.hooks import HookCaller
from learner.training.progress.position import Position
from learner.training.stopping import StopController, StopRequest
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    Net,
    T,
    X,
    batches,
    build_line,
    build_net,
    checkpoint_bits,
    journal_of,
    line,
    line_step,
    logs_of,
    model_bits,
    numbers_of,
    quiet,
    saved_steps,
    scripted,
    shuffled,
    valid_data,
)

pytestmark = pytest.mark.usefixtures("compiled_once")
NAN = float("nan")


# -- the position ------------------------------------------------------------------------------------------------------


def test_the_position_counts_batches_and_steps():
    position = Position()
    assert (position.epoch, position.step, position.shown_epoch) == (1, 0, 0)
    position.advance(Dispatch("loop", 1, None, 0, 8, 2, 8, False))
    position.advance(Dispatch("tail", 1, None, 0, 1, 1, 2, True))
    assert position == Position(epoch=1, batch=10, step=3, in_epoch=3)
    position.next_epoch()
    assert position == Position(epoch=2, batch=0, step=3, in_epoch=0)
    assert position.shown_epoch == 1
    position.advance(Dispatch("single", 2, None, 0, 1, 1, 1, False))
    assert position.shown_epoch == 2


# -- decisions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "losses", "epochs"),
    [
        ({"patience": 2, "mode": "max"}, [1.0, 4.0, NAN, 1.0, 9.0], 4),
        pytest.param({"patience": 6}, [4.0, 4.0, 4.0, 4.0, 4.0, 4.0], 6, marks=pytest.mark.full),
    ],
)
def test_early_stopping_ends_a_run(tmp_path, options, losses, epochs):
    """`test_stopping.py` tests the rule itself."""
    builder = quiet(tmp_path / "run").num_epochs(6).early_stopping(MetricEarlyStopping("valid/Loss", **options))
    result = build_line(builder, 0.0).fit(batches()[:1], scripted(*losses))
    assert result.summary["epochs"] == epochs
    assert result.stopped_by.startswith("early stopping: valid/Loss") or epochs == 6
    assert journal_of(tmp_path / "run")[-1]["event"] == ("end" if epochs == 6 else "stop")


def test_the_first_of_several_criteria_stops(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(9)
    builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=4))
    builder.early_stopping(MetricEarlyStopping("train/Loss", "max", patience=2))
    result = build_line(builder, 0.01).fit(batches()[:1], scripted(*[1.0] * 9))
    assert result.summary["epochs"] == 3
    assert "train/Loss" in result.stopped_by


@pytest.mark.full
def test_decisions_wait_for_a_new_value_of_their_metric(tmp_path):
    """The train loss is known at the end of an epoch, not at validations inside it."""
    builder = quiet(tmp_path / "run").num_epochs(5).valid_every(steps=1)
    builder.early_stopping(MetricEarlyStopping("train/Loss", "max", patience=2))
    plateau = ReduceOnPlateau(0.04, "train/Loss", factor=0.5, patience=0, mode="max")
    result = build_line(builder.metric_train(LearningRate()), plateau).fit(batches(), valid_data())
    assert result.summary["epochs"] == 3
    np.testing.assert_allclose(result.history["train/Learning Rate"], [0.04, 0.04, 0.02], rtol=1e-6)


@pytest.mark.full
def test_a_plateau_reduces_the_rate_of_a_run(tmp_path):
    plateau = ReduceOnPlateau(0.04, "valid/Loss", factor=0.5, patience=1)
    builder = quiet(tmp_path / "run").num_epochs(6).metric_train(LearningRate())
    learner = builder.build(line(), optax.sgd, plateau, train_step=line_step, valid_step=scripted_step)
    result = learner.fit(batches()[:1], scripted(4.0, 1.0, 1.0, 4.0, 0.25, 1.0))
    expected = [0.04, 0.04, 0.04, 0.04, 0.02, 0.02]
    np.testing.assert_allclose(result.history["train/Learning Rate"], expected, rtol=1e-6)
    assert "learning rate 0.04 -> 0.02" in (tmp_path / "run" / "experiment.log").read_text()


@pytest.mark.full
def test_a_plateau_lowers_a_schedule_also_after_resuming(tmp_path):
    """The rates of a warmup over four steps, 0, 0.01, 0.02, 0.03, 0.04, 0.04, are halved for the last two."""

    losses = [4.0, 1.0, 1.0, 4.0, 0.25, 1.0]

    def fit(epochs, losses):
        plateau = ReduceOnPlateau(Linear(0.0, 0.04, over=4), "valid/Loss", factor=0.5, patience=1)
        builder = quiet(tmp_path / "run", saves=True).num_epochs(epochs).metric_train(LearningRate()).resume()
        learner = builder.build(line(), optax.sgd, plateau, train_step=line_step, valid_step=scripted_step)
        return learner.fit(batches()[:1], scripted(*losses))

    fit(3, losses[:3])
    result = fit(6, losses[3:])
    np.testing.assert_allclose(
        result.history["train/Learning Rate"], [0.0, 0.01, 0.02, 0.03, 0.02, 0.02], rtol=1e-6, atol=1e-9
    )
    assert "factor of the learning rate 1 -> 0.5" in (tmp_path / "run" / "experiment.log").read_text()


def scripted_step(model, batch):
    return RegressionOutput.from_predictions(jnp.zeros_like(batch["t"]), batch["t"])


def test_an_interrupter_stops_from_another_thread(tmp_path):
    interrupter, may_stop = Interrupter(), threading.Event()

    def wait():
        may_stop.wait()
        interrupter.stop("from a thread")

    thread = threading.Thread(target=wait)
    thread.start()

    def hook(info, model):
        if info.step == 8:
            may_stop.set()
            thread.join()

    builder = quiet(tmp_path / "run", saves=True).num_epochs(9).interrupter(interrupter).every(steps=1, fn=hook)
    result = build_line(builder).fit(batches())
    assert result.stopped_by == "interrupter: from a thread"
    assert result.summary["steps"] == 8
    assert saved_steps(tmp_path / "run") == [6, 8]  # the end of the first epoch is the best so far


@pytest.mark.full
def test_an_interrupter_that_was_stopped_before_the_run(tmp_path):
    interrupter = Interrupter()
    interrupter.stop("at once")
    make = lambda: quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer(keep_every=1)  # noqa: E731
    result = build_line(make().interrupter(interrupter)).fit(batches())
    assert (result.summary["steps"], result.summary["epochs"]) == (0, 0)
    assert not np.asarray(result.model["w"]).any()
    again = build_line(make().resume()).fit(batches())
    fresh = build_line(quiet(tmp_path / "fresh").num_epochs(2)).fit(batches())
    assert model_bits(again.model) == model_bits(fresh.model)
    assert again.history == fresh.history
    assert saved_steps(tmp_path / "run") == [STEPS, 2 * STEPS]


# -- hooks -------------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_hooks_receive_progress_values_and_the_model(tmp_path):
    """The model is in eval mode, and the numbers that hooks return are logged."""
    seen = []

    def look(info, model):
        seen.append((info.epoch, info.step, sorted(info.values), model.drop.deterministic))
        return {"bias norm": float(jnp.abs(model.out.bias[...]).sum()), "step": info.step}

    builder = quiet(tmp_path / "run").num_epochs(2).valid_every(steps=4).every(steps=4, fn=look).on_epoch_end(look)
    result = build_net(builder).fit(shuffled(), valid_data())
    valid = ["valid/Accuracy", "valid/Last Row", "valid/Loss"]
    train = ["train/Accuracy", "train/Last Row", "train/Learning Rate", "train/Loss"]
    custom = ["custom/bias norm", "custom/step"]
    everything = custom + train + valid
    assert seen == [
        (1, 4, valid, True),
        (1, 6, everything, True),
        (2, 8, everything, True),
        (2, 12, everything, True),
        (2, 12, everything, True),
    ]
    assert result.history["custom/step"] == [4, 6, 8, 12, 12]
    logs = logs_of(tmp_path / "run")
    assert logs["custom/epoch-1/step.log"] == "4.0,final@4\n6.0,final\n"
    assert logs["custom/epoch-2/step.log"] == "8.0,final@8\n12.0,final@12\n12.0,final\n"
    assert float(logs["custom/epoch-2/bias_norm.log"].splitlines()[-1].split(",")[0]) == pytest.approx(
        float(jnp.abs(result.model.out.bias[...]).sum()), rel=1e-6
    )
    assert read_history(tmp_path / "run") == result.history
    last = [line for line in numbers_of(tmp_path / "run") if line["event"] == "epoch"][-1]
    assert last["values"]["custom/step"] == 12


class Unshowable:
    def __repr__(self):
        raise ValueError("no text")


def call_hook(returned):
    """Call a hook with this result, without a run."""

    def mine(info, model):
        return returned

    runner = types.SimpleNamespace(model=dict, arrays_of=dict, attributes_of=dict)
    reporter, validator = types.SimpleNamespace(newest=dict, halted=None), types.SimpleNamespace(sets_lr=False)
    HookCaller(runner, reporter, None, StopController(StopRequest()), validator).call([mine], Position(), None)


@pytest.mark.parametrize(
    "returned",
    [
        3.0,
        "text",
        {"a": np.zeros((99, 99))},
        {"a": None},
        [1.0, 2.0],
        {"a": 10**400},
        {"a": -(10**5000)},
        Unshowable(),
        Net(),
    ],
    ids=["number", "text", "array", "nothing", "list", "too large", "too large to be written", "no repr", "a model"],
)
def test_unusable_return_values_of_hooks_are_refused(returned):
    with raises_code("step-hook-returns", name="mine") as raised:
        call_hook(returned)
    assert "0., 0., 0." not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ({"loss": 1.0, "norms": np.ones(3)}, "returned float64[3] as"),
        ({"loss": 1.0, "norms": [Image(np.zeros((1, 1, 3), np.uint8)), np.ones(3)]}, "[Image(...), float64[3]]"),
        ({"loss": 1.0, 3: "text", "norms": {1: 2.0, "b": 3.0}}, "{1: 2.0, 'b': 3.0}"),
        ({3: 1.0, "norms": None}, "None"),
    ],
    ids=["array", "pictures in a list", "keys of two types inside", "keys of two types"],
)
def test_a_value_of_a_hook_is_named_with_its_key(returned, shown):
    with raises_code("step-hook-returns", f"{shown}", " as 'norms'", name="mine"):
        call_hook(returned)


@pytest.mark.parametrize("values", [(1.0, 2.0), ("one", "two")], ids=["numbers", "samples"])
def test_values_of_one_name_from_two_hooks_are_warned_about_once(tmp_path, values):
    def first(info, model):
        return {"score": values[0]}

    def second(info, model):
        return {"other": 3.0, "score": values[1]}

    builder = quiet(tmp_path / "run").num_epochs(2).on_epoch_end(first).on_epoch_end(second)
    with pytest.warns(LearnerWarning, match="first and second return 'score'") as caught:
        build_line(builder).fit(batches())
    assert len(caught) == 1


@pytest.mark.full
def test_a_hook_of_two_periods_may_be_due_twice_at_a_step(tmp_path):
    def norm(info, model):
        return {"norm": float(info.step)}

    result = build_line(quiet(tmp_path / "run").every(2, norm).every(3, norm)).fit(batches())
    assert result.history["custom/norm"] == [2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize("value", [1.0, "text"])
@pytest.mark.parametrize("name", ["../loss", "valid/Loss", "", "two\nlines", ".hidden", "a" * 201])
def test_unusable_names_in_returned_values_are_refused(name, value):
    with raises_code("run-metric-name-unusable", "the hook mine", name=name, hook="mine"):
        call_hook({"loss": 1.0, name: value})


@pytest.mark.full
def test_hooks_run_in_every_period_and_may_log_nothing(tmp_path):
    """Without a checkpointer, there are no checkpoints."""
    called = {2: [], 3: [], 5: []}
    builder = quiet(tmp_path / "run").num_epochs(2).grads_accumulation(2)
    for period, steps in called.items():
        builder.every(steps=period, fn=lambda info, model, steps=steps: steps.append((info.epoch, info.step)))
    result = build_line(builder.on_epoch_end(lambda info, model: {})).fit(batches())
    assert called == {2: [(1, 2), (2, 4), (2, 6)], 3: [(1, 3), (2, 6)], 5: [(2, 5)]}
    assert list(result.history) == ["train/Loss"]
    assert not (tmp_path / "run" / "custom").exists()
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert result.summary["checkpoints"] == []
    assert "checkpoint" not in result.summary["artifacts"]


# -- saves -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock of saving and stopping by one that tests advance."""
    passed = types.SimpleNamespace(seconds=0.0)
    standing = float(int(time.monotonic()))  # an integer, so that adding seconds does not round
    stub = types.SimpleNamespace(monotonic=lambda: standing + passed.seconds)
    monkeypatch.setattr("learner.training.stopping.time", stub)
    monkeypatch.setattr("learner.training.checkpoints.saving.time", stub)
    return passed


@pytest.mark.full
def test_by_default_a_run_saves_every_minute_and_keeps_the_last_and_best(tmp_path, clock):
    on_disk = []

    def forty_seconds(info, model):
        clock.seconds += 40
        on_disk.append(saved_steps(tmp_path / "run"))

    builder = quiet(tmp_path / "run", saves=True).num_epochs(7).on_epoch_end(forty_seconds)
    result = build_line(builder, 0.0).fit(batches()[:1], scripted(9.0, 1.0, 0.25, 4.0, 4.0, 4.0, 4.0))
    saved = [entry["step"] for entry in journal_of(tmp_path / "run") if entry["event"] == "save"]
    assert saved == [2, 3, 4, 6, 7]
    assert saved_steps(tmp_path / "run") == [3, 7]
    assert [entry["step"] for entry in result.summary["checkpoints"]] == [3, 7]


def test_a_short_run_is_saved_once_at_its_end(tmp_path, clock):
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(5)).fit(batches())
    assert saved_steps(tmp_path / "run") == [5 * STEPS]
    assert [entry["event"] for entry in journal_of(tmp_path / "run")].count("save") == 1


@pytest.mark.parametrize(
    ("every", "saved"),
    [
        ({"every_steps": 4, "every_epochs": 2}, [4, 8, 12, 13]),
        pytest.param({"every_steps": 4, "every_epochs": 1}, [4, 6, 8, 12, 13], marks=pytest.mark.full),
        pytest.param({"every_epochs": 2}, [12, 13], marks=pytest.mark.full),
        pytest.param({"every_steps": 100}, [13], marks=pytest.mark.full),
    ],
)
def test_saves_every_n_steps_and_at_the_end(tmp_path, every, saved):
    builder = quiet(tmp_path / "run").num_steps(13).with_file_checkpointer(keep_last=9, keep_best=0, **every)
    build_line(builder).fit(batches())
    assert saved_steps(tmp_path / "run") == saved


def test_saves_every_n_seconds_between_dispatches(tmp_path, clock):
    def later(info, model):
        clock.seconds += 10

    builder = quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer(keep_last=9, every_seconds=25)
    build_line(builder.every(1, later)).fit(batches())
    assert saved_steps(tmp_path / "run") == [3, 6, 9, 12]


def test_a_run_saves_and_ends_before_its_time_limit(tmp_path, clock):
    def later(info, model):
        clock.seconds += 100

    builder = quiet(tmp_path / "run").num_epochs(1000).with_file_checkpointer(every_epochs=1000)
    result = build_line(builder.with_time_limit(1000).every(1, later)).fit(batches())
    assert (result.stopped_by, result.summary["steps"]) == ("time limit", 10)
    assert saved_steps(tmp_path / "run") == [6, 10]  # the best epoch and the end
    assert journal_of(tmp_path / "run")[-1]["event"] == "stop"


def test_a_time_limit_includes_the_setup(tmp_path, monkeypatch):
    """The setup reads data, traces the steps and initializes the model."""
    earlier = types.SimpleNamespace(monotonic=lambda: time.monotonic() - 1000)
    monkeypatch.setattr("learner.training.preflight.time", earlier)
    result = build_line(quiet(tmp_path / "run").num_epochs(2).with_time_limit(500)).fit(batches())
    assert (result.stopped_by, result.summary["steps"]) == ("time limit", 0)


@pytest.mark.parametrize(
    ("limit", "reserve", "lasts"),
    [
        pytest.param(100, 0, 95, id="a twentieth"),
        pytest.param(2000, 0, 1970, id="at most half a minute"),
        pytest.param(100, 18, 82, id="slow saves need more"),
    ],
)
def test_the_time_reserved_for_the_end(clock, limit, reserve, lasts):
    began = learner.training.stopping.time.monotonic()
    stop = StopController(StopRequest(), None, limit, began, reserve=lambda: reserve)
    clock.seconds += lasts - 1
    assert stop.stop_request is None
    clock.seconds += 1
    assert stop.stop_request == "time limit"


def test_a_time_limit_that_was_reached_stays_so(clock):
    """A snapshot of the best epoch that is written meanwhile lowers the time to reserve."""
    began, reserve = learner.training.stopping.time.monotonic(), itertools.chain([30], itertools.repeat(10))
    stop = StopController(StopRequest(), None, 100, began, reserve=lambda: next(reserve))
    clock.seconds += 75
    assert [stop.stop_request, stop.stop_request, stop.reason] == ["time limit"] * 3


@pytest.mark.full
def test_the_time_limit_of_a_slurm_job(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 1))
    builder = quiet(tmp_path / "run").num_epochs(100_000).with_file_checkpointer(every_epochs=100_000, keep_best=0)
    result = build_line(builder.with_time_limit()).fit(shuffled())
    assert result.stopped_by == "time limit"
    assert saved_steps(tmp_path / "run") == [result.summary["steps"]]


@pytest.mark.full
def test_a_checkpoint_without_its_own_value_is_never_the_best(tmp_path):
    """A checkpoint inside an epoch has no validation, and the loss of the previous epoch is not its loss."""
    interrupter = Interrupter()
    make = lambda: quiet(tmp_path / "run").num_epochs(4).with_file_checkpointer(keep_last=1, every_epochs=2)  # noqa: E731
    builder = make().interrupter(interrupter).every(steps=3, fn=lambda info, model: interrupter.stop())
    build_line(builder, 0.0).fit(batches()[:2], scripted(1.0))
    assert saved_steps(tmp_path / "run") == [2, 3]
    assert load_checkpoint(tmp_path / "run", step=3).score is None
    result = build_line(make().resume(), 0.0).fit(batches()[:2], scripted(9.0, 4.0, 9.0))
    assert saved_steps(tmp_path / "run") == [2, 8]
    assert result.history["valid/Loss"] == [1.0, 9.0, 4.0, 9.0]


@pytest.mark.full
def test_async_save_mutation(tmp_path, monkeypatch):
    """A slow disk does not block training, and receives the state of its step after the arrays were donated."""
    expected = build_line(quiet(tmp_path / "one", saves=True)).fit(batches())
    allowed, begun, save, trained = threading.Event(), threading.Event(), CheckpointStore.save, []

    def slowly(self, step, items, progress):
        begun.set()
        assert allowed.wait(timeout=60)
        save(self, step, items, progress)

    def hook(info, model):
        if info.epoch == 3:
            assert begun.wait(timeout=60)
            trained.append((info.step, saved_steps(tmp_path / "run")))
            allowed.set()

    monkeypatch.setattr(CheckpointStore, "save", slowly)
    builder = quiet(tmp_path / "run", saves=True).num_epochs(4).with_file_checkpointer(keep_last=4).on_epoch_end(hook)
    build_line(builder).fit(batches())
    assert trained == [(3 * STEPS, [])]
    assert saved_steps(tmp_path / "run") == [6, 12, 18, 24]
    assert checkpoint_bits(tmp_path / "run", 6) == checkpoint_bits(tmp_path / "one", 6)
    stored = checkpoint_bits(tmp_path / "run", 6)["model"]
    assert stored["['params']['w']"] == model_bits(expected.model)["['w']"]
    assert checkpoint_bits(tmp_path / "run", 12)["model"] != checkpoint_bits(tmp_path / "run", 18)["model"]


# -- errors ------------------------------------------------------------------------------------------------------------


def fails_with(error, learner, *data):
    """Return the names of the functions in the traceback of the error that `fit` raises."""
    with pytest.raises(type(error)) as caught:
        learner.fit(*data)
    assert caught.value is error
    return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize("when", [pytest.param(1, marks=pytest.mark.full), 2])
def test_async_save_error_surfaces(tmp_path, monkeypatch, when):
    error, calls, save = OSError(28, "No space left on device"), [], CheckpointStore.save
    failed = threading.Event()

    def failing_disk(self, step, items, progress):
        calls.append(step)
        if len(calls) == when:
            failed.set()
            raise error
        save(self, step, items, progress)

    def after_step(info, model):
        if info.step == when * STEPS + 1:
            assert failed.wait(60)  # the disk must fail before the run ends

    monkeypatch.setattr(CheckpointStore, "save", failing_disk)
    builder = quiet(tmp_path / "run").num_epochs(50).with_file_checkpointer(keep_last=9).every(1, after_step)
    assert "failing_disk" in fails_with(error, build_line(builder), batches())
    assert journal_of(tmp_path / "run")[-1]["step"] < 50 * STEPS
    assert calls == [STEPS * n for n in range(1, when + 1)]
    assert saved_steps(tmp_path / "run") == calls[:-1]
    assert journal_of(tmp_path / "run")[-1]["event"] == "error"
    assert "No space left" in journal_of(tmp_path / "run")[-1]["error"]
    assert "failing_disk" in (tmp_path / "run" / "experiment.log").read_text()


def test_async_save_error_surfaces_at_the_end(tmp_path, monkeypatch):
    error = OSError(28, "No space left on device")

    def failing_disk(self, step, items, progress):
        raise error

    monkeypatch.setattr(CheckpointStore, "save", failing_disk)
    assert "failing_disk" in fails_with(error, build_line(quiet(tmp_path / "run", saves=True)), batches())
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_failing_disk_in_a_log_is_an_error(tmp_path, monkeypatch):
    error = OSError(5, "Input/output error")

    def failing_log(self, *arguments):
        raise error

    monkeypatch.setattr(RunFiles, "steps", failing_log)
    memory = MemoryLogger()
    learner = build_line(quiet(tmp_path / "run").num_epochs(500).metric_loggers(memory))
    assert "failing_log" in fails_with(error, learner, batches())
    assert memory.closed
    assert isinstance(memory.events[-1], RunFailed)


@pytest.mark.full
def test_data_that_is_empty_in_a_later_epoch_is_an_error(tmp_path):
    class Once:
        def __init__(self):
            self.left = batches()

        def __iter__(self):
            left, self.left = self.left, []
            return iter(left)

    with raises_code("data-without-batches", "train", epoch=2):
        build_line(quiet(tmp_path / "run").num_epochs(3)).fit(Once())
    assert journal_of(tmp_path / "run")[-1]["event"] == "error"
    result = build_line(quiet(tmp_path / "run").num_epochs(3).resume()).fit(batches())
    assert len(result.history["train/Loss"]) == 3


def test_an_exhausted_validation_iterator_is_an_error(tmp_path):
    builder = quiet(tmp_path / "run").num_steps(8)
    with raises_code("data-exhausted", "valid", "another validation"):
        build_line(builder).fit(batches(), iter(batches()))


# -- listeners ---------------------------------------------------------------------------------------------------------


class Broken(MemoryLogger):
    def on_event(self, event):
        super().on_event(event)
        raise RuntimeError("a broken logger")


def test_listeners_receive_all_events_in_order(tmp_path):
    memory, broken = MemoryLogger(), Broken()
    builder = quiet(tmp_path / "run").num_epochs(2).valid_every(steps=4).metric_loggers(broken, memory)
    builder.on_epoch_end(lambda info, model: {"n": 1.0}).with_file_checkpointer()
    result = build_line(builder).fit(batches(), valid_data())
    events = [name for event in memory.events if (name := describe(event))]
    events = [name for name, before in zip(events, [None, *events], strict=False) if name != before]
    epoch = ["steps train", "steps valid", "valid@4", "steps train", "train", "steps valid", "valid", "custom", "ended"]
    second = [name.replace("@4", "@8") for name in epoch]
    assert events == ["run", "epoch 1", *epoch, "epoch 2", *second, "over"]
    assert [event.step for event in memory.of(Saved)] == [6, 12]
    assert memory.history == result.history
    assert memory.of(EpochEnded)[-1].values["custom/n"] == 1.0
    assert len(memory.steps["train/Loss"]) == 12
    assert len(broken.events) == 1
    (warning,) = memory.of(Message)
    assert "Broken failed and is detached" in warning.text
    assert "Broken failed and is detached" in (tmp_path / "run" / "experiment.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize(("size", "notices"), [(8, 0), (9, 1)])
def test_a_batch_size_above_the_number_of_rows_is_a_notice(tmp_path, size, notices):
    memory = MemoryLogger()
    build_line(quiet(tmp_path / "run").with_batch_size(size).metric_loggers(memory)).fit({"x": X[:8], "t": T[:8]})
    texts = ["the batch size is 9, and the train data has 8 rows: an epoch is one batch"] * notices
    assert [event.text for event in memory.of(Message)] == texts


def describe(event):
    match event:
        case RunStarted():
            return "run"
        case EpochStarted():
            return f"epoch {event.epoch}"
        case StepsEnded():
            return f"steps {event.split}"
        case SplitEnded():
            return event.split + (f"@{event.at_step}" if event.at_step else "")
        case EpochEnded():
            return "ended"
        case RunEnded():
            return "over"
    return None


@pytest.mark.full
def test_the_first_event_has_the_length_and_the_start(tmp_path):
    def fit(epochs):
        memory = MemoryLogger()
        builder = quiet(tmp_path / "run", saves=True).num_epochs(epochs).grads_accumulation(4).resume()
        build_line(builder.metric_loggers(memory).metric_train(LearningRate())).fit(batches(), valid_data())
        return memory

    memory = fit(1)
    (started,) = memory.of(RunStarted)
    assert (started.num_epochs, started.num_steps, started.steps_per_epoch) == (1, None, 2)
    assert (started.epoch, started.step, started.resumed, started.parameters) == (1, 0, False, 4)
    assert [info.key for info in started.metrics] == ["train/Learning Rate", "train/Loss", "valid/Loss"]
    assert [event.steps for event in memory.of(EpochStarted)] == [2]
    assert sum(event.count for event in memory.of(StepsEnded) if event.split == "train") == 2
    memory = fit(2)
    (started,) = memory.of(RunStarted)
    assert (started.num_epochs, started.epoch, started.step, started.resumed) == (2, 2, 2, True)
    assert [event.epoch for event in memory.of(EpochStarted)] == [2]
    assert [entry["resumed"] for entry in journal_of(tmp_path / "run") if entry["event"] == "start"] == [False, True]


class Hangs(MemoryLogger):
    """A logger whose `close` blocks until `gate` is set."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def close(self):
        assert self.gate.wait(60)
        super().close()


def test_hanging_loggers_share_one_timeout_and_are_reported(tmp_path, monkeypatch):
    """Each logger gets the remaining time; the renderer is closed last."""
    waits, wait = [], ListenerThread.close
    monkeypatch.setattr(ListenerThread, "close", lambda outlet, seconds: waits.append(seconds) or wait(outlet, 0.05))
    loggers, screen = [Hangs(), MemoryLogger(), Hangs()], MemoryLogger()
    build_line(quiet(tmp_path / "run").renderer(screen).metric_loggers(*loggers)).fit(batches())
    for logger in loggers[::2]:
        logger.gate.set()
    assert [event.text for event in screen.of(Message)] == ["Hangs hangs and was left behind"] * 2
    assert screen.closed
    assert len(waits) == 4
    assert all(1.0 <= seconds <= 10.0 for seconds in waits)
    assert waits == sorted(waits, reverse=True)


class Matrix(CollectingMetric):
    """A metric with a picture."""

    name = "Matrix"
    numeric = False
    fields = ("targets",)

    def collect(self, output):
        return output.targets

    def compute(self, rows):
        return np.asarray(rows)

    def text(self, value):
        return f"{len(value)} rows"

    def picture(self, value):
        return np.full((len(value), 2), 7, np.uint8)


@pytest.mark.full
def test_pictures_are_drawn_on_demand(tmp_path, monkeypatch):
    drawn, draw = [], Matrix.picture
    monkeypatch.setattr(Matrix, "picture", lambda metric, value: drawn.append(len(value)) or draw(metric, value))
    memory = MemoryLogger()
    build_line(quiet(tmp_path / "run").metric_valid(Matrix()).metric_loggers(memory)).fit(batches(), valid_data())
    train, valid = memory.of(SplitEnded)
    assert (train.pictures, drawn) == ({}, [])
    assert valid.values["Matrix"] == "20 rows"
    assert valid.pictures["Matrix"]().shape == (20, 2)
    assert drawn == [20]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("valid/Los", "Webhook monitors 'valid/Los', which no metric provides; did you mean 'valid/Loss'"),
        ("valid/Matrix", "Webhook monitors 'valid/Matrix', which is not a number"),
    ],
)
def test_a_logger_with_an_unknown_monitor_is_refused(tmp_path, key, message):
    webhook = Webhook("http://127.0.0.1:1", monitors=[key])
    builder = quiet(tmp_path / "run").metric_valid(Matrix()).metric_loggers(webhook)
    with pytest.raises(LearnerError, match=re.escape(message)):
        build_line(builder).fit(batches(), valid_data())
    assert not (tmp_path / "run").exists()
