"""Measure the cost of checkpoints: `python -m benchmarks.checkpoint_stall`.

A character transformer whose state is 163 arrays of 10 MB (or of 500 MB) is trained by `learner`, and by a loop written
by hand that calls Orbax's `CheckpointManager` as its guide shows. Both save every so many steps; between two saves lie
two windows of equally many steps, the first with a save at its beginning and the second with none. Their times are
compared within a pair, so that a slow hour of the machine slows both.

- held: seconds that the loop's thread is in the call that saves. For `learner` the goal is 15 ms and one copy of the
  state. By hand the time until the step before ends is not counted.
- the next five dispatches: how much longer these calls are than usual. The next five steps: how much later the fifth
  ends; the time that the device waits while the loop is held is in it.
- lost: how much longer a window with a save takes; with every_seconds=60 it is the same loss, of 60 seconds.
- processor time: how many seconds more the process has of its processors in the window with a save. Where others use
  the machine it says more than the seconds on the clock.
- the time to resume is that of the first step of a run that goes on, less that of a run that begins, both with their
  programs in the compilation cache.

A round has one process of each kind; every second round goes backwards. Printed are the median, the least and the
greatest over all pairs of windows.
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

Round = dict[str, dict[str, Any]]  # what each variant's process printed
VARIANTS = ("learner", "hand", "start", "resume")
GOALS = {"held": "<= 15 + a copy", "lost": "< 3", "disk": "<= 1.05"}  # of learner


@dataclasses.dataclass(frozen=True)
class Row:
    """Numbers of the report: what a round says, as one number or as one for each pair of windows."""

    label: str
    values: Callable[[Round], Sequence[float]]
    goal: str = ""


def lost(measured: dict[str, Any]) -> list[float]:
    """The seconds by which each save makes its window longer."""
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
    """The lines about a size."""
    size, megabytes = SIZES[name], rounds[0]["learner"]["arrays"] / 1e6
    lines = [
        f"\n{name}: a state of {megabytes:.1f} MB, {size.batch} x 128 characters a step, {size.window} steps a window"
    ]
    for row in rows_of(size.window):
        values = [value for each_round in rounds for value in row.values(each_round)]
        lines.append(f"  {row.label:<52} {spread(values)}" + (f"   goal {row.goal}" if row.goal else ""))
    return lines


def run(name: str, rounds: int, platform: str | None) -> Iterator[Round]:
    """The rounds of a size. What goes on comes after what it goes on with, also backwards."""
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
    """The command."""
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
            if args.json:  # after each round: they take minutes
                args.json.write_text(json.dumps(everything))
        print("\n".join(report(name, rounds)), flush=True)


if __name__ == "__main__":
    main()
