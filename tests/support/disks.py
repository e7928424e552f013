"""Trains on a disk that goes wrong at the end of the second epoch, in a process of its own.

    python disks.py DIRECTORY POLICY WHAT

The directory lies on a small file system that only this process sees, beside a file `ballast`. POLICY is that of
`on_save_error`, WHAT happens one of `FAULTS`. What `fit` returns or raises is printed. Under the policy `warn` the disk
is well again when two saves have failed. Where only checkpoints find no room, they have a file system of their own: a
half-written one would take the logs' room too.
"""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

from learner.checkpoint import CheckpointStore
from learner.events import Listener, Message, Saved
from tests.support.runs import batches, build_line, quiet

SECONDS = 60


def fill(name, left=0):
    """Leaves `left` bytes of room on the disk with the file `name`."""

    def fault(directory):
        path = directory.parent / name
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(path, path.stat().st_size - left)

    return fault


def mount_small(directory):
    """Checkpoints get a file system of their own, beside a file `ballast` too."""
    small = directory.parent / "small"
    (directory / "checkpoint").mkdir(parents=True)
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", small], check=True)
    (small / "checkpoint").mkdir()
    subprocess.run(["mount", "--bind", small / "checkpoint", directory / "checkpoint"], check=True)


def mount_read_only(name):
    """No file below `name` can be made or removed; those that are open can be written."""

    def fault(directory):
        place = str(directory / name)
        subprocess.run(["mount", "--bind", place, place], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)

    return fault


FAULTS = {
    "full": fill("small/ballast"),
    "full for the logs too": fill("ballast"),
    "nearly full": fill("ballast", 24 << 10),
    "nearly full, and nobody looks": fill("ballast", 24 << 10),
    "read-only checkpoints": mount_read_only("checkpoint"),
    "read-only": mount_read_only("."),
    "read-only from the start": mount_read_only("."),
}


class Told(Listener):
    """Waits for what happens on the saver's thread."""

    def __init__(self):
        self.saved, self.warned = threading.Semaphore(0), threading.Semaphore(0)

    def on_event(self, event):
        if isinstance(event, Saved):
            self.saved.release()
        elif isinstance(event, Message):
            self.warned.release()


def main(directory, policy, what):
    directory, told = Path(directory), Told()

    def after_epoch(info, model):
        if info.epoch == 2:
            assert told.saved.acquire(timeout=SECONDS)  # the checkpoint of the first epoch
            FAULTS[what](directory)
        elif info.epoch == 4 and policy == "warn" and "nearly" not in what:
            assert told.warned.acquire(timeout=SECONDS)
            assert told.warned.acquire(timeout=SECONDS)
            if what == "full":
                (directory.parent / "small" / "ballast").unlink()
            else:
                subprocess.run(["umount", directory / "checkpoint"], check=True)

    if what == "nearly full, and nobody looks":  # as where another process fills the disk in the middle of a save
        CheckpointStore._refuse_full_disk = lambda store, items: None
    if what == "read-only from the start":
        directory.mkdir()
        FAULTS[what](directory)
    elif what == "full":
        mount_small(directory)
    builder = quiet(directory).num_epochs(5 if policy == "warn" else 50).metric_loggers(told)
    builder.with_file_checkpointer(keep_last=99).on_save_error(policy).on_epoch_end(after_epoch)
    try:
        result = build_line(builder).fit(batches())
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
        print("\n".join(getattr(error, "__notes__", ())))
    else:
        print(result.stopped_by)


if __name__ == "__main__":
    main(*sys.argv[1:])
