"""The files that a run writes: the values of steps, the journal and the summary.

    <directory>/journal.jsonl                   a line for each event that is not a step (see `learner.runs.journal`)
    <directory>/model.json                      what arrays the model has, written at the start
    <directory>/summary.json                    written at the end
    <directory>/<split>/epoch-<n>/<Metric>.log  a line `value,weight` for each step, then `value,final`

The run's own ordered worker writes them, not a listener: they are part of the run, and a failure to write them is an
error of the run. The cost of a line does not depend on the length of the files.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.runs.appended import (
    AppendedFile,
    close_all,
    final_text,
    refuse_special,
    replace,
    value_texts,
    weight_texts,
)
from learner.runs.file_names import file_name, folded_name
from learner.runs.journal import ENDS, NUMBERS, read_journal
from learner.runs.log_cutting import cut_back, refuse_short, what_is_left
from learner.runs.samples import EVENT, FOLDER, contents
from learner.util.disk import checksum, is_full, to_disk, truncate
from learner.util.json_values import encode
from learner.util.samples import Sample

SECONDS_BETWEEN_WRITES = 0.5
MOST_OPEN = 64  # metric logs; a system may give a process no more than 256 files


class RunFiles:
    """A writer of the files of one run.

    Args:
      directory: the run directory. It need not exist, and nothing is opened before the first write.
      clock: returns the seconds since 1970 (UTC).
      make_room: called if the disk is full, before the write is retried.
      now: returns seconds from any origin, which changes of the clock do not affect.

    Attributes:
      has_started: True once this writer has written the start of the run to the journal.
      has_ended: True once the journal contains the end of the run.

    Lines are collected in memory and written when half a second has passed since the last write, at the end of a split,
    with every line of the journal, and on `flush`. A process that is killed loses at most the lines of half a second,
    and only the last line of a file can be torn.

    >>> import tempfile
    >>> directory = Path(tempfile.mkdtemp())
    >>> files = RunFiles(directory, clock=lambda: 1769860800.0)
    >>> files.steps("train", 1, {"Loss": np.float32([0.5, 0.1])}, np.float32([32, 5]))
    >>> files.close_split("train", 1, {"Loss": 0.44594594}, at_step=None)
    >>> files.journal("epoch", epoch=1, step=2, values={"train/Loss": 0.44594594})
    >>> files.close()
    >>> print((directory / "train/epoch-1/Loss.log").read_text(), end="")
    0.5,32
    0.1,5
    0.44594594,final
    >>> print((directory / "journal.jsonl").read_text(), end="")
    {"event": "epoch", "time": 1769860800.0, "epoch": 1, "step": 2, "values": {"train/Loss": 0.44594594}, \
"files": {"train/epoch-1/Loss.log": [30, 1066698030]}}
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        clock: Callable[[], float],
        make_room: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._directory = Path(directory)
        self._clock, self._now = clock, now
        self._started_at: float | None = None
        self._written_at = clock()
        self._epoch = 0
        self._files: dict[str, AppendedFile] = {}  # of this epoch, by relative path
        self._places: dict[tuple[str, str], tuple[str, str]] = {}
        self._made_splits: set[str] = set()
        self._made_epochs: set[str] = set()
        self._journal: AppendedFile | None = None
        self._epoch_lines = 0
        self._make_room = make_room
        self.has_started = self.has_ended = False

    def steps(self, split: str, epoch: int, values: Mapping[str, np.ndarray], weights: np.ndarray) -> None:
        """Append a line `value,weight` for each step of a dispatch.

        Args:
          split: such as `train`.
          epoch: the number of the epoch; the first lines of another epoch close the files of the previous one.
          values: `[count]` for each metric by name, float32 or float64.
          weights: `[count]`.

        Raises:
          LearnerError: the metric's name is not safe as a file name.
          OSError: the disk is full, or the like.
        """
        ends = [f",{weight}\n" for weight in weight_texts(weights)]
        for name, column in values.items():
            lines = [value + end for value, end in zip(value_texts(column), ends, strict=True)]
            self._metric_file(split, epoch, name).pending += lines
        if not 0 <= self._clock() - self._written_at < SECONDS_BETWEEN_WRITES:
            self.flush()

    def close_split(self, split: str, epoch: int, values: Mapping[str, float | str], at_step: int | None) -> None:
        """Append the last line of each metric, `value,final`, and close the split's files.

        After a validation inside an epoch, at the optimizer step `at_step`, the line is `value,final@<at_step>` and the
        files stay open for the next validation. A text is written as JSON, so that it stays on one line.
        """
        end = ",final\n" if at_step is None else f",final@{at_step}\n"
        for name, value in values.items():
            self._metric_file(split, epoch, name).pending.append(final_text(value) + end)
        self.flush()
        if at_step is None:
            close_all(file for path, file in self._files.items() if path.startswith(f"{file_name(split)}/"))

    def journal(self, event: str, **fields: Any) -> None:
        """Write a line of `journal.jsonl`: the event's name, the time, the seconds since the line `start`, and the
        fields. The line `epoch` also gets the length and the CRC-32 of each metric log of that epoch, which a resumed
        run verifies.

        Raises:
          LearnerError: the run directory was removed.
        """
        # The error may be that metric logs cannot be written. A line of the journal often still fits into its last
        # block.
        with contextlib.suppress(LearnerError, OSError) if event == "error" else contextlib.nullcontext():
            self.flush()
        self._refuse_loss()
        if self._journal is None:
            self._journal = self._open_journal()
        if event == "epoch" and fields.get("epoch") == self._epoch:
            fields["files"] = {path: [file.size, file.crc] for path, file in self._files.items()}
        times = {"time": self._clock()}
        if event == "start":
            self._started_at = self._now()
        elif self._started_at is not None:
            times["elapsed"] = round(self._now() - self._started_at, 3)
        line = json.dumps(encode({"event": event, **times, **fields}), allow_nan=False)
        self._journal.pending.append(line + "\n")
        self._with_room(self._journal.write)
        self._epoch_lines += event in NUMBERS
        self.has_started = self.has_started or event == "start"
        self.has_ended = self.has_ended or event in ENDS

    def flush(self) -> None:
        """Pass all lines to the operating system, where they survive this process."""
        self._written_at = self._clock()
        for path, file in self._files.items():
            if file.pending:
                file.refuse_loss()
                self._make(os.path.dirname(path))
                self._with_room(file.write)
                if len(self._files) > MOST_OPEN:  # each only for a moment: there may be more files than descriptors
                    file.close()

    def position(self) -> dict[str, Any]:
        """Return the sizes of the files for a checkpoint, in a form that JSON can represent. `cut` truncates the files
        to them.
        """
        self.flush()
        sizes = {path: file.size for path, file in self._files.items()}
        checksums = {path: file.crc for path, file in self._files.items()}
        return {"epoch_lines": self._epoch_lines, "epoch": self._epoch, "files": sizes, "checksums": checksums}

    def to_disk(self, position: Mapping[str, Any]) -> None:
        """Flush the data that `position` refers to, so that it survives a power loss. May be called from any thread."""
        for path in (*position["files"], "journal.jsonl"):
            with contextlib.suppress(FileNotFoundError):
                to_disk(self._directory / path)

    def cut(self, position: Mapping[str, Any], keep_in: Path | None = None, lenient: bool = False) -> None:
        """Remove everything written after `position`. Must be called before anything is written.

        The metric files of the position's epoch are truncated to their recorded lengths, those of later epochs are
        removed, and the journal loses its later lines with numbers; its other lines stay.

        Args:
          position: the result of `position()`, from this process or another.
          keep_in: a directory for the removed content, under the same relative paths.
          lenient: accept files that are shorter than the position says.

        Raises:
          LearnerError: a file is shorter than the position says. Nothing was changed then. (`refuse_changed`, which
            reads all logs, detects other changed bytes.)
        """
        if lenient:
            position = what_is_left(self._directory, position)
        else:
            refuse_short(self._directory, position)
        cut_back(self._directory, position, keep_in, lenient)
        self._epoch, self._epoch_lines = position["epoch"], position["epoch_lines"]
        self._files = {}
        for path, size in position["files"].items():
            file = self._directory / path
            crc = None if lenient else position.get("checksums", {}).get(path)
            crc = checksum(file, size) if crc is None and size else crc or 0
            self._files[path] = AppendedFile(str(file), size, crc)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json` atomically.

        Raises:
          LearnerError: the run directory was removed.
        """
        self._replace("summary.json", json.dumps(encode(summary), indent=2, allow_nan=False))

    def write_model(self, model: Mapping[str, Any]) -> None:
        """Write `model.json`, the arrays of the model, one on each line. An existing link is replaced.

        Raises:
          LearnerError: the run directory was removed.
        """
        header = ", ".join(f"{json.dumps(key)}: {json.dumps(model[key])}" for key in model if key != "arrays")
        rows = ",\n".join(map(json.dumps, model["arrays"]))
        self._replace("model.json", f'{{{header}, "arrays": [\n{rows}\n]}}')

    def write_samples(self, epoch: int, step: int, values: Mapping[str, Sample]) -> None:
        """Write texts, pictures and histograms of a step, each to a file below `samples`, and list them in the journal.
        A resumed run that repeats the step replaces them.

        Raises:
          LearnerError: one of the names is not safe as a file name, or the run directory was removed.
        """
        files = contents(step, values)
        self._make(f"{FOLDER}/step-{step}")
        for path, content in files.values():
            self._with_room(lambda path=path, content=content: replace(f"{self._directory}/{path}", content))  # type: ignore[misc]
        self.journal(EVENT, epoch=epoch, step=step, files={name: path for name, (path, _) in files.items()})

    def _replace(self, name: str, content: str) -> None:
        self._refuse_loss()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._with_room(lambda: replace(str(self._directory / name), content.encode() + b"\n"))

    def _with_room(self, write: Callable[[], None]) -> None:
        """Call a write function, and retry once if the disk is full: a checkpoint that does not fit takes the space of
        the logs until it is removed.
        """
        try:
            write()
            return
        except OSError as error:
            if not is_full(error):
                raise
        self._make_room()
        try:
            write()
        except OSError as error:
            if not is_full(error):
                raise
            raise LearnerError(
                f"the disk of {self._directory} is full, so the logs of the run cannot be written ({error}). Make "
                "room, and resume the run",
                code="run-disk-full",
            ) from error

    def close(self) -> None:
        """Write pending lines and close the files."""
        try:
            self.flush()
        finally:
            close_all(self._files.values())
            if self._journal:
                self._journal.close()

    def _enter(self, epoch: int) -> None:
        """Close the files of another epoch. A position lists those of its epoch; `cut` removes all of later ones."""
        if epoch != self._epoch:
            self.flush()
            close_all(self._files.values())
            self._epoch, self._files, self._made_epochs = epoch, {}, set()

    def _metric_file(self, split: str, epoch: int, name: str) -> AppendedFile:
        self._enter(epoch)
        paths, file = self._paths_of(split, name)
        path = f"{paths}/epoch-{epoch}/{file}"
        if path not in self._files:
            self._files[path] = AppendedFile(f"{self._directory}/{path}", crc=0)
        return self._files[path]

    def _paths_of(self, split: str, name: str) -> tuple[str, str]:
        """Return the directory of the split and the path of the metric's file."""
        if (split, name) not in self._places:
            paths = file_name(split), file_name(name) + ".log"
            for (_, other), known in self._places.items():
                if [*map(folded_name, known)] == [*map(folded_name, paths)]:
                    raise LearnerError(
                        f"the metrics {other!r} and {name!r} would share a file, {'/'.join(paths)}: rename one",
                        code="run-metric-file-shared",
                        name=name,
                    )
            self._places[split, name] = paths
        return self._places[split, name]

    def _make(self, relative: str) -> None:
        """Create `<split>/epoch-<n>`, but `<split>` only once: a removed run must not reappear in part."""
        split = os.path.dirname(relative)
        if split not in self._made_splits:
            refuse_special(f"{self._directory}/{split}")
            self._refuse_loss()
            os.makedirs(f"{self._directory}/{split}", exist_ok=True)
            self._made_splits.add(split)
        if relative not in self._made_epochs:
            refuse_special(f"{self._directory}/{relative}")
            try:
                os.mkdir(f"{self._directory}/{relative}")
            except FileExistsError:
                pass
            except FileNotFoundError:
                raise LearnerError(
                    f"{self._directory}/{split} was removed while the run was writing to it",
                    code="run-log-removed",
                    split=split,
                ) from None
            self._made_epochs.add(relative)

    def _refuse_loss(self) -> None:
        if self._journal is not None and self._journal.is_lost():
            raise LearnerError(
                f"{self._journal.path} was removed while the run was writing to it, so its logs are lost: use another "
                "directory, or find out what removes it",
                code="run-log-removed",
            )

    def _open_journal(self) -> AppendedFile:
        """Open the journal, and remove a partial last line that an earlier process left when it was killed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / "journal.jsonl"
        refuse_special(path)
        if path.exists():
            lines = read_journal(self._directory)
            truncate(path, sum(len(line) + 1 for line, _ in lines))
            self._epoch_lines = sum(entry.get("event") in NUMBERS for _, entry in lines)
        return AppendedFile(str(path))


class RunFilesWithoutMetrics(RunFiles):
    """A writer of the journal, the samples and the summary of a run whose metrics only go to loggers.

    Positions in checkpoints include metric files that the run may have from an earlier start, so resuming with or
    without metric files truncates exactly the right files.
    """

    def steps(self, split: str, epoch: int, values: Mapping[str, np.ndarray], weights: np.ndarray) -> None:
        """Write nothing."""
        self._enter(epoch)

    def close_split(self, split: str, epoch: int, values: Mapping[str, float | str], at_step: int | None) -> None:
        """Write nothing: the journal contains the values of whole splits."""
        self._enter(epoch)


class NoFiles:
    """The files of a pass that writes none, or of a process beside the one that writes the files of the run."""

    has_started = has_ended = False

    def steps(self, split: str, epoch: int, values: Mapping[str, np.ndarray], weights: np.ndarray) -> None:
        """See `RunFiles`."""

    def close_split(self, split: str, epoch: int, values: Mapping[str, float | str], at_step: int | None) -> None:
        """See `RunFiles`."""

    def journal(self, event: str, **fields: Any) -> None:
        """See `RunFiles`."""

    def position(self) -> dict[str, Any]:
        """See `RunFiles`."""
        return {}

    def to_disk(self, position: Mapping[str, Any]) -> None:
        """See `RunFiles`."""

    def cut(self, position: Mapping[str, Any], keep_in: Path | None = None, lenient: bool = False) -> None:
        """See `RunFiles`."""

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """See `RunFiles`."""

    def write_model(self, model: Mapping[str, Any]) -> None:
        """See `RunFiles`."""

    def write_samples(self, epoch: int, step: int, values: Mapping[str, Sample]) -> None:
        """See `RunFiles`."""

    def close(self) -> None:
        """See `RunFiles`."""
