"""A monitor that ends a process if its peers have failed while it waits for their devices.

The wait is in C++: no Python code of the main thread runs until it ends, which may be never. So a thread checks once a
second if a peer has failed. The main thread has some time to raise the error; then the thread prints the reason and
ends the process.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator

from learner.distributed.departure import leave
from learner.distributed.process_group import ProcessGroup
from learner.errors import ProcessError

POLL_SECONDS = 1.0
NOTICE_SECONDS = 3.0  # within which most processes raise; process 0 leaves after a few more, and JAX aborts the others
GRACE_SECONDS = 20.0  # to raise the error, and to write the files of a failed run


@contextlib.contextmanager
def peers_monitored(
    group: ProcessGroup,
    poll: float = POLL_SECONDS,
    notice: float = NOTICE_SECONDS,
    grace: float = GRACE_SECONDS,
    end: Callable[[str], None] | None = None,
) -> Iterator[None]:
    """End this process if another has failed and the block does not end within `grace` seconds. After `notice` seconds,
    print the reason. A single process starts no thread.

    Args:
      group: the processes.
      poll: seconds between two checks.
      notice, grace: seconds to wait before printing the reason, and before ending the process.
      end: called with the reason; default: print it, and end the process with the exit code 1.
    """
    if group.count == 1:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(poll):
            try:
                group.raise_if_peer_failed()  # first: one process reports a difference, rather than both
                group.compare_passes()
            except ProcessError as error:
                if not ended.wait(notice):
                    _print(f"learner: {error}")
                    if not ended.wait(grace - notice):
                        (end or _end_process)(f"process {group.index} ends: {error}")
                return

    thread = threading.Thread(target=watch, name="learner-peers", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # Not joined: it may be in its last check, which waits for the answer of process 0.


def _end_process(text: str) -> None:
    _print(f"learner: {text}. It waited for the devices of the others, which cannot be interrupted")
    leave(text)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(1)  # the main thread is in C++, so nothing less would end it


def _print(text: str) -> None:
    """Print to stderr. Nobody may read it any more, and the process has to end all the same."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
