"""Threads that wait for devices, and the exit of a process that has abandoned one of them."""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable

WAIT = 5.0  # seconds for an abandoned thread, if a process cannot exit immediately
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_exit_codes: list[int] = []


def device_thread(work: Callable[[], None], name: str) -> threading.Thread:
    """Return a daemon thread, not yet started, which may call JAX. A run joins it, or abandons it after a second
    signal, as a step may take long.
    """
    thread = threading.Thread(target=with_precision(work), name=name, daemon=True)
    _threads.add(thread)
    return thread


def with_precision(work: Callable[[], None]) -> Callable[[], None]:
    """Return a function for another thread that does the work with 64-bit numbers if this thread has them:
    `with jax.enable_x64(True):` applies to one thread only. It allows transfers, regardless of `jax_transfer_guard`.
    """
    import jax

    def reads_x64() -> bool:
        return bool(jax.config.read("jax_enable_x64"))

    enabled = reads_x64()

    def run() -> None:
        # Set it only if it differs: thread-local settings are part of the key of JAX's compiled programs.
        precision = contextlib.nullcontext() if reads_x64() == enabled else jax.enable_x64(enabled)
        with jax.transfer_guard("allow"), precision:
            work()

    return run


def any_alive() -> bool:
    """Return True if a device thread is alive."""
    return any(thread.is_alive() for thread in _threads)


def end_process(code: int) -> None:
    """End the process immediately, without finalizing Python."""
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # a pipe without a reader, or a closed stream
                stream.flush()


class Terminated(SystemExit):
    """Raised when a signal ends the process in the middle of its work."""


def exit_with(code: int) -> None:
    """Raise `Terminated`, and exit with this code even if a thread is abandoned."""
    _exit_codes.append(code)
    raise Terminated(code)


def keep_exit_code(error: SystemExit) -> None:
    """Exit with the code of this error even if a thread is abandoned."""
    code = error.code
    _exit_codes.append(code if isinstance(code, int) else 0 if code is None else 1)


@atexit.register
def _end() -> None:
    """End the process before Python finalizes. Finalizing ends threads when they return from C++, which aborts the
    process (until Python 3.14).
    """
    if not any_alive():
        return
    kind = getattr(sys, "last_type", None)  # of an uncaught error
    if kind is not None and issubclass(kind, KeyboardInterrupt):
        _flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # as Python ends after this error
        end_process(128 + signal.SIGINT)  # the first process of a container ignores it
    elif kind is not None:
        end_process(1)
    elif _exit_codes:
        end_process(_exit_codes[-1])
    until = time.monotonic() + WAIT
    for thread in list(_threads):  # the code is not known
        thread.join(max(0.0, until - time.monotonic()))
