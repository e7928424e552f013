"""Renderer for terminals: a progress bar, a table of metrics and a table of epochs."""

import atexit
import dataclasses
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from learner.events import (
    Compiling,
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
from learner.renderers.board import board, hidden_text
from learner.renderers.bottom_area import BottomArea
from learner.renderers.consoles import standard_output
from learner.renderers.epoch_table import EpochTable
from learner.renderers.grids import grid, render_overview
from learner.renderers.progress import Progress
from learner.renderers.summary_text import endings, table
from learner.renderers.trends import ASCII, BLOCKS, Trends
from learner.runs.layout import ENDS
from learner.util.metric_order import is_selected
from learner.util.several import as_several
from learner.util.text import NO_BREAK, wrapped

SECONDS_BETWEEN_DRAWINGS = 0.25
SHORTEST_BAR = 8
COMMAND = "  learner "  # how the lines of commands begin
FOR_KEYS = 4  # columns after the bar: terminals show Ctrl-C as ^C there, and a wrapped line cannot be removed


class RichRenderer(Listener):
    """Display an epoch's steps as a bar, with the speed and the remaining time, and write a table row for each epoch.

    Above the bar, each metric has a line: the current value (in training, the value of the newest step), the best value
    and its epoch, and the trend as a small curve. Low terminals show only some metrics, and narrow ones fewer columns.
    If block characters cannot be shown, the curve is in ASCII; other characters that an encoding lacks become question
    marks.

    Printed or logged lines appear above the bar. When the run ends, in any way, the bar and the metrics disappear, and
    the table of epochs remains. Both are drawn at most four times a second, so many short epochs cost little.

    Args:
      console: the console to draw on; default: standard output.
      clock: returns seconds from any starting point.
      metrics: keys (`valid/Loss`) or names (`Loss`) of the metrics to show; default: as many as fit.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        metrics: str | Sequence[str] = (),
    ) -> None:
        self._given, self._clock, self._selected = console, clock, tuple(as_several(metrics))
        self._area = BottomArea(console or standard_output(), clock)
        self._progress, self._trends = Progress(clock), Trends()
        self._directory: str | os.PathLike[str] | None = None
        self._metrics: tuple[MetricInfo, ...] = ()
        self._monitor: str | None = None
        self._table_width = self._area.console.width
        self._table = EpochTable([], self._table_width)
        self._text_values: dict[str, tuple[str, int]] = {}  # the newest values of text metrics, with their epochs
        self._pending: list[Text] = []  # lines for above the bar
        self._drawn_at = self._written_at = clock() - SECONDS_BETWEEN_DRAWINGS

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
        atexit.unregister(self.close)
        self._area.close(self._write)

    def abandon(self) -> None:
        """Restore the standard streams without locking: a thread that hangs may hold the lock."""
        atexit.unregister(self.close)
        self._area.abandon()

    def _show(self, event: Event) -> None:
        if isinstance(event, StepsEnded):
            self._on_steps()
        elif isinstance(event, Compiling) and self._area.is_free(self._clock()):
            self._draw()
        elif isinstance(event, SplitEnded):
            if event.at_step is not None:
                values = {f"{event.split}/{name}": value for name, value in event.values.items()}
                self._add_row(f"@{event.at_step}", values, event)
        elif isinstance(event, EpochEnded):
            self._add_row(str(event.epoch), event.values, event)
        elif isinstance(event, Message):
            self._write(lines.message(event), style="yellow" if event.level >= logging.WARNING else "")
        elif isinstance(event, Overview):
            self._area.print(render_overview(event, self._area.console.width))
        elif isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, (RunEnded, RunFailed)):
            self._end(event)

    def _start(self, event: RunStarted) -> None:
        self.close()
        self._area.console = self._given or standard_output()
        self._directory, self._monitor, self._text_values = event.shown or event.directory, event.monitor, {}
        self._metrics = tuple(info for info in event.metrics if is_selected(info.key, self._selected))
        self._write([lines.started(event), *lines.unmatched(event, self._selected)])
        self._pending += self._titles()
        self._write()
        atexit.register(self.close)
        self._area.open()
        self._draw()

    def _titles(self) -> list[Text]:
        self._table_width = self._area.console.width
        self._table = EpochTable(self._metrics, self._table_width, self._monitor)
        hidden = self._table.hidden
        notes = [Text(hidden_text(hidden, self._table_width), self._dim)] if hidden else []
        return [*notes, *(Text(line, "bold") for line in self._table.titles())]

    @property
    def _dim(self) -> str:
        return "" if self._area.console.no_color else "dim"

    def _end(self, event: RunEnded | RunFailed) -> None:
        self.close()
        if isinstance(event, RunFailed):
            self._write([lines.failed(event)], style="red")
            return
        self._pending += map(Text, lines.texts(self._text_values))
        self._write([lines.ended(event)], style="green" if event.stopped_by.startswith(ENDS) else "yellow")
        if event.show_summary:
            self._area.print(render_summary(event.summary, self._directory, self._text_values))

    def _on_steps(self) -> None:
        if self._is_time(self._drawn_at):
            self._write()
            self._draw()

    def _add_row(self, label: str, values: Mapping[str, float | str], event: SplitEnded | EpochEnded) -> None:
        if self._area.console.width != self._table_width:  # the window was resized
            self._pending += self._titles()
        texts = {key: text for key, text in values.items() if isinstance(text, str)}
        self._text_values |= {
            key: (text, event.epoch) for key, text in texts.items() if is_selected(key, self._selected)
        }
        best = self._trends.best(self._monitor)
        is_best = best is not None and (best.epoch, best.step) == (event.epoch, event.step)
        row = Text(self._table.row(label, values, event.seconds, self._monitor if is_best else None))
        row.highlight_regex(r"\S+\*", "green")
        row.highlight_regex(r"(?<=  )\S+(?: \S+)*$", self._dim)  # the time
        self._pending.append(row)
        if self._is_time(self._written_at):
            self._write()
            self._draw()

    def _is_time(self, last: float) -> bool:
        now = self._clock()
        return now - last >= SECONDS_BETWEEN_DRAWINGS and self._area.is_free(now)

    def _write(self, texts: Sequence[str] = (), style: str = "") -> None:
        """Write lines above the bar, after the pending ones. Long lines are broken between words."""
        width = self._area.console.width if self._area.console.is_terminal else sys.maxsize
        parts = [part for text in texts for part in wrapped(text, width)]
        waiting, self._pending = [*self._pending, *(Text(part, style) for part in parts)], []
        if waiting:
            self._area.print(Text("\n").join(waiting))
            self._written_at = self._clock()

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        self._area.draw(self._drawing)

    def _drawing(self) -> RenderableType:
        """Return the table of metrics, which takes less than half of the screen, and the bar."""
        width, most = self._area.console.width, max(0, self._area.console.height // 2 - 3)
        limited = self._area.console.legacy_windows or self._area.console.options.ascii_only  # as rich draws its bars
        characters = ASCII if limited else BLOCKS
        trends = [trend for trend in self._trends.newest() if is_selected(trend.info.key, self._selected)]
        rows = board(trends, width, most, self._monitor, characters)
        titles = next((number for number, row in enumerate(rows) if row.startswith("metric")), 0)
        texts = [Text(row, "bold" if number <= titles else "") for number, row in enumerate(rows)]
        table = Text("\n", no_wrap=True, overflow="crop").join(texts)
        return Group(table, self._bar()) if rows else self._bar()

    def _bar(self) -> RenderableType:
        label = self._progress.label()
        texts = self._texts(self._area.console.width - FOR_KEYS - len(label) - SHORTEST_BAR - 2)
        completed, total = self._progress.completed()
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.width = max(1, self._area.console.width - FOR_KEYS)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        for _ in texts:
            grid.add_column(no_wrap=True)
        grid.add_row(Text(label), ProgressBar(total, completed, animation_time=self._clock()), *map(Text, texts))
        return grid

    def _texts(self, room: int) -> list[str]:
        """Return the texts beside the bar, as far as they fit (in characters)."""
        position, speed, left = self._progress.texts()
        loss = self._progress.train_loss
        shown_loss = "" if loss is None else lines.values({"train/Loss": loss})[0]
        kept: list[str] = []
        for text in filter(None, (position, left, shown_loss, speed)):
            room -= len(text) + 2
            if room >= 0:
                kept.append(text)
        return kept


def render_summary(
    summary: Mapping[str, Any], directory: str | os.PathLike[str] | None = None, texts_shown: Collection[str] = ()
) -> RenderableType:
    """Return the summary of a run as a rich renderable: a table, and the paths of its files.

    Args:
      summary: the content of `summary.json`.
      directory: the run directory, to which paths are relative.
      texts_shown: the keys of the text metrics that stand above the summary, which counts the others.
    """
    return Group(_ValueTable(summary), WrappedLines(endings(summary, directory, texts_shown)))


@dataclasses.dataclass(frozen=True)
class _ValueTable:
    """The values of a summary as a rich renderable, with the columns that fit."""

    summary: Mapping[str, Any]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield grid(table(self.summary, options.max_width))


@dataclasses.dataclass(frozen=True)
class WrappedLines:
    """Lines as a rich renderable, broken between words if the console is narrow. Commands are broken as a shell reads
    them, so that a copy runs.
    """

    lines: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines:
            is_command = line.startswith(COMMAND) and len(line) > options.max_width
            if is_command:
                words = [shlex.quote(word).replace(" ", NO_BREAK) for word in shlex.split(line, comments=True)]
                line = "  " + " ".join(words)
            *parts, last = wrapped(line, max(1, options.max_width - 2 * is_command))
            yield from (Text(f"{part} \\" if is_command else part) for part in parts)
            yield Text(last)
