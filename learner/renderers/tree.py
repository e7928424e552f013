"""The arrays of a model as a tree that fits on a screen: deep parts are folded into one row."""

import dataclasses
from collections.abc import Iterator, Sequence

from learner.events import ArrayInfo

ROWS = 40
"""The most rows of a tree without a chosen depth."""
MOST = 1000
"""The most rows of any tree."""


@dataclasses.dataclass(frozen=True)
class TreeRow:
    """A row of the tree: an array, or several folded into one.

    Attributes:
      level: the depth, from 0.
      name: the name relative to the parent row.
      shape: the shape of an array; None for several arrays.
      dtype: the dtype, if all arrays have the same.
      kind: empty if trained, `frozen`, or the kind of the arrays, if all have the same.
      parameters: the number of elements that are parameters.
      bytes: the size in bytes.
      arrays: the number of arrays in this row; 1 if nothing is folded.
    """

    level: int
    name: str
    shape: tuple[int, ...] | None
    dtype: str
    kind: str
    parameters: int
    bytes: int
    arrays: int = 1


class Node:
    """A node of the tree: an array, or a group of arrays."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.array: ArrayInfo | None = None
        self.children: dict[str, Node] = {}

    def all(self) -> Iterator[ArrayInfo]:
        """Yield the arrays below the node."""
        if self.array is not None:
            yield self.array
        for child in self.children.values():
            yield from child.all()


def folded(arrays: Sequence[ArrayInfo], depth: int | None = None) -> list[TreeRow]:
    """Return the rows of the tree, and a last row for all arrays.

    Args:
      arrays: the arrays of a model.
      depth: the number of levels shown; deeper ones are folded. None shows at most 40 rows.

    >>> blocks = [ArrayInfo(f"blocks.{i}.w", (2, 2), "float32", "params", True, 16) for i in range(50)]
    >>> for row in folded([*blocks, ArrayInfo("head", (2,), "float32", "params", False, 8)]):
    ...     print(row.arrays, row.parameters, row.kind or "trained", row.name)
    50 200 trained blocks
    1 2 frozen head
    1 202 trained total
    """
    root = _tree(arrays)
    depths = [depth] if depth is not None else range(_height(root), 0, -1)
    rows: list[TreeRow] = []
    for levels in depths:
        rows = list(_rows(root, 0, levels))
        if len(rows) <= ROWS:
            break
    most = MOST if depth is not None else ROWS
    if len(rows) > most:
        rows = [*rows[: most - 1], _rest(root, rows[: most - 1])]
    return [*rows, dataclasses.replace(_row(0, "total", list(arrays)), shape=None, arrays=1, dtype="", kind="")]


def _tree(arrays: Sequence[ArrayInfo]) -> Node:
    root = Node("")
    for array in arrays:
        node = root
        for part in (array.path or "array").split("."):
            node = node.children.setdefault(part, Node(part))
        node.array = array
    return root


def _height(node: Node) -> int:
    return 1 + max((_height(child) for child in node.children.values()), default=-1)


def _rows(node: Node, level: int, depth: int) -> Iterator[TreeRow]:
    for child in node.children.values():
        members = list(child.all())
        if len(members) == 1:
            below = members[0].path.split(".")[level:] if members[0].path else [child.name]
            yield _row(level, ".".join(below) if child.children else child.name, members)
        elif level + 1 >= depth:
            yield _row(level, child.name, members)
        else:
            yield dataclasses.replace(_row(level, child.name, members), arrays=1, dtype="", kind="")
            yield from _rows(child, level + 1, depth)


def _row(level: int, name: str, arrays: list[ArrayInfo]) -> TreeRow:
    dtypes, kinds = {x.dtype for x in arrays}, {_kind(x) for x in arrays}
    return TreeRow(
        level,
        name,
        arrays[0].shape if len(arrays) == 1 else None,
        dtypes.pop() if len(dtypes) == 1 else "",
        kinds.pop() if len(kinds) == 1 else "",
        sum(x.count for x in arrays if x.kind == "params"),
        sum(x.bytes for x in arrays),
        len(arrays),
    )


def _kind(array: ArrayInfo) -> str:
    if array.kind != "params":
        return array.kind
    return "" if array.trainable else "frozen"


def _rest(root: Node, shown: list[TreeRow]) -> TreeRow:
    """Return the row for everything without its own row, in a tree of one level or with too many rows."""
    tops = [row for row in shown if row.level == 0]
    left = list(root.children.values())[len(tops) :]
    arrays = [array for child in left for array in child.all()]
    return _row(0, "...", arrays)
