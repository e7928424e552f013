"""Arguments that metrics of classes share: their checks, and their parts of a metric's name."""

import numbers
from collections.abc import Sequence
from typing import Any

from learner.errors import near, one_error

AVERAGES = ("macro", "micro", "weighted", "binary", "none")
Classes = int | Sequence[str]


def is_integral(value: Any) -> bool:
    """Return True for a Python or NumPy integer, but not for True and False.

    >>> import numpy as np
    >>> is_integral(3), is_integral(np.int64(3)), is_integral(np.True_), is_integral(3.0)
    (True, True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_int(value: int | None) -> int | None:
    """Return a Python int, which is weakly typed in programs; None stays None."""
    return None if value is None else int(value)


def is_real(value: Any) -> bool:
    """Return True for a number, but not for True and False."""
    return is_integral(value) or isinstance(value, float)


def class_names(classes: Classes) -> tuple[str, ...]:
    """Return the names of the classes, or else their numbers from 0.

    >>> class_names(3), class_names(["cat", "dog"])
    (('0', '1', '2'), ('cat', 'dog'))
    """
    return tuple(classes) if isinstance(classes, Sequence) else tuple(map(str, range(classes)))


def refuse(what: str, problems: Sequence[str | None]) -> None:
    """Raise `LearnerError` with all problems that are not None."""
    messages = [problem for problem in problems if problem]
    if messages:
        raise one_error(messages, f"{what} cannot be made", code="metric-arguments-wrong")


def classes_problem(what: str, classes: Any) -> str | None:
    """Return the problem with a number of classes, or with their names, if any."""
    if is_integral(classes):
        return None if classes >= 1 else f"classes of {what} is {classes}; it needs 1 or more"
    names = list(classes) if isinstance(classes, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names):
        return f"classes of {what} is {classes!r}; it needs their number, or a list of their names"
    twice = sorted({name for name in names if names.count(name) > 1})
    details = ", ".join(map(repr, twice))
    return f"classes of {what} has {details} more than once; each class needs a different name" if twice else None


def choice_problem(what: str, argument: str, value: Any, known: Sequence[str] = AVERAGES) -> str | None:
    """Return the problem with a choice by name, if any."""
    return None if value in known else f"{argument} of {what} is {value!r}; {near(str(value), known)}"


def binary_problem(what: str, average: Any, classes: Any) -> str | None:
    """Return the problem with `average="binary"`, if any: it needs two classes, or one score for both."""
    if average != "binary" or (count := count_of(classes)) is None or count <= 2:
        return None
    return f"average of {what} is 'binary', but there are {count} classes; it is for two, or for one score (classes=1)"


def threshold_problem(what: str, threshold: Any) -> str | None:
    """Return the problem with the threshold of a predicted label, if any."""
    if threshold is None or (is_real(threshold) and 0 < threshold < 1):
        return None
    return f"threshold of {what} is {threshold!r}; it needs a probability between 0 and 1, or None"


def top_k_problem(what: str, top_k: Any, threshold: Any, classes: Any) -> str | None:
    """Return the problem with a number of predicted classes, if any."""
    if top_k is None:
        return None
    if not is_integral(top_k) or top_k < 1:
        return f"top_k of {what} is {top_k!r}; it needs a whole number of classes, 1 or more"
    if threshold is not None:
        return f"{what} has a top_k and a threshold; it needs one of them"
    count = count_of(classes)
    return None if count is None or top_k <= count else f"top_k of {what} is {top_k}, but there are {count} classes"


def ignore_label_problem(what: str, ignore_label: Any) -> str | None:
    """Return the problem with the label to ignore, if any."""
    if ignore_label is None or is_integral(ignore_label):
        return None
    return f"ignore_label of {what} is {ignore_label!r}; it needs the number of a label, or None"


def count_of(classes: Any) -> int | None:
    """Return the number of classes, or None if it is unknown."""
    if classes is None:
        return None
    return int(classes) if is_integral(classes) else len(classes) if isinstance(classes, list | tuple) else None


def metric_name(base: str, parts: Sequence[str | None] = (), ignore_label: int | None = None) -> str:
    """Return a name with the parts that distinguish it, such as an average.

    >>> metric_name("F1"), metric_name("F1", ["micro", None, "top 3"], -100)
    ('F1', 'F1 (micro, top 3) ignoring -100')
    """
    details = ", ".join(part for part in parts if part)
    name = f"{base} ({details})" if details else base
    return name if ignore_label is None else f"{name} ignoring {ignore_label}"


def average_part(average: str) -> str | None:
    """Return the part of a metric's name for an average; macro has none."""
    return {"macro": None, "none": "per class"}.get(average, average)


def threshold_part(threshold: float | None) -> str | None:
    """Return the part of a metric's name for a threshold."""
    return None if threshold is None else f"above {threshold:g}"
