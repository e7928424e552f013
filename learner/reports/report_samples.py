"""The samples of runs in a report: texts, pictures and histograms that hooks logged."""

import base64
import struct
from collections.abc import Sequence
from html import escape

import numpy as np

from learner.reports.html import heading
from learner.runs.run_reader import RunReader
from learner.runs.samples import SampleFile, read_histogram
from learner.util.png import SIGNATURE
from learner.util.text import count, printable, short

MOST_STEPS = 8
"""Samples shown for one name: the first, the last, and others at equal distances."""
MOST_NAMES = 24
"""Names shown for a run."""
MOST_BYTES = 4 << 20
"""The total bytes of all samples on the page."""
LONGEST_TEXT = 4 << 10
"""Characters of a text that are shown."""
WIDTH, HEIGHT = 150, 60
"""The size of a histogram in pixels."""


def samples(runs: Sequence[RunReader]) -> list[str]:
    """Return the samples of each run: a row for each name, with a figure for each of some steps."""
    parts, left = [], MOST_BYTES
    for run in runs:
        by_name: dict[str, list[SampleFile]] = {}
        for sample in run.samples:
            by_name.setdefault(sample.name, []).append(sample)
        for name, all_of_it in list(by_name.items())[:MOST_NAMES]:
            figures = []
            for sample in _some(all_of_it):
                content = sample.read()
                if content is not None and len(content) <= left:
                    left -= len(content)
                    caption = f"<figcaption>step {sample.step:,}, epoch {sample.epoch}</figcaption>"
                    figures.append(f"<figure>{_body(sample, content)}{caption}</figure>")
            title = printable(f"{run.name} {name}" if len(runs) > 1 else name)
            parts += [heading(title, 3), f'<div class="samples">{"".join(figures)}</div>']
        if len(by_name) > MOST_NAMES:
            parts.append(f"<p>{count(len(by_name) - MOST_NAMES, 'further name')}.</p>")
    return parts


def _some(found: Sequence[SampleFile]) -> list[SampleFile]:
    """Return at most `MOST_STEPS` samples, with the first and the last."""
    places = np.linspace(0, len(found) - 1, min(len(found), MOST_STEPS)).round().astype(int)
    return [found[place] for place in places]


def _body(sample: SampleFile, content: bytes) -> str:
    about = escape(printable(f"{sample.name} at step {sample.step}"))
    if sample.path.suffix == ".txt":
        return f'<pre tabindex="0">{escape(content.decode(errors="replace")[:LONGEST_TEXT])}</pre>'
    if sample.path.suffix == ".png":
        if not content.startswith(SIGNATURE) or len(content) < 24:
            return "<p>The picture is damaged.</p>"
        width, height = struct.unpack_from(">II", content, 16)
        # Small pictures are enlarged by whole factors, so their pixels remain squares.
        factor = max(1, 128 // max(width, height, 1))
        data = base64.b64encode(content).decode()
        return f'<img src="data:image/png;base64,{data}" alt="{about}" width="{factor * width}" loading="lazy">'
    histogram = read_histogram(content)
    return "<p>The histogram is damaged.</p>" if histogram is None else _bars(*histogram, about)


def _bars(counts: np.ndarray, edges: np.ndarray, about: str) -> str:
    """Return a histogram as SVG, with its range below it."""
    step, top = WIDTH / len(counts), max(float(counts.max()), 1.0)
    bars = "".join(
        f'<rect x="{number * step:.1f}" y="{HEIGHT * (1 - share):.1f}" width="{step:.1f}" '
        f'height="{HEIGHT * share:.1f}"/>'
        for number, share in enumerate((counts / top).tolist())
        if share > 0
    )
    low, high = short(float(edges[0])), short(float(edges[-1]))
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{about}">'
    return f'{drawing}{bars}</svg><p class="range"><span>{low}</span><span>{high}</span></p>'
