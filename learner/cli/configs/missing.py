"""Checks that the config or the run of a command exists, before JAX is imported."""

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from learner.cli.configs.overrides import read_yaml
from learner.cli.usage import PARSERS
from learner.errors import LearnerError
from learner.examples import bundled_config
from learner.runs.layout import missing_text

MOST = 10  # runs that an error names


def read_words(command: str, words: Sequence[str]) -> tuple[Namespace, bool]:
    """Return the arguments of `learner fit`, `resume` or `sweep`, and True if fit or resume trains and shows the run,
    rather than print a config or help. Raise `LearnerError` if the words are wrong, or name a file or run that does not
    exist.
    """
    line = PARSERS[command]().read(words)
    if command == "resume":
        check_run(line.directory)
        return line, True
    config = line.config
    if config is not None and not os.path.lexists(config) and bundled_config(config) is None:
        read_yaml(config)  # raises
    if command == "sweep":
        if config is None:
            raise LearnerError("learner sweep needs a config file: learner sweep CONFIG", code="cli-config-missing")
        return line, False
    prints = line.print_config or line.print_sharding or any(key.endswith(".help") for key, _ in line.overrides)
    return line, not prints


def check_run(directory: str) -> None:
    """Raise `LearnerError` unless a directory exists and contains files of a run."""
    if not Path(directory).is_dir():
        raise LearnerError(missing_text(directory), code="run-directory-missing", directory=directory)
    if any(Path(directory, name).exists() for name in ("config.yaml", "journal.jsonl", "checkpoint")):
        return
    from learner.runs.find import run_directories  # which imports NumPy

    runs = list(map(str, run_directories([directory])[0]))
    inside = "".join(f"\n  {run}" for run in [*runs[:MOST], *(["..."] if len(runs) > MOST else [])])
    raise LearnerError(
        f"{directory} is not the directory of a run: it has neither config.yaml nor journal.jsonl"
        + (f". The runs in it are:{inside}" if runs else ""),
        code="run-not-a-run",
        directory=directory,
    )
