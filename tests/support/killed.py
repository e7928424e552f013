"""Train a run that saves after each step, and kill the process during a save.

    python killed.py DIRECTORY STEP CALL

SIGKILL comes in the save of step STEP, before the system call CALL, such as `os.rename 3.partial`: its name, and its
path below the checkpoint directory.
"""

import os
import signal
import sys
from pathlib import Path

import optax

from learner.checkpoint import CheckpointStore
from tests.support.descriptors import path_of
from tests.support.runs import STEPS, LastRow, line, line_step, noisy_step, quiet, shuffled, valid_data

CALLS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "open"}
SAVE, FSYNC = CheckpointStore.save, os.fsync


class KilledRun:
    """A small model with random inputs, optimizer moments, shuffled data, and metrics in flight."""

    end = STEPS

    def build(self, directory):
        builder = quiet(directory).num_epochs(1).metrics(LastRow())
        return builder.with_file_checkpointer(keep_last=1, keep_best=0, every_steps=1)

    def fit(self, builder):
        learner = builder.build(line(), optax.adam, 0.05, train_step=noisy_step, valid_step=line_step)
        return learner.fit(shuffled(), valid_data())


class Killer:
    """Audit the system calls of one save, in all of its threads."""

    def __init__(self, directory, step, call):
        self.place, self.step, self.call, self.saving = Path(directory).absolute() / "checkpoint", step, call, False

    def save(self, store, step, items, progress):
        self.saving = step == self.step
        SAVE(store, step, items, progress)
        if self.saving:
            self.reached("return", self.place)
        self.saving = False

    def audit(self, event, arguments):
        if self.saving and event in CALLS and not isinstance(arguments[0], int):  # skip files that are open already
            self.reached(event, arguments[0])

    def fsync(self, descriptor):
        if self.saving:
            self.reached("os.fsync", path_of(descriptor))
        FSYNC(descriptor)

    def reached(self, name, path):
        if Path(path).is_relative_to(self.place):
            path = Path(path).relative_to(self.place)
        if f"{name} {path}" == self.call:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    killer = Killer(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    sys.addaudithook(killer.audit)
    os.fsync = killer.fsync
    CheckpointStore.save = lambda *arguments: killer.save(*arguments)
    run = KilledRun()
    run.fit(run.build(sys.argv[1]))
