"""Selection among the members of a population by their values: which members end, and which copy others."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from learner.errors import Problem
from learner.metrics.monitor import Monitor
from learner.training.valid_schedule import ValidPeriod, ValidSchedule  # noqa: F401 (the first is of the doctest)
from learner.util.number_checks import is_finite, is_int


@dataclasses.dataclass(frozen=True)
class Selection:
    """A ranking of the members every few epochs, except after the last one.

    Args:
      monitor: the metric that ranks them.
      every_epochs: the number of epochs between two rankings, 1 or more.
    """

    monitor: Monitor
    every_epochs: int

    @property
    def name(self) -> str:
        """The method of the builder."""
        return type(self).__name__.lower()

    @property
    def settings(self) -> str:
        """Return the arguments as a text, without the seed, which is the run's.

        >>> Exploit(Monitor("valid/Loss", "min"), 1, 0.25, (0.5, 2.0)).settings
        'valid/Loss (min), every_epochs=1, part=0.25, factors=[0.5, 2]'
        """
        mode = f" ({self.monitor.mode})" if self.monitor.mode else ""
        fields = [field.name for field in dataclasses.fields(self) if field.name not in ("monitor", "seed")]
        numbers = [f"{name}={_numbers(getattr(self, name))}" for name in fields]
        return ", ".join([self.monitor.monitor + mode, *numbers])

    def problems(self) -> list[str]:
        """Return everything that is wrong with the arguments."""
        if is_int(self.every_epochs) and self.every_epochs >= 1:
            return []
        text = f"every_epochs of {self.name} is {self.every_epochs!r}; it needs a whole number, 1 or more"
        return [Problem(text, code="population-selection-epochs", name=self.name)]

    def _fraction_problem(self, name: str, value: Any, least: str) -> list[str]:
        """Return the problem of an argument that needs a number between 0 and 1."""
        if is_finite(value) and 0 < value < 1:
            return []
        text = f"{name} of {self.name} is {value!r}; it needs a number between 0 and 1, such as {least}"
        return [Problem(text, code="population-selection-fraction", name=name)]

    def is_due(self, epoch: int) -> bool:
        """Return True if members are ranked at the end of an epoch, unless it is the last one."""
        return epoch % self.every_epochs == 0

    def is_ever_due(self, schedule: ValidSchedule, steps: int, steps_per_epoch: int) -> bool:
        """Return True if an epoch before the last one ends with a ranking and a value of the monitored metric.

        Args:
          schedule: the schedule of the validations.
          steps: the steps of the run.
          steps_per_epoch: the steps of an epoch.

        >>> schedule = ValidSchedule({"valid": ValidPeriod(epochs=2)}, num_epochs=4)
        >>> [Selection(Monitor("valid/Loss"), every).is_ever_due(schedule, 40, 10) for every in (1, 2, 3, 4)]
        [True, True, False, False]
        """
        split = self.monitor.monitor.partition("/")[0]
        epochs = range(self.every_epochs, math.ceil(steps / steps_per_epoch), self.every_epochs)
        return any(split not in schedule.periods or split in schedule.due(e * steps_per_epoch, e) for e in epochs)

    def ranking(self, values: Mapping[int, float]) -> list[int]:
        """Return the members from the best to the worst. Non-finite values come last; ties are in order of index.

        >>> Selection(Monitor("valid/Accuracy", "max"), 1).ranking({0: 0.5, 1: float("nan"), 2: 0.7, 3: 0.5})
        [2, 0, 3, 1]
        """
        sign = -1.0 if self.monitor.mode == "max" else 1.0
        return sorted(values, key=lambda i: (0, sign * values[i], i) if math.isfinite(values[i]) else (1, 0.0, i))


@dataclasses.dataclass(frozen=True)
class Halving(Selection):
    """Successive halving (Jamieson and Talwalkar, 2016): the members with the worst values end.

    Args:
      keep: the fraction of members that continue, between 0 and 1.
    """

    keep: float

    def problems(self) -> list[str]:
        """See `Selection`."""
        return super().problems() + self._fraction_problem("keep", self.keep, "1/3")

    def count(self, members: int) -> int:
        """Return the number of members that continue, at least one.

        >>> halving = Halving(Monitor("valid/Loss", "min"), 2, 1 / 3)
        >>> [halving.count(n) for n in (9, 4, 3, 1)]
        [3, 2, 1, 1]
        """
        # Rounded up, except for the rounding error of a float such as 1/3.
        return max(1, math.ceil(members * self.keep - 1e-9))


@dataclasses.dataclass(frozen=True)
class Exploit(Selection):
    """Population-based training (Jaderberg et al., 2017): the members with the worst values copy the states of those
    with the best, with other learning rates.

    Args:
      part: the fraction of members to replace, and to copy from, between 0 and 0.5.
      factors: the factors of the learning rate to draw from.
      seed: the seed of the draws.
    """

    part: float
    factors: Sequence[float]
    seed: int = 0

    def problems(self) -> list[str]:
        """See `Selection`."""
        problems = super().problems() + self._fraction_problem("part", self.part, "0.25")
        if not problems and self.part > 0.5:
            text = f"part of exploit is {self.part!r}; it needs 0.5 or less, as the best replace the worst"
            problems.append(Problem(text, code="population-selection-fraction", name="part"))
        if not self.factors or not all(is_finite(x) and x > 0 for x in self.factors):
            text = f"factors of exploit are {self.factors!r}; it needs positive numbers, such as (0.8, 1.25)"
            problems.append(Problem(text, code="population-exploit-factors"))
        return problems

    def replaced(self, ranking: Sequence[int], epoch: int) -> dict[int, tuple[int, float]]:
        """Return the members to replace, each with the member whose state it copies and the factor of that member's
        learning rate. The draws depend on the seed, the epoch and the member. No two copy the same state with the same
        factor, as they would be identical.

        >>> exploit = Exploit(Monitor("valid/Loss", "min"), 1, 0.25, (0.5, 2.0))
        >>> exploit.replaced([2, 0, 3, 1], epoch=1)
        {1: (2, 2.0)}
        """
        count = max(1, math.floor(len(ranking) * self.part + 1e-9)) if len(ranking) > 1 else 0
        left = [(source, float(factor)) for source in ranking[:count] for factor in dict.fromkeys(self.factors)]
        replaced_by = {}
        for member in ranking[len(ranking) - count :]:
            draws = np.random.default_rng([self.seed, epoch, member])
            replaced_by[member] = left.pop(int(draws.integers(len(left))))
        return replaced_by


def _numbers(value: Any) -> str:
    """Return a number or a sequence of numbers as a text that is the same for 1 and 1.0."""
    texts = [f"{x:.9g}" for x in np.ravel(value)]
    return f"[{', '.join(texts)}]" if np.ndim(value) else texts[0]
