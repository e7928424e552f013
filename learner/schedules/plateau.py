"""A stateful scheduler, which monitors the values of validations and lowers the learning rate."""

import copy
import math
from collections.abc import Mapping
from typing import Any

from learner.errors import LearnerError
from learner.metrics.monitor import Monitor
from learner.util.json_values import decode
from learner.util.number_checks import is_int


class ReduceOnPlateau:
    """A scheduler that lowers the learning rate when a metric stops improving.

    After more than `patience` validations without improvement the rate is multiplied by `factor`. Counting continues
    after another `cooldown` validations.

    Args:
      lr: the initial rate.
      monitor: the key of a metric, such as `valid/Loss`, or `custom/NAME` for a number that a hook returns as `NAME`.
      factor: the factor of a reduction, between 0 and 1.
      patience: the number of validations without improvement to allow, 0 or more.
      mode: `"min"` or `"max"`; `None`: the metric's own direction.
      min_delta: the minimum improvement that counts.
      cooldown: the number of validations after a reduction that are not counted.
      min_lr: the minimum rate.

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
        """Return a scheduler with the same settings and this initial rate."""
        other = copy.deepcopy(self)
        other._lr = float(lr)
        return other

    @property
    def monitor(self) -> Monitor:
        """The monitor of the metric."""
        return self._best

    @property
    def lr(self) -> float:
        """The current learning rate."""
        return self._lr

    def update(self, values: Mapping[str, Any]) -> float:
        """Return the learning rate after a validation. Without a new value of the metric it does not change."""
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
        return {"best": self._best.best, "rate": self._lr, "without": self._without, "resting": self._resting}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `get_state`."""
        self._best.best, self._lr = decode(state["best"]), state["rate"]
        self._without, self._resting = state["without"], state["resting"]
