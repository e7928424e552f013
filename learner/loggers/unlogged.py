"""The files of a run whose metrics go to loggers only."""

from collections.abc import Mapping

import numpy as np

from learner.runs.appended import close_all
from learner.runs.metric_logs import RunFiles


class RunFilesWithoutMetrics(RunFiles):
    """Write the journal and the summary of a run, and no metric files.

    Positions of checkpoints count the metric files that the run may have from an earlier start, so that resuming with
    or without them cuts back what it should, and nothing else.
    """

    def steps(self, split: str, epoch: int, values: Mapping[str, np.ndarray], weights: np.ndarray) -> None:
        """Write nothing."""
        self._enter(epoch)

    def close_split(self, split: str, epoch: int, values: Mapping[str, float | str], at_step: int | None) -> None:
        """Write nothing: the journal has the values of whole splits."""
        self._enter(epoch)

    def _enter(self, epoch: int) -> None:
        # A position names the files of its epoch; `cut` removes all others from that epoch on.
        if epoch != self._epoch:
            close_all(self._files.values())
            self._epoch, self._files = epoch, {}
