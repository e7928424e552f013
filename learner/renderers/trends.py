"""The current value, the best value and the curve of each metric, in bounded memory."""

import dataclasses
import math
from collections.abc import Sequence

from learner.events import Event, MetricInfo, RunStarted, SplitEnded, StepsEnded
from learner.runs.history import Point
from learner.runs.thinning import Thinned
from learner.util.chart import share
from learner.util.metric_order import by_importance, ordered

MOST = 64  # points of a curve
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = ".:-=+*#@"  # for encodings and terminals that lack blocks: these characters differ in weight, not in height


@dataclasses.dataclass
class Trend:
    """The state of one metric: `now` is its newest value (in `train` the value of the newest step, and at the end of an
    epoch the value of the epoch), `best` the best value of a split, `splits` the values of splits, and `steps` a sample
    of the values of steps.
    """

    info: MetricInfo
    now: float | None = None
    best: Point | None = None
    splits: Thinned = dataclasses.field(default_factory=lambda: Thinned(MOST))
    steps: Thinned = dataclasses.field(default_factory=lambda: Thinned(MOST))

    def add(self, epoch: int, step: int, value: float) -> None:
        """Add the value of a split."""
        self.now = value
        self.splits.add([step], [value])
        higher = self.info.higher_is_better
        if higher is None or not math.isfinite(value):
            return
        if self.best is None or (value > float(self.best.value) if higher else value < float(self.best.value)):
            self.best = Point(epoch, step, value)

    def points(self, most: int | None = None) -> list[tuple[int, float]]:
        """Return at most `most` points of the splits, or of the steps while there are only few splits."""
        curve = self.steps if len(self.splits) < 2 and len(self.steps) else self.splits
        series = curve.series(most=most)
        return list(zip(series.step.tolist(), series.mean.tolist(), strict=True))


class Trends:
    """Trends of all metrics, from the events of a run. The cost of a step does not depend on the number of metrics:
    values are read on demand.

    >>> from pathlib import Path
    >>> trends = Trends()
    >>> loss = MetricInfo("valid", "Loss", higher_is_better=False)
    >>> trends.on_event(RunStarted(0.0, Path("runs/a"), 3, None, 45, (loss,), parameters=10))
    >>> for epoch, value in enumerate((0.5, 0.25, 0.375), 1):
    ...     trends.on_event(SplitEnded(0.0, "valid", epoch, 45 * epoch, {"Loss": value}, seconds=0.1))
    >>> (trend,) = trends.newest()
    >>> trend.now, trend.best
    (0.375, Point(epoch=2, step=90, value=0.25))
    >>> sparkline([value for _, value in trend.points()])
    '█▁▅'
    """

    def __init__(self) -> None:
        self._trends: dict[str, Trend] = {}
        self._steps: StepsEnded | None = None
        self.monitor: str | None = None

    def on_event(self, event: Event) -> None:
        """Update the trends."""
        if isinstance(event, StepsEnded):
            if event.split == "train":
                self._steps = event
        elif isinstance(event, SplitEnded):
            self._take_steps()
            for name, value in event.values.items():
                if not isinstance(value, str):
                    self._of(event.split, name).add(event.epoch, event.step, value)
        elif isinstance(event, RunStarted):
            self._start(event)

    def newest(self) -> list[Trend]:
        """Return the trends of the numeric metrics, in the order of the run."""
        self._take_steps()
        return list(self._trends.values())

    def best(self, key: str | None) -> Point | None:
        """Return the best value of a metric by key, or None."""
        return self._trends[key].best if key in self._trends else None

    def _start(self, event: RunStarted) -> None:
        self._steps, self.monitor = None, event.monitor
        self._trends = {info.key: Trend(info) for info in event.metrics if info.numeric}
        for key, points in event.history.items():
            for epoch, step, value in points:
                if not isinstance(value, str):
                    self._of(*key.split("/", 1)).add(epoch, step, value)

    def _take_steps(self) -> None:
        steps, self._steps = self._steps, None
        for name, column in steps.values.items() if steps is not None and steps.count else ():
            trend = self._of("train", name)
            trend.now = float(column[-1])
            trend.steps.add([steps.step], [trend.now])  # type: ignore[union-attr]

    def _of(self, split: str, name: str) -> Trend:
        return self._trends.setdefault(f"{split}/{name}", Trend(MetricInfo(split, name)))


def important(trends: Sequence[Trend], most: int, monitor: str | None) -> list[Trend]:
    """Return the `most` important metrics in the order of `learner.util.metric_order`."""
    by_key = {trend.info.key: trend for trend in trends}
    return [by_key[key] for key in ordered(by_importance(by_key, monitor)[:most], monitor)]


# rich has no sparkline; textual has one, but is optional.
def sparkline(values: Sequence[float], characters: str = BLOCKS) -> str:
    """Return a character for each value, from the lowest to the highest; a blank if it is not finite.

    >>> sparkline([1.0, 4.5, 8.0, float("nan")])
    '▁▅█ '
    >>> sparkline([3.0, 3.0], ASCII)
    '++'
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    top = len(characters) - 1
    return "".join(
        characters[round(share(value, low, high) * top)] if math.isfinite(value) else " " for value in values
    )
