"""Start several connected processes of one run on this machine."""

import contextlib
import dataclasses
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass
class Ended:
    """The result of a process: its exit code (minus the signal's number if killed by one), and its output."""

    code: int
    out: str
    err: str


def free_port():
    """Return a port where no process listens, and that the system does not assign meanwhile."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as bound, contextlib.suppress(OSError):
            bound.bind(("localhost", port))
            return port


def start(command, count, devices=1, **environment):
    """Run `python *command` as `count` connected processes, and wait for all of them.

    Args:
      command: words, in which `{port}`, `{count}` and `{index}` become numbers, the port a free one.
      count: number of processes.
      devices: CPU devices of each process.
      environment: further variables.

    Returns:
      The results of the processes, in order. None of them is still running, also after an error.
    """
    port = free_port()
    commands = [[str(word).format(port=port, count=count, index=index) for word in command] for index in range(count)]
    return together(commands, devices, **environment)


def together(commands, devices=1, timeout=120, **environment):
    """Run `python *command` for several commands in parallel, with a timeout in seconds. See `start`."""
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    running, end = [], time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        # Output goes to files: a full pipe would block a process, as pipes are not read while the others are awaited.
        files = [[Path(folder, f"{index}.{name}") for name in ("out", "err")] for index in range(len(commands))]
        try:
            for command, (out, err) in zip(commands, files, strict=True):
                with out.open("wb") as stdout, err.open("wb") as stderr:
                    running.append(
                        subprocess.Popen(
                            [sys.executable, "-u", *command],
                            stdin=subprocess.DEVNULL,
                            stdout=stdout,
                            stderr=stderr,
                            env={**os.environ, **settings, **environment},
                        )
                    )
            codes = [process.wait(max(0.1, end - time.monotonic())) for process in running]
        except subprocess.TimeoutExpired as error:
            output = "\n".join(f"-- {path.name}\n{path.read_text()[-3000:]}" for pair in files for path in pair)
            raise AssertionError(f"the processes did not end within {timeout} s\n{output}") from error
        finally:
            for process in running:
                process.kill()
                process.wait()
        return [Ended(code, *(path.read_text() for path in pair)) for code, pair in zip(codes, files, strict=True)]
