"""Tests of trees of arrays that Orbax writes and reads."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from learner.checkpoint import CheckpointStore, Retention
from learner.checkpoint.pytree import write_pytree
from tests.support.descriptors import path_of

KINDS = ["bfloat16", "float8_e4m3fn", "float16", "float64", "int4", "int8", "uint32", "int64", "bool", "complex64"]
TREE = {
    "model": {"params": {"a/b.c": np.float32([[1, 2, 3]]), "w%2F": np.float32(0.5)}, "model_state": {}},
    "in_flight": {"rows": {"train": {"0": {"0": np.arange(3, dtype=np.int32)}}}},
}


def restored(directory, tree=None):
    with ocp.PyTreeCheckpointer() as checkpointer:
        return checkpointer.restore(directory / "state", tree)


def described(directory):
    with ocp.PyTreeCheckpointer() as checkpointer:
        return checkpointer.metadata(directory / "state").item_metadata.tree


def test_metadata_equals_orbax(tmp_path):
    write_pytree(tmp_path / "ours", "state", TREE)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "theirs", ocp.args.Composite(state=ocp.args.PyTreeSave(TREE)))
    ours, theirs = (json.loads((tmp_path / place / "state" / "_METADATA").read_text()) for place in ("ours", "theirs"))
    scalar = str(("model", "params", "w%2F"))  # Orbax has its own type for NumPy scalars
    assert theirs["tree_metadata"][scalar]["value_metadata"].pop("value_type") == "scalar"
    assert ours["tree_metadata"][scalar]["value_metadata"].pop("value_type") == "np.ndarray"
    assert ours == theirs
    steps = [json.loads((tmp_path / place / "_CHECKPOINT_METADATA").read_text()) for place in ("ours", "theirs")]
    assert steps[0]["item_handlers"] == steps[1]["item_handlers"]
    assert steps[0].keys() <= steps[1].keys()
    both = [described(tmp_path / place) for place in ("ours", "theirs")]
    shapes = [jax.tree.map(lambda x: (getattr(x, "shape", ()), np.dtype(x.dtype)), tree) for tree in both]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype(tmp_path, kind):
    numbers = np.array([[0, 1, 1], [1, 0, 1]]).astype(jnp.dtype(kind))
    write_pytree(tmp_path / "c", "state", {"x": numbers, "one": numbers[0, 1]})
    arrays = restored(tmp_path / "c")
    assert arrays["x"].dtype == numbers.dtype
    assert arrays["x"].tobytes() == numbers.tobytes()
    assert arrays["one"].tobytes() == numbers[0, 1].tobytes()


def test_an_array_on_several_devices_has_a_chunk_of_each(tmp_path):
    """Replicas are written once, and any other topology can read the array."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), devices=jax.devices()[:8])
    spec = jax.sharding.PartitionSpec("y")
    numbers = np.arange(48, dtype=np.float32).reshape(8, 6)
    write_pytree(tmp_path / "c", "state", {"w": jax.device_put(numbers, jax.sharding.NamedSharding(mesh, spec))})
    assert described(tmp_path / "c")["w"].storage.chunk_shape == (2, 6)
    other = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "x"))
    target = {"w": jax.ShapeDtypeStruct((8, 6), jnp.float32, sharding=other)}
    args = ocp.args.PyTreeRestore(target, restore_args=ocp.checkpoint_utils.construct_restore_args(target))
    with ocp.PyTreeCheckpointer() as checkpointer:
        array = checkpointer.restore(tmp_path / "c" / "state", args=args)["w"]
    assert array.sharding == other
    np.testing.assert_array_equal(array, numbers)


def test_zeros_are_stored_too(tmp_path):
    """Orbax treats a missing chunk as a damaged file."""
    write_pytree(tmp_path / "c", "state", {"w": np.zeros((2, 2), np.float32)})
    np.testing.assert_array_equal(restored(tmp_path / "c")["w"], np.zeros((2, 2)))


def test_a_small_tree_is_one_file_of_data(tmp_path):
    """Committing every batch of arrays that happens to be ready would write up to two files per array."""
    tree = {f"w{n}": np.ones((4, 100), np.float32) for n in range(20)}
    for number in range(10):
        write_pytree(tmp_path / str(number), "state", tree)
        assert len([*(tmp_path / str(number) / "state" / "d").iterdir()]) == 1


def test_the_cost_of_a_small_save(tmp_path, monkeypatch):
    """No thread is started, and each file and directory is flushed once."""
    threads, flushed, start, fsync = [], [], threading.Thread.start, os.fsync

    def flush(descriptor):
        flushed.append(os.path.relpath(path_of(descriptor), tmp_path))
        fsync(descriptor)

    store = CheckpointStore(tmp_path / "c", Retention(last=1, best=0, every=None, higher_is_better=False))
    store.prepare()
    items = {"model": {"params": {f"w{n}": jnp.ones((4, 100), jnp.float32) for n in range(20)}}}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", flush)
        patch.setattr(threading.Thread, "start", lambda self: (threads.append(self.name), start(self)))
        store.save(6, items, {"step": 6})
    assert threads == []
    assert len(flushed) == len(set(flushed)) <= 15
    files = {path.relative_to(tmp_path / "c" / "6").as_posix() for path in (tmp_path / "c" / "6").rglob("*")}
    assert {*flushed} == {"c", "c/6.saving", "c/6.partial", *(f"c/6.partial/{name}" for name in files)}


FULL_DISK = """
import pathlib, shutil, sys
import numpy as np
from learner.checkpoint import arrays as module

place, arrays = pathlib.Path(sys.argv[1]), {str(n): np.random.default_rng(n).random(1 << 20) for n in range(40)}
for number in range(7):
    files = module.ArrayFiles()
    if number == 6:  # as several processes write
        module.write_pytree = lambda directory, name, items: files._save_with_orbax(directory, items)
    try:
        files.save(place / str(number), {"model": arrays})
    except OSError as error:
        for path in place.iterdir():
            shutil.rmtree(path)
        print(error.errno, [*place.iterdir()])
"""


@pytest.mark.full
def test_nothing_is_written_after_a_full_disk_failed(tmp_path):
    """Queued writes would create files anew in a directory that is being removed."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("a process may not have file systems of its own here (unshare -rm)")
    inside = 'mount -t tmpfs -o size=120M none "$1" && exec "$2" -c "$3" "$1"'
    words = ["unshare", "-rm", "sh", "-c", inside, "sh", tmp_path, sys.executable, FULL_DISK]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"{errno.ENOSPC} []"] * 7)
