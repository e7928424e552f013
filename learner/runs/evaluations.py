"""The evaluations of a run's checkpoints: `evaluations.jsonl`, one JSON object per evaluation.

The journal belongs to the training process, which may truncate it. Evaluations may come from other processes, even
while the run trains, so they have their own file, with lines of the same form:

    {"event": "evaluation", "time": 1769860800.5, "epoch": 17, "step": 765, "values": {"test/Loss": 0.07},
     "metrics": {"test/Loss": {"unit": "", "higher_is_better": false}}, "starts": 1}

`epoch` and `step` belong to the checkpoint. `metrics` has the unit and the direction of each value. `starts` is the
number of lines `start` that the journal had. If two lines have the same split and step, the later one counts.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.events import MetricInfo
from learner.runs.appended import refuse_special, replace
from learner.runs.history import History, metric_summary
from learner.runs.journal import EVALUATION, entry_of, read_journal
from learner.runs.layout import MARK, read_summary
from learner.runs.lock import locked
from learner.util.disk import NO_FOLLOW, read_lines
from learner.util.json_values import encode
from learner.util.number_checks import is_finite, is_int

NAME = "evaluations.jsonl"
SPLIT = re.compile(r"(?!(train|valid|custom)(-|$))[A-Za-z][\w-]{0,60}")


def check_split(split: Any) -> str:
    """Return the name of an evaluation's split. Raise `LearnerError` if it is not a file name, or is another split of
    the run.
    """
    if not isinstance(split, str) or not SPLIT.fullmatch(split):
        raise LearnerError(
            f"the split of an evaluation is {split!r}; it needs a name of letters, digits, _ and -, such as 'test'. "
            "train, valid, custom, and names that begin with one of them and a hyphen belong to training",
            code="run-evaluation-split",
            split=split,
        )
    return split


def record_evaluation(
    directory: Path, epoch: int, step: int, values: Mapping[str, float | str], infos: Sequence[MetricInfo], time: float
) -> None:
    """Append the values of a checkpoint, by key, and add them to `summary.json` if the run has ended.

    Args:
      directory: the run directory.
      epoch: the epoch of the checkpoint.
      step: the step of the checkpoint.
      values: the values by key, such as `test/Loss`.
      infos: the properties of these metrics.
      time: now, in seconds since 1970 (UTC).
    """
    metrics = {info.key: {"unit": info.unit, "higher_is_better": info.higher_is_better} for info in infos}
    starts = len(_starts(_journal_of(directory)))
    fields = {"time": time, "epoch": epoch, "step": step, "values": values, "metrics": metrics, "starts": starts}
    line = json.dumps(encode({"event": EVALUATION, **fields}), allow_nan=False).encode() + b"\n"
    path = directory / NAME
    refuse_special(path)
    with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | NO_FOLLOW, 0o666), "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        # A killed process may have left a torn line. One write, because other processes may append as well.
        torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write(b"\n" + line if torn else line)
        os.fsync(file.fileno())
    _add_to_summary(directory)


def _add_to_summary(directory: Path) -> None:
    try:
        with locked(directory):
            complete_summary(directory)
    except LearnerError as error:
        if error.code != "run-in-use":  # a training run completes its summary before it releases the lock
            raise


def complete_summary(directory: Path) -> None:
    """Add the evaluations of a run that has ended to its `summary.json`, under the lock of the directory."""
    summary = read_summary(directory) if (directory / NAME).is_file() else None
    if summary is None or not isinstance(summary.get("metrics"), dict):
        return
    metrics = summary["metrics"] | summaries(read_evaluations(directory))
    if metrics != summary["metrics"]:
        content = {**summary, "metrics": metrics}
        replace(str(directory / "summary.json"), json.dumps(encode(content), indent=2).encode() + b"\n")


def read_evaluations(directory: Path, journal: Iterable[Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Return the evaluations of a run's checkpoints, one for each split, in the order of their steps.

    Args:
      directory: the run directory.
      journal: the lines of the journal; default: read them. An evaluation is void if the run later restarted at a step
        before the checkpoint, because it then repeated these steps.
    """
    path = directory / NAME
    if not path.is_file() or path.is_symlink():
        return []
    lines = (line.removesuffix(b"\n") for line in read_lines(path))
    entries = [entry_of(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    starts = _starts(_journal_of(directory) if journal is None else journal)
    newest: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in entries:
        if entry.get("event") != EVALUATION or any(step < entry["step"] for step in _steps_of_later(starts, entry)):
            continue
        for split in _splits_of(entry):
            of_split = {
                name: {key: value for key, value in entry[name].items() if key.startswith(f"{split}/")}
                for name in ("values", "metrics")
            }
            newest[split, entry["step"]] = {**entry, **of_split}
    return sorted(newest.values(), key=lambda entry: int(entry["step"]))


def _journal_of(directory: Path) -> list[dict[str, Any]]:
    return [entry for _, entry in read_journal(directory)] if (directory / MARK).exists() else []


def _starts(journal: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the lines that each start of the run wrote. Resuming removes none of them."""
    return [entry for entry in journal if entry.get("event") == "start"]


def _steps_of_later(starts: Sequence[Mapping[str, Any]], evaluation: Mapping[str, Any]) -> list[int]:
    """Return the steps at which a run started after an evaluation."""
    if is_int(count := evaluation.get("starts")) and count >= 0:
        later = starts[count:]
    else:  # a line of an older version, which only the clocks can order
        later = [start for start in starts if is_finite(time := start.get("time")) and time > evaluation["time"]]
    return [step for start in later if is_int(step := start.get("step"))]


def evaluated_steps(directory: Path, splits: Iterable[str]) -> set[int]:
    """Return the steps of the checkpoints that were evaluated on all of these splits."""
    entries = read_evaluations(directory)
    return set.intersection(*({entry["step"] for entry in entries if split in _splits_of(entry)} for split in splits))


def _splits_of(entry: Mapping[str, Any]) -> list[str]:
    """Return the splits of an evaluation in the order of its values. The order of a set of strings differs between
    processes.
    """
    return list(dict.fromkeys(key.split("/", 1)[0] for key in entry["values"]))


def summaries(entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best and the last value of each metric by key, as `summary.json` has them."""
    history, infos = History(), dict[str, MetricInfo]()
    for entry in entries:
        history.record_entry(entry)
        for key, fields in entry["metrics"].items():
            split, name = key.split("/", 1)
            infos[key] = MetricInfo(split, name, str(fields["unit"]), fields["higher_is_better"])
    return {key: metric_summary(history, infos[key]) for key in history if key in infos}
