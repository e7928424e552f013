"""Mistakes in a config, which are reported together."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from learner.errors import LearnerError, Problem, one_error
from learner.util.text import masked

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


def problems_of(error: LearnerError) -> list[Problem]:
    """Return the problems of an error, each with its code and the notes about the work during which it occurred."""
    doing = "".join(f" ({note})" for note in getattr(error, "__notes__", ()) if note.startswith("while "))
    texts = error.problems or (str(error),)
    fields = {} if error.problems else error.fields
    return [Problem(f"{text}{doing}", code=code, **fields) for text, code in zip(texts, error.codes, strict=True)]


@contextlib.contextmanager
def at_path(path: str) -> Iterator[None]:
    """Add the path in the config to errors raised in the body.

    >>> with at_path("train.dataset"):
    ...     raise LearnerError("there is no file a.csv", code="data-file-missing")
    Traceback (most recent call last):
    learner.errors.LearnerError: train.dataset: there is no file a.csv
    """
    try:
        yield
    except LearnerError as error:
        problems = [Problem(f"{path}: {each}", code=each.code, **each.fields) for each in problems_of(error)]
        raise one_error(problems, f"{path} cannot be used", code="config-unusable") from error
    except Exception as error:
        error.add_note(f"while making {path}")
        raise


class Problems:
    """A collection of mistakes, which are raised as one error.

    Args:
      order: the keys of the config, in the order of the file. Mistakes without such a key come last.
      with_fields: keep the fields of a single error. They may contain what `masked` hides in the texts.

    >>> problems = Problems(order=["lr", "train"])
    >>> with problems.collect(key="train"):
    ...     raise LearnerError("it has no rows", code="data-without-rows")
    >>> with problems.collect(key="lr"):
    ...     raise LearnerError("lr is 'fast'", code="config-lr-type")
    >>> problems.raise_all()
    Traceback (most recent call last):
    learner.errors.LearnerError: this config cannot be used, 2 problems:
      1. lr is 'fast'
      2. train: it has no rows
    """

    def __init__(self, order: Iterable[str] = (), with_fields: bool = True) -> None:
        self._with_fields = with_fields
        self._ranks = {key: rank for rank, key in enumerate(order)}
        self._found: list[tuple[int, Problem]] = []

    @contextlib.contextmanager
    def collect(self, secrets: Sequence[str] = (), key: str = "") -> Iterator[None]:
        """Collect a `LearnerError` about `key` raised in the body, with `***` in place of the `secrets`.

        The key is added to a text that lacks it: an object that a config describes does not know its key.
        """
        try:
            yield
        except LearnerError as error:
            rank = self._ranks.get(key, len(self._ranks))
            for problem in problems_of(error):
                fields = problem.fields if self._with_fields and not secrets else {}
                is_named = not key or re.search(rf"(?<!\w){re.escape(str(key))}(?!\w)", problem)
                text = masked(problem if is_named else f"{key}: {problem}", secrets)
                self._found.append((rank, Problem(text, code=problem.code, **fields)))

    def discard(self, code: str) -> None:
        """Forget the problems with a code."""
        self._found = [(rank, problem) for rank, problem in self._found if problem.code != code]

    def __bool__(self) -> bool:
        return bool(self._found)

    def raise_all(self) -> None:
        """Raise one `LearnerError` with all collected problems, each text once, if there are any."""
        if self._found:
            problems = dict.fromkeys(problem for _, problem in sorted(self._found, key=lambda each: each[0]))
            raise one_error(list(problems), "this config cannot be used", code="config-unusable")


def read_each(items: Mapping[K, V], read: Callable[[K, V], T]) -> dict[K, T]:
    """Return `read(key, item)` of each item by its key, or raise one `LearnerError` with the problems of all items.

    >>> read_each({"a": 1, "b": 2}, lambda key, item: f"{key}{item}")
    {'a': 'a1', 'b': 'b2'}
    """
    problems, results = Problems(), dict[K, T]()
    for key, item in items.items():
        with problems.collect():
            results[key] = read(key, item)
    problems.raise_all()
    return results


def read_list(items: Sequence[V], read: Callable[[int, V], T]) -> list[T]:
    """Return `read(index, item)` of each item, or raise one `LearnerError` with the problems of all items."""
    return list(read_each(dict(enumerate(items)), read).values())
