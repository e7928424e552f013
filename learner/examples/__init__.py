"""Models and configs in the package, so that `learner fit configs/digits.yaml` works in any directory.

`configs` and `scripts` are links to `configs/` and `examples/` of the repository; a wheel has copies. `project` has the
files of `learner new`.
"""

import os
from pathlib import Path

CONFIGS = Path(__file__).parent / "configs"
SCRIPTS = Path(__file__).parent / "scripts"
PROJECT = Path(__file__).parent / "project"


def bundled_config(path: str | os.PathLike[str]) -> Path | None:
    """Return the config of the package that `path` names, relative to any directory. Return None if there is none.

    >>> bundled_config("configs/digits.yaml").name
    'digits.yaml'
    >>> bundled_config("digits.yaml"), bundled_config("configs/mine.yaml")
    (None, None)
    """
    folder, _, name = os.fspath(path).rpartition("/")
    known = {config.name: config for config in CONFIGS.glob("*.yaml")}
    return known.get(name) if folder in ("configs", "./configs") else None
