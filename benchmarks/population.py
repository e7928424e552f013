"""Measure populations: `python -m benchmarks.population`.

The same members (seeds) of a workload are trained in three ways, each as a separate process:

- population: all in one program, with a run directory for each;
- one by one: `learner`, one member after another in one process, which compiles once;
- hand: the best hand-written loop (see `benchmarks.overhead`), one member after another in one process, with nothing
logged.

A round has one of each; every second round runs in reverse. `total` is the time of the process including imports,
compilation and closing. `epochs` is the time of the epochs after the warm ones, of all members together. A ratio is the
other way's time divided by the population's, within a round: more is better. Printed are the median, the minimum and
the maximum over the rounds. `--devices` spreads the members of the population over at most that many devices, simulated
on the cores of a CPU.
"""

import argparse
import dataclasses
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.overhead import spawn, spread

WAYS = ("population", "one by one", "hand")
EPOCHS = {"digits": (60, 5), "transformer-2": (3, 1), "cnn": (1, 1)}  # measured epochs, and warm ones before them


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A process: a workload, the way of training, the number of members, and of devices for a population."""

    workload: str
    way: str
    members: int
    devices: int = 1


def measure(what: Measurement) -> dict[str, Any]:
    """Train all members in this process. Return `epochs` (seconds of the measured ones) and `peak` (MiB)."""
    import jax

    from benchmarks import loops
    from benchmarks.child import Case, Clock, train_with_learner, workload_of

    epochs, warm = EPOCHS[what.workload]
    case = Case(what.workload, "learner", epochs=epochs, warm=warm, checkpoints=False, function=True)
    work, seconds = workload_of(case), 0.0
    alone = what.way == "population"
    spread_over = max(n for n in range(1, what.devices + 1) if what.members % n == 0) if alone else 1
    if spread_over > 1:
        jax.config.update("jax_num_cpu_devices", spread_over)
    for _ in range(1 if alone else what.members):
        clock = Clock()
        if what.way == "hand":
            loops.hand(work, "slice", warm + epochs, clock.mark)
        else:
            of_case = dataclasses.replace(case, members=what.members if alone else 0)
            train_with_learner(work, of_case, warm + epochs, clock, lambda builder: builder.devices(spread_over))
        seconds += clock.epochs[-1] - clock.epochs[-1 - epochs]
    return {"epochs": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def rounds_of(
    workload: str, members: int, devices: int, rounds: int, platform: str | None
) -> dict[str, list[dict[str, Any]]]:
    """Return what each way measured in each round."""
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS[:: -1 if number % 2 else 1]:
            case = json.dumps(dataclasses.asdict(Measurement(workload, way, members, devices)))
            began = time.perf_counter()
            result = spawn(["-m", "benchmarks.population", "--case", case], platform)
            results[way].append({**result, "total": time.perf_counter() - began})
            print(f"{workload}, {members} members, round {number + 1}: {way}", file=sys.stderr)
    return results


def report(workload: str, members: int, results: dict[str, list[dict[str, Any]]]) -> None:
    """Print the rows of a workload with a number of members."""
    print(f"\n{workload}, {members} members")
    for way in WAYS:
        cells = [f"{name} {spread([r[name] for r in results[way]])}" for name in ("total", "epochs", "peak")]
        print(f"  {way:<12}" + "".join(f"{cell:<34}" for cell in cells))
    for name in ("total", "epochs"):
        for way in WAYS[1:]:
            pairs = zip(results[way], results["population"], strict=True)
            print(f"  {name}: {way} / population  {spread([a[name] / b[name] for a, b in pairs])}")


def main() -> None:
    """Run the benchmark, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="digits,transformer-2", help="default: digits,transformer-2; also cnn")
    parser.add_argument("--members", default="1,4,16")
    parser.add_argument("--devices", type=int, default=1, help="that a population is spread over (default: 1)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--platform", help="cpu, gpu, ...; by default JAX chooses")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(Measurement(**json.loads(arguments.case)))))
        return
    everything = {}
    for workload in arguments.workloads.split(","):
        for members in map(int, arguments.members.split(",")):
            results = rounds_of(workload, members, arguments.devices, arguments.rounds, arguments.platform)
            report(workload, members, results)
            everything[f"{workload} {members}"] = results
    if arguments.json:
        arguments.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
