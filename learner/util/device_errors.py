"""Errors of devices, and of the exchange of arrays between them, raised by JAX while a program runs."""

import re

from jax.errors import JaxRuntimeError

# Not INVALID_ARGUMENT, with which XLA rejects arguments that do not fit a program.
STATUS = re.compile(r"(ABORTED|CANCELLED|DEADLINE_EXCEEDED|INTERNAL|UNAVAILABLE|UNKNOWN): ")


def is_device_error(error: BaseException | None) -> bool:
    """Return True for an error of a device or of an exchange between devices.

    >>> is_device_error(ValueError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer")), is_device_error(None)
    (True, False)
    """
    # On CPUs JAX 0.10 raises a ValueError with XLA's status if the exchange fails within the call of a program.
    return isinstance(error, JaxRuntimeError) or (isinstance(error, ValueError) and bool(STATUS.match(str(error))))
