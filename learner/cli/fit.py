"""`learner fit` and `learner resume`."""

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from learner.cli.configs.config import RunConfig
from learner.cli.configs.overrides import apply_overrides, read_configs
from learner.cli.configs.saved_configs import refuse_other_directory, saved_config
from learner.cli.help import key_help, topic_lines
from learner.cli.parsing import fit_to_terminal
from learner.cli.processes import connected, process_options
from learner.cli.trust import require_trust
from learner.cli.usage import fit_parser, requested_help, resume_parser
from learner.distributed.departure import leave
from learner.errors import LearnerError
from learner.records.hub import SOURCE as PULLED
from learner.runs.layout import ENDS, MARK, read_summary
from learner.training.signals import TERMINATED, TERMINATING
from learner.training.watchdog import EXIT
from learner.util.device_threads import Terminated
from learner.util.stages import end_stages, enter_stage, note

EXIT_CODES = {"ctrl-c": 130, **dict.fromkeys(TERMINATING, TERMINATED), "watchdog": EXIT}
"""The exit code for each reason for which a run is interrupted."""


def fit(words: Sequence[str]) -> int:
    """`learner fit CONFIG... [--KEY=VALUE ...]`."""
    if topic := requested_help(words):  # with another version of optax than that of the stored topics
        print(fit_to_terminal("\n".join(topic_lines(topic))))
        return 0
    line = fit_parser().read(words)
    enter_stage("reading the config")
    topics = {key: path for key, path in line.overrides if key.endswith(".help")}
    overrides = [(key, text) for key, text in line.overrides if key not in topics]
    paths = [] if line.config is None else [line.config, *line.further]
    content = apply_overrides(read_configs(paths), overrides)
    if topics or line.print_config or line.print_sharding:
        end_stages()
    for key, path in topics.items():
        print(key_help(key.removesuffix(".help"), path, content))
        return 0
    if not content:
        raise LearnerError(
            "learner fit needs a config file: learner fit CONFIG (see learner fit --help)",
            code="cli-config-missing",
        )
    if line.print_config:
        config = RunConfig(content)
        config.check_arguments()
        comment = textwrap.wrap(
            "Not set: " + ", ".join(config.unset()), 98, initial_indent="# ", subsequent_indent="# "
        )
        print(config.text() + "\n".join(comment))
        return 0
    if line.print_sharding:
        print(RunConfig(content).learner().sharding_report())
        return 0
    with connected(process_options(line)):
        return _train(RunConfig(content))


def resume(words: Sequence[str]) -> int:
    """`learner resume DIR [--KEY=VALUE ...]`."""
    if topic := requested_help(words):
        return fit(["--help", topic])
    line = resume_parser().read(words)
    directory = line.directory
    end_stages()  # before a question
    if Path(directory, PULLED).exists() and not Path(directory, MARK).exists():
        raise LearnerError(
            f"{directory} is a model of the Hub, with nothing to resume: learner evaluate and learner predict use it, "
            "and load_model reads its weights",
            code="run-pulled",
            directory=directory,
        )
    refuse_other_directory(line.overrides, directory)
    require_trust(directory, line.trust)
    enter_stage("reading the config")
    with connected(process_options(line)):
        call = f"LearnerBuilder({directory!r}).num_epochs(...).resume().build(model, optimizer, lr).fit(train, valid)"
        content = saved_config(directory, "continues", call=call, same="options, model, optimizer and data")
        content = apply_overrides(content, line.overrides)
        _refuse_new_run(content)
        return _train(RunConfig({**content, "directory": directory, "resume": content.get("resume") or True}))


def _refuse_new_run(content: Mapping[str, Any]) -> None:
    """Raise `LearnerError` if options request a new run in place of the run to resume."""
    for key in ("overwrite", "resume"):  # saved configs contain neither
        if key in content and bool(content[key]) == (key == "overwrite"):
            raise LearnerError(
                f"{key} is {content[key]}, which asks for a new run, but learner resume continues the old one: leave "
                f"--{key} out, or start a new run with learner fit CONFIG --overwrite=true",
                code="cli-resume-new-run",
                key=key,
            )


def _train(config: RunConfig) -> int:
    """Train and return the exit code: 130 after Ctrl-C, 143 after SIGTERM, 75 after `watchdog`."""
    enter_stage("reading the data")
    before = read_summary(Path(config.directory)) if config.resumes else None
    try:
        learner = config.learner()
        result = learner.fit()
    except (KeyboardInterrupt, Terminated) as error:
        code = _interrupted(config.directory, TERMINATED if isinstance(error, Terminated) else EXIT_CODES["ctrl-c"])
        leave("interrupted by a signal")  # an error of only this process, for which the others would wait
        return code
    except SystemExit as ended:  # an error of all processes, which have saved
        if ended.code != TERMINATED:
            raise
        return _interrupted(config.directory, TERMINATED)
    # A run that a limit or a signal stops again before its first step has something left to train.
    if before is not None and result.summary == before and str(before.get("stopped_by")).startswith(ENDS):
        end_stages()
        if jax.process_index() == 0:
            stopped_early = str(before.get("stopped_by")).startswith("early stopping")
            stops_early = stopped_early and learner.definition.options.early_stopping
            limit, count = (
                ("num_steps", "steps") if before.get("stopped_by") == "num_steps" else ("num_epochs", "epochs")
            )
            longer = f"--{limit}={before.get(count, 0) + 1} or more makes it longer"
            print("--early_stopping=null resumes it" if stops_early else longer)
        return 0
    reason = result.stopped_by.partition(":")[0]
    return _interrupted(config.directory, EXIT_CODES[reason]) if reason in EXIT_CODES else 0


def _interrupted(directory: str, code: int) -> int:
    has_config = Path(directory, "config.yaml").is_file()
    going_on = f"; resume with: learner resume {shlex.quote(directory)}" if has_config else ""
    note(f"interrupted{going_on}")
    return code
