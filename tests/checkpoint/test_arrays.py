"""Tests of reading and writing the arrays of checkpoints."""

import errno
import subprocess
import sys
import textwrap

import pytest
import tensorstore

from learner.checkpoint.arrays import ArrayFiles
from learner.util.disk import is_of_process


def fail_in(directory):
    """Raise TensorStore's error of a write below a regular file."""
    tensorstore.KvStore.open({"driver": "file", "path": f"{directory}/"}).result().write("a", b"1").result()


def test_an_error_of_the_system_in_tensorstore_is_an_os_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("learner.checkpoint.arrays.write_pytree", lambda *_: fail_in(tmp_path / "file"))
    with pytest.raises(NotADirectoryError) as raised:
        ArrayFiles().save(tmp_path, {})
    assert (raised.value.errno, raised.value.filename) == (errno.ENOTDIR, str(tmp_path))


def test_another_error_of_a_save_is_raised_unchanged(tmp_path, monkeypatch):
    error = ValueError("INVALID_ARGUMENT: no such dtype")

    def fail(*_):
        raise error

    monkeypatch.setattr("learner.checkpoint.arrays.write_pytree", fail)
    with pytest.raises(ValueError, match="INVALID") as raised:
        ArrayFiles().save(tmp_path, {})
    assert raised.value is error


@pytest.mark.parametrize("form", ["[OS error 24: Too many open files]", "Too many open files [os_error_code='24']"])
def test_error_of_the_process_in_tensorstore(form):
    assert is_of_process(ValueError(f'RESOURCE_EXHAUSTED: Failed to open: "a": {form}'))
    assert not is_of_process(ValueError(f'NOT_FOUND: Failed to open: "a": {form.replace("24", "2")}'))


@pytest.mark.full
def test_a_failed_read_reports_its_error_alone(tmp_path):
    """Run in a separate process, as tasks and threads of Orbax report to global handlers at any time."""
    code = """
    import gc, pathlib, sys
    import jax, jax.numpy as jnp
    from learner.checkpoint.arrays import STATE, ArrayFiles
    files, directory = ArrayFiles(), pathlib.Path(sys.argv[1])
    items = {"model": {f"w{i}": jnp.ones(100 * (i + 1)) for i in range(40)}}
    files.save(directory, items)
    for path in (directory / STATE / "d").iterdir():
        path.unlink()
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), items)
    for _ in range(5):  # what is late comes during the next one
        try:
            files.restore(directory, like)
        except ValueError as error:
            print("NOT_FOUND" in str(error))
        gc.collect()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n" * 5, "")


@pytest.mark.full
def test_errors_of_other_code_are_reported():
    """Also those that have the texts of the hidden ones."""
    code = """
    import asyncio, errno, gc
    from learner.checkpoint.arrays import ArrayFiles
    ArrayFiles()._ocp
    async def run():
        for error in (RuntimeError("Event loop is closed"), OSError(errno.ENOSPC, "No space left on device")):
            asyncio.get_running_loop().create_future().set_exception(error)
            del error
            gc.collect()
    asyncio.run(run())
    loop = asyncio.new_event_loop()
    loop.close()
    class Transport:
        def __del__(self):
            loop.call_soon(print)
    Transport()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stderr.count("Future exception was never retrieved") == 2
    assert done.stderr.count("Exception ignored in") == 1
