"""Compare training on several devices with hand-written programs: `python -m benchmarks.devices`.

The same training (AdamW, float32, loss and accuracy on both splits) on 1, 2 and 8 devices, simulated ones on a CPU:

- `Replicated` against a hand-written loop of one `jax.pmap` call per step: gradients and sums are reduced over the
devices, sums stay there, everything is donated.
- `Sharded` against a hand-written loop of one `jax.jit` call per step over a mesh, with `NamedSharding`.

The hand-written loops are fed with NumPy arguments or with placed batches, and the faster one is the opponent. On a CPU
they wait for each step, since the collectives of two steps in flight deadlock. `learner` runs as for a user (files,
plain lines, no checkpoints), with several steps per dispatch and with one.

The MLP has 628 steps in an epoch. With `--workload digits` it has 44, about 40 ms, so that the cost of an epoch's end
shows; no goal is set for it.

The host's work is the time that the loop's thread is busy in the call that dispatches one step, of a model of 24 small
arrays, next to the time of the bare `jax.pmap` or `jax.jit` call of the hand-written loop.

A measurement is a separate process, and a round has one of each; every second round runs in reverse. Ratios are
computed within a round, so that slow phases of the machine affect both sides; printed are the median, the minimum and
the maximum. A speed ratio is the opponent's time divided by learner's: more is better.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.devices_child import HAND, Case
from benchmarks.overhead import machine, spawn, spread

Round = dict[str, dict[str, Any]]  # the output of each case's process
# Measured epochs, epochs before them, and rows, so that all batches divide evenly.
LENGTHS = {"digits-20k": (2, 1, 20096), "transformer": (3, 1, None), "digits": (30, 5, 1408)}
GOALS = {("replicated", "digits-20k"): 0.95, ("replicated", "transformer"): 0.95}
GOALS |= {("sharded", "digits-20k"): 0.85, ("sharded", "transformer"): 0.95}


def cases_of(workload: str, kind: str, devices: int, quick: bool = False) -> dict[str, Case]:
    """Return the measurements of a round, by name."""
    epochs, warm, rows = LENGTHS[workload]
    epochs, warm = (1, 1) if quick else (epochs, warm)
    base = Case(workload, kind, "hand", devices=devices, epochs=epochs, warm=warm, rows=rows)
    ours = dataclasses.replace(base, variant="learner")
    feeds = {f"hand {feed}": dataclasses.replace(base, feed=feed) for feed in ("numpy", "put")}
    return {**feeds, "learner": ours, "learner k=1": dataclasses.replace(ours, steps=1)}


def run(cases: dict[str, Case], rounds: int, platform: str | None, title: str) -> Iterator[Round]:
    """Run the rounds of some cases."""
    for number in range(rounds):
        print(f"{title}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        measured = {}
        for name in list(cases)[:: -1 if number % 2 else 1]:
            case = json.dumps(dataclasses.asdict(cases[name]))
            measured[name] = spawn(["-m", "benchmarks.devices_child", case], platform)
        yield measured


def report(workload: str, kind: str, devices: int, rounds: Sequence[Round]) -> list[str]:
    """Return the lines about a training."""
    hands = [name for name in rounds[0] if name.startswith("hand")]
    best = min(hands, key=lambda name: median(r[name]["seconds"] for r in rounds))
    lines = [f"\n{workload}, {kind} on {devices} ({rounds[0][best]['device']}); by hand: jax.{HAND[kind]}"]
    lines += [_line(f"{name}: ms per epoch", [1e3 * r[name]["seconds"] for r in rounds]) for name in rounds[0]]
    goal = f">= {GOALS[kind, workload]}" if (kind, workload) in GOALS else ""
    for name, limit in (("learner", goal), ("learner k=1", "")):
        lines.append(_line(f"speed: {name} / {best}", [r[best]["seconds"] / r[name]["seconds"] for r in rounds], limit))
    for name in ("learner", best):
        train, valid = rounds[-1][name]["losses"][-1]
        lines.append(f"  {name + ': last train and valid loss':<52} {train:.4g}, {valid:.4g}")
    return lines


def host_report(kind: str, rounds: Sequence[Round], devices: Sequence[int]) -> list[str]:
    """Return the lines about the host's work."""
    lines = [f"\nhost's work per step, {kind}: us of the loop's thread"]
    for count in devices:
        ours, bare = ([1e6 * r[f"{who} {count}"]["host"] for r in rounds] for who in ("learner", "hand"))
        what = f"on {count} device{'s' if count > 1 else ''}"
        lines += [
            _line(f"learner {what}", ours),
            _line(f"bare jax.{HAND[kind]} call {what}", bare),
            _line(f"learner - bare {what}", [a - b for a, b in zip(ours, bare, strict=True)]),
        ]
    return lines


def _line(label: str, values: Sequence[float], goal: str = "") -> str:
    return f"  {label:<52} {spread(values)}" + (f"   goal {goal}" if goal else "")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=LENGTHS, default=["digits-20k", "transformer"])
    parser.add_argument("--kind", nargs="+", choices=HAND, default=list(HAND))
    parser.add_argument("--devices", nargs="+", type=int, default=[1, 2, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--platform", help="cpu, gpu, ...; by default JAX chooses")
    parser.add_argument("--only", choices=("speed", "host"), help="only one of the two parts")
    parser.add_argument("--quick", action="store_true", help="one epoch each: whether all runs, not how fast")
    parser.add_argument("--json", type=Path, help="write everything that was measured to this file")
    args = parser.parse_args(argv)
    print(f"{machine()}\n{args.rounds} rounds: median (least to greatest)", flush=True)
    everything: dict[str, list[Round]] = {}
    trainings = [(w, k, d) for w in args.workload for k in args.kind for d in args.devices]
    for workload, kind, count in trainings if args.only != "host" else []:
        title = f"{workload} {kind} {count}"
        cases = cases_of(workload, kind, count, args.quick)
        everything[title] = list(run(cases, args.rounds, args.platform, title))
        print("\n".join(report(workload, kind, count, everything[title])), flush=True)
    for kind in args.kind if args.only != "speed" else []:
        case, title = Case("", kind, "", calls=5 if args.quick else 200), f"host {kind}"
        cases = {
            f"{who} {count}": dataclasses.replace(case, variant=f"host {who}", devices=count)
            for count in args.devices
            for who in ("learner", "hand")
        }
        everything[title] = list(run(cases, args.rounds, args.platform, title))
        print("\n".join(host_report(kind, everything[title], args.devices)), flush=True)
    if args.json:
        args.json.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
