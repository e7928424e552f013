"""Tests of SIGINT, SIGTERM and SIGUSR1: the handlers alone, and during training."""

import asyncio
import contextlib
import gc
import os
import signal
import struct
import threading
import time

import optax
import pytest

from learner.training import signals
from learner.training.feed.prefetch import Prefetcher
from learner.training.signals import deferred_signals, dropped_signals, first_signal, of_a_command, on_signals
from tests.support.codes import raises_code
from tests.support.runs import (
    STEPS,
    batches,
    build_line,
    journal_of,
    line,
    line_step,
    logs_of,
    quiet,
    saved_steps,
    shuffled,
)

pytestmark = pytest.mark.usefixtures("compiled_once")

INT, TERM, HUP, USR1 = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1
NAMES = {INT: "ctrl-c", TERM: "sigterm"}


@pytest.fixture(autouse=True)
def handler():
    """Install handlers that record signals; they must be called, and be restored afterwards."""
    received = []
    before = {number: signal.signal(number, lambda n, _: received.append(n)) for number in (INT, TERM, USR1)}
    yield received
    for number, previous in before.items():
        signal.signal(number, previous)


def send(number=INT):
    os.kill(os.getpid(), number)


class Reports(list):
    """Reports of the signal thread, with an event for waiting."""

    def __init__(self):
        self.new = threading.Event()

    def report(self, name):
        self.append(name)
        self.new.set()


@pytest.mark.parametrize("number", NAMES)
def test_the_first_signal_is_reported_before_its_handler_runs(number):
    """The main thread is blocked, as during a compilation."""
    reports = Reports()
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with first_signal(reports.report), on_signals(lambda name: None, pytest.fail):
        waiting = signal.signal(number, lambda *_: reports.new.wait(60))  # returns once the signal is reported
        send(number)
        signal.signal(number, waiting)
        assert reports == [NAMES[number]]
    assert signal.set_wakeup_fd(before) == before


@contextlib.contextmanager
def interrupted_collection():
    """Collect garbage while an interrupt arrives in a callback, as may happen in JAX's callback."""
    send_once = iter([send])
    callback = lambda phase, info: next(send_once, lambda: None)()  # noqa: E731
    gc.callbacks.append(callback)
    try:
        gc.collect()
        yield
    finally:
        gc.callbacks.remove(callback)


def test_an_interrupt_that_python_drops_is_raised_later():
    signal.signal(INT, signal.default_int_handler)
    with dropped_signals() as raise_dropped:
        raise_dropped()
        with interrupted_collection(), pytest.raises(KeyboardInterrupt):
            raise_dropped()
    assert signal.getsignal(INT) is signal.default_int_handler


def test_an_earlier_dropped_interrupt_is_raised_by_an_inner_block():
    signal.signal(INT, signal.default_int_handler)
    with dropped_signals():
        with interrupted_collection(), dropped_signals() as raise_dropped, pytest.raises(KeyboardInterrupt):
            raise_dropped()
        assert signal.getsignal(INT) is not signal.default_int_handler
    assert signal.getsignal(INT) is signal.default_int_handler


@pytest.mark.usefixtures("no_handlers")
@pytest.mark.parametrize(("number", "error"), [(INT, KeyboardInterrupt), (TERM, SystemExit)])
def test_a_deferred_signal_is_raised_after_the_block(number, error):
    signal.signal(INT, signal.default_int_handler)
    reached = []

    def interrupted():
        with dropped_signals(), deferred_signals():
            send(number)
            reached.append("end of the block")

    with of_a_command():
        before = signal.getsignal(number)
        with pytest.raises(error):
            interrupted()
        assert signal.getsignal(number) is before
    assert reached == ["end of the block"]


@pytest.mark.usefixtures("no_handlers")
@pytest.mark.parametrize(("number", "code"), [(INT, 130), (TERM, 143)])
def test_a_second_signal_during_a_deferral_ends_the_process(monkeypatch, number, code):
    signal.signal(INT, signal.default_int_handler)
    codes = []
    monkeypatch.setattr(signals, "end_process", codes.append)

    def twice():
        with deferred_signals():
            send(TERM)
            send(number)

    with of_a_command(), pytest.raises(SystemExit):
        twice()
    assert codes == [code]


def test_an_interrupt_that_became_an_error_is_raised():
    signal.signal(INT, signal.default_int_handler)

    def fail_to_import():
        try:
            send()
        except KeyboardInterrupt as error:
            raise ImportError from error

    with pytest.raises(KeyboardInterrupt), dropped_signals():
        fail_to_import()


def test_an_interrupt_that_python_drops_while_a_step_is_traced_ends_fit(tmp_path):
    signal.signal(INT, signal.default_int_handler)

    def step(model, batch):
        with interrupted_collection():
            return line_step(model, batch)

    with pytest.raises(KeyboardInterrupt):
        quiet(tmp_path / "run").build(line(), optax.sgd, 0.1, train_step=step).fit(batches())
    assert not (tmp_path / "run" / "journal.jsonl").exists()


def test_no_signal_and_other_signals_are_not_reported():
    reports = Reports()
    with first_signal(reports.report), on_signals(pytest.fail, lambda: None):
        send(USR1)
    assert reports == []


def test_an_event_loop_receives_its_signals():
    async def wait_for_signal():
        arrived = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(USR1, arrived.set)
        with first_signal(pytest.fail):
            send(USR1)
            await asyncio.wait_for(arrived.wait(), 60)

    asyncio.run(wait_for_signal())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_a_signal_to_a_forked_process_is_not_reported():
    reports = Reports()
    with first_signal(reports.report):
        with first_signal(pytest.fail):
            pass
        child = os.fork()
        if child == 0:
            try:
                signal.signal(TERM, lambda *_: None)
                send(TERM)
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert reports == []


@pytest.mark.parametrize("number", NAMES)
def test_the_first_signal_requests_a_stop(handler, number):
    requests = []
    with on_signals(requests.append, pytest.fail):
        send(number)
        assert (requests, handler) == ([NAMES[number]], [number])
    send(number)
    assert (requests, handler) == ([NAMES[number]], [number, number])


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize(("second", "error"), [(INT, KeyboardInterrupt), (TERM, SystemExit)])
def test_the_second_signal_ends_immediately(handler, first, second, error):
    requests = []

    def twice():
        send(first)
        send(second)

    with pytest.raises(error) as raised, on_signals(requests.append, pytest.fail):
        twice()
    assert getattr(raised.value, "code", 143) == 143
    send(first)
    assert (requests, handler) == ([NAMES[first]], [first, first])


def test_usr1_requests_a_save_each_time(handler):
    requests = []
    with on_signals(pytest.fail, lambda: requests.append("save")):
        send(USR1)
        send(USR1)
    assert (requests, handler) == (["save"] * 2, [USR1] * 2)


@pytest.mark.parametrize("number", NAMES)
def test_the_handler_is_restored_after_an_error(handler, number):
    with pytest.raises(ZeroDivisionError), on_signals(pytest.fail, pytest.fail):
        raise ZeroDivisionError
    send(number)
    assert handler == [number]


@pytest.mark.parametrize(
    ("number", "default"),
    [(INT, signal.SIG_DFL), (INT, signal.default_int_handler), (TERM, signal.SIG_IGN), (TERM, signal.SIG_DFL)],
)
def test_any_handler_is_restored(number, default):
    signal.signal(number, default)
    requests = []
    with on_signals(requests.append, pytest.fail):
        assert signal.getsignal(number) is not default
        send(number)
    assert signal.getsignal(number) is default
    assert requests == [NAMES[number]]


def test_an_ignored_interrupt_stays_ignored():
    """A shell starts background jobs of a script this way. SIGTERM still stops the run."""
    signal.signal(INT, signal.SIG_IGN)
    requests = []
    with on_signals(requests.append, pytest.fail):
        send(INT)
        send(INT)
        assert requests == []
        send(TERM)
        send(INT)
        assert signal.getsignal(INT) is signal.SIG_IGN
    assert (requests, signal.getsignal(INT)) == (["sigterm"], signal.SIG_IGN)


def test_a_handler_unknown_to_python_is_kept(monkeypatch):
    """Python cannot restore a handler installed from C, so it must not be replaced."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    before = signal.signal(INT, signal.SIG_IGN)
    with on_signals(pytest.fail, pytest.fail):
        pass
    assert signal.signal(INT, before) is signal.SIG_IGN


def test_other_threads_install_no_handlers(handler):
    inside = []

    def work():
        with on_signals(pytest.fail, pytest.fail):
            inside.append(signal.getsignal(INT))

    before = signal.getsignal(INT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]


@pytest.fixture
def no_handlers():
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (TERM, HUP, USR1)}
    yield
    for number, previous in before.items():
        signal.signal(number, previous)


@pytest.mark.usefixtures("no_handlers")
@pytest.mark.parametrize("number", [TERM, HUP])
def test_a_command_exits_with_143(number):
    with pytest.raises(SystemExit) as ended, of_a_command():
        send(number)
    assert ended.value.code == 143
    assert [signal.getsignal(number) for number in (TERM, HUP, USR1)] == [signal.SIG_DFL] * 3


@pytest.mark.usefixtures("no_handlers")
def test_a_command_without_a_run_has_nothing_to_save():
    requests = []
    with of_a_command():
        send(USR1)
        with on_signals(pytest.fail, lambda: requests.append("save")):
            send(USR1)
        send(USR1)
    assert requests == ["save"]


@pytest.mark.usefixtures("no_handlers")
@pytest.mark.parametrize("number", [TERM, HUP])
def test_a_run_inside_a_command_is_stopped_in_order_first(number):
    requests = []
    with of_a_command(), dropped_signals():
        with on_signals(requests.append, pytest.fail):
            send(number)
            assert requests == [signal.Signals(number).name.lower()]
        with pytest.raises(SystemExit):
            send(number)
    assert len(requests) == 1


def test_a_command_keeps_an_existing_handler(handler):
    before = signal.getsignal(TERM)
    with of_a_command():
        assert signal.getsignal(TERM) is before
        send(TERM)
        send(USR1)
    assert handler == [TERM, USR1]


@pytest.mark.usefixtures("no_handlers")
def test_a_command_in_another_thread_installs_no_handler():
    inside = []

    def work():
        with of_a_command():
            inside.append(signal.getsignal(TERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [signal.SIG_DFL]


# -- during training --------------------------------------------------------------------------------------------------


def at_step(step, send):
    def hook(info, model):
        if info.step == step:
            send()

    return hook


@pytest.mark.full
def test_sigterm_can_return_the_result(tmp_path, handler):
    builder = quiet(tmp_path / "run").num_epochs(5).with_file_checkpointer().on_sigterm("return")
    result = build_line(builder.every(steps=1, fn=at_step(STEPS + 2, lambda: send(TERM)))).fit(shuffled())
    assert (result.stopped_by, result.summary["steps"]) == ("sigterm", STEPS + 2)
    assert saved_steps(tmp_path / "run") == [STEPS, STEPS + 2]
    assert handler == [TERM]


def test_sigterm_ends_the_program_after_the_save(tmp_path, handler):
    builder = quiet(tmp_path / "run").num_epochs(5).with_file_checkpointer()
    learner = build_line(builder.every(steps=1, fn=at_step(STEPS + 2, lambda: send(TERM))))
    with pytest.raises(SystemExit) as ended:
        learner.fit(shuffled())
    assert ended.value.code == 143
    assert saved_steps(tmp_path / "run") == [STEPS, STEPS + 2]
    assert journal_of(tmp_path / "run")[-1]["stopped_by"] == "sigterm"


def test_a_closed_terminal_is_recorded_as_sighup(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(5).with_file_checkpointer()
    learner = build_line(builder.every(steps=1, fn=at_step(STEPS + 2, lambda: send(HUP))))
    earlier = signal.signal(HUP, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit) as ended:
            learner.fit(shuffled())
    finally:
        signal.signal(HUP, earlier)
    assert ended.value.code == 143
    assert saved_steps(tmp_path / "run") == [STEPS, STEPS + 2]
    assert journal_of(tmp_path / "run")[-1]["stopped_by"] == "sighup"


def test_unknown_values_of_on_sigterm_are_refused(tmp_path):
    with raises_code("builder-choice-unknown", "'exit'", "'return'", value="die"):
        quiet(tmp_path / "run").on_sigterm("die")


@pytest.mark.full
def test_usr1_saves_and_continues(tmp_path):
    def build(name):
        return quiet(tmp_path / name).num_epochs(2).with_file_checkpointer(keep_last=9)

    result = build_line(build("requests").every(steps=1, fn=at_step(STEPS + 2, lambda: send(USR1)))).fit(shuffled())
    assert saved_steps(tmp_path / "requests") == [STEPS, STEPS + 2, 2 * STEPS]
    plain = build_line(build("plain")).fit(shuffled())
    assert (result.stopped_by, result.history.to_json()) == ("num_epochs", plain.history.to_json())
    assert logs_of(tmp_path / "requests") == logs_of(tmp_path / "plain")


@pytest.mark.parametrize("number", [INT, pytest.param(TERM, marks=pytest.mark.full)])
def test_a_signal_does_not_wait_for_hanging_data(tmp_path, monkeypatch, number):
    """The loader hangs inside an epoch; the run ends and saves at its current step."""
    given_up, close = threading.Event(), Prefetcher.close

    def loader():
        yield from batches()[:3]
        send(number)
        assert given_up.wait(60)

    monkeypatch.setattr(Prefetcher, "close", lambda ahead: (given_up.set(), close(ahead)))
    builder = quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer().on_sigterm("return")
    result = build_line(builder).fit(loader)
    assert result.stopped_by == NAMES[number]
    assert saved_steps(tmp_path / "run") == [result.summary["steps"]]
    assert result.summary["steps"] <= 2  # the third batch is passed on only when the fourth arrives or the epoch ends


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN, lambda *_: None])
def test_a_closed_terminal_stops_unless_it_has_a_handler(before):
    """`nohup` ignores SIGHUP. It may arrive twice, from the shell and from the kernel; the second one has no effect."""
    requests, reports, earlier = [], [], signal.signal(HUP, before)
    try:
        with on_signals(requests.append, pytest.fail), first_signal(reports.append):  # nested as in a run
            send(HUP)
            send(HUP)
            assert signal.getsignal(HUP) is (signal.SIG_IGN if before is signal.SIG_DFL else before)
            stops = ["sighup"] if before is signal.SIG_DFL else []
            assert requests == stops
            if stops:
                with pytest.raises(SystemExit) as raised:
                    send(TERM)
                assert raised.value.code == 143
        assert reports == stops
        assert signal.getsignal(HUP) is before
    finally:
        signal.signal(HUP, earlier)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
@pytest.mark.parametrize(
    ("run_gets_it", "code"), [("never", -TERM), ("at the same time", 7), ("a minute before", -TERM)]
)
def test_a_signal_ends_a_forked_process_unless_the_run_gets_it_too(run_gets_it, code):
    """`Process.terminate()` of a process that a data source has forked; a scheduler's signal to all processes."""
    signal.signal(TERM, signal.SIG_DFL)
    (go, begin), (sent, done) = os.pipe(), os.pipe()
    with on_signals(lambda name: None, lambda: None):
        child = os.fork()
        if child == 0:
            try:
                os.read(go, 1)
                send(TERM)
                os.write(done, b"1")
                (waiting,) = (thread for thread in threading.enumerate() if thread.name == "learner-child")
                waiting.join(30)
            finally:
                os._exit(7)
        if run_gets_it == "a minute before":
            send(TERM)
            struct.pack_into("d", signals._stopped_at._memory, 0, time.monotonic() - 60)
        os.write(begin, b"1")
        os.read(sent, 1)
        if run_gets_it == "at the same time":
            send(TERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    for descriptor in (go, begin, sent, done):
        os.close(descriptor)
