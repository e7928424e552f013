"""The kernel of a notebook."""

import sys


def in_notebook() -> bool:
    """Return True inside the kernel of a notebook. The check imports nothing, because a kernel has already imported
    IPython.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return any(base.__name__ == "ZMQInteractiveShell" for base in type(shell).__mro__)
