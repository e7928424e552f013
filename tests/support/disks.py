"""Train on a disk that fails at the end of the second epoch, as a separate process.

    python disks.py DIRECTORY POLICY FAULT

The directory is on a small file system that only this process sees, with a file `ballast`. POLICY is the argument of
`on_save_error`, FAULT one of `FAULTS`. Prints what `fit` returns or raises. With the policy `warn`, the disk recovers
after two failed saves. Where only checkpoints run out of space, they have their own file system: a partial checkpoint
would take the space of the logs too.
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
    """Fill the disk with the file `name` until `left` bytes are free."""

    def fault(directory):
        path = directory.parent / name
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(path, path.stat().st_size - left)

    return fault


def mount_small(directory):
    """Mount a file system for checkpoints, also with a file `ballast`."""
    small = directory.parent / "small"
    (directory / "checkpoint").mkdir(parents=True)
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "tmpfs", small], check=True)
    (small / "checkpoint").mkdir()
    subprocess.run(["mount", "--bind", small / "checkpoint", directory / "checkpoint"], check=True)


def mount_read_only(name):
    """Make `name` read-only: no file below can be created or removed; open files remain writable."""

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


class SaverEvents(Listener):
    """Wait for events of the saver's thread."""

    def __init__(self):
        self.saved, self.warned = threading.Semaphore(0), threading.Semaphore(0)

    def on_event(self, event):
        if isinstance(event, Saved):
            self.saved.release()
        elif isinstance(event, Message):
            self.warned.release()


def main(directory, policy, what):
    directory, events = Path(directory), SaverEvents()

    def after_epoch(info, model):
        if info.epoch == 2:
            assert events.saved.acquire(timeout=SECONDS)  # the checkpoint of the first epoch
            FAULTS[what](directory)
        elif info.epoch == 4 and policy == "warn" and "nearly" not in what:
            assert events.warned.acquire(timeout=SECONDS)
            assert events.warned.acquire(timeout=SECONDS)
            if what == "full":
                (directory.parent / "small" / "ballast").unlink()
            else:
                subprocess.run(["umount", directory / "checkpoint"], check=True)

    if what == "nearly full, and nobody looks":  # another process fills the disk during a save
        CheckpointStore._refuse_full_disk = lambda store, items: None
    if what == "read-only from the start":
        directory.mkdir()
        FAULTS[what](directory)
    elif what == "full":
        mount_small(directory)
    builder = quiet(directory).num_epochs(5 if policy == "warn" else 50).metric_loggers(events)
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
