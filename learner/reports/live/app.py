"""The terminal program. It polls `RunWatcher` and draws runs according to `PlotView`."""

import asyncio
import contextlib
import functools
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import TextIO

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.timer import Timer

from learner.errors import LearnerError
from learner.reports.live import panels
from learner.reports.live.drawing import Drawing, draw
from learner.reports.live.keys import KEYS, SHOWN, Keys
from learner.reports.live.live_run import LiveRun
from learner.reports.live.view import PlotView
from learner.reports.live.watched import RunWatcher
from learner.reports.live.widgets import FittingFooter, PlotPanel, TextPanel
from learner.runs.control_files import ask
from learner.util.text import printable

WIDE = 120, 30
"""The smallest columns and rows at which all panels are shown at once."""
PLOT = 50, 11
"""The desired columns and rows of each of several plots."""
GRID = 160
"""The number of columns from which more than two plots form a grid."""
MOST_PLOTS = 9
MESSAGE_SECONDS = 6.0
"""Seconds for which a message is shown, and for which a second press of a key counts."""
PAUSE = 0.002
"""Seconds between two reads of a part."""
REDRAW = 0.5
"""Seconds between redraws while much is read."""
INTERRUPTED = 130
HUNG_UP = 129

PANELS = ("table", "runs", "log", "system")


class WatchApp(App[int]):
    """The terminal application. Its result is the exit code.

    Args:
      watched: the runs.
      view: the settings of the plots.
      every: seconds between two polls of the files.
      failed: called at each poll; the view is closed once it returns True.
    """

    CSS = """
    #head { height: 1; }
    #how { height: 1; color: $text-muted; }
    #body { layout: vertical; height: 1fr; }
    #plots { layout: grid; grid-size: 1; width: 1fr; height: 1fr; }
    #panels { layout: vertical; height: 8; }
    #panels > TextPanel { border-top: solid $primary; height: 1fr; display: none; }
    #panels > TextPanel.shown { display: block; }
    .wide #body { layout: horizontal; }
    .wide #panels { width: 36%; height: 1fr; padding-left: 1; }
    #waiting { display: none; padding: 1 2; }
    .empty #waiting { display: block; }
    .empty #plots { display: none; }
    .empty #panels { display: none; }
    """
    BINDINGS = [
        *(
            Binding(key, f"do('{action}')", label, show=bool(label), key_display=SHOWN.get(key))
            for key, action, label, _ in KEYS
        ),
        Binding("ctrl+c", "do('interrupt')", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None

    def __init__(
        self,
        watched: RunWatcher,
        view: PlotView,
        every: float = 1.0,
        failed: Callable[[], bool] = lambda: False,
    ):
        self.colours = not os.environ.get("NO_COLOR")
        super().__init__()
        self._watched, self._view, self._every, self._failed = watched, view, every, failed
        self._notice, self._until = "", 0.0
        self._armed: float | None = None
        self._drawn = 0.0
        self._state: object = None
        self._reading: Timer | None = None
        self._shown: list[str] = []
        sources = [functools.partial(self._drawing, number) for number in range(MOST_PLOTS)]
        self._plots = [PlotPanel(source, lambda: view.log, self.colours) for source in sources]

    # -- the screen ----------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Yield the header, the status line, the plots, the panels and the keys."""
        yield TextPanel(lambda width, _: self._header(width), id="head")
        yield TextPanel(lambda width, _: Text(self._status_line(), no_wrap=True, overflow="ellipsis"), id="how")
        with Container(id="body"):
            yield TextPanel(lambda *_: panels.waiting(self._watched.waiting, self._watched.problems), id="waiting")
            with Container(id="plots"):
                yield from self._plots
            with Container(id="panels"):
                yield TextPanel(self._of_run(lambda run, width, _: panels.table(run, width)), "metrics", "table")
                yield TextPanel(
                    lambda *room: panels.table_of_runs(self._watched.runs, self._view.run, *room), "runs", "runs"
                )
                yield TextPanel(self._of_run(panels.log), "log", "log")
                yield TextPanel(self._of_run(lambda run, width, _: panels.system(run, width)), "system", "system")
        yield FittingFooter(show_command_palette=False, compact=True)

    def _drawing(self, number: int, columns: int) -> Drawing | None:
        if number >= len(self._shown):
            return None
        return draw(self._watched.runs, self._view, self._shown[number], columns)

    def _of_run(self, source: Callable[[LiveRun, int, int], list[str]]) -> Callable[[int, int], list[str]]:
        return lambda width, height: source(self._run, width, height) if self._watched.runs else []

    @property
    def _run(self) -> LiveRun:
        return self._watched.runs[self._view.run % len(self._watched.runs)]

    def _header(self, width: int) -> Text:
        return panels.header_line(self._run, width) if self._watched.runs else Text("no run yet", "bold")

    def _status_line(self) -> str:
        if self._watched.now < self._until:
            return self._notice
        notes = panels.waiting(self._watched.waiting, self._watched.problems) if self._watched.runs else []
        return "  ".join([panels.view_description(self._view, len(self._watched.runs)), *notes])

    def say(self, text: str) -> None:
        """Show a message for some seconds."""
        self._notice, self._until = printable(text), self._watched.now + MESSAGE_SECONDS
        self.set_timer(MESSAGE_SECONDS, lambda: self.redraw(anew=False))

    # -- time ----------------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Start polling the files."""
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # platforms without such signals
            for number in (signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 128 + number)
        self.look()
        self.set_interval(self._every, self.look)
        terminal = sys.__stdin__
        if terminal is not None and terminal.isatty():
            self.set_interval(1.0, lambda: self._leave_with(terminal))

    def _leave_with(self, terminal: TextIO) -> None:
        """Exit when the terminal is closed. Without this signal, reading from the terminal would spin forever."""
        poll = select.poll()
        poll.register(terminal, 0)
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            self.exit(HUNG_UP)

    def on_resize(self, event: events.Resize) -> None:
        """Adapt the layout to the new size."""
        self._arrange(*event.size)
        self.call_after_refresh(self.redraw)

    def look(self) -> None:
        """Refresh the runs from their files. The selected run remains selected when others appear before it."""
        chosen = self._run if self._watched.runs else None
        self._watched.refresh()
        if self._failed():
            self.exit(0)
        if chosen is not None:
            self._view.run = self._watched.runs.index(chosen)
        self._arrange(*self.size)
        self._read_on()

    def _read_on(self) -> None:
        """Read some of the remaining values, and process keys before the next ones."""
        if self._reading is not None:
            self._reading.stop()
        more = self._watched.read(self._shown)
        if not more or self._watched.now - self._drawn > REDRAW:
            self.redraw(anew=False)
        self._reading = self.set_timer(PAUSE, self._read_on) if more else None

    def redraw(self, anew: bool = True) -> None:
        """Redraw the texts, and the plots if there are new values or `anew` is true."""
        self._drawn = self._watched.now
        for widget in self.query(TextPanel):
            widget.refresh()
        if anew or self._watched.state != self._state:
            self._state = self._watched.state
            for plot in self._plots[: len(self._shown)]:
                plot.redraw()

    def _arrange(self, width: int, height: int) -> None:
        """Arrange plots and panels for the size of the terminal."""
        runs, view = self._watched.runs, self._view
        wide = width >= WIDE[0] and height >= WIDE[1]
        self.set_class(not runs, "empty")
        self.screen.set_class(wide, "wide")
        self.screen.set_class(not runs, "empty")
        there = [panel for panel in PANELS if panel != "runs" or len(runs) > 1]
        for panel in PANELS:
            chosen = panel in there and (wide or panel == there[view.panel % len(there)])
            self.query_one(f"#{panel}").set_class(chosen, "shown")
        room = (width * 64 // 100, height - 3) if wide else (width, height - 11)
        columns, rows = (max(1, have // need) for have, need in zip(room, PLOT, strict=True))
        self._shown = view.shown(self._watched.metrics(), min(columns * rows, MOST_PLOTS))
        fewest = 2 if width >= GRID and len(self._shown) > 2 else 1
        columns = min(columns, max(fewest, -(-len(self._shown) // rows)))
        self.query_one("#plots").styles.grid_size_columns = columns
        self._heights(wide)
        for number, plot in enumerate(self._plots):
            plot.display = number < max(1, len(self._shown))

    def _heights(self, wide: bool) -> None:
        """Set each panel to the height of its content; the log gets the remaining lines."""
        run = self._run if self._watched.runs else None
        lines = {"table": len(run.keys) + 1 if run else 1, "runs": len(self._watched.runs) + 1}
        lines["system"] = len(panels.system(run, 80)) if run else 1
        for panel, count in lines.items():
            most = self.size.height // 3
            self.query_one(f"#{panel}").styles.height = min(count + 1, most) if wide else "1fr"

    # -- keys ----------------------------------------------------------------------------------------------------------

    def action_do(self, what: str) -> None:
        """Handle a key."""
        armed, self._armed = self._armed, None
        if what in ("stop", "save"):
            self._ask(what, armed)
        else:
            self._act(what)
        self._arrange(*self.size)
        self._read_on()
        self.call_after_refresh(self.redraw)

    def _act(self, what: str) -> None:
        """Apply an action that changes only the view, or ends it."""
        view = self._view
        actions: dict[str, Callable[[], object]] = {
            "quit": lambda: self.exit(0),
            "interrupt": lambda: self.exit(INTERRUPTED),
            "help": lambda: self.push_screen(Keys()),
            "next": lambda: setattr(view, "first", view.first + 1),
            "previous": lambda: setattr(view, "first", view.first - 1),
            "axis": view.next_axis,
            "each": lambda: setattr(view, "each", not view.is_each),
            "log": lambda: setattr(view, "log", not view.log),
            "smooth": view.smoother,
            "zoom_in": view.zoom_in,
            "zoom_out": view.zoom_out,
            "zoom_off": view.zoom_off,
            "earlier": lambda: view.pan(-0.25),
            "later": lambda: view.pan(0.25),
            "next_run": lambda: self._select(1),
            "previous_run": lambda: self._select(-1),
            "alone": lambda: setattr(view, "alone", not view.alone),
            "many": lambda: setattr(view, "many", not view.many),
            "panel": lambda: setattr(view, "panel", view.panel + 1),
        }
        actions[what]()

    def _select(self, further: int) -> None:
        """Select another run, in the order of the table."""
        if runs := self._watched.runs:
            order = panels.ranked(runs)
            self._view.run = order[(order.index(self._view.run % len(runs)) + further) % len(runs)]

    def _ask(self, what: str, armed: float | None) -> None:
        if not self._watched.runs:
            return self.say("there is no run to ask")
        run, now = self._run, self._watched.now
        if run.status.word != "running":
            return self.say(f"{run.name} is not running ({run.status.word}): it cannot take requests")
        if what == "stop" and not (armed and now < armed):
            self._armed = now + MESSAGE_SECONDS
            return self.say(f"press k again to ask {run.name} to stop; any other key: no")
        try:
            ask(run.directory, what)
        except LearnerError as error:
            return self.say(str(error))
        run.pending = sorted({*run.pending, what}, reverse=True)
        return self.say(f"asked {run.name} to {what}: its log will say what it does")


def watch(watched: RunWatcher, view: PlotView, every: float, failed: Callable[[], bool] = lambda: False) -> int:
    """Show runs on the terminal until the user quits, or `failed` returns True; return the exit code."""
    app = WatchApp(watched, view, every, failed)
    result = app.run(mouse=False)
    return result if result is not None else app.return_code or 0
