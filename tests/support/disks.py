"""Trains on a disk that goes wrong at the end of the second epoch, in a process of its own.

    python disks.py DIRECTORY POLICY WHAT

The directory lies on a small file system that only this process sees, beside a file `ballast`. POLICY is that of
`on_save_error`, WHAT happens one of `FAULTS`. What `fit` returns or raises is printed. Under the policy `warn` the disk
is well again when two saves have failed.
"""

import subprocess
import sys
import threading
from pathlib import Path

from runs import batches, build_line, quiet

from learner.events import Listener, Message, Saved

ROOM = 64 << 10  # bytes: for the logs, but not for a checkpoint
SECONDS = 60


def fill(room):
    """Leaves no more than `room` on the disk."""

    def fault(directory):
        with (directory.parent / "ballast").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                file.truncate(max(0, file.tell() - room))

    return fault


def mount_read_only(name):
    """No file below `name` can be made or removed; those that are open can be written."""

    def fault(directory):
        place = str(directory / name)
        subprocess.run(["mount", "--bind", place, place], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)

    return fault


FAULTS = {
    "full": fill(ROOM),
    "full for the logs too": fill(0),
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
        elif info.epoch == 4 and policy == "warn":
            assert told.warned.acquire(timeout=SECONDS)
            assert told.warned.acquire(timeout=SECONDS)
            (directory.parent / "ballast").unlink(missing_ok=True)
            subprocess.run(["umount", directory / "checkpoint"], capture_output=True)

    if what == "read-only from the start":
        directory.mkdir()
        FAULTS[what](directory)
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
