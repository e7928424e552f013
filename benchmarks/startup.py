"""Measure the time before and around the steps: `python -m benchmarks.startup`.

Each case trains two epochs with validation, in a fresh process without a compilation cache:

- plain, tuned: hand-written loops, usual and as fast as possible (`benchmarks.loops`).
- object, function: a script with `learner`, whose model is given as an object or as the function that makes it. Then it
trains the model again in that process, with another learning rate.
- fit: the command `learner fit CONFIG`.

Printed are CPU seconds of the process, in brackets wall seconds: until the imports are done, until the values of the
first steps are available, until the end, and of the second run; then how often and for how many seconds JAX traced,
lowered and compiled, and the programs that took longest, with their traces and seconds. The cases are interleaved; each
number is the median over the rounds.

`--cache` measures each case again with a warm compilation cache, and `--metrics 1 25 50 100` measures `function` with
these numbers of metrics, and computes the cost of a further metric until the first steps.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from benchmarks.overhead import machine, spawn

WORKLOADS = "digits", "cnn", "transformer", "transformer-12", "equinox", "linen"
CASES = "plain", "tuned", "object", "function", "fit"
PHASES = "imports", "first steps", "end", "second run"
EPOCHS = 2
STAGES = {
    "jaxpr_trace_duration": "traced",
    "jaxpr_to_mlir_module_duration": "lowered",
    "backend_compile_duration": "compiled",
}
MOST_PROGRAMS = 6


class Meter:
    """Record times since the process started, and JAX's compilations.

    Attributes:
      times: `[CPU seconds, wall seconds]` of each phase.
      stages: number and seconds of each stage of compilation.
      programs: for each program by name, the number of traces, and the seconds of all stages.
    """

    def __init__(self, began: float) -> None:
        import jax

        self.began, self.times = began, dict[str, list[float]]()
        self.take()
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def _on_event(self, event: str, seconds: float, **fields: Any) -> None:
        name = event.rpartition("/")[2]
        if name in STAGES:
            program = str(fields.get("fun_name")).removeprefix("jit(").removesuffix(")")
            traced = self.programs.setdefault(program, [0, 0.0])
            for entry, count in ((self.stages[name], 1), (traced, name == "jaxpr_trace_duration")):
                entry[:] = entry[0] + count, entry[1] + seconds

    def mark(self, phase: str) -> None:
        """Record the time of a phase, once."""
        self.times.setdefault(phase, [time.process_time(), time.time() - self.began])

    def take(self) -> dict[str, Any]:
        """Return stages and the longest programs since the last call."""
        longest = sorted(getattr(self, "programs", {}).items(), key=lambda item: -item[1][1])[:MOST_PROGRAMS]
        totals = {"stages": getattr(self, "stages", {}), "programs": longest}
        self.stages, self.programs = {stage: [0, 0.0] for stage in STAGES}, dict[str, list[float]]()
        return totals


def measure(workload: str, name: str, devices: int, metrics: int, began: float) -> dict[str, Any]:
    """Measure a case in this process."""
    from benchmarks import child, loops

    # On several devices all batches have to divide evenly.
    case = child.Case(workload, name, epochs=EPOCHS, warm=0, rows=1408 if devices > 1 else None)
    work = child.workload_of(case)
    importlib.import_module(work.library)
    if name == "fit":
        from benchmarks import startup_fit
        from learner.cli.main import main as command
    elif name in ("object", "function"):
        from learner import ClassificationOutput, LearnerBuilder, SequenceOutput  # noqa: F401
        from learner.data import DataLoaderBuilder  # noqa: F401
        from learner.metrics import Accuracy  # noqa: F401
    meter = Meter(began)
    meter.mark("imports")
    first = lambda what="step": meter.mark("first steps") if what == "step" else None  # noqa: E731
    if name in ("plain", "tuned"):
        (loops.plain if name == "plain" else loops.tuned)(work, EPOCHS, first, devices)
    elif name == "fit":
        with tempfile.TemporaryDirectory() as place, open(os.devnull, "w") as nothing:
            startup_fit.on_first_steps.append(first)
            with open(f"{place}/config.yaml", "w") as file:
                json.dump(startup_fit.config_of(workload, f"{place}/run", EPOCHS, devices, case.rows), file)
            with contextlib.redirect_stdout(nothing):
                if code := command(["fit", file.name]):
                    raise SystemExit(code)
    else:
        case = dataclasses.replace(case, function=name == "function")
        _train(case, devices, metrics, first)
    meter.mark("end")
    readings = [meter.take()]
    if name in ("object", "function"):
        _train(dataclasses.replace(case, rate=2 * case.rate), devices, metrics, lambda: None)
        meter.mark("second run")
        first_run, second_run = meter.times["end"], meter.times["second run"]
        meter.times["second run"] = [b - a for a, b in zip(first_run, second_run, strict=True)]
        readings.append(meter.take())
    return {"times": meter.times, "runs": readings}


def _train(case: Any, devices: int, metrics: int, first: Callable[[], None]) -> None:
    from benchmarks import child, startup_fit

    def also(builder: Any) -> None:
        startup_fit.on_first_steps.append(first)
        builder.metric_loggers(startup_fit.FirstSteps()).devices(devices)
        builder.metrics(*(further_metric(number) for number in range(metrics - 1)))

    child.train_with_learner(child.workload_of(case), case, EPOCHS, child.Clock(), also)


def further_metric(number: int) -> Any:
    """Return one of many metrics of 10 classes."""
    from learner.metrics import FBeta, Jaccard, Precision, Recall, Specificity, TopKAccuracy

    kind = number % 6
    metric: Any = (
        TopKAccuracy(2 + number // 6 % 8)
        if kind == 0
        else FBeta(10, beta=1 + number / 6)
        if kind == 1
        else (Precision, Recall, Specificity, Jaccard)[kind - 2](10)
    )
    metric.name = f"{metric.name} {number}"
    return metric


def report(name: str, rounds: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a case."""

    def of(phase: str, clock: int) -> float:
        return median(x["times"][phase][clock] for x in rounds)

    times = [f"{phase} {of(phase, 0):.2f} ({of(phase, 1):.2f})" for phase in PHASES if phase in rounds[0]["times"]]
    lines = [f"  {name:<17}" + ", ".join(times)]
    for number, run in enumerate(("first run", "second run")[: len(rounds[0]["runs"])]):
        parts = []
        for stage, verb in STAGES.items():
            count, seconds = (median(x["runs"][number]["stages"][stage][i] for x in rounds) for i in (0, 1))
            parts.append(f"{verb} {count:.0f} in {seconds:.2f} s")
        lines.append(f"  {'':<17}{run}: {', '.join(parts)}")
        programs = [
            f"{name} ({traces}x, {seconds:.2f} s)" for name, (traces, seconds) in rounds[-1]["runs"][number]["programs"]
        ]
        lines.append(f"  {'':<17}programs: {', '.join(programs)}")
    return lines


def run(workload: str, devices: int, cases: dict[str, list[str]], rounds: int, platform: str | None) -> list[str]:
    """Measure cases, each given as arguments of the child process, in turn; return the lines of all. Each case whose
    name ends with "cached" has its own warm cache.
    """
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as place:

        def once(name: str) -> dict[str, Any]:
            os.environ["BEGAN"] = str(time.time())
            command = ["-m", "benchmarks.startup", "--child", workload, *cases[name], "--devices", str(devices)]
            measured: dict[str, Any] = spawn(command, platform, f"{place}/{name}" if "cached" in name else None)
            return measured

        for name in (name for name in cases if "cached" in name):
            once(name)  # fills the cache
        for number in range(rounds):
            print(f"{workload} on {devices}: round {number + 1} of {rounds}", file=sys.stderr)
            for name in list(cases)[:: -1 if number % 2 else 1]:
                results[name].append(once(name))
    lines = [f"\n{workload} on {devices} device{'s' * (devices > 1)}:"]
    lines += [line for name in cases for line in report(name, results[name])]
    return lines + cost_of_metrics(cases, results)


def cost_of_metrics(cases: dict[str, list[str]], results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the cost of a further metric, if several numbers of them were measured."""
    counts = {name: int(arguments[2]) for name, arguments in cases.items() if arguments[1:2] == ["--metrics"]}
    if len(counts) < 2:
        return []
    least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    pairs = list(zip(results[least], results[most], strict=True))
    first, end = (
        median(b["times"][phase][0] - a["times"][phase][0] for a, b in pairs) / (counts[most] - counts[least])
        for phase in ("first steps", "end")
    )
    return [f"  a further metric: {first:.4f} CPU s to the first steps, {end:.4f} to the end   goal <= 0.03"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--case", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--devices", nargs="+", type=int, default=[1], help="such as 1 8; on a CPU simulated")
    parser.add_argument("--cache", action="store_true", help="each case also with a warm compilation cache")
    parser.add_argument("--metrics", nargs="+", type=int, default=[], help="instead of the cases: numbers of metrics")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--platform", help="cpu, gpu, ...; by default JAX chooses")
    parser.add_argument("--child", nargs=2, metavar=("WORKLOAD", "CASE"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        metrics = args.metrics[0] if args.metrics else 1
        print(json.dumps(measure(*args.child, args.devices[0], metrics, float(os.environ["BEGAN"]))))
        return
    cases = {name: [name] for name in args.case}
    if args.metrics:
        cases = {f"{count} metrics": ["function", "--metrics", str(count)] for count in args.metrics}
    if args.cache:
        cases |= {f"{name} cached": arguments for name, arguments in cases.items()}
    print(f"{machine()}\n{args.rounds} rounds: median CPU seconds (wall seconds)", flush=True)
    flags = os.environ.get("XLA_FLAGS", "")
    for devices in args.devices:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}".strip()
        for workload in args.workload:
            print("\n".join(run(workload, devices, cases, args.rounds, args.platform)), flush=True)


if __name__ == "__main__":
    main()
