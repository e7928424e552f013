"""`learner devices`: the devices for training."""

from collections.abc import Sequence
from typing import Any

import jax

from learner.cli.usage import PLATFORMS, devices_parser
from learner.errors import LearnerError, near
from learner.strategies.choose import choose_devices
from learner.util.text import aligned, size


def devices(words: Sequence[str]) -> int:
    """`learner devices [--platform=PLATFORM]`."""
    platform = devices_parser().read(words).platform
    if platform not in (None, *PLATFORMS):
        raise LearnerError(f"--platform is {platform!r}: {near(str(platform), PLATFORMS)}", code="cli-platform-unknown")
    print("\n".join([*table(_devices_of(platform)), "", *choices()]))
    return 0


def table(devices: Sequence[Any]) -> list[str]:
    """Return the devices as lines.

    Args:
      devices: `jax.Device`s.
    """
    rows = [
        [str(device.id), device.platform, device.device_kind, str(device.process_index), *_memory(device)]
        for device in devices
    ]
    return aligned([["id", "platform", "kind", "process", "memory", "used", "free"], *rows])


def choices() -> list[str]:
    """Return lines that describe the default devices of a run."""
    return [
        f"{jax.process_count()} process{'es' if jax.process_count() > 1 else ''}",
        f"by default: {choose_devices().description}",
        f"devices: all: {choose_devices('all').description}",
    ]


def _devices_of(platform: str | None) -> list[Any]:
    try:
        return jax.devices() if platform is None else jax.devices(platform)
    except RuntimeError as error:  # a platform that does not exist or does not start
        where = "no device" if platform is None else f"no {platform}"
        raise LearnerError(
            f"JAX finds {where} here: {' '.join(str(error).split())}", code="cli-platform-absent"
        ) from error


def _memory(device: Any) -> list[str]:
    """Return the total, used and free memory of a device, which is unknown for devices of other processes."""
    stats = device.memory_stats() if device.process_index == jax.process_index() else None
    if not stats or "bytes_limit" not in stats:
        return ["-", "-", "-"]
    total, used = stats["bytes_limit"], stats["bytes_in_use"]
    return [size(total), size(used), size(total - used)]
