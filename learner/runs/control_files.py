"""Requests to a running process, as files in the run directory that the run consumes.

    touch runs/digits/stop.ask

requests the run in `runs/digits` to stop; `save.ask` requests a checkpoint. `ask` and `learner ask` write the same
files, with the sender's name. The run logs its answer.
"""

import getpass
import json
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path

from learner.errors import LearnerError, near
from learner.runs.appended import replace_together
from learner.runs.lock import is_locked
from learner.util.disk import NO_FOLLOW, NO_WAIT
from learner.util.text import printable

WHAT = ("stop", "save")
POLL_SECONDS = 1.0
"""Seconds between two checks."""
LONGEST = 500


def ask(directory: str | os.PathLike[str], what: str) -> Path:
    """Request the run in a directory to `"stop"` after a checkpoint, as `Interrupter` does, or to `"save"`.

    Returns:
      The path of the request file. The run removes it within a second or so.

    Raises:
      LearnerError: no run is active in the directory, or the request is unknown.
    """
    folder = Path(directory)
    if what not in WHAT:
        raise LearnerError(f"a run cannot be asked for {what!r}: {near(what, WHAT)}", code="run-request-unknown")
    if is_locked(folder) is False:
        raise LearnerError(f"no run is training in {folder}", code="run-not-running")
    path = folder / f"{what}.ask"
    content = json.dumps({"who": _me(), "time": round(time.time(), 3)}, ensure_ascii=False)
    try:
        replace_together(path, content.encode() + b"\n")
    except OSError as error:
        raise LearnerError(
            f"{path} cannot be written: {error.strerror}", code="run-request-unwritable", path=path
        ) from error
    return path


def pending(directory: str | os.PathLike[str]) -> list[str]:
    """Return the requests that the run has not consumed yet."""
    return [what for what in WHAT if os.path.lexists(Path(directory, f"{what}.ask"))]


def consume(directory: str | os.PathLike[str]) -> tuple[dict[str, str], list[str]]:
    """Remove the request files of a run.

    Returns:
      The sender of each request, `"somebody"` if the file names none; and the problems of files that cannot be removed.
      Those are ignored, because they would repeat their request forever.
    """
    requests, problems = {}, []
    for what in pending(directory):
        path = Path(directory, f"{what}.ask")
        who = _who(path)
        try:
            path.unlink(missing_ok=True)
            requests[what] = who
        except OSError as error:
            problems.append(f"{path} asks for nothing, as it cannot be removed: {error.strerror}")
    return requests, problems


class ControlFilePoller:
    """A thread that checks for requests every second.

    Args:
      directory: the run directory.
      answer: called with the request and its sender.
      failed: called once with a message if a file cannot be removed.
    """

    def __init__(self, directory: Path, answer: Callable[[str, str], None], failed: Callable[[str], None]):
        self._directory, self._answer, self._failed = directory, answer, failed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="learner-asked", daemon=True)
        self._has_warned = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, if it was started."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(POLL_SECONDS)

    def look(self) -> None:
        """Check once."""
        requests, problems = consume(self._directory)
        for what, who in requests.items():
            self._answer(what, who)
        if problems and not self._has_warned:
            self._has_warned = True
            self._failed(problems[0])

    def _watch(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            self.look()


def _who(path: Path) -> str:
    """Return the sender of a request. Anyone may have written the file: links are not followed, and only as much is
    read as a name can need.
    """
    try:
        # With an opener, `open` also closes the descriptor of a directory, which it refuses.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | NO_FOLLOW | NO_WAIT)) as file:
            content = json.loads(file.read(LONGEST))
    except (OSError, TypeError, ValueError, RecursionError):  # `TypeError`: a pipe without data yet
        content = None
    who = content.get("who") if isinstance(content, dict) else None
    return printable(" ".join(who.split())) if isinstance(who, str) and who.strip() else "somebody"


def _me() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        name = "somebody"
    return f"{name}@{platform.node()}"[:100]
