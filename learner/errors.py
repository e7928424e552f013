"""The errors that `learner` raises for wrong input.

A message names the faulty part, the given value and the expected one, so it can be shown without a traceback: the
command line prints it and exits with 2. The code of an error identifies the fault for programs; it does not change when
the wording does.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

LONGEST_FIELD = 200  # characters of a field that is stored as text
OTHER_NAMES = {
    "auc": "AUROC",
    "bpc": "BitsPerCharacter",
    "cer": "CharacterErrorRate",
    "crossentropy": "Loss",
    "csvlogger": "Csv",
    "ece": "CalibrationError",
    "f1": "FBeta",
    "f1score": "FBeta",
    "kappa": "CohenKappa",
    "mae": "MeanAbsoluteError",
    "map": "AveragePrecision",
    "mape": "MeanAbsolutePercentageError",
    "mcc": "Matthews",
    "miou": "IoU",
    "mse": "MeanSquaredError",
    "pearson": "PearsonCorrelation",
    "r2score": "R2",
    "rmse": "RootMeanSquaredError",
    "rocauc": "AUROC",
    "spearman": "SpearmanCorrelation",
    "topk": "TopKAccuracy",
    "trainer": "LearnerBuilder",
    "wer": "WordErrorRate",
}
"""The usual names of other libraries, in lower case and without underscores."""


class LearnerError(ValueError):
    """Wrong input: an option, a model, an optimizer, data or a run directory that cannot be used as given.

    Args:
      message: the text for people; its wording may change.
      code: the stable name of the fault; `docs/reference/errors.md` lists all codes. The default is for errors raised
        by the user's functions; every error in `learner` has its own code.
      fields: the values in the message. Numbers, texts, lists of texts, booleans and `None` are stored unchanged, paths
        as texts, and anything else as the beginning of its `repr`. So an error holds no arrays and can be sent between
        processes.

    Attributes:
      problems: the single problems, if the message joins several.
      codes: the code of each of `problems`, or the error's own code for a single problem.

    >>> error = LearnerError("num_epochs is 0: give 1 or more", code="builder-number-value", name="num_epochs", value=0)
    >>> error.code, error.fields
    ('builder-number-value', {'name': 'num_epochs', 'value': 0})
    """

    def __init__(self, message: object, /, *, code: str = "user", **fields: Any) -> None:
        super().__init__(message)
        self.code = code
        self.fields = {name: _plain(value) for name, value in fields.items()}
        self.problems: tuple[str, ...] = ()
        self.codes: tuple[str, ...] = (code,)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        # unpickling an exception calls its class with `args`, which lack the code
        return _bare, (type(self), self.args), self.__dict__


def _bare(kind: type[LearnerError], args: tuple[Any, ...]) -> LearnerError:
    return kind.__new__(kind, *args)


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list) and all(type(item) is str for item in value):
        return list(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return repr(value)[:LONGEST_FIELD]


class Problem(str):
    """One of several problems, with its own code and fields, like an error.

    Attributes:
      cause: the exception behind it, such as one of the user's code, or None.
    """

    code: str
    fields: dict[str, Any]
    cause: BaseException | None

    def __new__(cls, text: object, /, *, code: str, **fields: Any) -> "Problem":
        problem = super().__new__(cls, text)
        problem.code, problem.fields = code, fields
        problem.cause = text.__cause__ if isinstance(text, BaseException) else None
        return problem


class ProcessError(LearnerError):
    """Another process of the run has failed, or no longer responds."""


class NonFiniteError(LearnerError):
    """A loss or a gradient of the training was not finite; see `LearnerBuilder.on_nonfinite`."""


class OutOfMemoryError(LearnerError):
    """A device had no memory for a part of a run. The message lists the memory in use and the options to set.

    Attributes:
      part: `train`, the name of a validation split, `checkpoint`, or `init` (the initialisation of the model).
    """

    def __init__(self, message: str, part: str, /, *, code: str, **fields: Any) -> None:
        super().__init__(message, code=code, **fields)
        self.part = part


def one_error(
    problems: Sequence[str], title: str = "this cannot be trained", *, code: str, more: int = 0, **fields: Any
) -> LearnerError:
    """Return one error for several problems.

    Args:
      problems: texts. In `error.codes`, a `Problem` keeps its own code, and the others have `code`.
      title: the heading of a list of several problems.
      code: the code of the error.
      more: the number of further problems, which are not listed.
      fields: the fields of the error; a single `Problem` has its own.

    The cause of the error is the first one of its problems, so that tracebacks and debuggers reach the user's code.

    >>> problems = ["num_epochs is 0: give 1 or more", "the learning rate is -1.0: give a positive number"]
    >>> print(one_error(problems, code="learner-untrainable"))
    this cannot be trained, 2 problems:
      1. num_epochs is 0: give 1 or more
      2. the learning rate is -1.0: give a positive number
    >>> print(one_error(problems[:1], code="learner-untrainable"))
    num_epochs is 0: give 1 or more
    """
    texts = tuple(map(str, problems))  # a `Problem` becomes a plain text
    if len(problems) + more == 1:
        (only,) = problems
        own = (only.code, only.fields) if isinstance(only, Problem) else (code, fields)
        error = LearnerError(texts[0], code=own[0], **own[1])
    else:
        lines = [f"{title}, {len(texts) + more} problems:", *(f"{i}. {text}" for i, text in enumerate(texts, 1))]
        lines += [f"... and {more} more"] if more else []
        error = LearnerError("\n  ".join(lines), code=code, **fields)
        error.problems = texts
        error.codes = tuple(each.code if isinstance(each, Problem) else code for each in problems)
    causes = (each.cause for each in problems if isinstance(each, Problem))
    error.__cause__ = next((cause for cause in causes if cause is not None), None)
    return error


def near(name: str, known: Sequence[str], otherwise: str | None = None) -> str:
    """Return a hint for a misspelt name: the nearest known names, or else all of them, or `otherwise` if it is given.

    >>> near("valid/Acuracy", ["train/Loss", "valid/Accuracy"])
    "did you mean 'valid/Accuracy'?"
    >>> near("adamw", ["Adam", "AdamW"])
    "did you mean 'AdamW'?"
    >>> near("zzz", ["train/Loss"])
    "choose from 'train/Loss'"
    >>> near("zzz", ["train/Loss"], "learner help lists all")
    'learner help lists all'
    """
    if close := closest(name, known):
        return "did you mean " + " or ".join(map(repr, close)) + "?"
    if otherwise is not None:
        return otherwise
    return "choose from " + ", ".join(map(repr, known)) if known else "there are none"


def closest(name: str, known: Sequence[str]) -> list[str]:
    """Return the known names that a misspelt name may mean: those that differ in case or underscores only, the
    one that it has in other libraries, or else up to three similar ones.

    >>> closest("f1_score", ["AUROC", "FBeta"]), closest("EarlyStopping", ["MetricEarlyStopping"])
    (['FBeta'], ['MetricEarlyStopping'])
    """
    import difflib

    plain = _caseless(name)
    same = [each for each in known if _caseless(each) == plain or each == OTHER_NAMES.get(plain)]
    if close := same or difflib.get_close_matches(name, known, n=3, cutoff=0.6):
        return close
    by_lower = {each.lower(): each for each in known}
    return [by_lower[each] for each in difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)]


def _caseless(name: str) -> str:
    return name.lower().replace("_", "")


def near_path(pattern: str, paths: Sequence[str]) -> str:
    """Return a hint for a regular expression that matches none of the paths, with the first paths if there are many.

    >>> near_path(r"^out\\.kernl$", ["hidden.kernel", "out.kernel"])
    "did you mean 'out.kernel'?"
    """
    import re

    words = re.sub(r"[^\w.]+", ".", pattern.replace("\\.", ".")).strip(".")
    return near(words, paths, first_of(paths))


def first_of(names: Sequence[str]) -> str:
    """Return a hint with the first of many names."""
    return near("", names[:8]) + (" and others" if len(names) > 8 else "")
