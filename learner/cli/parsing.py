"""Argument parsing for all commands: argparse with the errors of this project.

jsonargparse's own parser refuses unknown options (its `parse_known_args` is not implemented). Options such as
`--model.hidden=64` are unknown until the config is read and the class that it names is imported.
"""

import argparse
import difflib
import functools
import os
import re
import shutil
import stat
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from learner.errors import LearnerError, near
from learner.util.disk import kind_of

ENTRY = re.compile(r" +\S.*? {2,}(?=\S)")
"""The name of an entry, up to its description."""
LEAST_COLUMN = 8
"""Of descriptions."""
WIDEST = 120  # characters of a line

PROCESSES = """\
  --distributed           run as one of several processes, all started with
                          this option, in a cluster that JAX detects: SLURM,
                          Open MPI, Kubernetes, Cloud TPU
  --coordinator HOST:PORT --num_processes N --process_id I
                          for other clusters: process 0 listens at
                          HOST:PORT, and processes are numbered from 0
  --timeout S --heartbeat S
                          seconds to wait for a process that does not come
                          (300), and for a sign of life (40)
"""


def entries(abouts: Mapping[str, str]) -> list[str]:
    """Return a line of a help text for each entry: its name and its description."""
    return [f"  {name:<22}  {about}" for name, about in abouts.items()]


def fit_to_terminal(text: str) -> str:
    """Return a help text in which every block with a line too wide for the terminal is rewrapped."""
    width = min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)
    blocks = re.split(r"(\n{2,})", text)
    return "".join(block if max(map(len, block.split("\n"))) <= width else _wrapped(block, width) for block in blocks)


def _wrapped(block: str, width: int) -> str:
    """Return a block whose paragraphs are wrapped: text at the margin, and entries of a name and a description."""
    paragraphs: list[tuple[str, int]] = []  # with the column of their continuation lines
    is_open = False
    for line in block.split("\n"):
        indent = len(line) - len(line.lstrip())
        if is_open and line and indent == paragraphs[-1][1]:
            paragraphs[-1] = f"{paragraphs[-1][0]} {line.lstrip()}", indent
        else:
            entry = ENTRY.match(line)
            # Slightly indented lines are examples; each remains a line.
            column = entry.end() if entry else indent + 2 if 0 < indent < LEAST_COLUMN else indent
            paragraphs.append((line, column))
        is_open = bool(line) and not line.endswith(":")
    lines: list[str] = []
    for text, column in paragraphs:
        further = " " * min(column, 2 * width // 3)
        wrapped = textwrap.wrap(text, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)
        lines += wrapped or [""]
    return "\n".join(lines)


def check_output(path: Path, what: str, suffixes: Sequence[str] = (), directory: bool = False) -> None:
    """Raise `LearnerError` unless a file with one of these suffixes, or the content of a directory, can be written at
    `path`. Links, pipes and devices are refused, because an output replaces what is there, which may be `/dev/stdout`.
    """
    if str(path) == "-":
        raise LearnerError(f"nothing is written to standard output: -o needs {what}", code="cli-standard-output")
    if (suffixes and path.suffix.lower() not in suffixes) or not path.absolute().parent.is_dir():
        raise LearnerError(f"the output is {path}; it needs {what} in a directory that exists", code="cli-output-path")
    mode = path.lstat().st_mode if os.path.lexists(path) else stat.S_IFREG
    if not (stat.S_ISREG(mode) or (directory and stat.S_ISDIR(mode))):
        raise LearnerError(
            f"the output {path} is {kind_of(mode)}, which would be replaced; it needs {what}", code="cli-output-kind"
        )
    place = path if stat.S_ISDIR(mode) else path.parent
    if not os.access(place, os.W_OK | os.X_OK):
        raise LearnerError(
            f"the output {path} cannot be written: the directory {place} is not writable",
            code="cli-output-unwritable",
            path=path,
        )


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `LearnerError` and suggests similar options.

    Args:
      command: the name after `learner` on the command line.
      about: the description.
      usage: the arguments; default: the added ones.
      further: the text below the options.
      keys: accept further options `--KEY=VALUE` or `--KEY VALUE`, which are keys of a config, as `overrides`.
    """

    def __init__(self, command: str, about: str, usage: str = "", further: str = "", *, keys: bool = False):
        super().__init__(
            prog=f"learner {command}",
            usage=f"learner {command} {usage}" if usage else None,
            description=about,
            epilog=further,
            allow_abbrev=False,
            formatter_class=functools.partial(
                argparse.RawDescriptionHelpFormatter, width=min(shutil.get_terminal_size().columns, WIDEST) - 2
            ),
        )
        self._keys = keys
        self._hint = f"{self.prog} {usage.splitlines()[0]}" if usage else f"see {self.prog} --help"

    def add_config(self) -> None:
        """Add the argument `CONFIG`."""
        self.add_argument(
            "config", metavar="CONFIG", help="a config; --KEY=VALUE overrides its keys as for learner fit"
        )

    def add_run(self) -> None:
        """Add the argument `DIR` and the option `--trust`; see `learner.cli.trust`."""
        self.add_argument("directory", metavar="DIR", help="the directory of the run")
        about = "run the code that config.yaml names even if the run belongs to another user, or others can change it"
        self.add_argument("--trust", action="store_true", help=about)

    def add_processes(self) -> None:
        """Add the options of `learner.cli.processes`, which `PROCESSES` describes."""
        self.add_argument("--distributed", action="store_true", help=argparse.SUPPRESS)
        for name in ("coordinator", "num_processes", "process_id", "timeout", "heartbeat"):
            self.add_argument(f"--{name}", help=argparse.SUPPRESS)

    def format_help(self) -> str:
        """Return the help, fitted to the terminal."""
        return fit_to_terminal(super().format_help())

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the arguments.

        Raises:
          LearnerError: they are wrong.
          SystemExit: the help was requested, and has been printed.

        >>> parser = Parser("fit", "", keys=True)
        >>> _ = parser.add_argument("config"), parser.add_argument("--print_config", action="store_true")
        >>> line = parser.read(["a.yaml", "--num-epochs=3", "--model.hidden", "64", "--print_config"])
        >>> line.config, line.print_config, line.overrides
        ('a.yaml', True, [('num_epochs', '3'), ('model.hidden', '64')])
        """
        if "-h" in words or "--help" in words:
            self.print_help()
            self.exit()
        own, overrides = self._split(words) if self._keys else (list(words), [])
        found, rest = self.parse_known_intermixed_args(own)
        for word in rest:
            name = word.partition("=")[0]
            known = [option for option in self._option_string_actions if option.startswith("--")]
            hint = near(name, known) if name.startswith("-") else f"see {self.prog} --help"
            if self._keys and re.match("-[a-z]", word):
                hint = f"keys of the config begin with two dashes: -{word}"
            raise LearnerError(f"{self.prog} takes no {word!r}: {hint}", code="cli-word-unexpected", word=word)
        if self._keys:
            found.overrides = overrides
        return found

    def _split(self, words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the words that argparse reads, and the options that are keys of a config, as text."""
        own, overrides, rest = list[str](), list[tuple[str, str]](), list(words)
        while rest:
            word = rest.pop(0)
            if not word.startswith("--"):
                own.append(word)
                continue
            name, equals, value = word[2:].partition("=")
            first, dot, inner = name.partition(".")
            name = first.replace("-", "_") + dot + inner  # inner names may be the user's, such as names of splits
            action = self._option_string_actions.get(f"--{name}")
            if action is None:
                if not equals and rest and not rest[0].startswith("--"):
                    value = rest.pop(0)
                elif not equals and not name.endswith(".help"):
                    close = difflib.get_close_matches(f"--{name}", self._option_string_actions, n=1, cutoff=0.8)
                    hint = "".join(f", or did you mean {option}?" for option in close)
                    raise LearnerError(f"--{name} has no value: --{name}=VALUE{hint}", code="cli-option-without-value")
                overrides.append((name, value))
            elif equals and action.nargs == 0:
                if value not in ("true", "false"):
                    raise LearnerError(
                        f"--{name} is {value!r}: it needs true or false, or nothing", code="cli-switch-value", name=name
                    )
                own += [f"--{name}"] if value == "true" else []
            elif action.nargs == "?" and not equals:  # the next word is not its value
                own.append(f"--{name}={action.const}")
            else:
                own.append(f"--{name}{equals}{value}")
        return own, overrides

    def error(self, message: str) -> NoReturn:
        """Raise `LearnerError`."""
        raise LearnerError(f"{self.prog}: {message}; {self._hint}", code="cli-usage")
