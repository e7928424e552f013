"""Confusion matrices, parsed from the tables that runs write, and their pictures."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from learner.runs.history import Point
from learner.runs.run_reader import RunReader
from learner.util.png import matrix_picture

NONE = "none"
LARGEST = np.uint64(2**64 - 1)
PAIRS = ["label", "predicted", "rows"]
"""The title line of a table of many classes."""
Counts = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A sparse confusion matrix: the number of rows for each pair of a label and a predicted class that occurred.

    Attributes:
      labels: the names of the rows.
      predicted: the names of the columns. They equal the names of the rows, except that either side, or both, may end
        with `none` for rows outside all classes.
      row: the row of each pair that occurred, int64 `[pairs]`; ascending, as are the columns within a row.
      column: the column of each pair, int64 `[pairs]`.
      number: the count of each pair, uint64 `[pairs]`.
    """

    labels: tuple[str, ...]
    predicted: tuple[str, ...]
    row: Places
    column: Places
    number: Counts

    @classmethod
    def of(cls, labels: Sequence[str], predicted: Sequence[str], counts: Counts) -> "Matrix":
        """Return the matrix of dense counts, uint64 `[labels, predicted]`."""
        row, column = np.nonzero(counts)
        return cls(tuple(labels), tuple(predicted), row, column, counts[row, column])

    @property
    def counts(self) -> Counts:
        """The dense counts, uint64 `[labels, predicted]`. Use it for few classes only."""
        counts = np.zeros((len(self.labels), len(self.predicted)), np.uint64)
        counts[self.row, self.column] = self.number
        return counts

    @property
    def shares(self) -> Shares:
        """The dense counts as shares of each label's rows, float64 `[labels, predicted]`; 0 for labels without rows.
        Use it for few classes only.
        """
        shares = np.zeros((len(self.labels), len(self.predicted)))
        shares[self.row, self.column] = self._share
        return shares

    @property
    def classes(self) -> int:
        """The number of classes, without `none`."""
        both = len(self.labels) == len(self.predicted) and self.labels[-1] == NONE
        return min(len(self.labels), len(self.predicted)) - both

    @property
    def right(self) -> Shares:
        """The share of each label's rows that was predicted correctly, float64 `[labels]`; NaN for labels without rows
        and for `none`.
        """
        right = np.where(self._sums > 0, 0.0, np.nan)
        right[self.row[self._hit]] = self._share[self._hit]
        right[self.classes :] = np.nan
        return right

    @property
    def accuracy(self) -> float:
        """The share of all rows that was predicted correctly; 0 without rows."""
        return float(self.number[self._hit].sum(dtype=np.float64) / max(self._sums.sum(), 1.0))

    def mistaken(self, most: int) -> list[tuple[str, str, int, float]]:
        """Return the most frequent pairs of a label and a wrong prediction: names, count, and share of the label's
        rows.

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
        """Return a grey picture, uint8 `[height, width]`, in which a pixel is darker for a larger share of its label's
        rows; see `matrix_picture`.

        Args:
          power: the exponent of the shares, which makes small shares visible; the metric's own picture uses 1.
        """
        return matrix_picture(self.row, self.column, self._share**power, (len(self.labels), len(self.predicted)))

    @property
    def _hit(self) -> npt.NDArray[np.bool_]:
        """True for each pair that is a correct prediction."""
        hit: npt.NDArray[np.bool_] = (self.row == self.column) & (self.row < self.classes)
        return hit

    @property
    def _sums(self) -> Shares:
        """The number of rows of each label, float64 `[labels]`."""
        sums: Shares = np.bincount(self.row, self.number, len(self.labels)).astype(np.float64)
        return sums

    @property
    def _share(self) -> Shares:
        """The share of each pair in the rows of its label."""
        share: Shares = self.number.astype(np.float64) / self._sums[self.row]
        return share


def read_matrix(text: str) -> Matrix | None:
    """Return the matrix in a table that `learner.metrics.ConfusionMatrix` wrote, or None for any other text.

    >>> matrix = read_matrix("label    cat  big dog\\ncat        9        1\\nbig dog    0       10")
    >>> matrix.predicted, matrix.counts.tolist()
    (('cat', 'big dog'), [[9, 1], [0, 10]])
    """
    if not text.startswith("label  "):
        return None
    lines = text.split("\n")
    width = max(map(len, lines))
    if len({len(line) for line in lines[1:]}) != 1 or len(lines[1]) != width:
        return None  # a table ends with a right-aligned column of numbers
    columns = _columns([line.ljust(width) for line in lines], width)
    head, *rows = [[line[first:last].strip() for first, last in columns] for line in lines]
    names, labels = head[1:], [row[0] for row in rows]
    counts = _counts([cell for row in rows for cell in row[1:]]) if _fit(labels, names) else None
    if counts is not None:
        return Matrix.of(labels, names, counts.reshape(len(labels), len(names)))
    return _of_pairs(rows) if head == PAIRS else None


def _columns(lines: Sequence[str], width: int) -> list[tuple[int, int]]:
    """Return the columns of a table, which are separated by two characters that are blank in every line."""
    points = np.frombuffer("".join(lines).encode("utf-32-le", "surrogatepass"), np.uint32).reshape(-1, width)
    empty = "".join(".x"[full] for full in (points != ord(" ")).any(0).tolist())
    starts = [0, *(match.end() for match in re.finditer(r"\.\.", empty))]
    ends = [*(match.start() for match in re.finditer(r"\.\.", empty)), width]
    return list(zip(starts, ends, strict=True))


def _of_pairs(rows: Sequence[Sequence[str]]) -> Matrix | None:
    """Return the matrix of lines `label, predicted, rows`, or None. Classes are the names that occur as their own
    prediction.
    """
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
    """Return True if these can be the row and column names of a matrix."""
    both = min(len(labels), len(predicted))
    further = [*labels[both:], *predicted[both:]]
    return both > 0 and labels[:both] == predicted[:both] and further in ([], [NONE])


def _counts(cells: Sequence[str]) -> Counts | None:
    """Return the cells as uint64 `[cells]`, or None if one of them is not a count."""
    digits = "".join(cells)
    if not all(cells) or not (digits.isascii() and digits.isdigit()):
        return None
    try:
        return np.array(list(map(int, cells)), np.uint64)
    except (OverflowError, ValueError):
        return None


def monitor_of(run: RunReader) -> str | None:
    """Return the key that determines the best epoch: the monitor of the checkpoints, else the validation loss, else the
    training loss; None if there is none.
    """
    configured = run.config.get("with_file_checkpointer.monitor")
    losses = [key for key in run.history if key.endswith("/Loss")]
    usual = [key for key in losses if key.startswith("valid")] + losses
    return next((key for key in [configured, *usual] if isinstance(key, str) and run.best(key) is not None), None)


def matrices(run: RunReader) -> Iterator[tuple[str, str, Point, Matrix]]:
    """Yield the confusion matrices of a run: for each key the newest, and the best epoch's if it is another one.

    Yields:
      The key, a description (`the newest`, `the best by valid/Loss`), the point of measurement, and the matrix. Each
      matrix is created on demand because it may be large.
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
