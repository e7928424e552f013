"""Tests of the reporter thread: order, metrics on the host, errors, queries, bounds and estimates of the step time."""

import concurrent.futures
import dataclasses
import errno
import functools
import itertools
import os
import queue
import threading
import traceback

import jax.numpy as jnp
import numpy as np
import pytest

from learner.events import EpochEnded, EpochStarted, Listener, Message, SplitEnded, StepsEnded
from learner.metrics import (
    CollectingMetric,
    HostMetric,
    IterationSpeed,
    Loss,
    Metric,
    RowsPerSecond,
    TokensPerSecond,
)
from learner.runs.history import History
from learner.runs.metric_logs import NoFiles, RunFiles
from learner.steps.buffers import StepOutputs
from learner.training.programs.in_flight import InFlightLimiter
from learner.training.reporting import reporter as reporter_module
from learner.training.reporting import step_reader
from learner.training.reporting.delivery import RunValues
from learner.training.reporting.messages import Callback, EpochFinished, Query, SplitFinished, StepsDispatched
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import DispatchTime, StepTimeEstimator
from tests.support.codes import raises_code
from tests.support.everything import StepsSeen

WAIT = 30  # seconds after which a test fails instead of hanging


class Files:
    """Records what the reporter writes."""

    def __init__(self):
        self.calls = []

    def steps(self, split, epoch, values, weights):
        values = {name: np.asarray(x).tolist() for name, x in values.items()}
        self.calls.append(("steps", split, epoch, values, np.asarray(weights).tolist()))

    def joined(self):
        """Return the calls with adjacent dispatches of a split joined, so that batching does not matter."""
        joined = []
        for call in self.calls:
            last = joined[-1] if joined else (None,)
            if call[0] == last[0] == "steps" and call[1:3] == last[1:3]:
                values = {name: last[3][name] + column for name, column in call[3].items()}
                joined[-1] = (*call[:3], values, last[4] + call[4])
            else:
                joined.append(call)
        return joined

    def close_split(self, split, epoch, values, at_step):
        self.calls.append(("close_split", split, epoch, values, at_step))

    def journal(self, event, **fields):
        self.calls.append((event, fields))


class ListenerThread:
    """Records the events that listeners receive."""

    def __init__(self):
        self.events = []

    def put(self, event):
        self.events.append(event)


class ResidentBatches(CollectingMetric):
    name = "Rows"

    def collect(self, output):
        raise NotImplementedError("traced in programs only")

    def compute(self, rows):
        return float(np.dot(rows["x"], np.arange(1, len(rows["x"]) + 1)))


class Known(StepTimeEstimator):
    """A constant estimate of the step time."""

    def __init__(self, seconds):
        super().__init__()
        self._seconds = seconds

    def seconds(self, kind, steps=1):
        return self._seconds * steps


@pytest.fixture
def start():
    workers = []

    def make(*metrics, files=None, listeners=(), history=None, estimator=None, warn=print, **arguments):
        by_split = {split: metrics or (Loss(),) for split in ("train", "valid")}
        values = {name: arguments.pop(name) for name in ("collected", "row_trees", "epoch_values") if name in arguments}
        run = RunValues(files or NoFiles(), listeners, warn, by_split, history or History(), **values)
        reporter = Reporter(run, estimator or StepTimeEstimator(), lambda: 5.0, **arguments)
        workers.append(reporter)
        return workers[-1]

    yield make
    for worker in workers:
        threading.Thread(target=worker.close, daemon=True).start()
        worker._thread.join(WAIT)
        assert not worker._thread.is_alive()


def values_of(*numbers, buffer=4, rows=(), tail=()):
    column = jnp.array([*numbers, *[jnp.nan] * (buffer - len(numbers))], jnp.float32)
    return StepOutputs(jnp.stack([column, jnp.arange(buffer, dtype=jnp.float32) + 1, 0 * column], 1), rows, tail)


def steps_dispatched(first, *numbers, split="train", epoch=1, batches=None, **values):
    count = len(numbers)
    last = first + count - 1
    return StepsDispatched(split, epoch, first, count, batches or count, last, 10, last, values_of(*numbers, **values))


def put_all(worker, *items):
    for item in items:
        worker.put(item)
    worker.wait()


def held(worker):
    """Block the reporter until the returned event is set; it then reads all dispatches put meanwhile together."""
    entered, gate = threading.Event(), threading.Event()
    worker.put(Callback(lambda: (entered.set(), gate.wait(WAIT))))
    assert entered.wait(WAIT)
    return gate


class Seconds(HostMetric):
    """A metric of the duration of steps."""

    name = "Seconds"

    def update(self, steps, seconds):
        self.last = seconds
        return seconds

    def compute(self):
        return self.last

    def reset(self):
        pass


def test_step_times_exclude_earlier_work(start):
    """A hook or a validation ran before the loop dispatched the steps."""
    seconds = Seconds()
    now = [0.0]
    worker = start(Loss(), seconds, now=lambda: now[0])
    now[0] = 1000.0
    put_all(worker, dataclasses.replace(steps_dispatched(1, 0.5), time=DispatchTime(since=990.0)))
    assert seconds.last == 10


def test_step_times_exclude_other_work_of_the_reporter(start):
    """Steps that ended while the reporter was busy are assumed to take as long as earlier ones."""
    seconds = Seconds()
    now, estimator = [0.0], StepTimeEstimator()
    estimator.measured("train", 1, 50.0)
    worker = start(Loss(), seconds, estimator=estimator, now=lambda: now[0])
    put_all(worker, Callback(lambda: now.__setitem__(0, 1000.0)), steps_dispatched(1, 0.5, 0.25))
    assert seconds.last == 100


# -- order -------------------------------------------------------------------------------------------------------------


def test_files_history_and_listeners_receive_everything_in_order(start):
    files, listener, seen = Files(), ListenerThread(), []
    worker = start(files=files, listeners=[listener])
    worker.put(EpochStarted(1.0, 1, 3))
    worker.put(steps_dispatched(1, 0.5, 0.25))
    worker.put(steps_dispatched(3, 0.125))
    worker.put(Callback(lambda: seen.append(len(files.joined()))))
    worker.put(SplitFinished("train", 1, 3, None, {"Loss": jnp.float32(0.1)}))
    worker.put(steps_dispatched(1, 0.75, split="valid"))
    worker.put(SplitFinished("valid", 1, 3, None, {"Loss": jnp.float32(0.75)}))
    worker.put(EpochFinished(1, 3))
    worker.wait()
    assert files.joined() == [
        ("steps", "train", 1, {"Loss": [0.5, 0.25, 0.125]}, [1, 2, 1]),
        ("close_split", "train", 1, {"Loss": 0.1}, None),
        ("steps", "valid", 1, {"Loss": [0.75]}, [1]),
        ("close_split", "valid", 1, {"Loss": 0.75}, None),
        ("epoch", {"epoch": 1, "step": 3, "values": {"train/Loss": 0.1, "valid/Loss": 0.75}}),
    ]
    assert seen == [1]
    kinds = [EpochStarted, StepsEnded, SplitEnded, StepsEnded, SplitEnded, EpochEnded]
    assert [kind for kind, _ in itertools.groupby(map(type, listener.events))] == kinds
    assert {key: worker.history[key] for key in worker.history} == {"train/Loss": [0.1], "valid/Loss": [0.75]}


def test_events_name_their_steps(start):
    listener = ListenerThread()
    worker = start(listeners=[listener])
    worker.put(StepsDispatched("train", 2, 31, 2, 6, 7, 9, 32, values_of(0.5, 0.25)))
    worker.wait()
    (event,) = listener.events
    reported = event.split, event.epoch, event.first, event.count, event.in_epoch, event.total, event.step, event.time
    assert reported == ("train", 2, 31, 2, 7, 9, 32, 5.0)
    assert (event.values["Loss"].tolist(), event.weights.tolist()) == ([0.5, 0.25], [1, 2])
    assert event.seconds > 0


def test_validations_inside_an_epoch_are_separate_from_the_epochs_values(start):
    files, listener = Files(), ListenerThread()
    worker = start(files=files, listeners=[listener])
    worker.put(SplitFinished("valid", 1, 5, 5, {"Loss": jnp.float32(0.5)}))
    worker.put(SplitFinished("train", 1, 8, None, {"Loss": jnp.float32(0.25)}))
    worker.put(EpochFinished(1, 8))
    worker.wait()
    assert files.calls == [
        ("close_split", "valid", 1, {"Loss": 0.5}, 5),
        ("validation", {"epoch": 1, "step": 5, "values": {"valid/Loss": 0.5}}),
        ("close_split", "train", 1, {"Loss": 0.25}, None),
        ("epoch", {"epoch": 1, "step": 8, "values": {"train/Loss": 0.25}}),
    ]
    assert listener.events[-1].values == {"train/Loss": 0.25}


def test_numbers_of_hooks_are_a_separate_split(start):
    worker = start()
    worker.put(SplitFinished("custom", 1, 5, None, {"norm": np.float32(0.1)}))
    worker.wait()
    assert worker.history["custom/norm"] == [0.1]


def test_history_holds_the_shortest_decimal_of_a_float32(start):
    worker = start()
    worker.put(SplitFinished("train", 1, 1, None, {"Loss": jnp.float32(0.1)}))
    worker.put(SplitFinished("train", 2, 2, None, {"Loss": jnp.float32(jnp.nan)}))
    worker.wait()
    first, second = worker.history["train/Loss"]
    assert (first, str(second)) == (0.1, "nan")


def test_put_nowait_keeps_the_order_of_the_queue(start):
    order, gate = [], threading.Event()
    worker = start()
    worker.put(Callback(lambda: gate.wait(WAIT)))
    worker.put(Callback(lambda: order.append(1)))
    worker.put_nowait(Callback(lambda: order.append(2)))
    worker.put(Callback(lambda: order.append(3)))
    gate.set()
    worker.wait()
    assert order == [1, 2, 3]


def test_close_processes_the_queue(start):
    done, gate = [], threading.Event()
    worker = start()
    worker.put(Callback(lambda: gate.wait(WAIT)))
    for number in range(100):
        worker.put(Callback(lambda number=number: done.append(number)))
    gate.set()
    worker.close()
    assert done == list(range(100))


# -- metrics on the host -----------------------------------------------------------------------------------------------


def test_waiting_dispatches_are_one_event_per_split_and_epoch(start):
    files, listener = Files(), ListenerThread()
    worker = start(files=files, listeners=[listener], estimator=Known(0.0))
    gate = held(worker)
    for item in (
        steps_dispatched(4, 0.5, 0.25),
        steps_dispatched(6, 0.125),
        steps_dispatched(7, 0.75, epoch=2),
        steps_dispatched(1, 1.0, split="valid"),
    ):
        worker.put(item)
    gate.set()
    worker.wait()
    reported = [
        (e.split, e.epoch, e.first, e.count, e.in_epoch, e.step, e.values["Loss"].tolist()) for e in listener.events
    ]
    assert reported == [
        ("train", 1, 4, 3, 6, 6, [0.5, 0.25, 0.125]),
        ("train", 2, 7, 1, 7, 7, [0.75]),
        ("valid", 1, 1, 1, 1, 1, [1.0]),
    ]
    assert [call[4] for call in files.calls] == [[1, 2, 1], [1], [1]]


@pytest.fixture
def reads(monkeypatch):
    """Return the number of dispatches of each read."""
    counts, read = queue.SimpleQueue(), step_reader.fetch
    monkeypatch.setattr(step_reader, "fetch", lambda dispatched: counts.put(len(dispatched)) or read(dispatched))
    return counts


def test_short_dispatches_are_read_together_without_delay(start, reads):
    """They are read when the loop waits for them, or when another message arrives."""
    worker = start(limiter=InFlightLimiter(most=16), estimator=Known(0.0))
    for first in range(1, 5):
        worker.put(steps_dispatched(first, 0.5))
    assert reads.get(timeout=WAIT) == 4
    worker.put(steps_dispatched(5, 0.5))
    worker.put(steps_dispatched(6, 0.5))
    worker.put(EpochStarted(1.0, 2, 3))
    assert reads.get(timeout=WAIT) == 2
    worker.wait()  # until the reporter has released their slots
    for _ in range(16):
        worker.limiter.acquire(0.0)
    worker.put(steps_dispatched(7, 0.5))
    worker.acquire("train", 1)  # waits for the slot of an earlier dispatch
    assert reads.get(timeout=WAIT) == 1


@pytest.mark.parametrize(("seconds", "together"), [(1.0, 1), (0.006, 1), (0.002, 2), (0.0009, 5), (0.0001, 16)])
def test_dispatches_of_five_milliseconds_are_read_together(start, reads, seconds, together):
    worker = start(estimator=Known(seconds))
    gate = held(worker)
    for first in range(1, together + 1):
        assert worker._queue.empty() or seconds > 0.005
        worker.put(steps_dispatched(first, 0.5))
    gate.set()
    assert reads.get(timeout=WAIT) == together


def test_iteration_speed_has_a_line_for_each_step_whatever_the_dispatch(start):
    files = Files()
    worker = start(Loss(), IterationSpeed(), files=files, estimator=Known(0.0))
    gate = held(worker)
    for first, numbers in ((1, [0.5]), (2, [0.5] * 4), (6, [0.5] * 2)):
        worker.put(steps_dispatched(first, *numbers))
    gate.set()
    worker.wait()
    speeds = [values["Iteration Speed"] for _, _, _, values, _ in files.calls]
    assert [len(column) for column in speeds] == [7]
    together = np.concatenate(speeds)  # one read: the time of each dispatch is unknown
    np.testing.assert_allclose(together, together[0], rtol=1e-6)


def test_a_host_metric_receives_steps_and_seconds_and_is_reset_after_a_split(start):
    class Recording(HostMetric):
        name, reported, resets = "Recording", [], 0

        def update(self, steps, seconds):
            self.reported.append((steps, seconds > 0))
            return 7.0

        def compute(self):
            return float(sum(steps for steps, _ in self.reported))

        def reset(self):
            Recording.resets += 1

    worker = start(Loss(), Recording())
    worker.put(steps_dispatched(1, 0.5, 0.5))
    worker.wait()
    worker.put(steps_dispatched(3, 0.5))
    worker.put(SplitFinished("train", 1, 3, None, {"Loss": jnp.float32(0.5)}))
    worker.wait()
    assert (Recording.reported, Recording.resets) == ([(2, True), (1, True)], 1)
    assert worker.history["train/Recording"] == [3.0]


def test_a_host_metric_receives_rows_and_weights(start):
    files, metrics = Files(), (Loss(), RowsPerSecond(), TokensPerSecond(), IterationSpeed())
    worker = start(*metrics, files=files, estimator=Known(0.0))
    gate = held(worker)
    worker.put(dataclasses.replace(steps_dispatched(1, 0.5, 0.5), rows=30))
    worker.put(dataclasses.replace(steps_dispatched(3, 0.5), rows=12))
    gate.set()
    worker.wait()
    (columns,) = [values for _, _, _, values, _ in files.calls]
    per_step = [columns[name][0] / columns["Iteration Speed"][0] for name in ("Rows per Second", "Tokens per Second")]
    np.testing.assert_allclose(per_step, [(30 + 12) / 3, (1 + 2 + 1) / 3], rtol=1e-6)  # weighted by the values' weights


SPEEDS = ("Iteration Speed", "Rows per Second", "Tokens per Second")
COMPILED_FIRST = [(0.0, 5.0, 5.0, 5.5), (5.0, 5.25, 0.0, 6.0)]  # since, dispatched, excluded, ended
COMPILED_MEANWHILE = [
    (0.0, 0.0, 0.0, 1.0),
    (0.0, 1.75, 1.75, 2.25),
]  # 0.75 s of it after the previous steps
WAITED_FOR_BATCHES = [(0.0, 0.0, 0.0, 0.5), (0.0, 3.0, 2.5, 3.5)]


@pytest.mark.parametrize(
    ("dispatches", "seconds", "together"),
    [
        (COMPILED_FIRST, 0.5 + 0.5, False),
        (COMPILED_FIRST, 0.5 + 0.5, True),
        (COMPILED_MEANWHILE, 1.0 + 0.5, False),
        (WAITED_FOR_BATCHES, 0.5 + 0.5, False),
        (WAITED_FOR_BATCHES, 0.5 + 0.5, True),
    ],
)
def test_speeds_leave_out_compiling_and_waiting_for_batches(start, monkeypatch, dispatches, seconds, together):
    """Each dispatch has two steps, 10 rows and 1 + 2 tokens."""
    now, read, listener = [0.0], step_reader.fetch, ListenerThread()

    def arrives(steps_dispatched):
        now[0] = next(
            ended for since, dispatched, _, ended in dispatches if dispatched == steps_dispatched[-1].time.dispatched
        )
        return read(steps_dispatched)

    monkeypatch.setattr(step_reader, "fetch", arrives)
    metrics = Loss(), IterationSpeed(), RowsPerSecond(), TokensPerSecond()
    worker = start(*metrics, listeners=[listener], now=lambda: now[0])
    gate = held(worker) if together else None
    for number, (since, dispatched, apart, _) in enumerate(dispatches):
        item = dataclasses.replace(
            steps_dispatched(1 + 2 * number, 0.5, 0.5), rows=10, time=DispatchTime(since, apart, dispatched)
        )
        worker.put(item)
        if gate is None:
            worker.wait()
    if gate is not None:
        gate.set()
    put_all(worker, SplitFinished("train", 1, 4, None, {"Loss": jnp.float32(0.5)}))
    speeds = [worker.history[f"train/{name}"][0] for name in SPEEDS]
    np.testing.assert_allclose(speeds, [4 / seconds, 20 / seconds, 6 / seconds], rtol=1e-6)
    assert worker.spent["train"] == pytest.approx(seconds)
    steps = [event for event in listener.events if isinstance(event, StepsEnded)]
    assert sum(event.seconds for event in steps) == dispatches[-1][3]  # the elapsed time, for progress bars


def test_step_times_during_waiting_are_the_time_of_their_values(start, monkeypatch):
    """The loop only waited for batches, so the time of computing the values is the only measurement."""
    now, read = [2.0], step_reader.fetch

    def arrives(steps_dispatched):
        now[0] += 0.25
        return read(steps_dispatched)

    monkeypatch.setattr(step_reader, "fetch", arrives)
    worker = start(Loss(), RowsPerSecond(), now=lambda: now[0])
    time = DispatchTime(since=2.0, overhead=9.0, dispatched=2.25)
    worker.put(dataclasses.replace(steps_dispatched(1, 0.5, 0.5), rows=10, time=time))
    put_all(worker, SplitFinished("train", 1, 2, None, {"Loss": jnp.float32(0.5)}))
    assert worker.history["train/Rows per Second"] == [10 / 0.25]


class Unknown(Loss):
    name, undefined = "Unknown", "there is nothing to know"


class OfSteps(Unknown):
    name, per_step, fields = "Of Steps", True, ()


@pytest.mark.parametrize("unknown", [Unknown, OfSteps])
def test_an_undefined_value_is_reported_once(start, unknown):
    reported = []
    worker = start(Loss(), unknown(), warn=reported.append)
    nan = {"Loss": jnp.float32(0.5), unknown.name: jnp.float32(jnp.nan)}
    for epoch, values in enumerate(({**nan, unknown.name: jnp.float32(1)}, {**nan, "Loss": jnp.float32(jnp.nan)}), 1):
        worker.put(SplitFinished("train", epoch, epoch, None, values))
    worker.wait()
    assert reported == []  # an undefined loss hides undefined metrics
    for split, epoch in (("train", 3), ("valid", 3), ("train", 4)):
        worker.put(SplitFinished(split, epoch, epoch, None, nan))
    worker.put(SplitFinished("custom", 4, 4, None, {"norm": np.float32(np.nan)}))
    worker.wait()
    assert reported == [
        f"train/{unknown.name} of epoch 3 is not defined (NaN), which is said once: there is nothing to know",
    ]


def test_an_undefined_value_is_not_reported_again_after_resuming(start):
    reported, history = [], History()
    history.record("valid", 1, 1, {"Loss": 0.5, "Unknown": float("nan")})
    history.record("valid", 1, 2, {"Loss": float("nan"), "Elsewhere": float("nan")})
    worker = start(Loss(), Unknown(), Elsewhere(), warn=reported.append, history=history)
    nan = jnp.float32(jnp.nan)
    put_all(worker, SplitFinished("valid", 2, 3, None, {"Loss": jnp.float32(0.5), "Unknown": nan, "Elsewhere": nan}))
    assert [text.split(" of ")[0] for text in reported] == ["valid/Elsewhere"]


class Elsewhere(Unknown):
    name, fields = "Elsewhere", ("predictions",)


def test_without_a_loss_undefined_metrics_are_reported(start):
    """Generated sequences, for example, have no loss."""
    reported = []
    worker = start(Loss(), Elsewhere(), warn=reported.append)
    put_all(
        worker, SplitFinished("valid", 1, 1, None, {"Loss": jnp.float32(jnp.nan), "Elsewhere": jnp.float32(jnp.nan)})
    )
    assert [text.split(" of ")[0] for text in reported] == ["valid/Elsewhere"]


def test_metrics_of_a_loss_that_is_not_reported_are_reported(start):
    reported = []
    worker = start(Loss(), Unknown(), warn=reported.append, unreported_losses=["valid"])
    nan = {"Loss": jnp.float32(jnp.nan), "Unknown": jnp.float32(jnp.nan)}
    put_all(worker, *(SplitFinished(split, 1, 1, None, nan) for split in ("train", "valid")))
    assert reported == [
        "valid/Unknown of epoch 1 is not defined (NaN), which is said once: it is made of the loss, which is not "
        "finite, or which the output does not have"
    ]


def test_text_metrics_are_text_and_have_no_column(start):
    class Words(Metric):
        name, numeric = "Words", False

        def init(self):
            return jnp.int32(0)

        update = merge = compute = None

        def text(self, value):
            return "-".join(map(str, value))

    Words.__abstractmethods__ = frozenset()
    files = Files()
    worker = start(Words(), Loss(), files=files)
    worker.put(steps_dispatched(1, 0.5))
    worker.put(SplitFinished("train", 1, 1, None, {"Loss": jnp.float32(0.5), "Words": jnp.arange(3)}))
    worker.wait()
    assert files.calls[0][3] == {"Loss": [0.5]}
    assert worker.history["train/Words"] == ["0-1-2"]


def test_collected_rows_are_joined_in_order_across_loops_tails_and_parts(start):
    """Two micro-batches per step: a loop of 2 steps (the second one short), a tail and a step of three parts."""
    rows = lambda *numbers: {"x": jnp.array(numbers, jnp.float32)}  # noqa: E731
    buffer = {"x": jnp.array([[[1, 2], [3, 4]], [[5, 6], [-1, -1]], [[-1, -1], [-1, -1]]], jnp.float32)}
    worker = start(Loss(), ResidentBatches())
    worker.put(steps_dispatched(1, 0.5, 0.5, batches=3, buffer=3, rows=(buffer,)))
    tail = {"x": jnp.array([[[7, 8], [-1, -1]]], jnp.float32)}
    worker.put(steps_dispatched(3, 0.5, batches=2, buffer=1, rows=(tail,), tail=(rows(9),)))
    worker.put(steps_dispatched(4, 0.5, batches=3, buffer=1, tail=[(rows(10),), (rows(11, 12),), (rows(13),)]))
    worker.put(SplitFinished("train", 1, 4, None, {"Loss": jnp.float32(0.5)}))
    worker.wait()
    assert worker.history["train/Rows"] == [float(sum(i * i for i in range(1, 14)))]
    worker.put(steps_dispatched(5, 0.5, batches=1, buffer=1, tail=[(rows(2),)]))
    worker.put(SplitFinished("train", 2, 5, None, {"Loss": jnp.float32(0.5)}))
    worker.wait()
    assert worker.history["train/Rows"][1:] == [2.0]  # each split starts without rows


def test_rows_of_several_shapes_are_refused(start):
    worker = start(Loss(), ResidentBatches())
    for first, length in ((1, 2), (2, 3)):
        worker.put(steps_dispatched(first, 0.5, buffer=1, tail=[({"x": jnp.ones((4, length))},)]))
    with raises_code("metric-row-shapes-differ", "[(2,), (3,)]", name="Rows", split="train"):
        put_all(worker, SplitFinished("train", 1, 2, None, {"Loss": jnp.float32(0.5)}))


def test_rows_of_several_shapes_are_padded_for_metrics_that_accept_padding(start):
    class Padded(ResidentBatches):
        pads_rows, pad_value = True, -2

        def compute(self, rows):
            assert rows["kept"].tolist() == [[True, True, False], [True, True, False], [True, True, True]]
            return float(rows["x"] @ np.array([1, 10, 100]) @ np.array([1, 2, 3]))

    worker = start(Loss(), Padded())
    for step, shape in ((1, (2, 2)), (2, (1, 3))):
        rows = {"x": jnp.ones(shape), "kept": jnp.ones(shape, bool)}
        worker.put(steps_dispatched(step, 0.5, buffer=1, tail=[(rows,)]))
    put_all(worker, SplitFinished("train", 1, 2, None, {"Loss": jnp.float32(0.5)}))
    assert worker.history["train/Rows"] == [(11 - 200) * 1 + (11 - 200) * 2 + 111 * 3]


@pytest.mark.parametrize("value", ["a table", np.arange(3)])
def test_a_value_of_another_type_is_an_error_that_names_the_metric(start, value):
    class Table(ResidentBatches):
        def compute(self, rows):
            return value

    worker = start(Loss(), Table())
    worker.put(steps_dispatched(1, 0.5, buffer=1, tail=[({"x": jnp.ones((1, 1))},)]))
    with raises_code("metric-value-not-a-number", repr(value), "numeric = False", "text(self, value)", name="Rows"):
        put_all(worker, SplitFinished("train", 1, 1, None, {"Loss": jnp.float32(0.5)}))


# -- errors ------------------------------------------------------------------------------------------------------------


def failing_writer(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device", "train/epoch-1/Loss.log")


@pytest.mark.parametrize("method", ["steps", "close_split", "journal"])
def test_an_error_of_the_files_is_raised_in_the_loop_with_its_traceback(start, method):
    files = Files()
    setattr(files, method, failing_writer)
    worker = start(files=files)
    with pytest.raises(OSError, match="No space left") as info:
        put_all(
            worker,
            steps_dispatched(1, 0.5),
            SplitFinished("train", 1, 1, None, {"Loss": jnp.float32(0.5)}),
            EpochFinished(1, 1),
        )
    assert info.value.errno == errno.ENOSPC
    assert "failing_writer" in [frame.name for frame in traceback.extract_tb(info.tb)]
    for again in (worker.check, worker.wait, lambda: worker.put(steps_dispatched(2, 0.5))):
        with pytest.raises(OSError, match="No space left"):
            again()


def test_a_full_disk_is_an_error_of_the_loop(start, tmp_path, monkeypatch):
    def full(descriptor, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    worker = start(files=RunFiles(tmp_path, lambda: 0.0))
    worker.put(steps_dispatched(1, 0.5))
    worker.wait()
    monkeypatch.setattr(os, "write", full)
    with raises_code("run-disk-full", "No space left on device", "Loss.log"):
        put_all(worker, SplitFinished("train", 1, 1, None, {"Loss": jnp.float32(0.5)}))


def test_after_an_error_nothing_more_is_delivered(start):
    files, listener, done = Files(), ListenerThread(), []
    files.steps = failing_writer
    worker = start(files=files, listeners=[listener])
    gate = threading.Event()
    worker.put(Callback(lambda: gate.wait(WAIT)))
    worker.put(steps_dispatched(1, 0.5))
    worker.put(Callback(lambda: done.append(1)))
    worker.put(Message(0.0, 20, "later"))
    gate.set()
    with pytest.raises(OSError, match="No space left"):
        worker.wait()
    worker.put_nowait(Callback(lambda: done.append(2)))
    worker.close()
    assert (done, listener.events, files.calls) == ([], [], [])
    with pytest.raises(OSError, match="No space left"):
        worker.check()


def test_errors_of_any_type_are_kept(start):
    def interrupted():
        raise KeyboardInterrupt

    worker = start()
    worker.put(Callback(interrupted))
    with pytest.raises(KeyboardInterrupt):
        worker.wait()


def test_a_failed_computation_is_an_error_of_the_loop(start):
    """Errors of the device are raised when its values are read, which only the reporter does."""
    deleted = values_of(0.5)
    deleted.table.delete()
    worker = start()
    with pytest.raises(RuntimeError, match="deleted"):
        put_all(worker, StepsDispatched("train", 1, 1, 1, 1, 1, 1, 1, deleted))


# -- queries -----------------------------------------------------------------------------------------------------------


def test_a_query_is_answered_in_order(start):
    worker, answer = start(), concurrent.futures.Future()
    gate = held(worker)
    worker.put(SplitFinished("train", 1, 1, None, {"Loss": jnp.float32(0.5)}))
    worker.put(Query(lambda: worker.history["train/Loss"].copy(), answer))
    worker.put(SplitFinished("train", 2, 2, None, {"Loss": jnp.float32(0.25)}))
    gate.set()
    assert answer.result(WAIT) == [0.5]


def test_a_cancelled_query_is_not_run(start):
    worker, answer, calls = start(), concurrent.futures.Future(), []
    answer.cancel()
    put_all(worker, Query(lambda: calls.append(1), answer))
    assert calls == []


@pytest.mark.parametrize("when", ["before", "in", "after"])
def test_a_reporter_that_fails_fails_its_queries(start, when):
    """A caller must not hang, even if it sends the query after the failure."""

    def fail():
        raise OSError("broken")

    worker, answer = start(), concurrent.futures.Future()
    query = Query(fail if when == "in" else lambda: 1, answer)
    if when == "before":
        gate = held(worker)
        worker.put(Callback(fail))
        worker.put(query)
        gate.set()
    elif when == "in":
        worker.put(query)
    else:
        with pytest.raises(OSError, match="broken"):
            put_all(worker, Callback(fail))
        worker.put_nowait(query)
    assert str(answer.exception(WAIT)) == "broken"
    with pytest.raises(OSError, match="broken"):
        worker.wait()


# -- bounds ------------------------------------------------------------------------------------------------------------


class Blocking(threading.Semaphore):
    """A semaphore that records when a caller has to wait."""

    def __init__(self, value):
        super().__init__(value)
        self.waiting = threading.Event()

    def acquire(self, blocking=True, timeout=None):
        if super().acquire(blocking=False):
            return True
        self.waiting.set()
        return super().acquire(blocking, timeout)


@pytest.fixture
def blocked(start, monkeypatch):
    """Return a reporter that is blocked by `gate`, and a thread that fills its queue."""
    spaces = []
    monkeypatch.setattr(
        reporter_module.threading, "Semaphore", lambda value: spaces.append(Blocking(value)) or spaces[-1]
    )
    worker, gate, entered, count, errors = start(), threading.Event(), threading.Event(), [], []

    def hold():
        entered.set()
        assert gate.wait(WAIT)

    def fill(call):
        try:
            for number in range(1000):
                worker.put(Callback(functools.partial(call, number)))
                count.append(number)
        except BaseException as error:
            errors.append(error)

    worker.put(Callback(hold))
    assert entered.wait(WAIT)
    return worker, gate, spaces[0], count, errors, lambda call: threading.Thread(target=fill, args=(call,), daemon=True)


def test_put_blocks_while_the_queue_is_full(blocked):
    worker, gate, space, count, errors, thread_of = blocked
    done = []
    thread = thread_of(done.append)
    thread.start()
    assert space.waiting.wait(WAIT)
    assert len(count) == 255  # the reporter holds one more
    gate.set()
    thread.join(WAIT)
    assert (thread.is_alive(), len(count), errors) == (False, 1000, [])
    worker.wait()
    assert len(done) == 1000


def test_a_blocked_put_raises_when_the_reporter_fails(blocked):
    _, gate, space, count, errors, thread_of = blocked

    def fail(number):
        raise OSError("broken")

    thread = thread_of(fail)
    thread.start()
    assert space.waiting.wait(WAIT)
    gate.set()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert [str(error) for error in errors] == ["broken"]
    assert len(count) < 1000


def test_put_nowait_never_blocks(blocked):
    worker, gate, space, _, _, thread_of = blocked
    done = []
    thread = thread_of(lambda number: None)
    thread.start()
    assert space.waiting.wait(WAIT)
    for number in range(1000):
        worker.put_nowait(Callback(lambda number=number: done.append(number)))
    gate.set()
    thread.join(WAIT)
    worker.wait()
    assert done == list(range(1000))


def flown(flight, landings, steps=200):
    """Return the maximum number in flight while a thread acquires slots for `steps`, and `landings` are released."""
    changed, counts, most = threading.Condition(), {"up": 0, "down": 0}, []

    def loop():
        for _ in range(steps):
            flight.acquire(landings)
            with changed:
                counts["up"] += 1
                most.append(counts["up"] - counts["down"])
                changed.notify()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    while counts["down"] < steps:
        with changed:
            assert changed.wait_for(lambda: counts["up"] > counts["down"], WAIT)
            counts["down"] += 1  # before the release, which may unblock the thread
        flight.release(1)
    thread.join(WAIT)
    assert not thread.is_alive()
    return max(most)


@pytest.mark.parametrize(
    ("seconds", "bound"), [(1.0, 2), (0.05, 2), (0.02, 5), (0.001, 64)], ids=["slow", "two fit", "five fit", "fast"]
)
def test_the_limiter_bounds_dispatches_and_seconds_in_flight(seconds, bound):
    """At most 64 dispatches, at most 0.1 s of work, and at least two dispatches may be in flight."""
    assert flown(InFlightLimiter(), seconds) <= bound


def test_the_limiter_allows_two_dispatches_before_any_measurement():
    flight, third = InFlightLimiter(), threading.Event()
    flight.acquire()
    flight.acquire()
    thread = threading.Thread(target=lambda: (flight.acquire(), third.set()), daemon=True)
    thread.start()
    assert flight.full
    assert not third.is_set()
    flight.release(1)
    assert third.wait(WAIT)
    assert flight.full


def test_the_limiter_allows_64_fast_dispatches():
    flight = InFlightLimiter()
    thread = threading.Thread(target=lambda: [flight.acquire(1e-5) for _ in range(64)], daemon=True)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_an_opened_limiter_never_blocks():
    flight = InFlightLimiter()
    thread = threading.Thread(target=lambda: [flight.acquire() for _ in range(1000)], daemon=True)
    thread.start()
    flight.open()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_a_failing_reporter_unblocks_the_loop(start):
    files = Files()
    files.steps = failing_writer
    worker = start(files=files)
    for number in (1, 2):
        worker.limiter.acquire()
        if number == 2:
            worker.put(steps_dispatched(1, 0.5))
    thread = threading.Thread(target=lambda: [worker.limiter.acquire() for _ in range(100)], daemon=True)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()
    with pytest.raises(OSError, match="No space left"):
        worker.wait()


# -- estimates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "steps"),
    [
        ([], 1),
        ([(10, 1.0)], 5),  # 0.1 s a step
        ([(1, 2.0)], 1),
        ([(1, 1.0), (10, 1.0)], 1),  # 0.55 s
        ([(1000, 1.0)] * 3, 500),
        ([(10, 0.0)], 500_000),
    ],
)
def test_the_pace_is_the_number_of_steps_per_half_second(measured, steps):
    pace = StepTimeEstimator()
    for count, seconds in measured:
        pace.measured("train", count, seconds)
    assert pace.steps("train") == steps


def test_steps_and_validation_batches_have_separate_estimates():
    """Short validation batches neither lengthen training dispatches nor allow more of them in flight."""
    pace = StepTimeEstimator()
    pace.measured("train", 10, 1.0)
    assert (pace.seconds("train"), pace.seconds("valid")) == (0.1, None)
    for _ in range(20):
        pace.measured("valid", 100, 0.1)
    assert (pace.steps("train"), pace.steps("valid")) == (5, pytest.approx(500, abs=1))
    flight = InFlightLimiter()
    for kind in ("train", "valid"):
        flight.acquire(pace.seconds(kind, 10))
    assert flight.full


def test_steps_and_validation_batches_are_read_separately(start, reads):
    worker = start(estimator=Known(0.0))
    gate = held(worker)
    for item in (
        steps_dispatched(1, 0.5),
        steps_dispatched(2, 0.5),
        steps_dispatched(1, 0.5, split="valid"),
        steps_dispatched(3, 0.5),
    ):
        worker.put(item)
    gate.set()
    worker.wait()
    assert [reads.get(timeout=WAIT) for _ in range(3)] == [2, 1, 1]


def test_steps_that_waited_for_a_compilation_count_only_at_first():
    compiled = [1]
    pace = StepTimeEstimator(compilations=lambda: compiled[0])
    steps = []
    for seconds, compilations in ((5.0, 2), (0.1, 0), (0.3, 0), (5.0, 1), (0.2, 0)):
        compiled[0] += compilations
        pace.measured("train", 1, seconds)
        steps.append(pace.steps("train"))
    assert steps == [1, 5, 2, 2, 2]  # steps of 5, 0.1, 0.2, 0.2 and 0.2 s


def test_the_reporter_measures_the_pace(start):
    estimator = StepTimeEstimator()
    worker = start(estimator=estimator)
    assert estimator.steps("train") == 1
    for first in range(1, 40):
        worker.put(steps_dispatched(first, 0.5))
        worker.wait()
    assert estimator.steps("train") > 1


@pytest.mark.parametrize(("estimator", "sizes"), [(StepTimeEstimator(), [1, 9]), (Known(0.0), [10])])
def test_queued_dispatches_are_read_at_once_except_for_the_first(start, reads, estimator, sizes):
    """The values of the first steps of a run do not wait for those of the second."""
    worker = start(estimator=estimator)
    gate = held(worker)
    for first in range(1, 11):
        worker.put(steps_dispatched(first, 0.5))
    gate.set()
    worker.wait()
    assert [reads.get(timeout=WAIT) for _ in sizes] == sizes


def test_several_listeners_receive_all_events(start):
    listeners = [ListenerThread(), ListenerThread()]
    worker = start(listeners=listeners)
    worker.put(Message(0.0, 20, "hello"))
    worker.wait()
    assert [[event.text for event in listener.events] for listener in listeners] == [["hello"]] * 2
    assert isinstance(Listener(), Listener)


def test_metrics_of_skipped_steps_are_not_reported(start):
    """The skipped steps themselves are reported; a validation in between changes nothing."""

    class Norm(Unknown):
        name, fields, per_step = "Norm", (), True

    reported = []
    worker = start(Loss(), Norm(), warn=reported.append)
    values = {"Loss": jnp.float32(0.5), "Norm": jnp.float32(jnp.nan)}
    step = steps_dispatched(1, 0.5)
    overflow = jnp.full((4, 1), -128, jnp.float32)
    table = jnp.concatenate([jnp.zeros((4, 3)), overflow], axis=1)  # two metrics, the weight and the non-finite mark
    worker.put(dataclasses.replace(step, values=StepOutputs(table, ())))
    put_all(worker, SplitFinished("valid", 1, 1, None, {"Loss": jnp.float32(0.5), "Norm": jnp.float32(1)}))
    put_all(worker, SplitFinished("train", 1, 1, None, values))
    assert reported == []
    put_all(worker, SplitFinished("train", 2, 2, None, values))
    assert len(reported) == 1


class Forgets(Loss):
    name = "Forgets"


def test_a_value_that_is_missing_is_reported_as_such(start):
    reported = []
    put_all(
        start(Loss(), Forgets(), warn=reported.append),
        SplitFinished("valid", 1, 1, None, {"Loss": jnp.float32(0.5), "Forgets": None}),
    )
    assert reported == [
        "valid/Forgets of epoch 1 is not defined (NaN), which is said once: its compute returned nothing (None)"
    ]


def test_a_validation_in_progress_is_not_in_the_states_of_metrics(start):
    """A run that stops within it repeats it."""
    worker = start(Loss(), StepsSeen())

    def states():
        answer = concurrent.futures.Future()
        put_all(worker, Query(lambda: worker.snapshot(in_validation=True, with_rows=False), answer))
        return {split: of_split["Steps Seen"]["seen"] for split, of_split in answer.result().host_metrics.items()}

    put_all(worker, steps_dispatched(1, 0.5, 0.5))
    assert states()["train"] == 2
    for number, before in enumerate((2, 6)):  # the splits share the metric
        put_all(worker, steps_dispatched(1, 0.5, 0.5, 0.5, 0.5, split="valid"))
        assert states()["valid"] == before, number
        put_all(worker, SplitFinished("valid", 1, 2, None, {"Loss": jnp.float32(0.5)}))
        assert states()["valid"] == before + 4, number
