"""The watchdog: says where a run stands when no step ends any more, and ends it where that is wished."""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

EXIT = 75  # what sysexits.h calls a temporary failure: who started the process may start it again
PATIENCE = 5.0  # seconds for a report: the log may lie on the very file system that hangs


class Watchdog:
    """Looks every so often whether a step ended since.

    When none did for `seconds`, it reports that once, and again only after a step has ended. With `stop`, it also calls
    `stop(reason)`, and ends the process when still no step ended after the same time again.

    Args:
      seconds: how long a step may take.
      ended: how many steps ended so far.
      report: called with what is wrong and with the stacks of all threads, from a thread of its own.
      stop: asks the run to end; `None`: it goes on.
      clock: seconds from any moment on.
      end: ends the process; it is called with the exit code.

    >>> now, steps, said = [0.0], [0], []
    >>> dog = Watchdog(60, lambda: steps[0], lambda text, stacks: said.append(text), clock=lambda: now[0])
    >>> for now[0], steps[0] in [(30, 1), (80, 1), (90, 1), (200, 1), (201, 2), (240, 2)]:
    ...     dog.look()
    >>> said
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
        """Begins to look, in a thread of its own; the time counts from now on."""
        self._since = self._clock()
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, if it was started."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(min(1.0, self._seconds / 10)):
            self.look()

    def look(self) -> None:
        """Looks once."""
        now, count = self._clock(), self._ended()
        if count != self._count:
            self._count, self._since, self._reported = count, now, False
            return
        text = f"no step ended for {self._seconds:g} s"
        if not self._reported and now - self._since >= self._seconds:
            self._reported, self._since = True, now
            _within(PATIENCE, lambda: self._report(text, stacks(self._thread.ident)))
            if self._stop is not None:
                self._stop(f"watchdog: {text}")
        elif self._reported and self._stop is not None and now - self._since >= self._seconds:
            self._end_process(f"{text}, and for as long after the run was asked to end: the process is ended")

    def _end_process(self, text: str) -> None:
        """Nothing is closed: whatever hangs would be waited for."""
        _within(PATIENCE, lambda: self._report(text, stacks(self._thread.ident)))
        _within(PATIENCE, lambda: print(f"learner: {text}", file=sys.stderr, flush=True))
        self._end(EXIT)


def stacks(*left_out: int | None) -> str:
    """The stacks of all threads by their names, the main thread first; without the one that asks, and `left_out`.

    >>> done, begun = threading.Event(), threading.Event()
    >>> def wait_for_it():
    ...     begun.set()
    ...     done.wait()
    >>> thread = threading.Thread(target=wait_for_it, name="waiting")
    >>> thread.start()
    >>> _ = begun.wait()
    >>> text = stacks()
    >>> done.set(); thread.join()
    >>> "thread waiting:" in text, "in wait_for_it" in text, "in <module>" in text
    (True, True, False)
    """
    frames, main = sys._current_frames(), threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    hidden = {threading.get_ident(), *left_out}
    shown = sorted((ident for ident in frames if ident not in hidden), key=lambda ident: ident != main)
    return "\n".join(
        f"thread {names.get(ident, 'without a name')}:\n{''.join(traceback.format_stack(frames[ident])).rstrip()}"
        for ident in shown
    )


def _within(seconds: float, do: Callable[[], None]) -> None:
    """Does something in a thread of its own, and waits so long for it at most."""

    def doing() -> None:
        with contextlib.suppress(Exception):  # a report that fails must not keep the watchdog from its work
            do()

    thread = threading.Thread(target=doing, name="learner-watchdog-report", daemon=True)
    thread.start()
    thread.join(seconds)
