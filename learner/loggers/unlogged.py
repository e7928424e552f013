"""The files of a run whose metrics only go to loggers."""

from collections.abc import Mapping

import numpy as np

from learner.runs.appended import close_all
from learner.runs.metric_logs import RunFiles


class RunFilesWithoutMetrics(RunFiles):
    """Write the journal and the summary of a run, and no metric files.

    Positions in checkpoints include metric files that the run may have from an earlier start, so resuming with or
    without metric files truncates exactly the right files.
    """

    def steps(self, split: str, epoch: int, values: Mapping[str, np.ndarray], weights: np.ndarray) -> None:
        """Write nothing."""
        self._enter(epoch)

    def close_split(self, split: str, epoch: int, values: Mapping[str, float | str], at_step: int | None) -> None:
        """Write nothing: the journal contains the values of whole splits."""
        self._enter(epoch)

    def _enter(self, epoch: int) -> None:
        # A position lists the files of its epoch; `cut` removes all other files from that epoch on.
        if epoch != self._epoch:
            close_all(self._files.values())
            self._epoch, self._files = epoch, {}
