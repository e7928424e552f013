"""Out-of-memory errors that name the part of the run and suggest settings."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

from jax.errors import JaxRuntimeError

from learner.errors import OutOfMemoryError
from learner.steps.tree_math import rows_of
from learner.training.feed.group import BUFFER_BYTES, bytes_of
from learner.util.text import size
from learner.util.trees import named_leaves

PyTree = Any
MARK = "RESOURCE_EXHAUSTED"
CHECKPOINT = "checkpoint"
INIT = "init"


class OomContext:
    """A context manager for code that allocates memory on a device for a part of the run, or waits for such code.

    If JAX reports that the memory is exhausted, an `OutOfMemoryError` with the part is raised from its error. An inner
    `OomContext` takes precedence over an outer one.

    >>> with OomContext("train"):
    ...     raise JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes.")
    Traceback (most recent call last):
    learner.errors.OutOfMemoryError: out of memory in training. The device says: Out of memory allocating 4096 bytes.
    """

    __slots__ = ("_part",)

    def __init__(self, part: str):
        """Name the part of the run: `train`, a validation split, `checkpoint`, or `init`."""
        self._part = part

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # JAX has one class for all device errors; only XLA's status in the text distinguishes them.
        if isinstance(error, JaxRuntimeError) and MARK in str(error):
            raise OutOfMemoryError(
                f"{_summary(self._part)}. {_device_message(error)}",
                self._part,
                code="device-out-of-memory",
                part=self._part,
            ) from error


@dataclasses.dataclass(frozen=True)
class MemoryFootprint:
    """The known memory that a run needs on a device.

    Attributes:
      first_batches: the first batch of each split.
      state: the bytes of the state.
      accumulate: micro-batches per step.
      split: parts that each micro-batch is computed in.
      can_accumulate: True if the number of micro-batches can be increased.
      steps: by split, the number of steps whose batches share a buffer; 1: no buffer.
    """

    first_batches: Mapping[str, PyTree]
    state: int
    accumulate: int = 1
    split: int = 1
    can_accumulate: bool = True
    steps: dict[str, int] = dataclasses.field(default_factory=dict)

    def explain(self, part: str, cause: BaseException | None) -> str:
        """Return the complete message.

        >>> import textwrap, numpy as np
        >>> first = {"x": np.zeros((64, 3), np.float32)}
        >>> print(textwrap.fill(MemoryFootprint({"valid": first}, 2_500_000).explain("valid", None), 100))
        out of memory in the validation 'valid'. A batch has 64 rows (x: float32[64, 3], 768 bytes), and the
        state of the run takes 2.5 MB. Set a smaller batch size for the validation data: the metrics stay
        the same.
        """
        split = part if part in self.first_batches else "train"
        parts = [f"{_summary(part)}. {self._facts(split)}"]
        if cause is not None:
            parts.append(_device_message(cause))
        if part == CHECKPOINT:
            parts.append(f"A save needs room for a copy of the state, {size(self.state)}.")
        parts.append(self._advice(split))
        if self._buffered(split) > BUFFER_BYTES:  # only if the user has set the number of steps
            parts.append("Set a smaller number of steps_per_dispatch, or none: the buffers become smaller.")
        return " ".join(parts)

    def _facts(self, split: str) -> str:
        first = self.first_batches[split]
        arrays = ", ".join(f"{name or 'array'}: {x.dtype}{list(x.shape)}" for name, x in named_leaves(first).items())
        rows = f"{rows_of(first)} rows ({arrays}, {size(bytes_of(first))})"
        groups = f"A step has {_count(self.accumulate, 'micro-batch', 'micro-batches')} of"
        facts = [f"{groups if split == 'train' else 'A batch has'} {rows}"]
        if buffered := self._buffered(split):
            kind = "steps" if split == "train" else "batches"
            facts.append(f"a buffer of {self.steps[split]} {kind} takes {size(buffered)}")
        return ", ".join(facts) + f", and the state of the run takes {size(self.state)}."

    def _buffered(self, split: str) -> int:
        steps, batch_bytes = self.steps.get(split, 1), bytes_of(self.first_batches[split])
        return 0 if steps == 1 else steps * batch_bytes * (self.accumulate if split == "train" else 1)

    def _advice(self, split: str) -> str:
        if split != "train":
            return "Set a smaller batch size for the validation data: the metrics stay the same."
        rows = rows_of(self.first_batches[split])
        if rows <= self.split:
            return "A micro-batch has one row already: set a smaller model, or shorter rows."
        if not self.can_accumulate:
            return "Set a smaller batch size."
        return (
            f"Set grads_accumulation({self.accumulate}, split={2 * self.split}) to compute each batch in "
            f'{2 * self.split} parts, or split="auto": the steps stay the same.'
        )


@contextlib.contextmanager
def explain_oom(needs: MemoryFootprint, first: Callable[[], BaseException | None] = lambda: None) -> Iterator[None]:
    """Complete the message of an `OutOfMemoryError` raised in the block.

    Args:
      needs: the memory in use on the device.
      first: returns an earlier error, or None. Computations with arrays that could not be allocated fail with the same
        message, in any part.
    """
    try:
        yield
    except (OutOfMemoryError, JaxRuntimeError) as error:
        failed = earlier if isinstance(earlier := first(), OutOfMemoryError) else error
        if not isinstance(failed, OutOfMemoryError):
            raise
        raise OutOfMemoryError(
            needs.explain(failed.part, failed.__cause__),
            failed.part,
            code="device-out-of-memory",
            part=failed.part,
        ) from failed.__cause__


def _summary(part: str) -> str:
    named = {
        "train": "training",
        CHECKPOINT: "the copy of the state for a checkpoint",
        INIT: "the initialisation of the model",
    }
    return f"out of memory in {named.get(part, f'the validation {part!r}')}"


def _device_message(error: BaseException) -> str:
    line = str(error).partition(f"{MARK}: ")[2].partition("\n")[0].rstrip(".") or MARK
    return f"The device says: {line + '.' if len(line) <= 200 else line[:200] + '...'}"


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"
