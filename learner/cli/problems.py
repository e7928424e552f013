"""Mistakes in a config, which are reported together."""

import contextlib
from collections.abc import Iterator, Sequence

from learner.errors import LearnerError, Problem, one_error
from learner.util.text import masked


def problems_of(error: LearnerError) -> list[Problem]:
    """Return the problems of an error, each with its code and with the notes about the work during which it occurred.

    Their fields are left out, as they may contain what `masked` hides in the texts.
    """
    doing = "".join(f" ({note})" for note in getattr(error, "__notes__", ()) if note.startswith("while "))
    texts = error.problems or (str(error),)
    return [Problem(f"{text}{doing}", code=code) for text, code in zip(texts, error.codes, strict=True)]


@contextlib.contextmanager
def at_path(path: str) -> Iterator[None]:
    """Add the path in the config to the errors that are raised in the body.

    >>> with at_path("train.dataset"):
    ...     raise LearnerError("there is no file a.csv", code="data-file-missing")
    Traceback (most recent call last):
    learner.errors.LearnerError: train.dataset: there is no file a.csv
    """
    try:
        yield
    except LearnerError as error:
        problems = [Problem(f"{path}: {problem}", code=problem.code) for problem in problems_of(error)]
        raise one_error(problems, f"{path} cannot be used", code="config-unusable") from error
    except Exception as error:
        error.add_note(f"while making {path}")
        raise


class Problems:
    """A collection of mistakes that are raised as one error.

    >>> problems = Problems()
    >>> with problems.collect():
    ...     raise LearnerError("lr is 'fast'", code="config-lr-type")
    >>> with problems.collect("train: "):
    ...     raise LearnerError("it has no rows", code="data-without-rows")
    >>> problems.raise_all()
    Traceback (most recent call last):
    learner.errors.LearnerError: this config cannot be used, 2 problems:
      1. lr is 'fast'
      2. train: it has no rows
    """

    def __init__(self) -> None:
        self._found: list[Problem] = []

    @contextlib.contextmanager
    def collect(self, prefix: str = "", secrets: Sequence[str] = ()) -> Iterator[None]:
        """Collect a `LearnerError` that is raised in the body, with `***` in place of the `secrets` in it."""
        try:
            yield
        except LearnerError as error:
            self._found += [
                Problem(masked(f"{prefix}{problem}", secrets), code=problem.code) for problem in problems_of(error)
            ]

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_all(self) -> None:
        """Raise one `LearnerError` with all collected problems, if there are any."""
        if self._found:
            raise one_error(self._found, "this config cannot be used", code="config-unusable")
