"""The one kind of error that `learner` raises for wrong input.

A message names the part that is wrong, what was given and what is needed, so that it can be shown without a traceback:
the command line prints it and exits with 2.
"""

from collections.abc import Sequence


class LearnerError(ValueError):
    """Wrong input: an option, a model, an optimizer, data or a run directory that cannot be used as given.

    Attributes:
      problems: each of them, where the message joins several.
    """

    problems: tuple[str, ...] = ()


class ProcessError(LearnerError):
    """Another process of the run has failed, or does not come any more."""


class NonFiniteError(LearnerError):
    """A loss or a gradient of the training was not finite; see `LearnerBuilder.on_nonfinite`."""


class OutOfMemoryError(LearnerError):
    """A device had no room for a part of a run; the message says what is there and what to set.

    Attributes:
      part: `train`, the name of a validation split, or `checkpoint`.
    """

    def __init__(self, text: str, part: str):
        super().__init__(text)
        self.part = part


def one_error(problems: Sequence[str], title: str = "this cannot be trained") -> LearnerError:
    """Joins several problems into one error.

    >>> print(one_error(["num_epochs is 0: give 1 or more", "the learning rate is -1.0: give a positive number"]))
    this cannot be trained, 2 problems:
      1. num_epochs is 0: give 1 or more
      2. the learning rate is -1.0: give a positive number
    >>> print(one_error(["num_epochs is 0: give 1 or more"]))
    num_epochs is 0: give 1 or more
    """
    if len(problems) == 1:
        return LearnerError(problems[0])
    error = LearnerError(
        "\n  ".join([f"{title}, {len(problems)} problems:"] + [f"{i}. {p}" for i, p in enumerate(problems, 1)])
    )
    error.problems = tuple(problems)
    return error


def near(name: str, known: Sequence[str]) -> str:
    """A hint for a misspelt name: the nearest known ones, or all of them.

    >>> near("valid/Acuracy", ["train/Loss", "valid/Accuracy"])
    "did you mean 'valid/Accuracy'?"
    >>> near("adamw", ["Adam", "AdamW"])
    "did you mean 'AdamW'?"
    >>> near("zzz", ["train/Loss"])
    "there are: 'train/Loss'"
    """
    import difflib

    same = [each for each in known if each.lower() == name.lower()]
    close = same or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(map(repr, close)) + "?"
    return "there are: " + ", ".join(map(repr, known)) if known else "there are none"


def near_path(pattern: str, paths: Sequence[str]) -> str:
    """The same for a regular expression that was to match one of the paths; of many, the first are shown.

    >>> near_path(r"^out\\.kernl$", ["hidden.kernel", "out.kernel"])
    "did you mean 'out.kernel'?"
    """
    import re

    words = re.sub(r"[^\w.]+", ".", pattern.replace("\\.", ".")).strip(".")
    hint = near(words, paths)
    return hint if "did you mean" in hint else near("", paths[:8]) + (" and others" if len(paths) > 8 else "")
