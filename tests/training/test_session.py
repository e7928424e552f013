"""Tests of opening and closing a run: log, compilations and threads."""

import json
import logging
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import LearnerError, RegressionOutput
from learner.distributed.process_group import SingleProcess
from learner.events import Compiling, Listener, ListenerThread, Message, MetricInfo
from learner.loggers import MemoryLogger
from learner.metrics import Accuracy, GradientNorm, Metric
from learner.renderers import PlainRenderer
from learner.runs.evaluations import record_evaluation
from learner.strategies import Replicated, Sharded, SingleDevice
from learner.training.programs.compilation import COMPILED, CompileTimes
from learner.util import executables
from tests.support.codes import raises_code
from tests.support.runs import (
    ROWS,
    STEPS,
    batches,
    build_line,
    journal_of,
    line,
    logs_of,
    model_bits,
    quiet,
    saved_steps,
    shuffled,
    streamed,
    tree_of,
    valid_data,
)
from tests.support.stopped import stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")


def log_of(directory):
    return (directory / "experiment.log").read_text()


@pytest.mark.full
def test_the_application_log_describes_the_run(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(2).seed(7).with_file_checkpointer()
    build_line(builder).fit(shuffled(rows=ROWS), valid_data(9))
    log = log_of(tmp_path / "run")
    for part in (
        "versions: learner ",
        "jax ",
        "flax ",
        "optax ",
        "devices: one device: cpu",
        "there are 8 devices and one is used",
        "4 parameters in 2 arrays",
        "float32    [3, 1]",
        "seed 7, 1 micro-batch per step",
        "dispatch of train: ",
        "dispatch of valid: ",
        "the data lives on the device",
        "start at epoch 1, step 0",
        "saved ",
        "checkpoint/12 in",
        "programs compiled in",
        "ended at epoch 2, step 12, after ",
    ):
        assert part in log, part
    assert not any(word in log for word in ("WARNING", "ERROR"))


def test_other_processes_wait_for_the_loggers_of_process_0(tmp_path, monkeypatch):
    """`RunMirror` may take ten minutes, and a meeting times out after five."""
    meetings, reduce = [], SingleProcess.all_reduce_json

    def all_reduce_json(group, value, combine, what="", patient=False):
        meetings.append((what, patient))
        return reduce(group, value, combine, what, patient)

    monkeypatch.setattr(SingleProcess, "all_reduce_json", all_reduce_json)
    build_line(quiet(tmp_path / "run")).fit(batches())
    assert meetings[-2:] == [("end", False), ("end", True)]


@pytest.mark.full
def test_a_custom_application_logger(tmp_path, caplog):
    mine = logging.getLogger("mine")
    mine.setLevel(logging.INFO)
    handlers = list(mine.handlers)
    with caplog.at_level(logging.INFO, logger="mine"):
        build_line(quiet(tmp_path / "run").application_logger(mine)).fit(batches())
    assert any(": num_epochs (" in record.getMessage() for record in caplog.records if record.name == "mine")
    assert not (tmp_path / "run" / "experiment.log").exists()
    assert mine.handlers == handlers
    build_line(quiet(tmp_path / "silent").application_logger(False)).fit(batches())
    assert "experiment.log" not in tree_of(tmp_path / "silent")
    assert "journal.jsonl" in tree_of(tmp_path / "silent")


@pytest.mark.full
def test_a_resumed_run_appends_to_its_log(tmp_path):
    build_line(quiet(tmp_path / "run", saves=True)).fit(batches())
    before = log_of(tmp_path / "run")
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(2).resume()).fit(batches())
    after = log_of(tmp_path / "run")
    assert after.startswith(before)
    assert f"resume: from the checkpoint of step {STEPS}" in after
    assert f"start at epoch 2, step {STEPS}" in after


def compilations(builder, train, valid):
    executables.clear()
    learner = build_line(builder)
    with CompileTimes() as compiled:
        learner.fit(train, valid)
    return compiled.count


@pytest.mark.full
def test_a_program_is_compiled_once(tmp_path):
    """More epochs, renderers, loggers and validations compile no further programs; the log has the number."""
    compilations(quiet(tmp_path / "first"), shuffled(), valid_data())  # compiles small functions of JAX
    one = compilations(quiet(tmp_path / "one"), shuffled(), valid_data())
    (line,) = [line for line in log_of(tmp_path / "one").splitlines() if "programs compiled in" in line]
    assert 0 < int(line.split()[3]) <= one
    builder = quiet(tmp_path / "more").num_epochs(3).valid_every(steps=1).metric_loggers(MemoryLogger())
    assert compilations(builder.renderer(PlainRenderer()), shuffled(), valid_data()) == one
    more = compilations(quiet(tmp_path / "other").metric_train(GradientNorm()), shuffled(), valid_data())
    assert more == one + 2  # the splits no longer share the programs for the states and values of metrics


@pytest.mark.parametrize(
    "strategy",
    [
        SingleDevice,
        *(pytest.param(s, marks=pytest.mark.full) for s in (lambda: Replicated(2), lambda: Sharded(devices=2))),
    ],
)
def test_a_second_run_with_equal_programs_compiles_nothing(tmp_path, strategy):
    """The seed and the learning rate are arguments of the programs; the optimizer is not."""
    runs = []
    for name, lr, seed in (("first", 0.5, 1), ("second", 0.25, 2), ("third", 0.5, 1)):
        learner = build_line(quiet(tmp_path / name).seed(seed).strategy(strategy()), lr)
        with CompileTimes() as compiled:
            runs.append((learner.fit(shuffled(), valid_data()).history, compiled.count))
    (first, _), (second, *counts), (third, *more) = runs
    assert (counts, more) == ([0], [0])
    assert first == third != second
    with CompileTimes() as compiled:
        build_line(quiet(tmp_path / "other").strategy(strategy()), optimizer=optax.adam).fit(shuffled(), valid_data())
    assert compiled.count > 0


@pytest.fixture
def compiling_threads():
    """Yield a list of the names of compiled programs and of the threads that compile them."""
    seen = []

    def listen(event, seconds, **more):
        if event == COMPILED:
            seen.append((more.get("fun_name", ""), threading.current_thread().name))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


class Events(list, Listener):
    """A listener that is the list of events."""

    def on_event(self, event):
        self.append(event)


@pytest.mark.full
@pytest.mark.parametrize(
    ("train", "valid", "accumulate", "programs"),
    [
        pytest.param(lambda: shuffled(), lambda: valid_data(), 1, ["train", "valid"], marks=pytest.mark.full),
        (lambda: shuffled(rows=ROWS), lambda: valid_data(9), 1, ["train", "train_tail", "valid", "valid_tail"]),
        pytest.param(
            lambda: shuffled(rows=ROWS),
            lambda: valid_data(),
            2,
            ["train", "train_tail", "valid"],
            marks=pytest.mark.full,
        ),
        (lambda: streamed(), lambda: batches(), 1, ["train", "valid"]),
    ],
    ids=["resident", "ragged", "accumulated", "streamed"],
)
def test_programs_are_compiled_while_the_run_is_set_up(tmp_path, compiling_threads, train, valid, accumulate, programs):
    """Each program is compiled once, and none that the run does not need."""
    executables.clear()
    reported = Events()
    build_line(quiet(tmp_path / "run").grads_accumulation(accumulate).metric_loggers(reported)).fit(train(), valid())
    threads = {name.removeprefix("jit(").removesuffix(")"): thread for name, thread in compiling_threads}
    names = [name for name, _ in compiling_threads if "train" in name or "valid" in name]
    assert len(names) == len(programs)
    assert threads.keys() >= {*programs}
    assert threads["train"] == "learner-compile_0"  # the others may be needed earlier, in the main thread
    numbers = [(event.number, event.total) for event in reported if isinstance(event, Compiling)]
    # The run may end before the thread reaches programs that the loop has compiled.
    count = len(programs)
    assert (1, count) in numbers
    assert numbers == [*((number, count) for number in range(1, count + 1)), (0, count)][: len(numbers)]


@pytest.mark.full
def test_a_convolution_streams_one_step_at_a_time(tmp_path, compiling_threads):
    executables.clear()

    def step(model, batch):
        kernel = model["w"].reshape(1, 1, 3)
        x = jax.lax.conv(batch["x"][:, None], kernel, (1,), "SAME")[:, 0, :1]
        return RegressionOutput.from_predictions(x, batch["t"])

    def learner(name):
        return quiet(tmp_path / name).build(line(bias=False), optax.sgd, 0.1, train_step=step, valid_step=step)

    learner("run").fit(streamed(), batches())
    steps = [name for name, _ in compiling_threads if "train" in name or "valid" in name]
    assert sorted(name.removeprefix("jit(").removesuffix(")") for name in steps) == ["train_tail", "valid_tail"]


def test_threads_end_with_the_run(tmp_path):
    before = {thread.ident for thread in threading.enumerate() if thread.name.startswith("learner")}
    builder = quiet(tmp_path / "run").num_epochs(2).metric_loggers(MemoryLogger()).with_file_checkpointer()
    build_line(builder).fit(batches(), batches(9))
    after = {thread.ident for thread in threading.enumerate() if thread.name.startswith("learner")}
    assert after <= before


@pytest.mark.full
def test_two_runs_in_threads_equal_separate_runs(tmp_path):
    alone = build_line(quiet(tmp_path / "alone").num_epochs(2)).fit(shuffled(), valid_data())
    results, begin = {}, threading.Barrier(2)

    def train(name):
        learner = build_line(quiet(tmp_path / name).num_epochs(2))
        begin.wait()
        results[name] = learner.fit(shuffled(), valid_data())

    threads = [threading.Thread(target=train, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ("a", "b"):
        assert model_bits(results[name].model) == model_bits(alone.model)
        assert logs_of(tmp_path / name) == logs_of(tmp_path / "alone")


def test_a_refused_run_opens_no_loggers(tmp_path):
    memory = MemoryLogger()
    with pytest.raises(LearnerError):
        build_line(quiet(tmp_path / "run").metrics(Accuracy()).metric_loggers(memory)).fit(batches())
    assert memory.events == []
    assert not memory.closed
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_unwritable_records_are_refused_before_a_run_is_replaced(tmp_path, monkeypatch):
    build_line(quiet(tmp_path / "run")).fit(batches())
    left = tree_of(tmp_path / "run")

    def refuse(options, state):
        raise LearnerError("in parts", code="checkpoint-record-distributed")

    monkeypatch.setattr("learner.training.fit_run.check_recordable", refuse)
    with raises_code("checkpoint-record-distributed"):
        build_line(quiet(tmp_path / "run", overwrite=True)).fit(batches())
    assert {**tree_of(tmp_path / "run"), "run.lock": None} == {**left, "run.lock": None}


@pytest.mark.full
def test_truncated_logs_are_refused(tmp_path):
    """The logs must contain everything that the checkpoint recorded; otherwise nothing is changed."""
    build_line(quiet(tmp_path / "run").with_file_checkpointer()).fit(batches())
    log = tmp_path / "run" / "train" / "epoch-1" / "Loss.log"
    log.write_text("0.5,4\n")
    summary = (tmp_path / "run" / "summary.json").read_text()
    with raises_code("resume-log-changed", "Loss.log", "6"):
        build_line(quiet(tmp_path / "run").num_epochs(2).resume()).fit(batches())
    assert log.read_text() == "0.5,4\n"
    assert (tmp_path / "run" / "summary.json").read_text() == summary
    assert [entry["event"] for entry in journal_of(tmp_path / "run")].count("start") == 1


class States(Metric):
    """A metric whose state has `count` numbers."""

    name, higher_is_better = "States", True

    def __init__(self, count):
        self.count = count

    def init(self):
        return jnp.zeros(self.count)

    def update(self, state, output, info):
        return state + 1

    def merge(self, a, b):
        return a + b

    def compute(self, state):
        return state.sum()


@pytest.mark.full
def test_other_metric_states_are_refused_before_any_change(tmp_path):
    """The newer checkpoints and the log lines after the older one are kept."""

    def builder(count):
        saves = quiet(tmp_path / "run").with_file_checkpointer(keep_last=5, every_epochs=None, every_steps=2)
        return saves.metrics(States(count))

    build_line(stopping_at(builder(3), 5)).fit(batches())
    left = tree_of(tmp_path / "run" / "checkpoint"), logs_of(tmp_path / "run")
    assert saved_steps(tmp_path / "run") == [2, 4, 5]
    with raises_code("resume-metric-state-differs"):
        build_line(builder(4).checkpoint(step=2)).fit(batches())
    assert (tree_of(tmp_path / "run" / "checkpoint"), logs_of(tmp_path / "run")) == left
    assert not (tmp_path / "run" / "superseded").exists()
    assert build_line(builder(3).resume()).fit(batches()).stopped_by == "num_epochs"


def test_evaluation_recorded_while_loggers_close_reaches_the_summary(tmp_path):
    """A follower evaluates the last checkpoint as soon as the run has ended, and may not take its lock."""

    class Follower(Listener):
        def close(self):
            info = MetricInfo("test", "Loss", "", False)
            record_evaluation(tmp_path / "run", 1, 6, {info.key: 0.5}, [info], time.time())

    build_line(quiet(tmp_path / "run").num_epochs(1).metric_loggers(Follower())).fit(batches())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metrics"]["test/Loss"]["last"]["value"] == 0.5


def test_listeners_are_closed_if_a_signal_interrupts_the_wait_for_one(tmp_path, monkeypatch):
    """The wait for a logger that uploads may last minutes."""
    ends, flush = [], ListenerThread.flush

    class Slow(Listener):
        def close(self):
            ends.append("closed")

    class Other(Listener):
        def close(self):
            ends.append("closed")

    def interrupted(thread, seconds):
        if isinstance(thread._listener, Slow):
            raise KeyboardInterrupt
        return flush(thread, seconds)

    monkeypatch.setattr(ListenerThread, "flush", interrupted)
    learner = build_line(quiet(tmp_path / "run").num_epochs(1).metric_loggers(Slow(), Other()))
    with pytest.raises(KeyboardInterrupt):
        learner.fit(batches())
    assert ends == ["closed"] * 2


@pytest.mark.filterwarnings("error::learner.util.user_warnings.LearnerWarning")
def test_requests_are_answered_after_one_that_cannot_be_removed(tmp_path, monkeypatch):
    """Its warning must not end the thread, even if warnings are errors."""
    monkeypatch.setattr("learner.runs.control_files.POLL_SECONDS", 0.01)
    warned = threading.Event()

    class Messages(Listener):
        def on_event(self, event):
            if isinstance(event, Message) and "asks for nothing" in event.text:
                warned.set()

    def ask(info, model):
        if info.epoch == 1:
            (tmp_path / "run" / "stop.ask").mkdir()
            assert warned.wait(60)
            (tmp_path / "run" / "stop.ask").rmdir()
            (tmp_path / "run" / "stop.ask").touch()

    builder = quiet(tmp_path / "run").metric_loggers(Messages()).num_epochs(10**6).on_epoch_end(ask)
    assert build_line(builder).fit(batches()).stopped_by == "asked by somebody"


@pytest.mark.parametrize("saves", [{"every_steps": 7}, {"every_steps": 1}, {"every_steps": 3}, {"every_epochs": 1}])
def test_the_last_validation_of_a_run_of_steps_can_be_the_best(tmp_path, saves):
    """Whenever the run saves."""
    builder = quiet(tmp_path / "run").num_steps(STEPS + 1).with_file_checkpointer(**saves).restore_best()
    result = build_line(builder).fit(batches(), batches())
    (_, first), (step, last) = [(p.step, p.value) for p in result.history.points("valid/Loss")]
    assert (last < first, step, result.best_step) == (True, STEPS + 1, STEPS + 1)
    assert saved_steps(tmp_path / "run")[-1] == STEPS + 1


def test_validation_data_that_draws_by_itself_is_warned_about_in_a_resumed_run(tmp_path):
    class Noisy:
        def __init__(self):
            self.rng = np.random.default_rng(0)

        def __iter__(self):
            return ({**part, "x": part["x"] + np.float32(self.rng.normal())} for part in batches())

    for epochs, count in ((1, 0), (2, 1)):
        build_line(quiet(tmp_path / "run", saves=True).num_epochs(epochs).resume()).fit(batches(), Noisy())
        assert log_of(tmp_path / "run").count("valid data draws random numbers from a generator of its own") == count
