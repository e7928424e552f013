"""Display of a run in a notebook: a table and curves that update during the run."""

import collections
import os
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from learner.errors import LearnerError
from learner.events import (
    EpochEnded,
    Event,
    Listener,
    Message,
    Overview,
    RunEnded,
    RunFailed,
    RunStarted,
    SplitEnded,
)
from learner.renderers import lines, page
from learner.renderers.board import board
from learner.renderers.kernel import in_notebook
from learner.renderers.overview_text import overview_lines
from learner.renderers.progress import Progress
from learner.renderers.summary_text import places
from learner.renderers.trends import Trends
from learner.util.fragments import fragment, paragraph, preformatted

SECONDS_BETWEEN_UPDATES = 0.5
MOST_MESSAGES = 10
WIDTH = 80  # of the text for frontends without HTML

Display = Callable[[Mapping[str, str], str, bool], object]


class NotebookRenderer(Listener):
    """Display a run below the cell that started it: the current and the best value of each metric, and curves.

    The display is one output of the cell, which is replaced while the run trains: HTML without scripts, and text for
    frontends without HTML. It is therefore saved with the notebook, and running the cell again starts a new output.
    Updates are sent even if nobody looks. A notebook that was closed meanwhile keeps the last update that it received;
    `learner report` or `learner plot` shows the rest.

    Curves of `train` show a sample of single steps until there are whole epochs.

    Args:
      display: called with the output by type (`text/html`, `text/plain`), the id of its place, and True if the place
        already has an output; default: the notebook's display.
      clock: returns seconds from any starting point.
      every_seconds: the least time between two updates, and between two updates at the ends of epochs. The end of a run
        is shown at once.

    Raises:
      LearnerError: this is not a notebook, and no `display` was passed.

    >>> shown = []
    >>> renderer = NotebookRenderer(lambda output, identifier, update: shown.append((output["text/plain"], update)))
    >>> from pathlib import Path
    >>> renderer.on_event(RunStarted(0.0, Path("runs/a"), 10, None, 45, (), parameters=10378))
    >>> renderer.on_event(RunFailed(0.0, 1, 30, "ValueError: no loss"))
    >>> for text, update in shown:
    ...     print(update, text.splitlines())
    False ['runs/a: 10 epochs of 45 steps, 10,378 parameters', 'epoch 1/10  compiling']
    True ['runs/a: 10 epochs of 45 steps, 10,378 parameters', 'failed at epoch 1, step 30: ValueError: no loss']
    """

    def __init__(
        self,
        display: Display | None = None,
        clock: Callable[[], float] = time.monotonic,
        every_seconds: float = SECONDS_BETWEEN_UPDATES,
    ) -> None:
        if display is None and not in_notebook():
            raise LearnerError(
                "NotebookRenderer shows a run in a notebook, but this is not one; elsewhere use RichRenderer, for "
                "terminals, or PlainRenderer",
                code="renderer-notebook-missing",
            )
        self._display = display or _display
        self._clock, self._every_seconds = clock, every_seconds
        self._place = ""
        self._begin()

    def _begin(self) -> None:
        self._progress, self._trends = Progress(self._clock), Trends()
        self._texts: dict[str, tuple[str, int]] = {}  # the newest values of text metrics, with their epochs
        self._overview: list[str] = []
        self._newest_messages: collections.deque[Message] = collections.deque(maxlen=MOST_MESSAGES)
        self._message_count = 0
        self._directory: str | os.PathLike[str] | None = None
        self._heading = self._end = ""
        self._files: list[str] = []
        self._is_there = self._changed = False
        self._time = 0.0  # of the newest event
        self._shown_at = self._epoch_shown_at = self._clock() - self._every_seconds

    def on_event(self, event: Event) -> None:
        """Record the event, and update the display if it is due."""
        if isinstance(event, Overview):
            if self._place:  # of a run before this one
                self._begin()
            self._place, self._overview = "", overview_lines(event)
        elif isinstance(event, RunStarted):
            if self._place:  # of a run before this one
                self._begin()
            self._place = f"learner-{uuid.uuid4().hex}"
            self._heading, self._directory = lines.started(event), event.shown or event.directory
        self._progress.on_event(event)
        self._trends.on_event(event)
        self._changed, self._time = True, event.time
        if isinstance(event, SplitEnded):
            texts = {name: value for name, value in event.values.items() if isinstance(value, str)}
            self._texts |= {f"{event.split}/{name}": (text, event.epoch) for name, text in texts.items()}
        elif isinstance(event, Message):
            self._newest_messages.append(event)
            self._message_count += 1
        elif isinstance(event, (RunEnded, RunFailed)):
            self._take_end(event)
        # after slow steps, an epoch's values must not wait for the next ones
        shown_at = self._epoch_shown_at if isinstance(event, EpochEnded) else self._shown_at
        if self._end or self._clock() - shown_at >= self._every_seconds:
            self._show()
            if isinstance(event, EpochEnded):
                self._epoch_shown_at = self._shown_at

    def close(self) -> None:
        """Display pending events."""
        if self._place and self._changed:
            self._show()

    def _take_end(self, event: RunEnded | RunFailed) -> None:
        if isinstance(event, RunFailed):
            self._end = lines.failed(event)
            return
        self._end = lines.ended(event)
        if event.show_summary:
            self._files = places(event.summary, self._directory)

    def _show(self) -> None:
        if not self._place:  # a message before the run
            return
        self._shown_at, self._changed = self._clock(), False
        self._display({"text/html": self._html(), "text/plain": self._plain()}, self._place, self._is_there)
        self._is_there = True

    def _status(self) -> str:
        """Return the current position, or how the run ended."""
        return self._end or "  ".join(filter(None, (self._progress.label(), *self._progress.texts())))

    def _html(self) -> str:
        trends, monitor = self._trends.newest(), self._trends.monitor
        parts = [paragraph(self._heading, strong=True), paragraph(self._status())]
        if not self._end:  # a picture saved during a run shows its time
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self._time))
            parts += [self._bar(), paragraph(f"as of {at} UTC")]
        parts += [preformatted(self._overview)] if self._overview else []
        parts += [page.table(trends, monitor), page.charts(trends, monitor), page.texts(self._texts)]
        parts += [
            page.messages(self._newest_messages, self._message_count - len(self._newest_messages)),
            *map(paragraph, self._files),
        ]
        return fragment(*parts)

    def _bar(self) -> str:
        completed, total = self._progress.completed()
        return "" if total is None else f'<progress value="{completed}" max="{total}" style="width: 280px"></progress>'

    def _plain(self) -> str:
        rows = board(self._trends.newest(), WIDTH, page.MOST_METRICS, self._trends.monitor)
        log_lines = [line for message in self._newest_messages for line in lines.message(message)]
        head = [*self._overview, self._heading, self._status()]
        return "\n".join([*head, *rows, *lines.texts(self._texts), *log_lines, *self._files])


def _display(output: Mapping[str, str], identifier: str, update: bool) -> Any:
    from IPython.display import display

    display(dict(output), raw=True, display_id=identifier, update=update)
