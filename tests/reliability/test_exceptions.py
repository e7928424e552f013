"""Raise one exception in each place where a run calls a user's code."""

import io
import sys
import threading
import traceback

import jax
import jax.numpy as jnp
import optax
import pytest
from rich.console import Console

from learner import LearnerBuilder
from learner.events import Listener, RunEnded, RunFailed
from learner.loggers import MemoryLogger
from learner.metrics import CollectingMetric, HostMetric, Metric
from learner.metrics.base import CompensatedSum
from learner.renderers import RichRenderer
from tests.support.runs import (
    ROWS,
    batches,
    checkpoint_bits,
    journal_of,
    line,
    line_step,
    logs_of,
    numbers_of,
    saved_steps,
)
from tests.support.screens import HIDE, SHOW, Screen
from tests.support.stopped import some

pytestmark = pytest.mark.usefixtures("compiled_once")

SAVED = 4  # the step of the checkpoint before the fault, which comes at step 5 or later


class Fault:
    """Raise at one place of a run, once `armed`."""

    def __init__(self, where=None, error=None):
        self.where, self.error, self.armed = where, error, False

    def reached(self, where):
        if self.armed and where == self.where:
            raise self.error


class OwnMetric(Metric):
    name = "Own"

    def __init__(self, fault):
        self.fault = fault

    def init(self):
        return CompensatedSum.zero()

    def update(self, state, output, info):
        self.fault.reached("metric update")
        return state.add(output.predictions.sum())

    def merge(self, a, b):
        return a.merge(b)

    def compute(self, state):
        return state.value()


class OwnRows(CollectingMetric):
    name = "Rows"

    def __init__(self, fault):
        self.fault = fault

    def collect(self, output):
        self.fault.reached("collecting metric collect")
        return output.predictions

    def compute(self, rows):
        self.fault.reached("collecting metric compute")
        return float(len(rows))


class OwnCount(HostMetric):
    name = "Count"

    def __init__(self, fault):
        self.fault, self.steps = fault, 0

    def __deepcopy__(self, memo):  # each split has its own copy, and all share the fault
        return OwnCount(self.fault)

    def update(self, steps, seconds):
        self.fault.reached("host metric update")
        self.steps += steps
        return float(steps > 0)

    def compute(self):
        self.fault.reached("host metric compute")
        return float(self.steps > 0)  # a checkpoint does not contain the number of steps

    def reset(self):
        self.fault.reached("host metric reset")
        self.steps = 0


class OwnLogger(Listener):
    def __init__(self, fault):
        self.fault = fault

    def on_event(self, event):
        self.fault.reached("logger")
        self.fault.reached("logger that exits")

    def close(self):
        self.fault.reached("logger close")


class OwnRenderer(RichRenderer):
    def __init__(self, out, fault):
        super().__init__(Console(file=out, force_terminal=True, width=80))
        self.fault = fault

    def on_event(self, event):
        super().on_event(event)
        self.fault.reached("renderer")


class Data:
    """Batches of an iterator. The fault is in the second epoch, or in the second validation."""

    def __init__(self, fault, where, size):
        self.fault, self.where, self.size, self.passes = fault, where, size, 0

    def __iter__(self):
        self.passes += 1
        for number, batch in enumerate(batches(self.size, ROWS)):
            if number == 1 and self.passes == 2 and self.where == self.fault.where:
                self.load()
            yield batch

    def load(self):
        raise self.fault.error


def build(directory, fault, memory, out, resume=False):
    """Return a run with a user's object in every place."""

    def train_step(model, batch):
        fault.reached("train step")  # while the step is traced: for the last batch, which has fewer rows
        if fault.where == "train step on the device":
            jax.debug.callback(on_the_device, batch["x"].shape[0] < 4)
        return line_step(model, batch)

    def on_the_device(is_last):
        if is_last:
            fault.reached("train step on the device")

    def valid_step(model, batch):
        fault.reached("valid step")
        return line_step(model, batch)

    def schedule(step):
        fault.reached("schedule")
        return 0.05 / (1.0 + jnp.asarray(step, jnp.float32))

    def after_step(info, model):
        fault.armed |= info.step == 5
        fault.reached("hook")

    def after_epoch(info, model):
        fault.reached("hook at an epoch's end")
        return {"epoch": info.epoch}

    builder = LearnerBuilder(directory).num_epochs(2).with_file_checkpointer(keep_last=9, every_steps=SAVED)
    builder.metrics(OwnMetric(fault), OwnRows(fault), OwnCount(fault)).metric_loggers(memory, OwnLogger(fault))
    builder.every(1, after_step).on_epoch_end(after_epoch).renderer(OwnRenderer(out, fault))
    built = (builder.resume() if resume else builder).build(
        line(), optax.sgd, schedule, train_step=train_step, valid_step=valid_step
    )
    return lambda: built.fit(Data(fault, "loader", 4), Data(fault, "validation data", 8))


def left_by(directory):
    steps = saved_steps(directory)
    return logs_of(directory), numbers_of(directory), steps, checkpoint_bits(directory, steps[-1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, compiled_once):
    directory = tmp_path_factory.mktemp("undisturbed") / "run"
    build(directory, Fault(), MemoryLogger(), io.StringIO())()
    return left_by(directory)


FATAL = {  # places by the function that raises there; `compute` of a traced metric runs only before the first step
    "loader": "load",
    "validation data": "load",
    "train step": "train_step",
    "train step on the device": "on_the_device",
    "valid step": "valid_step",
    "schedule": "schedule",
    "metric update": "update",
    "collecting metric collect": "collect",
    "collecting metric compute": "compute",
    "host metric update": "update",
    "host metric compute": "compute",
    "host metric reset": "reset",
    "hook": "after_step",
    "hook at an epoch's end": "after_epoch",
}
HARMLESS = {
    "logger": "OwnLogger",
    "logger that exits": "OwnLogger",
    "logger close": "OwnLogger",
    "renderer": "OwnRenderer",
}
FEW = {"logger that exits"}


@pytest.mark.full
@pytest.mark.parametrize("where", some([*FATAL, *HARMLESS], FEW))
def test_exception_in_each_hook(tmp_path, undisturbed, where):
    directory, memory, out, streams = tmp_path / "run", MemoryLogger(), io.StringIO(), (sys.stdout, sys.stderr)
    error = (SystemExit if where == "logger that exits" else RuntimeError)(f"in the {where}")
    fit = build(directory, Fault(where, error), memory, out)
    if where in HARMLESS:
        assert fit().stopped_by == "num_epochs"
    else:
        ends_with(error, where, fit, directory)
    log = (directory / "experiment.log").read_text()
    assert f"in the {where}" in log

    # Nothing is left: open logs, threads, changes of the terminal.
    assert memory.closed
    assert isinstance(memory.events[-1], RunEnded if where in HARMLESS else RunFailed)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("learner")]
    text, screen = out.getvalue(), Screen(out.getvalue())
    assert "━" in text
    assert "━" not in "".join(screen.lines())
    assert (screen.column, text.rindex(SHOW) > text.rindex(HIDE)) == (0, True)
    assert (sys.stdout, sys.stderr) == streams

    if where in HARMLESS:
        (warning,) = [text for text in log.splitlines() if "WARNING" in text]
        assert f"{HARMLESS[where]} failed and is detached; training continues: {error!r}" in warning
    else:
        (failed,) = [n for n, line in enumerate(screen.lines()) if line.startswith("failed at epoch ")]
        assert f"in the {where}" in " ".join(line.strip() for line in screen.lines()[failed:])
        build(directory, Fault(), MemoryLogger(), io.StringIO(), resume=True)()
    assert left_by(directory) == undisturbed


def ends_with(error, where, fit, directory):
    """Check that the user's exception is raised, and that everything before it is written."""
    with pytest.raises(Exception, match=f"in the {where}") as caught:
        fit()
    frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
    if where == "train step on the device":  # the device transmits only the message
        assert isinstance(caught.value, jax.errors.JaxRuntimeError)
        assert f"in {FATAL[where]}\n" in str(caught.value)
    else:
        assert caught.value is error
        assert FATAL[where] in frames
        assert (error.__cause__, error.__context__) == (None, None)
        assert journal_of(directory)[-1]["error"] == repr(error)
        assert f"in {FATAL[where]}\n" in (directory / "experiment.log").read_text()
    assert journal_of(directory)[-1]["event"] == "error"
    due = [step for step in saved_steps(directory) if step % SAVED == 0]  # the best epoch may be saved besides
    assert due == ([SAVED, 2 * SAVED] if where == "validation data" else [SAVED])
    assert len(logs_of(directory)["train/epoch-1/Loss.log"].splitlines()) > SAVED
