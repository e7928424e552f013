"""What a program prints while something is drawn at the bottom of its terminal."""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, TextIO, cast

LONGEST = 10_000  # characters of a line; what has more without an end is written as one


class StreamProxy:
    """Stands for a stream: lines go above what is drawn, each as a whole, as soon as it has its end.

    Of a line that was written over by carriage returns the last state counts. One that has no end is shown where
    somebody flushes it. Who asks for the file descriptor, as `input()` and child processes do, reads or writes past
    this: what is drawn makes room first. Otherwise it is the stream.

    Args:
      stream: what it stands for.
      write: writes lines above what is drawn.
      show: shows the beginning of a line in place of what is drawn.
      make_room: takes away what is drawn.

    >>> lines = []
    >>> above = StreamProxy(sys.stdout, lines.extend)
    >>> above.write("half a "), lines
    (7, [])
    >>> above.write("line\\r\\n 10 %\\r100 %\\nno end")
    24
    >>> above.finish()
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
        """As a stream's. Raises `TypeError` where it is no text."""
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
        """A process that was forked draws nothing."""
        return self._drawn and os.getpid() == self._process

    def _take_rest(self) -> str:
        rest, self._parts, self._length = _last_state("".join(self._parts)), [], 0
        return rest

    def writelines(self, lines: Iterable[str]) -> None:
        """As a stream's."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Shows what is no whole line yet, as a prompt; it waits for its end nevertheless."""
        if self._draws():
            with self._lock:
                if rest := _last_state("".join(self._parts)):
                    self._show(rest)
        self._stream.flush()

    def fileno(self) -> int:
        """As a stream's. What is no whole line yet stands before whatever is written or typed there."""
        descriptor = self._stream.fileno()
        if self._draws():
            with self._lock:
                self._make_room()
                self._stream.write(self._take_rest())
                self._stream.flush()
        return descriptor

    def finish(self) -> None:
        """Nothing is drawn from now on: writes what waits, and passes everything on."""
        with self._lock:
            rest, self._drawn = self._take_rest(), False
            if rest:
                self._lines([rest])

    def give_up(self) -> None:
        """As `finish`, where somebody may hang who has the locks: waits for nobody."""
        self._drawn = False
        if rest := self._take_rest():
            self._stream.write(f"{rest}\n")

    def beneath(self) -> Any:
        """The stream, once nothing is drawn any more; until then this."""
        return self if self._drawn else beneath(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stream)


class Redirected:
    """Puts `StreamProxy` in the place of standard output and standard error where they are terminals, and into the
    handlers of `logging` that write there.

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
                if beneath(was) is stream or _is_terminal(was):
                    above = StreamProxy(was, write, show, make_room)
                    self._places.append((name, was, above))
                    setattr(sys, name, above)
                    _hand_over(was, above)
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Everything writes where it wrote before. What somebody else has put there meanwhile stays."""
        places, self._places = self._places, []
        for name, was, above in places:
            if getattr(sys, name) is above:
                setattr(sys, name, was)
        for _, was, above in places:
            _hand_over(above, was)
            above.finish()

    def give_up(self) -> None:
        """As `restore`, where somebody may hang who has the locks. Handlers of `logging` keep what they have, which
        passes everything on.
        """
        places, self._places = self._places, []
        for name, was, above in places:
            if getattr(sys, name) is above:
                setattr(sys, name, was)
            above.give_up()


def beneath(stream: TextIO | StreamProxy) -> TextIO | StreamProxy:
    """What it stands for, where it is an `StreamProxy` that somebody has kept although nothing is drawn any more."""
    return stream.beneath() if isinstance(stream, StreamProxy) else stream


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(getattr(stream, "isatty", bool)())
    except ValueError:  # it is closed
        return False


def _last_state(line: str) -> str:
    return line.rstrip("\r").rpartition("\r")[2]


def _hand_over(old: TextIO | StreamProxy, new: TextIO | StreamProxy) -> None:
    """Handlers of `logging` keep the stream that was there when they were made."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for handler in {each for logger in loggers if isinstance(logger, logging.Logger) for each in logger.handlers}:
        if isinstance(handler, logging.StreamHandler) and handler.stream is old:
            try:
                handler.setStream(cast("TextIO", new))
            except ValueError:  # the old one cannot be flushed: somebody has closed it
                handler.stream = new
