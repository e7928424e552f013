"""Tests of closed and unwritable standard streams."""

import io
import json
import os
import platform
import subprocess
import sys

import pytest

from learner.util.standard_streams import write_errors

SCRIPT = """
import os
from learner.util.standard_streams import fill_descriptors

fill_descriptors()
fill_descriptors()
descriptor = os.open(os.devnull, os.O_RDONLY)
open("numbers", "w").write(f"{descriptor} {[os.get_inheritable(number) for number in range(3)]}")
"""


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(tmp_path, closed):
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, SCRIPT]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=True)
    assert (tmp_path / "numbers").read_text() == "3 [True, True, True]"


def test_errors_of_one_stream_are_handled_until_the_block_ends():
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("nobody reads it")

    failed, inner, stream = [], [], Broken()
    with write_errors(stream, failed.append):
        with write_errors(stream, inner.append):
            pass
        print("a message", file=stream)
    assert inner == []
    assert set(map(str, failed)) == {"nobody reads it"}
    with pytest.raises(BrokenPipeError):
        print("a message", file=stream)


class Wrapper:
    """A stream that passes all attributes on, like that of a progress bar."""

    def __init__(self, stream):
        object.__setattr__(self, "stream", stream)

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def __setattr__(self, name, value):
        setattr(self.stream, name, value)


class Slots:
    __slots__ = ("texts",)

    def write(self, text):
        raise BrokenPipeError("nobody reads it")


def test_other_objects_in_place_of_streams_are_restored():
    failed, inner = [], io.StringIO()
    with write_errors(Wrapper(inner), failed.append):
        print("a message", file=inner)
    assert inner.write == type(inner).write.__get__(inner)
    with write_errors(Slots(), failed.append), pytest.raises(BrokenPipeError):
        Slots().write("a message")
    assert (inner.getvalue(), failed) == ("a message\n", [])


TRAINING = """
import os
import jax.numpy as jnp, numpy as np, optax
from learner import LearnerBuilder

def step(model, batch):
    return {"loss": jnp.mean((batch["x"] @ model["w"]) ** 2)}

def warn(info, model):  # as a C++ library does
    os.write(1, b"output")
    os.write(2, b"a warning")
    open("note", "w").write(open("run/run.lock").read())

builder = LearnerBuilder("run").renderer(None).with_batch_size(2).num_epochs(1).on_epoch_end(warn)
builder.build({"w": jnp.ones(3)}, optax.sgd, 0.1, train_step=step).fit({"x": np.ones((4, 3), np.float32)})
"""


@pytest.mark.full
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_script_with_closed_streams_keeps_the_files_of_its_run(tmp_path, closed):
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, TRAINING]
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.getcwd()}
    subprocess.run(command, cwd=tmp_path, env=env, check=True)
    note = json.loads((tmp_path / "note").read_text())
    assert note["host"] == platform.node()
    for path in (tmp_path / "run").rglob("*"):
        assert not path.is_file() or b"a warning" not in path.read_bytes()
