"""The numbers of a run as one table for other programs."""

import bisect
import os
from collections.abc import Iterator

import numpy as np

from learner.errors import LearnerError
from learner.runs.run_reader import RunReader
from learner.util.table_files import write_rows
from learner.util.text import utf8_safe

_TEXTS, _INTEGERS = {"split": str, "metric": str, "level": str}, {"epoch": np.int64, "step": np.int64}
COLUMNS = {**_TEXTS, **_INTEGERS, "value": np.float64, "text": str}
Row = tuple[str, str, str, int, int, float | None, str | None]


def rows(run: RunReader) -> Iterator[Row]:
    """Yield every number in the files of a run.

    Yields:
      `split`; `metric`, its name; `level`: `step` for the value of one optimizer step, or `split` for the value of a
      whole split; `epoch` and `step`, during and after which it was measured; `value`; and `text`, if the value is not
      a number.
    """
    epochs, ends = list(run.ends), list(run.ends.values())
    epochs.append(run.epochs + 1)  # has not ended
    for key in run.keys:
        split, name = utf8_safe(key).split("/", 1)
        if split == "train":
            series = run.steps(key)
            for step, value in zip(series.step.tolist(), series.mean.tolist(), strict=True):
                yield split, name, "step", epochs[bisect.bisect_left(ends, step)], step, value, None
        for point in run.points(key) if key in run.history else ():
            if isinstance(point.value, str):
                yield split, name, "split", point.epoch, point.step, None, utf8_safe(point.value)
            else:
                yield split, name, "split", point.epoch, point.step, float(point.value), None


def write_table(path: str | os.PathLike[str], run: RunReader, kind: str) -> int:
    """Write the numbers of a run to a file, atomically.

    Args:
      path: the path of the file.
      run: the run to export.
      kind: `csv`, `jsonl` or `parquet`; see `learner.util.table_files`.

    Returns:
      The number of rows.

    Raises:
      LearnerError: the run has no numbers, the file cannot be written, or pyarrow, which Parquet needs, is not
        installed.
    """
    if not run.keys:
        raise LearnerError(f"{run.directory} has no numbers yet", code="report-without-numbers")
    try:
        return write_rows(path, kind, COLUMNS, rows(run))
    except OSError as error:
        raise LearnerError(
            f"the numbers cannot be written to {os.fspath(path)}: {error}", code="report-not-written"
        ) from error
