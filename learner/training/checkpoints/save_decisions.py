"""The reporter's part of saving: decisions about a save, made at its position in the order of values.

Everything here runs on the reporter's thread, which has just read the values of all earlier steps. On another thread
the history and the log offsets would belong to a later step.
"""

from learner.checkpoint.best import BestSnapshot
from learner.training.programs.oom import CHECKPOINT, OomContext
from learner.training.progress.position import Position
from learner.training.progress.snapshot import SaveAnswer, SnapshotComposer, StateCopy
from learner.training.reporting.reporter import Reporter

IN_PLACE = ("cpu",)  # platforms that use the host's memory: a copy need not be moved there


class SaveDecisions:
    """Decide what a save writes, and which copies are the best so far. Its methods run on the reporter's thread.

    Args:
      reporter: has the history and the log offsets.
      best: holds the best epoch; None if only due checkpoints can be the best.
      composer: composes snapshots.
      platform: the platform of the devices.
    """

    def __init__(self, reporter: Reporter, best: BestSnapshot | None, composer: SnapshotComposer, platform: str):
        self._reporter, self._best, self._composer = reporter, best, composer
        self._in_place = platform in IN_PLACE

    def answer(self, position: Position, at_stop: bool, with_rows: bool) -> SaveAnswer:
        """Return the reporter's part of a save at a position."""
        best, step = self._best, position.step
        if self._reporter.halted is not None:  # no checkpoint has anything of the steps after it
            return SaveAnswer(None, None, None)
        score = self._score(step)
        # First: it writes the logs, and if that fails, the best snapshot must still be held.
        reported = self._reporter.snapshot(position.in_validation, with_rows)
        if best is None:
            return SaveAnswer(reported, score, None)
        is_best = best.is_pending(step)
        # A checkpoint made only because of a stop is removed once the run has resumed, so it cannot be the best.
        if is_best or (not at_stop and best.improves(score)):
            best.supersede(step, score)
        return SaveAnswer(reported, score, best.pop(), is_best)

    def pop_best(self) -> SaveAnswer:
        """Return the best snapshot to be written alone, if any."""
        return SaveAnswer(None, None, None if self._best is None else self._best.pop())

    def decide_candidate(self) -> None:
        """Keep the oldest offered copy if it is the best so far."""
        assert self._best is not None
        with self._best.candidate() as copied:
            self._decide(copied, self._best)

    def _decide(self, copied: StateCopy, best: BestSnapshot) -> None:
        score = self._score(copied.position.step)
        if self._reporter.halted is not None or not best.improves(score):
            return
        # Only if it is the best: a snapshot copies the history and writes the logs.
        reported = self._reporter.snapshot(copied.position.in_validation, copied.has_rows)
        snapshot = self._composer.compose(copied, reported, score)
        with OomContext(CHECKPOINT):
            best.keep(snapshot if self._in_place else snapshot.to_host())

    def _score(self, step: int) -> float | None:
        return self._reporter.score(self._composer.monitor, self._composer.higher_is_better, step)
