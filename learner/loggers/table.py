"""Logger that writes the values of a run to `metrics.csv`, as one table."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from learner.events import RunStarted, SplitEnded, StepsEnded
from learner.loggers.base import EVERY, RunLogger
from learner.loggers.secrets import resolve
from learner.loggers.tail import kept_lines, prepare_file
from learner.runs.appended import AppendedFile, final_text, value_texts, weight_texts
from learner.util.disk import replacing

WHERE = ["kind", "split", "epoch", "step", "weight"]


class Csv(RunLogger):
    """Write a table with a row for each step, and a row for the values of each split.

        kind,split,epoch,step,weight,Loss,Accuracy
        step,train,1,1,32,2.3,0.0625
        split,train,1,45,,1.2,0.65
        split,valid,1,45,,0.5,0.92

    Every row has all columns. A metric that appears after the start (a hook's number) gets a new last column, for which
    the file is rewritten atomically. Missing values are empty. Non-finite numbers are nan, inf and -inf. Texts, such as
    confusion matrices, are left out. A resumed run removes the rows of steps that it repeats; a new run replaces the
    file.

    Args:
      path: the path of the file; default: `metrics.csv` in the run's directory.
      every_steps: see `RunLogger`.
      every_epochs: see `RunLogger`.
    """

    file = "metrics.csv"

    def __init__(self, path: str | None = None, every_steps: int | None = EVERY, every_epochs: int = 1):
        super().__init__(every_steps, every_epochs)
        self.place = resolve(path)
        self._file: AppendedFile | None = None
        self._names: list[str] = []

    def started(self, event: RunStarted) -> None:
        """Open the file, and truncate it if the run is resumed."""
        path = Path(self.place) if self.place is not None else event.directory / self.file
        keep = kept_lines(event)
        self._names = _header(path) if event.resumed else []

        def verdict(line: bytes) -> bool | None:
            kind, split, epoch, step, _, *values = _row(line)
            if kind == "kind":
                return None
            names = [name for name, value in zip(self._names, values, strict=True) if value]
            return keep(kind, split, int(epoch), int(step), names)

        prepare_file(path, event, verdict)
        self._file = AppendedFile(str(path))
        self._take_in([info.name for info in event.metrics if info.numeric])

    def steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Write a row for each step."""
        assert self._file is not None
        self._take_in(list(values))
        empty = [""] * len(steps)
        columns = [value_texts(values[name]) if name in values else empty for name in self._names]
        weights = weight_texts(event.weights[steps.start - event.first :: steps.step])
        head = _line(["step", event.split, str(event.epoch)]).removesuffix("\n")
        for row in zip(map(str, steps), weights, *columns, strict=True):
            self._file.pending.append(f"{head},{','.join(row)}\n")
        self._file.write()

    def split(self, event: SplitEnded) -> None:
        """Write a row. Raise `LearnerError` if the file was removed or replaced."""
        assert self._file is not None
        self._file.refuse_loss()
        numbers = {name: value for name, value in event.values.items() if not isinstance(value, str)}
        if not numbers:
            return
        self._take_in(list(numbers))
        texts = [final_text(numbers[name]) if name in numbers else "" for name in self._names]
        self._file.pending.append(_line(["split", event.split, str(event.epoch), str(event.step), "", *texts]))
        self._file.write()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _take_in(self, names: Sequence[str]) -> None:
        """Add the missing columns to the table."""
        new = [name for name in dict.fromkeys(names) if name not in self._names]
        if not new and self._names:
            return
        assert self._file is not None
        self._names += new
        self._file.close()
        path = self._file.path
        with replacing(path, flushes=False) as wider:
            wider.write(_line([*WHERE, *self._names]).encode())
            if os.path.exists(path):
                with open(path, "rb") as before:
                    next(before, None)
                    wider.writelines(line.rstrip(b"\n") + b"," * len(new) + b"\n" for line in before)
        self._file = AppendedFile(path)


def _header(path: Path) -> list[str]:
    """Return the metrics that have columns in a file."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        line = file.readline()
    return _row(line)[len(WHERE) :] if line.endswith(b"\n") else []


def _row(line: bytes) -> list[str]:
    csv.field_size_limit(max(csv.field_size_limit(), len(line)))  # the text of a large confusion matrix is one field
    return next(csv.reader([line.decode()]))


def _line(fields: Sequence[str]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow(fields)
    return written.getvalue()
