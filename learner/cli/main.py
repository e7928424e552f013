"""The command `learner`."""

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version

from learner.cli.importing import current_directory_importable
from learner.errors import LearnerError, near
from learner.signals import TERMINATED, of_a_command
from learner.text import printable

COMMANDS = {
    "fit": ("learner.cli.training", "train what a config file describes"),
    "resume": ("learner.cli.training", "go on with a run"),
    "evaluate": ("learner.cli.using", "the metrics of a run's model on its validation data"),
    "predict": ("learner.cli.using", "what a run's model says about other data"),
    "summary": ("learner.cli.summary", "what became of a run"),
}

READING = ("summary",)
"""Commands that run no code of the user's: they import nothing from the current directory, which may be a run's."""

USAGE = """\
usage: learner COMMAND ...

  learner fit CONFIG [--KEY=VALUE ...]      {fit}
  learner resume DIR [--KEY=VALUE ...]      {resume}
  learner evaluate DIR [--KEY=VALUE ...]    {evaluate}
  learner predict DIR DATA -o FILE          {predict}
  learner summary DIR                       {summary}

  learner COMMAND --help                    more about a command
  learner --version
"""


def main(words: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
      words: of the command line, without the program's name; default: those of this process.

    Returns:
      The exit code: 0; 2 for wrong input, after one message on standard error; 130 after Ctrl-C, 143 after SIGTERM,
        75 where the watchdog ended it.
    """
    try:
        with of_a_command():
            return _run(list(sys.argv[1:] if words is None else words))
    except LearnerError as error:
        lines = str(error).split("\n")  # they may quote a file, which shall not steer the terminal
        print("learner:", "\n".join(map(printable, lines)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("learner: interrupted", file=sys.stderr)
        return 130
    except SystemExit as ended:
        if ended.code != TERMINATED:
            raise
        print("learner: interrupted", file=sys.stderr)
        return TERMINATED


def _run(words: list[str]) -> int:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in ("-h", "--help"):
        print(USAGE.format(**{name: about for name, (_, about) in COMMANDS.items()}), end="")
        return 0
    if command == "--version":
        print("learner", version("learner"))
        return 0
    if command not in COMMANDS:
        raise LearnerError(f"there is no command {command!r}: {near(command, list(COMMANDS))}")
    with contextlib.nullcontext() if command in READING else current_directory_importable():
        module = importlib.import_module(COMMANDS[command][0])
        code: int = getattr(module, command)(rest)
        return code
