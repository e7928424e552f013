"""One device, and the rule that chooses it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from learner.errors import LearnerError
from learner.strategies.base import Strategy


class SingleDevice(Strategy):
    """`jax.jit` on one device (default: JAX's first).

    >>> SingleDevice().platform
    'cpu'
    """

    def __init__(self, device: Any = None):
        super().__init__()
        self.device = jax.devices()[0] if device is None else device
        self._sharding = jax.sharding.SingleDeviceSharding(self.device)
        self._put = jax.jit(lambda tree: tree, out_shardings=self._sharding)

    @property
    def platform(self) -> str:
        """See `Strategy`."""
        return str(self.device.platform)

    @property
    def description(self) -> str:
        """See `Strategy`."""
        return f"one device: {self.device.device_kind} ({self.device})"

    def place(self, tree: Any) -> Any:
        """See `Strategy`."""
        return jax.device_put(tree, self._sharding)

    def put(self, tree: Any) -> Any:
        """See `Strategy`. Arguments of a jitted function take 10 µs to the device, `jax.device_put` takes 60."""
        return self._put(tree)

    def compile(self, program: Callable[..., Any], donate: tuple[int, ...] = ()) -> Any:
        """See `Strategy`. An argument that is not used is kept: it is what commits the results to the device."""
        return jax.jit(program, donate_argnums=donate, keep_unused=True)


def choose_devices(devices: int | str | Sequence[Any]) -> Strategy:
    """The strategy for `devices(...)`: `1`, or a list of one `jax.Device`.

    >>> choose_devices(1).description.startswith("one device")
    True
    """
    if isinstance(devices, bool) or not (
        isinstance(devices, int) or (isinstance(devices, Sequence) and not isinstance(devices, str))
    ):
        raise LearnerError(f"devices is {devices!r}; it needs 1 or a list with one jax.Device")
    if not isinstance(devices, int) and not all(isinstance(device, jax.Device) for device in devices):
        raise LearnerError(f"devices is {devices!r}; it needs 1 or a list with one jax.Device")
    count = devices if isinstance(devices, int) else len(devices)
    if count != 1:
        raise LearnerError(
            f"devices asks for {count}; training runs on one device: give devices(1) or devices([jax.devices()[0]])"
        )
    return SingleDevice() if isinstance(devices, int) else SingleDevice(devices[0])
