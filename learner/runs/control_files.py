"""Asking a run for something from another process: through a file in its directory, which the run takes away.

    touch runs/digits/stop.ask

asks the run in `runs/digits` to stop, `save.ask` for a checkpoint; `ask` and `learner ask` write the same files and say
who asks. The answer is in the run's log.
"""

import contextlib
import getpass
import json
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from learner.errors import LearnerError, near
from learner.runs.lock import is_held
from learner.util.text import printable

WHAT = ("stop", "save")
EACH = 1.0
"""Seconds between two looks."""
LONGEST = 500


def ask(directory: str | os.PathLike[str], what: str) -> Path:
    """Asks the run in a directory to `"stop"`, after a checkpoint as `Interrupter` does it, or to `"save"`.

    Returns:
      The file that asks. It is gone once the run has taken note, within a second or so.

    Raises:
      LearnerError: no run is under way there, or it can be asked for nothing of that name.
    """
    place = Path(directory)
    if what not in WHAT:
        raise LearnerError(f"a run cannot be asked for {what!r}: {near(what, WHAT)}")
    if is_held(place) is False:
        raise LearnerError(f"no run is under way in {place}")
    path, partial = place / f"{what}.ask", None
    try:
        descriptor, partial = tempfile.mkstemp(".partial", f"{what}.ask.", place)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps({"who": _me(), "time": round(time.time(), 3)}, ensure_ascii=False) + "\n")
        os.replace(partial, path)
    except OSError as error:
        if partial is not None:
            with contextlib.suppress(OSError):
                os.unlink(partial)
        raise LearnerError(f"{path} cannot be written: {error.strerror}") from error
    return path


def pending(directory: str | os.PathLike[str]) -> list[str]:
    """What was asked of the run there that it has not taken note of."""
    return [what for what in WHAT if os.path.lexists(Path(directory, f"{what}.ask"))]


def taken(directory: str | os.PathLike[str]) -> tuple[dict[str, str], list[str]]:
    """Takes away what was asked of a run.

    Returns:
      Who asked, by what; `"somebody"` where the file does not tell. And what is wrong with files that cannot be taken
      away: they ask for nothing, as they would do so for ever.
    """
    found, problems = {}, []
    for what in pending(directory):
        path = Path(directory, f"{what}.ask")
        who = _who(path)
        try:
            path.unlink(missing_ok=True)
            found[what] = who
        except OSError as error:
            problems.append(f"{path} asks for nothing, as it cannot be removed: {error.strerror}")
    return found, problems


def forget(directory: str | os.PathLike[str]) -> None:
    """A run begins: what lies there was asked of another one."""
    taken(directory)


class Requests:
    """Looks every second whether something was asked of a run, in a thread of its own.

    Args:
      directory: of the run.
      answer: called with what was asked, and with who asked.
      failed: called once with a text where a file is odd.
    """

    def __init__(self, directory: Path, answer: Callable[[str, str], None], failed: Callable[[str], None]):
        self._directory, self._answer, self._failed = directory, answer, failed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="learner-asked", daemon=True)
        self._told = False

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, if it was started."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join(EACH)

    def look(self) -> None:
        """Looks once."""
        found, problems = taken(self._directory)
        for what, who in found.items():
            self._answer(what, who)
        if problems and not self._told:
            self._told = True
            self._failed(problems[0])

    def _watch(self) -> None:
        while not self._closed.wait(EACH):
            self.look()


def _who(path: Path) -> str:
    """Anybody may have written it: a link is not followed, and of a long file no more is read than a name can need."""
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(path, flags), "rb") as file:
            said = json.loads(file.read(LONGEST))
    except (OSError, ValueError, RecursionError):
        said = None
    who = said.get("who") if isinstance(said, dict) else None
    return printable(" ".join(who.split())) if isinstance(who, str) and who.strip() else "somebody"


def _me() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        name = "somebody"
    return f"{name}@{platform.node()}"[:100]
