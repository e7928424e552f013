"""Tests of samples in a report."""

import json
import re

import numpy as np

from learner.reports.report_samples import samples
from learner.runs import RunReader
from learner.util.png import png
from tests.support.written import write_run


def write_samples(directory, step, **files):
    """Add samples of a step with these contents to a run, and return the run."""
    write_run(directory) if not directory.exists() else None
    folder = directory / f"samples/step-{step}"
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    paths = {name.split("_")[0]: f"samples/step-{step}/{name.replace('_', '.')}" for name in files}
    with (directory / "journal.jsonl").open("a") as journal:
        journal.write(json.dumps({"event": "samples", "time": 0, "epoch": 1, "step": step, "files": paths}) + "\n")
    return RunReader(directory)


def test_each_kind_is_shown(tmp_path):
    histogram = json.dumps({"counts": [1, 4], "edges": [0, 0.5, 1]}).encode()
    run = write_samples(
        tmp_path / "a", 6, motto_txt=b"<b>", filter_png=png(np.zeros((8, 4), np.uint8)), w_json=histogram
    )
    page = "".join(samples([run]))
    assert "<pre" in page
    assert "&lt;b&gt;" in page
    assert re.search(r'<img src="data:image/png;base64,[^"]+" alt="filter at step 6" width="64"', page)
    assert re.findall(r'height="([0-9.]+)"/>', page) == [
        "15.0",
        "60.0",
    ]  # counts 1 and 4; 60 pixels at most
    assert re.findall("<h3>(.*?)</h3>", page) == ["motto", "filter", "w"]


def test_many_steps_are_thinned_to_eight(tmp_path):
    for step in range(1, 31):
        run = write_samples(tmp_path / "a", step, motto_txt=b"x")
    steps = [int(step) for step in re.findall(r"step (\d+),", "".join(samples([run])))]
    assert (len(steps), steps[0], steps[-1]) == (8, 1, 30)


def test_damaged_and_outside_files_are_not_shown(tmp_path):
    run = write_samples(tmp_path / "a", 1, w_json=b"{", filter_png=b"<svg>")
    page = "".join(samples([run]))
    assert "The histogram is damaged." in page
    assert "The picture is damaged." in page
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "a/samples/step-1/link.txt").symlink_to(tmp_path / "secret.txt")
    with (tmp_path / "a/journal.jsonl").open("a") as journal:
        files = {"up": "samples/step-1/../../../secret.txt", "link": "samples/step-1/link.txt"}
        journal.write(json.dumps({"event": "samples", "time": 0, "epoch": 1, "step": 1, "files": files}) + "\n")
    assert "secret" not in "".join(samples([RunReader(tmp_path / "a")]))
