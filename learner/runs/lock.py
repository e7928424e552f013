"""A lock that allows only one process at a time in a run directory.

`filelock` does not suffice: a run must name the machine and the process that hold the lock, refuse a file that is not a
lock without changing it, and work on file systems without locks. That is most of this module.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from learner.errors import LearnerError
from learner.util.disk import NO_FOLLOW, NO_WAIT, kind_of

NAME = "run.lock"
CLOCKS = 10.0
"""Seconds by which the clocks of files and processes may differ."""
SECONDS_OF_CLAIM = 60.0
"""Seconds after which another process removes the claim of one that died, on a file system without locks."""
LONGEST = 4096  # bytes of the note in a lock
NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}  # on macOS two differ


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold `run.lock` in the directory, which must exist, until the block ends.

    The lock belongs to the operating system, which releases it when a process dies. On file systems without locks (some
    network file systems), the process that the file names holds the lock as long as it is alive; a process on another
    machine or in another container counts as alive.

    If the file is not the lock of a run, such as a link, it is neither changed nor removed.

    Raises:
      LearnerError: another process, or another `fit` of this process, holds the lock, or the file is not a lock.
    """
    path = directory / NAME
    descriptor = _open_locked(path)
    _locks.add(descriptor)
    try:
        _write_note(descriptor)
        yield
    finally:
        with contextlib.suppress(OSError):  # the directory may be gone, or be read-only by now
            if _is_at(descriptor, path):
                path.unlink()
        _locks.discard(descriptor)
        os.close(descriptor)


def read_note(directory: Path) -> str | None:
    """Return the content of `run.lock`, which names the machine and the process that hold it. Return None if there is
    no such file.

    Raises:
      OSError: it cannot be read.
    """
    try:
        descriptor = os.open(directory / NAME, os.O_RDONLY | NO_FOLLOW | NO_WAIT)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, LONGEST).decode(errors="replace")
    finally:
        os.close(descriptor)


def is_locked(directory: Path) -> bool | None:
    """Return True if a process holds the lock of a run directory, without locking it.

    Returns:
      None if the lock names a process on another machine or in another container, which may be alive. Trying the lock
        would tell, but a run that starts at that moment would find it held.
    """
    try:
        descriptor = os.open(directory / NAME, os.O_RDONLY | NO_FOLLOW | NO_WAIT)
    except OSError:
        return False
    try:
        holder = _holder(descriptor)
        written = os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
    process = holder.process
    if process is None or process < 1:
        return False
    if not holder.is_visible():
        return None
    return _is_alive(process) and not _began_after(written, process)


def _began_after(moment: float, process: int) -> bool:
    """Return True if the process is a later one with a reused id; False also if that is unknown."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        up = time.clock_gettime(time.CLOCK_BOOTTIME)
        began = time.time() - up + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (AttributeError, IndexError, OSError, ValueError):
        return False
    return began > moment + CLOCKS


_locks: set[int] = set()


def _close_in_child() -> None:
    """Close the locks in a forked process, such as a data worker, which may outlive the run."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _open_locked(path: Path) -> int:
    """Open and lock the file."""
    while True:
        descriptor = _open(path)
        try:
            _lock(descriptor, path)
            if _is_at(descriptor, path):
                _refuse_other_content(descriptor, path)  # safe only under the lock: nothing else changes the file then
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder removed the file in between


def _open(path: Path) -> int:
    """Open the file without changing it, and never through a link, which may point to any file of the user."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW | NO_WAIT, 0o666)
    except OSError as error:
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(mode := os.lstat(path).st_mode):
                raise _no_lock(path, f"is {kind_of(mode)}") from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        kind = "has a second name elsewhere" if stat.S_ISREG(status.st_mode) else f"is {kind_of(status.st_mode)}"
        raise _no_lock(path, kind)
    return descriptor


def _refuse_other_content(descriptor: int, path: Path) -> None:
    """Raise if the content is not that of a run's lock. After a crash of the machine it may be empty or zeros."""
    content = os.pread(descriptor, LONGEST + 1, 0)
    if content.strip(b"\0") and (len(content) > LONGEST or _holder(descriptor).process is None):
        raise _no_lock(path, "has another content")


def _no_lock(path: Path, why: str) -> LearnerError:
    return LearnerError(
        f"{path} is not a lock of a run: it {why}. Nothing was changed; move it away, or choose another directory",
        code="run-lock-malformed",
        path=path,
    )


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _refusal(path, _holder(descriptor)) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    else:
        return
    with _claimed(path):
        _refuse_other_content(descriptor, path)
        holder = _holder(descriptor)
        if holder.process is not None and (not holder.is_visible() or _is_alive(holder.process)):
            raise _refusal(path, holder)
        _write_note(descriptor)


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Let only one process at a time read the note of a lock and write its own, on a file system without locks."""
    claim = path.with_name(f"{NAME}.claim")
    with contextlib.suppress(FileNotFoundError):
        if time.time() - claim.stat().st_mtime > SECONDS_OF_CLAIM:
            claim.unlink()  # of a process that died
    try:
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o666))
    except FileExistsError:
        raise _refusal(path, _Holder()) from None
    try:
        yield
    finally:
        claim.unlink(missing_ok=True)


def _write_note(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    note = {"host": platform.node(), "pid": os.getpid(), "pid_namespace": _pid_namespace()}
    os.pwrite(descriptor, json.dumps(note).encode(), 0)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


class _Holder(NamedTuple):
    """The machine, the process id and the namespace of process ids in a lock, where known."""

    host: str = ""
    process: int | None = None
    namespace: int | None = None

    def is_visible(self) -> bool:
        """Return True if the process id has its meaning in this process, too."""
        here = _pid_namespace()
        return self.host == platform.node() and (self.namespace == here or None in (self.namespace, here))


def _pid_namespace() -> int | None:
    """Return the number of the namespace of this process's id: containers may share the name of their machine, but not
    its process ids. Return None outside Linux.
    """
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def _holder(descriptor: int) -> _Holder:
    """Return the holder that the file names."""
    try:
        content = json.loads(os.pread(descriptor, LONGEST, 0))
        host, process = str(content["host"]), int(content["pid"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return _Holder()
    namespace = content.get("pid_namespace")  # earlier versions wrote none
    return _Holder(host, process, namespace if isinstance(namespace, int) else None)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # a process of another user
    return True


def _holds(path: Path) -> bool:
    """Return True if this process holds the lock. The note does not prove it: in containers, process ids repeat."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return any(os.path.samestat(os.fstat(descriptor), status) for descriptor in _locks)


def _refusal(path: Path, holder: _Holder) -> LearnerError:
    host, process = holder.host, holder.process
    if _holds(path):
        return LearnerError(
            f"{path.parent} is in use: another run of this process trains there. Wait until it has ended, or choose "
            "another directory",
            code="run-in-use",
            path=path,
            pid=process,
            host=host,
        )
    who = "another process" if process is None else f"process {process} on {host}"
    return LearnerError(
        f"{path.parent} is in use: {who} trains there. Wait until it has ended, or choose another directory "
        f"(if it is not running any more, remove {path})",
        code="run-in-use",
        path=path,
        pid=process,
        host=host,
    )
