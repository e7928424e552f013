"""Taking back what a run wrote after a checkpoint, so that the resumed run writes everything once."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.journal import NUMBERS, read_journal
from learner.loggers.appended import replace


def cut_back(directory: Path, position: Mapping[str, Any], keep_in: Path | None) -> None:
    """Shortens the files below `directory` to `position`; see `RunFiles.cut`.

    Raises:
      LearnerError: a file has less than the position says. Nothing was changed then.
    """
    kept, taken = _journal_lines(directory, position["epoch_lines"])
    tails = _tails(directory, position["epoch"], position["files"])
    if keep_in is not None:
        _keep(directory, keep_in, tails, taken)
    for path, size in tails.items():
        _shorten(directory / path, size)
    if taken:
        replace(str(directory / "journal.jsonl"), kept)


def _journal_lines(directory: Path, keep: int) -> tuple[bytes, bytes]:
    """The journal with its first `keep` lines of numbers and all others, and the lines of numbers that are too many."""
    journal = directory / "journal.jsonl"
    kept: list[bytes] = []
    taken: list[bytes] = []
    seen = 0
    for line, entry in read_journal(directory) if journal.exists() else ():
        seen += (number := entry.get("event") in NUMBERS)
        (taken if number and seen > keep else kept).append(line + b"\n")
    if seen < keep:
        raise _too_short(journal, f"{seen} epochs and validations", f"{keep}")
    return b"".join(kept), b"".join(taken)


def _tails(directory: Path, epoch: int, sizes: Mapping[str, int]) -> dict[str, int | None]:
    """The metric files that are too long, each with its right length; `None`: it was not there."""
    for path, size in sizes.items():
        actual = _size(directory / path)
        if actual < size:
            raise _too_short(directory / path, f"{actual} bytes", f"{size}")
    tails = {path: size for path, size in sizes.items() if _size(directory / path) > size}
    later = {path: None for path in _metric_files(directory, epoch) if path not in sizes}
    return {**tails, **later}


def _metric_files(directory: Path, first_epoch: int) -> list[str]:
    found = []
    for file in directory.glob("*/epoch-*/*.log"):
        number = re.fullmatch(r"epoch-(\d+)", file.parent.name)
        if number and int(number[1]) >= first_epoch:
            found.append(file.relative_to(directory).as_posix())
    return sorted(found)


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
        "it was changed since then, so the run cannot go on from there"
    )
