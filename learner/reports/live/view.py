"""The settings of the plots, which keys change."""

import dataclasses
from collections.abc import Sequence

from learner.reports.pictures import AXES, check_axes

SMOOTH = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
CLOSEST = 12
"""The number of times that the window can be halved."""


@dataclasses.dataclass
class PlotView:
    """The settings of the plots.

    Attributes:
      metric_names: names or keys of metrics; empty: all metrics.
      x: the horizontal axis: `step`, `epoch` or `time` (of training, in minutes).
      each: True to draw training metrics at each step rather than over whole epochs; `None`: at each step unless the
        axis is `epoch`.
      log: True for a logarithmic vertical axis.
      smooth: the weight of the previous mean against the next value, from 0 to below 1.
      zoom: the number of times that the window was halved.
      end: the end of the window as a fraction of the axis, from 0 to 1; 1 follows the run.
      first: the index of the first metric to draw.
      run: the index of the run whose table, log and system are shown.
      alone: True to draw only this run.
      many: True to draw several metrics if they fit.
      panel: the panel that is shown if only one fits.

    Raises:
      LearnerError: the axis is unknown, or `smooth` is out of range.
    """

    metric_names: Sequence[str] = ()
    x: str = "step"
    each: bool | None = None
    log: bool = False
    smooth: float = 0.0
    zoom: int = 0
    end: float = 1.0
    first: int = 0
    run: int = 0
    alone: bool = False
    many: bool = True
    panel: int = 0

    def __post_init__(self) -> None:
        check_axes(self.x, self.smooth)

    @property
    def is_each(self) -> bool:
        """True if training metrics are drawn at each step."""
        return self.x != "epoch" if self.each is None else self.each

    def shown(self, there: Sequence[str], most: int) -> list[str]:
        """Return the metrics to draw.

        Args:
          there: the names of the available metrics.
          most: the number of metrics that fit.
        """
        metrics = list(self.metric_names or there)
        if not metrics:
            return []
        first = self.first % len(metrics)
        return (metrics[first:] + metrics[:first])[: most if self.many else 1]

    def next_axis(self) -> None:
        """Switch the horizontal axis: steps, epochs, time."""
        self.x = AXES[(AXES.index(self.x) + 1) % len(AXES)]

    def smoother(self) -> None:
        """Increase the smoothing; after the strongest, turn it off."""
        stronger = [value for value in SMOOTH if value > self.smooth]
        self.smooth = stronger[0] if stronger else 0.0

    def zoom_in(self) -> None:
        """Halve the window, keeping the end of the run if it is shown, otherwise the middle."""
        if self.zoom < CLOSEST:
            self.end -= 0 if self.end >= 1 else self.width / 4
            self.zoom += 1

    def zoom_out(self) -> None:
        """Double the window."""
        if self.zoom:
            self.zoom -= 1
            self.end = min(1.0, max(self.width, self.end if self.end >= 1 else self.end + self.width / 4))

    def zoom_off(self) -> None:
        """Show everything."""
        self.zoom, self.end = 0, 1.0

    def pan(self, windows: float) -> None:
        """Move the window to later (or earlier) values."""
        self.end = min(1.0, max(self.width, self.end + windows * self.width))

    @property
    def width(self) -> float:
        """The width of the window as a fraction of the axis."""
        return 0.5**self.zoom

    def window(self, low: float, high: float) -> tuple[float, float]:
        """Return the limits of the window.

        Args:
          low: the minimum of the axis.
          high: the maximum of the axis.
        """
        end = low + (high - low) * self.end
        return end - (high - low) * self.width, end
