"""Saving: from the loop's copy of the state to a complete checkpoint.

A save hops between threads once. The loop copies everything that the next dispatch changes, and passes the copy to the
saver's thread with a future for the rest, which only the reporter has. The reporter fills the future when it has read
the values of all earlier steps:

    loop ──── request: copy, future ────> saver
      └───── query ────> reporter ──── fills the future ────> saver ──── "saved", without waiting ────> reporter

There is no deadlock:

- The loop waits for the saver when two saves are pending, and for the reporter when that is behind.
- The saver waits for the reporter until the future of its first request is filled. If the reporter fails, or the loop
  fails before it has queued the query, the future fails instead, and the saver drops the request.
- The reporter waits for the saver only when the disk is full, and only for saves whose futures are filled. The loop's
  thread queues requests and queries in the same order, so earlier saves than these are never unanswered.

The best epoch takes the same path with a pause: the loop offers a copy to `BestSnapshot`, the reporter decides about it
in order, and the answer to the next request contains it.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

from learner.checkpoint.best import BestSnapshot
from learner.checkpoint.save_queue import SaveQueue, SaveRequest
from learner.checkpoint.saver import Saver
from learner.checkpoint.store import CheckpointStore
from learner.distributed.consensus import Consensus
from learner.steps.train_state import TrainState
from learner.training.checkpoints.checkpoint_writer import CheckpointWriter
from learner.training.checkpoints.save_decisions import SaveDecisions
from learner.training.options import NUMBERS
from learner.training.programs.executor import Runner
from learner.training.progress.position import Position
from learner.training.progress.snapshot import SaveAnswer, SnapshotComposer, StateCopy
from learner.training.reporting.messages import Callback, Query
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import TimeBreakdown
from learner.training.spec import RunSpec
from learner.training.validation import Validator
from learner.util.ownership import ThreadOwned
from learner.util.user_warnings import LearnerWarning


class CheckpointSaver(ThreadOwned):
    """Save checkpoints, and the best epoch when necessary. It belongs to the loop's thread; its parts belong to the
    reporter's and the saver's, see `SaveDecisions` and `CheckpointWriter`.

    Args:
      spec: the plan and the start of the run.
      store: the store to write checkpoints to.
      queue: the queue of saves.
      reporter: has the history and the log offsets.
      runner: rebuilds states.
      spent: the loop's seconds on anything but steps.
      consensus: the consensus of several processes, or None.
      best: holds the best epoch until it is saved; None if only due checkpoints can be the best.

    Attributes:
      store, best: see above.
    """

    def __init__(
        self,
        spec: RunSpec,
        store: CheckpointStore,
        queue: SaveQueue,
        reporter: Reporter,
        runner: Runner,
        spent: TimeBreakdown,
        consensus: Consensus | None,
        best: BestSnapshot | None,
    ):
        options, restored = spec.options, spec.restored
        self.store, self.best = store, best
        self._reporter, self._options, self._spent = reporter, options, spent
        self._hosts, self._consensus = spec.processes, consensus
        self._each_data = spec.processes.count > 1 and spec.inputs.source("train").own
        # A checkpoint that was saved at a stop is saved again if the run now ends there.
        self._last_saved = None if restored is None or restored.progress["at_stop"] else restored.position
        self._saved_at = time.monotonic()
        self._monitor, higher_is_better = spec.monitor
        composer = SnapshotComposer(self._monitor, higher_is_better, spec.fingerprint, options.config_kept)
        self._decisions = SaveDecisions(reporter, best, composer, runner.strategy.platform)
        self._writer = writer = CheckpointWriter(store, best, reporter, options, runner, composer)
        # Before the start of the saver's thread, which calls it.
        store.place.warn = functools.partial(_warn_without_raising, reporter)
        failed = None if options.on_save_error == "raise" else writer.report_failure
        self._saver = Saver(store, queue, writer.report, failed, writer.flush_logs, writer.record_snapshot)
        self.claim()

    def is_saved(self, position: Position) -> bool:
        """Return True if the newest checkpoint is at this position, and its write has not failed so far."""
        return self._last_saved == position and self._writer.failed_step != position.step

    def seconds_since_save(self) -> float:
        """Return the seconds since the last save of this process."""
        return time.monotonic() - self._saved_at

    def is_due(self, ended_epoch: int | None, step: int) -> bool:
        """Return True if a checkpoint is due. Several processes use the clock of the first one."""
        options = self._options.checkpoints
        since = self.seconds_since_save() if self._consensus is None else self._consensus.since
        return options is not None and options.due(ended_epoch, step, since)

    def reserve(self) -> float:
        """Return the seconds to reserve for saving at the end, by the longest save so far. Any thread may call it."""
        return (3 if self.best is not None and self.best.is_pending() else 2) * self._saver.longest

    def is_measured(self, validator: Validator, step: int, ended_epoch: int | None) -> bool:
        """Return True if the monitored metric was measured after this step, at the end of an epoch or inside one."""
        split, _, name = self._monitor.partition("/")
        if self._monitor.startswith(NUMBERS):
            return validator.has_logged(name, step)
        if split not in validator.feeders:
            return ended_epoch is not None
        return validator.has_validated(split, step, ended_epoch)

    def gather_data_state(self, data_state: Any) -> Any:
        """Return the state of the training data; if each process has its own data, all states. All must call it."""
        return {"processes": self._hosts.all_gather_json(data_state, "save")} if self._each_data else data_state

    # -- requests ------------------------------------------------------------------------------------------------------

    def save(self, copied: StateCopy) -> None:
        """Pass a checkpoint to the saver. Blocks while two saves are pending."""
        if self._consensus is not None:
            # All processes save at this step, so each may reset the agreed value.
            self._consensus.since = 0.0
        # Recorded before it is written: if that fails, `failed_step` records it later.
        self._last_saved, self._saved_at = copied.position, time.monotonic()
        # The query has no array: the reporter's queue must not keep a copy of the state alive.
        answer = functools.partial(self._decisions.answer, copied.position, copied.at_stop, copied.has_rows)
        self._submit(copied, answer)

    def write_best(self) -> None:
        """Write the best snapshot after the earlier saves, unless it is already written."""
        if self.best is not None:
            self._submit(None, self._decisions.pop_best)

    def _submit(self, copied: StateCopy | None, answer: Callable[[], SaveAnswer]) -> None:
        request = SaveRequest(functools.partial(self._writer.snapshots, copied))
        try:
            with self._spent.saving():
                # Before the query: once a request is answered, `wait_for_answered` must find it in the queue.
                self._saver.submit(request, self._check_others)
            self._reporter.put(Query(answer, request.answer))
        except BaseException:
            request.answer.cancel()  # no answer will come, and the saver must not wait for it
            raise

    def _check_others(self) -> None:
        self._reporter.check()
        self._hosts.raise_if_peer_failed()

    def reserve_copy(self) -> None:
        """Block until another copy for the best epoch may be made.

        A copy does not wait for the device. It waits while the reporter has earlier copies to decide about, so that
        memory holds only a few of them.
        """
        assert self.best is not None
        with self._spent.saving():
            self.best.reserve(self._check_others)

    def keep_if_best(self, copied: StateCopy) -> None:
        """Let the reporter keep a copy if it is the best so far. `reserve_copy` was called before."""
        assert self.best is not None
        self.best.offer(copied)
        self._reporter.put(Callback(self._decisions.decide_candidate))

    def finish_best(self) -> None:
        """Wait until the best snapshot is on the disk. A run that fails writes nothing else."""
        self.write_best()
        self._saver.wait()

    def submit_best(self) -> None:
        """Submit the best snapshot after the reporter has ended and can no longer answer."""
        if self.best is not None:
            request = SaveRequest(functools.partial(self._writer.snapshots, None))
            # On this thread: the reporter's thread, to which the decision belongs, has ended.
            request.answer.set_result(self._decisions.pop_best())
            self._saver.submit(request)

    def record(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        """Write the records of a checkpoint that an earlier process has not written."""
        self._writer.record(state, progress)

    # -- the saver's thread, seen from outside -------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error of the saver's thread, if any."""
        self._saver.check()

    def wait(self) -> None:
        """Block until everything submitted is written."""
        self._saver.wait()

    def close(self, seconds: float | None = None) -> None:
        """End the saver's thread after all submitted saves; see `Saver.close`."""
        self._saver.close(seconds)


def _warn_without_raising(reporter: Reporter, text: str) -> None:
    """Warn from the saver's thread, where an error would end the tries of a save, or undo a complete one."""
    with contextlib.suppress(LearnerWarning):
        reporter.warn(text)
