"""`learner watch`: runs in the terminal, while they go on."""

import sys
from collections.abc import Sequence

from learner.cli.parsing import Parser
from learner.errors import LearnerError, one_error
from learner.loggers.base import refuse_missing
from learner.reports.pictures import AXES
from learner.util.distribution import install_hint

WATCH = f"""\
Shows runs in the terminal: plots, a table, the log, figures of the system. It reads their files only, as they grow; a
run may begin later, go on, or be over. A directory that is no run stands for all the runs in it. ? lists the keys, q
quits. It needs: {install_hint("watch")}"""

FASTEST, SLOWEST = 0.1, 3600.0  # seconds


def watch(words: Sequence[str]) -> int:
    """`learner watch DIR...`."""
    parser = Parser("watch", WATCH)
    parser.add_argument("directories", metavar="DIR", nargs="+", help="of runs; they need not exist yet")
    parser.add_argument(
        "--metric", metavar="NAME", action="append", default=[], help="a metric to draw; again for more (default: all)"
    )
    parser.add_argument("--x", choices=AXES, default="step", help="the horizontal axis (default: step)")
    parser.add_argument("--log", action="store_true", help="a logarithmic vertical axis")
    parser.add_argument(
        "--smooth", type=float, default=0.0, metavar="S", help="0 to 1: how much what came before counts (default: 0)"
    )
    parser.add_argument(
        "--refresh", type=float, default=1.0, metavar="SECONDS", help="between looks at the files (default: 1)"
    )
    line = parser.read(words)
    if line is None:
        return 0
    for module in ("textual", "textual_plotext"):
        refuse_missing(module, "watch", "learner watch")
    _refuse_pipes()
    if not FASTEST <= line.refresh <= SLOWEST:
        raise LearnerError(f"--refresh is {line.refresh:g}; it needs {FASTEST:g} to {SLOWEST:g} seconds")
    from learner.reports.live.view import PlotView
    from learner.reports.live.watched import RunWatcher

    view = PlotView(line.metric, x=line.x, log=line.log, smooth=line.smooth)
    watched = RunWatcher(line.directories)
    watched.refresh()
    problems = [problem for metric in line.metric if (problem := watched.problem_with(metric))]
    if problems:
        raise one_error(problems, "these metrics cannot be watched")
    from learner.reports.live.app import watch as show

    return show(watched, view, line.refresh)


def _refuse_pipes() -> None:
    names = {"input": sys.stdin, "output": sys.stdout, "error": sys.stderr}
    for name, stream in names.items():
        if stream is None or not stream.isatty():
            raise LearnerError(
                f"learner watch needs a terminal, and standard {name} is none. Without one: learner summary DIR, "
                "learner plot DIR METRIC, learner report DIR"
            )
