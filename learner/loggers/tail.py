"""Truncation of append-only files, so that a resumed run writes each line once."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from learner.events import RunStarted
from learner.runs.appended import refuse_special

BLOCK = 2**20


def cut_tail(path: str | os.PathLike[str], verdict: Callable[[bytes], bool | None]) -> None:
    """Remove surplus lines from the end of a file. Earlier lines are not read.

    Args:
      path: the path of the file, which need not exist.
      verdict: called with a line and its end, starting with the last line: True keeps it, False removes it, None keeps
        it and all lines before it. A partial last line is removed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "numbers")
    >>> path.write_text("1\\n2\\n13\\n2\\n13\\n1")
    13
    >>> cut_tail(path, lambda line: None if line == b"1\\n" else line != b"13\\n")
    >>> path.read_text()
    '1\\n2\\n2\\n'
    """
    refuse_special(path)
    if not os.path.exists(path):
        return
    with open(path, "r+b") as file:
        first, kept = None, list[bytes]()
        stay = list[bytes]()
        for offset, line in _from_the_end(file):
            answer = verdict(line) if line.endswith(b"\n") else False
            if answer is None:
                break
            if answer:
                stay.append(line)
            else:
                first, kept = offset, list(stay)
        if first is not None:
            file.truncate(first)
            file.seek(first)
            file.write(b"".join(reversed(kept)))


def prepare_file(path: Path, started: RunStarted, verdict: Callable[[bytes], bool | None]) -> None:
    """Prepare a logger's file for a run that starts or resumes; see `cut_tail`. A new run gets a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_special(path)
    if started.resumed:
        cut_tail(path, verdict)
    else:
        path.unlink(missing_ok=True)


def kept_lines(started: RunStarted) -> Callable[[str, str, int, int, Sequence[str]], bool | None]:
    """Return a verdict for `cut_tail` that keeps the lines a resumed run will not repeat.

    The verdict is called with the kind of the values (`"step"` or `"split"`), the split, the epoch, the step and the
    names. Lines of steps that the run repeats are removed. Values of a whole split are kept if the run's history
    contains them: at the step of the resume, some may have been measured before the checkpoint, and some after it.
    """

    @functools.cache
    def points(key: str) -> set[tuple[int, int]]:
        return {(epoch, step) for epoch, step, _ in started.history.get(key, ())}

    def verdict(kind: str, split: str, epoch: int, step: int, names: Sequence[str]) -> bool | None:
        if step > started.step:
            return False
        if step < started.step:
            return None
        return kind == "step" or any((epoch, step) in points(f"{split}/{name}") for name in names)

    return verdict


def _from_the_end(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines from the last to the first, each with its end and its offset."""
    position, rest = file.seek(0, os.SEEK_END), b""
    while position > 0:
        size = min(BLOCK, position)
        position -= size
        file.seek(position)
        content = file.read(size) + rest
        begin = content.find(b"\n") + 1 if position else 0
        if position and not 0 < begin < len(content):
            rest = content  # no line starts in it
            continue
        rest, offset = content[:begin], position + len(content)
        *complete, torn = content[begin:].split(b"\n")
        for line in [torn, *(line + b"\n" for line in reversed(complete))]:
            offset -= len(line)
            if line:
                yield offset, line
