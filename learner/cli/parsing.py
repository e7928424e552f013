"""Argument parsing for the commands that read runs: argparse with the errors of this project."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from learner.errors import LearnerError, near


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that raises `LearnerError` and suggests similar options.

    Args:
      command: what follows `learner` on the command line.
      about: what it does.
    """

    def __init__(self, command: str, about: str):
        super().__init__(
            prog=f"learner {command}",
            description=about,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def read(self, words: Sequence[str]) -> argparse.Namespace | None:
        """Return the arguments, or None after printing the help.

        Raises:
          LearnerError: they are wrong.
        """
        if "-h" in words or "--help" in words:
            self.print_help()
            return None
        found, rest = self.parse_known_intermixed_args(list(words))
        for word in rest:
            name = word.partition("=")[0]
            known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
            hint = near(name, known) if name.startswith("-") else f"see {self.prog} --help"
            raise LearnerError(f"{self.prog} takes no {word!r}: {hint}", code="cli-word-unexpected", word=word)
        return found

    def error(self, message: str) -> NoReturn:
        """Raise `LearnerError`."""
        raise LearnerError(f"{self.prog}: {message}; see {self.prog} --help", code="cli-usage")
