"""Measure the loop, saves, populations and several devices, and write one file: `python -m benchmarks.all`.

Each part is a benchmark that runs as a separate process and writes a JSON file. This one combines them with the
devices, the machine and the versions. It is written after each part, so that measurements are kept if time runs out. On
an accelerator: `python -m benchmarks.all --platform gpu --minutes 15`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.overhead import ROOT, machine, spawn

SMALL = "digits-20k", "cnn", "transformer"
LOOPS = "hand gather", "hand slice", "hand numpy", "limit", "learner"
DEVICES = """
import json, jax
print(json.dumps([jax.devices()[0].device_kind, jax.device_count()]))"""


def parts_of(devices: int) -> dict[str, list[str]]:
    """Return the arguments of each part, the most useful part first."""
    counts = [str(count) for count in (1, 2, 8) if count <= devices]
    return {
        "large": ["overhead", "--workload", "gpt", "--checkpoints", "off", "--only", *LOOPS, "first"],
        "small": ["overhead", "--workload", *SMALL, "--checkpoints", "off", "--only", *LOOPS],
        "start": ["overhead", "--workload", "digits", "transformer-12", "--only", "first", "imports"],
        "saves": ["checkpoint_stall", "--size", "500 MB"],
        "population": ["population", "--workloads", "digits", "--members", "1,16"],
        "devices": ["devices", "--workload", "digits-20k", "transformer", "--devices", *counts],
        "iterables": ["overhead", "--workload", "digits-20k", "--only", "hand iterable", "learner"],
    }


def run(part: str, arguments: Sequence[str], rounds: int, platform: str | None, directory: Path) -> Any:
    """Run a part, whose lines go to the terminal. Return its measurements, or its failure."""
    path = directory / f"{part}.json"
    command = [sys.executable, "-m", f"benchmarks.{arguments[0]}", *arguments[1:], "--rounds", str(rounds)]
    command += ["--json", str(path), *(["--platform", platform] if platform else [])]
    print(f"\n# {part}", flush=True)
    began = time.perf_counter()
    code = subprocess.run(command, cwd=ROOT).returncode
    measured = json.loads(path.read_text()) if path.exists() else None
    seconds = time.perf_counter() - began
    return {"command": command[1:], "exit code": code, "seconds": round(seconds, 1), "measured": measured}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=parts_of(1), help="default: all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--platform", help="cpu, gpu, ...; by default JAX chooses")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no part after so many (default: 60)")
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), help="default: benchmarks.json")
    args = parser.parse_args(argv)
    began = time.monotonic()
    # a part's process starts before the memory of the previous one is free
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    kind, count = spawn(["-c", DEVICES], args.platform)
    everything: dict[str, Any] = {"device": kind, "devices": count, "machine": machine(), "parts": {}, "left out": []}
    print(f"{count} x {kind}, {everything['machine']}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for part, arguments in parts_of(count).items():
            if args.parts and part not in args.parts:
                continue
            if time.monotonic() - began > 60 * args.minutes:
                everything["left out"].append(part)
            else:
                everything["parts"][part] = run(part, arguments, args.rounds, args.platform, Path(directory))
            args.json.write_text(json.dumps(everything, indent=1))
    failed = [part for part, result in everything["parts"].items() if result["exit code"]]
    if failed or everything["left out"]:
        raise SystemExit(f"failed: {failed}, left out: {everything['left out']}")


if __name__ == "__main__":
    main()
