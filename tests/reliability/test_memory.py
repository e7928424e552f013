"""Exhaust the device's memory in each place where a run allocates some."""

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.errors import JaxRuntimeError

from learner import LearnerError, OutOfMemoryError
from learner.metrics import CollectingMetric
from learner.runs.history import History
from learner.runs.metric_logs import NoFiles
from learner.training.programs.oom import MemoryFootprint, OomContext, explain_oom
from learner.training.reporting.delivery import RunValues
from learner.training.reporting.messages import Callback, StepsDispatched
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import StepTimeEstimator
from tests.support.codes import raises_code
from tests.support.runs import (
    ROWS,
    STEPS,
    batches,
    bits,
    build_line,
    journal_of,
    line,
    line_step,
    quiet,
    saved_steps,
    shuffled,
)

pytestmark = pytest.mark.usefixtures("compiled_once")

SAVED = 4
NO_ROOM = r"The device says: Out of memory allocating \d{13,14} bytes\."
BATCH_OF_4 = re.escape("4 rows (t: float32[4, 1], x: float32[4, 3], y: int32[4], 80 bytes)")


def greedy(x):
    """Return zero, computed from 4 TiB: sorting numbers needs all of them in memory."""
    numbers = jnp.sort(jax.lax.iota(jnp.float32, 2**40) + x)
    return numbers[0] - numbers[0]


def greedy_step(rows):
    """Return the linear model's output, which needs too much memory for batches of `rows` rows."""

    def step(model, batch):
        if batch["x"].shape[0] == rows:
            batch = batch | {"x": batch["x"] + greedy(batch["x"][0, 0])}
        return line_step(model, batch)

    return step


def options(directory, **more):
    return quiet(directory, **more).num_epochs(2).with_file_checkpointer(keep_last=9, every_steps=SAVED)


def build(directory, train_step=line_step, valid_step=line_step, change=lambda builder: builder):
    return change(options(directory)).build(line(), optax.sgd, 0.05, train_step=train_step, valid_step=valid_step)


def fails(do, *data):
    """Return the error of a run, which has JAX's error as its cause and leaves nothing running."""
    with raises_code("device-out-of-memory") as caught:
        do(*data)
    assert isinstance(caught.value, OutOfMemoryError)
    assert isinstance(caught.value.__cause__, JaxRuntimeError)
    assert "RESOURCE_EXHAUSTED" in str(caught.value.__cause__)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("learner")]
    return caught.value


def resumes(directory):
    """Resume from the last checkpoint with steps that fit, and compare with a run that always did."""
    resumed = build_line(options(directory).resume()).fit(batches(rows=ROWS), batches(10, 20))
    assert resumed.stopped_by == "num_epochs"
    whole = build_line(options(directory.with_name("whole"))).fit(batches(rows=ROWS), batches(10, 20))
    assert bits(resumed.model) == bits(whole.model)


def test_oom_in_step(tmp_path):
    """The failing batch is the last of an epoch, which has fewer rows: the checkpoint before it is complete."""
    error = fails(build(tmp_path / "run", greedy_step(2)).fit, batches(rows=ROWS), batches(10, 20))
    assert error.part == "train"
    state = build(tmp_path / "other").init()
    expected = (
        rf"out of memory in training\. A step has 1 micro-batch of {BATCH_OF_4}, a buffer of 32 steps takes 2\.6 kB, "
        rf"and the state of the run takes {sum(x.nbytes for x in jax.tree.leaves(state))} bytes\. {NO_ROOM} Set "
        r'grads_accumulation\(1, split=2\) to compute each batch in 2 parts, or split="auto": the steps stay the same\.'
    )
    assert re.fullmatch(expected, str(error))
    log = (tmp_path / "run/experiment.log").read_text()
    assert str(error) in log
    assert "JaxRuntimeError: RESOURCE_EXHAUSTED" in log  # in full
    assert journal_of(tmp_path / "run")[-1]["event"] == "error"
    assert saved_steps(tmp_path / "run") == [SAVED]


def test_in_the_initialisation(tmp_path):
    """The arrays of a model given as a function are computed on the device, where they may not fit."""
    model = lambda rngs: {"w": jax.random.normal(rngs(), (2**20, 2**20)), "b": jnp.zeros((1,))}  # noqa: E731
    step = lambda model, batch: line_step({**model, "w": model["w"][:3, :1]}, batch)  # noqa: E731
    learner = options(tmp_path / "run").build(model, optax.sgd, 0.05, train_step=step)
    error = fails(learner.fit, batches(rows=ROWS))
    assert error.part == "init"
    assert re.fullmatch(rf"out of memory in the initialisation of the model\. {NO_ROOM}", str(error))


@pytest.mark.full
def test_in_validation(tmp_path):
    """Of several splits, the failing one is named; the step before it is saved."""
    data = {"small": batches(8, 16), "large": batches(10, 20)}
    error = fails(build(tmp_path / "run", valid_step=greedy_step(10)).fit, batches(rows=ROWS), data)
    assert error.part == "valid-large"
    assert re.match(r"out of memory in the validation 'valid-large'\. A batch has 10 rows .* 200 bytes\)", str(error))
    assert "Set a smaller batch size for the validation data: the metrics stay the same." in str(error)
    assert "grads_accumulation" not in str(error)
    assert saved_steps(tmp_path / "run") == [SAVED]
    resumes(tmp_path / "run")


@pytest.mark.full
def test_a_training_step_before_a_validation(tmp_path):
    """Both are dispatched before anything is read, and everything after a failed step fails with its message."""
    change = lambda builder: builder.valid_every(steps=STEPS)  # noqa: E731
    run = build(tmp_path / "run", greedy_step(2), greedy_step(10), change)
    assert fails(run.fit, batches(rows=ROWS), batches(10, 20)).part == "train"


@pytest.mark.full
def test_a_validation_before_a_training_step(tmp_path):
    change = lambda builder: builder.valid_every(steps=2)  # noqa: E731
    run = build(tmp_path / "run", greedy_step(2), greedy_step(10), change)
    assert fails(run.fit, batches(rows=ROWS), batches(10, 20)).part == "valid"


@pytest.mark.full
def test_later_failure_after_a_failed_step(tmp_path, monkeypatch):
    """The loop may receive the later failure first."""
    workers, failed = [], threading.Event()

    class Seen(Reporter):
        def __init__(self, *arguments, **rest):
            super().__init__(*arguments, **rest)
            workers.append(self)

    def valid_step(model, batch):
        while workers and workers[0].failure is None:
            failed.wait(0.01)
        if workers:  # while the program is made, in the run
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: there is no room for what follows either")
        return line_step(model, batch)

    monkeypatch.setattr("learner.training.setup.threads.Reporter", Seen)
    change = lambda builder: builder.valid_every(steps=1).steps_per_dispatch(1)  # noqa: E731
    error = fails(build(tmp_path / "run", greedy_step(4), valid_step, change).fit, batches(), batches(8))
    assert error.part == "train"
    assert re.search(NO_ROOM, str(error))
    assert error.__cause__ is workers[0].failure.__cause__


def test_first_failing_split_is_named():
    none, held = jax.jit(greedy)(jnp.float32(1)), threading.Event()
    worker = Reporter(RunValues(NoFiles(), (), print, {}, History()), StepTimeEstimator())
    worker.put(Callback(lambda: held.wait(60)))
    for split in ("valid", "train"):
        worker.put(StepsDispatched(split, 1, 1, 1, 1, 1, 1, 1, none))
    held.set()
    with raises_code("device-out-of-memory", part="valid"):
        worker.wait()
    worker.close()


@pytest.mark.full
@pytest.mark.parametrize("dispatch", [pytest.param(1, marks=pytest.mark.full), 40])
def test_accumulated_steps(tmp_path, dispatch):
    """Micro-batches of resident data, which have no buffer."""
    change = lambda builder: builder.grads_accumulation(3).steps_per_dispatch(dispatch)  # noqa: E731
    error = fails(build(tmp_path / "run", greedy_step(4), change=change).fit, shuffled(), None)
    assert re.match(
        rf"out of memory in training\. A step has 3 micro-batches of {BATCH_OF_4}, and the state", str(error)
    )
    assert "grads_accumulation(3, split=2) to compute" in str(error)


def test_while_compiling(tmp_path):
    """Some compilers know the size beforehand; the program of the last batch is compiled when it is needed."""

    def step(model, batch):
        if batch["x"].shape[0] == 2:
            raise JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.\nTotal: 20 G")
        return line_step(model, batch)

    error = fails(build(tmp_path / "run", step).fit, batches(rows=ROWS))
    assert error.part == "train"
    assert "The device says: Ran out of memory in memory space hbm. Set grads_accumulation(" in str(error)


class Greedy(CollectingMetric):
    """A metric that copies its rows to the device again."""

    name = "Greedy"
    splits = ("valid",)

    def collect(self, output):
        return output.targets

    def compute(self, rows):
        return float(jax.jit(greedy)(rows[0, 0]))


@pytest.mark.full
def test_in_a_metric(tmp_path):
    change = lambda builder: builder.metric_valid(Greedy())  # noqa: E731
    assert fails(build(tmp_path / "run", change=change).fit, batches(rows=ROWS), batches(10, 20)).part == "valid"


@pytest.mark.full
def test_in_the_copy_of_a_save(tmp_path, monkeypatch):
    """The device has space for one state of the run."""

    def copied(tree):
        return jax.tree.map(lambda x: x + greedy(x.ravel()[0]) if x.dtype == jnp.float32 else jnp.copy(x), tree)

    monkeypatch.setattr("learner.training.programs.executor._copy", copied)
    error = fails(build(tmp_path / "run").fit, batches(rows=ROWS))
    assert error.part == "checkpoint"
    assert re.match(r"out of memory in the copy of the state for a checkpoint\. A step has 1 micro-batch", str(error))
    assert re.search(
        rf"{NO_ROOM} A save needs room for a copy of the state, \d+ bytes\. Set grads_accumulation", str(error)
    )
    assert saved_steps(tmp_path / "run") == []


def test_evaluate(tmp_path):
    error = fails(build(tmp_path / "run", valid_step=greedy_step(10)).evaluate, batches(10, 20))
    assert re.match(r"out of memory in the validation 'valid'\. A batch has 10 rows", str(error))


@pytest.mark.full
def test_a_hook_s_own_error_is_left_alone(tmp_path):
    def hook(info, model):
        jax.jit(greedy)(jnp.float32(1)).block_until_ready()

    with pytest.raises(JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        build(tmp_path / "run", change=lambda builder: builder.on_epoch_end(hook)).fit(batches(rows=ROWS))


# -- the words ---------------------------------------------------------------------------------------------------------


def advice(rows, **more):
    needs = MemoryFootprint({"train": {"x": np.zeros((rows, 2**20), np.float32)}}, 10, **more)
    return needs.explain("train", None).partition("takes 10 bytes. ")[2]


def test_batches_are_split():
    assert "grads_accumulation(2, split=2) to compute each batch in 2 parts" in advice(9, accumulate=2)
    assert "grads_accumulation(1, split=8) to compute each batch in 8 parts" in advice(7, split=4)
    assert advice(1) == advice(4, split=4) == "A micro-batch has one row already: set a smaller model, or shorter rows."
    assert advice(9, can_accumulate=False) == "Set a smaller batch size."


def test_buffers_of_an_explicit_size():
    """Buffers that a run chooses are limited to 64 MiB."""
    assert "steps_per_dispatch" not in advice(1, steps={"train": 16})
    assert advice(1, steps={"train": 17}).endswith(
        "Set a smaller number of steps_per_dispatch, or none: the buffers become smaller."
    )


def test_other_errors_pass():
    for error in (JaxRuntimeError("INTERNAL: no"), ValueError("RESOURCE_EXHAUSTED: not of a device")):
        with pytest.raises(type(error)) as caught, explain_oom(MemoryFootprint({}, 0)), OomContext("train"):
            raise error
        assert caught.value is error


def test_the_inner_part_is_named():
    with raises_code("device-out-of-memory", part="valid") as caught, OomContext("train"), OomContext("valid"):
        raise JaxRuntimeError("RESOURCE_EXHAUSTED: " + "x" * 300)
    assert str(caught.value) == f"out of memory in the validation 'valid'. The device says: {'x' * 200}..."


def test_it_is_a_learner_error():
    assert issubclass(OutOfMemoryError, LearnerError)
