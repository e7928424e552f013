"""Measure how a run changes as it grows long: `python -m benchmarks.long_runs`.

The digits MLP is trained for many short epochs (10,000 of 2 steps), and for many logged steps (50 epochs of 20,118
steps of one row), each as a separate process, with validation, the files of a run, default checkpoints and, optionally,
a logger. Printed for each tenth of the run are milliseconds per epoch (CPU and wall) and the memory at its end; then
the last tenth compared with the second (the first one compiles), and the run's files.
"""

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.child import Case
from benchmarks.overhead import machine, spawn

RUNS = {
    "epochs": Case("digits", "learner", epochs=10_000, warm=0, rows=64),
    "steps": Case("digits-20k", "learner", epochs=50, warm=0, batch=1),
}
PARTS = 10


def measure(name: str, epochs: int | None, logger: str | None) -> dict[str, Any]:
    """Train in this process. Return CPU seconds, wall seconds, resident MiB and files (with bytes) of the run's
    directory: a row for the start and for each part.
    """
    import dataclasses

    from benchmarks import child
    from learner.events import EpochEnded, Event, Listener, RunEnded, RunStarted

    case = dataclasses.replace(RUNS[name], **({} if epochs is None else {"epochs": epochs}))
    work, rows, left = child.workload_of(case), list[list[float]](), list[int]()

    class Sampler(Listener):
        directory: Path

        def on_event(self, event: Event) -> None:
            if isinstance(event, RunStarted):
                self.directory = event.directory
            if isinstance(event, RunStarted) or (
                isinstance(event, EpochEnded) and event.epoch * PARTS % work.epochs < PARTS
            ):
                rows.append([event.epoch, time.process_time(), time.perf_counter(), resident()])
            if isinstance(event, RunEnded):
                sizes = [path.stat().st_size for path in self.directory.rglob("*") if path.is_file()]
                left.extend([len(sizes), sum(sizes)])

    def also(builder: Any) -> None:
        builder.metric_loggers(Sampler())
        if logger is not None:
            from benchmarks.listeners_child import LOGGERS

            builder.metric_loggers(LOGGERS[logger]("/nonexistent"))

    child.train_with_learner(work, case, work.epochs, child.Clock(), also)
    return {"rows": rows, "left": left}


def resident() -> float:
    """Return the resident memory of this process in MiB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def report(name: str, measured: dict[str, Any]) -> list[str]:
    """Return the lines of a run."""
    rows, lines, per_epoch = measured["rows"], [f"\n{name}:"], []
    for (a, *before), (b, *after) in itertools.pairwise(rows):
        cpu, wall = (1e3 * (after[i] - before[i]) / (b - a) for i in (0, 1))
        per_epoch.append((cpu, wall, after[2]))
        lines.append(f"  to epoch {b:>6.0f}: {cpu:.3g} ms CPU, {wall:.3g} ms an epoch, {after[2]:.0f} MiB")
    (cpu, wall, memory), last = per_epoch[1], per_epoch[-1]
    lines.append(
        f"  last / second part: CPU {last[0] / cpu:.2f}, wall {last[1] / wall:.2f}, +{last[2] - memory:.0f} MiB"
    )
    return [*lines, f"  {measured['left'][0]} files, {measured['left'][1] / 1e6:.1f} MB"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--epochs", type=int, help="instead of the run's own")
    parser.add_argument("--logger", help="a logger besides the files, such as JsonLines")
    parser.add_argument("--platform", help="cpu, gpu, ...; by default JAX chooses")
    parser.add_argument("--child", choices=RUNS, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(measure(args.child, args.epochs, args.logger)))
        return
    print(machine())
    for name in args.run:
        command = ["-m", "benchmarks.long_runs", "--child", name]
        command += ["--epochs", str(args.epochs)] if args.epochs else []
        command += ["--logger", args.logger] if args.logger else []
        print("\n".join(report(name, spawn(command, args.platform))), flush=True)


if __name__ == "__main__":
    main()
