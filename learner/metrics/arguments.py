"""The arguments that metrics of classes share: what is wrong with them, and what a metric is called by them."""

import numbers
from collections.abc import Sequence
from typing import Any

from learner.errors import near, one_error

AVERAGES = ("macro", "micro", "weighted", "binary", "none")
Classes = int | Sequence[str]


def is_int(value: Any) -> bool:
    """Whether it is a whole number, of Python or of NumPy; True and False are none.

    >>> import numpy as np
    >>> is_int(3), is_int(np.int64(3)), is_int(np.True_), is_int(3.0)
    (True, True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_int(value: int | None) -> int | None:
    """An int of Python, which has no dtype of its own in programs; `None` stays `None`."""
    return None if value is None else int(value)


def is_number(value: Any) -> bool:
    """Whether it is a number; True and False are none."""
    return is_int(value) or isinstance(value, float)


def class_names(classes: Classes) -> tuple[str, ...]:
    """What the classes are called: their names, or their numbers from 0.

    >>> class_names(3), class_names(["cat", "dog"])
    (('0', '1', '2'), ('cat', 'dog'))
    """
    return tuple(classes) if isinstance(classes, Sequence) else tuple(map(str, range(classes)))


def refuse(what: str, problems: Sequence[str | None]) -> None:
    """Raises `LearnerError` with all problems; `None` is none."""
    found = [problem for problem in problems if problem]
    if found:
        raise one_error(found, f"{what} cannot be made")


def wrong_classes(what: str, classes: Any) -> str | None:
    """What is wrong with a number of classes, or with their names."""
    if is_int(classes):
        return None if classes >= 1 else f"classes of {what} is {classes}; it needs 1 or more"
    names = list(classes) if isinstance(classes, list | tuple) else []
    if not names or not all(isinstance(name, str) for name in names):
        return f"classes of {what} is {classes!r}; it needs how many there are, or a list of their names"
    twice = sorted({name for name in names if names.count(name) > 1})
    said = ", ".join(map(repr, twice))
    return f"classes of {what} has {said} more than once; each class needs a name of its own" if twice else None


def wrong_choice(what: str, argument: str, value: Any, known: Sequence[str] = AVERAGES) -> str | None:
    """What is wrong with a choice by name."""
    return None if value in known else f"{argument} of {what} is {value!r}; {near(str(value), known)}"


def wrong_binary(what: str, average: Any, classes: Any) -> str | None:
    """`average="binary"` is of class 1, which needs two classes, or one score for both."""
    if average != "binary" or (count := count_of(classes)) is None or count <= 2:
        return None
    return f"average of {what} is 'binary', but there are {count} classes; it is for two, or for one score (classes=1)"


def wrong_threshold(what: str, threshold: Any) -> str | None:
    """What is wrong with a probability above which a label is predicted."""
    if threshold is None or (is_number(threshold) and 0 < threshold < 1):
        return None
    return f"threshold of {what} is {threshold!r}; it needs a probability between 0 and 1, or None"


def wrong_top_k(what: str, top_k: Any, threshold: Any, classes: Any) -> str | None:
    """What is wrong with a number of predicted classes."""
    if top_k is None:
        return None
    if not is_int(top_k) or top_k < 1:
        return f"top_k of {what} is {top_k!r}; it needs a whole number of classes, 1 or more"
    if threshold is not None:
        return f"{what} has a top_k and a threshold; it needs one of them"
    count = count_of(classes)
    return None if count is None or top_k <= count else f"top_k of {what} is {top_k}, but there are {count} classes"


def wrong_ignore_label(what: str, ignore_label: Any) -> str | None:
    """What is wrong with the label that does not count."""
    if ignore_label is None or is_int(ignore_label):
        return None
    return f"ignore_label of {what} is {ignore_label!r}; it needs the number of a label, or None"


def count_of(classes: Any) -> int | None:
    """How many classes; `None` where that is not known."""
    if classes is None:
        return None
    return int(classes) if is_int(classes) else len(classes) if isinstance(classes, list | tuple) else None


def metric_name(base: str, parts: Sequence[str | None] = (), ignore_label: int | None = None) -> str:
    """A name with what sets it apart, such as that of an average.

    >>> metric_name("F1"), metric_name("F1", ["micro", None, "top 3"], -100)
    ('F1', 'F1 (micro, top 3) ignoring -100')
    """
    said = ", ".join(part for part in parts if part)
    name = f"{base} ({said})" if said else base
    return name if ignore_label is None else f"{name} ignoring {ignore_label}"


def average_part(average: str) -> str | None:
    """How a name says an average; macro is not said."""
    return {"macro": None, "none": "per class"}.get(average, average)


def threshold_part(threshold: float | None) -> str | None:
    """How a name says a threshold."""
    return None if threshold is None else f"above {threshold:g}"
