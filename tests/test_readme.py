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
from sklearn.metrics import mean_absolute_error

from learner.cli.main import main
from learner.data import diabetes
from learner.history import read_history

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
NUMBER = r"[-+]?\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?"
DURATION = rf"{NUMBER} (?:ms|s|min|h)\b"

pytestmark = pytest.mark.usefixtures("compiled_once")


def blocks(language):
    return [text for kind, text in BLOCKS if kind == language]


def commands():
    return [line.split("#")[0].strip() for text in blocks("sh") for line in text.splitlines()]


def shape_of(line):
    """A line without its spacing and its numbers, but for an epoch at its start: those differ between machines."""
    first, *others = line.split(maxsplit=1)
    return " ".join([first, *re.sub(NUMBER, "#", re.sub(DURATION, "TIME", "".join(others))).split()])


def fractions_of(line):
    return [float(number) for number in re.findall(NUMBER, re.sub(DURATION, "", line)) if "." in number]


def assert_shown(shown, printed):
    """`printed` ends with what the README shows: fractions about the same, and where there are none the very text.

    A line `...` stands for any lines.
    """
    if "." not in shown.replace("...", ""):
        assert printed.endswith(shown)
        return
    rest = iter(printed.splitlines())
    for line in shown.splitlines():
        if line == "...":
            continue
        found = next((other for other in rest if shape_of(other) == shape_of(line)), None)
        assert found is not None, f"{line!r} is not (or not there) in:\n{printed}"
        assert fractions_of(found) == pytest.approx(fractions_of(line), rel=0.3, abs=0.05)


@pytest.fixture(autouse=True)
def as_a_user(tmp_path, monkeypatch):
    """In an empty directory beside the configs and the examples, with the settings of JAX that users have."""
    for name in ("configs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def learner(*words):
    """What a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(words) == 0
    return out.getvalue()


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


def test_the_commands_run_and_leave_what_is_shown(capsys):
    first, second, *others = commands()
    assert second.endswith("&& pytest")
    words = shlex.split(first.split("&& ")[1])
    screen, tree = (text for text in blocks("text") if text.startswith("runs/digits"))
    assert_shown(screen, learner(*words[1:], "--renderer=RichRenderer"))
    assert max(read_history("runs/digits")["valid/Accuracy"]) >= 0.97
    assert capsys.readouterr().err == ""
    root, *lines = (line.split()[0] for line in tree.splitlines())
    for name in lines:
        assert name == "..." or Path(root, name).exists(), name

    assert all(line.startswith("learner ") for line in others)
    for line in others:
        command, *rest = shlex.split(line)[1:]
        stop = ["--print_config"] if command == "fit" and not {"--help", "--print_config"} & set(rest) else []
        assert learner(command, *rest, *stop)


def test_the_python_runs_and_prints_what_is_shown():
    names = {"__name__": "readme"}
    for number, (language, code) in enumerate(BLOCKS):
        if language != "python":
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"block {number} of README.md", "exec"), names)
        following, text = BLOCKS[number + 1]
        if following == "text" and "print(" in code:
            assert_shown(text, out.getvalue())

    rows = diabetes("valid")
    predictions = np.concatenate([output.predictions for output in names["linear"].predict(rows)])
    expected = mean_absolute_error(rows.arrays["target"], predictions)
    assert names["linear"].evaluate(rows)["Mean Absolute Error"] == pytest.approx(expected, rel=1e-6)


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) >= 4
    for link in links:
        assert (ROOT / link).exists(), link
