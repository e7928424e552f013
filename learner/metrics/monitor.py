"""The best value of a metric so far."""

import math

from learner.errors import LearnerError


class Monitor:
    """The best value of one metric so far, and the comparison of the newest one with it.

    Args:
      monitor: the key of the metric, such as `valid/Loss`.
      mode: `"min"` or `"max"`; None uses the metric's own direction.
      min_delta: the minimum improvement that counts.
    """

    def __init__(self, monitor: str, mode: str | None = None, min_delta: float = 0.0):
        if not isinstance(monitor, str):
            raise LearnerError(
                f"monitor is {monitor!r}; it needs a metric by key, such as 'valid/Loss'",
                code="metric-monitor-value",
                monitor=monitor,
            )
        if mode not in (None, "min", "max"):
            raise LearnerError(
                f"mode is {mode!r}; it needs 'min', 'max', or None for the metric's own direction",
                code="metric-mode-unknown",
                mode=mode,
            )
        if not (isinstance(min_delta, int | float) and 0 <= min_delta < math.inf):
            raise LearnerError(
                f"min_delta is {min_delta!r}; it needs a number that is 0 or more",
                code="metric-min-delta-value",
                min_delta=min_delta,
            )
        self.monitor, self.mode, self.min_delta = monitor, mode, float(min_delta)
        self.best: float | None = None

    def is_better(self, value: float) -> bool:
        """Return True if `value` beats the best so far, and record it. Only finite numbers do."""
        sign = -1.0 if self.mode == "max" else 1.0
        if not math.isfinite(value) or (self.best is not None and not sign * value < sign * self.best - self.min_delta):
            return False
        self.best = value
        return True
