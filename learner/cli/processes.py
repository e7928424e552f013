"""The options that make a command one of several processes. They belong to the process, not to the config."""

import contextlib
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from learner.cli.configs.overrides import value_of
from learner.distributed.connection import check_connection, init_distributed
from learner.distributed.departure import leave
from learner.errors import LearnerError
from learner.util.stages import note

PLACE = ("coordinator", "num_processes", "process_id")
OPTIONS = (*PLACE, "timeout", "heartbeat")


def process_options(line: Namespace) -> dict[str, Any] | None:
    """Return the arguments of `init_distributed` from those of `Parser.add_processes`; None for a single process.

    >>> process_options(Namespace(distributed=False, coordinator=None, num_processes=None, process_id="1"))
    {'process_id': 1}
    """
    given = {key: text for key in OPTIONS if (text := getattr(line, key, None)) is not None}
    values = {key: text if key == "coordinator" else value_of(text) for key, text in given.items()}
    return values if values or line.distributed else None


@contextlib.contextmanager
def connected(arguments: dict[str, Any] | None) -> Iterator[None]:
    """Connect this process to the others, if any, and report an error to them. No user code may have been imported
    before.
    """
    if arguments is not None:
        check_connection(**arguments)
        if arguments.get("process_id") == 0 and all(name in arguments for name in PLACE):
            others = f"the other processes (--num_processes {arguments['num_processes']})"
            note(f"process 0 waits at {arguments['coordinator']} for {others}")
        init_distributed(**arguments)
    try:
        yield
    except BaseException as error:
        leave(str(error) if isinstance(error, LearnerError) else f"{type(error).__name__}: {error}")
        raise
