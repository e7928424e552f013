"""Measure the cost of loggers and renderers: `python -m benchmarks.listeners`.

The digits MLP is trained without listeners to its steps, with the files of a run, with files and the terminal renderer
(drawing into /dev/null), and with each logger besides these, with its defaults. A measurement is a separate process; a
round has one of each kind, and every second round runs in reverse. Speeds are ratios within a round: of the run with
the listener to the run without it, above 1 where it is faster. Printed are the median, the minimum and the maximum over
the rounds.

Then each listener gets 10^3 and 10^5 steps (`--steps` sets the numbers; 10^7 take minutes each), without training: the
CPU time and the bytes per step, which must not depend on the number of steps. Here every step is logged.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.listeners_child import LOGGERS, Case
from benchmarks.overhead import machine, spawn, spread

Round = dict[str, dict[str, Any]]
GOALS = {"rich": ">= 0.97", "metrics": ">= 0.95", "logger": ">= 0.99"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A ratio of speeds: of the run `name` to the run `base`."""

    label: str
    name: str
    base: str
    goal: str = ""


def trainings() -> dict[str, Case]:
    """Return the runs of a round, by name."""
    cases = {name: Case("train", name) for name in ("none", "files", "rich", *LOGGERS)}
    return cases | {"20 metrics": Case("train", "rich", metrics=20)}


def costs(steps: Sequence[int]) -> dict[str, Case]:
    """Return the measurements without training by name."""
    return {
        f"{variant}, {metrics} metrics, {count:.0e} steps": Case(
            "cost", variant, metrics=metrics, steps=count, every=None if variant == "files" else 1
        )
        for variant in ("files", *LOGGERS)
        for metrics, count in [*((2, count) for count in steps), (20, steps[0])]
    }


def rows() -> list[Row]:
    """Return the table rows of the runs."""
    return [
        Row("files / nothing", "files", "none"),
        Row("files and rich / nothing", "rich", "none", GOALS["rich"]),
        *(Row(f"{name} besides / files and rich", name, "rich", GOALS["logger"]) for name in LOGGERS),
        Row("20 metrics / 2", "20 metrics", "rich", GOALS["metrics"]),
    ]


def report(rounds: list[Round]) -> list[str]:
    """Return the lines about runs of which both were measured."""
    times = {name: [1e3 * r[name]["seconds"] for r in rounds] for name in trainings() if name in rounds[0]}
    lines = [f"  {name + ': ms per epoch':<52} {spread(values)}" for name, values in times.items()]
    for row in rows():
        if row.name in rounds[0] and row.base in rounds[0]:
            ratios = [r[row.base]["seconds"] / r[row.name]["seconds"] for r in rounds]
            goal = f"   goal {row.goal}" if row.goal else ""
            lines.append(f"  {'speed: ' + row.label:<52} {spread(ratios)}{goal}")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, nargs="+", default=[10**3, 10**5], help="that listeners are told of")
    parser.add_argument("--platform", help="cpu, gpu, ...; by default JAX chooses")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="only cases whose name begins so")
    parser.add_argument("--quick", action="store_true", help="two epochs each: whether all runs, not how fast")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    args = parser.parse_args(argv)
    print(f"{machine()}\n{args.rounds} rounds: median (least to greatest)", flush=True)

    def chosen(cases: dict[str, Case]) -> dict[str, Case]:
        short = {"epochs": 2, "warm": 1} if args.quick else {}
        kept = {name: case for name, case in cases.items() if name.startswith(tuple(args.only))}
        return {name: dataclasses.replace(case, **short) for name, case in kept.items()}

    measure: Callable[[Case], Any] = lambda case: spawn(  # noqa: E731
        ["-m", "benchmarks.listeners_child", json.dumps(dataclasses.asdict(case))], args.platform
    )
    cases, rounds = chosen(trainings()), list[Round]()
    for number in range(args.rounds if cases else 0):
        print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
        rounds.append({name: measure(cases[name]) for name in list(cases)[:: -1 if number % 2 else 1]})
    if rounds:
        print("\n".join(report(rounds)), flush=True)
    results = {}
    for name, case in chosen(costs(args.steps)).items():
        results[name] = measure(case)
        print(f"  {name:<52} {results[name]['us']:.3g} us, {results[name]['bytes']:.4g} bytes per step", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"trainings": rounds, "costs": results}))


if __name__ == "__main__":
    main()
