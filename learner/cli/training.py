"""`learner fit` and `learner resume`."""

import contextlib
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from learner.checkpoint import CheckpointStore, DamagedError
from learner.cli.config import RunConfig
from learner.cli.help import fit_help, key_help
from learner.cli.overrides import CommandLine, override, read_yaml, split, value_of
from learner.cli.processes import HELP, SWITCHES, connected, pop_process_options
from learner.cli.trust import HELP as TRUST_HELP
from learner.cli.trust import TRUST, require_trust
from learner.config.limits import DEEPEST
from learner.config.mappings import is_deep
from learner.config.safe_yaml import read_bounded
from learner.distributed.process_group import hosts
from learner.errors import LearnerError
from learner.renderers.summary import heading
from learner.runs.appended import replace
from learner.runs.journal import OBSERVER_KEYS
from learner.runs.layout import read_summary
from learner.training.signals import TERMINATED
from learner.training.watchdog import EXIT

RESUME = f"""\
usage: learner resume DIR [--KEY=VALUE ...]

Resumes the run in DIR from its newest checkpoint, with its config.yaml; --num_epochs=20 makes it longer.

  --resume.allow=metrics      if the metrics changed, restart those of the current epoch
  --resume.allow=optimizer    if the optimizer changed, give it a new state
  --resume.allow=logs         if parts of the logs are missing, continue the logs without them
{TRUST_HELP}{HELP}
It trusts config.yaml: the code that it names is imported and run.
"""

FROM_PYTHON = """\
{directory} has no config.yaml: the run was started from Python. There it {does} with

    LearnerBuilder({directory!r}){options}.resume().build(model, optimizer, lr){call}

with the same options, model, optimizer and data as before."""


def fit(words: Sequence[str]) -> int:
    """`learner fit CONFIG [--KEY=VALUE ...]`."""
    line = split(words, (*SWITCHES, "print_config", "print_sharding"))
    processes = pop_process_options(line)
    if "help" in line.switches:
        print(fit_help())
        return 0
    if len(line.positional) > 1:
        raise LearnerError(
            f"learner fit takes one config file, and got {', '.join(line.positional)}", code="cli-one-config"
        )
    content = changed(read_yaml(line.positional[0]) if line.positional else {}, line)
    for switch, path in line.switches.items():
        if switch.endswith(".help"):
            print(key_help(switch.removesuffix(".help"), path, content))
            return 0
    if not content:
        raise LearnerError(
            "learner fit needs a config file: learner fit CONFIG (learner fit --help says more)",
            code="cli-config-missing",
        )
    if "print_config" in line.switches:
        config = RunConfig(content)
        comment = textwrap.wrap(
            "Not set: " + ", ".join(config.unset()), 98, initial_indent="# ", subsequent_indent="# "
        )
        print(config.text() + "\n".join(comment))
        return 0
    if "print_sharding" in line.switches:
        print(RunConfig(content).learner().sharding_report())
        return 0
    with connected(processes):
        return _train(RunConfig(content))


def resume(words: Sequence[str]) -> int:
    """`learner resume DIR [--KEY=VALUE ...]`."""
    line = split(words, (*SWITCHES, TRUST))
    processes = pop_process_options(line)
    if "help" in line.switches:
        print(RESUME, end="")
        return 0
    directory = run_directory(line, "resume")
    require_trust(directory, line)
    with connected(processes):
        content = saved_config(directory, "goes on", options=".num_epochs(...)", call=".fit(train, valid)")
        content = changed(content, line)
        return _train(RunConfig({**content, "directory": directory, "resume": content.get("resume") or True}))


def changed(content: dict[str, Any], line: CommandLine) -> dict[str, Any]:
    """Return the content of a config with the overrides of the command line applied."""
    for key, text in line.overrides:
        override(content, key, value_of(text))
    if is_deep(content):
        raise LearnerError(f"the config is nested more than {DEEPEST} levels deep", code="config-too-deep")
    return content


def run_directory(line: CommandLine, command: str) -> str:
    """Return the `DIR` of a command."""
    if len(line.positional) != 1:
        raise LearnerError(
            f"learner {command} needs the directory of one run: learner {command} DIR",
            code="cli-run-missing",
            command=command,
        )
    return line.positional[0]


def saved_config(directory: str, does: str, *, options: str = "", call: str) -> dict[str, Any]:
    """Return the content of a run's `config.yaml`.

    Raises:
      LearnerError: there is no such run, or it was started from Python; then the message shows the call.
    """
    if not Path(directory).is_dir():
        raise LearnerError(f"there is no directory {directory}", code="run-directory-missing", directory=directory)
    path = Path(directory, "config.yaml")
    here = hosts()
    try:
        here.run_on_primary(lambda: _mend(path))
    except OSError as error:
        raise LearnerError(
            f"the config file {path} cannot be read: {error}", code="config-unreadable", path=path
        ) from error
    if not path.exists():
        if not Path(directory, "journal.jsonl").exists():
            raise LearnerError(
                f"{directory} is not the directory of a run: it has neither config.yaml nor journal.jsonl",
                code="run-not-a-run",
                directory=directory,
            )
        raise LearnerError(
            FROM_PYTHON.format(directory=directory, does=does, options=options, call=call), code="run-from-python"
        )
    if here.index == 0:
        print(f"learner: {path} is trusted: the code that it names is imported and run now", file=sys.stderr)
    return read_yaml(path)


def _mend(path: Path) -> None:
    """Restore the config from the newest checkpoint if the file is missing or truncated. An edited file is kept."""
    text = read_bounded(path) if path.exists() else b""
    with contextlib.closing(CheckpointStore(path.parent.absolute() / "checkpoint")) as store:
        for entry in reversed(store.entries):
            with contextlib.suppress(DamagedError):
                saved = str(store.progress(entry.step, verified=False).get("config") or "").encode()
                if saved != text and saved.startswith(text):
                    store.verify(entry.step)
                    replace(str(path), saved)
                    watching = [key for key in OBSERVER_KEYS if f"\n{key}:".encode() in saved]
                    lost = f", which keeps no arguments of {' and '.join(watching)}: give them again"
                    print(
                        f"learner: {path} was {'cut off' if text else 'missing or empty'}; it is mended from the "
                        f"checkpoint of step {entry.step}{lost if watching else ''}",
                        file=sys.stderr,
                    )
                return


def _train(config: RunConfig) -> int:
    """Train and return the exit code: 130 after Ctrl-C, 143 after SIGTERM, 75 after `watchdog`."""
    before = read_summary(Path(config.directory)) if config.resumes else None
    try:
        result = config.learner().fit()
    except KeyboardInterrupt:
        return _interrupted(config.directory)
    except SystemExit as ended:
        if ended.code != TERMINATED:
            raise
        return _interrupted(config.directory, TERMINATED)
    if before is not None and result.summary == before:
        if jax.process_index() == 0:
            print(f"{config.directory} has nothing left to do: {heading(before)} (--num_epochs=... makes it longer)")
        return 0
    codes = {"ctrl-c": 130, "sigterm": TERMINATED, "watchdog": EXIT}
    reason = result.stopped_by.partition(":")[0]
    return _interrupted(config.directory, codes[reason]) if reason in codes else 0


def _interrupted(directory: str, code: int = 130) -> int:
    going_on = f"; go on with: learner resume {directory}" if Path(directory, "config.yaml").is_file() else ""
    print(f"learner: interrupted{going_on}", file=sys.stderr)
    return code
