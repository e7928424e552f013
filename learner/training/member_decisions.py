"""Decisions about the members of a population by their values: to end, change the learning rate, or copy another."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from learner.schedules.plateau import ReduceOnPlateau
from learner.training.options import Options
from learner.training.programs.population_runner import PopulationRunner
from learner.training.progress.position import Position
from learner.training.reporting.messages import MemberStop
from learner.training.reporting.reporter import Reporter
from learner.training.selection import Selection
from learner.util.text import count, short


def all_ended_text(members: int) -> str:
    """Return why a population ends with its last member. Its first word marks the run as ended."""
    return f"early stopping: all {members} members have ended"


class MemberDecisions:
    """Decide about the members of a population. It belongs to the loop's thread.

    Args:
      options: the options of the builder. Each member has copies of its early stopping.
      plateaus: the scheduler of each member that has one.
      runner: holds the states of the members.
      reporter: holds their values.
      pays: returns True if programs without that many members are worth compiling, given the optimizer step.
    """

    def __init__(
        self,
        options: Options,
        plateaus: Sequence[ReduceOnPlateau],
        runner: PopulationRunner,
        reporter: Reporter,
        pays: Callable[[int, int], bool],
    ):
        self._names = [member.name for member in options.population.members]
        self._early_stopping = [copy.deepcopy(list(options.early_stopping)) for _ in self._names]
        self._options, self._halving, self._exploit = options, options.halving, options.exploit
        self._plateaus, self._runner, self._reporter, self._pays = plateaus, runner, reporter, pays

    @property
    def early_stopping(self) -> list[Any]:
        """The early stopping of all members, the first member's first."""
        return [stopping for of_member in self._early_stopping for stopping in of_member]

    def update(self, p: Position) -> str | None:
        """Apply the values of a validation. Return why the population ends, or None."""
        for index in self._active_members():
            values = self._reporter.newest(p.step, index)
            reasons = [reason for stopping in self._early_stopping[index] if (reason := stopping.update(values))]
            if reasons:
                self._stop(index, f"early stopping: {reasons[0]}", p)
        # After early stopping, as only members that still train are ranked.
        halved = self._halve(p)
        active = self._active()
        if not active.any():
            return all_ended_text(len(active))
        if (active != self._runner.active()).any():
            self._continue_with(active, p, halved)
        # After the change of lanes, which both of these use to find the remaining members.
        self._take_over(p)
        self._follow_plateaus(p)
        return None

    def _ranked(self, selection: Selection | None, p: Position) -> tuple[list[int], dict[int, float]]:
        """Return the active members from the best to the worst, and their values, if a ranking is due."""
        if selection is None or p.pending != "epoch" or not selection.is_due(p.epoch) or self._is_last(p):
            return [], {}
        key, values = selection.monitor.monitor, {}
        for index in self._active_members():
            newest = self._reporter.newest(p.step, index)
            if key not in newest:
                return [], {}  # the metric was not measured here: the next ranking decides
            values[index] = float(newest[key])
        return selection.ranking(values), values

    def _is_last(self, p: Position) -> bool:
        """Return True if the run ends here, so that a selection would have no effect."""
        epochs, steps = self._options.num_epochs, self._options.num_steps
        return p.epoch == epochs or (steps is not None and p.step >= steps)

    def _halve(self, p: Position) -> bool:
        """End the worst members if halving is due. Return True if any has ended."""
        ranking, values = self._ranked(self._halving, p)
        if self._halving is None or (left := self._halving.count(len(ranking))) >= len(ranking):
            return False
        key = self._halving.monitor.monitor
        for place, index in enumerate(ranking[left:], left + 1):
            self._stop(index, f"halving: place {place} of {len(ranking)} by {key} {short(values[index])}", p)
        return True

    def _stop(self, index: int, reason: str, p: Position) -> None:
        self._reporter.stop_member(index, MemberStop(reason, p.epoch, p.step, p.pending == "epoch"))

    def _continue_with(self, active: np.ndarray, p: Position, halved: bool) -> None:
        """Freeze the members that have ended, or continue without them in smaller programs."""
        lanes, before, left = len(self._runner.lanes), int(self._runner.active().sum()), int(active.sum())
        # Only between epochs: within one, the metrics of the lanes are in flight.
        compact = p.pending == "epoch" and self._runner.saves_lanes(left)
        compact = compact and (halved or (2 * left <= lanes and self._pays(lanes - left, p.step)))
        self._runner.set_active(active, compact)
        text = f"epoch {p.epoch}: {count(left, 'member')} of {before} continue{'s' if left == 1 else ''}"
        if compact:
            self._reporter.set_lanes(self._runner.lanes)
            self._reporter.notify(f"{text}, in a program of their own", log=True)
        elif halved:
            self._reporter.notify(text, log=True)

    def _take_over(self, p: Position) -> None:
        """Replace the worst members by the best if a replacement is due."""
        ranking, values = self._ranked(self._exploit, p)
        replaced = {} if self._exploit is None else self._exploit.replaced(ranking, p.epoch)
        replaced = {index: taken for index, taken in replaced.items() if math.isfinite(values[taken[0]])}
        if not replaced:
            return
        numbers = self._runner.take_over(replaced)
        for index, (source, _) in replaced.items():
            fields = {"epoch": p.epoch, "step": p.step, "source": self._names[source], **numbers[index]}
            self._reporter.journal("exploit", index, **fields)
            now = ", ".join(f"{name} {x:g}" for name, x in numbers[index].items())
            text = f"epoch {p.epoch}: {self._names[index]} takes over the state of {self._names[source]}"
            self._reporter.log.info("%s, with %s", text, now)
        self._reporter.notify(f"epoch {p.epoch}: {count(len(replaced), 'member')} replaced by better ones")

    def _follow_plateaus(self, p: Position) -> None:
        changed = False
        for index in self._active_members() if self._plateaus else ():
            plateau = self._plateaus[index]
            before = plateau.lr
            if plateau.update(self._reporter.newest(p.step, index)) != before:
                text = "%s: step %d: %s %g -> %g"
                self._reporter.log.info(text, self._names[index], p.step, plateau.quantity, before, plateau.lr)
                changed = True
        if changed:
            self._runner.set_lr_scale(np.array([self._plateaus[lane].lr for lane in self._runner.lanes]))

    def _active(self) -> np.ndarray:
        # Once the reporter is idle, this thread may read its data.
        self._reporter.wait()
        return np.array([self._reporter.is_active(i) for i in range(len(self._names))])

    def _active_members(self) -> list[int]:
        members: list[int] = np.flatnonzero(self._active()).tolist()
        return members

    def get_state(self) -> dict[str, Any]:
        """Return the states for a checkpoint, as JSON."""
        return {
            "early_stopping": [stopping.get_state() for stopping in self.early_stopping],
            "plateau": None,
            "plateaus": [plateau.get_state() for plateau in self._plateaus],
        }
