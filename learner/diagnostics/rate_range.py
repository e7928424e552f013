"""The range test: the loss while the learning rate rises, step by step (Smith 2017, arXiv:1506.01186, section 3.3)."""

import dataclasses
import functools

import numpy as np

from learner.errors import one_error
from learner.events import Event, Listener, StepsEnded
from learner.runs.thinning import smoothed
from learner.training.stopping import Interrupter
from learner.util.fragments import figures, fragment, preformatted
from learner.util.number_checks import is_finite
from learner.util.text import aligned, short

ROWS = 12  # of the table
DIVERGES = "the loss diverges"


@dataclasses.dataclass(frozen=True)
class RangeTest:
    """The result of a range test, which `Learner.find_lr` returns. `print` shows it as a table.

    Attributes:
      rates: float64 `[steps]`, the rate of each step.
      losses: float64 `[steps]`, the loss of each step, before its update.
      planned: the planned number of steps; fewer ran if the loss diverged.
      smoothing: the smoothing of `smoothed`, from 0 (none) to below 1.

    >>> rates = np.geomspace(1e-4, 1.0, 5)
    >>> found = RangeTest(rates, np.array([2.0, 1.9, 0.9, 0.4, 9.0]), planned=5, smoothing=0.0)
    >>> f"{found.steepest:.2g} {found.tenth:.2g}"
    '0.01 0.01'
    """

    rates: np.ndarray
    losses: np.ndarray
    planned: int
    smoothing: float = 0.8

    @functools.cached_property
    def smoothed(self) -> np.ndarray:
        """Means of the losses up to each step, float64 `[steps]`. Each step counts `smoothing` times as much as the
        next one.
        """
        return smoothed(self.losses, self.smoothing)

    @property
    def lowest(self) -> float:
        """The rate of the lowest smoothed loss."""
        return float(self.rates[self._lowest])

    @property
    def steepest(self) -> float | None:
        """The rate at which the smoothed loss falls fastest relative to the rate, between the last rate at which it has
        hardly fallen and that of the lowest loss; None if it does not fall.
        """
        end = self._lowest + 1
        if end < 2:
            return None
        slopes = np.gradient(self.smoothed[:end], np.log(self.rates[:end]))
        # Means over a hundredth of the rates: with many steps, neighbours differ by noise alone.
        width = max(1, len(self.rates) // 100)
        slopes = np.convolve(slopes, np.full(width, 1 / width), "same")
        # Without the lowest loss: beyond it the loss rises, so the slope towards it alone would be misleading.
        first = self._fallen
        before = slopes[first : end - 1]
        index = first + (int(np.argmin(before)) if len(before) else 0)
        return float(self.rates[index]) if slopes[index] < 0 else None

    @property
    def tenth(self) -> float | None:
        """A tenth of the rate of the lowest smoothed loss, some distance below the rates at which the loss rises; None
        if the loss does not fall.
        """
        return None if self.steepest is None else self.lowest / 10

    @property
    def suggestion(self) -> float | None:
        """The suggested learning rate: `steepest`; None if the loss does not fall at any rate."""
        return self.steepest

    @property
    def _begin(self) -> int:
        """The index of the first smoothed loss to use."""
        return min(warmup_steps(self.smoothing), len(self.losses) - 1)

    @property
    def _fallen(self) -> int:
        """The last index before the lowest loss at which the loss has not fallen by a tenth of its whole fall. Before
        it, the loss differs by the noise of the batches, which may fall faster.
        """
        losses = self.smoothed[self._begin : self._lowest]
        if not len(losses):
            return self._begin
        level = float(np.median(losses[: max(1, len(losses) // 4)]))
        (high,) = np.nonzero(losses > level - 0.1 * (level - self.smoothed[self._lowest]))
        return self._begin + (int(high[-1]) if len(high) else 0)

    @property
    def _lowest(self) -> int:
        return self._begin + int(np.argmin(self.smoothed[self._begin :]))

    def __str__(self) -> str:
        """Return a table of some of the steps, and the suggestion."""
        count = len(self.rates)
        places = sorted({round(i * (count - 1) / (ROWS - 1)) for i in range(ROWS)})
        rows = [
            [str(i + 1), f"{self.rates[i]:.3g}", short(float(self.losses[i])), short(float(self.smoothed[i]))]
            for i in places
        ]
        lines = aligned([["step", "rate", "loss", "smoothed"], *rows])
        if count < self.planned:
            lines.append(f"ended after {count} of {self.planned} steps: {DIVERGES}")
        return "\n".join([*lines, "", *self._suggested()])

    def _repr_html_(self) -> str:
        """Return the table for a notebook, and the losses over the steps."""
        curves = {"each step": self.losses, "smoothed": self.smoothed}
        points = {name: list(enumerate(values.tolist(), 1)) for name, values in curves.items()}
        return fragment(preformatted(str(self).splitlines()), figures({"loss": points}))

    def _suggested(self) -> list[str]:
        if self.steepest is None or self.tenth is None:
            return [
                "the loss does not fall at any of these rates: try a wider range, or look at the model and the data"
            ]
        return aligned(
            [
                ["the loss falls fastest at the rate", f"{self.steepest:.2g}"],
                ["a tenth of the rate of the lowest loss", f"{self.tenth:.2g}"],
            ]
        )


def warmup_steps(smoothing: float) -> int:
    """Return the number of initial smoothed losses that are means of too few values.

    >>> warmup_steps(0.0), warmup_steps(0.8), warmup_steps(0.9)
    (0, 4, 9)
    """
    return round(1 / (1 - smoothing)) - 1


class RangeTestListener(Listener):
    """A listener that records the losses of a run and stops it when they diverge.

    Args:
      interrupter: the interrupter of the run.
      smoothing: the smoothing of the monitored losses.
      diverges: the run ends when the smoothed loss reaches this multiple of the lowest one, or is not finite.
    """

    def __init__(self, interrupter: Interrupter, smoothing: float, diverges: float):
        self._interrupter, self._smoothing, self._diverges = interrupter, smoothing, diverges
        self._losses: list[float] = []

    def on_event(self, event: Event) -> None:
        """See `Listener`."""
        if isinstance(event, StepsEnded) and event.split == "train":
            self._losses += event.values["Loss"].tolist()
            if diverged_after(np.array(self._losses), self._smoothing, self._diverges) is not None:
                self._interrupter.stop(DIVERGES)

    @property
    def losses(self) -> np.ndarray:
        """The losses up to the step at which they diverged, float64 `[steps]`. That step is included if its loss is
        finite.
        """
        losses = np.array(self._losses, np.float64)
        end = diverged_after(losses, self._smoothing, self._diverges)
        return losses if end is None else losses[:end]


def diverged_after(losses: np.ndarray, smoothing: float, diverges: float) -> int | None:
    """Return the number of steps after which losses diverged, or None; see `Learner.find_lr`.

    >>> diverged_after(np.array([2.0, 1.0, 3.0, 5.0, 6.0]), smoothing=0.0, diverges=4.0)
    4
    """
    finite = np.isfinite(losses)
    if not finite.all():
        losses = losses[: int(np.argmin(finite))]
        return diverged_after(losses, smoothing, diverges) or len(losses)
    begin = warmup_steps(smoothing)
    means = smoothed(losses, smoothing)[begin:]
    best = np.minimum.accumulate(means)
    over = means > best + (diverges - 1) * np.abs(best)
    return begin + int(np.argmax(over)) + 1 if over.any() else None


def check_range(lowest: float, highest: float, steps: int, smoothing: float, diverges: float) -> None:
    """Raise one `LearnerError` with all problems of the arguments of `Learner.find_lr`."""
    problems = []
    if not is_finite(lowest) or lowest <= 0:
        problems.append(f"lowest is {lowest!r}; it needs a rate greater than 0")
    if not is_finite(highest) or (is_finite(lowest) and highest <= lowest):
        problems.append(f"highest is {highest!r}; it needs a rate greater than the lowest, {lowest!r}")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 2:
        problems.append(f"steps is {steps!r}; it needs a whole number, 2 or more")
    if not is_finite(smoothing) or not 0 <= smoothing < 1:
        problems.append(f"smoothing is {smoothing!r}; it needs a number from 0 to below 1")
    if not is_finite(diverges) or diverges <= 1:
        problems.append(f"diverges is {diverges!r}; it needs a number greater than 1")
    if problems:
        raise one_error(problems, "the range of rates cannot be tested", code="learner-find-lr-arguments")
