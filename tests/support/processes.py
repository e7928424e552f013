"""Several processes of one run on this machine."""

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
    """What became of a process: its exit code (minus the number of the signal that ended it), and what it printed."""

    code: int
    out: str
    err: str


def free_port():
    """A port that nothing listens at, and that the system gives to no other connection meanwhile."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("localhost", port))
            return port


def start(command, count, devices=1, **environment):
    """Runs `python *command` as `count` processes that are to be connected, until all have ended.

    Args:
      command: words. `{port}`, `{count}` and `{index}` in them become numbers, the port a free one.
      count: how many processes.
      devices: CPU devices of each.
      environment: more variables.

    Returns:
      What became of each, in order. None is left, whatever happens here.
    """
    port = free_port()
    commands = [[str(word).format(port=port, count=count, index=index) for word in command] for index in range(count)]
    return together(commands, devices, **environment)


def together(commands, devices=1, timeout=120, **environment):
    """Runs `python *command` for each of some commands at once, for `timeout` seconds at most. See `start`."""
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    running, end = [], time.monotonic() + timeout
    with tempfile.TemporaryDirectory() as folder:
        # Files rather than pipes: nobody reads while the others are waited for, and a full pipe would hold a process.
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
            said = "\n".join(f"-- {path.name}\n{path.read_text()[-3000:]}" for pair in files for path in pair)
            raise AssertionError(f"the processes did not end within {timeout} s\n{said}") from error
        finally:
            for process in running:
                process.kill()
                process.wait()
        return [Ended(code, *(path.read_text() for path in pair)) for code, pair in zip(codes, files, strict=True)]
