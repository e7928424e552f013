"""The saver's part of saving: it composes snapshots, writes records next to checkpoints, and reports the result."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from learner.checkpoint.best import BestSnapshot, Snapshot
from learner.checkpoint.store import CheckpointStore
from learner.records.recorder import Recorder
from learner.steps.train_state import TrainState
from learner.training.options import Options
from learner.training.programs.executor import Runner
from learner.training.programs.oom import CHECKPOINT, OomContext
from learner.training.progress.snapshot import SaveAnswer, SnapshotComposer, StateCopy
from learner.training.reporting.reporter import Reporter
from learner.util.disk import is_full
from learner.util.ownership import ThreadOwned
from learner.util.text import join_names
from learner.util.trees import nonfinite_leaves
from learner.util.urls import one_line

MOST_NAMED = 3
NAMES = {"model": "model", "optim": "optimizer's state", "scheduler": "scheduler's state"}


class CheckpointWriter(ThreadOwned):
    """Compose, record and report checkpoints. It belongs to the saver's thread, except for `record`, which the loop's
    thread may call before the first save.

    Args:
      store: the store to write checkpoints to.
      best: receives a snapshot that could not be written, or None.
      reporter: reports saves.
      options: the options of the builder.
      runner: rebuilds models.
      composer: composes snapshots.

    Attributes:
      failed_step: the last step whose checkpoint could not be written, or None. Other threads may read it.
    """

    def __init__(
        self,
        store: CheckpointStore,
        best: BestSnapshot | None,
        reporter: Reporter,
        options: Options,
        runner: Runner,
        composer: SnapshotComposer,
    ):
        self._store, self._best, self._reporter, self._options = store, best, reporter, options
        self._runner, self._composer = runner, composer
        self.failed_step: int | None = None
        self._refused_step: int | None = None

    def snapshots(self, copied: StateCopy | None, answer: SaveAnswer) -> Iterator[Snapshot]:
        """Yield the snapshots of a save in the order in which they must be written, without those whose parameters are
        not finite.
        """
        if self._owner is None:
            self.claim()  # by the saver's thread, which alone calls this
        return filter(self._is_finite, self._snapshots(copied, answer))

    def _is_finite(self, snapshot: Snapshot) -> bool:
        """Return True if all parameters are finite, as a run cannot resume otherwise. Steps check only losses and
        gradients, as an update rarely turns these into NaN.
        """
        # A member of a population fails alone. With several processes, only the loop may compute with shared arrays.
        options = self._options
        unseen = options.population is not None or jax.process_count() > 1
        if unseen or options.on_nonfinite.policy == "ignore" or not (names := nonfinite_leaves(snapshot.state.params)):
            return True
        self.failed_step = snapshot.step
        if self._refused_step != snapshot.step:
            self._refused_step = snapshot.step
            self._reporter.warn(
                f"there is no checkpoint of step {snapshot.step}: its loss and gradients were finite, but the update "
                f"made parameters that are not: {join_names(names, MOST_NAMED)}"
            )
        return False

    def _snapshots(self, copied: StateCopy | None, answer: SaveAnswer) -> Iterator[Snapshot]:
        """Yield the snapshots of a save in the order in which they must be written.

        The best comes first: a run that is killed between the two resumes from the older checkpoint and repeats the
        rest. A run that must stop saves its last step first, as it may not have the time for both.
        """
        stops = copied is not None and copied.at_stop
        best_first = answer.best if not stops else None
        if best_first is not None:
            yield self._on_devices(best_first)
        if copied is not None and answer.reported is not None:
            if stops and answer.is_best:
                # This position is already the best, so its checkpoint stays when the stopped run resumes.
                copied = dataclasses.replace(copied, fields={**copied.fields, "at_stop": False, "at_end": True})
            yield self._composer.compose(copied, answer.reported, answer.score)
        if stops and answer.best is not None:
            yield self._on_devices(answer.best)

    def _on_devices(self, snapshot: Snapshot) -> Snapshot:
        with OomContext(CHECKPOINT):
            return snapshot.to_devices()

    def flush_logs(self, snapshot: Snapshot) -> None:
        """Flush the logs of a snapshot to the disk before its checkpoint: a complete checkpoint relies on the logs up
        to its offsets, even after a power loss.
        """
        self._reporter.flush_logs(snapshot.progress)

    def record_snapshot(self, snapshot: Snapshot) -> None:
        """Write the parts of a complete checkpoint that have separate files."""
        self.record(snapshot.state, snapshot.progress)

    def record(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        """Write the parts of a state that have separate files."""
        options = self._options.checkpoints
        if options is None or options.record is None:
            return
        step = progress["step"]
        for item in options.record_items:
            if item == "optim" and not jax.tree.leaves(state.opt_state):
                continue  # there is nothing to record
            recorder = options.record if item == "model" else options.record.in_full()
            write = functools.partial(self._write_record, recorder, item, state)
            try:
                path = self._store.record(step, recorder.extension, write, item)
            except Exception as error:
                what = f"the {NAMES[item]} of step {step} could not be recorded beside {self._store.path(step)}"
                if self._options.on_save_error == "raise":
                    error.add_note(f"{what}, which is complete")
                    raise
                self._reporter.warn(f"{what}, and training continues: {type(error).__name__}: {error}")
            else:
                if path is not None:
                    self._reporter.log.info("recorded %s", path)

    def _write_record(self, recorder: Recorder, item: str, state: TrainState, file: Any) -> None:
        if item == "model":
            # The model uses the arrays of the copy, which are not needed after the record.
            recorder.write(self._runner.rebuild(state), file)
        elif item == "optim":
            recorder.write(state.opt_state, file)
        else:
            recorder.write({"step": state.step, "lr_scale": state.lr_scale}, file)

    def report(self, snapshot: Snapshot, seconds: float) -> None:
        """Report a complete checkpoint."""
        progress = snapshot.progress
        epoch, path = progress["ends_epoch"] or progress["position"]["epoch"], self._store.path(snapshot.step)
        self._reporter.log.info("saved %s in %.2f s", path, seconds)
        # Written only by this thread and read by the loop's: one reference, replaced atomically.
        self.failed_step = None
        self._reporter.report_save(epoch, snapshot.step, path, seconds)

    def report_failure(self, snapshot: Snapshot, error: Exception) -> None:
        """Report a checkpoint that could not be written. The run continues."""
        step = snapshot.step
        if self._best is not None:
            self._best.give_back(snapshot)
        self.failed_step = step  # the end of the run tries again
        what = f"could not be written to {self._store.path(step)}, and training continues: {one_line(error)}"
        self._reporter.warn(f"the checkpoint of step {step} {what}")
        if not is_full(error):  # the log needs the remaining space
            self._reporter.log.info("the traceback:", exc_info=error)
