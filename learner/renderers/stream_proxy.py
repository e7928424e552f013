"""Redirection of a program's output while the bottom of its terminal is being drawn."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, TextIO

LONGEST = 10_000  # characters of a line; longer text without a line end is written as one line


# Not `rich.file_proxy.FileProxy`: it ends a line at each flush, interprets it as markup, prints each state of a
# progress bar, mixes lines of threads, draws in forked processes and under prompts, and its `encoding` is None.
class StreamProxy:
    """A proxy for a stream. Each complete line appears above the drawing.

    If carriage returns overwrite a line, its last state counts. An incomplete line is shown when it is flushed. Code
    that requests the file descriptor, such as `input()` and child processes, bypasses the proxy, so the drawing is
    removed first. Otherwise the proxy behaves like the stream.

    Args:
      original: the replaced stream.
      write: writes lines above the drawing.
      show: shows the beginning of a line instead of the drawing.
      make_room: removes the drawing.

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
        original: TextIO,
        write: Callable[[Sequence[str]], object],
        show: Callable[[str], object] = str,
        make_room: Callable[[], object] = bool,
    ) -> None:
        self.original, self.is_drawn = original, True
        self._lines, self._show, self._make_room = write, show, make_room
        self._rest = ""  # of an incomplete line
        self._lock = threading.RLock()
        self._process = os.getpid()

    def write(self, text: str) -> int:
        """Write a text. Raises `TypeError` for anything else."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self._draws():
            with self._lock:
                if self.is_drawn:  # the drawing may have ended while this waited for the lock
                    self._add(text)
                    return len(text)
        return self.original.write(text)

    def _add(self, text: str) -> None:
        *lines, rest = (self._rest + text).split("\n")
        rest = rest[max(0, rest.rstrip("\r").rfind("\r")) :]  # text overwritten after a carriage return is gone
        if len(rest) > LONGEST:
            lines, rest = [*lines, rest], ""
        self._rest = rest
        if lines:
            self._lines([_last_state(line) for line in lines])

    def _draws(self) -> bool:
        """Return False in a forked process, which must not draw."""
        return self.is_drawn and os.getpid() == self._process

    def _take_rest(self) -> str:
        rest, self._rest = _last_state(self._rest), ""
        return rest

    def writelines(self, lines: Iterable[str]) -> None:
        """Write a list of lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Show an incomplete line, such as a prompt; it is kept until it is complete."""
        if self._draws():
            with self._lock:
                if rest := _last_state(self._rest):
                    self._show(rest)
        self.original.flush()

    def fileno(self) -> int:
        """Return the file descriptor. An incomplete line is written first, so that it precedes anything written or
        typed there.
        """
        descriptor = self.original.fileno()
        if self._draws():
            with self._lock:
                self._make_room()
                self.original.write(self._take_rest())
                self.original.flush()
        return descriptor

    def finish(self, wait: bool = True) -> None:
        """End the drawing: write what is buffered, and pass all further output through.

        Args:
          wait: wait for the lock. A thread that hangs may hold it; without it, nothing is drawn either.
        """
        with self._lock if wait else contextlib.nullcontext():
            self.is_drawn = False  # first: without the lock, others may write meanwhile
            rest = self._take_rest()
            if rest and wait:
                self._lines([rest])
            elif rest:
                self.original.write(f"{rest}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.original)


def redirect(stream: IO[str], make_proxy: Callable[[TextIO], StreamProxy]) -> dict[str, StreamProxy]:
    """Replace standard output and standard error by proxies if they are `stream` or terminals, also in the handlers of
    `logging` that write to them. Return the proxies by the name in `sys`.
    """
    originals = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    proxies = {
        name: make_proxy(original)
        for name, original in originals.items()
        if wrapped_stream(original) is stream or _is_terminal(original)
    }
    for name, proxy in proxies.items():
        setattr(sys, name, proxy)
        _set_handlers(proxy.original, proxy)
    return proxies


def restore(proxies: Mapping[str, StreamProxy], wait: bool = True) -> None:
    """Restore the original streams. A stream that other code has set in the meantime stays.

    Args:
      proxies: the proxies from `redirect`.
      wait: wait for locks. A thread that hangs may hold them; without them the handlers of `logging` keep their
        proxies, which pass all output through.
    """
    for name, proxy in proxies.items():
        if getattr(sys, name) is proxy:
            setattr(sys, name, proxy.original)
    for proxy in proxies.values():
        if wait:
            _set_handlers(proxy, proxy.original)
        proxy.finish(wait)


def wrapped_stream(stream: Any) -> Any:
    """Return the original stream of a proxy that is still referenced after the drawing has ended; others unchanged."""
    while isinstance(stream, StreamProxy) and not stream.is_drawn:
        stream = stream.original
    return stream


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(getattr(stream, "isatty", bool)())
    except ValueError:  # it is closed
        return False


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def _set_handlers(old: Any, new: Any) -> None:
    """Replace a stream in the handlers of `logging`, which keep the stream with which they were created."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    handlers = {handler for logger in loggers for handler in getattr(logger, "handlers", ())}
    for handler in handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            try:
                handler.setStream(new)
            except (OSError, ValueError):  # the old stream cannot be flushed: it is closed, or its terminal is gone
                handler.stream = new
