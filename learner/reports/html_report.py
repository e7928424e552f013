"""A report of runs: one self-contained HTML file, which needs no network."""

import base64
import gzip
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.reports.confusion_matrices import read_matrix
from learner.reports.curves import SEED, curves, dimension, groups, quantiles
from learner.reports.html import details, heading, sections, table
from learner.reports.report_matrix import confusion
from learner.reports.report_model import parameter_tables
from learner.reports.report_runs import card, colour, runs_table, value_text
from learner.reports.report_samples import samples
from learner.reports.report_time import timing
from learner.runs.appended import replace
from learner.runs.comparison import compare
from learner.runs.flat_config import text_of
from learner.runs.run_reader import RunReader
from learner.util.json_values import encode
from learner.util.metric_order import ordered
from learner.util.optional import import_optional
from learner.util.text import count

LONGEST_LOG = 64 << 10
"""Bytes of logs that are shown, over all runs: the last bytes of each log."""
LONGEST_TEXT = 64 << 10
"""Characters of a text that are shown."""
KEYS = "Keys: + and - zoom, arrows move, 0 shows all."
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""The content security policy: only content of the page itself, and no requests."""


def write_report(path: str | Path, runs: Sequence[RunReader], title: str | None = None) -> None:
    """Write a report of one or several runs: curves, best values, confusion matrices, time breakdown, parameters,
    config differences, texts and logs.

    Args:
      path: the path of the HTML file.
      runs: one or more.
      title: the title; default: the names of the runs.

    Raises:
      LearnerError: plotly is not installed, or the file cannot be written.
    """
    content = report(runs, title)
    try:
        replace(str(path), content.encode(errors="backslashreplace"))
    except OSError as error:
        raise LearnerError(
            f"the report cannot be written to {path}: {error}", code="report-not-written", path=path
        ) from error


def report(runs: Sequence[RunReader], title: str | None = None) -> str:
    """Return the HTML of a report; see `write_report`. Texts of runs are escaped, because they are untrusted.

    Raises:
      LearnerError: plotly is not installed.
    """
    title = title or (runs[0].name if len(runs) == 1 else f"{len(runs)} runs")
    comparison = compare(runs)
    numeric = [key for key in comparison.metrics if not any(run.is_text(key) for run in runs)]
    settings = sorted((key for key in comparison.settings if any(key in run.config for run in runs)), key=SEED.__eq__)
    data = {
        **curves(runs),
        "runs": [{"name": run.name, "colour": colour(index)} for index, run in enumerate(runs)],
        "groups": groups(runs, settings),
        "quantiles": quantiles(len(runs)) if len(runs) > 1 else [],
        "settings": [dimension(key, [run.config.get(key) for run in runs]) for key in settings],
        "results": [dimension(key, [_best(run, key) for run in runs]) for key in numeric],
    }
    contents = {
        "Curves": _charts(data["metrics"], data["groups"], len(runs)),
        "Settings and results": _settings_charts(data["settings"], data["results"]),
        "Values": _values(runs[0]) if len(runs) == 1 else [],
        "Samples": samples(runs),
        "Confusion matrices": confusion(runs),
        "Time": timing(runs),
        "Parameters": parameter_tables(runs),
        "Config": _shared({run.name: run.config for run in runs if run.config}, differing=False),
        "Environment": _shared({run.name: run.environment for run in runs if run.environment}),
        "Texts": [part for run in runs for part in _texts(run, len(runs) > 1)],
        "Messages": [part for run in runs for part in _log(run, len(runs))],
    }
    return _page(title, *sections(contents), _head(runs, comparison.settings, numeric), data)


def _page(title: str, body: str, links: str, head: str, data: Any) -> str:
    # Inside a script, only text that would end it is escaped.
    text = json.dumps(encode(data), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{_file("page.css")}</style>
</head>
<body>
<nav aria-label="contents">
<a href="#top">{escape(title)}</a>
{links}
<button id="theme" type="button">dark or light</button>
</nav>
<main id="top">
{heading(title, 1)}
{head}
{body}
</main>
<script type="application/json" id="data">{text}</script>
<script type="application/gzip" id="plotly">{_plotly()}</script>
<script>{_file("page.js")}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return (importlib.resources.files("learner.reports") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """Return Plotly's script, compressed to 40 % of its size."""
    offline = import_optional("plotly.offline", "reports", "a report")
    return base64.b64encode(gzip.compress(offline.get_plotlyjs().encode(), mtime=0)).decode()


def _head(runs: Sequence[RunReader], settings: Sequence[str], metrics: Sequence[str]) -> str:
    if len(runs) == 1:
        return card(runs[0])
    verb = "differs" if len(settings) == 1 else "differ"
    about = f"<p>{count(len(settings), 'setting')} {verb}. The values of metrics are the best ones.</p>"
    search = '<label>filter <input id="filter" type="search" placeholder="name, setting, status"></label>'
    shown = '<output id="shown" for="filter"></output>'
    return f'{about}<p class="search">{search} {shown}</p>{runs_table(runs, settings, metrics)}'


def _best(run: RunReader, key: str) -> float | str | None:
    point = run.best(key) or run.history.last(key)
    return point.value if point else None


def _values(run: RunReader) -> list[str]:
    rows = []
    for key in ordered(run.history):
        best, last = run.best(key), run.points(key)[-1]
        if not isinstance(last.value, str):
            rows.append([key, value_text(best, run, key), str(best.epoch) if best else "-", value_text(last, run, key)])
    return [table(["metric", "best", "epoch", "last"], rows, "values of metrics", range(1, 4))] if rows else []


def _charts(metrics: Sequence[dict[str, Any]], groups: Mapping[str, Any], runs: int) -> list[str]:
    if not metrics:
        return ["<p>No epoch has ended yet.</p>"]
    options = "".join(f"<option>{escape(name)}</option>" for name in groups)
    choice = f'<label>mean by <select id="group"><option value="">no group</option>{options}</select></label>'
    choice += '\n<label>band <select id="band"><option value="interval">95 % interval of the mean</option>'
    choice += '<option value="range">least to greatest</option></select></label>'
    splits = dict.fromkeys(curve["split"] for metric in metrics for curve in metric["curves"])
    boxes = "".join(
        f'<label class="split"><input type="checkbox" value="{escape(split)}"'
        f"{' checked' if runs == 1 or split != 'train' or len(splits) == 1 else ''}><i></i>{escape(split)}</label>"
        for split in splits
    )
    controls = _file("controls.html").replace("GROUPS", choice if options else "").replace("SPLITS", boxes)
    figures = [
        _figure(
            f"chart-{index}", f"{metric['name']} over the training; its best and last values stand in a table. {KEYS}"
        )
        for index, metric in enumerate(metrics)
    ]
    return [controls, f'<div class="charts">{"".join(figures)}</div>']


def _settings_charts(settings: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> list[str]:
    if not settings or not results:
        return []
    choices = "".join(
        f'<label>{label} <select id="{name}">'
        + "".join(f'<option value="{index}">{escape(each["name"])}</option>' for index, each in enumerate(dimensions))
        + "</select></label>"
        for label, name, dimensions in (("setting", "setting", settings), ("metric", "result", results))
    )
    figures = _figure("scatter", f"a metric over a setting. {KEYS}")
    figures += _figure("parallel", f"parallel coordinates of the settings and a metric. {KEYS}")
    return [f'<form class="controls" id="choices">{choices}</form><div class="charts">{figures}</div>']


def _figure(identifier: str, about: str) -> str:
    return f'<figure class="chart" id="{identifier}" role="img" tabindex="0" aria-label="{escape(about)}"></figure>'


def _shared(facts: Mapping[str, Mapping[str, Any]], differing: bool = True) -> list[str]:
    """Return a table of the facts that differ between runs, and one of the facts that they share."""
    keys = dict.fromkeys(key for run in facts.values() for key in run)
    texts = {key: [text_of(run.get(key)) for run in facts.values()] for key in keys}
    same = [[key, values[0]] for key, values in texts.items() if len(set(values)) == 1]
    other = {key: values for key, values in texts.items() if len(set(values)) > 1}
    shared = table(["", "value"], same, "what is the same in all runs" if len(facts) > 1 else "values")
    parts = []
    if other and differing:
        parts.append(table(["run", *other], zip(facts, *other.values(), strict=True), "what differs between the runs"))
    return [*parts, details("the same in all runs" if len(facts) > 1 else "all of it", shared)] if same else parts


def _texts(run: RunReader, named: bool) -> list[str]:
    """Return the last texts of metrics that are not numbers, except for confusion matrices."""
    parts = []
    for key in run.history:
        last = run.history.last(key)
        if last is not None and isinstance(last.value, str) and read_matrix(last.value) is None:
            cut = last.value[:LONGEST_TEXT]
            more = f"<p>{count(len(last.value) - len(cut), 'further character')}.</p>" if cut != last.value else ""
            name = f"{run.name} {key}" if named else key
            parts.append(f"{heading(f'{name}, epoch {last.epoch}', 3)}\n{_pre(cut)}{more}")
    return parts


def _log(run: RunReader, runs: int) -> list[str]:
    lines = run.log(LONGEST_LOG // runs)
    if lines is None:
        return []
    warned = [line for line in lines if " WARNING " in line or " ERROR " in line]
    log = _pre("\n".join(lines))
    if runs > 1:
        return [details(f"{run.name}: {count(len(warned), 'warning')}", log)]
    return [_pre("\n".join(warned)) if warned else "<p>No warnings.</p>", details("the log", log)]


def _pre(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'
