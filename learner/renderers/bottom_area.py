"""The bottom lines of a terminal, which are redrawn while other lines are printed above them."""

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import IO, TextIO

from rich.ansi import AnsiDecoder
from rich.console import Console, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment, Segments
from rich.text import Text

from learner.renderers.consoles import rendered
from learner.renderers.stream_proxy import StreamProxy, redirect, restore
from learner.util.stages import end_stages

SECONDS_FOR_OTHERS = 2.0
REFLOWS = "XTERM_VERSION" not in os.environ and os.environ.get("TERM") != "linux"
"""True if the terminal wraps lines when its window gets narrower, as all but a few do."""


class BottomArea:
    """The bottom lines of a console, from `open` to `close`. Meanwhile, standard output and standard error of the
    process appear above them.

    Args:
      console: the console to draw on. It may be replaced while the area is closed.
      clock: returns seconds from any starting point.
    """

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self.console = console
        self._clock = clock
        self._live: Live | None = None
        self._drawn = Segments(())
        self._shows_beginning = False  # of a printed line, instead of `_drawn`
        self._free_at = clock()  # until then the area belongs to a prompt, or to another program
        self._width, self._lengths = 0, list[int]()  # of the terminal, and of the lines that were drawn
        self._process = os.getpid()
        self._proxies: dict[str, StreamProxy] = {}
        self._file: IO[str] | None = None  # of the console; None follows `sys.stdout`
        self._lock = threading.RLock()  # held by every writer: a user's print runs in another thread

    def open(self) -> None:
        """Start drawing, and redirect the standard streams of a terminal."""
        self._live, self._drawn, self._shows_beginning = self._new_live(), Segments(()), False
        self._process, self._free_at, self._file = os.getpid(), self._clock(), self.console._file
        if self.console.is_terminal:
            self.console.file = self.console.file  # a console that follows `sys.stdout` would write to its replacement
            self._proxies = redirect(self.console.file, self._new_proxy)

    def close(self, flush: Callable[[], object]) -> None:
        """Call `flush`, remove the area, and restore the standard streams. Does nothing if the area is closed."""
        live, self._live = self._live, None
        if live is None:
            return
        proxies, self._proxies = self._proxies, {}
        if os.getpid() != self._process:  # a forked process: the area belongs to its parent
            return
        with contextlib.ExitStack() as stack:  # each of these even if another fails, as a terminal may be gone
            stack.callback(setattr, self.console, "_file", self._file)
            stack.callback(self._stop, live)
            stack.callback(restore, proxies)
            flush()

    def _stop(self, live: Live) -> None:
        with self._lock:
            live.stop()

    def abandon(self) -> None:
        """Restore the standard streams without locking: a thread that hangs may hold the lock."""
        proxies, self._proxies, self._live = self._proxies, {}, None
        restore(proxies, wait=False)

    def is_free(self, now: float) -> bool:
        """Return True unless a prompt or another program had the cursor a moment ago."""
        return now >= self._free_at

    def print(self, content: RenderableType) -> None:
        """Print above the area. Lines of a `Text` are not wrapped."""
        end_stages()
        if isinstance(content, Text):
            content.no_wrap, content.overflow = True, "ignore"
        with self._lock:
            if self._shows_beginning:
                self._show(self._drawn)
            self._shows_beginning = False
            self._remove_wrapped()
            self.console.print(rendered(content, self.console), soft_wrap=True)

    def draw(self, content: Callable[[], RenderableType]) -> None:
        """Draw new content, which is computed only if the area is open."""
        if self._live is not None:
            with self._lock:
                self._drawn, self._shows_beginning = rendered(content(), self.console), False
                self._show(self._drawn)

    def _new_live(self) -> Live:
        return Live(
            "", console=self.console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def _new_proxy(self, stream: TextIO) -> StreamProxy:
        return StreamProxy(stream, self._print_above, self._show_beginning, self._make_room)

    def _print_above(self, printed: Sequence[str]) -> None:
        """Print a program's output with its colours."""
        decoder = AnsiDecoder()
        self.print(Text("\n").join(map(decoder.decode_line, printed)))

    def _show_beginning(self, text: str) -> None:
        """Show an incomplete line, or the end of a long one, instead of the area; the next drawing completes it."""
        with self._lock:
            self._shows_beginning = True
            room = max(1, self.console.width - 1)
            self._show(rendered(AnsiDecoder().decode_line(text)[-room:], self.console))

    def _make_room(self) -> None:
        """Remove the area while other code has the cursor: a drawing in progress would overwrite a prompt."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live, self._shows_beginning = self._new_live(), False
                self._free_at = self._clock() + SECONDS_FOR_OTHERS

    def _show(self, content: Segments) -> None:
        if self._live is None:
            return
        if not self._live.is_started:
            self._live.start()
            self.console.show_cursor(True)  # a killed process could not restore it
        self._remove_wrapped()
        self._lengths = [*map(Segment.get_line_length, Segment.split_lines(content.segments))]
        self._live.update(content, refresh=True)

    def _remove_wrapped(self) -> None:
        """Remove the lines that a narrower window added by wrapping the area. rich does not know about them."""
        width = self.console.width
        if self._live is not None and self._live.is_started and width < self._width and REFLOWS:
            added = sum(max(0, length - 1) // width for length in self._lengths)
            erase = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
            self.console.control(Control(ControlType.CARRIAGE_RETURN, *added * erase))
            self._lengths = [min(length, width) for length in self._lengths]  # rich truncates what it redraws
        self._width = width
