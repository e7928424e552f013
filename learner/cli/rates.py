"""`learner plot-lr` and `learner find-lr`: the learning rate before any training."""

import importlib.util
import shutil
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.cli.configs.config import RunConfig
from learner.cli.configs.overrides import apply_overrides, read_yaml, value_of
from learner.cli.parsing import Parser
from learner.diagnostics.rate_range import RangeTest
from learner.errors import LearnerError, one_error
from learner.optimizers.schedule_resolution import resolve_schedules, schedules_of
from learner.reports.plots import Plot, refuse_path
from learner.schedules.base import RunLength, ScheduleFn
from learner.schedules.decays import Constant
from learner.schedules.plateau import ReduceOnPlateau
from learner.schedules.resolve import early_end, not_reached, rates, resolve, text_of
from learner.steps.optimizer_checks import check_schedule, is_schedule
from learner.util.distribution import install_hint
from learner.util.optional import import_optional
from learner.util.text import count

PLOT = """\
Plots the learning rate over the run that a config describes. Nothing is trained and no model is created; only the
length of the training data is read."""

FIND = """\
Runs a learning-rate range test: trains for some steps with an increasing rate, shows the loss, and suggests a rate. It
stops when the loss diverges, and writes nothing to the run directory."""

TRUSTED = f"It trusts CONFIG: the code that it names is imported and run. Plots need: {install_hint('plots')}"

OWN = {
    "lowest": "the first rate (default: 1e-7)",
    "highest": "the last rate (default: 10)",
    "steps": "optimizer steps (default: 100)",
    "smoothing": "weight of each earlier loss relative to the next (default: 0.8)",
    "diverges": "factor over the lowest loss at which the loss diverges (default: 4)",
}
"""The options of `learner find-lr` that are arguments of `Learner.find_lr`."""


def plot_lr(words: Sequence[str]) -> int:
    """`learner plot-lr CONFIG [--KEY=VALUE ...] [-o FILE]`."""
    parser = _parser("plot-lr", PLOT)
    parser.add_argument("-o", "--output", metavar="FILE", help="write a .png file instead of plotting in the terminal")
    line = parser.read(words)
    output = line.output
    refuse_path(output)
    import_optional("plotext" if output is None else "matplotlib", "plots", "a plot")
    plot, lines = rate_plot(*_config(line).rate())
    if output is None:
        print(plot.text(*_room()))
    else:
        plot.save(output)
    print("\n".join([*lines, *([] if output is None else [output])]))
    return 0


def find_lr(words: Sequence[str]) -> int:
    """`learner find-lr CONFIG [--KEY=VALUE ...] [-o FILE]`."""
    parser = _parser("find-lr", FIND)
    for name, about in OWN.items():
        parser.add_argument(f"--{name}", metavar="NUMBER", help=about)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the plot to a .png file; the terminal shows it if plotext is installed",
    )
    line = parser.read(words)
    output = line.output
    refuse_path(output)
    if output is not None:
        import_optional("matplotlib", "plots", "a plot")
    own = {name: value_of(text) for name in OWN if (text := getattr(line, name)) is not None}
    result = _config(line, tuple(OWN)).learner().find_lr(**own)
    if output is None and importlib.util.find_spec("plotext") is not None:
        print(range_plot(result).text(*_room()))
    print(result)
    if output is not None:
        range_plot(result).save(output)
        print(output)
    return 0


def rate_plot(lr: Any, optimizer: Any, run: RunLength) -> tuple[Plot, list[str]]:
    """Return the plot of the learning rate over a run, with the rates of groups that have a schedule, and a
    description.

    Args:
      lr: a number, a schedule, or `ReduceOnPlateau`.
      optimizer: a function of the learning rate.
      run: the length of the run.

    Raises:
      LearnerError: the length is unknown, or the schedule does not fit it.

    >>> from learner.schedules import Cosine
    >>> print("\\n".join(rate_plot(Cosine(0.1, last=0.01), None, RunLength(900, 45))[1]))
    Cosine(first=0.1, last=0.01) in 900 steps
    20 epochs of 45 steps, 900 steps in all
    the rate is 0.1 at first, at most 0.1, and 0.01 in the last step
    """
    schedule, summary = _schedule(lr, run)
    if run.steps is None:
        raise LearnerError(
            "the run's length is not known: the training data does not say how many batches it has, and there is no "
            "num_steps: --num_steps=1000",
            code="schedule-run-length-unknown",
        )
    resolved, problems = resolve_schedules(optimizer, run)
    if problems:
        raise one_error(problems, code="cli-arguments-wrong")
    curves = {"learning rate": rates(schedule, run.steps)}
    lines = [summary, _length(run), *_lines(schedule, run.steps, curves["learning rate"][1])]
    for group, rate in schedules_of(resolved).items():
        curves[group] = rates(rate, run.steps)
        lines += [f"{group}: {line}" for line in (text_of(rate), *_lines(rate, run.steps, curves[group][1]))]
    return Plot("learning rate", "step", "", curves), lines


def _lines(schedule: ScheduleFn, steps: int, values: Sequence[float]) -> list[str]:
    """Return a description of a schedule over a run of `steps`."""
    inside = f"at first, at most {max(values):.3g}, and {values[-1]:.3g} in the last step"
    ends = early_end(schedule, steps)
    lines = [f"the rate is {values[0]:.3g} {inside}", *([] if ends is None else [ends[0]])]
    return lines + not_reached(schedule, steps)


def range_plot(result: RangeTest) -> Plot:
    """Return the plot of a range test, without losses far above the first one, so that the others remain visible."""
    rates, first, lowest = result.rates.tolist(), float(result.smoothed[0]), float(result.smoothed.min())
    top = first + (first - lowest) if first > lowest else float("inf")
    named = {"loss": result.losses, "smoothed": result.smoothed}
    lines = {name: (rates, np.where(losses <= top, losses, np.nan).tolist()) for name, losses in named.items()}
    return Plot("loss by learning rate", "learning rate", "", lines, log_x=True)


def _schedule(lr: Any, run: RunLength) -> tuple[ScheduleFn, str]:
    """Return a rate as a function of the step, and its description."""
    if isinstance(lr, ReduceOnPlateau):
        rate, text = _schedule(lr.lr if lr.schedule is None else lr.schedule, run)
        return rate, f"{text}; ReduceOnPlateau lowers the rate after validations, which this does not show"
    if not is_schedule(lr):
        return Constant(float(lr)), f"{lr:g} in every step"
    schedule, problems = resolve(lr, run)
    if schedule is None or (problems := problems or check_schedule(schedule)):
        raise one_error(problems, code="cli-arguments-wrong")
    return schedule, text_of(schedule)


def _length(run: RunLength) -> str:
    assert run.steps is not None
    if run.epoch is None:
        return count(run.steps, "step")
    epochs = f"{run.steps / run.epoch:g} epoch{'' if run.steps == run.epoch else 's'}"
    return f"{epochs} of {count(run.epoch, 'step')}, {count(run.steps, 'step')} in all"


def _parser(command: str, about: str) -> Parser:
    parser = Parser(command, about, "CONFIG [--KEY=VALUE ...] [-o FILE]", TRUSTED, keys=True)
    parser.add_config()
    return parser


def _config(line: Namespace, beside: Sequence[str] = ()) -> RunConfig:
    return RunConfig(apply_overrides(read_yaml(line.config), line.overrides), beside=beside)


def _room() -> tuple[int, int]:
    """Return the columns and rows for a plot in this terminal."""
    size = shutil.get_terminal_size((80, 24))
    return min(size.columns, 120), min(size.lines - 4, 24)
