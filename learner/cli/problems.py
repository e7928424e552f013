"""Mistakes in a config, which are reported together."""

import contextlib
from collections.abc import Iterator, Sequence

from learner.errors import LearnerError, one_error
from learner.util.text import masked


def problem_texts(error: LearnerError) -> list[str]:
    """Return the problems of an error, each with the notes about the work during which it occurred."""
    doing = "".join(f" ({note})" for note in getattr(error, "__notes__", ()) if note.startswith("while "))
    return [f"{problem}{doing}" for problem in error.problems or (error,)]


@contextlib.contextmanager
def at_path(path: str) -> Iterator[None]:
    """Add the path in the config to the errors that are raised in the body.

    >>> with at_path("train.dataset"):
    ...     raise LearnerError("there is no file a.csv")
    Traceback (most recent call last):
    learner.errors.LearnerError: train.dataset: there is no file a.csv
    """
    try:
        yield
    except LearnerError as error:
        raise one_error([f"{path}: {problem}" for problem in problem_texts(error)], f"{path} cannot be used") from error
    except Exception as error:
        error.add_note(f"while making {path}")
        raise


class Problems:
    """A collection of mistakes that are raised as one error.

    >>> problems = Problems()
    >>> with problems.collect():
    ...     raise LearnerError("lr is 'fast'")
    >>> with problems.collect("train: "):
    ...     raise LearnerError("it has no rows")
    >>> problems.raise_all()
    Traceback (most recent call last):
    learner.errors.LearnerError: this config cannot be used, 2 problems:
      1. lr is 'fast'
      2. train: it has no rows
    """

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextlib.contextmanager
    def collect(self, prefix: str = "", secrets: Sequence[str] = ()) -> Iterator[None]:
        """Collect a `LearnerError` that is raised in the body, with `***` in place of the `secrets` in it."""
        try:
            yield
        except LearnerError as error:
            self._found += [masked(f"{prefix}{problem}", secrets) for problem in problem_texts(error)]

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_all(self) -> None:
        """Raise one `LearnerError` with all collected problems, if there are any."""
        if self._found:
            raise one_error(self._found, "this config cannot be used")
