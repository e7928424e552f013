"""User functions that change training batches inside of the programs: mixup, noise, a curriculum by step."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from learner.errors import LearnerError
from learner.steps.key_streams import BATCH_STREAM
from learner.util.signatures import positional_count

Array = Any
Batch = Any


@dataclasses.dataclass(frozen=True)
class BatchTransform:
    """A function that changes a batch, with a uniform call for all signatures.

    Attributes:
      fn: `(batch, rng)` or `(batch, rng, step)`.
      takes_step: True for `(batch, rng, step)`.
    """

    fn: Callable[..., Batch]
    takes_step: bool

    @classmethod
    def of(cls, fn: Any) -> "BatchTransform":
        """Return the transform of a function.

        Raises:
          LearnerError: it is not a function of a batch, a random key and optionally the step.
        """
        count = positional_count(fn, "step")
        if count not in (2, 3):
            raise LearnerError(
                f"on_batch got {fn!r}; it needs a function (batch, rng) or (batch, rng, step)",
                code="step-batch-transform",
            )
        return cls(fn, count == 3)

    def __call__(self, batch: Batch, key: Array, step: Array) -> Batch:
        """Return the changed batch.

        Raises:
          LearnerError: the function returned None.
        """
        changed = self.fn(batch, key, step) if self.takes_step else self.fn(batch, key)
        if changed is None:
            raise LearnerError(
                f"on_batch got {self.fn!r}, which returned nothing (None); it needs to return the changed batch",
                code="step-batch-transform-returns",
            )
        return changed


def transformed(transforms: tuple[BatchTransform, ...], batch: Batch, key: Array, step: Array) -> Batch:
    """Return a batch after all transforms, in order.

    Args:
      transforms: the transforms of the run.
      batch: a micro-batch.
      key: the key of the micro-batch, derived from the seed, the step and its number in the step.
      step: the number of optimizer steps before this one, int32.
    """
    for number, transform in enumerate(transforms):
        batch = transform(batch, jax.random.fold_in(jax.random.fold_in(key, BATCH_STREAM), number), step)
    return batch
