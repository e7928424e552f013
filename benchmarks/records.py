"""Compare records with the libraries of their formats: `python -m benchmarks.records`.

A model of many arrays is saved to a file and loaded again, by `save_model` and `load_model`, and by hand with the bare
libraries: `msgpack`, `safetensors`, and `json` with base64. Saving starts with arrays on the device and ends with a
file, and loading the other way round. The hand-written code checks nothing: no dtype, shape, name or header.

In a round everything is done once, in turn, every second round in reverse; ratios are computed within a round. Printed
are the median, the minimum and the maximum over the rounds. A ratio is `learner` to the hand-written code: below 1 is
faster, the goal is at most 1.1. Files stay in the page cache: the work is measured, not the disk. On a shared machine,
the ratio of CPU times is more reliable than that of wall times.
"""

import argparse
import base64
import gzip
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.overhead import machine, spread
from learner import load_model, save_model
from learner.records.recorder import LEVEL

GOAL = 1.1
FORMATS = (".mpk", ".safetensors", ".json", ".mpk.gz")
Arrays = dict[str, Any]
Do = Callable[[], Any]
Round = dict[tuple[str, str, str], tuple[float, float]]


def model_of(megabytes: int) -> Arrays:
    """Return arrays of 1 MB and of a few bytes in turn, with values like those of weights."""
    keys = jax.random.split(jax.random.key(0), megabytes)
    large = {f"layers.{i}.kernel": 0.02 * jax.random.normal(key, (500, 500)) for i, key in enumerate(keys)}
    return large | {f"layers.{i}.bias": jnp.full(500, 0.1) for i in range(megabytes)}


def described(x: np.ndarray) -> dict[str, Any]:
    """Return the metadata of an array."""
    return {"dtype": str(x.dtype), "shape": x.shape}


def restored(entry: dict[str, Any], data: bytes) -> Any:
    """Return the array on the device."""
    return jnp.asarray(np.frombuffer(data, entry["dtype"]).reshape(entry["shape"]))


def pack_messagepack(arrays: dict[str, np.ndarray]) -> bytes:
    """Pack by hand, with msgpack."""
    import msgpack

    packed: bytes = msgpack.packb({name: {**described(x), "data": x.tobytes()} for name, x in arrays.items()})
    return packed


def unpack_messagepack(data: bytes) -> Arrays:
    """Return the arrays of a MessagePack text."""
    import msgpack

    return {name: restored(entry, entry["data"]) for name, entry in msgpack.unpackb(data).items()}


def pack_json(arrays: dict[str, np.ndarray]) -> bytes:
    """Pack by hand, with json."""
    entries = {name: {**described(x), "data": base64.b64encode(x).decode()} for name, x in arrays.items()}
    return json.dumps(entries).encode()


def unpack_json(data: bytes) -> Arrays:
    """Return the arrays of a JSON text."""
    return {name: restored(entry, base64.b64decode(entry["data"])) for name, entry in json.loads(data).items()}


def save_by_hand(path: Path, model: Arrays) -> None:
    """Save with the bare library of the extension."""
    import safetensors.numpy

    arrays = {name: np.asarray(x) for name, x in model.items()}
    if path.name.endswith(".safetensors"):
        safetensors.numpy.save_file(arrays, path)
    elif path.name.endswith(".gz"):
        with gzip.open(path, "wb", compresslevel=LEVEL) as file:
            file.write(pack_messagepack(arrays))
    else:
        path.write_bytes((pack_json if path.name.endswith(".json") else pack_messagepack)(arrays))


def load_by_hand(path: Path) -> Arrays:
    """Load the arrays that were saved by hand."""
    import safetensors.numpy

    if path.name.endswith(".safetensors"):
        return {name: jnp.asarray(x) for name, x in safetensors.numpy.load_file(path).items()}
    if path.name.endswith(".gz"):
        with gzip.open(path, "rb") as file:
            return unpack_messagepack(file.read())
    return (unpack_json if path.name.endswith(".json") else unpack_messagepack)(path.read_bytes())


def actions(model: Arrays, directory: Path, formats: Sequence[str]) -> dict[tuple[str, str, str], Do]:
    """Return all measured actions by format, direction and implementation."""
    by_key: dict[tuple[str, str, str], Do] = {}
    for name in formats:
        ours, theirs = directory / f"ours{name}", directory / f"hand{name}"
        by_key[name, "save", "ours"] = lambda path=ours: save_model(path, model)  # type: ignore[misc]
        by_key[name, "save", "hand"] = lambda path=theirs: save_by_hand(path, model)  # type: ignore[misc]
        by_key[name, "load", "ours"] = lambda path=ours: load_model(path, model)  # type: ignore[misc]
        by_key[name, "load", "hand"] = lambda path=theirs: load_by_hand(path)  # type: ignore[misc]
    return by_key


def timed(do: Do) -> tuple[float, float]:
    """Return the wall and CPU seconds until the arrays are there."""
    begin, worked = time.perf_counter(), time.process_time()
    jax.block_until_ready(do())
    return time.perf_counter() - begin, time.process_time() - worked


def measure(model: Arrays, rounds: int, formats: Sequence[str]) -> list[Round]:
    """Return the times of every action in each round."""
    with tempfile.TemporaryDirectory() as place:
        todo = actions(model, Path(place), formats)
        for do in todo.values():
            do()  # the first call creates files and imports libraries
        orders = [list(todo), list(todo)[::-1]]
        return [{key: timed(todo[key]) for key in orders[number % 2]} for number in range(rounds)]


def report(measured: list[Round], size: float) -> list[str]:
    """Return the lines of the report; `size` is that of the model in MB."""
    lines = []
    for name, direction in dict.fromkeys((name, direction) for name, direction, _ in measured[0]):
        times = {who: [r[name, direction, who] for r in measured] for who in ("ours", "hand")}
        for who, by_round in times.items():
            lines.append(f"  {f'{name} {direction} {who}, MB/s':<48} {spread([size / wall for wall, _ in by_round])}")
        for index, what in enumerate(("time", "processor time")):
            ratios = [a[index] / b[index] for a, b in zip(times["ours"], times["hand"], strict=True)]
            lines.append(f"  {f'{name} {direction}: {what}, ours / hand':<48} {spread(ratios)}   goal <= {GOAL}")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100, help="size of the model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    args = parser.parse_args(argv)
    model = jax.block_until_ready(model_of(args.megabytes))
    size = sum(x.nbytes for x in model.values()) / 1e6
    print(f"{machine()}\n{size:.0f} MB in {len(model)} arrays, {args.rounds} rounds: median (least to greatest)")
    print("\n".join(report(measure(model, args.rounds, args.formats), size)))


if __name__ == "__main__":
    main()
