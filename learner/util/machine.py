"""The machine that a process runs on."""

import os


def machine_memory() -> int:
    """Return the machine's memory in bytes, or 2**62, which limits nothing, if the system does not provide it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**62
