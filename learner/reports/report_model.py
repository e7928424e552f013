"""The parameters of models in a report."""

from collections.abc import Sequence

from learner.events import ArrayInfo
from learner.reports.html import details, heading, percent, table
from learner.reports.parameters import by_part, read_parameters
from learner.runs.run_reader import RunReader
from learner.util.text import count, size

MOST_MODELS = 10
"""Models that are shown."""
MOST_ARRAYS = 1000
"""The total number of rows of all models."""
MOST_PARTS = 100
"""Tables of a model."""
MOST_NAMES = 8
"""Runs in a heading."""
FEW = 12
"""Arrays that are shown at once."""


def parameter_tables(runs: Sequence[RunReader]) -> list[str]:
    """Return the parameters of each model; runs whose models have equal arrays share one table."""
    models: dict[tuple[ArrayInfo, ...], list[str]] = {}
    for run in runs:
        if arrays := read_parameters(run.directory):
            models.setdefault(arrays, []).append(run.name)
    named = len(models) > 1 or sum(map(len, models.values())) < len(runs)
    pieces = []
    shown = list(models.items())[:MOST_MODELS]
    for arrays, names in shown:
        pieces += [heading(_names(names), 3)] if named else []
        pieces += _model(arrays, MOST_ARRAYS // len(shown))
    return [*pieces, _more(len(models) - MOST_MODELS, "model")]


def _names(names: Sequence[str]) -> str:
    others = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {count(others, 'other')}" if others > 0 else "")


def _model(arrays: Sequence[ArrayInfo], left: int) -> list[str]:
    """Return the table of a model's parts, with at most `left` arrays."""
    total = sum(array.count for array in arrays)
    trained = sum(array.count for array in arrays if array.trainable)
    memory = size(sum(array.bytes for array in arrays))
    pieces = [f"<p>{total:,} numbers in {count(len(arrays), 'array')}, {memory}; {trained:,} of them are trained.</p>"]
    parts = by_part(arrays)
    rows = [[part, f"{len(group):,}", *_sums(group, total)] for part, group in list(parts.items())[:MOST_PARTS]]
    pieces.append(table(["part", "arrays", "numbers", "bytes", "share"], rows, "parts of the model", range(1, 5)))
    opened = len(arrays) <= FEW
    for part, group in list(parts.items())[:MOST_PARTS]:
        shown, left = group[:left], left - min(left, len(group))
        inner = _arrays(shown, total, part) + _more(len(group) - len(shown), "array")
        pieces.append(details(f"{part}: {count(len(group), 'array')}, {_sums(group, total)[2]}", inner, opened))
    return [*pieces, _more(len(parts) - MOST_PARTS, "part")]


def _arrays(arrays: Sequence[ArrayInfo], total: int, part: str) -> str:
    if not arrays:
        return ""
    rows = [
        [
            array.path or part,
            str(list(array.shape)),
            array.dtype,
            array.kind + ("" if array.trainable else ", not trained"),
            *_sums([array], total),
        ]
        for array in arrays
    ]
    head = ["array", "shape", "dtype", "kind", "numbers", "bytes", "share"]
    return table(head, rows, f"arrays of {part}", range(4, 7))


def _sums(arrays: Sequence[ArrayInfo], total: int) -> list[str]:
    """Return the number of elements, the bytes, and the share of all elements."""
    numbers = sum(array.count for array in arrays)
    return [f"{numbers:,}", size(sum(array.bytes for array in arrays)), percent(numbers / max(total, 1))]


def _more(number: int, what: str) -> str:
    return f"<p>{count(number, f'further {what}')}.</p>" if number > 0 else ""
