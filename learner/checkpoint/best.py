"""The best checkpoint of a run, in memory until it is written.

Writing one at the end of every epoch would cost too much where epochs are short. So the loop copies the state wherever
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

from learner.checkpoint.items import is_key
from learner.steps.train_state import TrainState

UNDECIDED_BYTES = 2**26  # of small states, several copies may wait for a decision
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
        state = jax.device_put(self.state, self.shardings)
        return dataclasses.replace(self, state=state, shardings=None, host_copy=self)


class BestSnapshot:
    """Holds the best snapshot until the saver has it.

    Three threads share it. The loop reserves and offers copies; the reporter, which reads the monitored metric, decides
    about them in order and takes the best one out when it has to be written; the saver gives back what it could not
    write. A lock guards the snapshot. The score is written by the reporter alone.

    Args:
      higher_is_better: the direction of the monitored metric.
      score: of the best checkpoint on the disk, or None.
      state_bytes: the size of the state. It bounds how many copies may wait for a decision.

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
        """Block until another copy may be made; `check` is called now and then meanwhile, and may raise."""
        # With a timeout: a reporter that has failed decides about nothing any more, and `check` raises its error.
        while not self._undecided.acquire(timeout=0.1):
            check()

    def offer(self, candidate: Any) -> None:
        """Leave a copy that the reporter has to decide about. `reserve` was called before it was made."""
        self._candidates.append(candidate)

    @contextlib.contextmanager
    def candidate(self) -> Iterator[Any]:
        """Yield the oldest copy without a decision. The block ends with one, and with it the copy's reservation."""
        try:
            yield self._candidates.popleft()
        finally:
            self._undecided.release()

    def improves(self, score: float | None) -> bool:
        """Return True if the score is better than the best so far. Of equal scores the earlier is better."""
        return score is not None and (self._score is None or self._sign * score < self._sign * self._score)

    def keep(self, snapshot: Snapshot) -> None:
        """Hold a snapshot in place of the one before."""
        with self._lock:
            self._snapshot, self._step, self._score = snapshot, snapshot.step, snapshot.progress["score"]

    def supersede(self, step: int, score: float | None) -> None:
        """Record that the best is the checkpoint of a step that is about to be written, and drop the one before."""
        with self._lock:
            self._snapshot, self._step, self._score = None, step, score

    def is_pending(self, step: int | None = None) -> bool:
        """Return True if a snapshot, or the one of this step, is held."""
        with self._lock:
            return self._snapshot is not None and step in (None, self._snapshot.step)

    def pop(self) -> Snapshot | None:
        """Return the snapshot that has to be written now, or None. It is no longer held."""
        with self._lock:
            snapshot, self._snapshot = self._snapshot, None
            return snapshot

    def give_back(self, snapshot: Snapshot) -> None:
        """Hold a snapshot again that could not be written, unless a better one has come since."""
        # Compared by step, under the lock: the reporter may have kept or superseded another one meanwhile.
        with self._lock:
            if self._step == snapshot.step:
                # The copy on the host, if there is one: that on the devices would take the memory of a second state.
                self._snapshot = snapshot.host_copy or snapshot
