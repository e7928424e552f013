"""Signals: SIGINT (Ctrl-C) and SIGTERM end a run in order, once; a second one ends it at once. SIGUSR1 saves."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

TERMINATED = 128 + signal.SIGTERM  # the exit code of a process that ends by SIGTERM
NAMES = {signal.SIGINT: "ctrl-c", signal.SIGTERM: "sigterm"}
Handler = Callable[[int, FrameType | None], Any]


@contextlib.contextmanager
def on_signals(stop: Callable[[str], None], save: Callable[[], None]) -> Iterator[None]:
    """Calls `stop("ctrl-c")` at the first SIGINT, `stop("sigterm")` at the first SIGTERM, `save()` at each SIGUSR1.

    After the first of SIGINT and SIGTERM, SIGINT raises `KeyboardInterrupt` and SIGTERM `SystemExit(143)`. A handler of
    somebody else's is called after ours, and is put back at the end. Outside of the main thread Python takes no
    handlers, and one that was installed from C it could not put back: there it does nothing.
    """

    def asked_to_stop(number: int, frame: FrameType | None) -> None:
        for other in before:
            if other in NAMES:
                signal.signal(other, _ends_at_once)
        stop(NAMES[signal.Signals(number)])
        _call(before[number], number, frame)

    def asked_to_save(number: int, frame: FrameType | None) -> None:
        save()
        _call(before[number], number, frame)

    ours: dict[int, Handler] = dict.fromkeys(NAMES, asked_to_stop)
    if hasattr(signal, "SIGUSR1"):
        ours[signal.SIGUSR1] = asked_to_save
    before = _previous(ours)
    for number in before:
        signal.signal(number, ours[number])
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def of_a_command() -> Iterator[None]:
    """Around all of a command, where a signal would kill the process at once: SIGTERM ends it by `SystemExit(143)`, so
    that what is open is closed, and SIGUSR1 does nothing.

    `on_signals` takes over for as long as there is a run to save. Handlers of somebody else's stay, and outside of the
    main thread it does nothing.
    """
    ours: dict[int, Handler] = {signal.SIGTERM: _ends_at_once}
    if hasattr(signal, "SIGUSR1"):
        ours[signal.SIGUSR1] = lambda number, frame: None
    taken = [number for number, handler in _previous(ours).items() if handler is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, ours[number])
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _previous(ours: Mapping[int, Handler]) -> dict[int, Any]:
    """The handlers that can be replaced and put back."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in ours}
    return {number: handler for number, handler in found.items() if handler is not None}


def _call(handler: Any, number: int, frame: FrameType | None) -> None:
    if callable(handler) and handler not in (signal.default_int_handler, _ends_at_once):
        handler(number, frame)


def _ends_at_once(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGTERM:
        sys.exit(TERMINATED)
    raise KeyboardInterrupt
