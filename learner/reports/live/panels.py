"""Texts beside the plots, without control characters."""

import datetime
import re
import textwrap
from collections.abc import Sequence

from rich.text import Text

from learner.reports.live.live_run import LiveRun
from learner.reports.live.view import PlotView
from learner.util.metric_order import ordered
from learner.util.text import abbreviate, aligned, count, duration, fitted_rows, printable, short, truncate

STYLES = {
    "running": "bold green",
    "ended": "bold",
    "stopped": "bold yellow",
    "failed": "bold red",
    "died": "bold red",
    "gone": "bold red",
}
SYSTEM = ("Host CPU", "Host Memory", "Device Memory", "GPU Use")
SPEED = ("Iteration Speed", "Rows per Second", "Tokens per Second")
WIDEST = 24
DAY = re.compile(r"^\d{4}-\d\d-\d\d (?=\d\d:)")
SILENT = 30.0
"""Seconds after which a running run that writes nothing is marked as silent."""


def header_line(run: LiveRun, width: int) -> Text:
    """Return the run's name, status, progress, and the time since its last line."""
    status = run.status
    parts = [_of("epoch", run.epoch, run.epochs), _of("step", run.step, run.steps)]
    if run.steps and status.word == "running":
        parts.append(f"{min(100, 100 * run.step // run.steps)} %")
    if run.rate and run.steps and run.steps > run.step:
        parts.append(f"{duration((run.steps - run.step) / run.rate)} left")
    if status.word == "running" and (run.age or 0) > SILENT:
        parts.append(f"silent for {duration(run.age or 0)}")
    if status.why:
        parts.append(short(status.why))
    requests = Text(f"  {' and '.join(run.pending)}: requested, pending", "bold yellow") if run.pending else Text()
    text = Text.assemble(
        (printable(run.name), "bold"), " ", (status.word, STYLES.get(status.word, "")), requests, "  ", "  ".join(parts)
    )
    text.truncate(width, overflow="ellipsis")
    return text


def view_description(view: PlotView, runs: int) -> str:
    """Return a description of the view's settings."""
    parts = [f"axis: {view.x}", "each step" if view.is_each else "whole epochs"]
    parts += ["log scale"] if view.log else []
    parts += [f"smooth {view.smooth:g}"] if view.smooth else []
    parts += [f"zoom x{2**view.zoom}" + ("" if view.end >= 1 else " (not at the end)")] if view.zoom else []
    parts += ["this run only" if view.alone else f"{runs} runs"] if runs > 1 else []
    return "  ".join(parts)


def table(run: LiveRun, width: int) -> list[str]:
    """Return the table of metrics: the current value, the last split, the best value and its epoch."""
    rows = [["metric", "now", "last", "best", "epoch"]]
    for key in ordered(run.keys, run.monitor):
        last, best, unit = run.run.history.last(key), run.run.best(key), run.run.info(key).unit
        values = (run.newest(key), last and last.value, best and best.value)
        texts = ["", "a text", ""] if run.run.is_text(key) else ["" if x is None else _cell(x) for x in values]
        name = abbreviate(printable(key + (f" ({unit})" if unit else "")), WIDEST)
        rows.append([name, *texts, str(best.epoch) if best else ""])
    return _fitting(rows, width, ("last", "epoch", "now"))


def table_of_runs(runs: Sequence[LiveRun], chosen: int, width: int, height: int) -> list[str]:
    """Return the table of runs, the best by their monitor first, with the selected run marked; of many runs, those
    around it.
    """
    if not runs:
        return ["  run"]
    monitor = runs[0].monitor
    rows = [["  run", "status", "epoch", "step", abbreviate(printable(monitor), WIDEST), "time", "age"]]
    order = ranked(runs)
    at = order.index(chosen % len(runs))
    first = max(0, min(at - (height - 1) // 2, len(runs) - (height - 1)))
    for number in order[first : first + max(1, height - 1)]:
        run, mark = runs[number], "> " if number == order[at] else "  "
        best = run.run.best(monitor)
        figures = [str(run.epoch), f"{run.step}", "" if best is None else _cell(best.value)]
        name = mark + abbreviate(printable(run.name), WIDEST)
        rows.append([name, run.status.word, *figures, duration(run.run.seconds), _age(run)])
    return _fitting(rows, width, ("age", "time", "step", "epoch", "status"))


def ranked(runs: Sequence[LiveRun]) -> list[int]:
    """Return the indices of the runs, ordered from best to worst by the first run's monitor."""
    return sorted(range(len(runs)), key=lambda number: runs[number].run.rank(runs[0].monitor))


def _fitting(rows: Sequence[Sequence[str]], width: int, secondary: Sequence[str]) -> list[str]:
    """Return aligned lines that fit into a width; see `fitted_rows`."""
    names, *columns = zip(*rows, strict=True)
    return aligned(fitted_rows(names, dict(zip(rows[0][1:], columns, strict=True)), width, secondary, abbreviate))


def _age(run: LiveRun, after: str = "") -> str:
    return "" if run.age is None else duration(run.age) + after


def log(run: LiveRun, width: int, height: int) -> list[str]:
    """Return the newest lines of the log that fit, wrapped and without the date."""
    lines: list[str] = []
    for line in reversed(run.log):
        line = DAY.sub("", line.expandtabs(4))
        parts = textwrap.wrap(printable(line), max(width, 8), subsequent_indent="  ") or [""]
        lines = [*parts, *lines]
        if len(lines) >= height:
            break
    return lines[-height:] if height else []


def system(run: LiveRun, width: int) -> list[str]:
    """Return the speed, the use of the machine, and the environment of a run."""
    rows = [("last line", _age(run, " ago")), ("running for", duration(run.run.seconds))]
    rows += [("steps/s", short(run.rate))] if run.rate is not None else []
    if run.saved:
        rows.append(("checkpoint", f"step {run.saved[0]}, {duration(run.saved[1])} ago"))
    for key in run.keys:
        name = key.split("/", 1)[1]
        value = run.newest(key)
        if name.partition(" (")[0] in (*SYSTEM, *SPEED) and value is not None:  # such as GPU Use (0, 1)
            rows.append((name if key.startswith("train/") else key, f"{short(value)} {run.run.info(key).unit}".strip()))
    rows += _time_use(run)
    facts = run.run.environment.items()
    rows += [(key.rpartition(".")[2], str(value)) for key, value in facts if isinstance(value, str | int)]
    begun = run.run.journal[0].get("time") if run.run.journal else None
    if isinstance(begun, int | float) and 0 < begun < 2**33:
        rows.append(("began", f"{datetime.datetime.fromtimestamp(begun):%Y-%m-%d %H:%M:%S}"))
    rows.append(("directory", str(run.directory)))
    widest = max(len(name) for name, _ in rows)
    return [_cut(f"{name.ljust(widest)}  {value}", width) for name, value in rows]


def _time_use(run: LiveRun) -> list[tuple[str, str]]:
    """Return the share of time of each part, if the run has ended and recorded it."""
    parts = run.run.time_parts if run.status.word in ("ended", "stopped") else {}
    total = parts.pop("total", 0.0)
    shares = [f"{name} {100 * value / total:.0f} %" for name, value in parts.items() if value >= 0.01 * total > 0]
    return [("time", ", ".join(shares))] if shares else []


def waiting(texts: Sequence[str], problems: Sequence[str]) -> list[str]:
    """Return the directories that the program waits for, and problems with files."""
    lines = [f"waiting: {printable(text)}" for text in texts]
    return lines + [printable(line) for text in problems for line in text.split("\n")]


def _of(what: str, current: int, total: int | None) -> str:
    return f"{what} {current}/{total}" if total else count(current, what) if what == "step" else f"{what} {current}"


def _cell(value: float | str) -> str:
    return _cut(short(value), 12)


def _cut(text: str, width: int) -> str:
    return truncate(printable(text), width, "…")
