"""The interface of strategies."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

PyTree = Any
Kind = str
"""The kind of an argument or a result of a program, which determines its sharding.

- `state`: leaves of the run's state that steps change.
- `fixed`: its other leaves.
- `metrics`: states of metrics.
- `outputs`: values of steps.
- `same`: small values, replicated, and shared by the members of a population. In a single run, the three kinds above
  are replicated, too.
- `batch`: rows, as returned by `Strategy.put`.
- `sums`: sums over micro-batches so far, on each device separately if it has its own rows.
"""


class Strategy(abc.ABC):
    """The placement of arrays on devices, and the compilation of programs for them.

    All arguments of a program are committed to its devices first: an uncommitted one would cause a second compilation.

    Attributes:
      devices: the devices that it uses, of all processes.
      replicated_sharding: the sharding of arrays that are replicated on every device.
      axis: the name of the axis over which steps sum the results of each device; `None`: programs see whole batches,
        regardless of their sharding.
      sync_batch_norm: True if, with such an axis, batch statistics are those of the whole batch.
      resident: True if a whole dataset may be kept on the device.
      splits: True if arrays of the model may be sharded.
    """

    axis: ClassVar[str | None] = None
    sync_batch_norm: bool = True
    resident: ClassVar[bool] = False
    splits: bool = False

    def __init__(self, devices: Sequence[Any], replicated_sharding: jax.sharding.Sharding) -> None:
        self.devices = tuple(devices)
        self.replicated_sharding = replicated_sharding
        self._scalars: dict[int, Any] = {}

    @property
    def platform(self) -> str:
        """The platform: `cpu`, `gpu` or `tpu`."""
        return str(self.devices[0].platform)

    @property
    def one_at_a_time(self) -> bool:
        """True if only one program may run at a time, because XLA's collectives between CPU devices of one process
        would deadlock otherwise.
        """
        return self.platform == "cpu" and len(self.devices) > 1

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """A description for the application log."""

    def shardings(self, state: PyTree) -> PyTree:
        """Return the sharding of each leaf of a state.

        Args:
          state: a `TrainState` of arrays or of their shapes.
        """
        return jax.tree.map(lambda _: self.replicated_sharding, state)

    def gather(self, state: PyTree) -> Callable[..., PyTree] | None:
        """Return the function that gathers a part of a state (`"params"` or `"model_state"`) before a program computes
        with it, or None if there is nothing to gather. With `forward_mode=True`, its result has derivatives in forward
        mode, too.

        Args:
          state: a `TrainState` of arrays or of their shapes.
        """
        return None

    def exchanges_rows(self, state: PyTree) -> bool:
        """Return True if the devices of several processes compute a row together, also one that each of them has.

        Args:
          state: a `TrainState` of arrays or of their shapes.
        """
        return False

    def placed_shapes(self, state: PyTree) -> PyTree:
        """Return the shapes of a state, each with its sharding."""
        shape = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        return jax.tree.map(shape, state, self.shardings(state))

    def problems(self, state: PyTree) -> list[str]:
        """Return the problems of the strategy with a state of these arrays or shapes."""
        return []

    def warnings(self, state: PyTree) -> list[str]:
        """Return warnings about settings that fit a state of these arrays or shapes, but are probably not intended."""
        return []

    def place(self, tree: PyTree, shardings: PyTree = None) -> PyTree:
        """Place arrays on the devices, with `shardings` or else replicated."""
        return jax.device_put(tree, self.replicated_sharding if shardings is None else shardings)

    @property
    def member_shares(self) -> int:
        """The number of groups of devices over which the members of a population are spread."""
        return 1

    @property
    def members_are_mapped(self) -> bool:
        """True if a program has only the members of one group of devices, False if it has all members."""
        return False

    def place_members(self, tree: PyTree) -> PyTree:
        """Place arrays with a leading axis of members, or the arrays of a single run."""
        return self.place(tree)

    @abc.abstractmethod
    def divides(self, rows: int) -> bool:
        """Return True if a batch with this number of rows divides evenly over the devices."""

    @property
    def share(self) -> tuple[int, int, int] | None:
        """The index of this process's share of each batch, the number of shares, and the number of devices that a batch
        is sharded over; None if this is the only process.
        """
        return None

    @abc.abstractmethod
    def put(self, tree: PyTree, axis: int = 0, replicated: bool = False, one_off: bool = False) -> PyTree:
        """Place batches, NumPy arrays with the rows along `axis`, on the devices: `replicated`, or sharded over them.
        With several processes, each passes its share of a sharded batch. The arrays are not used again. A `one_off`
        batch skips the compiled path.
        """

    @abc.abstractmethod
    def compile(
        self,
        program: Callable[..., Any],
        arguments: Sequence[Kind] = (),
        results: Sequence[Kind] | Kind = "same",
        donate: tuple[int, ...] = (),
        shardings: Mapping[str, PyTree] | None = None,
    ) -> Any:
        """Return the jitted program for the devices; it compiles at its first call for each shape.

        Args:
          program: a pure function.
          arguments: the kind of each argument.
          results: the kind of each result of a tuple, or of the only one.
          donate: the indices of arguments to donate.
          shardings: the shardings of `state` and of `sums`.
        """

    def to_single_device(self, tree: PyTree) -> PyTree:
        """Return the arrays on one device if it already holds all of them; otherwise return them unchanged."""
        return tree

    def scalar(self, value: int) -> Any:
        """Return a placed int32 from a table, as placing one takes longer than the dispatch that needs it."""
        if value not in self._scalars:
            self._scalars[value] = self.place(np.int32(value))
        return self._scalars[value]
