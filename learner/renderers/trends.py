"""What each metric is now, what it was at best, and how it went: in a few numbers, however long a run is."""

import dataclasses
import math
from collections.abc import Sequence

from learner.events import Event, MetricInfo, RunStarted, SplitEnded, StepsEnded
from learner.runs.history import Point

MOST = 64  # points of a curve
BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = ".:-=+*#@"  # for encodings and terminals that lack blocks; none of them has a height, all have a weight


@dataclasses.dataclass
class _Bin:
    """Neighbours that became one."""

    x: int
    total: float
    weight: int  # how many of them have a finite value
    count: int


class Curve:
    """Points of a curve: never more than `most`. Where there are more, neighbours become one, with their mean at the
    place of the last. What is not finite counts nowhere; where nothing else is, the mean is NaN.

    >>> curve = Curve(most=4)
    >>> for step in range(1, 9):
    ...     curve.add(step, float(step))
    >>> curve.points()
    [(2, 1.5), (4, 3.5), (6, 5.5), (8, 7.5)]
    >>> curve.points(2)
    [(4, 2.5), (8, 6.5)]
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._each = most, 1
        self._bins: list[_Bin] = []

    def __len__(self) -> int:
        return len(self._bins)

    def add(self, x: int, value: float) -> None:
        """The next point, to the right of those before."""
        point = _Bin(x, value, 1, 1) if math.isfinite(value) else _Bin(x, 0.0, 0, 1)
        if self._bins and self._bins[-1].count < self._each:
            self._bins[-1] = _merged([self._bins[-1], point])
            return
        if len(self._bins) == self._most:
            self._bins, self._each = self._grouped(2), 2 * self._each
        self._bins.append(point)

    def points(self, most: int | None = None) -> list[tuple[int, float]]:
        """The points, or `most` of them, made from more neighbours each."""
        bins = self._grouped(-(-len(self._bins) // most)) if most else self._bins
        return [(each.x, each.total / each.weight if each.weight else math.nan) for each in bins]

    def _grouped(self, size: int) -> list[_Bin]:
        return [_merged(self._bins[begin : begin + size]) for begin in range(0, len(self._bins), max(1, size))]


def _merged(bins: Sequence[_Bin]) -> _Bin:
    total, weight, count = (sum(getattr(each, name) for each in bins) for name in ("total", "weight", "count"))
    return _Bin(bins[-1].x, total, weight, count)


@dataclasses.dataclass
class Trend:
    """What is known of one metric: `now` is its newest value (in `train` that of the newest step, and at the end of an
    epoch that of the whole), `best` the best one of a whole split, `splits` those over the steps, and `steps` some of
    single steps.
    """

    info: MetricInfo
    now: float | None = None
    best: Point | None = None
    splits: Curve = dataclasses.field(default_factory=Curve)
    steps: Curve = dataclasses.field(default_factory=Curve)

    def add(self, epoch: int, step: int, value: float) -> None:
        """The value of a whole split."""
        self.now = value
        self.splits.add(step, value)
        higher = self.info.higher_is_better
        if higher is None or math.isnan(value):
            return
        if self.best is None or (value > float(self.best.value) if higher else value < float(self.best.value)):
            self.best = Point(epoch, step, value)

    @property
    def curve(self) -> Curve:
        """That of whole splits, or that of steps as long as there is hardly any."""
        return self.steps if len(self.splits) < 2 and len(self.steps) else self.splits


class Trends:
    """Follows the events of a run. What a step costs does not depend on how many metrics there are: their values are
    taken when they are asked for.

    >>> from pathlib import Path
    >>> trends = Trends()
    >>> loss = MetricInfo("valid", "Loss", higher_is_better=False)
    >>> trends.on_event(RunStarted(0.0, Path("runs/a"), 3, None, 45, (loss,), parameters=10))
    >>> for epoch, value in enumerate((0.5, 0.25, 0.375), 1):
    ...     trends.on_event(SplitEnded(0.0, "valid", epoch, 45 * epoch, {"Loss": value}, seconds=0.1))
    >>> (trend,) = trends.newest()
    >>> trend.now, trend.best
    (0.375, Point(epoch=2, step=90, value=0.25))
    >>> sparkline([value for _, value in trend.curve.points()])
    '█▁▅'
    """

    def __init__(self) -> None:
        self._trends: dict[str, Trend] = {}
        self._steps: StepsEnded | None = None
        self.monitor: str | None = None

    def on_event(self, event: Event) -> None:
        """Something happened."""
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
        """Of each numeric metric, in the order of the run."""
        self._take_steps()
        return list(self._trends.values())

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
            trend.steps.add(steps.step, trend.now)  # type: ignore[union-attr]

    def _of(self, split: str, name: str) -> Trend:
        return self._trends.setdefault(f"{split}/{name}", Trend(MetricInfo(split, name)))


def important(trends: Sequence[Trend], most: int, monitor: str | None) -> list[Trend]:
    """As many as there is room for, in their order: first the monitor, then the losses, then those of `train`."""
    wanted = sorted(
        range(len(trends)),
        key=lambda at: (
            trends[at].info.key != monitor,
            trends[at].info.name != "Loss",
            trends[at].info.split != "train",
        ),
    )
    return [trends[at] for at in sorted(wanted[:most])]


def sparkline(values: Sequence[float], characters: str = BLOCKS) -> str:
    """A character for each value, from the lowest of them to the highest; a blank for what is not finite.

    >>> sparkline([1.0, 4.5, 8.0, float("nan")])
    '▁▅█ '
    >>> sparkline([3.0, 3.0], ASCII)
    '++'
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    half, top = high / 2 - low / 2, len(characters) - 1  # halves: a difference may overflow
    return "".join(
        " " if not math.isfinite(value) else characters[round(((value / 2 - low / 2) / half if half else 0.5) * top)]
        for value in values
    )
