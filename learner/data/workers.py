"""Checks of the process that trains or reads data.

A process started by "spawn" imports the main script before it gets its work. A script without
`if __name__ == "__main__":` would train again there, and start its own processes. Python reports that in long
tracebacks, or hangs: the parent waits forever for a process that exits while more than 64 KB, the capacity of a pipe,
are sent to it.

A fork of a process in which JAX runs has none of JAX's threads, so every computation hangs.
"""

import multiprocessing
import os
import threading
from multiprocessing import connection, spawn
from typing import Any

from learner.errors import LearnerError
from learner.util.jax_internals import backends_are_initialized

READY, UNGUARDED = 81, 82  # exit codes
TRIAL = "learner-import-of-main"
_GUARD = 'put the code that trains below `if __name__ == "__main__":`, or read with num_workers(0)'
WORKER = "grain-process-prefetch"
_OURS = TRIAL, WORKER  # names of processes whose parent reports that the script cannot be imported
_lock = threading.Lock()
_importable: set[str] = set()
_jax_ran = _without_threads = False


def check_process() -> None:
    """Raise `LearnerError` in a process that cannot train: a fork of a process in which JAX ran, or a process that is
    importing the main script before it gets its work.

    A loader's worker that imports the script exits instead, without output: the process that started it raises the
    error.
    """
    if _without_threads:
        raise LearnerError(
            "this process was forked from one in which JAX had started threads; it lacks them, and would wait "
            'forever: start it with multiprocessing.get_context("spawn") or "forkserver", or fork before JAX is '
            "used",
            code="worker-forked-process",
        )
    process = multiprocessing.current_process()
    if not getattr(process, "_inheriting", False):
        return
    if process.name.startswith(_OURS):
        os._exit(UNGUARDED)
    raise LearnerError(
        f"the main script trains while a process that was started imports it: {_GUARD}", code="worker-script-unguarded"
    )


def allow_grain_workers() -> None:
    """Allow Grain to start worker processes: Grain 0.2.18 reads one of its flags there, even if it is unparsed."""
    from absl import flags  # takes 20 ms, but Grain has imported it already

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


def end_with_parent() -> None:
    """Make a worker end once the process that started it has ended. A killed process does not end its workers, which
    would keep their memory and wait for a reader that no longer exists.
    """
    process, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    if parent is None or not process.name.startswith(WORKER):
        return

    def wait() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, name="learner-parent", daemon=True).start()


def forks_workers(data: Any) -> bool:
    """Return True for a loader that forks worker processes, recognized by attributes of PyTorch's `DataLoader`."""
    workers, context = getattr(data, "num_workers", 0), getattr(data, "multiprocessing_context", ...)
    if context is ... or type(workers) is not int or workers < 1:
        return False
    if context is None:
        # The first one is the default, which asking for a context would fix for the user's program.
        method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
        return method == "fork"
    return bool(context.get_start_method() == "fork")


def check_semaphores() -> None:
    """Raise `LearnerError` if this process cannot make semaphores, which the queues of worker processes consist of."""
    try:
        multiprocessing.get_context("spawn").Lock()  # removed from /dev/shm again at once
    except (OSError, ImportError) as error:
        raise LearnerError(
            f"num_workers starts processes that need semaphores, and none can be made here ({error}). On Linux this "
            "takes a writable /dev/shm (in a container, a tmpfs mounted there): mount one, or read with num_workers(0)",
            code="worker-shared-memory-missing",
        ) from error


def check_main_script() -> None:
    """Raise `LearnerError` unless worker processes can import the main script.

    A trial process imports the script, once in the life of this process. Notebooks, `python -c` and `python -m package`
    have no script to import.
    """
    check_process()
    script = _main_script()
    if script is None:
        return
    with _lock:
        if script not in _importable:
            _try_import(script)
            _importable.add(script)


def _before_fork() -> None:
    # In the parent, because the child may wait forever for the lock that this takes.
    global _jax_ran
    _jax_ran = backends_are_initialized()


def _after_fork() -> None:
    global _without_threads
    _without_threads = _without_threads or _jax_ran


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def _main_script() -> str | None:
    data = spawn.get_preparation_data(TRIAL)
    name = data.get("init_main_from_name")
    if name is not None:
        return None if name == "__main__" or name.endswith(".__main__") else name
    return data.get("init_main_from_path")


def _try_import(script: str) -> None:
    if os.path.basename(script) == "<stdin>":
        raise LearnerError(
            "num_workers needs a script that worker processes can import, and this one came through standard input: "
            f"save it in a file and {_GUARD}",
            code="worker-script-from-input",
        )
    process = multiprocessing.get_context("spawn").Process(target=os._exit, args=(READY,), name=TRIAL, daemon=True)
    process.start()
    process.join()
    if process.exitcode == UNGUARDED:
        raise LearnerError(
            f"num_workers starts processes that import {script}, which trains when imported: {_GUARD}",
            code="worker-script-unguarded",
        )
    if process.exitcode != READY:
        raise LearnerError(
            f"num_workers starts processes that import {script}, and that ended with exit code {process.exitcode} (its "
            f"error, if it had one, is printed above): {_GUARD}",
            code="worker-script-ended",
        )
