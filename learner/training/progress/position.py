"""The position of a run, as Python numbers in the loop."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from learner.training.feed.dispatch import Dispatch

SAVED_NAMES = {"pending": "due", "remaining_splits": "left"}
"""The names of fields in checkpoints, if they differ."""


@dataclasses.dataclass
class Position:
    """The position of a run in its training.

    Attributes:
      epoch: the current epoch, from 1.
      batch: the number of micro-batches of this epoch so far.
      step: the number of optimizer steps of the run so far.
      in_epoch: the number of optimizer steps of this epoch so far.
      pending: the work that remains after the last step: a `validation` inside an epoch, the validation and the end of
        the `epoch`, or only the `hooks` at its end; otherwise empty.
      remaining_splits: the splits that the pending validation must still read.
      lr_factor: the factor by which hooks have scaled the learning rate.
    """

    # All values are immutable, as `dataclasses.replace` makes a shallow copy.
    epoch: int = 1
    batch: int = 0
    step: int = 0
    in_epoch: int = 0
    pending: str = ""
    remaining_splits: tuple[str, ...] = ()
    lr_factor: float = 1.0

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> "Position":
        """Return the position of a checkpoint."""
        saved = {"lr_factor": 1.0, **saved}  # older checkpoints lack it
        fields = {field.name: saved[SAVED_NAMES.get(field.name, field.name)] for field in dataclasses.fields(cls)}
        return cls(**{**fields, "remaining_splits": tuple(fields["remaining_splits"])})

    def to_json(self) -> dict[str, Any]:
        """Return the position for a checkpoint."""
        return {SAVED_NAMES.get(name, name): value for name, value in dataclasses.asdict(self).items()}

    @property
    def in_validation(self) -> bool:
        """True if a validation is pending."""
        return self.pending in ("validation", "epoch")

    @property
    def has_closed_training(self) -> bool:
        """True if the train split of the epoch is closed, and the epoch has not ended."""
        return self.pending in ("epoch", "hooks")

    @property
    def shown_epoch(self) -> int:
        """The current epoch, or the last one if the next has not begun; 0 before the first one."""
        return self.epoch if self.batch else self.epoch - 1

    def advance(self, dispatch: Dispatch) -> None:
        """Count a dispatch."""
        self.batch += dispatch.batches
        self.step += dispatch.steps
        self.in_epoch += dispatch.steps

    def next_epoch(self) -> None:
        """Begin the next epoch."""
        self.epoch, self.batch, self.in_epoch = self.epoch + 1, 0, 0
