"""Signals: the first SIGINT (Ctrl-C) or SIGTERM ends a run cleanly, a second one immediately. SIGUSR1 saves.

SIGHUP from a closed terminal acts like SIGTERM, unless `nohup` ignores it or the user's code handles it. An ignored
SIGINT, as of a background job in a shell's script, stays ignored: Ctrl-C is not for this process. An ignored SIGTERM
does not: a batch script that ignores it to survive the notice of a scheduler passes that on to the run, which would
then lose its progress.
"""

import contextlib
import gc
import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from learner.util.device_threads import end_process, exit_with

TERMINATED = 128 + signal.SIGTERM  # the exit code of a process that ends by SIGTERM
NAMES = {signal.SIGINT: "ctrl-c", signal.SIGTERM: "sigterm", signal.SIGHUP: "sighup"}
TERMINATING = ("sigterm", "sighup")
SECONDS_TO_STOP = 0.2
"""Seconds after which a forked process ends by a signal that the run has not got, too."""
Handler = Callable[[int, FrameType | None], Any]


@contextlib.contextmanager
def on_signals(stop: Callable[[str], None], save: Callable[[], None]) -> Iterator[None]:
    """Call `stop("ctrl-c")` at the first SIGINT, `stop("sigterm")` or `stop("sighup")` at the first SIGTERM or SIGHUP,
    `save()` at each SIGUSR1.

    After the first of these, SIGINT raises `KeyboardInterrupt`, and SIGTERM `SystemExit(143)`. An earlier handler is
    called after the new one, and restored at the end. Outside the main thread Python accepts no handlers, and it cannot
    restore one that was installed from C: there this does nothing.

    Handlers interrupt the main thread, so `stop` and `save` must not acquire a lock.

    Forked processes inherit the handlers. A signal to such a process alone, as by `Process.terminate`, ends it.
    """
    global _stops_at_hangup, _stopped_at
    owner, stopped_at = os.getpid(), _SharedTime()

    def handle_stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:
            for other, handler in previous.items():
                signal.signal(other, handler)
            _end_child(number, stopped_at)
            return
        stopped_at.set()
        # Before anything else: a second signal must end the process even if `stop` or an earlier handler hangs.
        for other in previous:
            if other == signal.SIGHUP and handlers[other] is handle_stop:
                signal.signal(other, signal.SIG_IGN)  # a shell and the kernel both send it when a terminal is closed
            elif handlers[other] is handle_stop:
                signal.signal(other, _end_at_once)
        stop(_name_of(number))
        _call(previous[number], number, frame)

    def handle_save(number: int, frame: FrameType | None) -> None:
        save()
        _call(previous[number], number, frame)

    handlers: dict[int, Handler] = dict.fromkeys(NAMES, handle_stop)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        del handlers[signal.SIGINT]
    at_hangup = signal.getsignal(signal.SIGHUP)
    if at_hangup is not signal.SIG_DFL and not _is_of_a_command(at_hangup):
        del handlers[signal.SIGHUP]
    handlers[signal.SIGUSR1] = handle_save
    previous = _replaceable(handlers)
    for number in previous:
        signal.signal(number, handlers[number])
    before = _stops_at_hangup, _stopped_at
    _stops_at_hangup, _stopped_at = signal.SIGHUP in previous, stopped_at
    try:
        yield
    finally:
        _stops_at_hangup, _stopped_at = before
        for number, handler in previous.items():
            signal.signal(number, handler)


class _SharedTime:
    """The time of the first signal to a run, which its forked processes can read."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8)

    def set(self) -> None:
        """Set it to now, unless it is set."""
        if not self.get():
            struct.pack_into("d", self._memory, 0, time.monotonic())

    def get(self) -> float:
        """Return the time by the clock of the machine, which all processes share; 0 if it is not set."""
        return float(struct.unpack_from("d", self._memory)[0])


def _end_child(number: int, stopped_at: _SharedTime) -> None:
    """Send the signal again to this forked process, to its earlier handler, unless the run got it at the same time:
    terminals and schedulers send it to all processes, and the run may need this one, such as a data worker, until it
    has stopped.
    """
    began = time.monotonic()

    def end() -> None:
        time.sleep(SECONDS_TO_STOP)
        if abs(stopped_at.get() - began) > SECONDS_TO_STOP:
            os.kill(os.getpid(), number)

    threading.Thread(target=end, name="learner-child", daemon=True).start()


class _Remembered:
    """A handler that ends the process by an exception, and the last signal that it got."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        if not _is_in_collection(frame):
            self.handler(number, frame)


def _is_in_collection(frame: FrameType | None) -> bool:
    """Return True in a callback of the garbage collector, whose exceptions Python prints and drops."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None and frame.f_code not in callbacks:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def dropped_signals() -> Iterator[Callable[[], None]]:
    """Yield a function that raises the exception of a signal in this block, or in one around it, if it did not end the
    block.

    Python prints and drops an exception raised in a callback of the garbage collector, and JAX has such a callback,
    which runs often while a step is traced: there, a signal raises none. The import of an extension module also drops
    it, or turns it into an `ImportError`. Without this function, such a Ctrl-C would be lost, and the run would start.
    """
    current = _ending_handlers()
    handlers = {
        number: handler if isinstance(handler, _Remembered) else _Remembered(handler)
        for number, handler in current.items()
    }

    def raise_dropped() -> None:
        for remembered in handlers.values():
            if remembered.number is not None:
                remembered.handler(remembered.number, None)

    for number, remembered in handlers.items():
        signal.signal(number, remembered)
    try:
        yield raise_dropped
    except Exception:
        raise_dropped()  # its exception may have become this error
        raise
    finally:
        for number, handler in current.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Raise the exception of a signal at the end of the block: raised while JAX's extension modules are imported, it
    aborts the process. A second signal ends the process at once.
    """
    current = _ending_handlers()
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if received:
            end_process(128 + signal.SIGINT if number == signal.SIGINT else TERMINATED)
        received.append(number)

    for number in current:
        signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in current.items():
            signal.signal(number, handler)
        if received:
            current[received[0]](received[0], None)


@contextlib.contextmanager
def first_signal(report: Callable[[str], None]) -> Iterator[None]:
    """Call `report("ctrl-c")`, `report("sigterm")` or `report("sighup")` from a thread at the first of these signals.

    Handlers must wait for the main thread, which may be compiling for minutes. But Python immediately writes the number
    of a signal to a file descriptor. Outside the main thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _listening
    read, write = os.pipe()
    # Python's handler in C writes here, and must never wait for the thread that reads.
    os.set_blocking(write, False)

    def wait() -> None:
        reported = False
        # No signal has the number 0: the end of the block writes it.
        while number := os.read(read, 1)[0]:
            if previous != -1:  # of an event loop
                with contextlib.suppress(OSError):
                    os.write(previous, bytes([number]))
            if number in NAMES and (number != signal.SIGHUP or _stops_at_hangup) and not reported:
                reported = True
                if _stopped_at is not None:
                    _stopped_at.set()  # the handler may run much later
                report(_name_of(number))

    previous, outer = -1, _listening
    thread = threading.Thread(target=wait, name="learner-signals", daemon=True)
    thread.start()
    try:  # around the change as well: a second signal after it must not leave it
        previous, _listening = signal.set_wakeup_fd(write, warn_on_full_buffer=False), True
        yield
    finally:
        _listening = outer
        # Before the pipe is closed: another file may get its descriptor, and Python would write signals into it.
        signal.set_wakeup_fd(previous)
        with contextlib.suppress(BlockingIOError):
            os.write(write, b"\0")
        thread.join()
        os.close(read)
        os.close(write)


_listening = False
_stops_at_hangup = False  # while a run handles SIGHUP
_stopped_at: _SharedTime | None = None  # of the active run


def _after_fork() -> None:
    """Stop a forked child from reporting its own signals to the run."""
    if _listening:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_after_fork)


@contextlib.contextmanager
def of_a_command() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end a command with `SystemExit(143)`, so that its files are closed, and ignore SIGUSR1. By
    default each would immediately kill the process.

    `on_signals` replaces these handlers during a run. Handlers of the user stay. Outside the main thread this does
    nothing.
    """
    handlers: dict[int, Handler] = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), _end_at_once)
    handlers[signal.SIGUSR1] = lambda number, frame: None
    default = [number for number, handler in _replaceable(handlers).items() if handler is signal.SIG_DFL]
    for number in default:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in default:
            signal.signal(number, signal.SIG_DFL)


def _replaceable(handlers: Iterable[int]) -> dict[int, Any]:
    """Return the current handlers that can be replaced and restored."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    current = {number: signal.getsignal(number) for number in handlers}
    return {number: handler for number, handler in current.items() if handler is not None}


def _name_of(number: int) -> str:
    return NAMES[signal.Signals(number)]


def _ending_handlers() -> dict[int, Handler]:
    """Return the current handlers that end the process by an exception."""
    return {
        number: handler
        for number, handler in _replaceable(NAMES).items()
        if handler in ENDING or isinstance(handler, _Remembered)
    }


def _call(handler: Any, number: int, frame: FrameType | None) -> None:
    # A default handler would end the process immediately, while the run is about to stop cleanly.
    if callable(handler) and handler not in ENDING and not isinstance(handler, _Remembered):
        handler(number, frame)


def _is_of_a_command(handler: Any) -> bool:
    return (handler.handler if isinstance(handler, _Remembered) else handler) is _end_at_once


def _end_at_once(number: int, frame: FrameType | None) -> None:
    if number != signal.SIGINT:
        exit_with(TERMINATED)
    raise KeyboardInterrupt


ENDING = (signal.default_int_handler, _end_at_once)  # handlers that end the process by an exception
