"""A device without room: a real exhaustion in each place where a run asks for memory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.errors import JaxRuntimeError
from runs import BATCH, ROWS, STEPS, X, batches, bits, build_line, journal_of, line, line_step, quiet, saved_steps

from learner import LearnerError, OutOfMemoryError
from learner.memory import Needs, RoomFor, explained
from learner.metrics import CollectingMetric, Metric
from learner.metrics.base import Sum

pytestmark = pytest.mark.usefixtures("compiled_once")

SAVED = 4
STATE = 4 * (3 + 1) + 4 + 4  # the line, the step, the rate's scale; see `state_bytes`
NO_ROOM = "The device says: Out of memory allocating 4398046511104 bytes."


def greedy(x):
    """Zero, by way of 4 TiB: a sort needs its numbers one by one."""
    numbers = jnp.sort(jax.lax.iota(jnp.float32, 2**40) + x.astype(jnp.float32))
    return numbers[0] - numbers[0]


def greedy_step(rows):
    """The line; with batches of so many rows there is no room for it."""

    def step(model, batch):
        if batch["x"].shape[0] == rows:
            batch = batch | {"x": batch["x"] + greedy(batch["x"][0, 0])}
        return line_step(model, batch)

    return step


def build(directory, train_step=line_step, valid_step=line_step, accumulate=1, **options):
    builder = quiet(directory, **options).num_epochs(2).with_file_checkpointer(keep_last=9, every_steps=SAVED)
    builder.grads_accumulation(accumulate)
    return builder.build(line(), optax.sgd, 0.05, train_step=train_step, valid_step=valid_step)


def fails(learner, *data):
    with pytest.raises(OutOfMemoryError) as caught:
        learner.fit(*data)
    return caught.value


def goes_on(directory):
    """From the last checkpoint, with steps that have room, to the very end of a run that always had it."""
    builder = quiet(directory).num_epochs(2).with_file_checkpointer(keep_last=9, every_steps=SAVED).resume()
    resumed = build_line(builder).fit(batches(rows=ROWS), batches(10, 20))
    assert resumed.stopped_by == "num_epochs"
    whole = build_line(quiet(directory.with_name("whole")).num_epochs(2)).fit(batches(rows=ROWS), batches(10, 20))
    assert bits(resumed.model) == bits(whole.model)


def is_the_device_s(error):
    assert isinstance(error.__cause__, JaxRuntimeError)
    assert "RESOURCE_EXHAUSTED" in str(error.__cause__)
    assert NO_ROOM in str(error)


def test_oom_in_step(tmp_path):
    """The last batch of an epoch, which has fewer rows: the checkpoint before it is whole."""
    error = fails(build(tmp_path / "run", greedy_step(2)), batches(rows=ROWS), batches(10, 20))
    assert error.part == "train"
    is_the_device_s(error)
    expected = (
        "out of memory in training. A step has 1 micro-batch of 4 rows "
        "(t: float32[4, 1], x: float32[4, 3], y: int32[4], 80 bytes), up to 32 steps are dispatched at once, and the "
        f"state of the run takes {state_bytes(tmp_path)} bytes. {NO_ROOM} Set a smaller batch size: 2 with "
        "grads_accumulation(2) makes the same steps of smaller micro-batches. steps_per_dispatch(1) keeps the batches "
        "of fewer steps on the device."
    )
    assert str(error) == expected
    log = (tmp_path / "run/experiment.log").read_text()
    assert expected in log
    assert "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED" in log  # the whole of it is there too
    assert journal_of(tmp_path / "run")[-1]["event"] == "error"
    assert saved_steps(tmp_path / "run") == [SAVED]
    goes_on(tmp_path / "run")


def state_bytes(tmp_path):
    return sum(x.nbytes for x in jax.tree.leaves(build(tmp_path / "other").init()))
