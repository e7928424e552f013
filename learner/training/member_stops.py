"""Early stopping of the members of a population, each by its own values."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.training.executor import Runner
from learner.training.messages import MemberStop
from learner.training.position import Position
from learner.training.reporter import Reporter
from learner.training.stopping import MetricEarlyStopping


def all_ended_text(members: int) -> str:
    """Return why a population ends with the last of its members, the first word of which makes its run an ended one."""
    return f"early stopping: all {members} members have ended"


class MemberStops:
    """Decide which members of a population end. It belongs to the loop's thread.

    Args:
      early_stopping: of the builder; each member has copies of its own.
      members: the number of members.
      runner: freezes the state of a member that has ended.
      reporter: knows the values of the members.
    """

    def __init__(self, early_stopping: Sequence[MetricEarlyStopping], members: int, runner: Runner, reporter: Reporter):
        self._of = [copy.deepcopy(list(early_stopping)) for _ in range(members)]
        self._runner, self._reporter = runner, reporter

    @property
    def every(self) -> list[MetricEarlyStopping]:
        """All of them, those of the first member first."""
        return [stopping for of_member in self._of for stopping in of_member]

    def update(self, p: Position) -> str | None:
        """Apply early stopping to the values of a validation. Return why the population ends, or None."""
        active = self._active()
        for index in np.flatnonzero(active):
            values = self._reporter.newest(p.step, int(index))
            reasons = [reason for stopping in self._of[index] if (reason := stopping.update(values))]
            if reasons:
                stop = MemberStop(f"early stopping: {reasons[0]}", p.epoch, p.step, p.pending == "epoch")
                self._reporter.stop_member(int(index), stop)
        after = self._active()
        if (active != after).any():
            self._runner.set_active(after)
        return None if after.any() else all_ended_text(len(after))

    def _active(self) -> np.ndarray:
        self._reporter.wait()
        return np.array([self._reporter.is_active(i) for i in range(len(self._of))])

    def get_state(self) -> list[dict[str, Any]]:
        """Return the states for a checkpoint, as JSON."""
        return [stopping.get_state() for stopping in self.every]
