"""Measure the speed table of README.md and print it: `python -m benchmarks.readme`.

The cases are those of `benchmarks.overhead`, interleaved in each round. The opponent is the fastest hand-written loop,
and ratios are computed within a round. Bold cells are those in which `learner` loses.
"""

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from benchmarks.overhead import Results, cases_of, machine, run, speed
from benchmarks.workloads import WORKLOADS

COLUMNS = {"digits-20k": "MLP, 629 steps an epoch", "transformer": "character transformer", "cnn": "CNN"}
KINDS = "hand gather", "hand slice", "hand numpy", "limit", "learner", "first hand cold", "first learner cold"


def rows_of(results: Results) -> dict[str, str]:
    """Return the cells of a workload, by the label of their row."""
    hands = [name for name in results if name.startswith("hand ")]
    hand = min(hands, key=lambda name: median(x["seconds"] for x in results[name]))

    def values(of: Callable[..., float], *names: str) -> list[float]:
        return [of(*rounds) for rounds in zip(*(results[name] for name in names), strict=True)]

    memory = median(values(lambda a, b: a["peak"] / b["peak"], "learner", hand))
    late = median(values(lambda a, b: a["first"] - b["first"], "first learner cold", "first hand cold"))
    first = median(x["first"] for x in results["first hand cold"])
    return {
        "speed ÷ loop by hand": _ratio(values(speed, "learner", hand)),
        "speed ÷ limit": _ratio(values(speed, "learner", "limit")) if "limit" in results else "",
        "peak memory ÷ loop by hand": _bold(f"{memory:.2f}", memory > 1),
        "to the first step, over the loop by hand": _bold(f"{late:+.1f} s of {first:.1f} s", late > 0),
    }


def _ratio(values: Sequence[float]) -> str:
    return _bold(f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})", median(values) < 1)


def _bold(text: str, loses: bool) -> str:
    return f"**{text}**" if loses else text


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--platform", help="cpu, gpu, ...; by default JAX chooses")
    args = parser.parse_args(argv)
    cells: dict[str, Any] = {}
    for name in COLUMNS:
        work = WORKLOADS[name]
        cases = {kind: case for kind, case in cases_of(work).items() if kind in KINDS}
        cells[name] = rows_of(run(work, cases, args.rounds, args.platform))
    print(f"| | {' | '.join(COLUMNS.values())} |\n|{'---|' * (1 + len(COLUMNS))}")
    for label in next(iter(cells.values())):
        print(f"| {label} | {' | '.join(column[label] for column in cells.values())} |")
    print(f"\n{args.rounds} rounds, median (least to greatest): {machine()}")


if __name__ == "__main__":
    main()
