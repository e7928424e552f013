"""The stages of a run before its first step, as one line that grows."""

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from learner.util.text import duration

_line: "StageLine | None" = None


class StageLine:
    """A line that names each stage when it begins, and its duration when it ends.

    Args:
      stream: the output.
      start: the beginning of the line.
      clock: a function that returns seconds since any point in time.
      width: the width of the terminal, in characters; a stage that does not fit begins another line. 0: one line for
        each stage.

    >>> import io
    >>> seconds, stream = iter([0.0, 1.25, 2.0]), io.StringIO()
    >>> line = StageLine(stream, "learner: ", lambda: next(seconds), 80)
    >>> line.enter("importing JAX"), line.enter("reading the data"), line.end()
    (None, None, None)
    >>> stream.getvalue()
    'learner: importing JAX 1.2 s, reading the data 0.8 s\\n'
    """

    def __init__(self, stream: TextIO, start: str, clock: Callable[[], float], width: int):
        self._stream, self._start, self._clock, self._width = stream, start, clock, width
        self._column, self._began, self._failed = 0, 0.0, False
        self._lock = threading.Lock()  # a renderer's thread ends the line

    def enter(self, stage: str) -> None:
        """End the current stage, and begin another one."""
        with self._lock:
            now = self._clock()
            ended = f" {duration(now - self._began)}{',' if self._width else ''}" if self._column else ""
            text = f" {stage}" if self._column else f"{self._start}{stage}"
            if self._column and self._column + len(ended + text) + len(" 99.9 s,") > self._width:
                ended, text, self._column = f"{ended}\n", f"  {stage}", -len(ended) - 1
            self._column += len(ended + text)
            self._start, self._began = "  ", now
            self._write(ended + text)

    def end(self) -> None:
        """End the current stage and the line, if any."""
        with self._lock:
            if self._column:
                self._column = 0
                self._write(f" {duration(self._clock() - self._began)}\n")

    def _write(self, text: str) -> None:
        if self._failed:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # a run continues without its output, and its renderer reports that
            self._failed = True


@contextlib.contextmanager
def stage_line(
    stream: TextIO | None,
    start: str = "",
    clock: Callable[[], float] = time.monotonic,
    *,
    in_pipes: bool = False,
) -> Iterator[StageLine | None]:
    """Show the stages of the block on a terminal, unless they are already shown. Yield the line, or None.

    Args:
      stream: the output.
      start: the beginning of the line.
      clock: a function that returns seconds since any point in time.
      in_pipes: also write to files and pipes, one line for each stage.
    """
    global _line
    is_terminal = stream is not None and stream.isatty()
    if _line is not None or stream is None or not (is_terminal or in_pipes):
        yield None
        return
    _line = line = StageLine(stream, start, clock, shutil.get_terminal_size().columns if is_terminal else 0)
    try:
        yield line
    finally:
        _line = None
        line.end()


def enter_stage(stage: str) -> None:
    """Show that a stage begins."""
    if _line is not None:
        _line.enter(stage)


def end_stages() -> None:
    """End the line, if any, before other output is written."""
    if _line is not None:
        _line.end()


def note(text: str) -> None:
    """Print a line of the command about its own work to standard error."""
    end_stages()
    print(f"learner: {text}", file=sys.stderr)


def close_stages() -> None:
    """End the line permanently: the run has begun, and nested runs show no stages here."""
    global _line
    end_stages()
    _line = None
