"""Line plots in the terminal and in PNG files, with optional packages."""

import dataclasses
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.errors import LearnerError
from learner.util.optional import import_optional
from learner.util.text import NO_BREAK
from learner.util.ticks import ticks

Line = tuple[Sequence[float], Sequence[float]]
LARGEST, SMALLEST = 1e100, 1e-300  # the largest that can be drawn: packages use powers and multiples of it for axes
LEAST = 20, 8  # columns and rows
MARKS = "●x+○*△#□"
"""The marks for many lines without colours."""
SHOWN = {"dot": "•", "braille": "⠤"}
"""Marks that plotext has names for."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """A line plot.

    Attributes:
      title: the title above the plot.
      x: the label of the horizontal axis.
      y: the label of the vertical axis.
      lines: the values of both axes, by the name of the line. Points for which `drawable` returns NaN are left out, as
        are values that are not above 0 on a logarithmic axis.
      log_x: True for a logarithmic horizontal axis.
      log_y: True for a logarithmic vertical axis.
      left_out: the number of further lines, which are not drawn.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    log_x: bool = False
    log_y: bool = False
    left_out: int = 0

    def text(self, width: int, height: int) -> str:
        """Return the plot as text without colours, for terminals and files.

        Args:
          width: columns.
          height: rows.

        Raises:
          LearnerError: plotext is not installed.
        """
        plotext = import_optional("plotext", "plots", "a plot")
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.limitsize(False, False)
        plotext.plotsize(max(width, LEAST[0]), max(height, LEAST[1]))
        few = {1: ["braille"], 2: ["dot", "braille"]}
        markers = list(itertools.islice(itertools.cycle(few.get(len(self.lines), MARKS)), len(self.lines)))
        for marker, line in zip(markers, self.drawable_lines().values(), strict=True):
            plotext.plot(*line, marker=marker)
        set_axes(plotext, list(self.drawable_lines().values()), width, height, log_x=self.log_x, log_y=self.log_y)
        plotext.title(self.title)
        plotext.xlabel(self.x)
        plotext.ylabel(self.y)
        drawing = str(plotext.uncolorize(plotext.build()))
        plotext.clear_figure()
        # Below the plot: plotext's own legend covers the lines.
        names = [f"{SHOWN.get(marker, marker)} {name}" for marker, name in zip(markers, self.lines, strict=True)]
        legend = _legend(names, max(width, LEAST[0])) if len(names) > 1 else []
        return "\n".join(line.rstrip() for line in [*drawing.splitlines(), *legend])

    def save(self, path: str | Path) -> None:
        """Write the plot to a PNG file.

        Raises:
          LearnerError: matplotlib is not installed, or the file cannot be written.
        """
        figure = import_optional("matplotlib.figure", "plots", "a plot").Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for name, line in self.drawable_lines().items():
            axes.plot(*line, label=name)
        if len(self.lines) > 1:
            figure.legend(loc="outside lower center", ncols=min(len(self.lines), 4))  # beside the lines, not on them
        axes.set(title=self.title, xlabel=self.x, ylabel=self.y)
        if any(len(line.get_xdata()) for line in axes.lines):
            axes.set(xscale="log" if self.log_x else "linear", yscale="log" if self.log_y else "linear")
        axes.grid(alpha=0.3)
        try:
            figure.savefig(path, format="png", dpi=150)
        except OSError as error:
            raise LearnerError(
                f"the plot cannot be written to {path}: {error}", code="report-not-written", path=path
            ) from error

    def drawable_lines(self) -> dict[str, Line]:
        """Return the lines without points that cannot be drawn."""
        lines: dict[str, Line] = {}
        for name, line in self.lines.items():
            x, y = map(drawable, line)
            kept = ~(np.isnan(x) | np.isnan(y) | (self.log_x & (x <= 0)) | (self.log_y & (y <= 0)))
            lines[name] = x[kept].tolist(), y[kept].tolist()
        return lines


def _legend(names: Sequence[str], width: int) -> list[str]:
    """Return the entries as lines that are broken only between entries."""
    joined = "   ".join(name.replace(" ", NO_BREAK) for name in names)
    lines = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def set_axes(
    plotext: Any,
    lines: Sequence[Line],
    width: int,
    height: int,
    *,
    window: tuple[float, float] | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> None:
    """Set the kinds of the axes of a plotext figure, and ticks that leave room for the lines.

    Args:
      plotext: the module, or a widget's figure.
      lines: drawable points only.
      width: columns.
      height: rows.
      window: the limits of the horizontal axis; default: the limits of the lines.
      log_x: True for a logarithmic horizontal axis.
      log_y: True for a logarithmic vertical axis.
    """
    xs, ys = [x for line in lines for x in line[0]], [y for line in lines for y in line[1]]
    if not xs:
        return
    low, high = window or (min(xs), max(xs))
    if window is not None and low < high:
        plotext.xlim(low, high)
    plotext.xscale("log" if log_x else "linear")
    plotext.yscale("log" if log_y else "linear")
    plotext.xticks(*ticks(low, high, max(2, width // 12), log_x))
    plotext.yticks(*ticks(min(ys), max(ys), max(2, height // 3), log_y))


def drawable(values: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return values for a plot, float64 of the same length: NaN for values that are not finite or too large for an
    axis.

    >>> drawable([0.5, -1e308, float("inf"), 1e-310]).tolist()
    [0.5, nan, nan, 0.0]
    """
    numbers = np.array(values, np.float64)
    numbers[~(np.abs(numbers) <= LARGEST)] = math.nan
    numbers[np.abs(numbers) < SMALLEST] = 0.0
    return numbers


def refuse_path(path: str | None) -> None:
    """Raise `LearnerError` if a plot cannot be saved under this name. `None` is accepted: it is not saved then."""
    if path is not None and not (Path(path).suffix.lower() == ".png" and Path(path).parent.is_dir()):
        raise LearnerError(
            f"the output is {path}; it needs the name of a .png file in a directory that exists",
            code="report-output-path",
            path=path,
        )
