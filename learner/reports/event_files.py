"""Export of any run as an event file of TensorBoard."""

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learner.config.mappings import is_deep
from learner.errors import LearnerError
from learner.loggers.tfevents import EPOCH, STEP, Records, folder_of
from learner.reports.confusion_matrices import read_matrix
from learner.runs.appended import refuse_special
from learner.runs.flat_config import DEEPEST
from learner.runs.journal import NUMBERS
from learner.runs.layout import read_summary
from learner.runs.run_reader import RunReader
from learner.util.json_values import decode
from learner.util.optional import refuse_missing
from learner.util.text import utf8_safe

KIND = "tensorboard"
FILE = re.compile(r"events\.out\.tfevents\.\d{10}\.exported")
OTHER = "events.out.tfevents."
PARTIAL = "export.partial"
LONGEST_LOG = 256 << 10
"""The number of last bytes of a run's log that are exported."""
LONGEST_TEXT = 64 << 10
"""Characters of a metric's text that are exported. Pictures of large matrices are complete."""
LAST_SECOND = 10**10 - 1


def write_events(directory: str | os.PathLike[str], run: RunReader) -> int:
    """Write the contents of a run's files to TensorBoard event files, each atomically.

    The files are those of the logger `TensorBoard`: one of the run, and one in a separate directory for each split.
    They have values of whole splits (`epoch/Loss`) and of single steps (`step/Loss`) at their optimizer steps, with the
    times of the journal (interpolated between its lines). Metrics that are not numbers are texts, and confusion
    matrices are also pictures. Config, environment, commit, status, summary and log are texts; the config also provides
    the run's hyper-parameters.

    Args:
      directory: the directory of the event files, which is created. An earlier export in it is replaced.
      run: the run to export.

    Returns:
      The number of records.

    Raises:
      LearnerError: tensorboardX is not installed, the directory contains other event files, or it cannot be written.
    """
    refuse_missing("tensorboardX", "tensorboard", "an export to TensorBoard")
    place = Path(directory)
    began = next((_time(entry) for entry in run.journal if _time(entry)), 0.0)
    name = f"{OTHER}{min(int(began), LAST_SECOND):010d}.exported"
    try:
        refuse_special(place)
        place.mkdir(exist_ok=True)
        _refuse_others(place)
        return _write(place, name, run, began)
    except OSError as error:
        raise LearnerError(
            f"the events cannot be written to {place}: {error}", code="report-not-written", place=place
        ) from error


def _write(place: Path, name: str, run: RunReader, began: float) -> int:
    from tensorboardX.record_writer import RecordWriter

    records: dict[Path, Records] = {}
    try:
        with contextlib.ExitStack() as stack:

            def of(split: str) -> Records:
                partial = place / folder_of(split) / PARTIAL
                if partial not in records:
                    refuse_special(partial.parent)
                    partial.parent.mkdir(exist_ok=True)
                    partial.unlink(missing_ok=True)  # it may be a link, which would be written through
                    # The full path: RecordWriter uploads what begins with s3: or gs:
                    file = stack.enter_context(contextlib.closing(RecordWriter(os.fspath(partial.absolute()))))
                    records[partial] = Records(file.write)
                    records[partial].begin(began)
                return records[partial]

            _write_records(of, run, began)
        for earlier in filter(_is_exported, _event_files(place)):
            earlier.unlink()
        for partial in records:
            partial.replace(partial.with_name(name))
    finally:
        for partial in records:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
    return sum(each.count for each in records.values())


def _event_files(place: Path) -> list[Path]:
    """Return the event files of a directory and of its subdirectories."""
    return [*place.glob(f"{OTHER}*"), *place.glob(f"*/{OTHER}*")]


def _is_exported(path: Path) -> bool:
    return FILE.fullmatch(path.name) is not None


def _refuse_others(place: Path) -> None:
    others = [path for path in _event_files(place) if not _is_exported(path)]
    if others:
        raise LearnerError(
            f"{place} holds event files of something else, such as {others[0].name}: every value would be there twice. "
            "Choose another directory: -o DIR",
            code="report-foreign-events",
            place=place,
        )


def _write_records(of: Callable[[str], Records], run: RunReader, began: float) -> None:
    ended = max([began, *map(_time, run.journal)])
    for name, content in _texts(run).items():
        if content:
            at = (ended, run.step) if name in ("status", "summary", "log") else (began, 0)
            of("").text(f"run/{name}", content, *at)
    keys = [key for key in run.history if not isinstance(run.points(key)[-1].value, str)]
    metrics = [(split, f"{EPOCH}/{name}") for split, name in (key.split("/", 1) for key in keys)]
    end = of("").settings(run.nested_config, metrics, began)
    for key in run.keys:
        if key.startswith("train/"):
            _steps(of("train"), run, key)
    for entry in run.journal:
        if entry.get("event") in NUMBERS:
            _split(of, entry)
    if run.status.word != "running":
        end(ended)


def _texts(run: RunReader) -> dict[str, str | Mapping[str, Any]]:
    summary = read_summary(run.directory) or {}
    log = "\n".join(run.log(LONGEST_LOG) or [])
    commit = str(run.environment.get("commit", ""))
    environment = {key: value for key, value in run.environment.items() if key != "commit"}
    return {
        "config": run.nested_config,
        "environment": environment,
        "commit": commit,
        "status": str(run.status),
        "summary": {} if is_deep(summary, DEEPEST) else summary,
        "log": log,
    }


def _steps(records: Records, run: RunReader, key: str) -> None:
    series, tags = run.steps(key), [utf8_safe(f"{STEP}/{key.partition('/')[2]}")]
    walls = run.times(series.step.astype(np.float64))
    for wall, step, value in zip(walls.tolist(), series.step.tolist(), series.mean.tolist(), strict=True):
        records.scalars(wall, step, tags, [value])


def _split(of: Callable[[str], Records], entry: Mapping[str, Any]) -> None:
    wall, step = _time(entry), entry["step"]
    splits: dict[str, dict[str, float | str]] = {}
    for key, value in entry["values"].items():
        split, name = key.split("/", 1)
        splits.setdefault(split, {})[name] = decode(value)
    for split, values in splits.items():
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        cut = {name: x[:LONGEST_TEXT] + "\n..." * (len(x) > LONGEST_TEXT) for name, x in texts.items()}
        of(split).values({**values, **cut}, wall, step)
        for name, text in texts.items():
            if (matrix := read_matrix(text)) is not None:
                of(split).picture(f"{EPOCH}/{name}", matrix.picture(), wall, step)


def _time(entry: Mapping[str, Any]) -> float:
    value = entry.get("time")
    return float(value) if isinstance(value, int | float) and 0 <= value < LAST_SECOND else 0.0
