"""A model of its own beside each checkpoint: `model-<epoch>.mpk.gz`, for whoever only wants to use it.

One that was made inside of an epoch is `model-step-<step>.mpk.gz`. A file stays as long as its checkpoint does.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from learner.disk import to_disk

FILES = re.compile(r"model-(?P<step>step-)?(?P<number>\d+)\.(mpk|json|safetensors)(\.gz)?")


def record_name(step: int, epoch: int | None) -> str:
    """The name of a checkpoint's record, without its extension; `epoch` is the one that it ends.

    >>> record_name(45, 1), record_name(50, None)
    ('model-1', 'model-step-50')
    """
    return f"model-step-{step}" if epoch is None else f"model-{epoch}"


def is_record(name: str) -> bool:
    """Whether a file of that name holds the model of a checkpoint, or was to hold it.

    >>> [is_record(name) for name in ("model-3.mpk.gz", "model-step-7.json.partial", "model.mpk")]
    [True, True, False]
    """
    return FILES.fullmatch(name.removesuffix(".partial")) is not None


def records_of(directory: Any, step: int, epoch: int | None) -> Iterator[Any]:
    """The files that hold the model of a checkpoint, in whatever format."""
    name = record_name(step, epoch)
    for path in directory.glob(f"{name}.*"):
        if FILES.fullmatch(path.name):
            yield path


def write_record(path: Any, write: Callable[[Any], None]) -> None:
    """Writes a file that is there whole or not at all, and is on the disk afterwards.

    Args:
      path: a `pathlib.Path`, or one of `etils.epath`, whose files appear when they are closed.
      write: writes to a binary file.
    """
    if not isinstance(path, Path):
        with path.open("wb") as file:
            write(file)
        return
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with partial.open("xb") as file:  # never through a link
            write(file)
        to_disk(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    to_disk(path.parent)
