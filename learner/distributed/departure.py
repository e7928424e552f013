"""The end of one of several processes: how the others learn of it.

A process that fails stores its failure, which the others find when they wait for it. One that ends without an error
leaves a mark, so that nobody waits for it.
"""

import contextlib
import ctypes
import json
import sys
import time
from typing import Any

import jax

from learner.distributed.differences import named_processes
from learner.util.jax_internals import distributed_state

FAILED, LEFT, ENDED = "learner/failed", "learner/left", "learner/ended"

_exit_text: str | None = None  # see `leave_at_exit`


def store_failure(client: Any, index: int, run: int | None, text: str) -> None:
    """Store a failure of a run, or of all runs if `run` is None, where the other processes look for one."""
    try:
        client.key_value_set(f"{FAILED}/{index}", json.dumps([run, text]), True)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        print(f"learner: this failure could not be reported to the other processes: {reason}", file=sys.stderr)


def leave_at_exit(text: str) -> None:
    """Make this process leave the others when it exits, like an uncaught error: Python calls no hook for `SystemExit`.

    Args:
      text: see `leave`.
    """
    global _exit_text
    _exit_text = text


def cancel_leave_at_exit() -> None:
    """Undo `leave_at_exit`, for a process that has caught the exception and continues."""
    global _exit_text
    _exit_text = None


def mark_ended() -> None:
    """Report that this process ends, so that processes that still wait for it raise an error. A process that ends with
    an error has already reported it.
    """
    state = distributed_state()
    if _exit_text is not None:
        leave(_exit_text)  # does nothing for a process that has left
    elif state.client is not None and state.num_processes > 1:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            state.client.key_value_set(f"{ENDED}/{state.process_id}", "", True)


def leave(text: str, patience: float = 5.0) -> None:
    """Report to the other processes, in any run, that this one ends because of an error. They raise it when they wait
    for this one, and should leave as well; then all disconnect, and end together. Without other processes this does
    nothing.

    Devices of the others may wait for those of this process, and JAX lets no process end before all do. So if not all
    have left in time, this process ends without them, which ends their wait.

    Args:
      text: the text of the error that they raise.
      patience: seconds to wait for the others.
    """
    state = distributed_state()
    client, index = state.client, state.process_id
    if client is None or state.num_processes == 1:
        return
    store_failure(client, index, None, text)
    end = time.monotonic() + patience * (1 if index else 1.5)  # the others are lost without process 0
    try:
        client.key_value_set(f"{LEFT}/{index}", "", True)
        for other in range(state.num_processes):
            client.blocking_key_value_get(f"{LEFT}/{other}", max(1, round(1000 * (end - time.monotonic()))))
        # Here, where all processes wait for each other, rather than at exit: a process whose threads wait for devices
        # ends without JAX's exit handlers, and the end of process 0 would abort those that are still connected.
        state.shutdown()
    except jax.errors.JaxRuntimeError:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            here = {int(key.rpartition("/")[2]) for key, _ in client.key_value_dir_get(LEFT)}
            if silent := [other for other in range(state.num_processes) if other not in here]:
                print(
                    f"learner: {named_processes(silent)} did not answer for {patience:g} s: killed, ended or busy",
                    file=sys.stderr,
                )
            client.key_value_delete(f"{LEFT}/{index}")
        for owner in (client, state.service):  # their destructors wait for the other processes, also at exit
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
        state.client = state.service = None
