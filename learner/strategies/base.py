"""What a strategy does."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

PyTree = Any
Kind = str
"""What an argument or a result of a program is, for devices that have parts of it.

- `state`: leaves of the run's state that steps change.
- `same`: small, and the same on every device.
- `batch`: rows, as `Strategy.put` made it.
- `sums`: what micro-batches have added up to so far, on each device by itself where it has rows of its own.
"""


class Strategy(abc.ABC):
    """Places arrays on devices and compiles programs for them.

    Everything that a program is given is committed to its devices once: an argument that is not would cost a
    compilation of its own.

    Attributes:
      devices: that it uses, of all processes.
      everywhere: where an array is of which every device has all.
      axis: the name of the axis over which steps add up what each device has by itself; `None`: programs see whole
        batches, wherever they lie.
      sync_batch_norm: whether batch statistics are those of the whole batch where there is such an axis.
      resident: whether data may live on the device as a whole.
      splits: whether a device may have a part of an array of the model only.
    """

    axis: ClassVar[str | None] = None
    sync_batch_norm: bool = True
    resident: ClassVar[bool] = False
    splits: bool = False

    def __init__(self, devices: Sequence[Any], everywhere: jax.sharding.Sharding) -> None:
        self.devices = tuple(devices)
        self.everywhere = everywhere
        self._scalars: dict[int, Any] = {}

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return str(self.devices[0].platform)

    @property
    def one_at_a_time(self) -> bool:
        """Whether only one program may be under way: XLA's collectives between CPU devices of one process wait for each
        other forever otherwise.
        """
        return self.platform == "cpu" and len(self.devices) > 1

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """For the application log."""

    def shardings(self, state: PyTree) -> PyTree:
        """Where each leaf of a state belongs.

        Args:
          state: a `TrainState` of arrays or of their shapes.
        """
        return jax.tree.map(lambda _: self.everywhere, state)

    def gather(self, state: PyTree) -> Callable[[str, PyTree], PyTree] | None:
        """What programs do to a part of a state (`"params"` or `"model_state"`) before they compute with it; `None`:
        nothing.

        Args:
          state: a `TrainState` of arrays or of their shapes.
        """
        return None

    def placed_shapes(self, state: PyTree) -> PyTree:
        """The shapes of a state, each with where it belongs."""
        shape = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)  # noqa: E731
        return jax.tree.map(shape, state, self.shardings(state))

    def problems(self, state: PyTree) -> list[str]:
        """What is wrong with the strategy for a state of these arrays, or shapes."""
        return []

    def place(self, tree: PyTree, shardings: PyTree = None) -> PyTree:
        """Arrays on the devices: where `shardings` says, else the same on each."""
        return jax.device_put(tree, self.everywhere if shardings is None else shardings)

    @abc.abstractmethod
    def divides(self, rows: int) -> bool:
        """Whether a batch of so many rows can be spread evenly over the devices."""

    @property
    def share(self) -> tuple[int, int, int] | None:
        """Of several processes: which share of every batch the devices of this one have, how many shares there are, and
        over how many devices a batch is spread; `None`: this is the only process.
        """
        return None

    @abc.abstractmethod
    def put(self, tree: PyTree, axis: int = 0, whole: bool = False, rare: bool = False) -> PyTree:
        """Batches, NumPy arrays with the rows along `axis`, on the devices: `whole` on each, or spread over them. Of
        several processes each gives its share of what is spread. They are not used again.
        """

    @abc.abstractmethod
    def compile(
        self,
        program: Callable[..., Any],
        takes: Sequence[Kind] = (),
        gives: Sequence[Kind] | Kind = "same",
        donate: tuple[int, ...] = (),
        where: Mapping[str, PyTree] | None = None,
    ) -> Any:
        """The jitted program for the devices; it compiles at its first call for each shape.

        Args:
          program: a pure function.
          takes: what each argument is.
          gives: what the results are: of each one of a tuple, or of the only one.
          donate: the arguments that may be overwritten.
          where: the shardings of `state` and of `sums`.
        """

    def one(self, tree: PyTree) -> PyTree:
        """The same arrays on one device, where it has all of them already; else as they are."""
        return tree

    def traced(self, compiled: Any, *arguments: Any) -> Any:
        """What `compile` made, as a jaxpr."""
        return compiled.trace(*arguments).jaxpr.jaxpr

    def scalar(self, value: int) -> Any:
        """A placed int32, from a table: placing one costs more than the dispatch it is for."""
        if value not in self._scalars:
            self._scalars[value] = self.place(np.int32(value))
        return self._scalars[value]
