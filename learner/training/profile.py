"""A profile of some steps: where their time goes, and the bottleneck."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.training.trace import Operations
from learner.util.fragments import fragment, preformatted
from learner.util.text import duration

SHOWN = 5
WHAT_HELPS = {
    "device": "computing is the largest part: lower precision, cheaper operations or a smaller model make it less",
    "data": "steps wait for batches: more num_workers or prefetch, cheaper items, or data that fits into memory",
    "host": "the device waits for Python between dispatches: larger batches, or more steps in one dispatch",
    "listeners": "metrics on the host, files and loggers cannot keep up: log every few steps, or fewer metrics",
}
EXCHANGES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective", "psum", "all_gather", "ppermute")
"""Prefixes of the names of operations in which devices exchange arrays."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """The profile of some steps. Its times add up to `seconds`.

    Attributes:
      first, last: optimizer steps after which it begins and ends.
      dispatches: the number of dispatches.
      seconds: the duration of the steps, without the time in which the host compiled programs.
      device: seconds in which the device computed.
      data: seconds in which the device was idle because the next batch was not ready.
      listeners: seconds in which the device was idle because the reporter (metrics on the host, files, listeners) was
        behind.
      host: seconds in which the device was idle because the next dispatch was not ready.
      compiling: additional seconds for compiling programs first used in these steps.
      operations: the operations of the device, the longest first.
      directory: the directory of the trace.

    >>> print(Profile(10, 20, 1, 0.5, 0.4, 0.075, 0.0, 0.025))  # doctest: +ELLIPSIS
    steps 11 to 20: 50 ms each, 10 in one dispatch
      device computes        40 ms  80 %
      waits for data        7.5 ms  15 %
      waits for host        2.5 ms   5 %
      waits for listeners     0 ms   0 %
    device: computing is the largest part: ...
    """

    first: int
    last: int
    dispatches: int
    seconds: float
    device: float
    data: float
    listeners: float
    host: float
    compiling: float = 0.0
    operations: tuple[Operations, ...] = ()
    directory: Path | None = None

    @property
    def bottleneck(self) -> str:
        """Return the part that takes the most time: `device`, `data`, `host` or `listeners`."""
        return max(WHAT_HELPS, key=lambda name: getattr(self, name))

    @property
    def exchanging(self) -> float:
        """Return the fraction of the operations' time in which devices exchange arrays, or wait for each other."""
        total = sum(each.seconds for each in self.operations)
        return sum(each.seconds for each in self.operations if each.name.startswith(EXCHANGES)) / (total or 1.0)

    @property
    def _help(self) -> str:
        if self.bottleneck != "device" or self.exchanging < 1 / 3:
            return WHAT_HELPS[self.bottleneck]
        share = f"{self.exchanging:.0%}".replace("%", " %")
        return f"the devices exchange arrays in {share} of their time: larger batches, or fewer devices make it less"

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        return fragment(preformatted(str(self).splitlines()))

    def __str__(self) -> str:
        steps = self.last - self.first
        parts = {"device computes": self.device, "waits for data": self.data, "waits for host": self.host}
        parts["waits for listeners"] = self.listeners
        each = "one dispatch" if self.dispatches == 1 else f"{self.dispatches} dispatches"
        lines = [f"steps {self.first + 1} to {self.last}: {_time(self.seconds / steps)} each, {steps} in {each}"]
        for name, seconds in parts.items():
            lines.append(f"  {name:<19} {_time(seconds / steps):>8} {seconds / self.seconds:>4.0%}".replace("%", " %"))
        if self.compiling:
            lines.append(f"  compiling besides: {_time(self.compiling)} in all")
        lines.append(f"{self.bottleneck}: {self._help}")
        if self.operations:
            lines.append("operations of the device, per step:")
        total = sum(each.seconds for each in self.operations) or 1.0
        for each_kind in self.operations[:SHOWN]:
            share = f"{each_kind.seconds / total:.0%}".replace("%", " %")
            lines.append(f"  {each_kind.name[:24]:<24} {_time(each_kind.seconds / steps):>8} {share:>5}")
        if self.directory is not None:
            lines.append(f"trace: {self.directory} (TensorBoard; ui.perfetto.dev takes its perfetto_trace.json.gz)")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `profile.json`; seconds are totals over all steps."""
        content = dataclasses.asdict(self) | {"bottleneck": self.bottleneck}
        del content["directory"]
        return content


def split_of(
    seconds: float, busy: float | None, data: float, blocked: float, handling: float, reading: float
) -> dict[str, float]:
    """Attribute the time in which the device did not compute to data, listeners and host.

    Args:
      seconds: the total time; the other arguments are seconds, too.
      busy: the time in which the device computed; `None` if unknown: then the time that the host waited for it.
      data: the time in which the device was idle, waiting for batches.
      blocked: the time in which the loop waited for a free dispatch slot.
      handling: the time in which the reporter handled values.
      reading: the time in which the reporter waited for the device.

    >>> split_of(10.0, busy=6.0, data=1.0, blocked=4.0, handling=2.0, reading=6.0)
    {'device': 6.0, 'data': 1.0, 'listeners': 1.0, 'host': 2.0}
    """
    behind = blocked * handling / max(handling + reading, 1e-9)
    device = min(seconds, blocked - behind if busy is None else busy)
    left = seconds - device
    data = min(data, left)
    listeners = min(behind, left - data)
    return {"device": device, "data": data, "listeners": listeners, "host": left - data - listeners}


@dataclasses.dataclass(frozen=True)
class Window:
    """A window of steps to profile: after `first` up to `last`, or about a second of steps.

    Attributes:
      first, last: numbers of optimizer steps; see `check_steps`.
      directory: the directory for the trace; `None`: inside of the run's directory.
      complete: called with the profile.
      failed: called with the reason if there is no profile.
    """

    first: int
    last: int | None
    directory: Path | None = None
    complete: Callable[[Profile], None] = lambda profile: None
    failed: Callable[[str], None] = lambda text: None

    def room(self, step: int) -> int | None:
        """Return the largest number of steps to dispatch at `step`, so that the trace begins and ends between
        dispatches. It is the same in all processes.
        """
        if step < self.first:
            return self.first - step
        return None if self.last is None or step >= self.last else self.last - step


def check_steps(steps: Any) -> tuple[int, int | None]:
    """Return the steps between which to profile.

    Raises:
      LearnerError: they are not two numbers in order.
    """
    given = list(steps) if isinstance(steps, tuple | list) else []
    first, last = given if len(given) == 2 else (None, None)
    if type(first) is not int or first < 0 or not (last is None or (type(last) is int and last > first)):
        raise LearnerError(
            f"profile got steps={steps!r}; it needs two numbers of steps, such as (10, 20) for the steps 11 to 20, or "
            "(10, None) for about a second of steps",
            code="profile-steps-value",
            steps=steps,
        )
    return first, last


def _time(seconds: float) -> str:
    if seconds >= 1:
        return duration(seconds)
    return f"{seconds * 1e6:.3g} us" if 0 < seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
