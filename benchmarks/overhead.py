"""Measure the overhead of `learner` over hand-written loops: `python -m benchmarks.overhead`.

Three implementations of the same training (AdamW, float32, loss and accuracy on a training and a validation split):

- hand: the best hand-written loop with one call per step: flat leaves, donation, sums on the device, one wait per
epoch, no logs. It is fed in several ways, and the fastest one is the opponent.
- limit: one `scan` per epoch for training and one for validation, nothing logged, no wait between epochs.
- learner: with file logs and the plain renderer (into /dev/null); checkpoints by default (at most one save per minute,
and one at the end, which is not timed), or off.

A measurement is a separate process. A round has one of each kind; every second round runs in reverse. Times are per
epoch, training and validation, after some warm epochs; for `learner` they come from its journal. Ratios are computed
within a round; printed are the median, the minimum and the maximum over the rounds. A speed ratio is the opponent's
time divided by learner's: more is better.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.child import Case
from benchmarks.workloads import WORKLOADS, Workload

ROOT = Path(__file__).resolve().parent.parent
FURTHER = 10
GOALS = {  # speed relative to the hand-written loop, and to the limit
    "digits": (1.4, 0.9),
    "digits-20k": (1.4, 0.9),
    "cnn": (0.98, None),
    "transformer": (1.3, 0.95),
}
IMPORTS = """
import time, jax, flax, optax
begin = time.perf_counter(); import learner; print(time.perf_counter() - begin)"""

Results = dict[str, list[dict[str, Any]]]  # by case, the output of its process in each round


@dataclasses.dataclass(frozen=True)
class Row:
    """A number of the report: a function of the measurements of some cases in one round."""

    label: str
    cases: Sequence[str]
    value: Callable[..., float]
    goal: str = ""


def cases_of(work: Workload, loops: bool = False) -> dict[str, Case]:
    """Return the measurements of a workload's round, by name. `loops`: also the limit, if a CPU is slow in loops."""
    base = Case(work.name, "hand", epochs=work.epochs, warm=work.warm)
    ours = dataclasses.replace(base, variant="learner")
    change = dataclasses.replace
    cases = {f"hand {feed}": change(base, feed=feed) for feed in ("gather", "slice", "numpy")}
    if work.limit or loops:
        cases["limit"] = change(base, variant="limit")
    cases["learner"] = ours
    if work.small:
        cases |= {"hand iterable": change(base, feed="iterable"), "learner iterable": change(ours, feed="iterable")}
        cases["learner further"] = change(ours, further=FURTHER)
        cases["learner long"] = change(ours, epochs=10 * work.epochs)
    for cache in ("cold", "cached"):
        for name, case in (("hand", base), ("learner", ours)):
            cases[f"first {name} {cache}"] = change(case, epochs=1, warm=0, first=True)
    return cases


def spawn(command: Sequence[str], platform_name: str | None, cache: str | None = None) -> Any:
    """Run a separate process, and return its last line, read as JSON."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    env |= {"JAX_ENABLE_COMPILATION_CACHE": "false"} if cache is None else {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }  # fmt: skip
    if platform_name is not None:
        env["JAX_PLATFORMS"] = {"gpu": "cuda"}.get(platform_name, platform_name)  # JAX would also ask for ROCm
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise Python compiles each module at each import
    process = subprocess.run([sys.executable, *command], env=env, cwd=ROOT, capture_output=True, text=True)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def run(work: Workload, cases: dict[str, Case], rounds: int, platform_name: str | None) -> Results:
    """Run all rounds of a workload."""
    results: Results = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as cache:

        def measure(name: str) -> Any:
            directory = f"{cache}/{name.split()[1]}" if name.endswith("cached") else None
            case = json.dumps(dataclasses.asdict(cases[name]))
            return spawn(["-m", "benchmarks.child", case], platform_name, directory)

        for name in cases:
            if name.endswith("cached"):
                measure(name)  # fills the cache
        for number in range(rounds):
            print(f"{work.name}: round {number + 1} of {rounds}", file=sys.stderr)
            for name in list(cases)[:: -1 if number % 2 else 1]:
                results[name].append(measure(name))
    return results


def spread(values: Sequence[float]) -> str:
    """Return median, minimum and maximum."""
    return f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def speed(ours: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the ratio of the second time to the first."""
    return float(other["seconds"] / ours["seconds"])


def device_memory(ours: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the ratio of the device memory in use, NaN where it is not counted."""
    return float(ours["device_peak"] / other["device_peak"]) if other["device_peak"] else math.nan


def extra(what: str) -> Callable[..., float]:
    """Return the additional time of the first case."""
    return lambda ours, other: float(ours[what] - other[what])


def rows_of(work: Workload, hand: str, steps: int) -> list[Row]:
    """Return the table rows of a workload. `hand` is its fastest hand-written loop; `steps` includes batches of
    validation.
    """
    by_hand, by_limit = (f">= {goal}" if goal else "" for goal in GOALS.get(work.name, (None, None)))
    timed = [name for name in cases_of(work, loops=True) if not name.startswith("first")]
    times = [Row(f"{name}: ms per epoch", [name], lambda r: 1e3 * r["seconds"]) for name in timed]
    firsts = [
        Row(f"{name}: seconds to the first step", [f"first {name}"], lambda r: r["first"])
        for name in ("hand cold", "learner cold", "hand cached", "learner cached")
    ]
    return [
        *times,
        Row(f"speed: learner / {hand}", ["learner", hand], speed, by_hand),
        Row("speed: learner / limit", ["learner", "limit"], speed, by_limit),
        Row(f"speed: limit / {hand}", ["limit", hand], speed),
        Row(f"speed: learner iterable / {hand}", ["learner iterable", hand], speed, ">= 0.85"),
        Row("speed: learner iterable / hand iterable", ["learner iterable", "hand iterable"], speed),
        Row(f"peak memory: learner / {hand}", ["learner", hand], lambda a, b: a["peak"] / b["peak"], "<= 1.15"),
        Row(f"peak memory of the device: learner / {hand}", ["learner", hand], device_memory),
        *firsts,
        Row("first step, cold: learner - hand, s", ["first learner cold", "first hand cold"], extra("first"), "<= 0.5"),
        Row(
            "first step: learner cached / (hand cold + 0.5 s)",
            ["first learner cached", "first hand cold"],
            lambda a, b: a["first"] / (b["first"] + 0.5),
            "<= 0.5",
        ),
        Row(
            "a further metric: us per step and validation batch",
            ["learner further", "learner"],
            lambda a, b: 1e6 * extra("seconds")(a, b) / FURTHER / steps,
        ),
        Row("10 x the epochs: time per epoch", ["learner long", "learner"], lambda a, b: a["seconds"] / b["seconds"]),
        Row("10 x the epochs: peak memory", ["learner long", "learner"], lambda a, b: a["peak"] / b["peak"]),
    ]


def report(work: Workload, results: Results) -> list[str]:
    """Return the lines about a workload: the rows for which everything was measured."""
    splits = [(len(rows["y"]), size) for rows, size in zip(work.data(), (work.batch, work.valid_batch), strict=True)]
    steps = [-(-rows // size) for rows, size in splits]
    device = next((r["device"] for rounds in results.values() for r in rounds), "nothing measured")
    lines = [
        f"\n{work.name} ({device}): {steps[0]} steps of {work.batch}, {steps[1]} valid batches of {work.valid_batch}"
    ]
    hands = [name for name in results if name.startswith("hand ") and name != "hand iterable"]
    hand = min(hands, key=lambda name: median(r["seconds"] for r in results[name]), default="hand")
    for row in rows_of(work, hand, sum(steps)):
        if all(name in results for name in row.cases):
            values = [row.value(*rounds) for rounds in zip(*(results[name] for name in row.cases), strict=True)]
            if any(map(math.isnan, values)):
                continue
            lines.append(f"  {row.label:<52} {spread(values)}" + (f"   goal {row.goal}" if row.goal else ""))
    for name in (name for name in (hand, "limit", "learner") if name in results):
        train, valid = results[name][-1]["losses"][-1]
        lines.append(f"  {name + ': last train and valid loss':<52} {train:.4g}, {valid:.4g}")
    return lines


def imports(rounds: int, platform_name: str | None) -> str:
    """Return the import time of `learner` after jax, flax and optax, with a warm file cache."""
    seconds = [spawn(["-c", IMPORTS], platform_name) for _ in range(rounds + 1)][1:]
    return f"\n  {'import learner after jax, flax, optax: s':<52} {spread(seconds)}   goal <= 0.15"


def machine() -> str:
    """Return the machine and the versions."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    name = names[0].split(":")[1].strip() if names else platform.processor()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "flax", "optax"))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{name}, {os.cpu_count()} cores{load}, Python {platform.python_version()}, {versions}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(GOALS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--platform", help="cpu, gpu, ...; by default JAX chooses")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="only cases whose name begins so")
    parser.add_argument("--checkpoints", choices=("default", "off"), default="default", help="of learner")
    parser.add_argument("--quick", action="store_true", help="two epochs each: whether all runs, not how fast")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    args = parser.parse_args(argv)
    print(f"{machine()}\n{args.rounds} rounds: median (least to greatest); checkpoints: {args.checkpoints}", flush=True)
    everything = {}
    for work in (WORKLOADS[name] for name in args.workload):
        work = dataclasses.replace(work, epochs=2, warm=1) if args.quick else work
        cases = {
            name: dataclasses.replace(case, checkpoints=args.checkpoints == "default")
            for name, case in cases_of(work, loops=args.platform not in (None, "cpu")).items()
            if name.startswith(tuple(args.only))
        }
        everything[work.name] = run(work, cases, args.rounds, args.platform)
        print("\n".join(report(work, everything[work.name])), flush=True)
    if "imports".startswith(tuple(args.only)):
        print(imports(args.rounds, args.platform))
    if args.json:
        args.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
