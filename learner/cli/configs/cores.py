"""The cores of a CPU for members of a sweep that train together. On each core, JAX runs a program for some members."""

import contextlib
import os

import jax

MOST = 8  # each device has a copy of the data
PLACES = ("devices", "strategy")  # options of a config that determine where its members train


def claim_cores() -> None:
    """Make JAX create a CPU device for each core, unless their number is set or JAX is already initialized."""
    is_set = jax.config.values["jax_num_cpu_devices"] >= 0 or "xla_force_host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    )
    if not is_set:
        with contextlib.suppress(RuntimeError):  # JAX is initialized
            jax.config.update("jax_num_cpu_devices", _cores())


def devices_for(members: int) -> int:
    """Return the number of devices over which to spread members: on a CPU at most one for each core, with the same
    number of members on each; elsewhere one.
    """
    if jax.default_backend() != "cpu" or jax.process_count() > 1:
        return 1
    most = min(_cores(), jax.local_device_count())
    return max(number for number in range(1, most + 1) if members % number == 0)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # on Linux: a cluster task may have only some of the cores
        return min(len(os.sched_getaffinity(0)), MOST)
    return min(os.cpu_count() or 1, MOST)
