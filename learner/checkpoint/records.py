"""Files next to each checkpoint: its model as `model-<epoch>.mpk.gz`, for use without the rest, and optionally
`optim-<epoch>.mpk.gz` and `scheduler-<epoch>.mpk.gz`.

Inside an epoch the names are `model-step-<step>.mpk.gz` and so on. A file stays as long as its checkpoint does.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from learner.util.disk import replacing, to_disk

RECORDED = "model", "optim", "scheduler"
FILES = re.compile(rf"({'|'.join(RECORDED)})-(?P<step>step-)?(?P<number>\d+)\.(mpk|json|safetensors|bin)(\.gz)?")


def record_name(step: int, epoch: int | None, item: str = "model") -> str:
    """Return the name of a checkpoint's record without its extension. `epoch`: the epoch that ends at the checkpoint.

    >>> record_name(45, 1), record_name(50, None), record_name(45, 1, "optim")
    ('model-1', 'model-step-50', 'optim-1')
    """
    return f"{item}-step-{step}" if epoch is None else f"{item}-{epoch}"


def is_record(name: str) -> bool:
    """Return True if a file of this name holds a part of a checkpoint, finished or not.

    >>> [is_record(name) for name in ("model-3.mpk.gz", "optim-step-7.json.partial", "model.mpk")]
    [True, True, False]
    """
    return FILES.fullmatch(name.removesuffix(".partial")) is not None


def records_of(directory: Any, step: int, epoch: int | None) -> Iterator[Any]:
    """Yield the files that hold parts of a checkpoint, in any format."""
    for item in RECORDED:
        for path in directory.glob(f"{record_name(step, epoch, item)}.*"):
            if FILES.fullmatch(path.name):
                yield path


def write_record(path: Any, write: Callable[[Any], None]) -> None:
    """Write a file atomically, and flush it to the disk.

    Args:
      path: a `pathlib.Path`, or one of `etils.epath`, whose files appear when they are closed.
      write: writes to a binary file.
    """
    if not isinstance(path, Path):
        with path.open("wb") as file:
            write(file)
        return
    with replacing(path) as file:
        write(file)
    to_disk(path.parent)  # the entry in the directory follows the bytes
