"""One dispatch: steps that are sent to the device together."""

import dataclasses
from typing import Any, Literal

import jax

from learner.steps.buffers import Feed, ResidentBatches
from learner.training.feed.place import StreamedParts

PyTree = Any
Kind = Literal["loop", "single", "tail", "parts"]


@dataclasses.dataclass(frozen=True)
class Dispatch:
    """Steps that are dispatched to the device together.

    Attributes:
      kind: `loop`: steps over full micro-batches. `single`: one step of one full micro-batch, without a loop. `tail`:
        one step that ends with the feed's ragged micro-batch. `parts`: one step whose micro-batches are accumulated one
        by one.
      epoch: the epoch of its micro-batches.
      feed: the micro-batches on the device; for `parts`, one feed for each, which large ones get while the step runs.
      start: the index of the first micro-batch in the feed; `None`: the one after the last dispatch.
      count: the number of full micro-batches.
      steps: the number of optimizer steps (batches, in validation).
      batches: the number of micro-batches, including the ragged one.
      ends_epoch: True if the epoch ends with it.
      states: positions in the data after each of its steps, for data with a state.
      rows: rows of all its micro-batches, over all processes.
      shapes_of_each: the shapes of each of its micro-batches in this process, see `shapes_of`; empty for data on the
        device.
    """

    kind: Kind
    epoch: int
    feed: Feed | list[tuple[Feed, bool]] | StreamedParts
    start: int | None
    count: int
    steps: int
    batches: int
    ends_epoch: bool
    states: tuple[Any, ...] = ()
    rows: int = 0
    shapes_of_each: tuple[str, ...] = ()

    def shapes(self) -> PyTree:
        """Return the shapes of a micro-batch for messages, of the ragged one if there is one."""
        if isinstance(self.feed, StreamedParts):
            return self.feed.shapes()
        feed = self.feed[-1][0] if isinstance(self.feed, list) else self.feed
        if isinstance(feed, ResidentBatches):
            return feed.batch_shapes(feed.size)
        if feed.last is not None:
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), feed.last)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), feed.batches)

    @property
    def data_state(self) -> Any:
        """Return the position in the data after the last batch, as JSON; None for data without a state."""
        return self.states[-1] if self.states else None
