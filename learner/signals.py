"""Ctrl-C ends a run in order, once; a second one ends it at once."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def on_ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at the first SIGINT; the second raises `KeyboardInterrupt`. The handler before is put back.

    Outside of the main thread Python takes no handlers, and one that was installed from C it could not put back: there
    it does nothing.
    """
    previous = signal.getsignal(signal.SIGINT)
    if previous is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
