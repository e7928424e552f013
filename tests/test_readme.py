"""The README is true: its commands run, its Python runs as it stands, and what it shows comes out."""

import contextlib
import io
import re
import shlex
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from shown import assert_shown
from sklearn.metrics import mean_absolute_error

from learner.cli.main import main
from learner.data import diabetes
from learner.runs.history import read_history

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def blocks(language):
    return [text for kind, text in BLOCKS if kind == language]


def commands():
    return [line.split("#")[0].strip() for text in blocks("sh") for line in text.splitlines()]


@contextlib.contextmanager
def output():
    """What is printed meanwhile; on standard error nothing is, but for what `learner evaluate` says of configs."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out
    trusted = "is trusted: the code that it names is imported and run now"
    assert all(line.endswith(trusted) for line in err.getvalue().splitlines())


def command(*words):
    """What a command prints."""
    with output() as out:
        assert main(words) == 0
    return out.getvalue()


@pytest.fixture(scope="module", autouse=True)
def _as_a_user(tmp_path_factory, compiled_once):
    """In a new directory with the configs and the examples, and with the settings of JAX that users have."""
    place = tmp_path_factory.mktemp("readme")
    for name in ("configs", "examples"):
        (place / name).symlink_to(ROOT / name)
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(place):
        patch.setenv("COLUMNS", "100")
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            yield


@pytest.fixture(scope="module")
def screen():
    """What the first command of the README prints on a terminal, and then leaves."""
    words = shlex.split(commands()[0].split("&& ")[1])
    return command(*words[1:], "--renderer=RichRenderer")


@pytest.fixture(scope="module")
def python():
    """All Python of the README, run in order: its names, and what each block shows and printed."""
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
def test_the_first_command_shows_and_leaves_what_is_shown(screen):
    shown, tree = (text for text in blocks("text") if text.startswith(("...\nruns/digits: ", "runs/digits/\n")))
    assert_shown(shown, screen)
    assert max(read_history("runs/digits")["valid/Accuracy"]) >= 0.97
    root, *names = (line.split()[0] for line in tree.splitlines())
    for name in names:
        assert name == "..." or Path(root, name).exists(), name


@pytest.mark.full
def test_the_other_commands_run(screen):
    others = commands()[2:]
    assert all(line.startswith("learner ") for line in others)
    for line in others:
        name, *words = shlex.split(line)[1:]
        ends = {"--help", "--print_config", "--print_sharding"} & set(words)
        stop = ["--print_config"] if name == "fit" and not ends else []
        assert command(name, *words, *stop)


@pytest.mark.full
def test_the_python_prints_what_is_shown(python):
    _, shown = python
    assert len(shown) == 7
    for text, printed in shown:
        assert_shown(text, printed)


@pytest.mark.full
def test_the_command_and_the_python_end_with_the_same_numbers(screen, python):
    ours, theirs = read_history("runs/first"), read_history("runs/digits")
    assert ours.keys() == theirs.keys()
    for key, values in theirs.items():
        np.testing.assert_allclose(ours[key], values, rtol=1e-4, err_msg=key)


@pytest.mark.full
def test_ones_own_metric_is_that_of_scikit_learn(python):
    linear, rows = python[0]["linear"], diabetes("valid")
    predictions = np.concatenate([output.predictions for output in linear.predict(rows)])
    expected = mean_absolute_error(rows.arrays["target"], predictions)
    assert linear.evaluate(rows)["Mean Absolute Error"] == pytest.approx(expected, rel=1e-6)


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) >= 4
    for link in links:
        assert (ROOT / link).exists(), link
