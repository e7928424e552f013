"""The parts of a checkpoint: the loop's copy of the state, and the reporter's view of the same step."""

import dataclasses
import functools
import importlib.metadata
import platform as host
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from learner.checkpoint.best import Snapshot
from learner.checkpoint.store import FORMAT
from learner.steps.finite import Mark
from learner.steps.train_state import TrainState
from learner.training.programs.oom import CHECKPOINT, OomContext
from learner.training.progress.position import Position
from learner.training.reporting.messages import ReporterSnapshot
from learner.util.default_device import default_device
from learner.util.json_values import encode


@dataclasses.dataclass(frozen=True)
class StateCopy:
    """The loop's part of a checkpoint: a copy of everything that the next dispatch changes.

    Attributes:
      state: a copy of the state, as the next dispatch donates the originals.
      metrics: the train split's metric states within an epoch, or None.
      position: the position of the run.
      fields: the loop's fields of `progress`.
    """

    state: TrainState
    metrics: Any
    position: Position
    fields: Mapping[str, Any]

    @property
    def at_stop(self) -> bool:
        """Return True if the checkpoint is made because the run stops there."""
        at_stop: bool = self.fields["at_stop"]
        return at_stop

    @property
    def has_rows(self) -> bool:
        """Return True if the checkpoint holds the collected rows of an epoch in progress."""
        return self.metrics is not None


@dataclasses.dataclass(frozen=True)
class SaveAnswer:
    """The answer to a save request.

    Attributes:
      reported: the reporter's part of the checkpoint; None if no checkpoint is to be written.
      score: the value of the monitored metric at its step, or None.
      best: a snapshot of an earlier step to write as well, or None.
      is_best: True if the checkpoint represents the best epoch, whose own copy is not written yet.
    """

    reported: ReporterSnapshot | None
    score: float | None
    best: Snapshot | None
    is_best: bool = False


@dataclasses.dataclass(frozen=True)
class SnapshotComposer:
    """Compose snapshots from both parts. It has no mutable state, so any thread may call it.

    Attributes:
      monitor: the key of the metric that selects the best.
      higher_is_better: its direction.
      fingerprint: the fingerprint of the run; see `learner.training.checks.fingerprints`.
      config: the config of the run, for the checkpoint.
    """

    monitor: str
    higher_is_better: bool
    fingerprint: Mapping[str, Any]
    config: Any

    def compose(self, copied: StateCopy, reported: ReporterSnapshot, score: float | None) -> Snapshot:
        """Return the complete content of a checkpoint. Waits until the devices have computed the state.

        Args:
          copied: the loop's part.
          reported: the reporter's part, at the position of the copy.
          score: the value of the monitored metric at its step, or None.
        """
        state, p = copied.state, copied.position
        with OomContext(CHECKPOINT):  # the copy was only dispatched: a lack of memory for it shows here
            step, marks = np.asarray(state.step).max(), np.atleast_2d(np.asarray(state.extra["nonfinite"]))
        assert step == p.step, f"the loop counted {p.step} steps, the device {step}"
        # A member of a population ends alone.
        assert not marks[:, Mark.HALTED_AT].all(), "the reporter has not seen a step that is not finite"
        progress = {
            "format": FORMAT,
            "step": p.step,
            "position": p.to_json(),
            "fingerprint": self.fingerprint,
            "monitor": self.monitor,
            "higher_is_better": self.higher_is_better,
            "score": score,
            "root_key": np.asarray(jax.random.key_data(state.rng)).tolist(),
            "key_impl": str(jax.random.key_impl(state.rng)),
            **reported.progress,
            "config": self.config,
            "made_on": platform_facts(),
            **copied.fields,
        }
        if reported.members:
            progress["members"] = [member.of_member for member in reported.members]
        further = {}
        if copied.metrics is not None:
            states = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(copied.metrics))}
            further["in_flight"] = {"states": states, "rows": reported.all_rows}
        return Snapshot(state, encode(progress), reported.history, further)


@functools.cache
def platform_facts() -> dict[str, Any]:
    """Return the versions and hardware that affect the bits of a run, in addition to its program and data."""
    device = default_device()
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
