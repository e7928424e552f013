"""Unpack the runs of earlier versions, which are stored as archives."""

import tarfile
from pathlib import Path


def unpack(archive: Path, directory: Path) -> None:
    """Unpack an archive into a directory."""
    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since 3.11.4
    with tarfile.open(archive) as content:
        content.extractall(directory, **safe)
