"""Delivery for a population: each member's values to its files and listeners, and their means to the run's."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.events import EpochStarted
from learner.runs.appended import shortest
from learner.steps.population import member_of
from learner.training.reporting.delivery import Delivery, finite_value
from learner.training.reporting.host_metrics import Pictures, Values
from learner.training.reporting.messages import (
    EpochFinished,
    Item,
    ReporterSnapshot,
    SplitFinished,
    ValidationAborted,
)
from learner.training.reporting.step_reader import StepsRead


class PopulationDelivery(Delivery):
    """Deliver the items of a population in order. Each member has its own `Delivery`, like a separate run, and gets its
    part of the values from the device. The run gets the means over the active members.

    Attributes:
      members: the deliveries of the members. All belong to the reporter's thread.
      lanes: the member of each position on the leading axis of the values.
    """

    members: Sequence[Delivery] = ()
    lanes: Sequence[int] = ()

    def claim(self) -> None:
        """See `Delivery`."""
        super().claim()
        for member in self.members:
            member.claim()

    def _active(self) -> list[tuple[int, Delivery]]:
        """Return the active members, each with its lane."""
        lanes = [(lane, self.members[index]) for lane, index in enumerate(self.lanes)]
        return [(lane, member) for lane, member in lanes if member.is_active()]

    def deliver_one(self, item: Item) -> None:
        """See `Delivery`."""
        if isinstance(item, EpochFinished | ValidationAborted | EpochStarted):
            for member in self.members:
                if member.is_active(item):
                    member.deliver_one(item)
        super().deliver_one(item)

    def _measure(self, read: StepsRead) -> tuple[dict[str, np.ndarray], np.ndarray]:
        measured, halted = [], []
        for lane, member in self._active():
            pairs = [(dispatched, member_of(values, lane)) for dispatched, values in read.pairs]
            measured.append(member.deliver_group(dataclasses.replace(read, pairs=pairs)))
            if member.nonfinite.halted is not None:
                member.journal_end()
                halted.append(member.nonfinite.halted)
        # The run of the population has halted only when none of its members trains any more.
        if halted and not self._active():
            self.nonfinite.halted = max(halted, key=lambda stop: stop.step)
        count = max(len(weights) for _, weights in measured)
        if not self.has_listeners:
            return {}, measured[0][1][:count]
        # A member that a step has ended has fewer steps: the means are over members with all steps.
        complete = [(columns, weights) for columns, weights in measured if len(weights) == count]
        means = {name: np.mean([columns[name] for columns, _ in complete], 0) for name in complete[0][0]}
        return means, np.mean([weights for _, weights in complete], 0)

    def _compute(self, finished: SplitFinished) -> tuple[Values, Pictures]:
        on_host = jax.device_get(dict(finished.values))
        of_members = []
        for lane, member in self._active():
            values = {name: member_of(value, lane) for name, value in on_host.items()}
            of_members.append(member.finish_split(dataclasses.replace(finished, values=values)))
        return means_of(of_members), {}

    def score(self, key: str, higher_is_better: bool, step: int) -> float | None:
        """See `Delivery`: the value of the best member. Members that have ended count with their last value, as their
        states are in each later checkpoint. A mean would compare different members once some have ended or diverged.
        """
        if super().score(key, higher_is_better, step) is None:
            return None
        values = [finite_value(member.history.last(key)) for member in self.members]
        return (max if higher_is_better else min)(value for value in values if value is not None)

    def mark_logs(self) -> None:
        """See `Delivery`."""
        super().mark_logs()
        for member in self.members:
            member.mark_logs()

    def flush_logs(self, progress: Mapping[str, Any]) -> None:
        """See `Delivery`."""
        super().flush_logs(progress)
        for member, part in zip(self.members, progress["members"], strict=True):
            member.flush_logs(part)

    def snapshot(self, in_validation: bool, with_rows: bool) -> ReporterSnapshot:
        """See `Delivery`."""
        members = [member.snapshot(in_validation, with_rows) for member in self.members]
        return dataclasses.replace(super().snapshot(in_validation, with_rows=False), members=members)


def means_of(of_members: Sequence[Values]) -> Values:
    """Return the means of the numeric metrics over the members. Values that are not finite are left out, unless all
    are.
    """
    means: Values = {}
    for name, first in of_members[0].items() if of_members else ():
        if isinstance(first, str):
            continue
        numbers = [float(values[name]) for values in of_members]
        finite = [x for x in numbers if math.isfinite(x)] or numbers
        means[name] = shortest(np.float32(np.mean(finite)))
    return means
