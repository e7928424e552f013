"""Schedules of several phases: cosine with restarts, one cycle, warmup-stable-decay."""

import dataclasses
from itertools import pairwise
from typing import Literal

import jax.numpy as jnp
import optax

from learner.errors import LearnerError
from learner.schedules.base import EndingSchedule, RunLength, ScheduleFn, Unit, between
from learner.schedules.checks import UNITS, Checks
from learner.schedules.decays import Cosine


@dataclasses.dataclass(frozen=True, repr=False)
class CosineRestarts(EndingSchedule):
    """Cosine decay with warm restarts (SGDR: Loshchilov and Hutter 2017, arXiv:1608.03983; joined
    `optax.cosine_decay_schedule`). Each cycle begins with its highest rate; after the last one the rate stays `last`.

    Args:
      first: the rate of the first step, greater than 0.
      cycles: the number of cycles.
      last: the rate at the end of each cycle.
      over: the length of all cycles together; `None`: to the end of the run, or of its part of a `Sequence`.
      unit: the unit of `over`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.
      growth: the length of a cycle relative to the previous one.
      factor: the first rate of a cycle relative to that of the previous one.

    >>> waves = CosineRestarts(0.4, cycles=2, over=30, growth=2.0, factor=0.5)
    >>> [round(float(waves(step)), 4) for step in (0, 5, 10, 20, 30)]
    [0.4, 0.2, 0.2, 0.1, 0.0]
    """

    first: float
    cycles: int
    _: dataclasses.KW_ONLY
    last: float = 0.0
    over: float | None = None
    unit: Unit = "steps"
    growth: float = 1.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate, number or length."""
        checks = Checks(self).rates("last").positive("first", "growth", "factor")
        checks.one_of("unit", UNITS).lengths("over", optional=True)
        if not isinstance(self.cycles, int) or isinstance(self.cycles, bool) or self.cycles < 1:
            checks.add(f"cycles is {self.cycles!r}; it needs a whole number, 1 or more")
        checks.raise_problems()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        steps = self.steps(run)
        if steps < self.cycles:
            raise LearnerError(
                f"{self.cycles} cycles do not fit into {steps} steps; each needs one or more",
                code="schedule-cycles-too-many",
                steps=steps,
            )
        sizes = [self.growth**cycle for cycle in range(self.cycles)]
        bounds = [0]
        for cycle in range(1, self.cycles + 1):  # each has at least one step
            bound = round(steps * sum(sizes[:cycle]) / sum(sizes))
            bounds.append(min(max(bound, bounds[-1] + 1), steps - self.cycles + cycle))
        waves = []
        for cycle, (begin, end) in enumerate(pairwise(bounds)):
            first = self.first * self.factor**cycle
            wave = optax.cosine_decay_schedule(first, end - begin, alpha=self.last / first)
            waves.append(between(wave, first, end - begin, self.last))
        rate: ScheduleFn = optax.join_schedules(waves, bounds[1:-1])
        return rate


@dataclasses.dataclass(frozen=True, repr=False)
class OneCycle(EndingSchedule):
    """A rise from `peak / div` to `peak`, and a fall to `peak / div / final_div` (Smith and Topin 2019,
    arXiv:1708.07120; `optax.cosine_onecycle_schedule` and `optax.linear_onecycle_schedule`).

    Args:
      peak: the highest rate.
      over: the length; `None`: to the end of the run, or of its part of a `Sequence`.
      unit: the unit of `over`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.
      warmup: the fraction of `over` in which the rate rises, between 0 and 1.
      div: the ratio of `peak` to the first rate.
      final_div: the ratio of the first rate to the last rate.
      shape: `"cosine"`, or `"linear"`: down to the first rate at 0.85 of `over`, then to the last rate.

    >>> [f"{OneCycle(1.0, over=100)(step):.3g}" for step in (0, 30, 100)]
    ['0.04', '1', '4e-06']
    """

    peak: float
    over: float | None = None
    unit: Unit = "steps"
    warmup: float = 0.3
    div: float = 25.0
    final_div: float = 1e4
    shape: Literal["cosine", "linear"] = "cosine"

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate, number or length."""
        checks = Checks(self).rates("peak").positive("div", "final_div").one_of("unit", UNITS)
        checks.one_of("shape", ("cosine", "linear")).lengths("over", optional=True).positive("warmup")
        most = 1.0 if self.shape == "cosine" else 0.85
        if isinstance(self.warmup, int | float) and self.warmup >= most:
            checks.add(f"warmup is {self.warmup!r}; it is a part of `over`, less than {most:g}")
        checks.raise_problems()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        steps = self.steps(run)
        bounds = [0, int(self.warmup * steps), *([int(0.85 * steps)] if self.shape == "linear" else []), steps]
        if sorted(set(bounds)) != bounds:
            raise LearnerError(
                f"{steps} steps are too short for one cycle: its phases would end at {bounds[1:]}",
                code="schedule-too-short",
                steps=steps,
            )
        make = optax.cosine_onecycle_schedule if self.shape == "cosine" else optax.linear_onecycle_schedule
        cycle = make(steps, self.peak, self.warmup, div_factor=self.div, final_div_factor=self.final_div)
        return between(cycle, self.peak / self.div, steps, self.peak / self.div / self.final_div)


@dataclasses.dataclass(frozen=True, repr=False)
class WarmupStableDecay(EndingSchedule):
    """A linear warmup, a long constant phase, and a decay at the end (Hu et al. 2024, arXiv:2404.06395). A run can be
    extended from a checkpoint of the constant phase.

    Args:
      peak: the rate of the constant phase.
      warmup: the length of the warmup.
      decay: the length of the decay, at the end.
      over: the total length; `None`: to the end of the run, or of its part of a `Sequence`.
      unit: the unit of `warmup`, `decay` and `over`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the
        run.
      first: the rate of the first step.
      last: the rate after the end.
      shape: the shape of the decay: `"linear"`, `"cosine"`, or `"sqrt"`: `1 - sqrt(t / decay)` (Haegele et al. 2024,
        arXiv:2405.18392).

    >>> trapeze = WarmupStableDecay(0.4, warmup=0.1, decay=0.2, unit="fraction").resolved(num_steps=100)
    >>> [round(float(trapeze(step)), 4) for step in (0, 5, 10, 80, 90, 100)]
    [0.0, 0.2, 0.4, 0.4, 0.2, 0.0]
    """

    peak: float
    warmup: float
    decay: float
    over: float | None = None
    unit: Unit = "steps"
    first: float = 0.0
    last: float = 0.0
    shape: Literal["linear", "cosine", "sqrt"] = "linear"

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate or length."""
        checks = Checks(self).rates("first", "last").positive("peak").one_of("unit", UNITS)
        checks.one_of("shape", ("linear", "cosine", "sqrt")).lengths("warmup", "decay").lengths("over", optional=True)
        checks.raise_problems()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        steps = self.steps(run)
        warmup, decay = (run.in_steps(getattr(self, name), self.unit, name) for name in ("warmup", "decay"))
        if warmup + decay > steps:
            raise LearnerError(
                f"a warm-up of {warmup} steps and a decay of {decay} do not fit into its {steps} steps",
                code="schedule-too-short",
                warmup=warmup,
                decay=decay,
                steps=steps,
            )
        rising = between(optax.linear_schedule(self.first, self.peak, warmup), self.first, warmup, self.peak)
        falling = between(self._falling(decay), self.peak, decay, self.last)
        phases = [rising, optax.constant_schedule(self.peak), falling]
        rate: ScheduleFn = optax.join_schedules(phases, [warmup, steps - decay])
        return rate

    def _falling(self, decay: int) -> ScheduleFn:
        falling: ScheduleFn = optax.linear_schedule(self.peak, self.last, decay)
        if self.shape == "cosine":
            falling = optax.cosine_decay_schedule(self.peak, decay, alpha=self.last / self.peak)
        elif self.shape == "sqrt":
            falling = lambda step: self.peak + (self.last - self.peak) * jnp.sqrt(step / decay)  # noqa: E731
        return falling


@dataclasses.dataclass(frozen=True, repr=False)
class WarmupCosine(EndingSchedule):
    """A linear warmup and a cosine decay to the end (`optax.warmup_cosine_decay_schedule`).

    Args:
      peak: the rate after the warmup, greater than 0.
      warmup: the length of the warmup; 0: none.
      over: the total length; `None`: to the end of the run, or of its part of a `Sequence`.
      unit: the unit of `warmup` and `over`: `"steps"` of the optimizer, `"epochs"`, or a `"fraction"` of the run.
      first: the rate of the first step.
      last: the rate after the end.

    >>> wave = WarmupCosine(0.4, warmup=0.1, unit="fraction").resolved(num_steps=100)
    >>> [round(float(wave(step)), 4) for step in (0, 5, 10, 55, 100)]
    [0.0, 0.2, 0.4, 0.2, 0.0]
    """

    peak: float
    warmup: float
    _: dataclasses.KW_ONLY
    over: float | None = None
    unit: Unit = "steps"
    first: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        """Raise `LearnerError` for a wrong learning rate or length."""
        checks = Checks(self).rates("first", "last").positive("peak").one_of("unit", UNITS)
        if self.warmup != 0:  # without a warmup it is a cosine
            checks.lengths("warmup")
        checks.lengths("over", optional=True).raise_problems()

    def function(self, run: RunLength) -> ScheduleFn:
        """See `Schedule`."""
        steps = self.steps(run)
        warmup = run.in_steps(self.warmup, self.unit, "warmup") if self.warmup else 0
        if not warmup or warmup == steps == 1:  # one step, to which a part of the run was rounded up, has room for none
            return Cosine(self.peak, last=self.last, over=steps).function(run)
        if warmup >= steps:
            raise LearnerError(
                f"a warm-up of {warmup} steps leaves no step of its {steps} for the decay",
                code="schedule-too-short",
                warmup=warmup,
                steps=steps,
            )
        whole = WarmupStableDecay(
            self.peak, warmup, steps - warmup, steps, first=self.first, last=self.last, shape="cosine"
        )
        return whole.function(run)
