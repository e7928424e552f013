"""Renderer for terminals: a progress bar, a table of metrics and one of epochs."""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from rich.ansi import AnsiDecoder
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from learner.events import (
    EpochEnded,
    Event,
    Listener,
    Message,
    MetricInfo,
    Overview,
    RunEnded,
    RunFailed,
    RunStarted,
    SplitEnded,
    StepsEnded,
)
from learner.renderers import lines
from learner.renderers.board import board
from learner.renderers.columns import EpochTable
from learner.renderers.consoles import CachedRenderable, Encodable, shows_blocks, standard_output
from learner.renderers.grids import grid, render_overview
from learner.renderers.progress import Progress
from learner.renderers.stream_proxy import Redirected
from learner.renderers.summary import endings, table
from learner.renderers.trends import ASCII, BLOCKS, Trends

SECONDS_BETWEEN_DRAWINGS = 0.25
SECONDS_FOR_OTHERS = 2.0
SHORTEST_BAR = 8


class RichRenderer(Listener):
    """Display an epoch's steps as a bar, with the speed and the remaining time, and write a table row for each epoch.

    Above the bar each metric has a line: what it is now (in training that of the newest step), its best value and the
    epoch of that, and how it went, as a small curve. On low terminals only some metrics have one, on narrow ones there
    are fewer columns. Where block characters cannot be shown the curve is in ASCII, and what else an encoding lacks is
    a question mark.

    What is printed or logged meanwhile appears above, in whole lines, and all of this goes away when the run ends,
    however it ends; the table of epochs stays. Neither the one nor the other is drawn more than four times a second, so
    that many short epochs cost little.

    Args:
      console: where to draw; default: standard output.
      clock: seconds; it need not begin anywhere in particular.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._given, self._console = console, console or standard_output()
        self._clock = clock
        self._progress, self._trends = Progress(clock), Trends()
        self._live: Live | None = None
        self._drawn: CachedRenderable | None = None
        self._beginning = False  # of a line is what is drawn
        self._free_at = clock()  # until then the place below belongs to a prompt, or to another program
        self._process = os.getpid()
        self._redirected: Redirected | None = None
        self._file: IO[str] | None = None  # of the console; None follows `sys.stdout`
        self._directory: str | os.PathLike[str] | None = None
        self._metrics: tuple[MetricInfo, ...] = ()
        self._table = EpochTable([], self._console.width)
        self._width = self._console.width  # of that table
        self._steps: StepsEnded | None = None
        self._train_loss: float | None = None
        self._held: list[str] = []  # lines for above the bar
        self._drawn_at = self._written_at = clock() - SECONDS_BETWEEN_DRAWINGS
        self._lock = threading.RLock()  # held by every writer: a user's print runs in another thread

    def on_event(self, event: Event) -> None:
        """Display the event. If that fails, the terminal is restored."""
        try:
            self._progress.on_event(event)
            self._trends.on_event(event)
            self._show(event)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Write pending lines and remove the bar."""
        live, self._live = self._live, None
        if live is None:
            return
        atexit.unregister(self.close)
        redirected, self._redirected = self._redirected, None
        if os.getpid() != self._process:  # one that was forked: the bar is its parent's
            return
        try:
            self._write()
            if redirected is not None:
                redirected.restore()
        finally:
            with self._lock:
                live.stop()
            self._console._file = self._file

    def abandon(self) -> None:
        """Restore the standard streams without locking: a thread that hangs may hold the lock."""
        atexit.unregister(self.close)
        redirected, self._redirected, self._live = self._redirected, None, None
        if redirected is not None:
            redirected.give_up()

    def _show(self, event: Event) -> None:
        if isinstance(event, StepsEnded):
            self._on_steps(event)
        elif isinstance(event, SplitEnded):
            if event.at_step is not None:
                values = {f"{event.split}/{name}": value for name, value in event.values.items()}
                self._add_row(f"@{event.at_step}", values, event.seconds)
        elif isinstance(event, EpochEnded):
            self._add_row(str(event.epoch), event.values, event.seconds)
        elif isinstance(event, Message):
            self._write(lines.message(event), style="yellow" if event.level >= logging.WARNING else "")
        elif isinstance(event, Overview):
            self._console.print(render_overview(event, self._console.width))
        elif isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, (RunEnded, RunFailed)):
            self._end(event)

    def _start(self, event: RunStarted) -> None:
        self.close()
        self._console = self._given or standard_output()
        self._file = self._console._file
        self._directory, self._steps, self._train_loss = event.shown or event.directory, None, None
        self._write([lines.started(event)])
        self._metrics = event.metrics
        self._write(self._titles(), style="bold")
        self._live, self._drawn, self._beginning = self._new_live(), None, False
        self._process, self._free_at = os.getpid(), self._clock()
        atexit.register(self.close)
        if self._console.is_terminal:
            self._console.file = self._console.file  # one that follows `sys.stdout` would write to what is put there
            self._redirected = Redirected(self._console.file, self._above, self._show_beginning, self._make_room)
        self._draw()

    def _new_live(self) -> Live:
        """Create the live display. Rich would wrap lines printed meanwhile, and lose or repeat an incomplete line."""
        return Live(
            "", console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def _titles(self) -> list[str]:
        self._width = self._console.width
        self._table = EpochTable(self._metrics, self._width)
        return self._table.titles()

    def _end(self, event: RunEnded | RunFailed) -> None:
        self.close()
        if isinstance(event, RunFailed):
            self._write([lines.failed(event)], style="red")
            return
        self._write([lines.ended(event)])
        if event.show_summary:
            self._console.print(Encodable(render_summary(event.summary, self._directory)))

    def _on_steps(self, event: StepsEnded) -> None:
        self._steps = event
        if event.split == "train" and "Loss" in event.values:
            self._train_loss = float(event.values["Loss"][-1])
        if self._is_time(self._drawn_at):
            self._write()
            self._draw()

    def _add_row(self, label: str, values: Mapping[str, float | str], seconds: float) -> None:
        if self._console.width != self._width:  # the window was resized
            self._held += self._titles()
        self._held += [self._table.row(label, values, seconds), *lines.texts(values)]
        if self._is_time(self._written_at):
            self._write()
            self._draw()

    def _is_time(self, last: float) -> bool:
        now = self._clock()
        return now - last >= SECONDS_BETWEEN_DRAWINGS and now >= self._free_at

    def _write(self, texts: Sequence[str] = (), style: str = "") -> None:
        """Write lines above the bar, after the pending ones."""
        for waiting, how in ((self._held, ""), (texts, style)):
            if waiting:
                self._print(Text("\n".join(waiting), how))
                self._written_at = self._clock()
        self._held = []

    def _above(self, printed: Sequence[str]) -> None:
        """Write a program's output above the bar, with its colours."""
        decoder = AnsiDecoder()
        self._print(Text("\n").join(map(decoder.decode_line, printed)))

    def _print(self, text: Text) -> None:
        with self._lock:
            if self._beginning and self._drawn is not None:
                self._show_below(self._drawn)
            self._beginning = False
            self._console.print(Encodable(text), soft_wrap=True)

    def _show_beginning(self, text: str) -> None:
        """Show an incomplete line, or the end of a long one, instead of the bar; the next drawing completes it."""
        with self._lock:
            self._beginning = True
            room = max(1, self._console.width - 1)
            self._show_below(Encodable(AnsiDecoder().decode_line(text)[-room:]))

    def _make_room(self) -> None:
        """Remove the bar while other code has the cursor: a drawing in progress would overwrite a prompt."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live, self._beginning = self._new_live(), False
                self._free_at = self._clock() + SECONDS_FOR_OTHERS

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        if self._live is not None:
            with self._lock:
                self._drawn, self._beginning = CachedRenderable(Encodable(self._drawing()), self._console), False
                self._show_below(self._drawn)

    def _show_below(self, content: RenderableType) -> None:
        if self._live is None:
            return
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor(True)  # a process that is killed could not bring it back
        self._live.update(content, refresh=True)

    def _drawing(self) -> RenderableType:
        """Return the table of metrics, on less than half of the screen, and the bar."""
        width, most = self._console.width, max(0, self._console.height // 2 - 3)
        characters = BLOCKS if shows_blocks(self._console) else ASCII
        titles, *rows = board(self._trends.newest(), width, most, self._trends.monitor, characters) or [""]
        table = [Text(titles, "bold"), *map(Text, rows)] if rows else []
        for line in table:
            line.no_wrap, line.overflow = True, "crop"
        return Group(*table, self._bar())

    def _bar(self) -> RenderableType:
        label = self._progress.label()
        texts = self._texts(self._console.width - len(label) - SHORTEST_BAR - 2)
        completed, total = self._progress.position(self._steps) if self._steps else (0, None)
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        for _ in texts:
            grid.add_column(no_wrap=True)
        grid.add_row(Text(label), ProgressBar(total, completed, animation_time=self._clock()), *map(Text, texts))
        return grid

    def _texts(self, room: int) -> list[str]:
        """Return the texts beside the bar, as far as they fit (in characters)."""
        loss = "" if self._train_loss is None else lines.values({"train/Loss": self._train_loss})
        speed, left = lines.speed(self._progress.speed), lines.left(self._progress.seconds_left())
        steps = self._steps
        position = lines.position(steps.split, *self._progress.position(steps)) if steps else "starting"
        kept: list[str] = []
        for text in filter(None, (position, left, loss, speed)):
            room -= len(text) + 2
            if room >= 0:
                kept.append(text)
        return kept


def render_summary(summary: Mapping[str, Any], directory: str | os.PathLike[str] | None = None) -> RenderableType:
    """Return the summary of a run as a rich renderable: a table, and the paths of its files.

    Args:
      summary: the content of `summary.json`.
      directory: of the run; its paths are relative to it.
    """
    return Group(grid(table(summary)), *map(Text, endings(summary, directory)))
