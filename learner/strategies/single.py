"""A strategy for one device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax

from learner.strategies.base import Kind, PyTree, Strategy
from learner.strategies.device_lookup import find_devices
from learner.util.default_device import default_device


class SingleDevice(Strategy):
    """`jax.jit` on one device: a `jax.Device`, or its id. Default: that of `jax_default_device`, or else this process's
    first.

    >>> SingleDevice().platform
    'cpu'
    """

    resident: ClassVar[bool] = True

    def __init__(self, device: Any = None):
        device = default_device() if device is None else find_devices([device])[0]
        super().__init__([device], jax.sharding.SingleDeviceSharding(device))
        self._put = jax.jit(_same, out_shardings=self.replicated_sharding)

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

    def put(self, tree: PyTree, axis: int = 0, replicated: bool = False, one_off: bool = False) -> PyTree:
        """See `Strategy`. Arguments of a jitted function reach the device in 10 µs, and `jax.device_put` takes 60. This
        is worth a program for buffers of a recurring shape, but not for a batch at the end of an epoch.
        """
        return self.place(tree) if one_off else self._put(tree)

    def compile(
        self,
        program: Callable[..., Any],
        arguments: Sequence[Kind] = (),
        results: Sequence[Kind] | Kind = "same",
        donate: tuple[int, ...] = (),
        shardings: Mapping[str, PyTree] | None = None,
    ) -> Any:
        """See `Strategy`. Unused arguments are kept: they commit the results to the device."""
        return jax.jit(program, donate_argnums=donate, keep_unused=True)


def _same(tree: PyTree) -> PyTree:  # one function, so that all strategies share its compiled programs
    return tree
