"""`learner compare`, `learner plot` and others: several runs at once, from only their files."""

import csv
import dataclasses
import io
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.cli.parsing import Parser, check_output
from learner.errors import LearnerError, Problem, one_error
from learner.reports.html_report import write_report
from learner.reports.pictures import AXES, picture
from learner.reports.plots import MARKS, refuse_path
from learner.runs import control_files as asking
from learner.runs.comparison import ComparisonTable
from learner.runs.comparison import compare as compared
from learner.runs.comparison_means import compare_means
from learner.runs.difference import difference, pair_lines
from learner.runs.find import each_run, find_runs, run_directories
from learner.runs.layout import missing_text
from learner.runs.lock import is_locked
from learner.runs.run_reader import RunReader
from learner.util.distribution import install_hint
from learner.util.json_values import encode
from learner.util.optional import import_optional
from learner.util.text import count, printable, size

SETTINGS = 6
"""The most columns of settings that a terminal shows."""

COMPARE = """\
Prints a table of runs: the settings that differ between their configs, and the best and the last value of each metric,
with the epoch of the best. A directory that is not a run stands for all runs in it.

With --over=seed, runs that differ only in the seed share a row: the number of runs, and the mean and the standard
deviation of the best values of each metric. --sort then takes a metric (by its mean), a setting, runs or seconds."""

DIFF = """\
Shows what differs between two runs (settings, facts about the data, the train step, the commit, versions and devices),
and the first step at which their losses part. The exit code is 1 if they do. With --replay=STEP, it also repeats the
steps of both runs from their newest checkpoints of one step before STEP, and names the first array that differs; the
exit code is then 1 if one does, too. Nothing is written.

With a config (a .yaml file) in place of the second run, it shows the settings with which learner fit would train
another run, defaults included; the exit code is 1 if any differs."""

REPLAY_TRUSTED = (
    "With --replay it trusts config.yaml of both: the code that it names is imported and run. The code that CONFIG "
    "names is imported, too."
)

REPORT = f"""\
Writes one HTML file about one or several runs: curves, best values, confusion matrices, use of time, parameters,
differences between the configs, texts, warnings and logs. It needs no network. A directory that is not a run stands for
all runs in it. Reports need: {install_hint("reports")}"""

ASK = """\
Asks running runs to save or to stop, on this machine or on another one with the same file system. A directory that is
not a run stands for all running runs in it. A run polls for requests once a second; creating the file stop.ask or
save.ask in its directory has the same effect."""

PLOT = f"""\
Plots a metric of one or several runs in the terminal or to a PNG file. A directory that is not a run stands for all
runs in it. Plots need: {install_hint("plots")}"""


def diff(words: Sequence[str]) -> int:
    """`learner diff DIR DIR|CONFIG [--metric KEY] [--tolerance X] [--replay STEP] [--json]`."""
    parser = Parser("diff", DIFF, further=REPLAY_TRUSTED)
    parser.add_argument("a", metavar="DIR", help="the directory of a run")
    parser.add_argument("b", metavar="DIR|CONFIG", help="the directory of another run, or a config")
    parser.add_argument(
        "--metric", metavar="KEY", default="train/Loss", help="the metric to compare step by step (default: train/Loss)"
    )
    parser.add_argument(
        "--tolerance", metavar="X", type=float, default=0.0, help="the relative difference that counts as none"
    )
    parser.add_argument("--replay", metavar="STEP", type=int, help="repeat the steps of both runs through this one")
    about = "with --replay: run the code that the configs name even if a run belongs to another user"
    parser.add_argument("--trust", action="store_true", help=about)
    parser.add_argument("--json", action="store_true", help="print an object")
    line = parser.read(words)
    if line.b.endswith((".yaml", ".yml")) and not Path(line.b).is_dir():
        from learner.cli.config_diff import config_difference  # imports JAX

        if line.replay is not None:
            parser.error("--replay takes two runs")
        settings = config_difference(RunReader(line.a), line.b)
        differ = f"{count(len(settings), 'setting')} differ{'s' if len(settings) == 1 else ''}"
        text = differ if settings else "no setting differs"
        lines = [*pair_lines({"settings": settings}), text]
        return _print_difference({"settings": settings, "explanation": text}, lines, bool(settings), as_json=line.json)
    a, b = RunReader(line.a), RunReader(line.b)
    found = difference(a, b, line.metric, line.tolerance)
    content = {**dataclasses.asdict(found), "explanation": found.explanation}
    lines, differs = found.lines(), found.parting is not None
    if line.replay is not None:
        from learner.cli.replay import replayed, unrepeated  # imports JAX

        replay = replayed(a, b, line.replay, line.trust)
        losses = zip((a, b), zip(*replay.losses, strict=True), strict=False)
        notes = [*dict.fromkeys(note for run, of_run in losses for note in unrepeated(run, replay.start, of_run))]
        content["replay"] = {**dataclasses.asdict(replay), "explanation": replay.explanation, "notes": notes}
        lines, differs = [*lines, *map(printable, [*replay.lines(), *notes])], differs or replay.step is not None
    return _print_difference(content, lines, differs, as_json=line.json)


def _print_difference(content: Mapping[str, Any], lines: Sequence[str], differs: bool, *, as_json: bool) -> int:
    """Print a difference, and return the exit code."""
    print(json.dumps(encode(content), indent=2, allow_nan=False) if as_json else "\n".join(lines))
    return int(differs)


def compare(words: Sequence[str]) -> int:
    """`learner compare DIR... [--over KEY] [--sort COLUMN] [--metric NAME] [--json | --csv]`."""
    parser = Parser("compare", COMPARE)
    parser.add_argument("directories", metavar="DIR", nargs="+", help="directories of runs")
    about = "average over runs that differ in this setting, such as seed; repeat for more"
    parser.add_argument("--over", metavar="KEY", action="append", default=[], help=about)
    parser.add_argument(
        "--sort", metavar="COLUMN", help="a metric (the best run first), a setting, seconds, steps, ..."
    )
    parser.add_argument(
        "--metric", metavar="NAME", action="append", default=[], help="a metric to show; repeat for more"
    )
    parser.add_argument("--all", action="store_true", help="every setting that differs, not only the first few")
    parser.add_argument("--json", action="store_true", help="print a list of objects, with everything")
    parser.add_argument("--csv", action="store_true", help="print lines of comma-separated values, with everything")
    line = parser.read(words)
    if line.json and line.csv:
        parser.error("--json and --csv exclude each other")
    found: ComparisonTable
    if line.over:
        # By the same column, as it may be a metric that is not shown otherwise.
        sort = None if line.sort == "runs" else line.sort
        found = compare_means(compared(each_run(line.directories), line.metric, sort), line.over, line.sort)
    else:
        found = compared(each_run(line.directories), line.metric, line.sort)
    if line.json:
        print(json.dumps(encode(found.rows), indent=2, allow_nan=False))
        return 0
    if line.csv:
        table = io.StringIO()
        writer = csv.DictWriter(table, found.columns(), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _csv_value(value) for name, value in row.items()} for row in found.rows)
        text = table.getvalue()
        print("\n".join(map(printable, text.split("\n"))) if sys.stdout.isatty() else text, end="")
        return 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(found.lines(None if line.all else SETTINGS, width)))
    hidden = len(found.settings) - SETTINGS
    if hidden > 0 and not line.all:
        print(f"{count(hidden, 'further setting')} that differ{'s' if hidden == 1 else ''}: --all")
    return 0


def _csv_value(value: Any) -> Any:
    """Return a value as a cell. Tuples have a value for each run."""
    return ";".join(str(encode(each)) for each in value) if isinstance(value, tuple) else encode(value)


def report(words: Sequence[str]) -> int:
    """`learner report DIR... [-o FILE]`."""
    parser = Parser("report", REPORT)
    parser.add_argument("directories", metavar="DIR", nargs="+", help="directories of runs")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the file to write (default: report.html in the run, or here for several)",
    )
    parser.add_argument("--title", metavar="TEXT", help="the title of the page")
    line = parser.read(words)
    runs = find_runs(line.directories)
    output = Path(line.output) if line.output else Path(runs[0].directory if len(runs) == 1 else ".", "report.html")
    check_output(output, "the name of an .html file", [".html", ".htm"])
    write_report(output, runs, line.title)
    print(printable(f"{output}: {size(output.stat().st_size)}, {count(len(runs), 'run')}"))
    return 0


def ask(words: Sequence[str]) -> int:
    """`learner ask stop|save DIR...`."""
    parser = Parser("ask", ASK)
    about = "stop: save and end, as Ctrl-C would; save: a checkpoint now"
    parser.add_argument("what", metavar="stop|save", choices=asking.WHAT, help=about)
    parser.add_argument("directories", metavar="DIR", nargs="+", help="directories of runs")
    line = parser.read(words)
    problems = []
    for place in line.directories:
        inside = [Path(place)] if is_locked(Path(place)) is not False else _training_runs(place)
        if not inside:
            is_there = Path(place).is_dir()
            problems.append(f"no run is training in {place}" if is_there else missing_text(place))
        for directory in inside:
            try:
                asking.ask(directory, line.what)
                print(printable(f"{directory}: asked to {line.what}; the answer is in its experiment.log"))
            except LearnerError as error:
                problems.append(Problem(error, code=error.code, **error.fields))
    if problems:
        raise one_error(problems, "the request failed", code="cli-request-failed")
    return 0


def _training_runs(place: str) -> list[Path]:
    """Return the runs below a directory that are training."""
    return [directory for directory in run_directories([place])[0] if is_locked(directory) is not False]


def plot(words: Sequence[str]) -> int:
    """`learner plot DIR... METRIC [-o FILE]`."""
    parser = Parser("plot", PLOT)
    parser.add_argument("directories", metavar="DIR", nargs="+", help="directories of runs")
    parser.add_argument("metric", metavar="METRIC", help="valid/Loss, or Loss for all splits that have it")
    parser.add_argument("-o", "--output", metavar="FILE", help="a .png file instead of the terminal")
    parser.add_argument("--x", choices=AXES, default="step", help="the horizontal axis (default: step)")
    parser.add_argument("--steps", action="store_true", help="training metrics at each step rather than each epoch")
    parser.add_argument("--log", action="store_true", help="a logarithmic vertical axis")
    parser.add_argument(
        "--smooth", type=float, default=0.0, metavar="S", help="weight of earlier values, 0 to 1 (default: 0)"
    )
    line = parser.read(words)
    import_optional("plotext" if line.output is None else "matplotlib", "plots", "a plot")
    refuse_path(line.output)
    options = {"x": line.x, "steps": line.steps, "smooth": line.smooth, "log": line.log}
    most = len(MARKS) if line.output is None else None  # with colours, more lines can be told apart
    figure = picture(find_runs(line.directories), line.metric, **options, most=most)
    if line.output is None:
        terminal = shutil.get_terminal_size()
        print(figure.text(terminal.columns, min(terminal.lines - 2, terminal.columns // 3)))
    else:
        figure.save(line.output)
        print(line.output)
    if figure.left_out:
        print(f"{count(figure.left_out, 'further line')}: name runs to choose")
    return 0
