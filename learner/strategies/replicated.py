"""Data parallelism: the state is replicated on each device, and every batch is sharded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learner.errors import LearnerError
from learner.strategies.base import Kind, PyTree, Strategy
from learner.strategies.device_lookup import find_devices
from learner.util.text import count

AXIS = "devices"


class Replicated(Strategy):
    """`jax.shard_map` over several devices of this process: each has the whole state and its share of every batch.

    Each step sums gradients and the states of metrics over the devices, by weight, so they equal those of the whole
    batch. A batch that does not divide evenly is computed in full on each device and counted once. Each device draws
    random masks (dropout) for its own rows, so they depend on the number of devices.

    This holds for a loss that is a mean over rows. A loss over pairs of rows (in-batch negatives) sees only the rows of
    one device at a time; use `Sharded` instead.

    Other values that a step keeps in the model's state are averaged over the devices by weight; integers and booleans
    are taken from the first device. Use `Sharded` for a step that counts or sums rows itself or keeps their greatest
    value, and for a BatchNorm with a mask.

    Anything that a mapped program does not support raises an error: `update=` and optimizers that evaluate the loss
    again need the whole batch, as with `Sharded`.

    Args:
      devices: their number, or a list of `jax.Device` objects or ids; default: all devices.
      sync_batch_norm: if True, BatchNorm of `flax.nnx`, `flax.linen` and Equinox (`mode="batch"`) uses the statistics
        of the whole batch. Otherwise each device uses those of its rows, and running statistics are averaged by weight.

    >>> Replicated(jax.devices()[:1]).description
    'replicated on 1 device (cpu)'
    """

    axis: ClassVar[str | None] = AXIS

    def __init__(self, devices: int | str | Sequence[Any] | None = None, sync_batch_norm: bool = True):
        devices = find_devices("all" if devices is None else devices)
        mesh = Mesh(np.array(devices), (AXIS,))
        super().__init__(devices, NamedSharding(mesh, PartitionSpec()))
        if jax.process_count() > 1:
            raise LearnerError(
                "Replicated trains on the devices of one process; use Sharded for several processes",
                code="strategy-replicated-several-processes",
            )
        self.sync_batch_norm = sync_batch_norm
        self._each = NamedSharding(mesh, PartitionSpec(AXIS))

    @property
    def description(self) -> str:
        """See `Strategy`."""
        return f"replicated on {count(len(self.devices), 'device')} ({self.platform})"

    def divides(self, rows: int) -> bool:
        """See `Strategy`."""
        return rows % len(self.devices) == 0

    def put(self, tree: PyTree, axis: int = 0, replicated: bool = False, one_off: bool = False) -> PyTree:
        """See `Strategy`. The arrays get a leading axis for the devices."""
        return jax.device_put(jax.tree.map(lambda x: self._shares(np.asarray(x), axis, replicated), tree), self._each)

    def _shares(self, array: np.ndarray, axis: int, replicated: bool) -> np.ndarray:
        devices, rows = len(self.devices), array.shape[axis]
        if replicated:
            return np.broadcast_to(array, (devices, *array.shape))
        shares = array.reshape(*array.shape[:axis], devices, rows // devices, *array.shape[axis + 1 :])
        return np.moveaxis(shares, axis, 0)

    def compile(
        self,
        program: Callable[..., Any],
        arguments: Sequence[Kind] = (),
        results: Sequence[Kind] | Kind = "same",
        donate: tuple[int, ...] = (),
        shardings: Mapping[str, PyTree] | None = None,
    ) -> Any:
        """See `Strategy`. A program without arguments that differ between devices needs no map."""
        if any(map(_differs, arguments)):
            return jax.jit(self._mapped(program, arguments, results), donate_argnums=donate)
        if results == "sums":
            return jax.jit(lambda *given: self._repeated(program(*given)), out_shardings=self._each)
        return jax.jit(program, donate_argnums=donate, out_shardings=self.replicated_sharding, keep_unused=True)

    def _mapped(
        self, program: Callable[..., Any], arguments: Sequence[Kind], results: Sequence[Kind] | Kind
    ) -> Callable[..., Any]:
        """Map the program of one device over all. Values that differ between devices get a leading axis for them."""

        def on_each(*given: Any) -> Any:
            own = [_without_axis(x) if _differs(kind) else x for x, kind in zip(given, arguments, strict=True)]
            try:
                out = program(*own)
            except LearnerError:
                raise
            except (TypeError, ValueError) as error:  # a step that fits the whole batch may not fit a share of it
                error.add_note(
                    f"while tracing the program of each of {len(self.devices)} devices, which has its share of the "
                    "rows of a batch: strategy(Sharded()) gives the step all rows"
                )
                raise
            if isinstance(results, str):
                return _with_axis(out) if _differs(results) else out
            return tuple(_with_axis(x) if _differs(kind) else x for x, kind in zip(out, results, strict=True))

        on_each.__name__ = program.__name__  # for profiles
        specs = tuple(map(_spec, arguments))
        out_specs = _spec(results) if isinstance(results, str) else tuple(map(_spec, results))
        # Results without this axis are equal on all devices, like their sums; JAX cannot check this for all operations.
        mapped: Callable[..., Any] = jax.shard_map(
            on_each, mesh=self._each.mesh, in_specs=specs, out_specs=out_specs, check_vma=False
        )
        return mapped

    def _repeated(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jax.numpy.broadcast_to(x, (len(self.devices), *x.shape)), tree)

    def to_single_device(self, tree: PyTree) -> PyTree:
        """See `Strategy`."""
        return first_replica(tree)


def first_replica(tree: PyTree) -> PyTree:
    """Return the replica of arrays on the first device, without a copy."""
    return jax.tree.map(lambda x: x.addressable_data(0), tree)


def _differs(kind: Kind) -> bool:
    """Return True for kinds that differ between devices."""
    return kind in ("batch", "sums")


def _spec(kind: Kind) -> PartitionSpec:
    return PartitionSpec(AXIS) if _differs(kind) else PartitionSpec()


def _without_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jax.numpy.squeeze(x, 0), tree)


def _with_axis(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jax.numpy.expand_dims(x, 0), tree)
