"""Renderer that writes lines of text, for files and pipes."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

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
    StepsEnded,
)
from learner.renderers import lines
from learner.renderers.board import hidden_text
from learner.renderers.overview_text import overview_lines
from learner.renderers.progress import Progress
from learner.renderers.summary_text import summary_lines
from learner.util.metric_order import is_selected
from learner.util.several import as_several
from learner.util.stages import end_stages
from learner.util.text import duration


class PlainRenderer(Listener):
    """Write one line for each epoch, and one every `every_seconds` within long epochs, without control characters. On a
    terminal, a line has the most important metrics that fit; in files and pipes, it has all numbers. Text metrics, such
    as confusion matrices, follow when the run ends.

    Args:
      stream: the stream to write to; default: the current `sys.stdout`.
      clock: returns seconds from any starting point.
      every_seconds: the least time between two lines within an epoch.
      metrics: keys (`valid/Loss`) or names (`Loss`) of the metrics to show; default: all.

    >>> renderer = PlainRenderer()
    >>> values = {"train/Loss": 0.5123, "train/Accuracy": 0.85, "valid/Loss": 0.25, "valid/Accuracy": 0.9}
    >>> renderer.on_event(EpochEnded(0.0, epoch=3, step=135, values=values, seconds=1.24))
    epoch 3  valid Loss 0.25  Accuracy 0.9 | train Loss 0.5123  Accuracy 0.85  1.2 s
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        every_seconds: float = 10,
        metrics: str | Sequence[str] = (),
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._every_seconds = every_seconds
        self._metrics = tuple(as_several(metrics))
        self._monitor: str | None = None
        self._written_at = clock()
        self._progress = Progress(clock)
        self._directory: str | os.PathLike[str] | None = None
        self._validated: dict[str, float | str] = {}  # inside this epoch, not written yet
        self._texts: dict[str, tuple[str, int]] = {}  # the newest values of text metrics, with their epochs
        self._hidden = 0  # metrics that do not fit on a line, as reported

    def on_event(self, event: Event) -> None:
        """Write the event's lines, if any."""
        self._progress.on_event(event)
        if isinstance(event, StepsEnded):
            self._on_steps()
        elif isinstance(event, SplitEnded):
            values = {f"{event.split}/{name}": value for name, value in event.values.items()}
            self._note_texts(values, event.epoch)
            if event.at_step == 0:  # does not belong to the next epoch
                self._write_values(["step 0"], values)
            elif event.at_step is not None:
                self._validated |= values
        elif isinstance(event, EpochEnded):
            values = {
                **event.values,
                **{key: value for key, value in self._validated.items() if key not in event.values},
            }
            self._validated.clear()
            self._note_texts(event.values, event.epoch)
            self._write_values([self._progress.label()], values, [duration(event.seconds)])
        else:
            self._write(self._about_run(event))

    def _note_texts(self, values: Mapping[str, float | str], epoch: int) -> None:
        selected = {key: value for key, value in values.items() if is_selected(key, self._metrics)}
        self._texts |= {key: (value, epoch) for key, value in selected.items() if isinstance(value, str)}

    def _on_steps(self) -> None:
        if self._clock() - self._written_at < self._every_seconds:
            return
        loss = self._progress.train_loss
        values = ({} if loss is None else {"train/Loss": loss}) | self._validated
        position, speed, left = self._progress.texts()
        self._validated.clear()
        self._write_values([self._progress.label(), position], values, [speed, left])

    def _write_values(
        self, before: Sequence[str], values: Mapping[str, float | str], after: Sequence[str] = ()
    ) -> None:
        """Write one line: the texts before, the numbers that fit, and the texts after."""
        selected = {key: value for key, value in values.items() if is_selected(key, self._metrics)}
        width = self._width()
        room = width and width - sum(len(text) + len("  ") for text in (*before, *after) if text)
        shown, hidden = lines.values(selected, self._monitor, room)
        line = "  ".join(filter(None, (*before, shown, *after)))
        hint = hidden_text(hidden, width) if width and hidden > self._hidden else ""
        self._hidden = max(self._hidden, hidden)
        self._write([*filter(None, [hint]), line])

    def _width(self) -> int | None:
        """Return the width of the terminal, in characters. Return None if the lines go to a file or a pipe."""
        stream = self._stream or sys.stdout
        is_terminal = getattr(stream, "isatty", bool)()
        return shutil.get_terminal_size().columns if is_terminal else None

    def _about_run(self, event: Event) -> list[str]:
        if isinstance(event, RunStarted):
            self._directory, self._monitor = event.shown or event.directory, event.monitor
            self._texts, self._validated, self._hidden = {}, {}, 0
            return [lines.started(event), *lines.unmatched(event, self._metrics)]
        if isinstance(event, Overview):
            return overview_lines(event)
        if isinstance(event, Message):
            return lines.message(event)
        if isinstance(event, RunEnded):
            summary = summary_lines(event.summary, self._directory, self._texts) if event.show_summary else []
            return [*lines.texts(self._texts), lines.ended(event), *summary]
        return [lines.failed(event)] if isinstance(event, RunFailed) else []

    def _write(self, texts: Sequence[str]) -> None:
        if texts:
            self._written_at = self._clock()
            write_lines(texts, self._stream)


def write_lines(texts: Sequence[str], stream: TextIO | None = None) -> None:
    """Write lines to a stream (None: `sys.stdout`), with question marks for characters outside its encoding."""
    stream = stream or sys.stdout
    if stream is None:  # standard output is closed
        return
    end_stages()
    text = "".join(f"{line}\n" for line in texts)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()
