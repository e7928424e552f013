"""The schedule of checkpoints, and the rule for which are kept."""

import dataclasses
import math
from collections.abc import Collection, Mapping

from learner.checkpoint.records import RECORDED
from learner.errors import LearnerError
from learner.records.recorder import Recorder
from learner.util.addresses import refuse_store
from learner.util.number_checks import check_int, is_number


@dataclasses.dataclass(frozen=True)
class CheckpointOptions:
    """The options of `with_file_checkpointer`.

    Attributes:
      keep_last: the number of newest checkpoints to keep, 1 or more.
      keep_best: the number of best checkpoints by `monitor` to keep as well.
      keep_every: the interval in epochs of checkpoints to save and keep permanently, or `None`.
      monitor: a metric by key; `None`: `valid/Loss`, or `train/Loss` without validation.
      mode: `"min"` or `"max"`; `None`: the metric's own direction.
      every_epochs: the interval in epochs between saves at the end of an epoch.
      every_steps: the interval in optimizer steps between saves.
      every_seconds: save at the first dispatch that ends this long after the last save.
      epoch_ends_after: save at the first epoch end this long after the last save.
      record: writes the model of each checkpoint to a separate file next to it; `None` for no such files.
      record_items: the parts of a checkpoint that `record` writes.
      directory: the directory of the checkpoints, a path or `gs://...`; `None`: `checkpoint/` of the run.
    """

    keep_last: int = 2
    keep_best: int = 1
    keep_every: int | None = None
    monitor: str | None = None
    mode: str | None = None
    every_epochs: int | None = 1
    every_steps: int | None = None
    every_seconds: float | None = None
    epoch_ends_after: float | None = None
    record: Recorder | None = None
    record_items: tuple[str, ...] = ("model",)
    directory: str | None = None

    def __post_init__(self) -> None:
        numbers = {"keep_last": 1, "keep_best": 0, "keep_every": 1, "every_epochs": 1, "every_steps": 1}
        for name, least in numbers.items():
            value = getattr(self, name)
            optional = value is None and name not in ("keep_last", "keep_best")
            if not optional:
                value = check_int(name, value, least, of="with_file_checkpointer", code="checkpoint-option-number")
                object.__setattr__(self, name, value)  # an int, also of a NumPy integer
        if self.directory is not None:
            refuse_store(self.directory)
        seconds = self.every_seconds
        if seconds is not None and not (is_number(seconds) and seconds > 0):  # NaN is not greater either
            raise LearnerError(
                f"every_seconds of with_file_checkpointer is {seconds!r}; it needs a number of seconds greater than 0",
                code="checkpoint-every-seconds-value",
                seconds=seconds,
            )
        if not (self.monitor is None or isinstance(self.monitor, str)):
            raise LearnerError(
                f"monitor of with_file_checkpointer is {self.monitor!r}; it needs a metric by key, such as "
                "'valid/Loss'",
                code="checkpoint-monitor-value",
            )
        if not (self.record is None or isinstance(self.record, Recorder)):
            raise LearnerError(
                f"record of with_file_checkpointer is {self.record!r}; it needs a recorder, such as CompactRecorder()",
                code="checkpoint-recorder-type",
            )
        unknown = [name for name in self.record_items if name not in RECORDED]
        if unknown or not self.record_items or len(set(self.record_items)) < len(self.record_items):
            raise LearnerError(
                f"record_items of with_file_checkpointer is {self.record_items!r}; it needs one or more of "
                f"{', '.join(map(repr, RECORDED))}, each once",
                code="checkpoint-record-items-unknown",
            )
        if self.record is None and self.record_items != ("model",):
            raise LearnerError(
                f"record_items of with_file_checkpointer is {self.record_items!r}, and nothing is recorded; give "
                "record= too, such as CompactRecorder()",
                code="checkpoint-recorder-missing",
            )
        if self.mode not in (None, "min", "max"):
            raise LearnerError(
                f"mode of with_file_checkpointer is {self.mode!r}; it needs 'min' or 'max'",
                code="checkpoint-mode-unknown",
            )

    def due(self, ended: int | None, step: int, seconds: float) -> bool:
        """Return True if a save is due now.

        Args:
          ended: the epoch that has just ended, or `None` inside of one.
          step: optimizer steps so far.
          seconds: the seconds since the last save.
        """
        periods = [(self.every_epochs, ended), (self.keep_every, ended), (self.every_steps, step)]
        if any(every is not None and number is not None and number % every == 0 for every, number in periods):
            return True
        waits = [self.every_seconds, self.epoch_ends_after if ended is not None else None]
        return any(wait is not None and seconds >= wait for wait in waits)


@dataclasses.dataclass(frozen=True)
class Retention:
    """The rule for which checkpoints to keep: the newest, the best, and one per interval of epochs, independently.

    A worsening metric never evicts the newest checkpoint. NaN is never among the best. Of equal values, the earlier is
    better.

    >>> keep = Retention(last=1, best=1, every=None, higher_is_better=False)
    >>> keep.kept({10: (1, 0.5), 20: (2, 0.4), 30: (3, 0.9), 40: (4, float("nan"))})
    {40, 20}
    """

    last: int
    best: int
    every: int | None
    higher_is_better: bool

    def kept(
        self,
        checkpoints: Mapping[int, tuple[int | None, float | None]],
        at_stop: Collection[int] = (),
        at_end: Collection[int] = (),
    ) -> set[int]:
        """Return the steps to keep, given `{step: (epoch that ends there or None, value of the monitor or None)}`.

        A checkpoint made only because a run was stopped (`at_stop`) is kept only while it is the newest, and is never
        one of the best: a run that resumes there keeps the checkpoints that it would have kept without the stop. A
        checkpoint made only because a run ended (`at_end`) may be one of the best if the run is extended.
        """
        # The newest stays even if it was made at a stop, as the run resumes from it.
        steps = sorted(checkpoints)
        last = [step for step in steps if (step not in at_stop and step not in at_end) or step == steps[-1]]
        due = {step: checkpoints[step] for step in steps if step not in at_stop}
        sign = -1.0 if self.higher_is_better else 1.0
        scored = [
            (sign * score, step) for step, (_, score) in due.items() if score is not None and not math.isnan(score)
        ]
        best = [step for _, step in sorted(scored)[: self.best]]
        every = [step for step, (epoch, _) in due.items() if self.is_permanent(epoch)]
        return {*last[-self.last :], *best, *every}

    def is_permanent(self, epoch: int | None) -> bool:
        """Return True if a checkpoint at the end of this epoch is kept permanently. None is inside an epoch."""
        return self.every is not None and epoch is not None and epoch % self.every == 0
