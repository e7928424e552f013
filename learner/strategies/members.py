"""The members of a population on several devices: each device, or each group of devices, steps its own members."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learner.strategies.base import Kind, PyTree, Strategy
from learner.strategies.replicated import Replicated
from learner.strategies.sharded import Sharded
from learner.util.text import count

AXIS = "members"
AXIS_OF_MESH = "member"
SHARED = ("same", "batch")  # kinds that are complete on every device


class Members(Strategy):
    """`jax.shard_map` over several devices of this process. Each has an equal number of members and all of the data.
    Nothing is sent between them.

    Args:
      devices: the devices.

    >>> Members(jax.devices()[:1]).description
    'members over 1 device (cpu)'
    """

    resident: ClassVar[bool] = True

    def __init__(self, devices: Sequence[Any]):
        self._mesh = Mesh(np.array(devices), (AXIS,))
        super().__init__(devices, NamedSharding(self._mesh, PartitionSpec()))
        self._of_members = NamedSharding(self._mesh, PartitionSpec(AXIS))

    @property
    def description(self) -> str:
        """See `Strategy`."""
        return f"members over {count(len(self.devices), 'device')} ({self.platform})"

    @property
    def member_shares(self) -> int:
        """See `Strategy`."""
        return len(self.devices)

    @property
    def members_are_mapped(self) -> bool:
        """See `Strategy`."""
        return True

    def shardings(self, state: PyTree) -> PyTree:
        """See `Strategy`. All leaves of a population have a leading axis of members."""
        return jax.tree.map(lambda _: self._of_members, state)

    def place(self, tree: PyTree, shardings: PyTree = None) -> PyTree:
        """See `Strategy`. On a CPU, NumPy divides the arrays: JAX would compile a program for each shape."""
        if self.platform != "cpu":
            return super().place(tree, shardings)
        # Copies: steps write into the arrays of the state, which are donated to them.
        placed = self.replicated_sharding if shardings is None else shardings
        return jax.device_put(jax.tree.map(_on_host, tree), placed, may_alias=False)

    def place_members(self, tree: PyTree) -> PyTree:
        """See `Strategy`."""
        return self.place(tree, self._of_members)

    def divides(self, rows: int) -> bool:
        """See `Strategy`."""
        return True

    def put(self, tree: PyTree, axis: int = 0, replicated: bool = False, one_off: bool = False) -> PyTree:
        """See `Strategy`."""
        return self.place(tree)

    def compile(
        self,
        program: Callable[..., Any],
        arguments: Sequence[Kind] = (),
        results: Sequence[Kind] | Kind = "same",
        donate: tuple[int, ...] = (),
        shardings: Mapping[str, PyTree] | None = None,
    ) -> Any:
        """See `Strategy`. The program has the members of one device."""
        if results == "same":  # it has no members
            return jax.jit(program, donate_argnums=donate, out_shardings=self.replicated_sharding, keep_unused=True)
        out_specs = _spec(results) if isinstance(results, str) else tuple(map(_spec, results))
        mapped = jax.shard_map(
            program, mesh=self._mesh, in_specs=tuple(map(_spec, arguments)), out_specs=out_specs, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=donate, keep_unused=True)


class ShardedMembers(Sharded):
    """`Sharded` for the members of a population, which are sharded over the axis `member` of the mesh.

    Programs see all members and whole batches, and XLA partitions both.

    Args:
      strategy: the strategy with the mesh and the axes of the rows.

    >>> ShardedMembers(Sharded({"member": 1, "data": 1}, devices=jax.devices()[:1])).description
    "sharded over 1 device (cpu): {'member': 1, 'data': 1}, rows over 'data', members over 'member'"
    """

    def __init__(self, strategy: Sharded):
        super().__init__(strategy.mesh, strategy.rules.rows or None, strategy.batch)
        spec = PartitionSpec(AXIS_OF_MESH) if AXIS_OF_MESH in self.mesh.shape else PartitionSpec()
        self._of_members = NamedSharding(self.mesh, spec)

    @property
    def description(self) -> str:
        """See `Strategy`."""
        spread = f"over {AXIS_OF_MESH!r}" if self._of_members.spec else "on every device"
        return f"{super().description}, members {spread}"

    @property
    def member_shares(self) -> int:
        """See `Strategy`."""
        shares: int = dict(self.mesh.shape).get(AXIS_OF_MESH, 1)
        return shares

    @property
    def _axes_in_use(self) -> set[str]:
        return super()._axes_in_use | {AXIS_OF_MESH}

    def shardings(self, state: PyTree) -> PyTree:
        """See `Strategy`. All leaves of a population have a leading axis of members."""
        return jax.tree.map(lambda _: self._of_members, state)

    def place_members(self, tree: PyTree) -> PyTree:
        """See `Strategy`."""
        return jax.device_put(tree, self._of_members)

    def to_single_device(self, tree: PyTree) -> PyTree:
        """See `Strategy`."""
        return tree

    def _sharding_of(self, kind: Kind, shardings: Mapping[str, PyTree]) -> PyTree:
        return self.replicated_sharding if kind in SHARED else self._of_members


def spread_members(strategy: Strategy | None) -> Strategy | None:
    """Return the strategy of a population, given the builder's. With `Replicated`, the devices share the members
    instead of the rows of batches; with `Sharded`, both.
    """
    if isinstance(strategy, Replicated):
        return Members(strategy.devices)
    return ShardedMembers(strategy) if isinstance(strategy, Sharded) else strategy


def _on_host(x: Any) -> Any:
    has_numbers = isinstance(x, jax.Array) and not jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return np.asarray(x) if has_numbers else x


def _spec(kind: Kind) -> PartitionSpec:
    return PartitionSpec() if kind in SHARED else PartitionSpec(AXIS)
