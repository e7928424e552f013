"""Reports of steps whose loss or gradients are not finite, and of validations with such losses."""

import logging
import math
from collections.abc import Callable, Collection

import numpy as np

from learner.steps.finite import HALTS, KINDS, NonFinitePolicy, nonfinite_text
from learner.training.reporting.messages import NonFiniteStop, StepsDispatched
from learner.util.ownership import ThreadOwned


class NonFiniteReports(ThreadOwned):
    """Report non-finite steps, and find the one that ends the run. It belongs to the reporter's thread.

    Args:
      policy: the policy for such steps; None if they are not reported.
      log: writes to the application log.
      warn: shows a warning to people, and logs it.
      unreported_losses: the splits whose loss is not reported, such as those without one, where it is NaN.

    Attributes:
      halted: the step that ended the run, or None. Steps dispatched after it are not reported.
    """

    def __init__(
        self,
        policy: NonFinitePolicy | None,
        log: logging.Logger,
        warn: Callable[[str], None],
        unreported_losses: Collection[str],
    ):
        self._policy, self._log, self._warn = policy, log, warn
        self.halted: NonFiniteStop | None = None
        self._has_warned = False
        self._with_skips: set[str] = set()  # splits with skipped steps, until they end
        self._with_nonfinite_loss = {*unreported_losses}  # splits of no further report at their end

    def report(self, first: StepsDispatched, codes: np.ndarray) -> int:
        """Report the steps that are not finite. Return the number of steps, up to one that ends the run.

        Args:
          first: the dispatch of the first step.
          codes: see `learner.steps.finite.Mark`; 0 for a finite step.
        """
        for index in np.flatnonzero(codes):
            self._with_skips.add(first.split)
            # In the order of steps: the first that halts ends the run, and those after it are not reported.
            code = int(codes[index])
            step = first.first + int(index)
            if code < 0:
                self._report_overflow(step, -code)
                continue
            kind = KINDS[code % HALTS]
            self._report_step(step, kind)
            if code > HALTS:
                self.halted = NonFiniteStop(first.epoch, step, kind)
                return int(index) + 1
        return len(codes)

    def end_split(self, split: str) -> bool:
        """Return True if steps of the split were skipped, and forget them."""
        skipped = split in self._with_skips
        self._with_skips.discard(split)
        return skipped

    def report_split(self, split: str, epoch: int, loss: float | str | None, advice: Callable[[], str]) -> None:
        """Warn about the first non-finite loss of a split that no step explains, with advice if it is a validation. The
        run continues.
        """
        ignored = ("ignore", "skip") if split == "train" else ("ignore",)
        ignores = self._policy is None or self._policy.policy in ignored
        if ignores or not isinstance(loss, float) or math.isfinite(loss) or split in self._with_nonfinite_loss:
            return
        self._with_nonfinite_loss.add(split)
        if split == "train":
            reason = (
                "no row had a weight, or weights were negative, and such batches train nothing. Look for masks that "
                "keep no rows"
                if math.isnan(loss)
                else "its sum over the rows exceeds float32, whose largest number is 3e38. Scale the loss down"
            )
            self._warn(f"the loss of train is {loss} in epoch {epoch}, but the loss of each step is finite: {reason}")
            return
        self._warn(f"the loss of {split} is {loss} in epoch {epoch}, and training continues: {advice()}")

    def _report_step(self, step: int, kind: str) -> None:
        """Report a step whose loss or gradients are not finite. The first is shown; the log has all."""
        if self._policy is None:
            return
        text = nonfinite_text(kind, step)
        if self._policy.policy != "skip":
            self._log.warning(text)
        elif self._has_warned:
            self._log.warning("%s: it is skipped", text)
        else:
            self._has_warned = True
            self._warn(f"{text}: it is skipped, and so are further ones, up to {self._policy.in_a_row} in a row")

    def _report_overflow(self, step: int, scale: int) -> None:
        """Report a step whose gradients overflowed, as happens now and then with a loss scale."""
        if self._policy is not None:
            text = "the gradients of step %d overflowed: it is skipped, and the loss scale is now %d"
            self._log.info(text, step, scale)
