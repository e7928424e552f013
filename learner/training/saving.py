"""Saving: from the loop's copy of the state to a complete checkpoint.

A save passes three threads, in one direction. The loop copies what the next dispatch changes and goes on. The reporter,
which reads values in order, adds the history and the log offsets of that position. The saver's thread writes.
"""

import dataclasses
import functools
import importlib.metadata
import platform as host
import queue
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from learner.checkpoint import CheckpointStore, Saver
from learner.checkpoint.best import BestSnapshot, Snapshot
from learner.checkpoint.store import FORMAT
from learner.distributed.consensus import Consensus
from learner.distributed.process_group import ProcessGroup
from learner.records import Recorder
from learner.steps.state import TrainState
from learner.training.executor import Runner
from learner.training.oom import CHECKPOINT, OomContext
from learner.training.options import Options
from learner.training.position import Position
from learner.training.reporter import Callback, Reporter
from learner.training.timing import TimeBreakdown
from learner.training.validation import Validator
from learner.util.disk import is_full
from learner.util.json_values import encode
from learner.util.ownership import ThreadOwned

NAMES = {"model": "model", "optim": "optimizer's state", "scheduler": "scheduler's state"}
IN_PLACE = ("cpu",)  # platforms whose memory is that of the host: a copy need not move to wait there


@dataclasses.dataclass(frozen=True)
class StateCopy:
    """A copy of what the next dispatch changes: the loop's part of a checkpoint.

    Attributes:
      state: arrays of its own, as the next dispatch donates the originals.
      metrics: the train split's metric states within an epoch, or None.
      position: of the run.
      known: the loop's fields of `progress`.
    """

    state: TrainState
    metrics: Any
    position: Position
    known: Mapping[str, Any]


class SaveTimes(ThreadOwned):
    """How long saves take and which failed: fields of the saver's thread, which others read.

    Attributes:
      longest: seconds from a request until its checkpoint was complete.
      failed_step: the last step whose checkpoint could not be written, or None.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.failed_step: int | None = None


class CheckpointSaver(ThreadOwned):
    """Save checkpoints, and the best epoch when it has to be. Its attributes belong to the loop's thread; those of the
    saver's thread are in `SaveTimes`, and what the reporter adds it hands on as a message.

    Args:
      store: where checkpoints are written.
      reporter: knows the history and the log offsets.
      options: of the builder.
      runner: copies and rebuilds states.
      spent: the loop's seconds apart from steps.
      hosts: the processes of the run.
      consensus: of several processes, or None.
      best: holds the best epoch until it is saved; None if only checkpoints that are due can be the best.
      monitor: the metric that decides about the best, by key.
      higher_is_better: its direction.
      fingerprint: of the run, see `learner.training.fingerprints`.
      last_saved: the position of the newest checkpoint, or None.
      each_data: True if each process has training data of its own.

    Attributes:
      store: see above.
      best: see above.
    """

    def __init__(
        self,
        store: CheckpointStore,
        reporter: Reporter,
        options: Options,
        runner: Runner,
        spent: TimeBreakdown,
        hosts: ProcessGroup,
        consensus: Consensus | None,
        best: BestSnapshot | None,
        *,
        monitor: str,
        higher_is_better: bool,
        fingerprint: Mapping[str, Any],
        last_saved: Position | None,
        each_data: bool = False,
    ):
        self.store, self.best = store, best
        self._reporter, self._options, self._runner, self._spent = reporter, options, runner, spent
        self._hosts, self._consensus = hosts, consensus
        self._monitor, self._higher_is_better, self._fingerprint = monitor, higher_is_better, fingerprint
        self._each_data = each_data
        self._last_saved, self._saved_at = last_saved, time.monotonic()
        self._times = SaveTimes()
        # When each save was requested, from the reporter's thread to the saver's, which takes them in the same order.
        self._requested_at: queue.SimpleQueue[float] = queue.SimpleQueue()
        failed = None if options.on_save_error == "raise" else self._not_saved
        self._saver = Saver(store, self._saved, failed, self._flush_logs, self.record)
        self.claim()

    # -- the loop's thread ---------------------------------------------------------------------------------------------

    def is_saved(self, position: Position) -> bool:
        """Return True if the newest checkpoint is of this position, and its write has not failed so far."""
        return self._last_saved == position and self._times.failed_step != position.step

    def seconds_since_save(self) -> float:
        """Return the seconds since the last save of this process."""
        return time.monotonic() - self._saved_at

    def is_due(self, ended_epoch: int | None, step: int) -> bool:
        """Return True if a checkpoint is due. Several processes go by the clock of the first one."""
        options = self._options.checkpoints
        since = self.seconds_since_save() if self._consensus is None else self._consensus.since
        return options is not None and options.due(ended_epoch, step, since)

    def reserve(self) -> float:
        """Return the seconds that saving at the end may take, by the longest save so far. From any thread."""
        return (3 if self.best is not None and self.best.waits() else 2) * self._times.longest

    def monitored_in(self, validator: Validator, step: int) -> bool:
        """Return True after a validation inside an epoch that measured the monitored metric."""
        return self._monitor.partition("/")[0] in validator.feeders and validator.validated_step == step

    def gather_data_state(self, data_state: Any) -> Any:
        """Return where the training data is, of each process if each has data of its own. All processes call it."""
        return {"processes": self._hosts.all_gather_json(data_state, "save")} if self._each_data else data_state

    def save(self, copied: StateCopy) -> None:
        """Leave a checkpoint to the reporter and the saver."""
        if self._consensus is not None:
            self._consensus.since = 0.0
        self._last_saved = copied.position
        self._saved_at = requested_at = time.monotonic()
        self._reporter.put(Callback(lambda: self._complete(copied, requested_at)))

    def reserve_copy(self) -> None:
        """Block until another copy for the best epoch may be made.

        A copy does not wait for the device. It waits for the reporter where that has earlier copies to decide about, so
        that memory holds only so many of them.
        """

        def check() -> None:
            self._reporter.check()
            self._hosts.raise_if_peer_failed()

        assert self.best is not None
        with self._spent.saving():
            self.best.reserve(check)

    def keep_if_best(self, copied: StateCopy) -> None:
        """Let the reporter keep a copy if it is the best so far. `reserve_copy` was called before."""
        # Popped, as the reporter holds its last items until the next ones come, and the copy need not live as long.
        held = [copied]
        self._reporter.put(Callback(lambda: self._keep_if_best(held.pop())))

    def write_best(self) -> None:
        """Hand the best snapshot to the saver, unless it is written already; in order with what was put before."""
        self._reporter.put(Callback(self.submit_best))

    def finish_best(self) -> None:
        """Wait until the best snapshot is on the disk: a run that fails writes nothing else."""
        self.write_best()
        self._reporter.wait()
        self._saver.wait()

    def check(self) -> None:
        """Raise the error of the saver's thread, if any."""
        self._saver.check()

    def wait(self) -> None:
        """Block until everything that was submitted is written."""
        self._saver.wait()

    def close(self, seconds: float | None = None) -> None:
        """End the saver's thread after what was submitted; see `Saver.close`."""
        self._saver.close(seconds)

    # -- the reporter's thread -----------------------------------------------------------------------------------------

    def _keep_if_best(self, copied: StateCopy) -> None:
        """Called in order: the history has the value of the position."""
        best = self.best
        assert best is not None
        try:
            if best.improves(self._score(copied.position.step)):
                snapshot = self._snapshot(copied)
                if snapshot is not None:
                    in_place = self._runner.strategy.platform in IN_PLACE
                    with OomContext(CHECKPOINT):
                        best.keep(snapshot if in_place else snapshot.to_host())
        finally:
            best.release()

    def submit_best(self) -> None:
        """Hand the best snapshot over now: on the reporter's thread, or when that has ended."""
        if self.best is not None and (snapshot := self.best.take()) is not None:
            self._submit(snapshot, time.monotonic())

    def _submit(self, snapshot: Snapshot, requested_at: float) -> None:
        with OomContext(CHECKPOINT), self._reporter.saving():
            snapshot = snapshot.to_devices()
            self._requested_at.put(requested_at)
            self._saver.submit(snapshot.state, snapshot.full_progress, snapshot.further)

    def _complete(self, copied: StateCopy, requested_at: float) -> None:
        """Called in order: history and log offsets are those of the position."""
        best, at_stop, step = self.best, copied.known["at_stop"], copied.position.step
        repeats = best is not None and best.waits(step)
        if repeats and at_stop:
            # This position is the best already, so its checkpoint stays when the run that stops here is resumed.
            copied = dataclasses.replace(copied, known={**copied.known, "at_stop": False, "at_end": True})
        snapshot = self._snapshot(copied)
        if snapshot is None:
            return
        if best is not None and (repeats or (not at_stop and best.improves(snapshot.progress["score"]))):
            best.keep(snapshot, writing=True)
        # The best comes first, so that a run that is killed between the two, and resumed from the older checkpoint,
        # trains the rest again. A run that has to stop saves its last step first: it may not have the time for both.
        if not at_stop:
            self.submit_best()
        self._submit(snapshot, requested_at)
        self.submit_best()

    def _score(self, step: int) -> float | None:
        """Return the value of the monitored metric at a step, if it is a finite number."""
        point = self._reporter.history.last(self._monitor)
        if point is None or point.step != step or isinstance(point.value, str) or not np.isfinite(point.value):
            return None
        return point.value

    def _snapshot(self, copied: StateCopy) -> Snapshot | None:
        """Return everything of a checkpoint, or None if its state is not finite."""
        state, p = copied.state, copied.position
        with OomContext(CHECKPOINT):
            nonfinite = int(np.asarray(state.extra["nonfinite"])[0]) > 0
        if nonfinite:
            return None
        assert int(state.step) == p.step, f"the loop counted {p.step} steps, the device {int(state.step)}"
        reported = self._reporter.snapshot(in_validation=bool(p.pending))
        progress = {
            "format": FORMAT,
            "step": p.step,
            "position": p.to_json(),
            "fingerprint": self._fingerprint,
            "monitor": self._monitor,
            "higher_is_better": self._higher_is_better,
            "score": self._score(p.step),
            "root_key": np.asarray(jax.random.key_data(state.rng)).tolist(),
            "key_impl": str(jax.random.key_impl(state.rng)),
            "log": reported.log,
            "epoch_values": reported.epoch_values,
            "host_metrics": reported.host_metrics,
            "config": self._options.config_kept,
            "made_on": platform_facts(),
            **copied.known,
        }
        further = {}
        if copied.metrics is not None:
            states = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(copied.metrics))}
            further["in_flight"] = {"states": states, "rows": self._reporter.rows.to_store()}
        return Snapshot(state, encode(progress), reported.history, further)

    # -- the saver's thread --------------------------------------------------------------------------------------------

    def _flush_logs(self, progress: Mapping[str, Any]) -> None:
        # Before the checkpoint: one that is complete may rely on the logs up to its offsets, after a power cut, too.
        self._reporter.flush_logs(progress["log"])

    def record(self, state: TrainState, progress: Mapping[str, Any]) -> None:
        """Write the parts of a complete checkpoint that have files of their own."""
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
                path = self.store.record(step, recorder.extension, write, item)
            except Exception as error:
                what = f"the {NAMES[item]} of step {step} could not be recorded beside {self.store.path(step)}"
                if self._options.on_save_error == "raise":
                    error.add_note(f"{what}, which is complete")
                    raise
                self._reporter.warn(f"{what}, and training goes on: {type(error).__name__}: {error}")
            else:
                if path is not None:
                    self._reporter.log.info("recorded %s", path)

    def _write_record(self, recorder: Recorder, item: str, state: TrainState, file: Any) -> None:
        if item == "model":
            recorder.write(self._runner.rebuild(state), file)
        elif item == "optim":
            recorder.write(state.opt_state, file)
        else:
            recorder.write({"step": state.step, "lr_scale": state.lr_scale}, file)

    def _saved(self, progress: Mapping[str, Any], seconds: float) -> None:
        """Report a complete checkpoint."""
        step, epoch = progress["step"], progress["ends_epoch"] or progress["position"]["epoch"]
        path = self.store.path(step)
        self._reporter.log.info("saved %s in %.2f s", path, seconds)
        self._times.longest = max(self._times.longest, time.monotonic() - self._requested_at.get())
        self._times.failed_step = None
        if self.best is not None:
            self.best.written(step)
        self._reporter.report_save(epoch, step, path, seconds)

    def _not_saved(self, progress: Mapping[str, Any], error: Exception) -> None:
        """Report a checkpoint that could not be written. The run continues."""
        step = progress["step"]
        self._requested_at.get()
        if self.best is not None:
            self.best.failed(step)
        self._times.failed_step = step  # the end of the run tries again
        what = f"could not be written to {self.store.path(step)}, and training goes on: {type(error).__name__}: {error}"
        self._reporter.warn(f"the checkpoint of step {step} {what}")
        if not is_full(error):  # the log needs the room that is left
            self._reporter.log.info("the traceback:", exc_info=error)


@functools.cache
def platform_facts() -> dict[str, Any]:
    """Versions and hardware, on which the bits of a run depend besides its own program and data."""
    device = jax.devices()[0]
    return {
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "platform": device.platform,
        "device": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "machine": host.machine(),
        "python": host.python_version(),
    }
