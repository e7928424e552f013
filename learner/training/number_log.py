"""The numbers of a run that are no metrics: hooks return them, and loops of the user's log them."""

from collections.abc import Mapping, Sequence
from typing import Any

from learner.distributed.process_group import ProcessGroup
from learner.training.options import NUMBERS
from learner.training.progress.position import Position
from learner.training.reporting.messages import SplitFinished
from learner.training.reporting.reporter import Reporter
from learner.training.validation import Validator
from learner.util.ownership import ThreadOwned
from learner.util.text import join_names


class NumberLog(ThreadOwned):
    """Log numbers by name as the split `custom`, and pass them on to the decisions. It belongs to the loop's thread.

    Args:
      reporter: writes the numbers.
      validator: applies early stopping and the plateau scheduler to them.
      processes: the processes of the run. Each calls the hooks; if a number is monitored, those of process 0 count.
      monitored: the names of the numbers on which a decision depends.
    """

    def __init__(self, reporter: Reporter, validator: Validator, processes: ProcessGroup, monitored: Sequence[str]):
        self._reporter, self._validator, self._processes = reporter, validator, processes
        self._monitored = monitored
        self._names: set[str] = set()
        self._has_warned = False
        self.claim()

    def log(self, numbers: Mapping[str, Any], p: Position, at_step: int | None) -> None:
        """Log numbers at a position. All processes must call it, also without numbers. `at_step`: the step of numbers
        inside an epoch, or None.
        """
        if self._monitored and self._processes.count > 1:
            # Hooks may draw samples or read files: with other numbers, one process alone would stop or save.
            own = {name: float(value) for name, value in numbers.items()}
            numbers = self._processes.all_reduce_json(own, lambda each: each[0], "the numbers of hooks")
        if not numbers:
            return
        self._names |= numbers.keys()
        self._reporter.put(SplitFinished("custom", p.epoch, p.step, at_step, dict(numbers)))
        self._validator.apply_numbers(numbers, p.step)

    def warn_of_missing(self, has_ended: bool) -> None:
        """Warn once about monitored numbers that nothing has logged.

        Args:
          has_ended: True at the end of a run; before it, a hook may still return them, and only names that are written
            differently are warned about.
        """
        if self._has_warned or self._names.issuperset(self._monitored):
            return
        # Also those of earlier processes of the run, which the history has.
        logged = sorted(key.removeprefix(NUMBERS) for key in self._reporter.newest() if key.startswith(NUMBERS))
        for name in self._monitored:
            same = [each for each in logged if _letters(each) == _letters(name)]
            if name not in logged and (same or has_ended):
                self._has_warned = True
                hint = f"did you mean {same[0]!r}?" if same else f"they have returned {join_names(logged, 8) or 'none'}"
                self._reporter.warn(f"{NUMBERS}{name} is monitored, and no hook has returned this number: {hint}")


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()
