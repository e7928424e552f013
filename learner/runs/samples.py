"""The samples of a run: texts, pictures and histograms that hooks logged, each in its own file."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.runs.file_names import file_name, folded_name
from learner.util.disk import read_bytes
from learner.util.png import png
from learner.util.samples import Histogram, Image, Sample

FOLDER = "samples"
EVENT = "samples"
"""The event of the journal that names the files of a step."""
FILE = re.compile(r"samples/step-\d+/[^/\\]+\.(png|txt|json)")
LARGEST = 16 << 20
"""The largest size in bytes of a file that is read."""


@dataclasses.dataclass(frozen=True)
class SampleFile:
    """A sample of a run.

    Attributes:
      name: the name that the hook chose.
      epoch: the current epoch, from 1.
      step: the number of optimizer steps so far.
      path: the path of the file: PNG for a picture, text, or JSON for a histogram.
    """

    name: str
    epoch: int
    step: int
    path: Path

    def read(self) -> bytes | None:
        """Return the content of the file, or None if it is missing or too large. A link does not count."""
        try:
            return None if self.path.is_symlink() else read_bytes(self.path, LARGEST)
        except (OSError, LearnerError):
            return None


def contents(step: int, values: Mapping[str, Sample]) -> dict[str, tuple[str, bytes]]:
    """Return the path in the run's directory and the content of each sample, by name. If the names of two samples map
    to one file, as in file systems that ignore case, the file of the second has a number.

    Raises:
      LearnerError: the name of a sample is not safe as a file name.

    >>> contents(120, {"first line": "To be"})
    {'first line': ('samples/step-120/first_line.txt', b'To be')}
    """
    found: dict[str, tuple[str, bytes]] = {}
    files: set[str] = set()
    for name, value in values.items():
        stem, number = file_name(name), 1
        suffix, content = _encoded(value)
        while folded_name(file := f"{stem}{'' if number == 1 else f'-{number}'}.{suffix}") in files:
            number += 1
        files.add(folded_name(file))
        found[name] = f"{FOLDER}/step-{step}/{file}", content
    return found


def sample_files(directory: Path, journal: Iterable[Mapping[str, Any]]) -> list[SampleFile]:
    """Return the samples that a journal lists, in order of their steps. Samples of steps that a resumed run discarded
    and did not log again are left out.
    """
    found: dict[tuple[str, int], SampleFile] = {}
    for entry in journal:
        step = entry.get("step")
        if not isinstance(step, int):
            continue
        if entry.get("event") == "start":
            found = {key: sample for key, sample in found.items() if sample.step <= step}
        elif entry.get("event") == EVENT and isinstance(entry.get("files"), Mapping):
            for name, path in entry["files"].items():
                if isinstance(path, str) and FILE.fullmatch(path) and isinstance(entry.get("epoch"), int):
                    found[name, step] = SampleFile(name, entry["epoch"], step, directory / path)
    return sorted(found.values(), key=lambda sample: sample.step)


def read_histogram(content: bytes) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the counts, float64 `[bins]`, and the edges, `[bins + 1]`, of a file; None if it is damaged."""
    try:
        histogram = json.loads(content)
        counts, edges = (np.array(histogram[key], np.float64) for key in ("counts", "edges"))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    fits = counts.ndim == edges.ndim == 1 and len(edges) == len(counts) + 1 > 1
    return (counts, edges) if fits and np.isfinite(counts).all() and np.isfinite(edges).all() else None


def _encoded(value: Sample) -> tuple[str, bytes]:
    """Return the suffix and the content of the file of a sample."""
    if isinstance(value, str):
        return "txt", value.encode(errors="backslashreplace")
    if isinstance(value, Image):
        return "png", png(value.pixels)
    return "json", json.dumps(histogram_json(value)).encode()


def histogram_json(histogram: Histogram) -> dict[str, Any]:
    """Return the counts and edges of a histogram as JSON has them."""
    return {
        "counts": histogram.counts.tolist(),
        "edges": histogram.edges.tolist(),
        "nonfinite": histogram.nonfinite,
    }
