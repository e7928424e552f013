"""PyTorch arrays that contain several arrays of a model: in attention and in recurrent layers.

PyTorch stores the projections of attention in one array, the gates of a recurrent layer in another, and two biases that
are added. They are split and added here so that each has the path of the model's layer. The order of gates is the same
in all libraries: i, f, g, o for an LSTM, and r, z, n for a GRU.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from learner.records.stored import Stored

PROJECTIONS = (("q_proj",), ("k_proj",), ("v_proj",), ("out_proj", "o_proj"))  # of PyTorch and Hugging Face
ATTENTION = {
    "query.kernel": ("query", "key", "value", "out"),
    "query_proj.weight": ("query_proj", "key_proj", "value_proj", "output_proj"),
}
"""The projections of flax's and Equinox's attention, by the array that shows which it is."""


@dataclasses.dataclass(frozen=True)
class Part:
    """An array of a file, or a part of one.

    Attributes:
      stored: its numbers.
      origin: its place in the file, for messages: `attn.in_proj_weight[0:8]`.
      problem: the reason why the array cannot be used, or "".
      change: the change of its axes, such as `axes 1, 0`, or "".
    """

    stored: Stored
    origin: str
    problem: str = ""
    change: str = ""

    def rows(self, start: int, stop: int) -> Self:
        """Return these rows of the first axis."""
        origin = f"({self.origin})" if " " in self.origin else self.origin
        data = self.stored.data[start:stop]
        return dataclasses.replace(self, stored=Stored(self.stored.dtype, data), origin=f"{origin}[{start}:{stop}]")

    def cut(self, count: int) -> list[Self]:
        """Return equal parts of the first axis."""
        size = self.stored.shape[0] // count
        return [self.rows(i * size, (i + 1) * size) for i in range(count)] if count > 1 else [self]

    def plus(self, other: "Part") -> "Part":
        """Return the sum, in at least float32. The other array may be shorter."""
        x, y = self.stored.data, other.stored.data
        total = np.array(x, np.promote_types(x.dtype, np.float32))
        total[: len(y)] += y.astype(total.dtype)
        return Part(Stored(total.dtype.name, total), f"{self.origin} + {other.origin}")


@dataclasses.dataclass(frozen=True)
class Cell:
    """The arrays of a recurrent cell: of its inputs, of its hidden state, and the biases outside and inside `r *`.

    The first array and the number of gates identify the cell.
    """

    shown_by: str
    gates: int
    inputs: tuple[str, ...]
    hidden: tuple[str, ...]
    biases: tuple[str, ...]
    inner_bias: str = ""


CELLS = (
    Cell(  # nnx.LSTMCell
        *("if_.kernel", 4, ("ii.weight", "if_.weight", "ig.weight", "io.weight")),
        *(("hi.weight", "hf.weight", "hg.weight", "ho.weight"), ("hi.bias", "hf.bias", "hg.bias", "ho.bias")),
    ),
    Cell(  # linen's LSTMCell and OptimizedLSTMCell
        *("if.kernel", 4, ("ii.weight", "if.weight", "ig.weight", "io.weight")),
        *(("hi.weight", "hf.weight", "hg.weight", "ho.weight"), ("hi.bias", "hf.bias", "hg.bias", "ho.bias")),
    ),
    Cell(  # linen's GRUCell
        *("ir.kernel", 3, ("ir.weight", "iz.weight", "in.weight"), ("hr.weight", "hz.weight", "hn.weight")),
        *(("ir.bias", "iz.bias", "in.bias"), "hn.bias"),
    ),
    Cell("dense_i.kernel", 4, ("dense_i.weight",), ("dense_h.weight",), ("dense_h.bias",)),  # nnx.OptimizedLSTMCell
    Cell("dense_i.kernel", 3, ("dense_i.weight",), ("dense_h.weight",), ("dense_i.bias",)),  # nnx.GRUCell
    Cell("dense_i.kernel", 1, ("dense_i.weight",), ("dense_h.weight",), ("dense_i.bias",)),  # nnx.SimpleCell
    Cell("weight_ih", 4, ("weight_ih",), ("weight_hh",), ("bias",)),  # Equinox
    Cell("weight_ih", 3, ("weight_ih",), ("weight_hh",), ("bias",), "bias_n"),
)
GRU = 3  # gates
BIASES = ("dense_i.bias", "dense_h.bias")  # of a cell that has both, like PyTorch's


def split_layers(parts: Mapping[str, Part], needed: Mapping[str, Any]) -> dict[str, Part]:
    """Return PyTorch's arrays by path, with the arrays of attention and recurrent layers split as in the model.

    Args:
      parts: the arrays of the file, by path.
      needed: the model's arrays, by path.

    >>> fused = Part(Stored("float32", np.zeros((12, 4), np.float32)), "attn.in_proj_weight")
    >>> cut = split_layers({"attn.in_proj_weight": fused}, {"attn.query.kernel": np.zeros((4, 2, 2))})
    >>> cut["attn.value.weight"].origin
    'attn.in_proj_weight[8:12]'
    """
    parts = dict(parts)
    for path in needed:
        for shown_by, projections in ATTENTION.items():
            if (layer := _layer(path, shown_by)) is not None:
                _split_attention(parts, layer, projections)
        for cell in CELLS:
            if (layer := _layer(path, cell.shown_by)) is not None and f"{layer}bias_ih" not in needed:
                _split_cell(parts, layer, cell, needed)
    return parts


def _layer(path: str, name: str) -> str | None:
    """Return the path of a layer up to its last dot if `path` is this array of it."""
    layer = path.removesuffix(name)
    return layer if layer != path and (not layer or layer.endswith(".")) else None


def _split_attention(parts: dict[str, Part], layer: str, projections: tuple[str, ...]) -> None:
    for kind in ("weight", "bias"):
        fused = parts.get(f"{layer}in_proj_{kind}")
        if fused is not None and fused.stored.data.ndim and fused.stored.shape[0] % 3 == 0:
            del parts[f"{layer}in_proj_{kind}"]
            parts.update({f"{layer}{name}.{kind}": part for name, part in zip(projections, fused.cut(3), strict=False)})
    for name, others in zip(projections, PROJECTIONS, strict=True):
        for other in others:
            for old, new in (("_weight", "weight"), (".weight", "weight"), (".bias", "bias")):
                if f"{layer}{other}{old}" in parts:
                    parts.setdefault(f"{layer}{name}.{new}", parts.pop(f"{layer}{other}{old}"))


def _split_cell(parts: dict[str, Part], layer: str, cell: Cell, needed: Mapping[str, Any]) -> None:
    names = next((names for names in _sources(layer) if parts.keys() >= {*names[:2]}), None)
    if names is None:
        return
    inputs, hidden = (parts[name] for name in names[:2])
    biases = [parts[name] for name in names[2:] if name in parts]
    shape = hidden.stored.shape
    if len(shape) != 2 or shape[0] != cell.gates * shape[1] or inputs.stored.shape[:1] != shape[:1]:
        return  # of another cell; the error lists the remaining arrays
    new = dict(zip(cell.inputs + cell.hidden, inputs.cut(len(cell.inputs)) + hidden.cut(len(cell.hidden)), strict=True))
    if not biases:
        new |= _no_biases(layer, cell, names[1], needed)
    elif len(biases) == 2 and all(bias.stored.shape == shape[:1] for bias in biases):
        both = {f"{layer}dense_i.bias", f"{layer}dense_h.bias"} <= needed.keys()
        new |= dict(zip(BIASES, biases, strict=True)) if both else _biases(cell, *biases)
    else:
        return
    for name in names:
        parts.pop(name, None)
    parts.update({f"{layer}{name}": part for name, part in new.items()})


def _sources(layer: str) -> list[tuple[str, ...]]:
    """Return the names that a cell's arrays may have in PyTorch, as a cell or as a layer with one cell."""
    places = [(layer, ""), (layer, "_l0")]
    if (outer := _layer(layer, "cell.")) is not None:  # nnx.RNN has its cell there
        places += [(outer, ""), (outer, "_l0")]
        for name, direction in (("forward_rnn.", "_l0"), ("backward_rnn.", "_l0_reverse")):
            if (both := _layer(outer, name)) is not None:
                places.append((both, direction))
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [tuple(f"{before}{kind}{behind}" for kind in kinds) for before, behind in places]


def _biases(cell: Cell, of_inputs: Part, of_hidden: Part) -> dict[str, Part]:
    """Return the sum of PyTorch's two biases, except for the part that a GRU multiplies with its reset gate."""
    rows = of_hidden.stored.shape[0]
    size = rows // cell.gates
    outside = of_inputs.plus(of_hidden.rows(0, rows - size) if cell.gates == GRU else of_hidden)
    new = dict(zip(cell.biases, outside.cut(len(cell.biases)), strict=True))
    if cell.gates != GRU:
        return new
    inside = of_hidden.rows(rows - size, rows)
    if cell.inner_bias:
        new[cell.inner_bias] = inside
    elif np.any(inside.stored.data):
        problem = f" (nnx.GRUCell has no such bias; cell.dense_h = nnx.Linear({size}, {rows}, rngs=rngs) gives it one)"
        new[inside.origin] = dataclasses.replace(inside, problem=problem)
    return new


def _no_biases(layer: str, cell: Cell, source: str, needed: Mapping[str, Any]) -> dict[str, Part]:
    """Return zeros for the biases of a cell that always has biases."""
    names = [name for name in dict.fromkeys((*BIASES, *cell.biases, cell.inner_bias)) if f"{layer}{name}" in needed]
    zeros = {name: np.zeros(needed[f"{layer}{name}"].shape, np.float32) for name in names}
    return {name: Part(Stored("float32", data), f"zeros ({source} has no bias)") for name, data in zeros.items()}
