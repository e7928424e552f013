"""The names of labels that sources replace by numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from learner.errors import Problem

SOURCES = "learner.data.sources."


def is_source(dataset: Any) -> bool:
    """Return True for a source of `learner`, such as a table or a folder of images."""
    return any(base.__module__.startswith(SOURCES) for base in type(dataset).__mro__)


def source_labels(dataset: Any) -> Mapping[str, Sequence[str]]:
    """Return, by field, the label names of a source, in the order of their numbers."""
    names: Mapping[str, Sequence[str]] = getattr(dataset, "labels", {})
    return names


def label_names(dataset: Any, behind_functions: bool = False) -> Mapping[str, Sequence[str]]:
    """Return, by field, the label names of a source of `learner`, in the order of their numbers, also through views
    that select or join rows. Behind a user's functions they are not certain, as these may change the numbers.

    Args:
      dataset: the dataset.
      behind_functions: return them there, too.

    Sources are recognized by their modules, so that none of these is imported.

    >>> from learner.data.sources.table_arrays import Table
    >>> import numpy as np
    >>> label_names(Table({"kind": np.array([0, 1, 0], np.int32)}, {"kind": ("cat", "dog")}).slice(1))
    {'kind': ('cat', 'dog')}
    """
    if is_source(dataset):
        return source_labels(dataset)
    if getattr(dataset, "_makes_items", False) and not behind_functions:
        return {}
    joined = [label_names(inner, behind_functions) for inner in getattr(dataset, "_viewed", ())] or [{}]
    fields = [field for field in joined[0] if all(field in names for names in joined)]
    longest = {field: max((names[field] for names in joined), key=len) for field in fields}
    # One list may begin with another: `label_conflicts` rejects lists that disagree.
    return {
        field: texts
        for field, texts in longest.items()
        if all(list(names[field]) == list(texts[: len(names[field])]) for names in joined)
    }


def label_conflicts(datasets: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each field whose texts have different numbers in the datasets, whose rows are joined.

    >>> from learner.data.sources.table_arrays import Table
    >>> import numpy as np
    >>> cats = Table({"kind": np.array([0], np.int32)}, {"kind": ("cat",)})
    >>> dogs = Table({"kind": np.array([0], np.int32)}, {"kind": ("dog",)})
    >>> [str(problem).partition(":")[0] for problem in label_conflicts({"source 'a'": cats, "source 'b'": dogs})]
    ["the numbers of 'kind' stand for different texts"]
    """
    first: dict[tuple[str, int], tuple[str, str]] = {}  # by field and number: the place and the text
    problems = {}
    for name, dataset in datasets.items():
        for field, texts in label_names(dataset).items():
            for number, text in enumerate(texts):
                where, other = first.setdefault((field, number), (name, text))
                if text != other and field not in problems:
                    problems[field] = Problem(
                        f"the numbers of {field!r} stand for different texts: {number} is {other!r} in {where} and "
                        f"{text!r} in {name}. Give all of them the same list, labels={{{field!r}: [...]}}, or folders "
                        "of images the same names",
                        code="data-labels-conflict",
                        field=field,
                    )
    return list(problems.values())
