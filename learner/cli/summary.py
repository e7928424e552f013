"""`learner summary`: the results of a run from its files, or an overview of a run from its config."""

import contextlib
import dataclasses
import itertools
import json
import os
import queue
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from learner.checkpoint.manifest import DamagedError, read_manifest, refuse_damage
from learner.checkpoint.stored_files import is_local
from learner.cli.configs.importing import import_order
from learner.cli.configs.missing import check_run
from learner.cli.parsing import Parser
from learner.errors import LearnerError
from learner.renderers import print_overview, print_summary, print_values
from learner.renderers.plain import write_lines
from learner.renderers.summary_text import endings
from learner.runs.history import metric_summary
from learner.runs.layout import MARK, read_summary
from learner.runs.population import member_index
from learner.runs.run_reader import RunReader
from learner.util.addresses import refuse_store
from learner.util.device_threads import device_thread
from learner.util.json_values import encode
from learner.util.stages import note
from learner.util.text import printable
from learner.util.urls import one_line

SUMMARY = """\
For the run in DIR, prints the best and the last value of each metric, its time, and the paths of its files. For a run
that has not ended, prints the values so far. No code that the run names is imported.

For a config file, prints an overview of the run without training: the arrays of the model, the devices, the length, the
work of a step, and the memory, for which the training is compiled. Options override keys of the config as for learner
fit (--num_epochs=3). The code that the config names is imported and run."""

ANSWER_SECONDS = 20.0  # of an object store
SUFFIXES = (".yaml", ".yml", ".json")


def summary(words: Sequence[str]) -> int:
    """`learner summary DIR [--json]`, or `learner summary CONFIG [--json] [--depth=N] [--KEY=VALUE ...]`."""
    of_config = any(map(_is_config, words))
    parser = Parser("summary", SUMMARY, "DIR | CONFIG [--json] [--depth=N] [--KEY=VALUE ...]", keys=of_config)
    parser.add_argument("path", metavar="DIR | CONFIG", help="the directory of a run, or a config file")
    parser.add_argument("--json", action="store_true", help="print JSON; for a run, with its status, config and time")
    parser.add_argument("--depth", metavar="N", help="for a config: levels of the model to show")
    line = parser.read(words)
    if of_config:
        with import_order(own=True):
            return _overview(line)
    if line.depth is not None:
        raise LearnerError(
            "learner summary takes --depth for a config file, not for the directory of a run",
            code="cli-depth-of-run",
        )
    directory = Path(line.path)
    if not (directory / "summary.json").is_file():
        check_run(line.path)
    if line.json:
        print(json.dumps(encode(_everything(RunReader(directory))), indent=2, allow_nan=False))
        return 0
    ended = _ended(directory)
    if ended is not None:
        try:
            print_summary({**ended, "seconds": _recorded_time(directory)}, directory=directory)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise LearnerError(
                f"{directory / 'summary.json'} is damaged: {error!r}. Without it, the values come from the journal",
                code="run-summary-damaged",
            ) from error
        return 0
    run = RunReader(directory)
    is_over = run.status.word in ("ended", "stopped")
    text = "there is no summary.json, so the values come from the journal" if is_over else "this run has not ended"
    print(f"{printable(str(directory))}: {text} ({printable(str(run.status))})")
    content = {"metrics": _metrics(run), "seconds": _time_parts(run), "checkpoints": _saved(run)}
    if run.history:
        print_values(content)
    else:
        write_lines(["no epoch has ended yet", *endings(content)])
    is_resumable = (directory / "config.yaml").exists() and member_index(directory) is None
    if run.status.word in ("died", "failed") and is_resumable:
        write_lines(["next:", f"  learner resume {shlex.quote(printable(str(directory)))}"])
    return 0


def _ended(directory: Path) -> dict[str, Any] | None:
    """Return the content of `summary.json`, with a mark at each checkpoint that is missing or damaged."""
    summary = read_summary(directory)
    if summary is not None and isinstance(summary.get("checkpoints"), list):
        summary["checkpoints"] = [_marked(entry, directory) for entry in summary["checkpoints"]]
    return summary


def _saved(run: RunReader) -> list[dict[str, Any]]:
    """Return the checkpoints of a run that has not ended, oldest first, in the form of `summary.json`."""
    saved = [entry.get("path") for entry in run.journal if entry.get("event") == "save"]
    elsewhere = [os.path.dirname(path) for path in saved[-1:] if isinstance(path, str)]
    entries: list[dict[str, Any]] = []
    for place in ("checkpoint", *filter(is_local, elsewhere)):  # in this order: a copied journal has the old paths
        with contextlib.suppress(OSError, ValueError):
            entries = entries or list(_entries(run.directory, place))
    for address in itertools.filterfalse(is_local, elsewhere):
        entries = entries or _stored(run.directory, address)
    return [_marked(entry, run.directory) for entry in sorted(entries, key=lambda entry: entry["step"])]


def _entries(directory: Path, place: str) -> Iterator[dict[str, Any]]:
    """Yield the complete checkpoints in a directory, given relative to the run directory."""
    for path in (directory / place).glob("[0-9]*"):
        if path.name.isdecimal():  # the others are still being written
            with contextlib.suppress(DamagedError):
                epoch = read_manifest(path).get("ends_epoch")
                yield {"epoch": epoch, "step": int(path.name), "path": os.path.join(place, path.name)}


def _stored(directory: Path, address: str) -> list[dict[str, Any]]:
    """Return the checkpoints in an object store. If it does not answer in time, print why none is listed."""
    # With JAX, which no other run needs here.
    from learner.checkpoint.store import CheckpointStore
    from learner.cli.trust import doubt_about

    answers: queue.SimpleQueue[list[dict[str, Any]] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            refuse_store(address)
            store = CheckpointStore(address)
            entries: list[dict[str, Any]] = []
            entries += [{"epoch": e.epoch, "step": e.step, "path": str(store.path(e.step))} for e in store.entries]
            entries += [{"epoch": None, "step": s, "path": str(store.path(s)), "damaged": True} for s in store.damaged]
            answers.put(entries)
        except Exception as error:
            answers.put(error)

    # Another user's journal may name any bucket, which would be asked with this user's credentials.
    problem = doubt_about(directory) or doubt_about(directory / MARK)
    if problem is None:
        # The command ends without it: the store's tools try again for minutes.
        device_thread(ask, "learner-listing").start()
        try:
            answer = answers.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            problem = f"there was no answer within {ANSWER_SECONDS:g} s"
        else:
            if not isinstance(answer, Exception):
                return answer
            problem = one_line(answer)
    note(printable(f"the checkpoints in {address} are not listed: {problem}"))
    return []


def _marked(entry: Any, directory: Path) -> Any:
    """Return the entry of a checkpoint, marked if its files are missing or have the wrong sizes. The content, which may
    be gigabytes, is not read.
    """
    path = entry.get("path") if isinstance(entry, dict) else None
    if not isinstance(path, str) or not is_local(path):
        return entry
    try:
        if not (directory / path).is_dir():
            return {**entry, "missing": True}
        refuse_damage(directory / path, contents=False)
    except DamagedError:
        return {**entry, "damaged": True}
    except OSError:  # a file that this user may not read proves nothing
        return entry
    return entry


def _recorded_time(directory: Path) -> dict[str, float]:
    """Return the time of a run by part from its journal, if that can be read. `summary.json` contains no times."""
    with contextlib.suppress(LearnerError):
        return _time_parts(RunReader(directory))
    return {}


def _time_parts(run: RunReader) -> dict[str, float]:
    """Return the time of a run by part. Starts that recorded no parts, such as one that was killed, are `unknown`."""
    parts, total = run.time_parts, run.seconds
    return {**parts, "total": total, "unknown": total - parts.get("total", 0.0)} if parts else {}


def _is_config(word: str) -> bool:
    """Return True if a word is the name of a config file rather than of a directory or an option."""
    return not word.startswith("-") and not Path(word).is_dir() and (word.endswith(SUFFIXES) or Path(word).is_file())


def _overview(line: Namespace) -> int:
    """Print an overview of the run that a config describes."""
    from learner.cli.configs.config import RunConfig
    from learner.cli.configs.overrides import apply_overrides, read_yaml, value_of

    content = apply_overrides(read_yaml(line.path), line.overrides)
    if line.depth is not None:
        content["summary"] = {"depth": value_of(line.depth)}
    overview = RunConfig(content, beside=("depth", "json")).learner().overview()
    if line.json:
        print(json.dumps(encode(dataclasses.asdict(overview)), indent=2, allow_nan=False))
    else:
        print_overview(overview)
    return 0


def _metrics(run: RunReader) -> dict[str, Any]:
    """Return the metrics of a run, which may still be training, in the form of `summary.json`."""
    return {key: metric_summary(run.history, info) for key, info in run.metrics.items()}


def _everything(run: RunReader) -> dict[str, Any]:
    """Return the status, metrics and config of a run, which may still be training."""
    status = {"status": run.status.word, "why": run.status.why}
    length = {"epochs": run.epochs, "steps": run.step, "seconds": round(run.seconds, 3), "spent": run.time_parts}
    ended = _ended(run.directory)
    return {
        **status,
        **length,
        "metrics": _metrics(run),
        "checkpoints": _saved(run) if ended is None else ended.get("checkpoints", []),
        "config": run.config,
    }
