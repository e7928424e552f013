"""A scheduler with a state, which follows the values of validations and lowers the learning rate."""

import copy
import math
from collections.abc import Mapping
from typing import Any

from learner.errors import LearnerError
from learner.metrics.monitor import Monitor
from learner.util.json_values import decode
from learner.util.number_checks import is_int


class ReduceOnPlateau:
    """A scheduler that lowers the learning rate when a metric stops getting better.

    After more than `patience` validations without a better value it is multiplied by `factor`; then `cooldown`
    validations pass before counting continues.

    Args:
      lr: the first rate.
      monitor: a metric by key, such as `valid/Loss`.
      factor: between 0 and 1.
      patience: how many validations without a better value are allowed, 0 or more.
      mode: `"min"` or `"max"`; `None`: the metric's own direction.
      min_delta: how much better a value must be to count.
      cooldown: validations after a reduction in which none is counted.
      min_lr: the rate is not lowered below this.

    >>> plateau = ReduceOnPlateau(0.1, "valid/Loss", factor=0.5, patience=1)
    >>> [plateau.update({"valid/Loss": loss}) for loss in (1.0, 1.0, 1.0, 0.5)]
    [0.1, 0.1, 0.05, 0.05]
    """

    def __init__(
        self,
        lr: float,
        monitor: str = "valid/Loss",
        factor: float = 0.1,
        patience: int = 10,
        *,
        mode: str | None = None,
        min_delta: float = 0.0,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ):
        if isinstance(lr, bool) or not (isinstance(lr, int | float) and 0 < lr < math.inf):
            raise LearnerError(
                f"lr of ReduceOnPlateau is {lr!r}; it needs a positive number", code="schedule-plateau-lr"
            )
        if not (isinstance(factor, int | float) and 0 < factor < 1):
            raise LearnerError(
                f"factor of ReduceOnPlateau is {factor!r}; it needs a number between 0 and 1",
                code="schedule-plateau-factor",
                factor=factor,
            )
        for name, value in (("patience", patience), ("cooldown", cooldown)):
            if not is_int(value) or value < 0:
                raise LearnerError(
                    f"{name} of ReduceOnPlateau is {value!r}; it needs a whole number, 0 or more",
                    code="schedule-plateau-number",
                    name=name,
                    value=value,
                )
        if not (isinstance(min_lr, int | float) and 0 <= min_lr <= lr):
            raise LearnerError(
                f"min_lr of ReduceOnPlateau is {min_lr!r}; it needs a number from 0 to lr, which is {lr!r}",
                code="schedule-plateau-min-lr",
            )
        self._best = Monitor(monitor, mode, min_delta)
        self._lr, self._factor, self._patience = float(lr), float(factor), patience
        self._cooldown, self._min_lr = cooldown, float(min_lr)
        self._without, self._resting = 0, 0

    def __repr__(self) -> str:
        """Show the current learning rate and the monitored metric."""
        return f"ReduceOnPlateau(lr={self._lr:g}, monitor={self._best.monitor!r})"

    @property
    def settings(self) -> dict[str, float | str]:
        """The arguments, except for `lr`, which changes.

        >>> ReduceOnPlateau(0.1, factor=0.5).settings["factor"]
        0.5
        """
        numbers = {"factor": self._factor, "patience": self._patience, "cooldown": self._cooldown}
        return {**numbers, "min_lr": self._min_lr, "monitor": self._best.monitor, "min_delta": self._best.min_delta}

    def with_lr(self, lr: float) -> "ReduceOnPlateau":
        """Return a scheduler with the same settings and this first rate."""
        other = copy.deepcopy(self)
        other._lr = float(lr)
        return other

    @property
    def monitor(self) -> Monitor:
        """The monitor of the metric that it follows."""
        return self._best

    @property
    def lr(self) -> float:
        """The current learning rate."""
        return self._lr

    def update(self, values: Mapping[str, Any]) -> float:
        """Return the learning rate after a validation. Without a new value of the metric nothing changes."""
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
        """Return the state for a checkpoint, as JSON can hold it."""
        return {"best": self._best.best, "rate": self._lr, "without": self._without, "resting": self._resting}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        self._best.best, self._lr = decode(state["best"]), state["rate"]
        self._without, self._resting = state["without"], state["resting"]
