"""`learner examples` and `learner new`: the bundled examples, and a project to start from."""

import ast
import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from learner.cli.parsing import Parser, entries, fit_to_terminal
from learner.errors import LearnerError, near
from learner.examples import CONFIGS, PROJECT, SCRIPTS

EXAMPLES = """\
Lists the examples and configs that come with learner, or prints one of them. To run or change it, save it:

  learner examples gan > gan.py && python gan.py
  learner examples digits.yaml > digits.yaml && learner fit digits.yaml"""

NEW = """\
Creates a directory with a small project: a model, a config, a test and a readme."""


def examples(words: Sequence[str]) -> int:
    """`learner examples [NAME]`."""
    parser = Parser("examples", EXAMPLES)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the name of an example or a config in the list")
    name = parser.read(words).name
    files = _files()
    if name is None:
        print(fit_to_terminal("\n".join(entries({each: _about(path) for each, path in files.items()}))))
        return 0
    known = name if name in files else name.removesuffix(".py")
    if known not in files:
        raise LearnerError(
            f"there is no example {name!r}: {near(name, list(files))}", code="cli-example-unknown", name=name
        )
    print(files[known].read_text(), end="")
    return 0


def new(words: Sequence[str]) -> int:
    """`learner new PROJECT`."""
    parser = Parser("new", NEW)
    parser.add_argument("project", metavar="PROJECT", type=Path, help="the directory to create")
    project = parser.read(words).project
    if project.exists() and (not project.is_dir() or any(project.iterdir())):
        raise LearnerError(f"{project} exists already; name another directory", code="cli-project-exists", path=project)
    try:
        project.mkdir(parents=True, exist_ok=True)
        for template in sorted(PROJECT.glob("*.in")):
            (project / template.stem).write_text(template.read_text())
            print(project / template.stem)
    except OSError as error:
        raise LearnerError(
            f"{project} cannot be written: {error.strerror}", code="cli-project-unwritable", path=project
        ) from error
    print(f"next:\n  cd {shlex.quote(str(project))}\n  learner fit config.yaml\n  python -m pytest")
    return 0


def _files() -> dict[str, Path]:
    """Return the files by name: scripts without their suffix, then configs."""
    scripts = {path.stem: path for path in sorted(SCRIPTS.glob("*.py")) if path.stem not in ("__init__", "models")}
    return scripts | {
        path.name: path for path in sorted(itertools.chain(CONFIGS.glob("*.yaml"), SCRIPTS.glob("*.yaml")))
    }


def _about(path: Path) -> str:
    """Return the first sentence of a script's docstring, or of a config's comment."""
    text = path.read_text()
    if path.suffix == ".py":
        about = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
        about = "\n".join(line.removeprefix("#").strip() for line in comment)
    paragraph = " ".join(about.partition("\n\n")[0].split())
    return re.split(r"\.(?= [A-Z])", paragraph)[0].rstrip(".")  # "et al. (2021)" does not end a sentence
