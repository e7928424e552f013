"""The best checkpoint of a run, in memory until it is written.

Writing a checkpoint at the end of every epoch is too expensive for short epochs. So the loop copies the state whenever
the monitored metric has a new value and no save is due. The reporter, which reads the value, keeps the copy if it is
the best so far. It is written before the next checkpoint, or when the run ends.
"""

import collections
import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from learner.steps.train_state import TrainState
from learner.util.trees import is_key

UNDECIDED_BYTES = 2**26  # of copies that wait for a decision; several if the state is small
MOST_UNDECIDED = 64


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint to be written.

    Attributes:
      state: a copy of the state, on the devices or on the host.
      progress: the item `progress`, as JSON, except for the history.
      history: returns the history up to this step as JSON. Called when the snapshot is written, as the history may be
        very long.
      further: items in addition to those of the state.
      shardings: the shardings of the arrays before they were moved to the host; None if they were not.
      host_copy: the snapshot on the host from which this one was moved back to the devices, or None.
    """

    state: TrainState
    progress: dict[str, Any]
    history: Callable[[], dict[str, Any]]
    further: Mapping[str, Any]
    shardings: TrainState | None = None
    host_copy: "Snapshot | None" = None

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
        """Return the snapshot with its state in the host's memory. Waits until the devices have computed it.

        Random keys and arrays on devices of several processes stay on the devices.
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
        """Return the snapshot with its state on the devices again, as before `to_host`."""
        if self.shardings is None:
            return self
        state = jax.device_put(self.state, self.shardings)
        return dataclasses.replace(self, state=state, shardings=None, host_copy=self)


class BestSnapshot:
    """Hold the best snapshot until the saver writes it.

    Three threads share it. The loop reserves and offers copies. The reporter, which reads the monitored metric, decides
    about them in order, and removes the best one when it must be written. The saver gives back a snapshot that it could
    not write. A lock guards the snapshot. Only the reporter writes the score.

    Args:
      higher_is_better: the direction of the monitored metric.
      score: the score of the best checkpoint on the disk, or None.
      state_bytes: the size of the state, which limits the number of copies that wait for a decision.

    >>> best = BestSnapshot(higher_is_better=False, score=0.5, state_bytes=4)
    >>> best.improves(0.5), best.improves(0.4), best.improves(None)
    (False, True, False)
    """

    def __init__(self, higher_is_better: bool, score: float | None, state_bytes: int) -> None:
        self._sign, self._score = -1.0 if higher_is_better else 1.0, score
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._step: int | None = None
        self._candidates: collections.deque[Any] = collections.deque()  # `append` and `popleft` are atomic
        self._undecided = threading.Semaphore(max(1, min(MOST_UNDECIDED, UNDECIDED_BYTES // max(1, state_bytes))))

    def reserve(self, check: Callable[[], None]) -> None:
        """Block until another copy may be made. Meanwhile `check` is called now and then, and may raise."""
        # With a timeout: a failed reporter makes no more decisions, and `check` raises its error.
        while not self._undecided.acquire(timeout=0.1):
            check()

    def offer(self, candidate: Any) -> None:
        """Pass a copy to the reporter, which decides about it. Call `reserve` before making the copy."""
        self._candidates.append(candidate)

    @contextlib.contextmanager
    def candidate(self) -> Iterator[Any]:
        """Yield the oldest copy without a decision. The block must decide; its end releases the copy's reservation."""
        try:
            yield self._candidates.popleft()
        finally:
            self._undecided.release()

    def improves(self, score: float | None) -> bool:
        """Return True if the score is better than the best so far. Of equal scores, the earlier is better."""
        return score is not None and (self._score is None or self._sign * score < self._sign * self._score)

    def keep(self, snapshot: Snapshot) -> None:
        """Hold a snapshot in place of the previous one."""
        with self._lock:
            self._snapshot, self._step, self._score = snapshot, snapshot.step, snapshot.progress["score"]

    def supersede(self, step: int, score: float | None) -> None:
        """Record that the checkpoint about to be written is the best, and drop the previous snapshot."""
        with self._lock:
            self._snapshot, self._step, self._score = None, step, score

    def is_pending(self, step: int | None = None) -> bool:
        """Return True if a snapshot is held, or with `step` the snapshot of this step."""
        with self._lock:
            return self._snapshot is not None and step in (None, self._snapshot.step)

    def pop(self) -> Snapshot | None:
        """Return the snapshot to write now, or None, and no longer hold it."""
        with self._lock:
            snapshot, self._snapshot = self._snapshot, None
            return snapshot

    def give_back(self, snapshot: Snapshot) -> None:
        """Hold a snapshot again that could not be written, unless there is a better one by now."""
        # Compared by step, under the lock: the reporter may have kept or superseded another one meanwhile.
        with self._lock:
            if self._step == snapshot.step:
                # The copy on the host, if any: the one on the devices would take the memory of a second state.
                self._snapshot = snapshot.host_copy or snapshot
