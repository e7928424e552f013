"""`learner watch`: shows runs in the terminal while they train."""

import sys
from collections.abc import Sequence

from learner.cli.parsing import Parser
from learner.errors import LearnerError, one_error
from learner.reports.live.view import PlotView
from learner.reports.live.watched import RunWatcher
from learner.reports.pictures import AXES
from learner.util.distribution import install_hint
from learner.util.optional import refuse_missing

WATCH = f"""\
Shows runs in the terminal: plots, a table, the log, and the use of the system. It only reads their files as they grow;
a run may begin later, be training, or have ended. A directory that is not a run stands for all runs in it. Press ? for
the keys and q to quit. It needs: {install_hint("watch")}"""

FASTEST, SLOWEST = 0.1, 3600.0  # seconds


def watch(words: Sequence[str]) -> int:
    """`learner watch DIR...`."""
    parser = Parser("watch", WATCH)
    parser.add_argument("directories", metavar="DIR", nargs="+", help="directories of runs, which may not exist yet")
    parser.add_argument(
        "--metric", metavar="NAME", action="append", default=[], help="a metric to plot; repeat for more (default: all)"
    )
    parser.add_argument("--x", choices=AXES, default="step", help="the horizontal axis (default: step)")
    parser.add_argument("--log", action="store_true", help="a logarithmic vertical axis")
    parser.add_argument(
        "--smooth", type=float, default=0.0, metavar="S", help="weight of earlier values, 0 to 1 (default: 0)"
    )
    parser.add_argument(
        "--refresh", type=float, default=1.0, metavar="SECONDS", help="time between polls of the files (default: 1)"
    )
    line = parser.read(words)
    refuse_without_packages()
    refuse_pipes()
    if not FASTEST <= line.refresh <= SLOWEST:
        raise LearnerError(
            f"--refresh is {line.refresh:g}; it needs {FASTEST:g} to {SLOWEST:g} seconds", code="cli-refresh-value"
        )
    view = PlotView(line.metric, x=line.x, log=line.log, smooth=line.smooth)
    watched = RunWatcher(line.directories)
    watched.refresh()
    problems = [problem for metric in line.metric if (problem := watched.problem_with(metric))]
    if problems:
        raise one_error(problems, "these metrics cannot be watched", code="cli-metrics-unknown")
    from learner.reports.live.app import watch as show

    return show(watched, view, line.refresh)


def refuse_without_packages() -> None:
    """Raise `LearnerError` if a package of the view is not installed."""
    for module in ("textual", "textual_plotext"):
        refuse_missing(module, "watch", "learner watch")


def refuse_pipes() -> None:
    """Raise `LearnerError` if one of the standard streams is not a terminal."""
    names = {"input": sys.stdin, "output": sys.stdout, "error": sys.stderr}
    for name, stream in names.items():
        if stream is None or not stream.isatty():
            raise LearnerError(
                f"learner watch needs a terminal, and standard {name} is not one. Without a terminal: learner summary "
                "DIR, learner plot DIR METRIC, learner report DIR",
                code="cli-terminal-missing",
                name=name,
            )
