"""Compare printed output with the output that documents show."""

import re

import pytest

NUMBER = r"[-+]?\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?"
DURATION = rf"{NUMBER} (?:ms|s|min|h)\b"
STAGES = re.compile(r"learner \d\S*: importing JAX.*\n(?:  [a-z].* [0-9.]+ m?s\n)*")


def without_stages(text):
    """Return a command's output without the lines about the stages before a run."""
    return STAGES.sub("", text)


def shape_of(line):
    """Return a line without spacing and numbers, which differ between machines. Keep an epoch's number at the start."""
    epoch = re.match(r"\d+ ", line)
    shape = re.sub(NUMBER, "#", re.sub(DURATION, "TIME", line[epoch.end() if epoch else 0 :]))
    return " ".join([*(epoch or [""])[0].split(), *shape.split()])


def fractions_of(line):
    return [float(number) for number in re.findall(NUMBER, re.sub(DURATION, "", line)) if "." in number]


def assert_shown(shown, printed):
    """Check that `printed` ends with the README's output: lines with fractions approximately, other lines exactly.

    A line `...` stands for any lines.
    """
    if "." not in shown.replace("...", ""):
        assert printed.endswith(shown)
        return
    rest = map(str.rstrip, printed.splitlines())  # a terminal that wraps a line leaves the space before the break
    for line in shown.splitlines():
        if line == "...":
            continue
        match = next((other for other in rest if shape_of(other) == shape_of(line)), None)
        assert match is not None, f"{line!r} is not (or not there) in:\n{printed}"
        assert fractions_of(match) == pytest.approx(fractions_of(line), rel=0.3, abs=0.05)
