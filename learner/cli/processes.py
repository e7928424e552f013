"""The options that make a command one of several processes. They belong to the process, not to the config."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from learner.cli.overrides import CommandLine, value_of
from learner.distributed.process_group import init_distributed, leave
from learner.errors import LearnerError

SWITCHES = ("help", "distributed")
OPTIONS = ("coordinator", "num_processes", "process_id")


def pop_process_options(line: CommandLine) -> dict[str, Any] | None:
    """Remove these options from a command line, which was split with `SWITCHES`, and return the arguments of
    `init_distributed`, or None for a single process.

    >>> line = CommandLine(["a.yaml"], [("num_epochs", "3"), ("process_id", "1")], {"distributed": ""})
    >>> pop_process_options(line), line.overrides, line.switches
    ({'process_id': 1}, [('num_epochs', '3')], {})
    """
    found = {key: text for key, text in line.overrides if key in OPTIONS}
    given = {key: text if key == "coordinator" else value_of(text) for key, text in found.items()}
    line.overrides = [(key, text) for key, text in line.overrides if key not in OPTIONS]
    switch = line.switches.pop("distributed", "false")
    if switch not in ("", "true", "false"):
        raise LearnerError(
            f"--distributed is {switch!r}: it needs true or false, or nothing", code="cli-distributed-value"
        )
    return given if given or switch != "false" else None


@contextlib.contextmanager
def connected(arguments: dict[str, Any] | None) -> Iterator[None]:
    """Connect this process to the others, if there are any, and report an error to them. No code of the user may have
    been imported before.
    """
    if arguments is not None:
        if arguments.get("process_id") == 0 and len(arguments) == len(OPTIONS):
            others = f"the other processes (--num_processes {arguments['num_processes']})"
            print(f"learner: process 0 waits at {arguments['coordinator']} for {others}", file=sys.stderr)
        init_distributed(**arguments)
    try:
        yield
    except BaseException as error:
        leave(str(error) if isinstance(error, LearnerError) else f"{type(error).__name__}: {error}")
        raise
