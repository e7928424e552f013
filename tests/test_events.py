"""Tests of listeners: each has a thread and a queue, and never blocks the sender of events."""

import dataclasses
import inspect
import math
import pathlib
import threading

import numpy as np
import pytest

from learner import events
from learner.events import Event, Listener, ListenerThread, Message, MetricInfo, RunFailed, SplitEnded, StepsEnded
from tests.support.codes import named_case

WAIT = 30  # seconds after which a missing event counts as a hang


def message(number):
    return Message(0.0, 20, str(number))


def step(number):
    ones = np.ones(1, np.float32)
    return StepsEnded(0.0, "train", 1, number, 1, number, None, number, {"Loss": ones}, ones, 0.1)


def field_of(event):
    """Return an event's distinguishing field."""
    return event.text if isinstance(event, Message) else str(event.step)


class Memory(Listener):
    """A listener that records events and the threads that delivered them."""

    def __init__(self):
        self.told, self.threads, self.closed = [], set(), 0

    def on_event(self, event):
        self.told.append(field_of(event))
        self.threads.add(threading.current_thread())

    def close(self):
        self.closed += 1
        self.threads.add(threading.current_thread())


class Blocked(Memory):
    """A listener that blocks at its first event until `gate` is set."""

    def __init__(self):
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()

    def on_event(self, event):
        self.entered.set()
        assert self.gate.wait(WAIT)
        super().on_event(event)


class Raising(Memory):
    """A listener that raises at every event from a given number."""

    def __init__(self, at=1, in_close=False):
        super().__init__()
        self.at, self.in_close = at, in_close

    def on_event(self, event):
        super().on_event(event)
        if len(self.told) >= self.at:
            raise ValueError("no such bar")

    def close(self):
        super().close()
        if self.in_close:
            raise RuntimeError("cannot close")


def texts(count):
    return [str(number) for number in range(count)]


def test_listener_gets_events_in_order_in_its_thread():
    listener, warnings = Memory(), []
    outlet = ListenerThread(listener, warnings.append)
    for number in range(500):
        outlet.put(message(number))
    outlet.close()
    assert (listener.told, listener.closed, warnings) == (texts(500), 1, [])
    (thread,) = listener.threads
    assert thread is not threading.current_thread()
    assert thread.name == "learner-Memory"
    assert not thread.is_alive()


def test_slow_listener_blocks_no_sender_and_warns_once():
    listener, warnings = Blocked(), []
    outlet = ListenerThread(listener, warnings.append, size=10)
    outlet.put(message("first"))
    assert listener.entered.wait(WAIT)
    for number in range(100):  # without the limit this would block forever
        outlet.put(step(number))
    listener.gate.set()
    outlet.close(WAIT)
    assert listener.told == ["first", *texts(10)]
    assert listener.closed == 1
    assert warnings == ["Blocked was too slow: 90 events were not shown to it"]


def test_slow_listener_gets_events_again_once_its_queue_has_space():
    listener, warnings = Blocked(), []
    outlet = ListenerThread(listener, warnings.append, size=2)
    outlet.put(message("first"))
    assert listener.entered.wait(WAIT)
    for number in range(5):
        outlet.put(step(number))
    listener.gate.set()
    caught_up = threading.Event()
    last = lambda event: caught_up.set() if field_of(event) == "1" else None  # noqa: E731
    listener.on_event = lambda event: (Memory.on_event(listener, event), last(event))
    assert caught_up.wait(WAIT)
    outlet.put(message("last"))
    outlet.close(WAIT)
    assert listener.told == ["first", "0", "1", "last"]
    assert warnings == ["Blocked was too slow: 3 events were not shown to it"]


def test_slow_listener_misses_steps_but_not_the_end():
    listener, warnings = Blocked(), []
    outlet = ListenerThread(listener, warnings.append, size=4)
    outlet.put(message("first"))
    assert listener.entered.wait(WAIT)
    others = [SplitEnded(0.0, "valid", 1, 70, {}, 0.1), events.Saved(0.0, 1, 71, pathlib.Path("x"), 0.1)]
    for event in (*map(step, range(50)), *others, step(60), message("warning"), RunFailed(0.0, 1, 72, "no")):
        outlet.put(event)
    listener.gate.set()
    outlet.close(WAIT)
    assert listener.told == ["first", *texts(4), "70", "71", "warning", "72"]
    assert warnings == ["Blocked was too slow: 47 events were not shown to it"]


def test_a_listener_that_hangs_for_long_does_not_fill_the_memory():
    listener, warnings = Blocked(), []
    outlet = ListenerThread(listener, warnings.append, size=2)
    outlet.put(message("first"))
    assert listener.entered.wait(WAIT)
    for number in range(200):
        outlet.put(message(number))
    listener.gate.set()
    outlet.close(WAIT)
    assert listener.told == ["first", *texts(2 * 64)]
    assert warnings == ["Blocked was too slow: 72 events were not shown to it"]


@pytest.mark.parametrize("at", [1, 3])
def test_a_listener_that_raises_is_detached_with_one_warning_and_still_closed(at):
    listener, warnings = Raising(at), []
    outlet = ListenerThread(listener, warnings.append)
    for number in range(50):
        outlet.put(message(number))
    outlet.close()
    assert listener.told == texts(at)
    assert listener.closed == 1
    (warning,) = warnings
    assert warning.startswith(
        f"Raising failed and is detached; training continues: ValueError('no such bar') ({__file__}"
    )


def test_warning_has_the_failing_line_and_log_has_the_traceback():
    class Told(Raising):
        secrets = ("such bar",)

    warnings, log = [], []
    outlet = ListenerThread(Told(), warnings.append, log.append)
    outlet.put(message(0))
    outlet.close()
    line = inspect.getsourcelines(Raising.on_event)[1] + 3
    assert warnings == [
        f"Told failed and is detached; training continues: ValueError('no ***') ({__file__}, line {line})"
    ]
    (text,) = log
    assert text.startswith("the traceback:\nTraceback (most recent call last):")
    assert f'File "{__file__}", line {line}, in on_event' in text
    assert text.endswith("ValueError: no ***")


def test_detached_listener_warns_once():
    listener, warnings, warned = Raising(), [], threading.Event()
    outlet = ListenerThread(listener, lambda text: (warnings.append(text), warned.set()), size=2)
    outlet.put(message(0))
    assert warned.wait(WAIT)
    for number in range(1000):
        outlet.put(message(number))
    outlet.close()
    assert listener.told == ["0"]
    assert len(warnings) == 1


@pytest.mark.parametrize("fails_before", [True, False])
def test_listener_that_fails_to_close_warns_once(fails_before):
    listener, warnings = Raising(1 if fails_before else 99, in_close=True), []
    outlet = ListenerThread(listener, warnings.append)
    outlet.put(message(0))
    outlet.close()
    error = "ValueError('no such bar')" if fails_before else "RuntimeError('cannot close')"
    (warning,) = warnings
    assert warning.startswith(f"Raising failed and is detached; training continues: {error} (")


@pytest.mark.parametrize("seconds", [WAIT, math.inf])
def test_long_wait_names_the_listener(monkeypatch, seconds):
    monkeypatch.setattr(events, "QUIET_SECONDS", 0.01)
    listener, warnings = Blocked(), []
    outlet = ListenerThread(listener, lambda text: (warnings.append(text), listener.gate.set()))
    outlet.put(message("first"))
    assert listener.entered.wait(WAIT)
    outlet.close(seconds)
    assert warnings == [f"waiting for Blocked, for {seconds - 0.01:.0f} s at most"]
    assert listener.told == ["first"]


@pytest.mark.parametrize("queued", [0, 2, 150], ids=["nothing queued", "full", "overfull"])
def test_hanging_listener_is_abandoned(queued):
    listener, warnings = Blocked(), []
    outlet = ListenerThread(listener, warnings.append, size=2)
    outlet.put(message("first"))
    assert listener.entered.wait(WAIT)
    for number in range(queued):
        outlet.put(message(number))
    thread = threading.Thread(target=outlet.close, args=(0.05,), daemon=True)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert warnings[0] == "Blocked hangs and was left behind"
    listener.gate.set()
    outlet._thread.join(WAIT)
    assert not outlet._thread.is_alive(), "it ends when it comes back"


def test_listeners_close_in_parallel():
    blocked, memory = Blocked(), Memory()
    outlets = [ListenerThread(blocked, pytest.fail), ListenerThread(memory, pytest.fail)]
    for number in range(20):
        for outlet in outlets:
            outlet.put(message(number))
    outlets[1].close(WAIT)
    assert memory.told == texts(20)
    assert blocked.told == []
    blocked.gate.set()
    outlets[0].close(WAIT)
    assert blocked.told == texts(20)


def test_put_after_close_does_nothing():
    listener = Memory()
    outlet = ListenerThread(listener, pytest.fail)
    outlet.close()
    outlet.put(message(0))
    assert listener.told == []


# -- the events themselves ---------------------------------------------------------------------------------------------

EVENTS = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]


def test_events_are_immutable_and_have_a_time():
    for kind in EVENTS:
        with named_case(kind):
            fields = [field.name for field in dataclasses.fields(kind)]
            assert fields[0] == "time"
            event = kind(**dict.fromkeys(fields, 1))
            with pytest.raises(dataclasses.FrozenInstanceError):
                event.time = 2


def test_a_metrics_key_is_its_split_and_name():
    assert MetricInfo("valid-ood", "Top-5 Accuracy").key == "valid-ood/Top-5 Accuracy"


def test_the_base_listener_takes_every_event_and_closes():
    listener = Listener()
    listener.on_event(events.Saved(0.0, 1, 2, pathlib.Path("x"), 0.1))
    listener.close()


def test_ending_does_not_wait_and_what_is_queued_is_delivered():
    listener, warnings = Blocked(), []
    outlet = ListenerThread(listener, warnings.append, size=3)
    outlet.put(message("first"))
    assert listener.entered.wait(WAIT)
    for number in range(3):  # the queue is full
        outlet.put(step(number))
    outlet.end()
    listener.gate.set()
    outlet.close(WAIT)
    assert (listener.told, listener.closed, warnings) == (["first", *texts(3)], 1, [])
