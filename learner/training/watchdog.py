"""A watchdog that reports the stacks of a run whose steps no longer end, and can end the run."""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

EXIT = 75  # a temporary failure in sysexits.h: the caller may restart the process
PATIENCE = 5.0  # seconds for a report: the log may be on the file system that hangs


class Watchdog:
    """Check at intervals that steps end.

    If no step ends for `seconds`, the watchdog reports once, and again only after a step has ended. With `stop`, it
    also calls `stop(reason)`, and ends the process if no step ends for another `seconds`.

    Args:
      seconds: the longest time that a step may take.
      ended: returns the number of steps that have ended.
      report: called with a message and the stacks of all threads, from a separate thread.
      stop: requests the run to end. None: the run continues.
      clock: returns seconds from any origin.
      end: ends the process; called with the exit code.

    >>> now, steps, messages = [0.0], [0], []
    >>> dog = Watchdog(60, lambda: steps[0], lambda text, stacks: messages.append(text), clock=lambda: now[0])
    >>> for now[0], steps[0] in [(30, 1), (80, 1), (90, 1), (200, 1), (201, 2), (240, 2)]:
    ...     dog.check()
    >>> messages
    ['no step ended for 60 s']
    """

    def __init__(
        self,
        seconds: float,
        ended: Callable[[], int],
        report: Callable[[str, str], None],
        stop: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        end: Callable[[int], object] = os._exit,
    ):
        self._seconds, self._ended, self._report = seconds, ended, report
        self._stop, self._clock, self._end = stop, clock, end
        self._count, self._since, self._reported = ended(), clock(), False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="learner-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread. The time counts from now on."""
        self._since = self._clock()
        self._thread.start()

    def close(self) -> None:
        """End the thread, if it was started."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._seconds / 10)):
            self.check()

    def check(self) -> None:
        """Check once."""
        now, count = self._clock(), self._ended()
        if count != self._count:
            self._count, self._since, self._reported = count, now, False
            return
        text = f"no step ended for {self._seconds:g} s"
        if not self._reported and now - self._since >= self._seconds:
            # The time for the run to end counts from here.
            self._reported, self._since = True, now
            # In another thread: the log may hang on the same disk that the run waits for.
            _within(PATIENCE, lambda: self._report(text, stacks(self._thread.ident)))
            if self._stop is not None:
                self._stop(f"watchdog: {text}")
        elif self._reported and self._stop is not None and now - self._since >= self._seconds:
            self._end_process(f"{text}, and for as long after the run was asked to end: the process is ended")

    def _end_process(self, text: str) -> None:
        """End the process without closing anything, as closing could hang, too."""
        _within(PATIENCE, lambda: self._report(text, stacks(self._thread.ident)))
        _within(PATIENCE, lambda: print(f"learner: {text}", file=sys.stderr, flush=True))
        self._end(EXIT)


def stacks(*excluded: int | None) -> str:
    """Return the stacks of all threads by name, the main thread first, without the current and excluded threads.

    >>> end, started = threading.Event(), threading.Event()
    >>> def wait_for_it():
    ...     started.set()
    ...     end.wait()
    >>> thread = threading.Thread(target=wait_for_it, name="waiting")
    >>> thread.start()
    >>> _ = started.wait()
    >>> text = stacks()
    >>> end.set(); thread.join()
    >>> "thread waiting:" in text, "in wait_for_it" in text, "in <module>" in text
    (True, True, False)
    """
    frames, main = sys._current_frames(), threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    hidden = {threading.get_ident(), *excluded}
    shown = sorted((ident for ident in frames if ident not in hidden), key=lambda ident: ident != main)
    return "\n".join(
        f"thread {names.get(ident, 'without a name')}:\n{''.join(traceback.format_stack(frames[ident])).rstrip()}"
        for ident in shown
    )


def _within(seconds: float, fn: Callable[[], None]) -> None:
    """Call a function in another thread, and wait for it at most some seconds."""

    def call() -> None:
        with contextlib.suppress(Exception):  # a failed report must not stop the watchdog
            fn()

    thread = threading.Thread(target=call, name="learner-watchdog-report", daemon=True)
    thread.start()
    thread.join(seconds)
