"""The command `learner`."""

import contextlib
import difflib
import errno
import importlib
import io
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from learner.cli.configs.importing import import_order
from learner.cli.parsing import fit_to_terminal
from learner.cli.tracebacks import FULL, own_traceback
from learner.cli.usage import PARSERS, fit_usage, requested_help, stored_topic
from learner.errors import LearnerError, near
from learner.training.signals import TERMINATED, deferred_signals, dropped_signals, of_a_command
from learner.util.device_threads import any_alive, end_process
from learner.util.disk import largest_file
from learner.util.distribution import VERSION
from learner.util.stages import end_stages, enter_stage, stage_line
from learner.util.standard_streams import fill_descriptors, write_errors
from learner.util.text import printable, wrapped
from learner.util.user_warnings import LearnerWarning

COMMANDS = {
    "fit": ("fit", "CONFIG [--KEY=VALUE ...]", "train what a config file describes"),
    "resume": ("fit", "DIR [--KEY=VALUE ...]", "resume a run"),
    "sweep": ("sweep", "CONFIG --KEY=A,B,C ...", "train a run for each combination of values"),
    "evaluate": ("evaluate", "DIR [--KEY=VALUE ...]", "evaluate a run's model on its validation data"),
    "predict": ("evaluate", "DIR [DATA] -o FILE", "write the outputs of a run's model, also for other data"),
    "export": ("export", "DIR -o FILE", "export a run's model, or its numbers, to a file"),
    "export-model": ("export", "DIR OUT --inputs=FIELD", "export a run's model for inference, as a program"),
    "summary": ("summary", "DIR | CONFIG", "summarise a run, or the run that a config describes"),
    "compare": ("runs", "DIR...", "compare the configs and the results of runs"),
    "diff": ("runs", "DIR DIR|CONFIG", "show what differs between two runs, and where their losses part"),
    "plot": ("runs", "DIR... METRIC [-o FILE]", "plot a metric of runs"),
    "report": ("runs", "DIR... [-o FILE]", "write an HTML report of runs"),
    "ask": ("runs", "stop|save DIR...", "ask a running run to save or to stop"),
    "fetch": ("fetch", "URL [DIR]", "copy a run from an object store to this machine"),
    "push": ("hub", "DIR USER/MODEL", "push a run's model to the Hugging Face Hub"),
    "pull": ("hub", "USER/MODEL DIR", "copy a model from the Hugging Face Hub to this machine"),
    "watch": ("watch", "DIR...", "watch runs in the terminal while they train"),
    "data": ("data", "CONFIG [-o DIR]", "inspect the data of a config"),
    "devices": ("devices", "", "list the devices for training"),
    "plot-lr": ("rates", "CONFIG [--KEY=VALUE ...]", "plot the learning rate of a run"),
    "profile": ("profiling", "CONFIG [-o DIR]", "profile the steps of a run"),
    "find-lr": ("rates", "CONFIG [--KEY=VALUE ...]", "find learning rates that lower the loss"),
    "doctor": ("doctor", "CONFIG [--KEY=VALUE ...]", "check model, data and steps before a run"),
    "examples": ("examples", "[NAME]", "list the examples that come with learner, or print one"),
    "new": ("examples", "PROJECT", "create a small project: a model, a config, a test"),
    "completion": ("completion", "SHELL", "print a script for completion in a shell"),
}
"""The module, arguments and description of each command."""

COMMON_GUESSES = {
    **dict.fromkeys(("train", "run"), "fit CONFIG"),
    **dict.fromkeys(("test", "validate"), "evaluate DIR"),
    **dict.fromkeys(("infer", "inference"), "predict DIR [DATA] -o FILE"),
    **dict.fromkeys(("init", "create"), "new PROJECT"),
    **dict.fromkeys(("continue", "restart"), "resume DIR"),
    "tune": "sweep CONFIG --KEY=A,B,C ...",
    "show": "summary DIR | CONFIG",
    "stop": "ask stop DIR",
    "save": "ask save DIR",
}
"""Commands of other programs, and their equivalents here."""

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
NO_THREAD = "can't start new thread"  # as Python says
PIPE_CLOSED = 141  # the code that shells report for programs ended by SIGPIPE
OUTPUT_FAILED = 74  # EX_IOERR of sysexits.h

READING = ("completion", "devices", "examples", "fetch", "runs", "summary", "watch")
"""Modules of commands that run no user code (except `diff --replay` and `diff DIR CONFIG`). These import nothing from
the current directory, which may be a run's.
"""

USAGE = """\
usage: learner COMMAND ...

{commands}

  learner help COMMAND    more about a command
  learner --version
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
      words: the words of the command line, without the program's name; default: those of this process.

    Returns:
      The exit code: 0; 1 if `diff` finds other losses or arrays, if `doctor` finds a failure, if members of `sweep`
        failed by an error, if `evaluate --split` cannot write its values into the run, for a file that cannot be
        written, or for an error in the user's code, after its traceback; 2 for wrong input, after one message on
        standard error; 130 after Ctrl-C, 143 after SIGTERM or SIGHUP, 141 if the output is no longer read, 74 if it
        cannot be written, 75 if the watchdog ended the run.
    """
    _open_standard_streams()
    if sys.stderr is sys.stdout:  # one object in place of both, as in a notebook
        return _run_reporting(words)
    with write_errors(sys.stderr, lambda error: None):  # a message that cannot be written changes nothing else
        return _run_reporting(words)


def _run_reporting(words: Sequence[str] | None) -> int:
    """Run a command, print its error, if any, and return the exit code."""
    failed: list[OSError] = []

    def record(error: OSError) -> None:  # by itself, it does not differ from errors of other files
        failed.append(error)
        raise error

    try:
        with of_a_command(), write_errors(sys.stdout, record):
            code = _run(list(sys.argv[1:] if words is None else words))
            sys.stdout.flush()
            return _interrupted(code) if code in (130, TERMINATED) else code
    except OSError as error:
        if error not in failed:  # of another file
            return _fail(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again at exit
        if isinstance(error, BrokenPipeError):  # the reader of the output has closed it
            return PIPE_CLOSED
        print(f"learner: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return OUTPUT_FAILED
    except LearnerError as error:
        notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("while ")]  # not those of others
        if os.environ.get(FULL):
            traceback.print_exception(error)
        elif isinstance(error.__cause__, Exception) and own_traceback(error.__cause__) is not None:
            notes.append(f"({FULL}=1 prints the traceback of your code)")
        text = "\n  ".join([str(error), *notes])
        # The text may quote a file, which must not control the terminal.
        lines = list(map(printable, f"learner: {text}".split("\n")))
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns
            lines = [part for line in lines for part in wrapped(line, width)]
        print("\n".join(lines), file=sys.stderr)
        return 2
    except Exception as error:
        return _fail(error)
    except KeyboardInterrupt:
        print("learner: interrupted", file=sys.stderr)
        return _interrupted(130)
    except SystemExit as ended:
        if ended.code != TERMINATED:
            raise
        print("learner: interrupted", file=sys.stderr)
        return _interrupted(TERMINATED)


def _interrupted(code: int) -> int:
    """Return the exit code. If threads compile or compute, end the process with it at once, because Python would wait
    for them, or abort.
    """
    executables = sys.modules.get("learner.util.executables")  # before JAX is imported, nothing is compiled
    if any_alive() or (executables is not None and executables.is_compiling()):
        end_process(code)
    return code


def _fail(error: Exception) -> int:
    """Print the traceback of an error in the user's code, or the text of an error about a file that cannot be written
    or a thread that cannot be started, and return the exit code. An error of a library is raised again.
    """
    text = own_traceback(error)
    if isinstance(error, RuntimeError | AssertionError) and (problem := _device_problem(error)) is not None:
        print(problem, file=sys.stderr)
        return 2
    if text is None and isinstance(error, OSError) and error.errno in UNWRITABLE and not os.environ.get(FULL):
        text = "\n  ".join(map(printable, [f"learner: {error}", *getattr(error, "__notes__", ())]))
    if text is None and isinstance(error, RuntimeError) and str(error) == NO_THREAD:
        text = f"learner: {error}: the user or container has all that it may have (ulimit -u, a limit of pids)"
    if text is None:
        raise error
    print(text, file=sys.stderr)
    return 1


def _device_problem(raised: Exception) -> str | None:
    """Return a message if JAX raised the error because it has no devices, such as under `JAX_PLATFORMS=cuda` without a
    driver. JAX fails at the first use of a device, wherever it is, and at each further use.
    """
    try:
        sys.modules["jax"].devices()
    except KeyError:
        return None
    except (RuntimeError, AssertionError) as error:  # JAX asserts that one of several platforms has devices
        if str(error) != str(raised):
            return None
        platforms = os.environ.get("JAX_PLATFORMS")
        lines = ["learner: JAX finds no devices", *str(error).splitlines()[:1]]
        lines += [f"JAX_PLATFORMS is {platforms!r}; without it JAX chooses"] if platforms else []
        return "\n  ".join(map(printable, lines))
    return None


def _open_standard_streams() -> None:
    """Open closed standard streams, and let all of them accept any character."""
    fill_descriptors()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        # Characters of a curve that the encoding lacks are not an error. In the POSIX locale Python itself chooses
        # `surrogateescape`, which raises for them as well.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def _plain_warnings(everywhere: bool) -> Iterator[None]:
    """Print warnings in a readable form: our own, or `everywhere` if no other code runs."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def plain(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
            end_stages()
            if everywhere or issubclass(category, LearnerWarning):
                print("learner:", printable(str(message)), file=sys.stderr)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = plain
        yield


def _usage() -> str:
    """Return the help of the program."""
    abouts = {f"  learner {name} {arguments}": about for name, (_, arguments, about) in COMMANDS.items()}
    column = max(map(len, abouts)) + 2
    return fit_to_terminal(USAGE.format(commands="\n".join(f"{start:<{column}}{abouts[start]}" for start in abouts)))


def _command_hint(command: str) -> str:
    """Return the command for the common guess that a word equals or resembles, or similar commands, or how to list all
    commands.
    """
    known = [*COMMANDS, "help", "version"]
    nearest = difflib.get_close_matches(command.lower(), [*known, *COMMON_GUESSES], n=1)
    if nearest and nearest[0] in COMMON_GUESSES:
        return f"learner {COMMON_GUESSES[nearest[0]]}"
    return near(command, known, "learner help lists all commands")


def _run(words: list[str]) -> int:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command == "help" and rest:
        command, rest = rest[0], [*rest[1:], "--help"]
    if command in ("-h", "--help", "help"):
        print(_usage(), end="")
        return 0
    if command in ("--version", "version"):
        print("learner", VERSION)
        return 0
    if command not in COMMANDS:
        raise LearnerError(
            f"there is no command {command!r}: {_command_hint(command)}",
            code="cli-command-unknown",
            command=command,
        )
    topic = requested_help(rest)
    page = None
    if topic and command in ("fit", "resume"):
        page = stored_topic(topic)
    elif topic is not None and command in PARSERS:
        page = fit_usage() if command == "fit" else PARSERS[command]().format_help()
    if page is not None:
        print(page.rstrip())
        return 0
    largest_file()  # otherwise each run that cannot be read would be a warning
    starts_run = command in ("fit", "resume", "sweep") and topic is None
    reads_configs = any(word.startswith("--replay") or word.endswith((".yaml", ".yml")) for word in rest)
    replays = command == "diff" and topic is None and reads_configs
    exports_numbers = command == "export" and any(word.startswith("--format") for word in rest)
    reading = (COMMANDS[command][0] in READING or command == "pull" or exports_numbers) and not replays
    with contextlib.ExitStack() as stack:
        # Only around code that imports JAX: a view's event loop handles SIGINT only in place of Python's own handler.
        raise_dropped = None if reading else stack.enter_context(dropped_signals())
        with import_order(own=False):  # our modules must not find their imports in the current directory
            if starts_run:
                line, trains = importlib.import_module("learner.cli.configs.missing").read_words(command, rest)
                if trains and line.watch:
                    return int(importlib.import_module("learner.cli.beside").train_beside(command, line, rest))
                is_terminal = sys.stderr is not None and sys.stderr.isatty()
                # Otherwise on standard output, like the lines of epochs, but not before output that is meant for
                # programs. Not in one of several processes: only the first writes, and this process may learn later
                # that it is not the first.
                shared = any(word.startswith(("--process_id", "--distributed")) for word in rest)
                in_pipes = trains and not is_terminal and not shared
                stream = sys.stdout if in_pipes else sys.stderr
                stack.enter_context(stage_line(stream, f"learner {VERSION}: ", in_pipes=in_pipes))
                enter_stage("importing JAX")
            with deferred_signals():
                if not reading:
                    importlib.import_module("learner.builder")
                if replays:
                    importlib.import_module("learner.cli.replay")
                module = importlib.import_module(f"learner.cli.{COMMANDS[command][0]}")
        if raise_dropped is not None:
            raise_dropped()
        stack.enter_context(_plain_warnings(reading))
        stack.enter_context(import_order(own=not reading))
        try:
            code: int = getattr(module, command.replace("-", "_"))(rest)
        except SystemExit as ended:
            if ended.code:
                raise
            code = 0  # after printing the help
        return code
