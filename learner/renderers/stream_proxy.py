"""Redirection of a program's output while something is drawn at the bottom of its terminal."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TextIO, cast

LONGEST = 10_000  # characters of a line; what has more without an end is written as one


class StreamProxy:
    """A stand-in for a stream: each complete line appears above what is drawn.

    Of a line that was written over by carriage returns the last state counts. One that has no end is shown where
    somebody flushes it. Who asks for the file descriptor, as `input()` and child processes do, reads or writes past
    this: what is drawn makes room first. Otherwise it is the stream.

    Args:
      stream: what it stands for.
      write: writes lines above what is drawn.
      show: shows the beginning of a line in place of what is drawn.
      make_room: takes away what is drawn.

    >>> lines = []
    >>> proxy = StreamProxy(sys.stdout, lines.extend)
    >>> proxy.write("half a "), lines
    (7, [])
    >>> proxy.write("line\\r\\n 10 %\\r100 %\\nno end")
    24
    >>> proxy.finish()
    >>> lines
    ['half a line', '100 %', 'no end']
    """

    def __init__(
        self,
        stream: TextIO,
        write: Callable[[Sequence[str]], object],
        show: Callable[[str], object] = str,
        make_room: Callable[[], object] = bool,
    ) -> None:
        self._stream, self._lines, self._show, self._make_room = stream, write, show, make_room
        self._parts: list[str] = []  # of a line without an end
        self._length, self._drawn = 0, True  # the length is that of all parts
        self._lock = threading.RLock()
        self._process = os.getpid()

    def write(self, text: str) -> int:
        """Write a text. Raises `TypeError` for anything else."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if not self._draws():
            return self._stream.write(text)
        with self._lock:
            self._parts.append(text)
            self._length += len(text)
            if "\n" in text or "\r" in text or self._length > LONGEST:
                self._sort_out()
        return len(text)

    def _sort_out(self) -> None:
        *lines, rest = "".join(self._parts).split("\n")
        rest = rest[max(0, rest.rstrip("\r").rfind("\r")) :]
        if len(rest) > LONGEST:
            lines, rest = [*lines, rest], ""
        self._parts, self._length = [rest], len(rest)
        if lines:
            self._lines([_last_state(line) for line in lines])

    def _draws(self) -> bool:
        """Return False in a forked process, which must not draw."""
        return self._drawn and os.getpid() == self._process

    def _take_rest(self) -> str:
        rest, self._parts, self._length = _last_state("".join(self._parts)), [], 0
        return rest

    def writelines(self, lines: Iterable[str]) -> None:
        """Write a list of lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Show an incomplete line, such as a prompt; it is kept until it is complete."""
        if self._draws():
            with self._lock:
                if rest := _last_state("".join(self._parts)):
                    self._show(rest)
        self._stream.flush()

    def fileno(self) -> int:
        """Return the file descriptor. An incomplete line is written first, so that it precedes anything written or
        typed there.
        """
        descriptor = self._stream.fileno()
        if self._draws():
            with self._lock:
                self._make_room()
                self._stream.write(self._take_rest())
                self._stream.flush()
        return descriptor

    def finish(self) -> None:
        """End the drawing: write what is buffered, and pass all further output through."""
        with self._lock:
            rest, self._drawn = self._take_rest(), False
            if rest:
                self._lines([rest])

    def give_up(self) -> None:
        """End the drawing as `finish` does, without waiting for locks that a thread that hangs may hold."""
        self._drawn = False
        if rest := self._take_rest():
            self._stream.write(f"{rest}\n")

    def wrapped_stream(self) -> Any:
        """Return the wrapped stream after drawing has ended; until then the proxy itself."""
        return self if self._drawn else wrapped_stream(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)


class Redirected:
    """Replace standard output and standard error by `StreamProxy` if they are terminals, also in the handlers of
    `logging` that write to them.

    Args:
      stream: on which is drawn.
      write, show, make_room: as those of `StreamProxy`.
    """

    def __init__(
        self,
        stream: IO[str],
        write: Callable[[Sequence[str]], object],
        show: Callable[[str], object] = str,
        make_room: Callable[[], object] = bool,
    ) -> None:
        self._places: list[tuple[str, TextIO, StreamProxy]] = []
        try:
            for name in ("stdout", "stderr"):
                was = getattr(sys, name)
                if wrapped_stream(was) is stream or _is_terminal(was):
                    proxy = StreamProxy(was, write, show, make_room)
                    self._places.append((name, was, proxy))
                    setattr(sys, name, proxy)
                    _hand_over(was, proxy)
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Restore the original streams. A stream that other code has set in the meantime stays."""
        places, self._places = self._places, []
        for name, was, proxy in places:
            if getattr(sys, name) is proxy:
                setattr(sys, name, was)
        for _, was, proxy in places:
            _hand_over(proxy, was)
            proxy.finish()

    def give_up(self) -> None:
        """Restore as `restore` does, without waiting for locks that a thread that hangs may hold. Handlers of `logging`
        keep their proxies, which pass all output through.
        """
        places, self._places = self._places, []
        for name, was, proxy in places:
            if getattr(sys, name) is proxy:
                setattr(sys, name, was)
            proxy.give_up()


def wrapped_stream(stream: TextIO | StreamProxy) -> TextIO | StreamProxy:
    """Return the original stream of a proxy that is still referenced after drawing has ended; others unchanged."""
    return stream.wrapped_stream() if isinstance(stream, StreamProxy) else stream


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(getattr(stream, "isatty", bool)())
    except ValueError:  # it is closed
        return False


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def _hand_over(old: TextIO | StreamProxy, new: TextIO | StreamProxy) -> None:
    """Replace a stream in the handlers of `logging`, which keep the stream they were created with."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for handler in {
        attached for logger in loggers if isinstance(logger, logging.Logger) for attached in logger.handlers
    }:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            try:
                handler.setStream(cast("TextIO", new))
            except ValueError:  # the old stream cannot be flushed: it is closed
                handler.stream = new
