"""When a run stops before its end."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

from learner.errors import LearnerError
from learner.metrics.monitor import Monitor
from learner.util.json_values import decode


class MetricEarlyStopping:
    """Stops when a metric has not become better for `patience` validations in a row.

    Args:
      monitor: a metric by key, such as `valid/Loss`.
      mode: `"min"` or `"max"`; `None`: the metric's own direction.
      patience: how many validations without a better value are allowed, 1 or more.
      min_delta: how much better a value must be to count, in the metric's unit.
      warmup: how many validations to let pass before counting.

    >>> stopping = MetricEarlyStopping("valid/Loss", patience=2)
    >>> [stopping.update({"valid/Loss": loss}) for loss in (1.0, 0.5, 0.6, 0.5)]
    [None, None, None, 'valid/Loss has not improved on 0.5 for 2 validations']
    """

    def __init__(
        self,
        monitor: str = "valid/Loss",
        mode: str | None = None,
        patience: int = 5,
        min_delta: float = 0.0,
        warmup: int = 0,
    ):
        for name, value, least in (("patience", patience, 1), ("warmup", warmup, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise LearnerError(
                    f"{name} of MetricEarlyStopping is {value!r}; it needs a whole number, {least} or more"
                )
        self._best = Monitor(monitor, mode, min_delta)
        self.patience, self.warmup = patience, warmup
        self._without, self._seen = 0, 0

    @property
    def monitor(self) -> Monitor:
        """What it follows."""
        return self._best

    def update(self, values: Mapping[str, Any]) -> str | None:
        """After a validation: why to stop, or `None`. Without a new value of the metric nothing changes."""
        if self._best.monitor not in values:
            return self.reason
        self._seen += 1
        better = self._best.is_better(float(values[self._best.monitor]))
        if self._seen > self.warmup:
            self._without = 0 if better else self._without + 1
        return self.reason

    @property
    def reason(self) -> str | None:
        """Why to stop, as things stand."""
        if self._without < self.patience:
            return None
        best = "any value" if self._best.best is None else f"{self._best.best:.6g}"
        return f"{self._best.monitor} has not improved on {best} for {self._without} validations"

    def get_state(self) -> dict[str, Any]:
        """For a checkpoint, as JSON can hold it."""
        monitor = self._best.monitor
        return {"monitor": monitor, "best": self._best.best, "without": self._without, "seen": self._seen}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where `get_state` was."""
        self._best.best, self._without, self._seen = decode(state["best"]), state["without"], state["seen"]


@dataclasses.dataclass
class StopRequest:
    """What signals ask of a run, from before it begins to its end.

    Attributes:
      reason: why it is to stop, or `None`.
      save: whether a checkpoint is wanted at the next opportunity.
    """

    reason: str | None = None
    save: bool = False

    def to_stop(self, reason: str) -> None:
        """After the dispatch under way."""
        self.reason = reason

    def to_save(self) -> None:
        """And to go on."""
        self.save = True


class Interrupter:
    """Stops a run from elsewhere: another thread, a hook, a web server.

    >>> interrupter = Interrupter()
    >>> interrupter.stop("that is enough")
    >>> interrupter.reason
    'that is enough'
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None

    def stop(self, reason: str = "interrupted") -> None:
        """Ends `fit` after the dispatch under way. The first reason given is kept. May be called from any thread."""
        with self._lock:
            self._reason = self._reason or reason

    @property
    def reason(self) -> str | None:
        """Why to stop, or `None`."""
        return self._reason
