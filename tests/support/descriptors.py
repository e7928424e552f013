"""The files behind descriptors, on Linux and macOS."""

import fcntl
import os
import sys


def path_of(descriptor: int) -> str:
    """Return the path of an open file or directory."""
    if sys.platform == "darwin":
        return fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0").decode()
    return os.readlink(f"/proc/self/fd/{descriptor}")
