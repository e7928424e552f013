"""Measure the cost of checkpoints: `python -m benchmarks.checkpoint_stall`.

A character transformer whose state is 163 arrays of 10 MB (or of 500 MB) is trained by `learner`, and by a hand-written
loop that calls Orbax's `CheckpointManager` as its guide shows. Both save at a fixed interval of steps. Between two
saves are two windows of equally many steps, the first with a save at its start and the second without. Their times are
compared within a pair, so that slow phases of the machine affect both.

- held: seconds that the loop's thread spends in the call that saves. For `learner` the goal is 15 ms and one copy of
the state. For the hand-written loop, waiting for the previous step is not counted.
- the next five dispatches: how much longer these calls take than usual. The next five steps: how much later the fifth
ends, including the time that the device waits while the loop is held.
- lost: how much longer a window with a save takes. With every_seconds=60 the loss is the same, per 60 seconds.
- processor time: additional CPU seconds of the process in the window with a save. On a shared machine they are more
reliable than wall time.
- the time to resume: the time to the first step of a resumed run less that of a new run, both with their programs in
the compilation cache.

A round has one process of each kind; every second round runs in reverse. Printed are the median, the minimum and the
maximum over all pairs of windows.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.overhead import machine, spawn, spread
from benchmarks.stall_child import SIZES, Case

Round = dict[str, dict[str, Any]]  # the output of each variant's process
VARIANTS = ("learner", "hand", "start", "resume")
GOALS = {"held": "<= 15 + a copy", "lost": "< 3", "disk": "<= 1.05"}  # of learner


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the report: computes from a round one number, or one for each pair of windows."""

    label: str
    values: Callable[[Round], Sequence[float]]
    goal: str = ""


def lost(measured: dict[str, Any]) -> list[float]:
    """Return the seconds that each save adds to its window."""
    return [a - b for a, b in zip(measured["with"], measured["without"], strict=True)]


def rows_of_variant(variant: str, window: int, goals: dict[str, str]) -> list[Row]:
    """Return the table rows of a loop that saves; `window` steps are trained with and without a save."""

    def ms(values: Callable[[dict[str, Any]], list[float]]) -> Callable[[Round], list[float]]:
        return lambda r: [1e3 * seconds for seconds in values(r[variant])]

    def percent(r: Round) -> list[float]:
        return [100 * a / b for a, b in zip(lost(r[variant]), r[variant]["without"], strict=True)]

    def size(r: Round) -> list[float]:
        return [r[variant]["disk"] / r[variant]["arrays"]]

    return [
        Row(f"{variant}: held by a save, ms", ms(lambda m: m["held"]), goals.get("held", "")),
        Row(f"{variant}: the next five dispatches, ms more", ms(lambda m: m["next"])),
        Row(f"{variant}: the next five steps, ms later", ms(lambda m: m["stretched"])),
        Row(f"{variant}: lost by a save, ms", ms(lost)),
        Row(f"{variant}: processor time of a save, ms", ms(lambda m: m["work"])),
        Row(f"{variant}: lost by a save every {window} steps, %", percent, goals.get("lost", "") * (window == 50)),
        Row(f"{variant}: on disk / arrays", size, goals.get("disk", "")),
    ]


def rows_of(window: int) -> list[Row]:
    """Return the table rows of a size."""
    return [
        Row("a step, ms", lambda r: [1e3 * r["learner"]["step"]]),
        Row("a copy of the state, ms", lambda r: [1e3 * r["learner"]["copy"]]),
        *rows_of_variant("learner", window, GOALS),
        Row("learner: lost with every_seconds=60, %", lambda r: [100 / 60 * s for s in lost(r["learner"])], "< 0.5"),
        *rows_of_variant("hand", window, {}),
        Row("held: learner / hand", lambda r: [median(r["learner"]["held"]) / median(r["hand"]["held"])]),
        Row("first step of a run that begins, s", lambda r: [r["start"]["first"]]),
        Row("first step of a run that goes on, s", lambda r: [r["resume"]["first"]]),
        Row("time to resume, s", lambda r: [r["resume"]["first"] - r["start"]["first"]]),
    ]


def report(name: str, rounds: list[Round]) -> list[str]:
    """Return the lines about a size."""
    size, megabytes = SIZES[name], rounds[0]["learner"]["arrays"] / 1e6
    lines = [
        f"\n{name}: a state of {megabytes:.1f} MB, {size.batch} x 128 characters a step, {size.window} steps a window"
    ]
    for row in rows_of(size.window):
        values = [value for each_round in rounds for value in row.values(each_round)]
        lines.append(f"  {row.label:<52} {spread(values)}" + (f"   goal {row.goal}" if row.goal else ""))
    return lines


def run(name: str, rounds: int, platform: str | None) -> Iterator[Round]:
    """Run the rounds of a size. A run that resumes follows the run that it resumes, also in reverse rounds."""
    with tempfile.TemporaryDirectory() as cache:
        for number in range(rounds):
            print(f"{name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            order = VARIANTS if number % 2 == 0 else ("hand", "start", "learner", "resume")
            results: Round = {}
            with tempfile.TemporaryDirectory() as place:
                for variant in order:
                    directory = f"{place}/{'learner' if variant == 'resume' else variant}"
                    case = json.dumps(dataclasses.asdict(Case(name, variant, directory)))
                    results[variant] = spawn(["-m", "benchmarks.stall_child", case], platform, cache)
            yield results


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["10 MB", "500 MB"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--platform", help="cpu, gpu, ...; by default JAX chooses")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    args = parser.parse_args(argv)
    print(f"{machine()}\n{args.rounds} rounds: median (least to greatest)", flush=True)
    everything: dict[str, list[Round]] = {name: [] for name in args.size}
    for name, rounds in everything.items():
        for measured in run(name, args.rounds, args.platform):
            rounds.append(measured)
            if args.json:  # after each round: rounds take minutes
                args.json.write_text(json.dumps(everything))
        print("\n".join(report(name, rounds)), flush=True)


if __name__ == "__main__":
    main()
