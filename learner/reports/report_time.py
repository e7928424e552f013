"""The time breakdown in a report."""

import statistics
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from learner.reports.html import percent, table
from learner.runs.run_reader import RunReader
from learner.util.text import duration

NAMED = 0.12
"""The smallest part of a bar that contains its name."""
MOST_BARS = 10
MEANING = {
    "compile": "tracing and compiling",
    "data": "waiting for batches",
    "train": "the rest of the training steps",
    "valid": "validations",
    "save": "waiting for checkpoints",
    "other": "everything else",
}
PARTS = tuple(MEANING)


def timing(runs: Sequence[RunReader]) -> list[str]:
    """Return a table row for each run that recorded its time breakdown, with bars for few runs, and the durations of
    epochs. With several runs, only the parts that differ have columns.
    """
    times = {run.name: {part: seconds for part, seconds in run.time_parts.items() if part in PARTS} for run in runs}
    times = {name: seconds for name, seconds in times.items() if sum(seconds.values()) > 0}
    pieces = []
    columns = list(zip(*map(_cells, times.values()), strict=True))
    shown = [part for part, texts in zip(PARTS, columns, strict=False) if len(times) == 1 or len(set(texts)) > 1]
    if shown:
        if len(times) <= MOST_BARS:
            pieces += [_legend(), *(_bar(name, seconds, len(runs) > 1) for name, seconds in times.items())]
        rows = [[name, *(_cells(seconds)[PARTS.index(part)] for part in shown)] for name, seconds in times.items()]
        pieces.append(table(["run", *shown], rows, "seconds of each part", range(1, len(shown) + 1)))
    epochs = [[run.name, *_epochs(epoch_seconds(run))] for run in runs if run.ends]
    if epochs:
        head = ["run", "epochs", "an epoch (median)", "shortest", "longest"]
        pieces.append(table(head, epochs, "how long epochs took", range(1, 5)))
    return pieces


def epoch_seconds(run: RunReader) -> dict[int, float]:
    """Return the duration of each epoch and its validation, without interruptions, by the journal's clock."""
    ends = np.array([0, *run.ends.values()], np.float64)
    return dict(zip(run.ends, np.diff(run.axes(ends)["time"]).tolist(), strict=True))


def _legend() -> str:
    items = [f'<li><span class="{part}"></span>{part}: {meaning}</li>' for part, meaning in MEANING.items()]
    return f'<ul class="legend">{"".join(items)}</ul>'


def _bar(name: str, seconds: Mapping[str, float], named: bool) -> str:
    total = sum(seconds.values())
    shares = {part: value / total for part, value in seconds.items() if value > 0}
    description = ", ".join(f"{part} {percent(share)}" for part, share in shares.items())
    pieces = []
    for part, share in shares.items():
        text = f"{part} {percent(share)}" if share >= NAMED else ""
        style = f"flex-grow:{share:.5f}"
        pieces.append(f'<span class="{part}" style="{style}" title="{part} {percent(share)}">{text}</span>')
    about = escape(f"where the time of {name} went: {description}")
    label = f'<figcaption aria-hidden="true">{escape(name)}</figcaption>' if named else ""
    return f'<figure class="bar">{label}<div role="img" aria-label="{about}">{"".join(pieces)}</div></figure>'


def _cells(seconds: Mapping[str, float]) -> list[str]:
    total = sum(seconds.values())
    values = [seconds.get(part) for part in PARTS]
    return ["-" if value is None else f"{duration(value)} ({percent(value / total)})" for value in values]


def _epochs(seconds: Mapping[int, float]) -> list[str]:
    short, long = min(seconds, key=seconds.__getitem__), max(seconds, key=seconds.__getitem__)
    ends = [f"{duration(seconds[epoch])} (epoch {epoch})" for epoch in (short, long)]
    return [str(len(seconds)), duration(statistics.median(seconds.values())), *ends]
