"""A stateful scheduler, which monitors the values of validations and lowers the learning rate."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

from learner.errors import LearnerError
from learner.metrics.monitor import Monitor
from learner.schedules.resolve import text_of
from learner.util.json_values import decode
from learner.util.number_checks import check_int


class ReduceOnPlateau:
    """A scheduler that lowers the learning rate when a metric stops improving.

    After more than `patience` validations in a row without improvement the rate is multiplied by `factor`. Counting
    continues after another `cooldown` validations.

    Args:
      lr: the initial rate; or a schedule, a function of the optimizer step, whose rates are multiplied by a factor that
        begins with 1 and is lowered. After a warmup, for example, the rate follows the metric.
      monitor: the key of a metric, such as `valid/Loss`, or `custom/NAME` for a number that a hook returns as `NAME`.
      factor: the factor of a reduction, between 0 and 1.
      patience: the number of validations (or numbers of the hook) in a row without improvement to allow, 0 or more:
        with 2, the third one lowers the rate. `MetricEarlyStopping` acts at the second one.
      mode: `"min"` or `"max"`; `None`: the metric's own direction.
      min_delta: the minimum improvement that counts.
      cooldown: the number of validations after a reduction that are not counted.
      min_lr: the minimum rate, or with a schedule the minimum factor.

    Attributes:
      schedule: the schedule of the learning rate, if any.

    >>> plateau = ReduceOnPlateau(0.1, "valid/Loss", factor=0.5, patience=1)
    >>> [plateau.update({"valid/Loss": loss}) for loss in (1.0, 1.0, 1.0, 0.5)]
    [0.1, 0.1, 0.05, 0.05]
    >>> from learner.schedules import Linear
    >>> warmup = ReduceOnPlateau(Linear(0.0, 0.1, over=500), factor=0.5, patience=0)
    >>> [warmup.update({"valid/Loss": loss}) for loss in (1.0, 1.0)]
    [1.0, 0.5]
    """

    def __init__(
        self,
        lr: float | Callable[[Any], Any],
        monitor: str = "valid/Loss",
        factor: float = 0.1,
        patience: int = 10,
        *,
        mode: str | None = None,
        min_delta: float = 0.0,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ):
        first = 1.0 if callable(lr) else lr
        if isinstance(first, bool) or not (isinstance(first, int | float) and 0 < first < math.inf):
            raise LearnerError(
                f"lr of ReduceOnPlateau is {lr!r}; it needs a positive number or a schedule", code="schedule-plateau-lr"
            )
        if not (isinstance(factor, int | float) and 0 < factor < 1):
            raise LearnerError(
                f"factor of ReduceOnPlateau is {factor!r}; it needs a number between 0 and 1",
                code="schedule-plateau-factor",
                factor=factor,
            )
        patience, cooldown = (
            check_int(name, value, least=0, of="ReduceOnPlateau", code="schedule-plateau-number")
            for name, value in (("patience", patience), ("cooldown", cooldown))
        )
        if not (isinstance(min_lr, int | float) and 0 <= min_lr <= first):
            most = "1, as it limits the factor of the schedule" if callable(lr) else f"lr, which is {lr!r}"
            raise LearnerError(
                f"min_lr of ReduceOnPlateau is {min_lr!r}; it needs a number from 0 to {most}",
                code="schedule-plateau-min-lr",
            )
        self._best = Monitor(monitor, mode, min_delta)
        self.schedule = lr if callable(lr) else None
        self._lr = self._initial = float(first)
        self._factor, self._patience = float(factor), patience
        self._cooldown, self._min_lr = cooldown, float(min_lr)
        self._without, self._resting = 0, 0

    def __repr__(self) -> str:
        """Show the schedule or the current learning rate, and the monitored metric."""
        lr = f"{self._lr:g}" if self.schedule is None else text_of(self.schedule)
        return f"ReduceOnPlateau(lr={lr}, monitor={self._best.monitor!r})"

    @property
    def settings(self) -> dict[str, float | str]:
        """The arguments, except for `lr`, which changes.

        >>> ReduceOnPlateau(0.1, factor=0.5).settings["factor"]
        0.5
        """
        numbers = {"factor": self._factor, "patience": self._patience, "cooldown": self._cooldown}
        kind = {} if self.schedule is None else {"lowers": self.quantity}  # older runs had no schedule
        best = self._best
        return {**numbers, "min_lr": self._min_lr, "monitor": best.monitor, "min_delta": best.min_delta, **kind}

    def with_lr(self, lr: float) -> "ReduceOnPlateau":
        """Return a scheduler with the same settings and this initial rate, or with a schedule this initial factor."""
        other = copy.deepcopy(self)
        other._lr = other._initial = float(lr)
        return other

    @property
    def monitor(self) -> Monitor:
        """The monitor of the metric."""
        return self._best

    @property
    def lr(self) -> float:
        """The current learning rate, or with a schedule its current factor."""
        return self._lr

    @property
    def quantity(self) -> str:
        """The quantity that it lowers, for messages: the rate, or with a schedule its factor."""
        return "learning rate" if self.schedule is None else "factor of the learning rate"

    def update(self, values: Mapping[str, Any]) -> float:
        """Return `lr` after a validation. Without a new value of the metric it does not change."""
        if self._best.monitor not in values:
            return self._lr
        if self._best.is_better(float(values[self._best.monitor])):
            self._without = 0
        elif self._resting == 0:
            self._without += 1
        self._resting = max(0, self._resting - 1)
        if self._without > self._patience:
            self._lr = max(self._lr * self._factor, self._min_lr)
            self._without, self._resting = 0, self._cooldown
        return self._lr

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as JSON-compatible values."""
        counts = {"without": self._without, "resting": self._resting}
        rates = {"rate": self._lr, "initial": self._initial}
        return {"best": self._best.best, **rates, **counts, "is_factor": self.schedule is not None}

    def has_rate_of(self, state: Mapping[str, Any]) -> bool:
        """Return True if the rate in a state of `get_state` is of the kind of `lr`: a learning rate, or a factor."""
        return bool(state.get("is_factor", False)) == (self.schedule is not None)

    def rate_after(self, state: Mapping[str, Any]) -> float:
        """Return `lr` after `set_state` with a state of `get_state`. If the initial rate is another one now, the rate
        changes in proportion. A rate of the other kind is not restored; see `has_rate_of`.

        >>> earlier = ReduceOnPlateau(0.1, factor=0.5, patience=0)
        >>> rates = [earlier.update({"valid/Loss": 1.0}) for _ in range(2)]
        >>> ReduceOnPlateau(0.02).rate_after(earlier.get_state())
        0.01
        """
        if not self.has_rate_of(state):
            return self._lr
        rate, initial = float(state["rate"]), float(state.get("initial", 0.0))  # older states have no initial rate
        if self.schedule is not None or initial in (0.0, self._initial):  # a factor always begins with the same number
            return rate
        return max(rate * (self._initial / initial), self._min_lr)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`; see `rate_after`."""
        self._best.best, self._without, self._resting = decode(state["best"]), state["without"], state["resting"]
        self._lr = self.rate_after(state)
