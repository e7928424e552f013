"""Protection of commands that run the code in a run's `config.yaml`: they ask before they run another user's code.

Like git, which refuses repositories of other users: whoever can write the file can run code as the user who reads it.
"""

import os
import stat
import sys
from pathlib import Path

from learner.errors import LearnerError
from learner.records.hub import SOURCE as PULLED
from learner.util.text import printable


def require_trust(directory: str, trusted: bool) -> None:
    """Check that the run's directory and its `config.yaml` belong to this user, that nobody else can write to them, and
    that they were not pulled from the Hub; otherwise the user must pass `--trust`, or answer yes on a terminal. A
    missing file is trusted.

    Raises:
      LearnerError: the run is not trusted.
    """
    if trusted:
        return
    doubts = [doubt for path in (Path(directory), Path(directory, "config.yaml")) if (doubt := doubt_about(path))]
    doubts += [f"{directory} was pulled from the Hub"] if Path(directory, PULLED).exists() else []
    if not doubts:
        return
    problem = f"{doubts[0]}; the code that its config.yaml names would be run as you"
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty():
        print(f"learner: {printable(problem)}. Run it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise LearnerError(
        f"{problem}. Read {Path(directory, 'config.yaml')} first; --trust runs it", code="cli-untrusted-config"
    )


def doubt_about(path: Path) -> str | None:
    """Return the reason why a file or directory may contain another user's content, or None."""
    try:
        found = path.stat()
    except OSError:  # the code that reads it reports the problem
        return None
    if found.st_uid != os.geteuid():
        return f"{path} belongs to another user (uid {found.st_uid})"
    private_group = found.st_gid == found.st_uid  # on systems where every user has a group with the same id
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not private_group):
        return f"{path} can be changed by other users (mode {stat.S_IMODE(found.st_mode):o})"
    return None
