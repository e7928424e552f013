"""Models and configs in the package, so that `learner fit configs/digits.yaml` works in any directory.

The configs are the files in `configs/` of the repository, to which `configs` in here is a link; a wheel has copies.
"""

import os
from pathlib import Path

CONFIGS = Path(__file__).parent / "configs"


def bundled_config(path: str | os.PathLike[str]) -> Path | None:
    """Return the config of the package that `path` names, relative to any directory. Return None if there is none.

    >>> bundled_config("configs/digits.yaml").name
    'digits.yaml'
    >>> bundled_config("digits.yaml"), bundled_config("configs/mine.yaml")
    (None, None)
    """
    folder, _, name = os.fspath(path).rpartition("/")
    known = {each.name: each for each in CONFIGS.glob("*.yaml")}
    return known.get(name) if folder in ("configs", "./configs") else None
