"""What outlives a power cut."""

import os
from typing import Any


def to_disk(path: Any) -> None:
    """A file's content, or the names in a directory, are on the disk afterwards, not only in the system's memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
