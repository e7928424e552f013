"""The training member of a sweep, as one line of the terminal."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from learner.events import EpochEnded, Event, Listener, RunStarted
from learner.renderers import lines
from learner.renderers.consoles import rendered
from learner.renderers.progress import Progress
from learner.util.stages import end_stages
from learner.util.text import printable

PER_SECOND = 2  # a drawing takes some milliseconds of a core that trains


class SweepStatus(Listener):
    """Draw a line with the position, the newest values and the remaining time of a run until it ends.

    Args:
      title: the number of the member, the number of members, and its name.
      console: the console of a terminal.
      clock: returns seconds from any starting point.
    """

    def __init__(self, title: str, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._title, self._console = printable(title), console
        self._progress = Progress(clock)
        self._values = ""
        self._monitor: str | None = None
        self._status = console.status("", refresh_per_second=PER_SECOND)

    def on_event(self, event: Event) -> None:
        """Redraw the line."""
        self._progress.on_event(event)
        if isinstance(event, RunStarted):
            self._monitor = event.monitor
        if isinstance(event, EpochEnded):
            self._values, _ = lines.values(event.values, self._monitor, self._console.width // 3)
        position, _, left = self._progress.texts()
        text = "  ".join(filter(None, (self._title, self._progress.label(), position, self._values, left)))
        self._status.update(rendered(Text(text, overflow="ellipsis", no_wrap=True), self._console))
        if isinstance(event, RunStarted):
            end_stages()
            self._status.start()

    def close(self) -> None:
        """Remove the line."""
        self._status.stop()
