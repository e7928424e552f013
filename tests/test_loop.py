"""Tests of the training loop: it never waits for the device, compiles everything once, and no listener blocks it."""

import errno
import itertools
import os
import threading
import traceback
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import learner.learner
import learner.training.setup.preparation
from learner import LearnerBuilder, MetricEarlyStopping, ReduceOnPlateau, RegressionOutput
from learner.data import DataLoaderBuilder
from learner.events import (
    Compiling,
    EpochEnded,
    EpochStarted,
    Listener,
    ListenerThread,
    Message,
    RunEnded,
    RunFailed,
    RunStarted,
    SplitEnded,
    StepsEnded,
)
from learner.loggers import MemoryLogger
from learner.metrics import CollectingMetric, IterationSpeed
from learner.runs.metric_logs import RunFiles
from learner.training.feed import group as feed_module
from learner.training.reporting.timing import StepTimeEstimator
from learner.training.run import Run
from learner.util import executables
from tests.support.codes import raises_code

WAIT = 60  # seconds after which a missing event counts as a hang
ROWS, SIZE, RATE = 22, 4, 0.05  # 5 full batches and one of 2 rows
ArrayImpl = type(jnp.zeros(()))


def arrays(rows=ROWS):
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    return {"x": x, "y": (x @ np.array([[1.0], [-2.0], [0.5]]) + 0.25).astype(np.float32)}


def linear(model, batch):
    return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])


def convolution(model, batch):
    """Compute the linear model as a convolution of width 3 without padding."""
    output = jax.lax.conv_general_dilated(
        batch["x"][:, :, None], model["w"][:, :, None], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
    )
    return RegressionOutput.from_predictions(output[:, :, 0], batch["y"])


class Order(CollectingMetric):
    """A metric that depends on every row and its position."""

    name, fields, higher_is_better = "Order", ("targets",), True

    def collect(self, output):
        return output.targets

    def compute(self, rows):
        return order_of(rows)


def order_of(targets):
    return float(np.asarray(targets, np.float64)[:, 0] @ np.arange(1, len(targets) + 1))


def loader(data=None, size=SIZE):
    return DataLoaderBuilder().batch_size(size).build(data or arrays())


def as_batches(data=None, size=SIZE):
    return list(loader(data, size))


def builder(directory, **options):
    configured = LearnerBuilder(directory).renderer(None).with_file_checkpointer(None)
    for name, value in options.items():
        getattr(configured, name)(value)
    return configured


def build(builder, step=linear, lr=RATE):
    return builder.build({"w": np.zeros((3, 1), np.float32)}, optax.sgd, lr, train_step=step, valid_step=step)


# -- what is watched ---------------------------------------------------------------------------------------------------


class Reads:
    """Record every read of a device value, and every wait for one, with its thread.

    NumPy's functions are watched as well: on a CPU an array is memory, which they read without calling the array's
    methods.
    """

    METHODS = ("__array__", "__buffer__", "__float__", "__int__", "__bool__", "__index__", "__format__", "__iter__")
    METHODS += ("item", "tolist", "tobytes", "block_until_ready")

    def __init__(self):
        self.seen = []

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(ArrayImpl, "_value", property(self._noting("value", ArrayImpl._value.fget)))
        for owner, names in (
            (ArrayImpl, [name for name in self.METHODS if hasattr(ArrayImpl, name)]),
            (jax, ["device_get", "block_until_ready"]),
            (np, ["asarray", "array", "stack", "concatenate"]),
        ):
            for name in names:
                self._patch.setattr(owner, name, self._noting(name, getattr(owner, name)))
        return self

    def __exit__(self, *_):
        self._patch.undo()

    def _noting(self, name, function):
        def noting(*args, **kwargs):
            if any(isinstance(x, ArrayImpl) for x in jax.tree.leaves((args, kwargs))):
                self.seen.append((threading.current_thread(), name))
            return function(*args, **kwargs)

        return noting

    def of(self, thread):
        return [name for where, name in self.seen if where is thread]


OF_STATE = {"stage", "_threefry_seed", "all_parts", "_same"}  # the root key, the state, and programs that place a batch
COMPILED = []  # the names of all compiled programs, in any thread; JAX cannot remove listeners


def _compiled(event, seconds, fun_name="?", **_):
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED.append(fun_name.removeprefix("jit(").removesuffix(")"))


jax.monitoring.register_event_duration_secs_listener(_compiled)


class Watched:
    """A fit whose loop runs under the transfer guard, with recorded reads and compilations.

    Attributes:
      result: of `fit`.
      compiled: number of compilations of each program, for each epoch and for the time after. The first epoch includes
        programs compiled in the background before it, but not those of the first state.
      reads: reads of device values by the loop's thread.
      all_reads: by every thread.
    """

    def __init__(self, learner_, *data):
        marks, inner_loop, end_epoch = [], learner.learner.loop, Run.end_epoch

        def ended(run):
            end_epoch(run)
            marks.append(len(COMPILED))

        def compile_in_background(runner, feeders, *args):
            def marked():  # after the first feeder, with everything that each split needs
                for split, feeder in feeders:
                    if not marks:
                        marks.append(len(COMPILED))
                    yield split, feeder

            return in_background(runner, marked(), *args)

        def loop(run):
            with Reads() as reads, jax.transfer_guard("disallow"):
                reason = inner_loop(run)
                run.reporter.wait()  # still watched: it reads the last dispatch
            marks.append(len(COMPILED))
            self.reads, self.all_reads = reads.of(threading.current_thread()), reads.seen
            return reason

        executables.clear()
        in_background = learner.training.setup.preparation.compile_in_background
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(learner.training.setup.preparation, "compile_in_background", compile_in_background)
            patch.setattr(Run, "end_epoch", ended)
            patch.setattr(learner.learner, "loop", loop)
            self.result = learner_.fit(*data)
        self.compiled = [
            Counter(name for name in COMPILED[a:b] if name not in OF_STATE) for a, b in itertools.pairwise(marks)
        ]


def by_hand(accumulate, epochs, rows=ROWS):
    """Return the parameters and the loss before each step, by gradient descent on the joined batches in float64."""
    data, w, losses = arrays(rows), np.zeros((3, 1)), []
    size = SIZE * accumulate
    for _ in range(epochs):
        for first in range(0, rows, size):
            x, y = (np.float64(data[name][first : first + size]) for name in ("x", "y"))
            losses.append(float(((x @ w - y) ** 2).mean()))
            w = w - RATE * 2 / len(x) * x.T @ (x @ w - y)
    return w, losses


def column(directory, split, epoch, name):
    """Return the values of a metric's file, and its last line."""
    lines = (directory / split / f"epoch-{epoch}" / f"{name}.log").read_text().splitlines()
    return [float(line.split(",")[0]) for line in lines[:-1]], lines[-1]


# -- whole fits, in every way that steps are dispatched ----------------------------------------------------------------

EPOCHS = 3
LOOPED = ["train", "train_tail", "valid", "valid_tail"]  # the loop, and the ragged batch
SHAPES = ["valid_tail", "valid_tail"]  # without loops, a stream has one program per shape: full and ragged batches
MODES = {  # data, micro-batches per step, step, and the compiled programs
    "resident": (loader, 1, linear, LOOPED),
    "resident, accumulation": (loader, 3, linear, LOOPED),
    "stream": (as_batches, 1, linear, LOOPED),
    "stream, accumulation": (as_batches, 3, linear, LOOPED),
    "resident, no loop": (loader, 1, convolution, ["train_single", "train_tail", "valid_single", "valid_tail"]),
    "resident, no loop, accumulation": (
        loader,
        3,
        convolution,
        ["begin", "add", "add_tail", "finish", "valid_single", "valid_tail"],
    ),
    "stream, no loop": (as_batches, 1, convolution, ["train_tail", "train_tail", *SHAPES]),
    "stream, no loop, accumulation": (
        as_batches,
        3,
        convolution,
        ["begin", "add_tail", "add_tail", "finish", *SHAPES],
    ),
}
VALUES = 1  # plus the values of a split at its end: both splits have the same metrics, so they share the program
# further tests below watch a loop over resident data
QUICK = ("stream, accumulation", "resident, no loop, accumulation")


@pytest.fixture(
    scope="module",
    params=[pytest.param(m, marks=() if m in QUICK else pytest.mark.full) for m in MODES],
    ids=list(MODES),
)
def fit(request, tmp_path_factory):
    make, accumulate, step, programs = MODES[request.param]
    directory, memory = tmp_path_factory.mktemp("run") / "run", MemoryLogger()
    configured = builder(directory, num_epochs=EPOCHS, grads_accumulation=accumulate, metric_loggers=memory)
    configured.metrics(Order(), IterationSpeed())
    watched = Watched(build(configured, step), make(), make())
    watched.directory, watched.accumulate, watched.step, watched.programs = directory, accumulate, step, programs
    watched.memory = memory
    return watched


def test_the_loop_runs_under_the_transfer_guard_and_reads_nothing(fit):
    """The transfer guard covers the whole loop, and would have raised."""
    assert fit.result.stopped_by == "num_epochs"
    assert fit.reads == []
    assert {thread.name for thread, _ in fit.all_reads} == {"learner-reporter"}


def test_everything_compiles_once_in_the_first_epoch(fit):
    first, *others = fit.compiled
    assert Counter({name: first[name] for name in fit.programs}) == Counter(fit.programs)
    assert first.total() == len(fit.programs) + VALUES
    assert others == [Counter()] * EPOCHS


def test_training_is_gradient_descent_on_the_joined_batches(fit):
    w, losses = by_hand(fit.accumulate, EPOCHS)
    np.testing.assert_allclose(fit.result.model["w"], w, rtol=1e-4)
    logged = [x for epoch in range(1, EPOCHS + 1) for x in column(fit.directory, "train", epoch, "Loss")[0]]
    np.testing.assert_allclose(logged, losses, rtol=1e-4)


def test_every_step_has_a_line_in_every_file_whatever_the_dispatch(fit):
    steps = -(-ROWS // (SIZE * fit.accumulate))
    for epoch in range(1, EPOCHS + 1):
        for split, count in (("train", steps), ("valid", 6)):
            for name in ("Loss", "Iteration_Speed"):
                values, last = column(fit.directory, split, epoch, name)
                assert (len(values), last.endswith(",final")) == (count, True)


def test_collected_rows_are_all_there_in_order(fit):
    expected = order_of(arrays()["y"])
    for split in ("train", "valid"):
        np.testing.assert_allclose(fit.result.history[f"{split}/Order"], [expected] * EPOCHS, rtol=1e-5)


def test_convolution_on_a_cpu_runs_step_by_step_and_is_logged(fit):
    log = (fit.directory / "experiment.log").read_text()
    slow = fit.step is convolution
    for split in ("train", "valid"):
        expected = "step by step, without a loop (it has a convolution" if slow else "up to 32 steps in one loop ("
        assert f"dispatch of {split}: {expected}" in log
    assert {"train", "valid"} & set(fit.compiled[0]) == (set() if slow else {"train", "valid"})


def test_the_log_counts_the_compilations(fit):
    log = (fit.directory / "experiment.log").read_text()
    (line,) = [line for line in log.splitlines() if "programs compiled in" in line]
    assert int(line.split("INFO")[1].split()[0]) >= fit.compiled[0].total()


def test_events_are_ordered_and_complete(fit):
    steps = -(-ROWS // (SIZE * fit.accumulate))
    events = [event for event in fit.memory.events if not isinstance(event, Message | Compiling)]
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)
    position = 1
    for epoch in range(1, EPOCHS + 1):
        assert events[position] == EpochStarted(events[position].time, epoch, steps)
        position += 1
        for split, count in (("train", steps), ("valid", 6)):
            done = 0
            while isinstance(event := events[position], StepsEnded):
                base = (epoch - 1) * steps if split == "train" else 0
                assert (event.split, event.epoch, event.first) == (split, epoch, base + done + 1)
                done += event.count
                assert (event.in_epoch, event.total) == (done, count)
                assert event.step == ((epoch - 1) * steps + done if split == "train" else epoch * steps)
                assert {len(values) for values in (*event.values.values(), event.weights)} == {event.count}
                position += 1
            assert done == count
            assert isinstance(event, SplitEnded)
            assert (event.split, event.epoch, event.at_step) == (split, epoch, None)
            position += 1
        assert isinstance(events[position], EpochEnded)
        assert {key.split("/")[0] for key in events[position].values} == {"train", "valid"}
        position += 1
    assert position == len(events) - 1
    assert fit.memory.closed


# -- the watch would notice --------------------------------------------------------------------------------------------

WAYS = {
    "float": float,
    "int": int,
    "bool": bool,
    "item": lambda x: x.item(),
    "tolist": lambda x: x.tolist(),
    "str": str,
    "format": lambda x: f"{x:.3f}",
    "if": lambda x: 1 if x else 0,
    "np.asarray": lambda x: np.asarray(x),
    "np.array": lambda x: np.array(x),
    "np.stack": lambda x: np.stack([x, x]),
    "device_get": lambda x: jax.device_get({"x": x}),
    "block_until_ready": lambda x: x.block_until_ready(),
    "jax.block_until_ready": lambda x: jax.block_until_ready([x]),
}
if hasattr(ArrayImpl, "__buffer__"):  # Python 3.12
    WAYS |= {"np.float32": np.float32, "np.isfinite": np.isfinite}


@pytest.mark.full
def test_reads_in_the_loop_are_detected(tmp_path, monkeypatch):
    noticed, check = {}, Run.check

    def reading(run):
        check(run)
        if noticed:
            return
        for name, read in WAYS.items():
            value = run.runner.copy(run.runner.state.lr_scale)  # a copy: an array caches the value read from it
            with Reads() as reads:
                read(value)
            noticed[name] = bool(reads.of(threading.current_thread()))

    monkeypatch.setattr(Run, "check", reading)
    watched = Watched(build(builder(tmp_path / "run", num_epochs=1)), loader())
    assert noticed == dict.fromkeys(WAYS, True)
    assert len(watched.reads) >= len(WAYS)


@pytest.mark.full
@pytest.mark.parametrize(
    "careless",
    [lambda run: run.accumulator.number + 1, lambda run: jnp.zeros(3), lambda run: jnp.sum(np.ones(3))],
    ids=["number", "zeros", "numpy"],
)
def test_a_transfer_in_the_loop_would_raise(tmp_path, monkeypatch, careless):
    monkeypatch.setattr(Run, "check", careless)
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        Watched(build(builder(tmp_path / "run", num_epochs=1)), loader())


@pytest.mark.full
def test_second_compilation_is_counted(tmp_path):
    """Batches of another length in the third epoch. `fit` reads the first one of the first epoch beforehand."""
    wide = {name: values[:8] for name, values in arrays().items()}
    epochs = iter([as_batches(), as_batches(), as_batches(wide, 8)])
    watched = Watched(build(builder(tmp_path / "run", num_epochs=3)), lambda: next(epochs))
    named = [{name: count for name, count in epoch.items() if "train" in name} for epoch in watched.compiled]
    assert named == [{"train": 1, "train_tail": 1}, {}, {"train": 1}, {}]


# -- everything that cuts an epoch -------------------------------------------------------------------------------------


@pytest.mark.full
def test_validations_hooks_saves_and_schedulers_within_epochs_read_nothing(tmp_path):
    """Hooks may read; the loop around them does not. The programs that they need are compiled once."""
    hooked = []
    configured = LearnerBuilder(tmp_path / "run").renderer(None).with_file_checkpointer(keep_last=1).num_epochs(3)
    configured.valid_every(2).every(3, lambda info, model: hooked.append(("every", info.step)))
    configured.on_epoch_end(lambda info, model: hooked.append(("epoch", info.epoch)) or {"hooks": len(hooked)})
    configured.early_stopping(MetricEarlyStopping("valid/Loss", patience=50))
    plateau = ReduceOnPlateau(RATE, "valid/Loss", factor=0.5, patience=0, min_delta=1e6)  # reduces at every validation
    watched = Watched(build(configured, lr=plateau), loader(), loader())
    assert watched.reads == []
    assert hooked == [
        (kind, n) for e in (1, 2, 3) for kind, n in (("every", 6 * e - 3), ("every", 6 * e), ("epoch", e))
    ]
    assert watched.result.history["custom/hooks"] == [3.0, 6.0, 9.0]
    assert [epoch.total() for epoch in watched.compiled[1:]] == [0, 0, 0]
    log = (tmp_path / "run" / "experiment.log").read_text()
    assert "learning rate 0.05 -> 0.025" in log


class WildPace(StepTimeEstimator):
    """A clock that returns a different step time at each call."""

    _steps = itertools.cycle([3, 1, 5, 2, 32])

    def steps(self, kind):
        return next(self._steps)


def test_cuts_do_not_change_a_bit(tmp_path, monkeypatch):
    """Compare validations, hooks and saves within epochs, and dispatches of 1 to 32 steps depending on the clock."""
    plain = build(builder(tmp_path / "plain", num_epochs=3).metrics(Order())).fit(loader(), loader())
    configured = LearnerBuilder(tmp_path / "cut").renderer(None).with_file_checkpointer().num_epochs(3).metrics(Order())
    configured.valid_every(2).every(3, lambda info, model: None)
    monkeypatch.setattr(learner.training.setup.preparation, "StepTimeEstimator", WildPace)
    cut = build(configured).fit(loader(), loader())
    np.testing.assert_array_equal(np.asarray(cut.model["w"]), np.asarray(plain.model["w"]))
    for epoch in (1, 2, 3):
        for name in ("Loss", "Order"):
            files = [tmp_path / run / "train" / f"epoch-{epoch}" / f"{name}.log" for run in ("plain", "cut")]
            assert files[0].read_bytes() == files[1].read_bytes()
    assert cut.history["train/Loss"] == plain.history["train/Loss"]
    assert cut.history["valid/Loss"][2::3] == plain.history["valid/Loss"]


@pytest.mark.full
def test_validation_may_have_a_larger_buffer_than_training(tmp_path, monkeypatch):
    """Only two of the large training batches fit into a buffer; the validation batches are many and small."""
    monkeypatch.setattr(feed_module, "BUFFER_BYTES", 2 * feed_module.bytes_of(as_batches()[0]))
    monkeypatch.setattr(learner.training.setup.preparation.StepTimeEstimator, "steps", lambda self, kind: 32)
    learner_ = build(builder(tmp_path / "run", num_epochs=2))
    result = learner_.fit(as_batches(), loader(size=2))
    w, _ = by_hand(1, 2)
    data = arrays()
    errors = (data["x"] @ w - data["y"])[:, 0] ** 2
    values, last = column(tmp_path / "run", "valid", 2, "Loss")
    np.testing.assert_allclose(values, errors.reshape(-1, 2).mean(1), rtol=1e-4)
    np.testing.assert_allclose(float(last.split(",")[0]), errors.mean(), rtol=1e-4)
    assert result.stopped_by == "num_epochs"
    evaluated = learner_.evaluate(loader(size=1))
    np.testing.assert_allclose(evaluated["Loss"], errors.mean(), rtol=1e-4)


# -- data of every kind ------------------------------------------------------------------------------------------------


def test_endless_iterator_trains_for_the_given_steps(tmp_path):
    def endless():
        while True:
            yield as_batches()[0]

    result = build(builder(tmp_path / "run", num_steps=7)).fit(endless())
    assert result.stopped_by == "num_steps"
    assert len(column(tmp_path / "run", "train", 1, "Loss")[0]) == 7


@pytest.mark.full
def test_an_exhausted_generator_is_an_error_in_epoch_2(tmp_path):
    """Epoch 1 completes and stays logged."""
    with raises_code("data-exhausted", "epoch 2"):
        build(builder(tmp_path / "run", num_steps=9)).fit(batch for batch in as_batches())
    assert column(tmp_path / "run", "train", 1, "Loss")[1].endswith(",final")
    assert len(column(tmp_path / "run", "train", 1, "Loss")[0]) == 6


def test_too_short_data_is_rejected_before_training(tmp_path):
    with raises_code("data-read-once", "num_epochs is 2", split="train"):
        build(builder(tmp_path / "run", num_epochs=2)).fit(batch for batch in as_batches())
    assert not (tmp_path / "run").exists()


def test_loader_errors_keep_their_traceback(tmp_path):
    def broken_loader():
        yield from as_batches()[:3]
        raise OSError("the cable was pulled")

    memory = MemoryLogger()
    with pytest.raises(OSError, match="the cable was pulled") as info:
        build(builder(tmp_path / "run", num_epochs=1, metric_loggers=memory)).fit(broken_loader)
    assert "broken_loader" in [frame.name for frame in traceback.extract_tb(info.tb)]
    assert isinstance(memory.events[-1], RunFailed)
    assert "the cable was pulled" in (tmp_path / "run" / "experiment.log").read_text()
    assert (tmp_path / "run" / "train" / "epoch-1" / "Loss.log").read_text().count("\n") == 2  # one batch is prefetched


@pytest.mark.full
def test_evaluate_uses_every_batch_of_an_iterator(tmp_path):
    learner_ = build(builder(tmp_path / "run"))
    whole = learner_.evaluate(loader())
    assert learner_.evaluate(iter(as_batches())) == whole


# -- another device ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_everything_runs_on_the_chosen_device(tmp_path):
    device = jax.devices()[3]
    watched = Watched(build(builder(tmp_path / "run", num_epochs=2, devices=[device])), loader(), as_batches())
    assert watched.result.model["w"].devices() == {device}
    assert [epoch.total() for epoch in watched.compiled[1:]] == [0, 0]
    np.testing.assert_allclose(watched.result.model["w"], by_hand(1, 2)[0], rtol=1e-4)


# -- nobody holds the loop ---------------------------------------------------------------------------------------------


class Blocked(Listener):
    """A listener that blocks at its first event, as with a server that does not answer."""

    def __init__(self):
        self.gate, self.entered, self.gave_up = threading.Event(), threading.Event(), False

    def on_event(self, event):
        self.entered.set()
        self.gave_up |= not self.gate.wait(WAIT)


class Hanging(Blocked):
    """A listener that never returns."""


class Raising(Listener):
    def on_event(self, event):
        raise ValueError("no such bar")


def test_blocking_or_failing_listeners_do_not_delay_training(tmp_path, monkeypatch):
    """The loop ends before two of three listeners have returned from their first event."""
    close = ListenerThread.close
    monkeypatch.setattr(
        learner.training.files.run_outputs,
        "ListenerThread",
        lambda listener, warn, log: ListenerThread(listener, warn, log, size=4),
    )
    monkeypatch.setattr(
        ListenerThread,
        "close",
        lambda outlet, seconds: close(outlet, 0.1 if isinstance(outlet._listener, Hanging) else WAIT),
    )
    blocked, hanging, memory, at_end, inner = Blocked(), Hanging(), MemoryLogger(), [], learner.learner.loop

    def loop(run):
        assert blocked.entered.wait(WAIT)
        assert hanging.entered.wait(WAIT)
        reason = inner(run)
        run.reporter.wait()
        at_end.extend([blocked.gate.is_set(), blocked.gave_up, hanging.gave_up])
        blocked.gate.set()
        return reason

    monkeypatch.setattr(learner.learner, "loop", loop)
    configured = builder(tmp_path / "run", num_epochs=2)
    before = set(threading.enumerate())
    result = build(configured.metric_loggers(blocked, hanging, Raising(), memory)).fit(loader())
    hanging.gate.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT)
        assert not thread.is_alive(), "one that was left behind ends when it comes back"
    assert at_end == [False, False, False]
    assert result.stopped_by == "num_epochs"
    np.testing.assert_allclose(result.model["w"], by_hand(1, 2)[0], rtol=1e-4)
    assert len(column(tmp_path / "run", "train", 2, "Loss")[0]) == 6
    warnings = [
        w.split("WARNING ")[1] for w in (tmp_path / "run" / "experiment.log").read_text().splitlines() if "WARN" in w
    ]
    assert [w.split(" (")[0] for w in warnings if "Raising" in w] == [
        "Raising failed and is detached; training continues: ValueError('no such bar')"
    ]
    assert 'in on_event\n    raise ValueError("no such bar")' in (tmp_path / "run" / "experiment.log").read_text()
    assert [w.split(":")[0] for w in warnings if "Blocked" in w] == ["Blocked was too slow"]
    assert "Hanging hangs and was left behind" in warnings


def test_failure_at_the_last_event_warns_all_other_listeners(tmp_path, monkeypatch):
    closing, close = threading.Event(), learner.training.files.run_outputs._close
    monkeypatch.setattr(learner.training.files.run_outputs, "_close", lambda *args: (closing.set(), close(*args)))

    class Late(Listener):
        def on_event(self, event):
            if isinstance(event, RunEnded):
                assert closing.wait(WAIT)  # the others have handled all of their events
                raise ValueError("no such bar")

    others = [MemoryLogger(), MemoryLogger()]
    build(builder(tmp_path / "run").metric_loggers(others[0], Late(), others[1])).fit(loader())
    for memory in others:
        assert [message.text.split(":")[0] for message in memory.of(Message)] == [
            "Late failed and is detached; training continues"
        ]


@pytest.mark.full
def test_a_full_disk_ends_the_run_with_its_own_error(tmp_path, monkeypatch):
    """The files are part of the run. Afterwards none of its threads is left."""
    memory, steps = MemoryLogger(), RunFiles.steps

    def full(files, split, epoch, values, weights):
        if epoch == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "Loss.log")
        steps(files, split, epoch, values, weights)

    monkeypatch.setattr(RunFiles, "steps", full)
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="No space left on device") as info:
        build(builder(tmp_path / "run", num_epochs=50, metric_loggers=memory)).fit(as_batches(), loader())
    assert info.value.errno == errno.ENOSPC
    assert "full" in [frame.name for frame in traceback.extract_tb(info.tb)]
    assert isinstance(memory.events[-1], RunFailed)
    assert memory.closed
    left = [t.name for t in set(threading.enumerate()) - before if t.is_alive() and t.name.startswith("learner")]
    assert left == []
    assert "No space left" in (tmp_path / "run" / "experiment.log").read_text()
