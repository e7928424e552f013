"""One device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax

from learner.strategies.base import Kind, PyTree, Strategy
from learner.strategies.devices import find_devices


class SingleDevice(Strategy):
    """`jax.jit` on one device: a `jax.Device`, or its id (default: JAX's first that belongs to this process).

    >>> SingleDevice().platform
    'cpu'
    """

    resident: ClassVar[bool] = True

    def __init__(self, device: Any = None):
        device = jax.local_devices()[0] if device is None else find_devices([device])[0]
        super().__init__([device], jax.sharding.SingleDeviceSharding(device))
        self._put = jax.jit(lambda tree: tree, out_shardings=self.everywhere)

    @property
    def device(self) -> Any:
        """The device."""
        return self.devices[0]

    @property
    def description(self) -> str:
        """See `Strategy`."""
        return f"one device: {self.devices[0].device_kind} ({self.devices[0]})"

    def divides(self, rows: int) -> bool:
        """See `Strategy`."""
        return True

    def put(self, tree: PyTree, axis: int = 0, whole: bool = False, rare: bool = False) -> PyTree:
        """See `Strategy`. Arguments of a jitted function take 10 µs to the device, `jax.device_put` takes 60, which is
        worth a program for the buffers that come again and again, and not for a batch at the end of an epoch.
        """
        return self.place(tree) if rare else self._put(tree)

    def compile(
        self,
        program: Callable[..., Any],
        takes: Sequence[Kind] = (),
        gives: Sequence[Kind] | Kind = "same",
        donate: tuple[int, ...] = (),
        where: Mapping[str, PyTree] | None = None,
    ) -> Any:
        """See `Strategy`. An argument that is not used is kept: it is what commits the results to the device."""
        return jax.jit(program, donate_argnums=donate, keep_unused=True)
