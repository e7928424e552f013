"""A run, as a config names it.

As a separate process, it pauses in the phase that the environment variable `PHASE` names: it prints the phase, and
continues when its standard input is closed.
"""

import os
import signal
import threading
from pathlib import Path

import jax

from tests.support.runs import ROWS, batches, line, line_step

PHASE = os.environ.get("PHASE")
ACCUMULATE, EPOCHS = 2, 4  # three steps an epoch, the last one of a ragged micro-batch
CONFIG = {
    "directory": "run",
    "num_epochs": EPOCHS,
    "model": "tests.support.phases.line",
    "optimizer": "SGD",
    "lr": 0.05,
    "train": "tests.support.phases.Train",
    "valid": "tests.support.phases.Valid",
    "train_step": "tests.support.phases.train_step",
    "valid_step": "tests.support.phases.line_step",
    "grads_accumulation": ACCUMULATE,
    "steps_per_dispatch": 2,
    "every": {"steps": 1, "fn": "tests.support.phases.after_step"},
    "on_epoch_end": "tests.support.phases.after_epoch",
    "with_file_checkpointer": {"keep_last": 9},
    "renderer": None,
}
__all__ = ["CONFIG", "EPOCHS", "Train", "Valid", "after_epoch", "after_step", "line", "line_step", "train_step"]

seen = {"batches": 0, "validations": 0, "micro-batches": 0}
saving = threading.Event()


def reached(phase):
    """Pause here the first time, if this is the phase to pause in."""
    global PHASE
    if phase == PHASE:
        PHASE = None
        print("here", flush=True)
        os.read(0, 1)


def nth(what, number):
    """Return True for the `number`th call."""
    seen[what] += 1
    return seen[what] == number


class Train:
    """The batches of an epoch. The second epoch pauses before its last group."""

    def __iter__(self):
        for batch in batches(rows=ROWS):
            if nth("batches", 11):
                reached("data_wait")
            yield batch


class Valid:
    """Three batches. The second validation pauses before its second batch; preflight reads only the first batch."""

    def __iter__(self):
        for number, batch in enumerate(batches(8, ROWS)):
            if number == 1 and nth("validations", 2):
                reached("validation")
            yield batch


def train_step(model, batch):
    reached("first_look")
    if PHASE == "accumulate":
        jax.debug.callback(micro_batch)
    return line_step(model, batch)


def lowered(event, seconds, **_):
    """Pause before the first step is compiled, once the run has begun."""
    if event == "/jax/core/compile/jaxpr_to_mlir_module_duration" and Path("run/journal.jsonl").exists():
        reached("compile")


jax.monitoring.register_event_duration_secs_listener(lowered)


def micro_batch():
    """Pause on the device's thread, within a program: in the second micro-batch of the fifth step."""
    if nth("micro-batches", 4 * ACCUMULATE + 2):
        reached("accumulate")


def after_step(info, model):
    if info.step == 5:
        reached("train")
        if PHASE == "checkpoint":
            assert saving.wait(60)
            os.read(WAKEUP[0], 1)  # until the signal has arrived
            print("signalled", flush=True)


def after_epoch(info, model):
    if info.epoch == 2:
        reached("epoch_end")


def slow(rename):
    """Pause the file system where a checkpoint is completed."""

    def waiting(source, target, **options):
        if Path(target).name.isdigit() and not saving.is_set():
            saving.set()
            print("here", flush=True)
            os.read(0, 1)
        return rename(source, target, **options)

    return waiting


if PHASE == "checkpoint":
    WAKEUP = os.pipe()
    os.set_blocking(WAKEUP[1], False)
    signal.set_wakeup_fd(WAKEUP[1])
    os.rename, os.replace = slow(os.rename), slow(os.replace)
reached("import")
