"""The device on which JAX creates arrays."""

from typing import Any

import jax


def default_device() -> Any:
    """Return the device of `jax_default_device`, a device or a platform, or else this process's first one.

    >>> with jax.default_device(jax.devices()[-1]):
    ...     default_device() == jax.devices()[-1]
    True
    """
    config: Any = jax.config  # its type lacks the settings
    device = config.jax_default_device
    return device if isinstance(device, jax.Device) else jax.local_devices(backend=device)[0]


def cpu_device() -> Any:
    """Return the host's CPU device, if JAX has one, for work that must not wait for a run's devices.

    >>> cpu_device().platform
    'cpu'
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]
