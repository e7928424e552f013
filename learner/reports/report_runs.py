"""The head of a report: a card for one run, or a table of many, which is the legend of their charts."""

import colorsys
import time
from collections.abc import Sequence
from html import escape
from typing import Any

from learner.reports.confusion_matrices import monitor_of
from learner.reports.html import scrolled
from learner.runs.flat_config import text_of
from learner.runs.history import Point
from learner.runs.run_reader import RunReader, Status, time_of
from learner.util.text import count, duration, short

# Each has a contrast of at least 3 (WCAG 2) on both themes, and any two are at least 0.12 apart in OKLab. The first
# colours differ most, also with protanopia and deuteranopia.
# fmt: off
COLOURS = (
    "#0072b2", "#d55e00", "#de54fc", "#ba247e", "#6696a8", "#8a1efc", "#cc061e", "#fc486c", "#b47ed2", "#1896fc",
    "#7860cc", "#c08484", "#846006", "#845a7e", "#a29000", "#007800", "#0654fc", "#06a806", "#b400c6", "#f006ae",
)
# fmt: on
GOLDEN = 0.618034
LUMINANCE = 0.2
"""The luminance of further colours (WCAG 2): their contrast is at least 4 on both themes."""
MOST_SHOWN = 20
"""Runs whose curves are shown at first."""


def colour(index: int) -> str:
    """Return the colour of a run. A thousand runs have different colours.

    >>> colour(0)
    '#0072b2'
    """
    if index < len(COLOURS):
        return COLOURS[index]
    hue, saturation = index * GOLDEN % 1, (0.95, 0.55, 0.75)[index % 3]
    low, high = 0.0, 1.0
    for _ in range(12):  # bisection: the luminance grows with the lightness
        middle = (low + high) / 2
        low, high = (
            (middle, high) if luminance(colorsys.hls_to_rgb(hue, middle, saturation)) < LUMINANCE else (low, middle)
        )
    return "#" + "".join(f"{round(255 * channel):02x}" for channel in colorsys.hls_to_rgb(hue, low, saturation))


def luminance(channels: Sequence[float]) -> float:
    """Return the relative luminance of red, green and blue from 0 to 1, as WCAG 2 defines it."""
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def card(run: RunReader) -> str:
    """Return the most important facts about one run."""
    facts = {"status": _chip(run.status)}
    key = monitor_of(run)
    if key is not None and (best := run.best(key)) is not None:
        facts[f"best {key}"] = f"<b>{escape(value_text(best, run, key))}</b> in epoch {best.epoch}"
    facts["trained"] = f"{count(run.epochs, 'epoch')}, {count(run.step, 'step')}"
    facts["duration"] = duration(run.seconds)
    started = time_of(run.journal[0]) if run.journal else 0.0
    if 0 < started < 1e11:
        facts["started"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(started))
    for name in ("commit", "host", "device"):
        if run.environment.get(name):
            facts[name] = escape(str(run.environment[name]))
    facts["directory"] = escape(str(run.directory))
    entries = "".join(f"<div><dt>{escape(name)}</dt><dd>{content}</dd></div>" for name, content in facts.items())
    return f'<dl class="card">{entries}</dl>'


def _chip(status: Status) -> str:
    """Return the status as a coloured word."""
    return f'<span class="chip {status.word}">{escape(status.word)}</span> {escape(status.why)}'


def value_text(point: Point | None, run: RunReader, key: str) -> str:
    """Return a value with its unit, or a dash."""
    return f"{short(point.value)} {run.metrics[key].unit}".strip() if point else "-"


def runs_table(runs: Sequence[RunReader], settings: Sequence[str], metrics: Sequence[str]) -> str:
    """Return a table with a row for each run, which scripts sort and filter: a box that shows its curves, its colour,
    the settings that differ, and the best values.
    """
    head = ["run", *settings, *metrics, "status", "epochs", "steps", "time"]
    titles = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(name)}</button></th>' for name in head
    )
    shown = _first_shown(runs)
    rows = []
    for index, run in enumerate(runs):
        facts = {**run.fingerprint, **run.config}
        best = [run.best(key) or run.history.last(key) for key in metrics]
        cells = [_cell(facts.get(key), short(text_of(facts.get(key)))) for key in settings]
        cells += [_cell(point and point.value, short(point.value) if point else "-") for point in best]
        cells += [f"<td>{_chip(run.status)}</td>", _cell(run.epochs, str(run.epochs)), _cell(run.step, f"{run.step:,}")]
        cells.append(_cell(run.seconds, duration(run.seconds)))
        checked = " checked" if index in shown else ""
        box = f'<input type="checkbox" aria-label="show {escape(run.name)}"{checked}>'
        box += f'<i style="background:{colour(index)}"></i>'
        name = f'<span title="{escape(str(run.directory))}">{escape(run.name)}</span>'
        rows.append(f'<tr data-run="{index}"><td>{box}</td><th scope="row">{name}</th>{"".join(cells)}</tr>')
    box = '<input type="checkbox" id="all" aria-label="show all runs of the table">'
    content = (
        f'<table id="runs-table"><thead><tr><td>{box}</td>{titles}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
    return scrolled(content, "runs")


def _cell(value: Any, text: str) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f'<td class="number" data-value="{value!r}">{escape(text)}</td>' if number else f"<td>{escape(text)}</td>"


def _first_shown(runs: Sequence[RunReader]) -> set[int]:
    """Return the indices of the best runs by the first run's monitor, as many as can be distinguished."""
    key = monitor_of(runs[0])
    order = sorted(range(len(runs)), key=lambda index: runs[index].rank(key) if key else 0)
    return set(order[:MOST_SHOWN])
