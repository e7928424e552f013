"""The choice of a strategy for `devices(...)`."""

from collections.abc import Sequence
from typing import Any

import jax

from learner.errors import LearnerError
from learner.strategies.base import Strategy
from learner.strategies.device_lookup import find_devices
from learner.strategies.replicated import Replicated
from learner.strategies.sharded import Sharded
from learner.strategies.single import SingleDevice


def choose_devices(devices: int | str | Sequence[Any] | None = None) -> Strategy:
    """Return the strategy for `devices(...)`, by a fixed rule: `SingleDevice` for one device; for several devices,
    `Replicated` in one process and `Sharded` in several.

    Args:
      devices: their number, `"all"`, or a list of `jax.Device` objects or ids; `None`: one device, or all devices with
        several processes.

    >>> choose_devices(1).description.startswith("one device")
    True
    """
    if jax.process_count() > 1:
        return _on_several(devices)
    chosen = find_devices(1 if devices is None else devices)
    return SingleDevice(chosen[0]) if len(chosen) == 1 else Replicated(chosen)


def _on_several(devices: Any) -> Strategy:
    every = jax.devices()
    if devices is not None and set(find_devices(devices)) != set(every):
        raise LearnerError(
            f"devices is {devices!r}, and there are {jax.process_count()} processes with {len(every)} devices, which "
            'all take part: give devices("all"), or strategy(Sharded(mesh)) with your own mesh',
            code="device-several-processes",
            devices=devices,
        )
    return Sharded()
