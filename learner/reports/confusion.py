"""Confusion matrices, read back from the tables that runs write of them, and their pictures."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from learner.runs.history import Point
from learner.runs.run import Run

PIXELS = 384
"""A side of the picture of few classes."""
MOST_PIXELS = 1024
"""A side of the picture of many."""
NONE = "none"
LARGEST = np.uint64(2**64 - 1)
PAIRS = ["label", "predicted", "rows"]
"""The head of a table of many classes."""
Counts = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Matrix:
    """How often labels were predicted as classes. Only what was is kept: of many classes most pairs never are.

    Attributes:
      labels: the names of the rows.
      predicted: the names of the columns. They are those of the rows, but for a last one `none` on either side, or on
        both, for what is none of the classes.
      row: of each pair that was, int64 `[pairs]`; ascending, as the columns of a row are.
      column: of each, int64 `[pairs]`.
      number: how often it was, uint64 `[pairs]`.
    """

    labels: tuple[str, ...]
    predicted: tuple[str, ...]
    row: Places
    column: Places
    number: Counts

    @classmethod
    def of(cls, labels: Sequence[str], predicted: Sequence[str], counts: Counts) -> "Matrix":
        """Of all counts, uint64 `[labels, predicted]`."""
        row, column = np.nonzero(counts)
        return cls(tuple(labels), tuple(predicted), row, column, counts[row, column])

    @property
    def counts(self) -> Counts:
        """All of them, uint64 `[labels, predicted]`: for few classes."""
        counts = np.zeros((len(self.labels), len(self.predicted)), np.uint64)
        counts[self.row, self.column] = self.number
        return counts

    @property
    def shares(self) -> Shares:
        """Of the rows of each label, what part was predicted so: float64 `[labels, predicted]`; 0 of no rows. For few
        classes.
        """
        shares = np.zeros((len(self.labels), len(self.predicted)))
        shares[self.row, self.column] = self._share
        return shares

    @property
    def classes(self) -> int:
        """How many of the first rows and columns are classes, and not `none`."""
        both = len(self.labels) == len(self.predicted) and self.labels[-1] == NONE
        return min(len(self.labels), len(self.predicted)) - both

    @property
    def right(self) -> Shares:
        """For each label the part of its rows that was predicted as it, float64 `[labels]`; NaN where it has none, and
        for what is none of the classes, which cannot be right.
        """
        right = np.where(self._sums > 0, 0.0, np.nan)
        right[self.row[self._hit]] = self._share[self._hit]
        right[self.classes :] = np.nan
        return right

    @property
    def accuracy(self) -> float:
        """The part of all rows that was predicted rightly; 0 of no rows."""
        return float(self.number[self._hit].sum(dtype=np.float64) / max(self._sums.sum(), 1.0))

    def mistaken(self, most: int) -> list[tuple[str, str, int, float]]:
        """The pairs of label and wrong prediction that are the most frequent: names, rows, and the part of the label's.

        >>> text = "label  cat  dog\\ncat      5    1\\ndog      2    4"
        >>> [pair[:3] for pair in read_matrix(text).mistaken(1)]
        [('dog', 'cat', 2)]
        """
        mistakes = np.flatnonzero(~self._hit)
        order = mistakes[np.argsort(LARGEST - self.number[mistakes], kind="stable")[:most]]
        chosen = (self.row[order], self.column[order], self.number[order], self._share[order])
        return [
            (self.labels[row], self.predicted[column], number, share)
            for row, column, number, share in zip(*(part.tolist() for part in chosen), strict=True)
        ]

    def picture(self, power: float = 1.0) -> npt.NDArray[np.uint8]:
        """Greys, uint8 `[height, width]`: the darker a square, the more of its label's rows (white: none, black: all).
        Of many classes several are one pixel: the darkest of them.

        Args:
          power: of the shares, so that small ones are seen; 1 is what the metric's own picture has.
        """
        longest = max(len(self.labels), len(self.predicted))
        together = -(-longest // MOST_PIXELS)
        high, wide = (-(-len(names) // together) for names in (self.labels, self.predicted))
        shares = np.zeros((high, wide))
        np.maximum.at(shares, (self.row // together, self.column // together), self._share**power)
        cell = max(1, min(max(4, PIXELS // longest), MOST_PIXELS // longest))
        greys: npt.NDArray[np.uint8] = np.rint(255 * (1 - shares)).astype(np.uint8)
        return greys.repeat(cell, 0).repeat(cell, 1)

    @property
    def _hit(self) -> npt.NDArray[np.bool_]:
        """Of each pair, whether the label was predicted."""
        hit: npt.NDArray[np.bool_] = (self.row == self.column) & (self.row < self.classes)
        return hit

    @property
    def _sums(self) -> Shares:
        """The rows of each label, float64 `[labels]`."""
        sums: Shares = np.bincount(self.row, self.number, len(self.labels)).astype(np.float64)
        return sums

    @property
    def _share(self) -> Shares:
        """Of each pair, its part of the rows of its label."""
        share: Shares = self.number.astype(np.float64) / self._sums[self.row]
        return share


def read_matrix(text: str) -> Matrix | None:
    """The matrix in a table that `learner.metrics.ConfusionMatrix` wrote; `None` for any other text.

    >>> matrix = read_matrix("label    cat  big dog\\ncat        9        1\\nbig dog    0       10")
    >>> matrix.predicted, matrix.counts.tolist()
    (('cat', 'big dog'), [[9, 1], [0, 10]])
    """
    if not text.startswith("label  "):
        return None
    lines = text.split("\n")
    width = max(map(len, lines))
    if len({len(line) for line in lines[1:]}) != 1 or len(lines[1]) != width:
        return None  # a table ends with a column of numbers, to the right
    columns = _columns([line.ljust(width) for line in lines], width)
    head, *rows = [[line[first:last].strip() for first, last in columns] for line in lines]
    names, labels = head[1:], [row[0] for row in rows]
    matrix = _matrix(labels, names, [cell for row in rows for cell in row[1:]])
    return _of_pairs(rows) if matrix is None and head == PAIRS else matrix


def _columns(lines: Sequence[str], width: int) -> list[tuple[int, int]]:
    """Where the columns of a table are: between them are two places that are empty in every line."""
    points = np.frombuffer("".join(lines).encode("utf-32-le", "surrogatepass"), np.uint32).reshape(-1, width)
    empty = "".join(".x"[full] for full in (points != ord(" ")).any(0).tolist())
    starts = [0, *(match.end() for match in re.finditer(r"\.\.", empty))]
    ends = [*(match.start() for match in re.finditer(r"\.\.", empty)), width]
    return list(zip(starts, ends, strict=True))


def _matrix(labels: Sequence[str], predicted: Sequence[str], cells: Sequence[str]) -> Matrix | None:
    counts = _counts(cells) if _fit(labels, predicted) else None
    if counts is None:
        return None
    return Matrix.of(labels, predicted, counts.reshape(len(labels), len(predicted)))


def _of_pairs(rows: Sequence[Sequence[str]]) -> Matrix | None:
    """Of lines `label, predicted, rows`. Each class is there as predicted for itself; what is not is none of them."""
    classes = [label for label, predicted, _ in rows if label == predicted]
    labels = {name: index for index, name in enumerate(dict.fromkeys([*classes, *(row[0] for row in rows)]))}
    names = {name: index for index, name in enumerate(dict.fromkeys([*classes, *(row[1] for row in rows)]))}
    pairs = {(labels[label], names[predicted]) for label, predicted, _ in rows}
    numbers = _counts([row[2] for row in rows])
    if numbers is None or not _fit([*labels], [*names]) or len(pairs) < len(rows):
        return None
    row, column = np.array([labels[entry[0]] for entry in rows]), np.array([names[entry[1]] for entry in rows])
    order = np.lexsort((column, row))
    order = order[numbers[order] > 0]
    return Matrix(tuple(labels), tuple(names), row[order], column[order], numbers[order])


def _fit(labels: Sequence[str], predicted: Sequence[str]) -> bool:
    """Whether these are the names of the rows and of the columns of a matrix."""
    both = min(len(labels), len(predicted))
    further = [*labels[both:], *predicted[both:]]
    return both > 0 and labels[:both] == predicted[:both] and further in ([], [NONE])


def _counts(cells: Sequence[str]) -> Counts | None:
    """uint64 `[cells]`; `None` where one of them is no number that a run counts."""
    digits = "".join(cells)
    if not all(cells) or not (digits.isascii() and digits.isdigit()):
        return None
    try:
        return np.array(list(map(int, cells)), np.uint64)
    except (OverflowError, ValueError):
        return None


def monitor_of(run: Run) -> str | None:
    """The key by which the best epoch is found: what its checkpoints go by, else the loss of validation, else that of
    training; `None` where there is none.
    """
    configured = run.config.get("with_file_checkpointer.monitor")
    losses = [key for key in run.history if key.endswith("/Loss")]
    usual = [key for key in losses if key.startswith("valid")] + losses
    return next((key for key in [configured, *usual] if isinstance(key, str) and run.best(key) is not None), None)


def matrices(run: Run) -> Iterator[tuple[str, str, Point, Matrix]]:
    """The confusion matrices of a run: of each key the newest one, and that of the best epoch where it is another one.

    Yields:
      The key, what it is (`the newest`, `the best by valid/Loss`), where it was measured, and the matrix. Each is made
      when it is asked for, as they may be large.
    """
    monitor = monitor_of(run)
    best = None if monitor is None else run.best(monitor)
    for key in run.history:
        points = run.points(key)
        chosen = {"the newest": points[-1]}
        at_best = [point for point in points if best is not None and point[:2] == best[:2]]
        if at_best and at_best[-1][:2] == points[-1][:2]:
            chosen = {f"the newest, and the best by {monitor}": points[-1]}
        elif at_best:
            chosen[f"the best by {monitor}"] = at_best[-1]
        for what, point in chosen.items():
            matrix = read_matrix(point.value) if isinstance(point.value, str) else None
            if matrix is not None:
                yield key, what, point, matrix
