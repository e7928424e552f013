"""The private parts of JAX that learner uses: only these functions.

Each imports its module when called, so that `import learner` works even if JAX has renamed the module, and the error
names this file.
"""

import sys
from typing import Any


def distributed_state() -> Any:
    """Return the connection of this process to the others: `client`, `service`, `process_id`, `num_processes`. The
    client is None in a single process. JAX's key-value store has no public name.
    """
    from jax._src import distributed

    return distributed.global_state


def backends_are_initialized() -> bool:
    """Return True once JAX has looked for devices, after which processes can no longer be connected."""
    if "jax" not in sys.modules:
        return False  # before a fork, an import would take a second
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())
