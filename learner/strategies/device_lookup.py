"""Lookup of devices by number, by id or as objects."""

from collections.abc import Sequence
from typing import Any

import jax

from learner.errors import LearnerError
from learner.util.default_device import default_device
from learner.util.number_checks import is_int, plain_numbers
from learner.util.text import join_names

_NEEDS = 'it needs a number of devices, "all", or a list of jax.Device or of their ids'


def find_devices(devices: int | str | Sequence[Any]) -> list[Any]:
    """Return the devices that an argument names.

    Args:
      devices: their number, `"all"`, or a list of `jax.Device` objects or ids. One device is that of
        `jax_default_device`; several are JAX's first.

    Raises:
      LearnerError: there are no such devices.

    >>> find_devices(1) == jax.devices()[:1] == find_devices([jax.devices()[0].id])
    True
    """
    available, devices = jax.devices(), plain_numbers(devices)
    if isinstance(devices, str) and devices == "all":
        return available
    if isinstance(devices, bool) or not isinstance(devices, int | list | tuple) or not devices:
        raise LearnerError(f"devices is {devices!r}; {_NEEDS}", code="device-choice-malformed", devices=devices)
    if isinstance(devices, int):
        if not 1 <= devices <= len(available):
            is_are = "is" if len(available) == 1 else "are"
            raise LearnerError(
                f"devices asks for {devices}, and there {is_are} {len(available)}: {_listed(available)}",
                code="device-too-few",
                devices=devices,
            )
        return [default_device()] if devices == 1 else available[:devices]
    return _by_name(devices, available)


def _by_name(devices: Sequence[Any], available: list[Any]) -> list[Any]:
    by_id = {device.id: device for device in available}
    chosen = []
    for device in devices:
        if is_int(device):
            if device not in by_id:
                raise LearnerError(
                    f"there is no device with the id {device}; available: {_listed(available)}",
                    code="device-unknown",
                    device=device,
                )
            device = by_id[device]
        if not isinstance(device, jax.Device):
            raise LearnerError(f"devices is {devices!r}; {_NEEDS}", code="device-choice-malformed", devices=devices)
        if device in chosen:
            raise LearnerError(f"devices names {device} twice", code="device-twice", device=device)
        chosen.append(device)
    if len(platforms := sorted({device.platform for device in chosen})) > 1:
        raise LearnerError(
            f"devices mixes the platforms {' and '.join(platforms)}: {_listed(chosen)}", code="device-platforms-mixed"
        )
    return chosen


def _listed(devices: Sequence[Any]) -> str:
    return join_names([f"{device.platform}:{device.id}" for device in devices], most=8)


def memory_limit(device: Any) -> int | None:
    """Return the memory that JAX may use on a device, in bytes, or None if unknown, as on a CPU."""
    limit: int | None = (device.memory_stats() or {}).get("bytes_limit")
    return limit
