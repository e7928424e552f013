"""Reading the outputs of steps from the device, and measuring how long the steps took."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from learner.steps.buffers import StepOutputs
from learner.training.programs.in_flight import InFlightLimiter
from learner.training.programs.oom import OomContext
from learner.training.reporting.messages import StepsDispatched
from learner.training.reporting.timing import StepTimeEstimator
from learner.util.ownership import ThreadOwned


@dataclasses.dataclass(frozen=True)
class StepsRead:
    """Dispatches that were read together.

    Attributes:
      pairs: each dispatch with its outputs on the host.
      seconds: the time of one step.
      computing: the time of one step without compiling and waiting for batches.
    """

    pairs: Sequence[tuple[StepsDispatched, StepOutputs]]
    seconds: float
    computing: float


class StepReader(ThreadOwned):
    """Read dispatches from the device. It belongs to the reporter's thread.

    The device runs behind the host, so the time of a step is measured when its values arrive: from the end of the
    previous step, or from when the loop began to prepare it.

    Args:
      estimator: receives the time of a step.
      limiter: limits the dispatches in flight.
      now: the clock of steps, in seconds.

    Attributes:
      spent: seconds so far of `train` and `valid` steps, without compiling and waiting for batches.
      reading: seconds of waiting for values from the device.
      last_end: the end of the newest step.
    """

    def __init__(self, estimator: StepTimeEstimator, limiter: InFlightLimiter, now: Callable[[], float]):
        self._estimator, self._limiter, self._now = estimator, limiter, now
        self.spent = {"train": 0.0, "valid": 0.0}
        self.reading = 0.0
        self.last_end = self._busy_until = now()

    def mark_busy(self) -> None:
        """Record that the thread was busy until now, so that steps may have ended unnoticed."""
        self._busy_until = self._now()

    def has_read(self, kind: str) -> bool:
        """Return True if steps of a kind (`train`, `valid`) were read."""
        return self._estimator.seconds(kind) is not None

    def read(self, dispatched: Sequence[StepsDispatched]) -> StepsRead:
        """Read some dispatches of one kind with one wait and one transfer."""
        began = self._now()
        values = fetch(dispatched)
        now, before = self._now(), self.last_end
        self.reading += now - began
        kind, steps = dispatched[0].kind, sum(d.count for d in dispatched)
        seconds = now - max(before, dispatched[0].time.since)
        computing = seconds - sum(d.time.overhead_after(before) for d in dispatched)
        if computing <= 0:
            # The steps ended while the loop waited for batches. Only the time of fetching them is known; it is used so
            # that no speed is undefined.
            computing = min(seconds, now - began)
        estimate = self._estimator.seconds(kind, steps)
        if self._busy_until > before and estimate is not None:
            # The steps may have ended while this thread was busy, so the estimate bounds the time.
            most = max(now - self._busy_until, estimate)
            seconds, computing = min(seconds, most), min(computing, most)
        self.last_end = now
        # Before the values are handled: the loop may dispatch the next steps meanwhile.
        self._limiter.release(len(dispatched), now)
        self._estimator.measured(kind, steps, seconds)
        self.spent[kind] += computing
        return StepsRead(list(zip(dispatched, values, strict=True)), seconds / steps, computing / steps)


def fetch(dispatched: Sequence[StepsDispatched]) -> list[StepOutputs]:
    """Return the outputs on the host. If the device is out of memory, the error names the first such split."""
    try:
        return _on_host([d.values for d in dispatched])
    except jax.errors.JaxRuntimeError:
        # One after another, in the order of dispatch: everything after the first failure fails as well.
        for d in dispatched:
            with OomContext(d.split):
                jax.device_get(d.values)
        raise


def _on_host(values: list[StepOutputs]) -> list[StepOutputs]:
    devices = next(x.devices() for x in jax.tree.leaves(values))
    # `device_get` starts the copy of each array first (16 us), but NumPy reads a CPU's arrays where they are (1 us).
    is_cpu = all(device.platform == "cpu" for device in devices)
    on_host: list[StepOutputs] = jax.tree.map(np.asarray, values) if is_cpu else jax.device_get(values)
    return on_host
