"""Line plots in the terminal and in PNG files, with optional packages."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from learner.errors import LearnerError
from learner.util.optional import import_optional

Line = tuple[Sequence[float], Sequence[float]]
LARGEST, SMALLEST = 1e100, 1e-300  # that can be drawn: packages make axes of powers and multiples of them
LEAST = 20, 8  # columns and rows
MARKS = "●x+○*△#□"
"""The marks of many lines without colours."""


@dataclasses.dataclass(frozen=True)
class Plot:
    """A line plot.

    Attributes:
      title: above it.
      x: what the horizontal axis shows.
      y: what the vertical axis shows.
      lines: the values of both axes, by the name of the line. Points that `drawable` has no numbers for are left out,
        and what is not above 0 on a logarithmic axis.
      log_x: whether the horizontal axis is logarithmic.
      log_y: whether the vertical axis is.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    log_x: bool = False
    log_y: bool = False

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
        markers = itertools.cycle(few.get(len(self.lines), MARKS))
        for name, line in self._finite().items():
            plotext.plot(*line, marker=next(markers), label=name if len(self.lines) > 1 else None)
        set_axes(plotext, list(self._finite().values()), width, height, log_x=self.log_x, log_y=self.log_y)
        plotext.title(self.title)
        plotext.xlabel(self.x)
        plotext.ylabel(self.y)
        drawing = str(plotext.uncolorize(plotext.build()))
        plotext.clear_figure()
        return "\n".join(line.rstrip() for line in drawing.splitlines())

    def save(self, path: str | Path) -> None:
        """Write the plot to a PNG file.

        Raises:
          LearnerError: matplotlib is not installed, or the file cannot be written.
        """
        figure = import_optional("matplotlib.figure", "plots", "a plot").Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for name, line in self._finite().items():
            axes.plot(*line, label=name)
        if len(self.lines) > 1:
            axes.legend()
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

    def _finite(self) -> dict[str, Line]:
        lines: dict[str, Line] = {}
        for name, line in self.lines.items():
            x, y = map(drawable, line)
            kept = ~(np.isnan(x) | np.isnan(y) | (self.log_x & (x <= 0)) | (self.log_y & (y <= 0)))
            lines[name] = x[kept].tolist(), y[kept].tolist()
        return lines


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
      window: the limits of the horizontal axis; default: those of the lines.
      log_x: whether the horizontal axis is logarithmic.
      log_y: whether the vertical axis is.
    """
    xs, ys = [x for line in lines for x in line[0]], [y for line in lines for y in line[1]]
    if not xs:
        return
    low, high = window or (min(xs), max(xs))
    if window is not None and low < high:
        plotext.xlim(low, high)
    plotext.xscale("log" if log_x else "linear")
    plotext.yscale("log" if log_y else "linear")
    plotext.xticks(*_ticks(low, high, max(2, width // 12), log_x))
    plotext.yticks(*_ticks(min(ys), max(ys), max(2, height // 3), log_y))


def _ticks(low: float, high: float, most: int, log: bool) -> tuple[list[float], list[str]]:
    ticks = decades(low, high, most) if log else []
    return (ticks, list(map(tick_text, ticks))) if len(ticks) > 1 else round_ticks(low, high, most)


def drawable(values: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return values as plots need them, float64 of the same length: NaN for values that are not finite or too large for
    an axis.

    >>> drawable([0.5, -1e308, float("inf"), 1e-310]).tolist()
    [0.5, nan, nan, 0.0]
    """
    numbers = np.array(values, np.float64)
    numbers[~(np.abs(numbers) <= LARGEST)] = math.nan
    numbers[np.abs(numbers) < SMALLEST] = 0.0
    return numbers


def decades(low: float, high: float, most: int) -> list[float]:
    """Return round numbers for a logarithmic axis: powers of ten, with 2 and 5 times them if these would be few.

    Args:
      low: the least of the axis, greater than 0.
      high: the greatest.
      most: how many there is room for.

    >>> decades(1e-5, 0.2, most=8), decades(1e-5, 0.2, most=3)
    ([1e-05, 0.0001, 0.001, 0.01, 0.1], [1e-05, 0.001, 0.1])
    >>> decades(0.15, 0.6, most=8)
    [0.2, 0.5]
    """
    first, last = math.floor(math.log10(low) - 1e-9), math.ceil(math.log10(high) + 1e-9)
    finer = [float(f"{factor}e{power}") for power in range(first, last + 1) for factor in (1, 2, 5)]
    fine = [x for x in finer if low * (1 - 1e-9) <= x <= high * (1 + 1e-9)]
    powers = [x for x in fine if x in finer[::3]]
    ticks = fine if len(powers) < 3 and len(fine) <= most else powers
    return ticks[:: math.ceil(len(ticks) / most)] if ticks else []


def round_ticks(low: float, high: float, most: int) -> tuple[list[float], list[str]]:
    """Return round numbers for a linear axis, and their texts.

    Args:
      low: the least of the axis.
      high: the greatest.
      most: how many there is room for.

    >>> round_ticks(1, 500, most=5)
    ([100.0, 200.0, 300.0, 400.0, 500.0], ['100', '200', '300', '400', '500'])
    >>> round_ticks(0.11, 0.31, most=4)
    ([0.15, 0.2, 0.25, 0.3], ['0.15', '0.20', '0.25', '0.30'])
    >>> round_ticks(0, 3e6, most=8)[1]
    ['0', '0.5M', '1.0M', '1.5M', '2.0M', '2.5M', '3.0M']
    """
    if not (math.isfinite(high - low) and low < high):
        return [low], [f"{low:.6g}"]
    rough = (high - low) / max(1, most)
    power = math.floor(math.log10(rough))
    sizes = [float(f"{factor}e{power}") for factor in (1, 2, 5, 10, 20)]
    for size in (size for size in sizes if size >= rough):
        first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
        if last - first < most:
            break
    ticks = [float(f"{number * size:.12g}") for number in range(first, last + 1)]
    largest = max(map(abs, ticks), default=0.0)
    if largest and not 1e-4 <= largest < 1e12:
        return ticks, [f"{tick:.3g}" for tick in ticks]
    factor, sign = next(((f, s) for f, s in ((1e9, "G"), (1e6, "M"), (1e4, "k")) if largest >= f), (1, ""))
    factor = 1000 if sign == "k" else factor
    digits = max(0, -math.floor(math.log10(size / factor) + 1e-9))
    return ticks, [f"{tick / factor:.{digits}f}{sign}" if tick else "0" for tick in ticks]


def tick_text(value: float) -> str:
    """Return the text of a round number.

    >>> [tick_text(x) for x in (2e-07, 1e-4, 0.001, 0.5, 10.0, 1e5)]
    ['2e-7', '1e-4', '0.001', '0.5', '10', '1e5']
    """
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    digits, _, power = f"{value:.0e}".partition("e")
    return f"{digits}e{int(power)}"


def refuse_path(path: str) -> None:
    """Raise `LearnerError` if a plot cannot be saved under this name."""
    if Path(path).suffix.lower() != ".png" or not Path(path).parent.is_dir():
        raise LearnerError(
            f"the output is {path}; it needs the name of a .png file in a directory that exists",
            code="report-output-path",
            path=path,
        )
