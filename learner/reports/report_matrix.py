"""The confusion matrices of a report: coloured tables, and pictures for many classes."""

import base64
from collections.abc import Sequence
from html import escape

from learner.reports.confusion_matrices import Matrix, matrices
from learner.reports.html import details, percent, scrolled, table
from learner.runs.history import Point
from learner.runs.run_reader import RunReader
from learner.util.png import png

MOST_CLASSES = 30
"""The most classes of a table; more classes are shown as a picture."""
MOST_PICTURES = 40
"""The most pictures in a report: each may have a million pixels."""
MOST_PAIRS = 10
"""Rows of the table beside a picture."""
POWER = 0.5
"""The exponent of shares for the strength of their colour. It makes small shares visible."""
LONG = 4
"""Characters of a name that is upright over its column; longer names are rotated."""
ABOUT = """<p>Rows are labels, columns what was predicted, in the order of the classes. The stronger the colour, the
greater the part of the label's rows.</p>"""


def confusion(runs: Sequence[RunReader]) -> list[str]:
    """Return the newest and the best confusion matrix of each split. With several runs, they are hidden at first."""
    pieces = []
    pictures = 0
    for run in runs:
        rows: dict[str, str] = {}
        for key, what, point, matrix in matrices(run):
            pictures += _is_large(matrix)
            rows[key] = rows.get(key, "") + _figure(key, what, point, matrix, pictures <= MOST_PICTURES)
        content = "".join(f'<div class="matrices">{row}</div>' for row in rows.values())
        if content:
            pieces.append(content if len(runs) == 1 else details(run.name, content))
    return [ABOUT, *pieces] if pieces else []


def _figure(key: str, what: str, point: Point, matrix: Matrix, pictured: bool) -> str:
    title = f"after epoch {point.epoch} (step {point.step:,}), {what}"
    about = f"{key} {title}"
    if not _is_large(matrix):
        body = _table(matrix, about)
    else:
        picture = _picture(matrix, about) if pictured else f"<p>Only the first {MOST_PICTURES} have pictures.</p>"
        body = f"{picture}{_pairs(matrix)}"
    return f"<figure><figcaption><b>{escape(key)}</b> {escape(title)}</figcaption>{body}</figure>"


def _is_large(matrix: Matrix) -> bool:
    return max(len(matrix.labels), len(matrix.predicted)) > MOST_CLASSES


def _table(matrix: Matrix, about: str) -> str:
    turned = any(len(name) > LONG for name in matrix.predicted)
    names = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in matrix.predicted)
    lines = []
    rows = zip(matrix.labels, matrix.counts.tolist(), matrix.shares.tolist(), matrix.right, strict=True)
    for row, (name, counts, shares, right) in enumerate(rows):
        cells = "".join(
            _cell(n, share, row == column < matrix.classes)
            for column, (n, share) in enumerate(zip(counts, shares, strict=True))
        )
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{cells}<td class="right">{percent(right)}</td></tr>')
    head = f'<tr><th scope="col">label</th>{names}<th scope="col" class="right">right</th></tr>'
    kind = "matrix turned" if turned else "matrix"
    return scrolled(f'<table class="{kind}"><thead>{head}</thead><tbody>{"".join(lines)}</tbody></table>', about)


def _cell(number: int, share: float, hit: bool) -> str:
    kind = ' class="hit"' if hit else ""
    strength = share**POWER
    return f'<td{kind} style="--p:{strength:.2f}">{number}</td>' if number else f"<td{kind}>0</td>"


def _picture(matrix: Matrix, about: str) -> str:
    picture = matrix.picture(POWER)
    description = f"{about}: {len(matrix.labels)} classes, {percent(matrix.accuracy)} of the rows on the diagonal"
    content = base64.b64encode(png(picture)).decode()
    size = f'width="{picture.shape[1]}" height="{picture.shape[0]}"'
    return f'<img class="matrix" {size} alt="{escape(description)}" src="data:image/png;base64,{content}">'


def _pairs(matrix: Matrix) -> str:
    pairs: Sequence[tuple[str, str, int, float]] = matrix.mistaken(MOST_PAIRS)
    rows = [[label, predicted, f"{number:,}", percent(share)] for label, predicted, number, share in pairs]
    head = ["label", "taken for", "rows", "of the label's"]
    return table(head, rows, "the most frequent mistakes", range(2, 4)) if rows else "<p>No mistakes.</p>"
