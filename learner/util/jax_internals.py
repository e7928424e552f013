"""The private parts of JAX that learner uses: these functions and nothing else.

Each imports its module when it is called, so that `import learner` works with a JAX that has renamed it, and the error
names this file.
"""

import sys
from typing import Any


def distributed_state() -> Any:
    """Return the connection of this process to the others: `client`, `service`, `process_id`, `num_processes`. The
    client is None in a single process. JAX has no public name for its key-value store.
    """
    from jax._src import distributed

    return distributed.global_state


def backends_are_initialized() -> bool:
    """Return True once JAX has looked for devices, after which processes can no longer be connected."""
    if "jax" not in sys.modules:
        return False  # before a fork, where an import would take a second
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())
