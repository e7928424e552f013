"""Kill a run many times and compare its files with an undisturbed run: `python -m benchmarks.chaos --kills 100
[--config FILE]`.

A run is started as a process, killed with SIGKILL at a random moment, resumed, and killed again, until it ends; then
the next run starts, until the number of kills is reached. Each run is compared, byte by byte, with an undisturbed run:
which checkpoints are on disk, the arrays of each (read with Orbax alone) and its progress, the history, each metric
log, `summary.json`, and the journal's lines of numbers. Times, and a checkpoint's description of the machine, are not
compared.

Moments are random (`--seed`). Half of them are anywhere between the start of `fit` and the end of an undisturbed
process; the other half are within the first to fourth save of a process, whose directory is watched. A kill counts as
inside a save if it leaves an incomplete checkpoint directory, or a complete one that the journal does not contain yet.
A resume fails if its process ends with an error, or resumes from an older checkpoint than the newest that the journal
contained.

Without `--config`, the run is that of `benchmarks.victim`, which has every kind of state. With it, the processes are
`learner fit FILE --directory=...` and `learner resume DIR`.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np

from benchmarks.overhead import ROOT, machine
from learner.runs.history import read_history
from learner.runs.journal import read_journal

EPOCHS = 24  # of the built-in run
OF_THE_MACHINE = ("time", "elapsed", "seconds", "made_on")  # JSON keys that are not compared
LOOK = 0.0005  # seconds between two polls of a checkpoint directory

Facts = dict[str, bytes]


# -- what is run -------------------------------------------------------------------------------------------------------

Commands = Callable[[Path], list[str]]  # run directory in its current state -> arguments of `benchmarks.victim`


def own_run(seed: int = 0, epochs: int = EPOCHS) -> Commands:
    """Return the commands and the environment of the built-in run."""
    return lambda directory: ["train", str(directory), str(seed), str(epochs)]


def config_run(config: str) -> Commands:
    """Return the commands of a config's run. A run killed before it wrote config.yaml is started again."""

    def words(directory: Path) -> list[str]:
        if (directory / "config.yaml").exists():
            return ["learner", "resume", str(directory)]
        return ["learner", "fit", config, f"--directory={directory}", "--resume=true"]

    return words


# -- when it is killed -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Moment:
    """A number of seconds after the start of `fit`, or after the start of the process's save with the number `save`."""

    seconds: float
    save: int | None = None


def moments(seed: int, lifetime: float, save: float) -> Iterator[Moment]:
    """Yield random moments without end, half of each kind.

    Args:
      seed: seed of the random numbers.
      lifetime: seconds from the start of `fit` to the end of a process.
      save: seconds from a visible save to the earliest start of the next one.
    """
    rng = random.Random(seed)
    while True:
        yield Moment(rng.uniform(0, lifetime))
        yield Moment(rng.uniform(0, save), save=rng.randint(1, 4))


class Process:
    """A process of a run, whose checkpoint directory is polled."""

    def __init__(self, words: Sequence[str], directory: Path, cache: Path, output: IO[bytes]):
        self.place = directory / "checkpoint"
        self.before = seen(self.place)
        path = [str(ROOT), os.getcwd(), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(path),
            "JAX_COMPILATION_CACHE_DIR": str(cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        self._pipe, end = os.pipe()
        command = [sys.executable, "-m", "benchmarks.victim", str(end), *words]
        self.popen = subprocess.Popen(
            command, env=env, pass_fds=[end], stdout=output, stderr=output, start_new_session=True
        )
        os.close(end)

    def wait_for_fit(self) -> None:
        """Wait until `fit` starts or the process ends."""
        with open(self._pipe, "rb", buffering=0) as pipe:
            pipe.read(1)

    def lives_until(self, moment: Moment) -> bool:
        """Wait for the moment. Return False if the process ended before."""
        if moment.save is not None:
            begun: set[str] = set()
            while len(begun) < moment.save:
                if self.popen.poll() is not None:
                    return False
                begun |= {name.split(".")[0] for name in self.new()}
                time.sleep(LOOK)
        try:
            self.popen.wait(moment.seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def new(self) -> list[str]:
        """Return the checkpoint directories that this process created."""
        return [name for name, _ in seen(self.place).items() - self.before.items()]

    def kill(self) -> None:
        """Kill the process and all its children by SIGKILL."""
        self.popen.kill()
        self.popen.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)


def seen(directory: Path) -> dict[str, int]:
    """Return the directories in `checkpoint/`, with their times: an incomplete one may be replaced by another of that
    name.
    """
    sizes = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir():
                    sizes[entry.name] = 0 if entry.name.isdigit() else entry.stat().st_ctime_ns
    return sizes


# -- what is left ------------------------------------------------------------------------------------------------------


def facts(directory: Path) -> Facts:
    """Return everything that must not depend on the number of kills, by name."""
    values = {"checkpoint: directories": _text(sorted(seen(directory / "checkpoint")))}
    for step in sorted(int(name) for name in seen(directory / "checkpoint") if name.isdigit()):
        values |= {f"checkpoint/{step}: {name}": content for name, content in checkpoint(directory, step).items()}
    for log in sorted(directory.glob("*/epoch-*/*.log")):
        values[log.relative_to(directory).as_posix()] = log.read_bytes()
    lines = [_comparable(line) for line in journal(directory) if line.get("event") in ("epoch", "validation")]
    values["journal.jsonl: numbers"] = "\n".join(map(json.dumps, lines)).encode()
    values["history"] = _text(read_history(directory).to_json())
    values["summary.json"] = _text(_comparable(json.loads((directory / "summary.json").read_text())))
    return values


def checkpoint(directory: Path, step: int) -> Facts:
    """Return the parts of a checkpoint as Orbax reads them: each array, and the progress."""
    import orbax.checkpoint as ocp

    place, contents = directory.absolute() / "checkpoint" / str(step), {}
    with ocp.StandardCheckpointer() as reader, ocp.Checkpointer(ocp.JsonCheckpointHandler()) as json_reader:
        contents["progress"] = _text(_comparable(json_reader.restore(place / "progress")))
        for path, leaf in jax.tree_util.tree_leaves_with_path(reader.restore(place / "state")):
            array = np.asarray(leaf)
            name = f"{path[0].key}{jax.tree_util.keystr(path[1:])}, {array.dtype}{list(array.shape)}"
            contents[name] = array.tobytes()
    return contents


def journal(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of the journal; empty if there is none yet."""
    return [entry for _, entry in read_journal(directory)] if (directory / "journal.jsonl").exists() else []


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items() if key not in OF_THE_MACHINE}
    return [_comparable(item) for item in value] if isinstance(value, list) else value


def _text(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def differing(actual: Facts, expected: Facts) -> dict[str, int]:
    """Return the number of differing bytes by name. A file that exists on one side differs in all of its bytes, and in
    at least one.
    """
    counts = {}
    for name in sorted({*actual, *expected}):
        a, b = (np.frombuffer(side.get(name, b""), np.uint8) for side in (actual, expected))
        both = min(len(a), len(b))
        count = int(np.count_nonzero(a[:both] != b[:both])) + max(len(a), len(b)) - both
        if count or (name in actual) != (name in expected):
            counts[name] = max(count, 1)
    return counts


# -- the chaos ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Tally:
    """The outcome over all runs."""

    kills: int = 0
    resumes: int = 0
    runs: int = 0
    unfinished: int = 0
    unnoted: int = 0
    before_first: int = 0
    differing: dict[str, int] = dataclasses.field(default_factory=dict)
    failures: list[str] = dataclasses.field(default_factory=list)

    @property
    def good(self) -> bool:
        """Return True if every promise was kept."""
        return not self.differing and not self.failures

    def report(self) -> list[str]:
        """Return the lines to print."""
        numbers = {
            "kills": self.kills,
            "resumes": self.resumes,
            "runs that ended, each compared": self.runs,
            "kills inside a save": self.unfinished + self.unnoted,
            "  a directory was unfinished": self.unfinished,
            "  complete, not yet in the journal": self.unnoted,
            "kills before the first checkpoint": self.before_first,
        }
        goals = {"resumes that failed": len(self.failures), "differing bytes": sum(self.differing.values())}
        lines = [f"  {label:<52} {number}" for label, number in numbers.items()]
        lines += [f"  {label:<52} {number}   goal 0" for label, number in goals.items()]
        lines += [f"  differs in {count} bytes: {name}" for name, count in self.differing.items()]
        return lines + self.failures


@dataclasses.dataclass(frozen=True)
class Undisturbed:
    """The files and the durations of an undisturbed run (see `moments`)."""

    facts: Facts
    lifetime: float
    save: float


class Chaos:
    """Runs in one directory, `work/run`, one after another: a run's files may contain the directory's name."""

    def __init__(self, work: Path, commands: Commands):
        self.directory, self._cache, self._output = work / "run", work / "compilations", work / "output.txt"
        self._commands = commands
        self.tally = Tally()

    @contextlib.contextmanager
    def process(self) -> Iterator[Process]:
        """Start or resume the run."""
        with self._output.open("wb") as output:
            process = Process(self._commands(self.directory), self.directory, self._cache, output)
        try:
            process.wait_for_fit()
            yield process
        finally:
            process.kill()

    def undisturbed(self) -> Undisturbed:
        """Run without kills."""
        shutil.rmtree(self.directory, ignore_errors=True)
        saves: dict[str, list[float]] = {}
        with self.process() as process:
            begin = time.perf_counter()
            while process.popen.poll() is None:
                for name in process.new():
                    saves.setdefault(name.split(".")[0], []).append(time.perf_counter())
                time.sleep(LOOK)
            lifetime = time.perf_counter() - begin
            if process.popen.returncode != 0:
                raise SystemExit(f"the run fails without any kill:\n{self._output.read_text()}")
        starts = sorted(times[0] for times in saves.values())
        between = sorted(b - a for a, b in itertools.pairwise(starts)) or [lifetime]
        return Undisturbed(facts(self.directory), lifetime, between[len(between) // 2])

    def run(self, expected: Facts, moments: Iterable[Moment]) -> None:
        """Perform one run, from its first process to its end. It is undisturbed once there are no more moments."""
        shutil.rmtree(self.directory, ignore_errors=True)
        upcoming = iter(moments)
        while (code := self._one(next(upcoming, None))) == -signal.SIGKILL:
            self.tally.resumes += 1
        if code != 0:
            self.tally.failures.append(f"  a process ended with {code}:\n{self._output.read_text()}")
            return
        self.tally.runs += 1
        for name, count in differing(facts(self.directory), expected).items():
            self.tally.differing[name] = self.tally.differing.get(name, 0) + count

    def _one(self, moment: Moment | None) -> int:
        """Perform one process, and return its exit code."""
        starts, complete = len(self._steps_of("start")), max(self._steps_of("save"), default=0)
        with self.process() as process:
            killed = moment is not None and process.lives_until(moment)
            if killed:
                process.kill()
            code = process.popen.wait()
        for step in self._steps_of("start")[starts:]:
            if step < complete:
                self.tally.failures.append(f"  went on from step {step}; there was a checkpoint of step {complete}")
        if killed and code == -signal.SIGKILL:
            self._count(process.new(), set(self._steps_of("save")))
        return code

    def _steps_of(self, event: str) -> list[int]:
        """Return the steps in the journal's lines that a resume keeps."""
        return [line["step"] for line in journal(self.directory) if line.get("event") == event]

    def _count(self, new: list[str], noted: set[int]) -> None:
        """Count a kill. `new` are the checkpoint directories the process left, `noted` the steps in the journal."""
        self.tally.kills += 1
        self.tally.before_first += not any(name.isdigit() for name in seen(self.directory / "checkpoint"))
        if not all(name.isdigit() for name in new):
            self.tally.unfinished += 1
        elif not {int(name) for name in new} <= noted:
            self.tally.unnoted += 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. The exit code is 0 if every promise was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="how many, at least")
    parser.add_argument("--config", metavar="FILE", help="a run of the command line instead of the benchmark's own")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--directory", type=Path, help="where to run; what was left stays there")
    args = parser.parse_args(argv)
    work = (args.directory or Path(tempfile.mkdtemp(prefix="chaos-"))).absolute()
    work.mkdir(parents=True, exist_ok=True)
    chaos = Chaos(work, own_run() if args.config is None else config_run(args.config))
    cold = chaos.undisturbed()
    warm = chaos.undisturbed()  # with its programs in the cache, as in every later process
    print(f"{machine()}\nundisturbed, `fit` takes {warm.lifetime:.1f} s, a save {1e3 * warm.save:.0f} ms", flush=True)
    if again := differing(warm.facts, cold.facts):
        print(f"the run does not repeat itself without any kill: {', '.join(again)} differ")
        return 1
    upcoming = moments(args.seed, warm.lifetime, warm.save)
    while chaos.tally.kills < args.kills and chaos.tally.good:
        before = chaos.tally.kills
        chaos.run(cold.facts, itertools.takewhile(lambda _: chaos.tally.kills < args.kills, upcoming))
        print(f"run {chaos.tally.runs}: {chaos.tally.kills - before} kills", file=sys.stderr, flush=True)
    print("\n".join(chaos.tally.report()))
    if not chaos.tally.good:
        print(f"what was left is in {work}")
    elif args.directory is None:
        shutil.rmtree(work)
    return 0 if chaos.tally.good else 1


if __name__ == "__main__":
    sys.exit(main())
