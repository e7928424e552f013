"""Measure the cost of one save: `python -m benchmarks.saves [--megabytes 0.01] [--rounds 30]`.

The same arrays are saved in turn by `learner`'s store, by Orbax's `StandardCheckpointer` alone, and as raw bytes with
`fsync`. Printed are the medians over the rounds: wall time and CPU time of the process in milliseconds, new threads,
calls of `os.fsync`, and files of the checkpoint. TensorStore's own threads and `fsync` calls are not counted; it
flushes the files of Orbax, and none of `learner`'s.
"""

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.checkpoint.retention import Retention
from learner.checkpoint.store import CheckpointStore

ARRAYS = 2  # arrays of the model; the optimizer has two moments of each


def arrays(megabytes: float) -> dict[str, dict[str, dict[str, Any]]]:
    """Return items of a train state with this number of bytes in all. They are random, so that no compression shrinks
    them.
    """
    size, numbers = max(1, int(megabytes * 1e6 / 4 / (3 * ARRAYS))), np.random.default_rng(0)
    layer = lambda: {f"w{i}": jnp.asarray(numbers.random(size, np.float32)) for i in range(ARRAYS)}  # noqa: E731
    optim = {f"{moment}/{name}": x for moment in ("mu", "nu") for name, x in layer().items()}
    return {"model": {"params": layer()}, "optim": {"opt_state": optim}, "scheduler": {"step": {"value": jnp.int32(0)}}}


def savers(items: Any, directory: Path) -> dict[str, Callable[[int], Path]]:
    """Return functions that save the items as a step, and return the written path."""
    import orbax.checkpoint as ocp

    store = CheckpointStore(directory / "learner", Retention(last=10**6, best=0, every=None, higher_is_better=False))
    store.prepare()
    bare = ocp.StandardCheckpointer()

    def by_learner(step: int) -> Path:
        store.save(step, items, {"step": step})
        return Path(store.path(step))

    def by_orbax(step: int) -> Path:
        bare.save(directory / f"orbax-{step}", items)
        bare.wait_until_finished()
        return directory / f"orbax-{step}"

    def as_bytes(step: int) -> Path:
        path = directory / f"bytes-{step}"
        with path.open("wb") as file:
            for leaf in jax.tree.leaves(items):
                file.write(np.asarray(leaf).data)
            file.flush()
            os.fsync(file)
        return path

    return {"learner": by_learner, "Orbax alone": by_orbax, "raw bytes": as_bytes}


def measure(save: Callable[[int], Path], step: int) -> tuple[float, float, int, int, int]:
    """Return the wall and CPU milliseconds of a save, its new threads, its calls of `os.fsync`, and its files."""
    counts, start, fsync = {"threads": 0, "fsync": 0}, threading.Thread.start, os.fsync

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any) -> Any:
            counts[name] += 1
            return call(*args)

        return counting

    threading.Thread.start, os.fsync = counted("threads", start), counted("fsync", fsync)  # type: ignore[method-assign]
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        path = save(step)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        threading.Thread.start, os.fsync = start, fsync  # type: ignore[method-assign]
    files = sum(entry.is_file() for entry in (path, *path.rglob("*")))
    remove = shutil.rmtree if path.is_dir() else os.remove
    remove(path)  # so that the next save has as much space
    return 1e3 * wall, 1e3 * cpu, counts["threads"], counts["fsync"], files


def main() -> None:
    """Print a row for each way to save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=0.01, help="of all arrays (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="default: %(default)s")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        ways = savers(arrays(options.megabytes), Path(directory))
        measured: dict[str, list[tuple[float, float, int, int, int]]] = {name: [] for name in ways}
        for step in range(1, options.rounds + 2):
            for name, save in ways.items():
                measured[name].append(measure(save, step))
    print(f"{'':12}{'wall ms':>9}{'CPU ms':>9}{'threads':>9}{'fsync':>9}{'files':>9}")
    for name, rows in measured.items():
        # the first save imports modules and warms up
        values = [median(column) for column in zip(*rows[1:], strict=True)]
        print(f"{name:12}{values[0]:9.1f}{values[1]:9.1f}{values[2]:9.0f}{values[3]:9.0f}{values[4]:9.0f}")


if __name__ == "__main__":
    main()
