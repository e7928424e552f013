"""`learner diff DIR CONFIG`: the settings in which a config differs from a run."""

from typing import Any

from learner.cli.configs.config import RunConfig
from learner.cli.configs.overrides import apply_overrides, read_configs
from learner.config.safe_yaml import parse_yaml
from learner.errors import LearnerError
from learner.runs.comparison import ALWAYS_DIFFER
from learner.runs.difference import Pairs, differing
from learner.runs.flat_config import flat
from learner.runs.journal import OBSERVER_KEYS
from learner.runs.run_reader import RunReader


def config_difference(run: RunReader, path: str) -> Pairs:
    """Return the settings that differ between a run and a config, including the defaults of both, with the values of
    both by key. The code that the config names is imported.

    Raises:
      LearnerError: the run was started from Python, or the config has problems; one error lists all of them.
    """
    if not run.has_config:
        raise LearnerError(
            f"{run.directory} has no config.yaml to compare with {path}: the run was started from Python",
            code="diff-config-missing",
            directory=run.directory,
        )
    content: dict[str, Any] = parse_yaml(RunConfig(apply_overrides(read_configs([path]), [])).text())
    settings = flat({key: value for key, value in content.items() if key not in OBSERVER_KEYS})
    pairs = differing(run.config, settings)
    return {key: pair for key, pair in pairs.items() if key not in ALWAYS_DIFFER}
