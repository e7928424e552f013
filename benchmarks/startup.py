"""Measure what comes before and around the steps: `python -m benchmarks.startup`.

Each case trains two epochs with validation, in a fresh process without a compilation cache: the best loop by hand, and
`learner` with a model that is given as an object or as the function that makes it. Then `learner` trains the same model
again in that process, with another learning rate.

Printed are CPU seconds of the process, in brackets wall seconds: until the imports are done, until the values of the
first steps are there, until the end, and of the second run; then the programs that JAX compiled, with the seconds of
tracing, lowering and compiling. The cases are interleaved; each number is the median over the rounds.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.overhead import machine, spawn
from benchmarks.workloads import WORKLOADS

CASES = {"hand": {"variant": "hand", "feed": "slice"}, "object": {}, "function": {"function": True}}
PHASES = "imports", "first steps", "end", "second run"
STAGES = {
    "jaxpr_trace_duration": "traced",
    "jaxpr_to_mlir_module_duration": "lowered",
    "backend_compile_duration": "compiled",
}


class Meter:
    """Notes times since the process began, and what JAX compiles.

    Attributes:
      times: `[CPU seconds, wall seconds]` of each phase.
      stages: of each stage of compilation, how often and the seconds.
    """

    def __init__(self, began: float) -> None:
        import jax

        self.began, self.times = began, dict[str, list[float]]()
        self.stages = {stage: [0.0, 0.0] for stage in STAGES}
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, seconds: float, **_: Any) -> None:
        stage = self.stages.get(event.rpartition("/")[2])
        if stage is not None:
            stage[:] = stage[0] + 1, stage[1] + seconds

    def mark(self, phase: str) -> None:
        """Note the time of a phase, once."""
        self.times.setdefault(phase, [time.process_time(), time.time() - self.began])

    def take_stages(self) -> dict[str, list[float]]:
        """Return the stages since the last call."""
        taken = {stage: [*values] for stage, values in self.stages.items()}
        for values in self.stages.values():
            values[:] = 0.0, 0.0
        return taken


def measure(workload: str, name: str, began: float) -> dict[str, Any]:
    """Measure a case in this process."""
    from benchmarks import child, loops

    case = child.Case(workload, **{"variant": "learner", "epochs": 2, "warm": 0, **CASES[name]})
    work = child.workload_of(case)
    if case.variant == "learner":
        from learner import ClassificationOutput, LearnerBuilder, SequenceOutput  # noqa: F401
        from learner.data import DataLoaderBuilder  # noqa: F401
        from learner.metrics import Accuracy  # noqa: F401
    meter = Meter(began)
    meter.mark("imports")
    if case.variant == "hand":
        loops.hand(work, case.feed, 2, lambda what: meter.mark("first steps") if what == "step" else None)
        meter.mark("end")
        return {"times": meter.times, "stages": [meter.take_stages()]}
    _train(case, work, meter, "first steps", "end")
    stages = [meter.take_stages()]
    _train(dataclasses.replace(case, rate=2 * case.rate), work, meter, "first steps again", "second run")
    first, second = meter.times["end"], meter.times["second run"]
    meter.times["second run"] = [b - a for a, b in zip(first, second, strict=True)]
    return {"times": meter.times, "stages": [*stages, meter.take_stages()]}


def _train(case: Any, work: Any, meter: Meter, first: str, end: str) -> None:
    from benchmarks import child
    from learner.events import Event, Listener, StepsEnded

    class FirstSteps(Listener):
        def on_event(self, event: Event) -> None:
            if isinstance(event, StepsEnded):
                meter.mark(first)

    child.train_with_learner(work, case, 2, child.Clock(), lambda builder: builder.metric_loggers(FirstSteps()))
    meter.mark(end)


def report(name: str, rounds: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a case."""

    def of(phase: str, clock: int) -> float:
        return median(x["times"][phase][clock] for x in rounds)

    times = [f"{phase} {of(phase, 0):.2f} ({of(phase, 1):.2f})" for phase in PHASES if phase in rounds[0]["times"]]
    lines = [f"  {name:<10}" + ", ".join(times)]
    for number, run in enumerate(("first run", "second run")[: len(rounds[0]["stages"])]):
        parts = []
        for stage, verb in STAGES.items():
            count, seconds = (median(x["stages"][number][stage][i] for x in rounds) for i in (0, 1))
            parts.append(f"{verb} {count:.0f} in {seconds:.2f} s")
        lines.append(f"  {'':<10}{run}: {', '.join(parts)}")
    return lines


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=["digits", "cnn", "transformer"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--platform", help="cpu, cuda, ...; by default JAX chooses")
    parser.add_argument("--child", nargs=2, metavar=("WORKLOAD", "CASE"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        print(json.dumps(measure(*args.child, float(os.environ["BEGAN"]))))
        return
    print(f"{machine()}\n{args.rounds} rounds: median CPU seconds (wall seconds)", flush=True)
    for workload in args.workload:
        results: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
        for number in range(args.rounds):
            print(f"{workload}: round {number + 1} of {args.rounds}", file=sys.stderr)
            for name in list(CASES)[:: -1 if number % 2 else 1]:
                os.environ["BEGAN"] = str(time.time())
                results[name].append(spawn(["-m", "benchmarks.startup", "--child", workload, name], args.platform))
        print(
            "\n".join([f"\n{workload}:", *(line for name in CASES for line in report(name, results[name]))]), flush=True
        )


if __name__ == "__main__":
    main()
