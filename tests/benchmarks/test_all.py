"""Tests of the benchmark of everything, also if a part fails or time runs out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import all as everything

FAILS, WRITES = "import sys; sys.exit(3)", "import sys, pathlib; pathlib.Path(sys.argv[-1]).write_text('[1.5]')"


def test_file_has_the_measurements_of_each_part(tmp_path, monkeypatch):
    """The parts are processes that write a number, or fail."""
    commands = {"first": WRITES, "second": FAILS, "third": WRITES}
    monkeypatch.setattr(everything, "parts_of", lambda devices: {part: [part, "--quick"] for part in commands})
    monkeypatch.setattr(everything, "spawn", lambda command, platform: ["a device", 2])
    run, words_of_parts = subprocess.run, []

    def replaced(command, cwd):
        words_of_parts.append(command[3:])
        part = Path(command[command.index("--json") + 1])
        return run([sys.executable, "-c", commands[part.stem], str(part)])

    monkeypatch.setattr(everything.subprocess, "run", replaced)
    with pytest.raises(SystemExit, match="second"):
        everything.main(["--json", str(tmp_path / "all.json"), "--platform", "cuda", "--rounds", "4"])
    report = json.loads((tmp_path / "all.json").read_text())
    assert (report["device"], report["devices"], report["left out"]) == ("a device", 2, [])
    assert {part: (x["exit code"], x["measured"]) for part, x in report["parts"].items()} == {
        "first": (0, [1.5]),
        "second": (3, None),
        "third": (0, [1.5]),
    }
    assert all(
        words[:3] == ["--quick", "--rounds", "4"] and words[-2:] == ["--platform", "cuda"] for words in words_of_parts
    )


def test_no_part_starts_after_the_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(everything, "spawn", lambda command, platform: ["a device", 1])
    with pytest.raises(SystemExit, match="left out"):
        everything.main(["--json", str(tmp_path / "all.json"), "--minutes", "-1", "--parts", "large", "saves"])
    report = json.loads((tmp_path / "all.json").read_text())
    assert (report["parts"], report["left out"]) == ({}, ["large", "saves"])
