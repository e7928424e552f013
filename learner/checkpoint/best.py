"""The best checkpoint of a run, in memory until it is written.

Writing one at the end of every epoch would cost too much where epochs are short. So the loop copies the state wherever
the monitored metric has a new value and no save is due, and the worker, which reads the value, keeps the copy if it is
the best so far. It is written before the next checkpoint, or when the run ends.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from learner.checkpoint.items import is_key
from learner.steps.state import TrainState

UNDECIDED_BYTES = 2**26  # of small states, several copies may wait for the worker
MOST_UNDECIDED = 64


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The data that a checkpoint is written from.

    Attributes:
      state: a copy of its own, on the devices or on the host.
      progress: the item of this name, as JSON, but for the history.
      history: returns the history up to here as JSON. It is called when the snapshot is written: there may be very many
        values.
      further: items besides those of the state.
      shardings: where the arrays lay before they were moved to the host; None if they were not.
    """

    state: TrainState
    progress: dict[str, Any]
    history: Callable[[], dict[str, Any]]
    further: Mapping[str, Any]
    shardings: TrainState | None = None

    @property
    def step(self) -> int:
        """The optimizer step."""
        step: int = self.progress["step"]
        return step

    @property
    def full_progress(self) -> dict[str, Any]:
        """The item `progress` with the history."""
        return {**self.progress, "history": self.history()}

    def to_host(self) -> "Snapshot":
        """Return the snapshot with its state in the memory of the host. Waits until the devices have computed it.

        Random keys stay on the devices, and so does what lies on devices of several processes.
        """
        leaves: list[Any] = jax.tree.leaves(self.state)
        moves = [x.is_fully_addressable and not is_key(x) for x in leaves]
        # All transfers start before the first is awaited, so that they overlap.
        for x in (x for x, moved in zip(leaves, moves, strict=True) if moved):
            x.copy_to_host_async()
        host = [np.asarray(x) if moved else x for x, moved in zip(leaves, moves, strict=True)]
        shardings = jax.tree.map(lambda x: x.sharding, self.state)
        state = jax.tree.unflatten(jax.tree.structure(self.state), host)
        return dataclasses.replace(self, state=state, shardings=shardings)

    def to_devices(self) -> "Snapshot":
        """Return the snapshot with its state where it was before `to_host`."""
        if self.shardings is None:
            return self
        return dataclasses.replace(self, state=jax.device_put(self.state, self.shardings), shardings=None)


class BestSnapshot:
    """Holds the best snapshot until it is on the disk.

    `improves`, `keep` and `take` belong to the worker's thread, `reserve` to the loop's, `written` and `failed` to the
    saver's; `release` may be called from any.

    Args:
      higher_is_better: the direction of the monitored metric.
      score: of the best checkpoint on the disk, or `None`.
      state_bytes: the size of the state. It bounds how many copies may wait for the worker at once.

    >>> best = BestSnapshot(higher_is_better=False, score=0.5, state_bytes=4)
    >>> best.improves(0.5), best.improves(0.4), best.improves(None)
    (False, True, False)
    """

    def __init__(self, higher_is_better: bool, score: float | None, state_bytes: int) -> None:
        self._sign, self._score = -1.0 if higher_is_better else 1.0, score
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._writing = False
        self._undecided = threading.Semaphore(max(1, min(MOST_UNDECIDED, UNDECIDED_BYTES // max(1, state_bytes))))

    def reserve(self, check: Callable[[], None]) -> None:
        """Block until another copy may be made; `check` is called now and then meanwhile, and may raise."""
        while not self._undecided.acquire(timeout=0.1):
            check()

    def release(self) -> None:
        """End a reservation: the copy is kept or dropped."""
        self._undecided.release()

    def improves(self, score: float | None) -> bool:
        """Return True if the score is better than the best so far. Of equal scores the earlier is better."""
        return score is not None and (self._score is None or self._sign * score < self._sign * self._score)

    def keep(self, snapshot: Snapshot, writing: bool = False) -> None:
        """Hold a snapshot in place of the one before. `writing`: the saver has it already."""
        with self._lock:
            self._snapshot, self._writing = snapshot, writing
            self._score = snapshot.progress["score"]

    def waits(self, step: int | None = None) -> bool:
        """Return True if a snapshot, or the one of this step, is held that the saver does not have."""
        with self._lock:
            held = self._snapshot
            return held is not None and not self._writing and step in (None, held.step)

    def take(self) -> Snapshot | None:
        """Return the snapshot that has to be written now, or None. It stays in memory until it is written."""
        with self._lock:
            # Not dropped here: if writing fails, the snapshot must still be there for the next try.
            taken = None if self._writing else self._snapshot
            self._writing = self._snapshot is not None
            return taken

    def written(self, step: int) -> None:
        """Drop the snapshot if it is the one of this step."""
        with self._lock:
            if self._snapshot is not None and self._snapshot.step == step:
                self._snapshot = None

    def failed(self, step: int) -> None:
        """Let the snapshot of this step be written again."""
        with self._lock:
            if self._snapshot is not None and self._snapshot.step == step:
                self._writing = False
