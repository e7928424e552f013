"""Run the code of the site's pages as it is, and check their links.

`python` is run, in order, and prints the `text` that follows it; `py` is code of other libraries, and is not run. A
`yaml` block with a directory is a config, which commands refer to by its name; others are parts of one. `sh` blocks are
commands, and are run.
"""

import contextlib
import functools
import io
import re
import shlex
import sys
import tomllib
import types
from pathlib import Path

import jax
import pytest
import yaml

from learner import LearnerBuilder
from learner.cli.configs.builder_options import option
from learner.cli.configs.recipes import recipe
from learner.cli.configs.schema import OBJECTS, names_for
from learner.cli.configs.sources import source
from learner.cli.main import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EVERY = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
ROOTS = ("index.md", "getting-started.md", "installation.md", "population.md", "troubleshooting.md")
FOLDERS = ("howto/", "explanations/", "coming-from/")
PAGES = [name for name in EVERY if name.startswith(FOLDERS) or name in ROOTS]
FAST = ("index.md",)  # `pytest -m full` runs the others
COMMANDS = ("sh", "bash")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def blocks_of(name):
    return re.findall(r"^```([\w-]+)\n(.*?)^```$", (DOCS / name).read_text(), re.DOTALL | re.MULTILINE)


def printed_by(action):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        result = action()
    return result, out.getvalue()


def run_command(line):
    line = line.partition(" #")[0].strip()
    if line.startswith(("python3 -m venv ", ". .venv/bin/activate", 'pip install -U "jax[')):
        return
    if line.startswith("pip install "):
        assert set(re.findall(r"\[(.*?)\]", line)[0].split(",")) <= set(EXTRAS), line
        return
    assert line.startswith("learner "), line
    code, _ = printed_by(lambda: main(shlex.split(line)[1:]))
    assert code == 0, line


def check_part(text):
    """Check that the builder accepts a part of a config."""
    builder = LearnerBuilder("unused")
    # Objects are made, and a bucket would be opened: the store of this process replaces it.
    for key, value in yaml.safe_load(text.replace("s3://", "memory://")).items():
        if key in OBJECTS:
            recipe(value, key, names_for(key), **OBJECTS[key]).make()
        elif key in ("train", "valid"):
            assert len(source(value, key, 0).make()) > 0
        else:
            option(LearnerBuilder, key, value, key, names_for(key) or None).apply(builder)


def config_name(blocks):
    """Return the name by which commands refer to a page's config."""
    return re.search(r"learner [\w-]+ ([\w.]+\.yaml)", "".join(code for kind, code in blocks if kind in COMMANDS))[1]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.full) for name in PAGES])
@pytest.mark.usefixtures("compiled_once")
@pytest.mark.full
def test_code_of_page(name, tmp_path, monkeypatch):
    blocks = blocks_of(name)
    if not any(kind in ("python", "yaml", *COMMANDS) for kind, _ in blocks):
        return
    page = types.ModuleType("mymodule")
    monkeypatch.setitem(sys.modules, "mymodule", page)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if not any(kind == "text" for kind, _ in blocks):  # without output to compare, two epochs run the same code
        num_epochs = LearnerBuilder.num_epochs
        monkeypatch.setattr(LearnerBuilder, "num_epochs", lambda builder, n: num_epochs(builder, min(n, 2)))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for number, (kind, code) in enumerate(blocks):
            following, shown = [*blocks, ("", "")][number + 1]
            if kind == "python":
                _, printed = printed_by(lambda code=code: exec(compile(code, f"a block of {name}", "exec"), vars(page)))
                if "print(" in code and following == "text":
                    assert printed == shown or printed.endswith(f"\n{shown}")  # after the run's output
            elif kind == "yaml" and code.startswith("directory:"):
                Path(config_name(blocks)).write_text(code)
            elif kind == "yaml":
                check_part(code)
            elif kind in COMMANDS:
                for line in code.splitlines():
                    run_command(line)


def test_the_code_can_be_read():
    """Every block is of a known kind, so that none is skipped."""
    kinds = {"python", "py", "text", "yaml", "json", "rust", *COMMANDS}
    for name, kind, code in ((page, *block) for page in EVERY for block in blocks_of(page)):
        assert kind in kinds, name
        if kind in ("python", "py"):
            compile(code, f"a block of {name}", "exec")
        elif kind == "yaml":
            assert isinstance(yaml.safe_load(code), dict), name


def anchors_of(page):
    """Return a page's anchors, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links_of(name):
    return re.findall(r"\]\((?!https?:)([^)\s]+)\)", (DOCS / name).read_text())


def test_links_exist():
    anchors = functools.cache(anchors_of)
    for name, link in ((page, link) for page in EVERY for link in links_of(page)):
        path, _, anchor = link.partition("#")
        target = (DOCS / name).parent.joinpath(path).resolve() if path else DOCS / name
        assert target.exists(), (name, link)
        assert not anchor or anchor in anchors(target), (name, link)


def test_folder_lists_have_every_page():
    """Both the table and the navigation list it. A page `errors-data` is in the list of the page `errors`."""
    listed = 0
    for folder in (*FOLDERS, "reference/"):
        names = {name.removeprefix(folder) for name in EVERY if name.startswith(folder)}
        own = {name: {part for part in names if part.startswith(f"{name.removesuffix('.md')}-")} for name in names}
        own["index.md"] = names - {"index.md"} - set().union(*own.values())
        for name, parts in ((name, parts) for name, parts in own.items() if parts):
            index = (DOCS / folder / name).read_text()
            (navigation,) = re.findall(r"^```\{toctree\}\n(.*?)^```$", index, re.DOTALL | re.MULTILINE)
            assert {f"{line}.md" for line in navigation.splitlines() if line and ":" not in line} == parts
            assert set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == parts
            listed += len(parts)
    assert listed > 50
