"""`learner diff DIR CONFIG`: the settings in which a config differs from a run."""

import dataclasses
from typing import Any

from learner.cli.configs.config import RunConfig
from learner.cli.configs.overrides import apply_overrides, read_configs
from learner.config.safe_yaml import parse_yaml
from learner.errors import LearnerError
from learner.runs.comparison import ALWAYS_DIFFER
from learner.runs.difference import Pairs, differing, pair_lines
from learner.runs.flat_config import flat
from learner.runs.journal import OBSERVER_KEYS
from learner.runs.run_reader import RunReader
from learner.util.text import count


@dataclasses.dataclass(frozen=True)
class ConfigDifference:
    """The settings that differ between a run and a config, both in full.

    Attributes:
      settings: the values of both by key; None for a missing value.
    """

    settings: Pairs

    @property
    def explanation(self) -> str:
        """A sentence with the number of differences."""
        number = len(self.settings)
        return f"{count(number, 'setting')} differ{'s' if number == 1 else ''}" if number else "no setting differs"

    def lines(self) -> list[str]:
        """Return the difference as text."""
        return [*pair_lines({"settings": self.settings}), self.explanation]


def config_difference(run: RunReader, path: str) -> ConfigDifference:
    """Return the settings that differ between a run and a config, including the defaults of both. The code that the
    config names is imported.

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
    return ConfigDifference({key: pair for key, pair in pairs.items() if key not in ALWAYS_DIFFER})
