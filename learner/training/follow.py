"""Evaluation of the checkpoints of a run as they appear."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from learner.checkpoint.manifest import DamagedError
from learner.distributed.process_group import hosts
from learner.errors import LearnerError
from learner.runs.evaluations import check_split, evaluated_steps
from learner.runs.run_reader import RunReader
from learner.training.definition import TrainingDefinition
from learner.training.evaluation import Evaluation, Evaluator
from learner.training.feed.inputs import has_several
from learner.training.files.run_directory import open_store

POLL_SECONDS = 10.0


def follow(
    definition: TrainingDefinition,
    data: Any,
    split: str,
    *,
    is_running: Callable[[], bool] | None = None,
    sleep: Callable[[], None] = lambda: time.sleep(POLL_SECONDS),
) -> Iterator[Evaluation]:
    """Yield the evaluation of each checkpoint of a run, even while another process trains it, until the run ends.

    Each checkpoint is evaluated once: a restarted follower skips those whose evaluations are in the run. Checkpoints
    that the run removes in the meantime are left out.

    Args:
      definition: the definition of a learner for the run's directory.
      data: as for `Learner.evaluate`; it is read for each checkpoint.
      split: the name of the split for the values in the run.
      is_running: returns True while the run may save further checkpoints; default: determined from its files.
      sleep: waits between two polls.
    """
    check_split(split)
    directory, evaluator = definition.options.directory, Evaluator(definition)
    is_running = is_running or (lambda: RunReader(directory).status.word == "running")
    splits = [f"{split}-{name}" for name in data] if has_several(data) else [split]

    def pending() -> list[int]:
        evaluated = evaluated_steps(directory, splits)
        return [step for step in _steps(definition) if step not in evaluated]

    while True:
        # One process polls for all of them, as the files of an active run change. It checks whether the run has ended
        # before it lists the checkpoints, and so finds the last one. The processes meet anew each time: an evaluation
        # that failed because its checkpoint was removed does not concern them.
        processes = hosts()
        ends = processes.run_on_primary(lambda: not is_running())
        for step in processes.run_on_primary(pending):
            with _removed(definition, step):
                yield evaluator.evaluate_checkpoint(data, split, step=step)
        if ends:
            return
        sleep()


def _steps(definition: TrainingDefinition) -> list[int]:
    with contextlib.closing(open_store(definition.options)) as store:
        return [entry.step for entry in store.entries]


@contextlib.contextmanager
def _removed(definition: TrainingDefinition, step: int) -> Iterator[None]:
    """Ignore errors from a checkpoint that the run removes while it is read."""
    try:
        yield
    except (DamagedError, LearnerError, OSError, ValueError):  # the last two: from Orbax
        if step in _steps(definition):
            raise
