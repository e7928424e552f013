"""`learner fit --watch` and `learner resume --watch`: the live view in the terminal, and the run in another process."""

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import IO

from learner.cli.configs.overrides import apply_overrides, read_configs
from learner.cli.watch import refuse_pipes, refuse_without_packages
from learner.errors import LearnerError

STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGHUP)
"""Exit codes of the view, besides that of Ctrl-C, after which the run also gets a signal, so that it saves and ends."""
SECONDS_BETWEEN_LOOKS = 0.2


def train_beside(command: str, line: Namespace, words: Sequence[str]) -> int:
    """Run `learner fit` or `learner resume` in another process, and show the run until the user quits the view or the
    run fails; then show its output. Return its exit code.

    A view in the process of the run would wait for the interpreter while programs are traced.

    Args:
      command: `fit` or `resume`.
      line: the arguments.
      words: the words of the command line that have these arguments.

    Raises:
      LearnerError: there is no terminal, a package is missing, or the run has no directory.
    """
    refuse_without_packages()
    refuse_pipes()
    directory = line.directory if command == "resume" else None
    if command == "fit":
        configs = [] if line.config is None else [line.config, *line.further]
        content = apply_overrides(read_configs(configs), line.overrides)
        directory = content.get("directory")
        directory = os.path.expanduser(directory) if isinstance(directory, str) else None
    if not isinstance(directory, str):
        raise LearnerError("--watch needs the key directory in the config", code="cli-watch-directory")
    others = [word for word in words if word.partition("=")[0] != "--watch"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "learner", command, *others],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the view handles Ctrl-C in the terminal
        )
        try:
            result = _show(directory, process)
        except BaseException:
            _interrupt(process)
            raise
        if result == 128 + signal.SIGINT:
            _interrupt(process)
        elif result in STOPPED:
            process.send_signal(signal.SIGTERM)
        with _passing_on(process):  # only after the view, which has its own handlers, is closed
            return _follow(process, output)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Stop the run as by Ctrl-C. If this process ignores SIGINT, the run has inherited that."""
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    process.send_signal(signal.SIGTERM if is_ignored else signal.SIGINT)


def _show(directory: str, process: subprocess.Popen[bytes]) -> int:
    from learner.reports.live.app import watch
    from learner.reports.live.view import PlotView
    from learner.reports.live.watched import RunWatcher

    watched = RunWatcher([directory])
    watched.refresh()
    return watch(watched, PlotView([]), 1.0, lambda: bool(process.poll()))


@contextlib.contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward SIGTERM and SIGHUP to the run, which then saves and ends. In its own session it gets neither."""
    with contextlib.ExitStack() as restored:
        for number in (signal.SIGTERM, signal.SIGHUP):
            before = signal.signal(number, lambda number, frame: process.send_signal(signal.SIGTERM))
            restored.callback(signal.signal, number, before)
        yield


def _follow(process: subprocess.Popen[bytes], output: IO[bytes]) -> int:
    """Print the run's earlier and further output until it ends, and return its exit code. Ctrl-C goes to the run."""
    place, decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            code = process.poll()
            # With an explicit offset: the file's own position belongs to the run, which writes.
            while text := os.pread(output.fileno(), 1 << 16, place):
                place += len(text)
                sys.stdout.write(decoder.decode(text))
            sys.stdout.flush()
            if code is not None:
                return code
            process.wait(SECONDS_BETWEEN_LOOKS)
        except subprocess.TimeoutExpired:
            pass
        except KeyboardInterrupt:
            _interrupt(process)
