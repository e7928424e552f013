"""Logger that writes all measurements of a run to `metrics.jsonl`, one JSON object per line."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from learner.events import RunEnded, RunFailed, RunStarted, SplitEnded, StepsEnded
from learner.loggers.base import EVERY, RunLogger
from learner.loggers.secrets import resolve
from learner.loggers.tail import kept_lines, prepare_file
from learner.runs.appended import AppendedFile, value_texts, weight_texts
from learner.runs.flat_config import flat
from learner.util.json_values import encode

FIELDS = ("event", "time", "split", "epoch", "step", "at_step", "weight")


class JsonLines(RunLogger):
    """Write one JSON object per line: for the start, for steps, for the values of a split, and for the end. Objects are
    flat, so `pandas.read_json(path, lines=True)` has a column for each metric.

        {"event": "start", "time": 1769860800.0, "epoch": 1, "step": 0, "config.lr": 0.1, "environment.jax": ...}
        {"event": "step", "split": "train", "epoch": 1, "step": 1, "weight": 32, "Loss": 2.3}
        {"event": "split", "time": 1769860801.0, "split": "valid", "epoch": 1, "step": 45, "Loss": 0.5}
        {"event": "end", "time": 1769860802.0, "epoch": 1, "step": 45, "stopped_by": "num_epochs", "summary.epochs": 1}

    It is strict JSON: numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity". A metric with the
    name of another field is written as `<split>/<name>`. A resumed run removes the lines of steps that it repeats; a
    new run replaces the file.

    Args:
      path: the path of the file; default: `metrics.jsonl` in the run's directory.
      every_steps: see `RunLogger`.
      every_epochs: see `RunLogger`.
    """

    file = "metrics.jsonl"

    def __init__(self, path: str | None = None, every_steps: int | None = EVERY, every_epochs: int = 1):
        super().__init__(every_steps, every_epochs)
        self.place = resolve(path)
        self._file: AppendedFile | None = None

    def started(self, event: RunStarted) -> None:
        """Open the file, and truncate it if the run is resumed."""
        path = Path(self.place) if self.place is not None else event.directory / self.file
        keep = kept_lines(event)

        def verdict(line: bytes) -> bool | None:
            record = json.loads(line)
            if record["event"] not in ("step", "split"):
                return True
            values = record.get("values")  # of earlier versions
            names = list(values) if isinstance(values, dict) else [name for name in record if name not in FIELDS]
            names = [name.removeprefix(f"{record['split']}/") for name in names]
            return keep(record["event"], record["split"], record["epoch"], record["step"], names)

        prepare_file(path, event, verdict)
        self._file = AppendedFile(str(path))
        names = ("directory", "num_epochs", "num_steps", "steps_per_epoch", "parameters", "resumed", "monitor")
        content = {name: getattr(event, name) for name in (*names, "config", "environment", "commit")}
        metrics = [info.key for info in event.metrics]
        self._write("start", time=event.time, epoch=event.epoch, step=event.step, metrics=metrics, **content)

    def steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Write a line for each step."""
        assert self._file is not None
        head = f'{{"event": "step", "split": {json.dumps(event.split)}, "epoch": {event.epoch}, "step": '
        named = [(json.dumps(_field(event.split, name)), json_texts(column)) for name, column in values.items()]
        columns = [[f"{name}: {text}" for text in texts] for name, texts in named]
        weights = _in_json(weight_texts(event.weights[steps.start - event.first :: steps.step]))
        for step, weight, *numbers in zip(steps, weights, *columns, strict=True):
            line = ", ".join([f'{head}{step}, "weight": {weight}', *numbers]) + "}\n"
            self._file.pending.append(line)
        self._file.write()

    def split(self, event: SplitEnded) -> None:
        """Write a line. Raise `LearnerError` if the file was removed or replaced."""
        if self._file is not None:
            self._file.refuse_loss()
        where = {"split": event.split, "epoch": event.epoch, "step": event.step, "at_step": event.at_step}
        self._write("split", time=event.time, **where, **{_field(event.split, x): y for x, y in event.values.items()})

    def ended(self, event: RunEnded) -> None:
        """Write a line with the summary."""
        where = {"epoch": event.epoch, "step": event.step, "seconds": event.seconds}
        self._write("end", time=event.time, **where, stopped_by=event.stopped_by, summary=event.summary)

    def failed(self, event: RunFailed) -> None:
        """Write a line with the error."""
        self._write("error", time=event.time, epoch=event.epoch, step=event.step, error=event.error)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, kind: str, **fields: Any) -> None:
        if self._file is not None:
            self._file.pending.append(json.dumps(encode(flat({"event": kind, **fields})), allow_nan=False) + "\n")
            self._file.write()


def _field(split: str, name: str) -> str:
    return f"{split}/{name}" if name in FIELDS else name


def json_texts(values: np.ndarray) -> list[str]:
    """Return each number of `[count]` as JSON.

    >>> json_texts(np.float32([0.1, float("nan"), float("-inf")]))
    ['0.1', '"NaN"', '"-Infinity"']
    """
    texts = value_texts(values)
    return texts if np.isfinite(values).all() else _in_json(texts)


def _in_json(texts: list[str]) -> list[str]:
    words = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
    return [words.get(text, text) for text in texts]
