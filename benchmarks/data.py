"""Measure the overhead of a loader: `python -m benchmarks.data`.

- Arrays in memory, against `{name: x[rows] for name, x in arrays.items()}` in a loop over a permutation. The goal is at
most 1.3 times its time.
- Everything else, against the bare Grain pipeline of Grain's guide: `source`, `shuffle`, `map` (`random_map`), `batch`,
`to_iter_dataset`, and `mp_prefetch` for workers. The goal is at most 1.05 times its time.

A measurement is a number of epochs that takes a quarter of a second, in this process. A round measures both of a pair,
one directly after the other, and every second round runs in reverse. Ratios are computed within a round; printed are
the median, the minimum and the maximum over the rounds. Below 1 the loader is faster.
"""

import argparse
import dataclasses
import functools
import importlib.metadata
import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grain
import numpy as np
from absl import flags

from benchmarks.overhead import machine, spread
from learner.data import ArrayDataset, DataLoaderBuilder, view

Epochs = Callable[[], Iterator[Any]]  # each call returns another epoch


@dataclasses.dataclass(frozen=True)
class Pair:
    """A loader and its opponent.

    Attributes:
      name: the name to print.
      ours, bare: return the batches of an epoch.
      rows: number of rows of an epoch.
      goal: the maximum ratio of the loader's time to its opponent's; `None` if none is set.
      close: releases resources.
    """

    name: str
    ours: Epochs
    bare: Epochs
    rows: int
    goal: float | None
    close: Callable[[], None] = lambda: None


# -- arrays in memory --------------------------------------------------------------------------------------------------


def gathered(arrays: dict[str, np.ndarray], size: int, rows: np.ndarray | None = None) -> Epochs:
    """Return the opponent's epochs: one `x[rows]` for each array and batch. `rows`: rows of a view of the arrays."""
    rng = np.random.default_rng(0)
    count = len(next(iter(arrays.values()))) if rows is None else len(rows)

    def epoch() -> Iterator[Any]:
        order = rng.permutation(count)
        order = order if rows is None else rows[order]
        for start in range(0, count, size):
            index = order[start : start + size]
            yield {name: x[index] for name, x in arrays.items()}

    return epoch


def in_memory(scale: float) -> list[Pair]:
    """Return pairs with small, medium and large rows, and views of them."""
    rng = np.random.default_rng(0)
    few, many = (max(256, int(scale * count)) for count in (20_000, 100_000))
    small = {"image": rng.random((many, 8, 8), np.float32), "label": rng.integers(0, 10, many, np.int32)}
    images = {"image": rng.random((few, 28, 28), np.float32), "label": rng.integers(0, 10, few, np.int32)}
    tokens = {"text": rng.integers(0, 100, many, np.int32)}
    half = rng.permutation(few)[: few // 2]

    def pair(name: str, data: Any, arrays: dict[str, np.ndarray], size: int, rows: np.ndarray | None = None) -> Pair:
        loader = DataLoaderBuilder().batch_size(size).shuffle(0).build(data)
        goal = None if name.startswith("concat") else 1.3
        return Pair(name, lambda: iter(loader), gathered(arrays, size, rows), loader.num_items(), goal)

    windows = np.lib.stride_tricks.sliding_window_view(tokens["text"], 128)
    parts = ArrayDataset(images).split([0.5, 0.5], seed=None)
    return [
        pair("8 x 8 in batches of 32", small, small, 32),
        pair("28 x 28 in batches of 128", images, images, 128),
        pair("28 x 28 in batches of 1024", images, images, 1024),
        pair("select: half of 28 x 28, 128", ArrayDataset(images).select(half), images, 128, half),
        pair("windows of 128 tokens, 64", ArrayDataset(tokens).windows(128, 1), {"text": windows}, 64),
        pair("concat of two halves of 28 x 28, 128", parts[0].concat(parts[1]), images, 128),
    ]


# -- everything else ---------------------------------------------------------------------------------------------------


def unpacked(item: dict[str, Any]) -> dict[str, Any]:
    """Do work that takes as long as decoding a small image."""
    pixels = np.frombuffer(zlib.decompress(item["image"]), np.uint8).reshape(96, 96)
    return {"image": pixels.astype(np.float32) / 255, "label": item["label"]}


def doubled(item: dict[str, Any]) -> dict[str, Any]:
    """Double a row, which costs hardly anything."""
    return {"image": item["image"] * 2, "label": item["label"]}


def flipped(item: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Flip a row at random, a usual augmentation."""
    image = item["image"][:, :: rng.choice([-1, 1])]
    return {"image": image + rng.normal(0, 0.1, image.shape).astype(np.float32), "label": item["label"]}


class Flipped(grain.transforms.RandomMap):
    """The augmentation for Grain."""

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        """Flip a row at random."""
        return flipped(element, rng)


def items_of(count: int, packed: bool) -> list[dict[str, Any]]:
    """Return rows one by one, as a dataset has them."""
    rng = np.random.default_rng(0)
    if not packed:
        return [{"image": rng.random((8, 8), np.float32), "label": np.int32(i % 10)} for i in range(count)]
    images = [zlib.compress(rng.integers(0, 16, (96, 96), np.uint8).tobytes()) for _ in range(min(count, 64))]
    return [{"image": images[i % len(images)], "label": np.int32(i % 10)} for i in range(count)]


def by_grain(dataset: Any, workers: int) -> tuple[Epochs, Callable[[], None]]:
    """Return the epochs of a bare pipeline. With workers, one iterator spans all epochs, as in the loader."""
    if not workers:
        return lambda: iter(dataset.to_iter_dataset()), lambda: None
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    endless = dataset.repeat().to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(workers))
    running: list[Any] = []

    def epoch() -> Iterator[Any]:
        if not running:
            running.append(iter(endless))
        for _ in range(len(dataset)):
            yield next(running[0])

    return epoch, lambda: running[0].close() if running else None


def through_grain(scale: float, workers: Sequence[int]) -> list[Pair]:
    """Return pairs with small rows, decoding and augmentation, without and with workers."""
    small, packed = items_of(max(64, int(scale * 8000)), False), items_of(max(64, int(scale * 4000)), True)
    ours = {
        "small rows": (small, view(small).map(doubled)),
        "small rows, augmented": (small, view(small).augment(flipped)),
        "decoding": (packed, view(packed).map(unpacked)),
        "decoding, augmented": (packed, view(packed).map(unpacked).augment(flipped)),
    }
    grains: dict[str, Callable[[Any], Any]] = {
        "small rows": lambda data: data.map(doubled),
        "small rows, augmented": lambda data: data.random_map(Flipped()),
        "decoding": lambda data: data.map(unpacked),
        "decoding, augmented": lambda data: data.map(unpacked).random_map(Flipped()),
    }

    def pair(name: str, count: int) -> Pair:
        items, data = ours[name]
        loader = DataLoaderBuilder().batch_size(32).shuffle(0).num_workers(count).build(data)
        chain = grains[name](grain.MapDataset.source(items).seed(0).shuffle()).batch(32)
        bare, close = by_grain(chain, count)

        def both() -> None:
            loader.close()
            close()

        text = f"{name}, {count} workers" if count else name
        return Pair(text, lambda: iter(loader), bare, len(items), 1.05, both)

    return [pair(name, count) for count in workers for name in ours]


# -- measuring ---------------------------------------------------------------------------------------------------------


def seconds(epochs: Epochs, rows: int, repeat: int = 1) -> float:
    """Return the duration of an epoch."""
    begin, seen = time.perf_counter(), 0
    for _ in range(repeat):
        for batch in epochs():
            seen += len(next(iter(batch.values())))
    took = time.perf_counter() - begin
    assert seen == repeat * rows, (seen, rows)
    return took / repeat


def measure(pair: Pair, rounds: int, least: float = 0.25) -> tuple[list[float], list[float]]:
    """Return the seconds per epoch of both, round by round, after uncounted epochs."""
    sides: list[tuple[Epochs, list[float]]] = [(pair.ours, []), (pair.bare, [])]
    try:
        first = min(seconds(epochs, pair.rows) for epochs in (pair.ours, pair.bare, pair.bare, pair.ours))
        repeat = max(1, math.ceil(least / first))
        for number in range(rounds):
            for epochs, times in sides[:: -1 if number % 2 else 1]:
                times.append(seconds(epochs, pair.rows, repeat))
    finally:
        pair.close()
    return sides[0][1], sides[1][1]


def line(pair: Pair, ours: Sequence[float], bare: Sequence[float]) -> str:
    """Return the printed line of a pair."""
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    goal = "" if pair.goal is None else f"   goal <= {pair.goal}"
    speed = pair.rows / sorted(ours)[len(ours) // 2]
    return f"  {pair.name:<40} {spread(ratios):<28} {speed:>10,.0f} rows/s{goal}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", nargs="*", type=int, default=[0, 2])
    parser.add_argument("--only", default="", metavar="TEXT", help="only pairs with this in their name")
    parser.add_argument("--quick", action="store_true", help="few rows: whether all runs, not how fast")
    args = parser.parse_args(argv)
    scale = 0.01 if args.quick else 1.0
    print(f"{machine()}, grain {importlib.metadata.version('grain')}")
    print(f"{args.rounds} rounds: the loader's time / the bare one's, median (least to greatest)", flush=True)
    kinds = {
        "arrays in memory": functools.partial(in_memory, scale),
        "through Grain": functools.partial(through_grain, scale, args.workers),
    }
    for kind, pairs in kinds.items():
        print(f"\n{kind}")
        for pair in pairs():
            if args.only in pair.name:
                print(line(pair, *measure(pair, args.rounds, 0 if args.quick else 0.25)), flush=True)


if __name__ == "__main__":
    main()
