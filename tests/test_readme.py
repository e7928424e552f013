"""The README's commands and Python run and print the output shown; the commands and files that docs list exist."""

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

from learner.cli.main import main
from learner.runs.history import read_history
from tests.support.shown import assert_shown

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MOST_WORDS = {"README.md": 900, "CONTRIBUTING.md": 1200}


def blocks_of(document):
    return re.findall(r"^```(\w+)\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)


BLOCKS = blocks_of(README)


def commands(document):
    texts = [text for kind, text in blocks_of(document) if kind == "sh"]
    return [line.split("#")[0].strip() for text in texts for line in text.splitlines()]


@contextlib.contextmanager
def output():
    """Return printed output; standard error is empty but for the warning of `learner evaluate` about configs."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out
    trusted = "is trusted: the code that it names is imported and run now"
    assert all(line.endswith(trusted) for line in err.getvalue().splitlines())


def command(*words):
    """Return the output of a command."""
    with output() as out:
        assert main(words) == 0
    return out.getvalue()


@pytest.fixture(scope="module", autouse=True)
def _as_a_user(tmp_path_factory, compiled_once):
    """Work in a new directory with the configs and the examples, and with JAX's default settings."""
    place = tmp_path_factory.mktemp("readme")
    for name in ("configs", "examples"):
        (place / name).symlink_to(ROOT / name)
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(place):
        patch.setenv("COLUMNS", "100")
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield


@pytest.fixture(scope="module")
def screen():
    """Return the terminal's screen, and the directory, after the README's first command."""
    words = shlex.split(commands(README)[0].split("&& ")[1])
    return command(*words[1:], "--renderer=RichRenderer")


@pytest.fixture(scope="module")
def python():
    """Run all Python of the README in order, and return its names, and the shown and printed output of each block."""
    names, shown = {"__name__": "readme"}, []
    for number, (language, code) in enumerate(BLOCKS):
        if language != "python":
            continue
        with output() as out:
            exec(compile(code, f"block {number} of README.md", "exec"), names)
        following, text = BLOCKS[number + 1]
        if following == "text" and "print(" in code:
            shown.append((text, out.getvalue()))
    return names, shown


def test_the_first_screen_installs_trains_and_tests():
    install = [line for line in README.splitlines() if line.startswith("pip install ")]
    assert install == [
        'pip install -e ".[examples]" && learner fit configs/digits.yaml',
        'pip install -e ".[test]" && pytest',
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert {"examples", "test", "test-full", "dev"} <= set(extras)
    assert all(any(need.startswith("scikit-learn") for need in extras[name]) for name in ("examples", "test"))
    assert project["scripts"] == {"learner": "learner.cli.main:main"}


@pytest.mark.full
def test_the_first_command_prints_the_output_shown(screen):
    shown = next(text for kind, text in BLOCKS if kind == "text" and text.startswith("...\nruns/digits: "))
    assert_shown(shown, screen)
    assert max(read_history("runs/digits")["valid/Accuracy"]) >= 0.97


@pytest.mark.full
@pytest.mark.usefixtures("screen")
def test_a_run_leaves_the_files_that_the_guide_lists():
    texts = [text for kind, text in blocks_of((ROOT / "docs" / "runs.md").read_text()) if kind == "text"]
    tree = next(text for text in texts if text.startswith("runs/digits/\n"))
    assert len(tree.splitlines()) >= 10
    root, *names = (line.split()[0] for line in tree.splitlines())
    for name in names:
        assert name == "..." or Path(root, name).exists(), name


@pytest.mark.full
@pytest.mark.usefixtures("screen")
def test_the_commands_of_the_command_line_page_run():
    lines = commands((ROOT / "docs" / "command-line.md").read_text())
    assert {line.split()[0] for line in lines} == {"learner", "pip"}
    lines = [line.partition(" >> ")[0] for line in lines if line.startswith("learner ")]
    assert len(lines) >= 16
    for line in lines:
        name, *words = shlex.split(line)[1:]
        ends = {"--help", "--print_config", "--print_sharding"} & set(words)
        stop = ["--print_config"] if name == "fit" and not ends else []
        assert command(name, *words, *stop)


@pytest.mark.full
def test_python_prints_what_is_shown(python):
    _, shown = python
    assert len(shown) == 1
    for text, printed in shown:
        assert_shown(text, printed)


@pytest.mark.full
def test_the_command_and_the_python_end_with_the_same_numbers(screen, python):
    ours, theirs = read_history("runs/first"), read_history("runs/digits")
    assert ours.keys() == theirs.keys()
    for key, values in theirs.items():
        np.testing.assert_allclose(ours[key], values, rtol=1e-4, err_msg=key)


def test_links_exist():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) >= 4
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("name", MOST_WORDS)
def test_the_first_documents_stay_short(name):
    assert len((ROOT / name).read_text().split()) <= MOST_WORDS[name]
