"""A report of runs: one self-contained HTML file, which needs no network."""

import importlib.resources
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.reports.confusion_matrices import read_matrix
from learner.reports.curves import curves, seeds
from learner.reports.html import details, heading, table
from learner.reports.report_matrix import confusion
from learner.reports.report_model import parameter_tables
from learner.reports.report_time import timing
from learner.runs.appended import replace
from learner.runs.comparison import compare
from learner.runs.flat_config import text_of
from learner.runs.history import Point
from learner.runs.run_reader import RunReader
from learner.util.json_values import encode
from learner.util.optional import import_optional
from learner.util.text import count, duration, short

LONGEST_LOG = 64 << 10
"""Bytes of a run's log that are shown: the last ones."""
KEYS = "Keys: + and - zoom, arrows move, 0 shows all."
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
"""What the browser allows: what stands in the page itself, and no request."""
LONGEST_TEXT = 64 << 10
"""Characters of a text that are shown."""


def write_report(path: str | Path, runs: Sequence[RunReader], title: str | None = None) -> None:
    """Write a report of one or several runs: curves, best values, confusion matrices, use of time, parameters,
    differences of the configs, texts and logs.

    Args:
      path: of the HTML file.
      runs: one or more.
      title: default: the names of the runs.

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
    metrics = curves(runs)
    data = {"runs": [run.name for run in runs], "seeds": seeds(runs), "metrics": metrics}
    named = len(runs) > 1
    body = [heading(title, 1), *_overview(runs), *_charts(metrics)]
    body += [*confusion(runs), *timing(runs), *parameter_tables(runs), *_settings(runs), *_environments(runs)]
    body += [part for run in runs for part in (*_texts(run, named), *_log(run, named))]
    return _page(title, "\n".join(body), data)


def _page(title: str, body: str, data: Any) -> str:
    # Inside of a script nothing is escaped but what would end it.
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
<main>
{body}
</main>
<script type="application/json" id="data">{text}</script>
<script>{_plotly()}</script>
<script>{_file("page.js")}</script>
</body>
</html>
"""


def _file(name: str) -> str:
    return (importlib.resources.files("learner.reports") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    offline = import_optional("plotly.offline", "reports", "a report")
    return str(offline.get_plotlyjs()).replace("</script", "<\\/script")


def _overview(runs: Sequence[RunReader]) -> list[str]:
    comparison = compare(runs)
    head = ["run", "status", "epochs", "steps", "time", "directory"]
    rows = [
        [run.name, str(run.status), str(run.epochs), f"{run.step:,}", duration(run.seconds), str(run.directory)]
        for run in runs
    ]
    shown = _values(runs[0]) if len(runs) == 1 else _values_of(runs)
    verb = "differs" if len(comparison.settings) == 1 else "differ"
    differ = f"<p>{count(len(comparison.settings), 'setting')} {verb} between the configs.</p>" if len(runs) > 1 else ""
    return [heading("Runs"), table(head, rows, "runs", range(2, 5)), differ, *shown]


def _values(run: RunReader) -> list[str]:
    rows = []
    for key in _numeric([run]):
        best, last = run.best(key), run.points(key)[-1]
        rows.append([key, _value(best, run, key), str(best.epoch) if best else "-", _value(last, run, key)])
    shown = table(["metric", "best", "epoch", "last"], rows, "values of metrics", range(1, 4))
    return [heading("Values"), shown] if rows else []


def _values_of(runs: Sequence[RunReader]) -> list[str]:
    """Return a table of the best value of each run, or of the last value for metrics without a direction."""
    rows = []
    for key in _numeric(runs):
        cells = []
        for run in runs:
            point = run.best(key) or run.history.last(key)
            cells.append(f"{_value(point, run, key)} ({point.epoch})" if point else "-")
        rows.append([key, *cells])
    about = "<p>The best value of each run, and its epoch; the last one where a metric has no direction.</p>"
    head = ["metric", *(run.name for run in runs)]
    return [heading("Values"), about, table(head, rows, "values of metrics", range(1, len(head)))] if rows else []


def _numeric(runs: Sequence[RunReader]) -> list[str]:
    found = dict.fromkeys(key for run in runs for key in run.history)
    texts = {key for run in runs for key in run.history if isinstance(run.points(key)[-1].value, str)}
    return [key for key in found if key not in texts]


def _value(point: Point | None, run: RunReader, key: str) -> str:
    return f"{short(point.value)} {run.metrics[key].unit}".strip() if point else "-"


def _charts(metrics: Sequence[dict[str, Any]]) -> list[str]:
    if not metrics:
        return ["<p>No epoch has ended yet.</p>"]
    parts = [heading("Curves"), _file("controls.html")]
    for index, metric in enumerate(metrics):
        about = f"{metric['name']} over the training; its best and last values stand in the table above. {KEYS}"
        attributes = f'role="img" tabindex="0" aria-label="{escape(about)}"'
        parts.append(f'<figure class="chart" id="chart-{index}" {attributes}></figure>')
    return parts


def _settings(runs: Sequence[RunReader]) -> list[str]:
    configured = [run for run in runs if run.config]
    if not configured:
        return []
    parts = [heading("Configs")]
    differing = compare(configured).settings if len(configured) > 1 else ()
    if differing:
        rows = [[key, *(text_of(run.config.get(key)) for run in configured)] for key in differing]
        parts.append(table(["what differs", *(run.name for run in configured)], rows, "what differs in the configs"))
    for run in configured:
        rows = [[key, text_of(value)] for key, value in run.config.items()]
        about = f"all of {run.name}"
        parts.append(details(about, table(["setting", "value"], rows, f"the config of {run.name}")))
    return parts


def _environments(runs: Sequence[RunReader]) -> list[str]:
    described = [run for run in runs if run.environment]
    keys = dict.fromkeys(key for run in described for key in run.environment)
    rows = [[key, *(text_of(run.environment.get(key)) for run in described)] for key in keys]
    about = "versions, devices and machines"
    return [heading("Environment"), table(["", *(run.name for run in described)], rows, about)] if rows else []


def _texts(run: RunReader, named: bool) -> list[str]:
    """Return the last texts of metrics that are not numbers, except for confusion matrices."""
    parts = []
    for key in run.history:
        last = run.history.last(key)
        if last is not None and isinstance(last.value, str) and read_matrix(last.value) is None:
            cut = last.value[:LONGEST_TEXT]
            more = f"<p>{count(len(last.value) - len(cut), 'further character')}.</p>" if cut != last.value else ""
            name = f"{run.name} {key}" if named else key
            parts.append(f"{heading(f'{name}, epoch {last.epoch}')}\n{_pre(cut)}{more}")
    return parts


def _log(run: RunReader, named: bool) -> list[str]:
    lines = run.log(LONGEST_LOG)
    if lines is None:
        return []
    warned = [line for line in lines if " WARNING " in line or " ERROR " in line]
    parts = [heading("Messages" + (f" of {run.name}" if named else ""))]
    parts += [_pre("\n".join(warned))] if warned else ["<p>No warnings.</p>"]
    return [*parts, details("the log", _pre("\n".join(lines)))]


def _pre(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'
