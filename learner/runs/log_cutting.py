"""Truncation of logs to a checkpoint, so that a resumed run writes every value once."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.runs.appended import refuse_special, replace
from learner.runs.journal import NUMBERS, read_journal
from learner.util.disk import CHUNK, LONGEST_NAME, checksum, truncate
from learner.util.number_checks import is_int
from learner.util.text import short

METRIC_FILE = re.compile(r"(train|custom|valid(-[^/\\]*)?)/epoch-(\d+)/(?!\.)[^/\\]+\.log")


def cut_back(directory: Path, position: Mapping[str, Any], keep_in: Path | None, lenient: bool = False) -> None:
    """Truncate the files below `directory` to `position`; see `RunFiles.cut`. With `lenient`, the journal gets the
    current lengths and checksums of the logs, so that the next resume accepts them.

    Raises:
      LearnerError: a file lies behind a link, or the position is invalid. The position comes from a checkpoint;
        whatever it contains, only metric files of this run are changed. After an error nothing was changed.
    """
    refuse_position(position)
    kept, removed, changed = _journal_lines(directory, position, lenient)
    tails = _tails(directory, position["epoch"], position["files"])
    if keep_in is not None:
        _keep(directory, keep_in, tails, removed)
    for path, size in tails.items():
        _shorten(directory / path, size)
    if removed or changed:
        replace(str(directory / "journal.jsonl"), kept)


def refuse_changed(directory: Path, position: Mapping[str, Any]) -> None:
    """Raise `LearnerError` if a metric log up to the position differs from what the run wrote. Each log is read once.

    The journal records the length and the checksum of each log when its epoch closed, and the position records those of
    the current epoch. Journals and checkpoints of version 0.1.0 do not, so only lengths are compared.
    """
    refuse_short(directory, position)
    expected = {path: (size, position.get("checksums", {}).get(path)) for path, size in position["files"].items()}
    for entry in _history_lines(directory)[: position["epoch_lines"]]:
        for path, (size, crc) in _closed_files(entry):
            if path not in expected and _size(directory / path) != size:
                raise _too_short(directory / path, f"{_size(directory / path)} bytes", f"{size}", "its epoch closed")
            expected.setdefault(path, (size, crc))
    for path, (size, crc) in expected.items():
        if size and crc is not None and checksum(directory / path, size) != crc:
            raise LearnerError(
                f"{directory / path} has other bytes than the run wrote: it was changed since then, so the run cannot "
                "resume from there; resume(allow='logs') or --resume.allow=logs continues with the changed file",
                code="resume-log-changed",
                file=directory / path,
            )


def _history_lines(directory: Path) -> list[Mapping[str, Any]]:
    """Return the journal's history lines; none if there is no journal yet."""
    lines = read_journal(directory) if (directory / "journal.jsonl").exists() else []
    return [entry for _, entry in lines if entry.get("event") in NUMBERS]


def _closed_files(entry: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the logs of a closed epoch, each with its length and checksum; entries that no run writes are ignored."""
    files = entry.get("files")
    for path, recorded in files.items() if isinstance(files, dict) else ():
        match = METRIC_FILE.fullmatch(path)
        is_entry = (
            isinstance(recorded, list)
            and len(recorded) == 2
            and all(type(x) is int and 0 <= x < 2**63 for x in recorded)
        )
        if match and is_entry and int(match[3]) == entry["epoch"]:
            yield path, (recorded[0], recorded[1])


def refuse_short(directory: Path, position: Mapping[str, Any]) -> None:
    """Raise `LearnerError` if a file is shorter than the position says."""
    refuse_position(position)
    seen, keep = len(_history_lines(directory)), position["epoch_lines"]
    if seen < keep:
        raise _too_short(directory / "journal.jsonl", f"{seen} epochs and validations", f"{keep}")
    for path, size in position["files"].items():
        actual = _size(directory / path)
        if actual < size:
            raise _too_short(directory / path, f"{actual} bytes", f"{size}")


def what_is_left(directory: Path, position: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position for truncated files: up to the last complete line of each."""
    refuse_position(position)
    seen = len(_history_lines(directory))
    sizes = {path: _complete_lines(directory / path, size) for path, size in position["files"].items()}
    return {**position, "epoch_lines": min(seen, position["epoch_lines"]), "files": sizes}


def _complete_lines(file: Path, size: int) -> int:
    end = _size(file)
    if end >= size:
        return size
    if not end:
        return 0
    with file.open("rb") as opened:
        while end:  # from the end, because the last line is short
            begin = max(0, end - CHUNK)
            opened.seek(begin)
            newline = opened.read(end - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
    return 0


def metric_files(directory: Path) -> dict[str, int]:
    """Return the metric files below a run directory with their epochs, by relative path. Linked directories are not
    part of the run.
    """
    paths = [path for path in directory.glob("*/epoch-*/*.log") if not any(map(Path.is_symlink, path.parents[:2]))]
    file_names = sorted(path.relative_to(directory).as_posix() for path in paths)
    return {path: int(match[3]) for path in file_names if (match := METRIC_FILE.fullmatch(path))}


def refuse_position(position: Any) -> None:
    """Raise `LearnerError` for an invalid position of `RunFiles`, such as one that names other files.

    >>> refuse_position({"epoch_lines": 1, "epoch": 2, "files": {"train/epoch-2/Loss.log": 12}})
    >>> refuse_position({"epoch_lines": 1, "epoch": 2, "files": {"../epoch-2/Loss.log": 0}})
    Traceback (most recent call last):
    learner.errors.LearnerError: ... '../epoch-2/Loss.log' is not a metric file of epoch 2; the checkpoint is damaged
    """
    problem = _problem_with(position)
    if problem:
        raise LearnerError(
            f"the position of the logs is wrong: {problem}; the checkpoint is damaged", code="resume-log-position"
        )


def _problem_with(position: Any) -> str | None:
    if not isinstance(position, Mapping) or not {"epoch_lines", "epoch", "files"} <= set(position):
        return "it needs epoch_lines, epoch and files"
    if not isinstance(position["files"], Mapping):
        return "files needs sizes by path"
    counts = {"epoch_lines": position["epoch_lines"], "epoch": position["epoch"], **position["files"]}
    checksums = position.get("checksums", {})
    if not isinstance(checksums, Mapping) or not checksums.keys() <= position["files"].keys():
        return "checksums needs numbers by path"
    for name, number in [*counts.items(), *checksums.items()]:
        if not is_int(number) or number < 0:
            return f"{short(name)!r} is {short(repr(number))}"
    for path in position["files"]:
        match = METRIC_FILE.fullmatch(path)
        longest = max(len(part.encode(errors="replace")) for part in path.split("/"))
        if not match or int(match[3]) != position["epoch"] or longest > LONGEST_NAME or not path.isprintable():
            return f"{short(path)!r} is not a metric file of epoch {position['epoch']}"
    return None


def _journal_lines(directory: Path, position: Mapping[str, Any], lenient: bool) -> tuple[bytes, bytes, bool]:
    """Return the journal without the history lines after the position, those lines, and True if a remaining line has
    changed.
    """
    journal, keep, changed = directory / "journal.jsonl", position["epoch_lines"], False
    kept: list[bytes] = []
    removed: list[bytes] = []
    seen = 0
    for line, entry in read_journal(directory) if journal.exists() else ():
        seen += (number := entry.get("event") in NUMBERS)
        if (
            lenient
            and number
            and seen <= keep
            and (updated := _files_now(directory, entry, position["files"])) != entry
        ):
            line, changed = json.dumps(updated).encode(), True
        (removed if number and seen > keep else kept).append(line + b"\n")
    return b"".join(kept), b"".join(removed), changed


def _files_now(directory: Path, entry: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return a journal line with the current lengths and checksums of its logs, after truncation to `sizes`."""
    files = {}
    for path, _ in _closed_files(entry):
        if (directory / path).is_file():
            size = sizes.get(path, _size(directory / path))
            files[path] = [size, checksum(directory / path, size)]
    return {**entry, "files": files} if "files" in entry else dict(entry)


def _tails(directory: Path, epoch: int, sizes: Mapping[str, int]) -> dict[str, int | None]:
    """Return the metric files that are too long, each with its correct length, or None if it did not exist."""
    tails = {path: size for path, size in sizes.items() if _size(directory / path) > size}
    later = {path: None for path, number in metric_files(directory).items() if number >= epoch and path not in sizes}
    for path in (*tails, *later):
        for part in (directory / path, *(directory / path).parents[:2]):
            refuse_special(part)
    return {**tails, **later}


def _keep(directory: Path, keep_in: Path, tails: Mapping[str, int | None], journal: bytes) -> None:
    for path, size in tails.items():
        (keep_in / path).parent.mkdir(parents=True, exist_ok=True)
        with (directory / path).open("rb") as file, (keep_in / path).open("xb") as kept:
            file.seek(size or 0)
            shutil.copyfileobj(file, kept, CHUNK)
    if journal:
        keep_in.mkdir(parents=True, exist_ok=True)
        with (keep_in / "journal.jsonl").open("xb") as kept:
            kept.write(journal)


def _shorten(file: Path, size: int | None) -> None:
    if size is not None:
        truncate(file, size)
        return
    file.unlink()
    if not any(file.parent.iterdir()):
        file.parent.rmdir()


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _too_short(file: Path, actual: str, needed: str, when: str = "the checkpoint was saved") -> LearnerError:
    return LearnerError(
        f"{file} has {actual}, but had {needed} when {when}: "
        "it was changed since then, so the run cannot resume from there; resume(allow='logs') or --resume.allow=logs "
        "continues without that part",
        code="resume-log-changed",
        file=file,
    )
