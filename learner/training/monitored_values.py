"""Values of monitored metrics in a run of several processes, which must decide alike."""

from collections.abc import Sequence

from learner.distributed.process_group import ProcessGroup
from learner.training.reporting.reporter import Reporter
from learner.util.ownership import ThreadOwned


class MonitoredValues(ThreadOwned):
    """Replace monitored values that each process computes on its host by those of process 0. It belongs to the loop's
    thread.

    Args:
      reporter: holds the values.
      processes: the processes of the run.
      keys: the keys of the monitored metrics on the host. Metrics on the devices are equal in all processes.
    """

    def __init__(self, reporter: Reporter, processes: ProcessGroup, keys: Sequence[str]):
        self._reporter, self._processes = reporter, processes
        self._keys = keys if processes.count > 1 else ()
        self.claim()

    def share(self, step: int) -> None:
        """Wait for the values of a step, and replace them by those of process 0. All processes must call it. Without
        monitored metrics on the host it does not wait.
        """
        if not self._keys:
            return
        newest = self._reporter.newest(at=step)
        own = {key: float(newest[key]) for key in self._keys if key in newest}
        values = self._processes.all_reduce_json(own, lambda each: each[0], "the monitored values")
        # In the history, from which the reporter takes the scores of checkpoints, and before they are due.
        self._reporter.replace_newest(values)
