"""A progress bar with a table of epochs above it, for terminals."""

import atexit
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from learner.events import EpochEnded, Event, Listener, Message, RunEnded, RunFailed, RunStarted, SplitEnded, StepsEnded
from learner.renderers import lines
from learner.renderers.columns import EpochTable
from learner.renderers.progress import Progress
from learner.renderers.summary import places, table

SECONDS_BETWEEN_DRAWINGS = 0.25
SHORTEST_BAR = 8


class RichRenderer(Listener):
    """Shows an epoch's steps as a bar, with the speed and the time left, and writes a line of a table for each epoch.

    What is printed meanwhile appears above the bar, and the bar goes away when the run ends, however it ends. Neither
    it nor the table is drawn more than four times a second, so that many short epochs cost little.

    Args:
      console: where to draw; `None`: standard output.
      clock: seconds; it need not begin anywhere in particular.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console()
        self._clock = clock
        self._progress = Progress(clock)
        self._live: Live | None = None
        self._directory: os.PathLike[str] | None = None
        self._table = EpochTable([], self._console.width)
        self._steps: StepsEnded | None = None
        self._train_loss: float | None = None
        self._held: list[str] = []  # lines for above the bar
        self._drawn_at = self._written_at = clock() - SECONDS_BETWEEN_DRAWINGS

    def on_event(self, event: Event) -> None:
        """Shows it. If that fails, the terminal is left as it was found."""
        try:
            self._progress.on_event(event)
            self._show(event)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Writes what was held back and takes the bar away."""
        live, self._live = self._live, None
        if live is None:
            return
        atexit.unregister(self.close)
        try:
            self._write()
        finally:
            live.stop()

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
        elif isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, (RunEnded, RunFailed)):
            self._end(event)

    def _start(self, event: RunStarted) -> None:
        self.close()
        self._directory, self._steps, self._train_loss = event.directory, None, None
        self._table = EpochTable(event.metrics, self._console.width)
        self._write([lines.started(event)])
        self._write(self._table.titles(), style="bold")
        self._live = Live("", console=self._console, auto_refresh=False, transient=True)
        atexit.register(self.close)
        self._live.start()
        self._console.show_cursor(True)  # a process that is killed could not bring it back
        self._draw()

    def _end(self, event: RunEnded | RunFailed) -> None:
        self.close()
        if isinstance(event, RunFailed):
            self._write([lines.failed(event)], style="red")
            return
        self._write([lines.ended(event)])
        if event.show_summary:
            self._console.print(render_summary(event.summary, self._directory))

    def _on_steps(self, event: StepsEnded) -> None:
        self._steps = event
        if event.split == "train" and "Loss" in event.values:
            self._train_loss = float(event.values["Loss"][-1])
        if self._clock() - self._drawn_at >= SECONDS_BETWEEN_DRAWINGS:
            self._write()
            self._draw()

    def _add_row(self, label: str, values: Mapping[str, float | str], seconds: float) -> None:
        self._held += [self._table.row(label, values, seconds), *lines.texts(values)]
        if self._clock() - self._written_at >= SECONDS_BETWEEN_DRAWINGS:
            self._write()
            self._draw()

    def _write(self, texts: Sequence[str] = (), style: str = "") -> None:
        """Writes lines above the bar, after those that were held back."""
        for held, how in ((self._held, ""), (texts, style)):
            if held:
                self._console.print(Text("\n".join(held), how), no_wrap=True, overflow="ignore", crop=False)
                self._written_at = self._clock()
        self._held = []

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        if self._live is not None:
            self._live.update(self._bar(), refresh=True)

    def _bar(self) -> RenderableType:
        label = self._progress.label()
        texts = self._texts(self._console.width - len(label) - SHORTEST_BAR - 2)
        done, total = self._progress.position(self._steps) if self._steps else (0, None)
        grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
        grid.add_column(no_wrap=True)
        grid.add_column(ratio=1)
        for _ in texts:
            grid.add_column(no_wrap=True)
        grid.add_row(Text(label), ProgressBar(total, done, animation_time=self._clock()), *map(Text, texts))
        return grid

    def _texts(self, room: int) -> list[str]:
        """What stands beside the bar, as far as there is room for it (in characters)."""
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
    """The summary of a run as something that a rich console prints: a table, and where everything is.

    Args:
      summary: the content of `summary.json`.
      directory: of the run; its paths are relative to it.
    """
    titles, *rows = table(summary)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, title in enumerate(titles):
        grid.add_column(title, justify="right" if number else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    return Group(grid, *map(Text, places(summary, directory)))
