"""The installed package: its name on the package index, its version, and the command that adds an extra."""

import functools
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "learner-jax"  # `learner` on the package index is another project
VERSION = "0.1.0"  # pyproject.toml reads it from here


def versions(*packages: str) -> dict[str, str]:
    """Return the installed versions of distributions by name, of this package as `learner`.

    >>> versions("learner") == {"learner": VERSION}
    True
    """
    return {name: VERSION if name == "learner" else _installed(name) for name in packages}


@functools.cache  # the start of a run asks three times, for 2 ms each
def _installed(name: str) -> str:
    return importlib.metadata.version(name)


def install_hint(extra: str) -> str:
    """Return the shell command that installs `extra` into this installation.

    It names the clone from which the package runs, else the repository, directory or archive from which pip installed
    it (PEP 610), else the distribution on the package index.
    """
    root = Path(__file__).parents[2]
    if (root / "pyproject.toml").is_file():
        return _command(extra, root, {}, Path.cwd())
    return _command(extra, None, _origin(), Path.cwd())


def _command(extra: str, clone: Path | None, origin: Mapping[str, Any], directory: Path) -> str:
    """Return the command for a clone, or for the content of a `direct_url.json`.

    >>> clone, directory = Path("/home/me/learner"), Path("/tmp")
    >>> _command("plots", clone, {}, clone), _command("plots", clone, {}, directory)
    ('pip install -e ".[plots]"', 'pip install -e "/home/me/learner[plots]"')
    >>> print(_command("plots", None, {"url": "https://host/l.git", "vcs_info": {"vcs": "git"}}, directory))
    pip install "learner-jax[plots] @ git+https://host/l.git"
    >>> print(_command("plots", None, {}, directory))
    pip install "learner-jax[plots]"
    """
    if clone is not None:
        return f'pip install -e "{"." if clone == directory else clone}[{extra}]"'
    scheme = f"{origin['vcs_info']['vcs']}+" if "vcs_info" in origin else ""
    source = f" @ {scheme}{origin['url']}" if origin else ""
    return f'pip install "{NAME}[{extra}]{source}"'


def _origin() -> Mapping[str, Any]:
    """Return the origin that pip recorded; empty for the package index and for packages not installed by pip."""
    try:
        text = importlib.metadata.distribution(NAME).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return {}
    origin: dict[str, Any] = json.loads(text) if text else {}
    return origin
