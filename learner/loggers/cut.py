"""Taking back what a run wrote after a checkpoint, so that the resumed run writes everything once."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.journal import NUMBERS, read_journal
from learner.loggers.appended import refuse_special, replace
from learner.text import short

METRIC_FILE = re.compile(r"(train|custom|valid(-[^/\\]*)?)/epoch-(\d+)/(?!\.)[^/\\]+\.log")
LONGEST_FILE = 255  # what file systems take, in bytes


def cut_back(directory: Path, position: Mapping[str, Any], keep_in: Path | None) -> None:
    """Shortens the files below `directory` to `position`; see `RunFiles.cut`.

    Raises:
      LearnerError: a file lies behind a link, or the position is none: it comes from a checkpoint, and whatever that
        says, only metric files of this run are changed. Nothing was changed then.
    """
    refuse_position(position)
    kept, taken = _journal_lines(directory, position["epoch_lines"])
    tails = _tails(directory, position["epoch"], position["files"])
    if keep_in is not None:
        _keep(directory, keep_in, tails, taken)
    for path, size in tails.items():
        _shorten(directory / path, size)
    if taken:
        replace(str(directory / "journal.jsonl"), kept)


def refuse_short(directory: Path, position: Mapping[str, Any]) -> None:
    """Raises `LearnerError` where a file has less than the position says."""
    refuse_position(position)
    journal = directory / "journal.jsonl"
    lines = read_journal(directory) if journal.exists() else []
    seen, keep = sum(entry.get("event") in NUMBERS for _, entry in lines), position["epoch_lines"]
    if seen < keep:
        raise _too_short(journal, f"{seen} epochs and validations", f"{keep}")
    for path, size in position["files"].items():
        actual = _size(directory / path)
        if actual < size:
            raise _too_short(directory / path, f"{actual} bytes", f"{size}")


def what_is_left(directory: Path, position: Mapping[str, Any]) -> dict[str, Any]:
    """The position of what is there, of files that lost something: up to their last whole line."""
    refuse_position(position)
    journal = directory / "journal.jsonl"
    lines = read_journal(directory) if journal.exists() else []
    seen = sum(entry.get("event") in NUMBERS for _, entry in lines)
    sizes = {path: _whole_lines(directory / path, size) for path, size in position["files"].items()}
    return {**position, "epoch_lines": min(seen, position["epoch_lines"]), "files": sizes}


def _whole_lines(file: Path, size: int) -> int:
    actual = _size(file)
    return size if actual >= size else file.read_bytes().rfind(b"\n") + 1 if actual else 0


def metric_files(directory: Path) -> dict[str, int]:
    """The files of metrics below a run's directory: their epochs by relative path. What lies behind a linked directory
    is not the run's.
    """
    own = [path for path in directory.glob("*/epoch-*/*.log") if not any(map(Path.is_symlink, path.parents[:2]))]
    found = sorted(path.relative_to(directory).as_posix() for path in own)
    return {path: int(match[3]) for path in found if (match := METRIC_FILE.fullmatch(path))}


def refuse_position(position: Any) -> None:
    """Raises `LearnerError` for what is not a position of `RunFiles`, such as one that names other files.

    >>> refuse_position({"epoch_lines": 1, "epoch": 2, "files": {"train/epoch-2/Loss.log": 12}})
    >>> refuse_position({"epoch_lines": 1, "epoch": 2, "files": {"../epoch-2/Loss.log": 0}})
    Traceback (most recent call last):
    learner.errors.LearnerError: ... '../epoch-2/Loss.log' is not a metric file of epoch 2; the checkpoint is damaged
    """
    problem = _problem_with(position)
    if problem:
        raise LearnerError(f"the position of the logs is wrong: {problem}; the checkpoint is damaged")


def _problem_with(position: Any) -> str | None:
    if not isinstance(position, Mapping) or not {"epoch_lines", "epoch", "files"} <= set(position):
        return "it needs epoch_lines, epoch and files"
    if not isinstance(position["files"], Mapping):
        return "files needs sizes by path"
    counts = {"epoch_lines": position["epoch_lines"], "epoch": position["epoch"], **position["files"]}
    for name, number in counts.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            return f"{short(name)!r} is {short(repr(number))}"
    for path in position["files"]:
        match = METRIC_FILE.fullmatch(path)
        longest = max(len(part.encode(errors="replace")) for part in path.split("/"))
        if not match or int(match[3]) != position["epoch"] or longest > LONGEST_FILE or not path.isprintable():
            return f"{short(path)!r} is not a metric file of epoch {position['epoch']}"
    return None


def _journal_lines(directory: Path, keep: int) -> tuple[bytes, bytes]:
    """The journal with its first `keep` lines of numbers and all others, and the lines of numbers that are too many."""
    journal = directory / "journal.jsonl"
    kept: list[bytes] = []
    taken: list[bytes] = []
    seen = 0
    for line, entry in read_journal(directory) if journal.exists() else ():
        seen += (number := entry.get("event") in NUMBERS)
        (taken if number and seen > keep else kept).append(line + b"\n")
    return b"".join(kept), b"".join(taken)


def _tails(directory: Path, epoch: int, sizes: Mapping[str, int]) -> dict[str, int | None]:
    """The metric files that are too long, each with its right length; `None`: it was not there."""
    tails = {path: size for path, size in sizes.items() if _size(directory / path) > size}
    later = {path: None for path, number in metric_files(directory).items() if number >= epoch and path not in sizes}
    for path in (*tails, *later):
        for part in (directory / path, *(directory / path).parents[:2]):
            refuse_special(part)
    return {**tails, **later}


def _keep(directory: Path, keep_in: Path, tails: Mapping[str, int | None], journal: bytes) -> None:
    contents = {path: (directory / path).read_bytes()[size or 0 :] for path, size in tails.items()}
    if journal:
        contents["journal.jsonl"] = journal
    for path, content in contents.items():
        (keep_in / path).parent.mkdir(parents=True, exist_ok=True)
        (keep_in / path).write_bytes(content)


def _shorten(file: Path, size: int | None) -> None:
    if size is not None:
        os.truncate(file, size)
        return
    file.unlink()
    if not any(file.parent.iterdir()):
        file.parent.rmdir()


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _too_short(file: Path, found: str, needed: str) -> LearnerError:
    return LearnerError(
        f"{file} has {found}, but had {needed} when the checkpoint was saved: "
        "it was changed since then, so the run cannot go on from there; allow=('logs',) goes on without that part"
    )
