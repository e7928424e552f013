"""Conversion of PyTorch's names and axes of arrays to flax's.

| PyTorch | flax | axes |
|---|---|---|
| `Linear.weight` | `kernel` | (out, in) → (in, out) |
| `Conv1d`, `Conv2d`, `Conv3d`: `weight` | `kernel` | (out, in, ...) → (..., in, out) |
| `BatchNorm`, `LayerNorm`, `GroupNorm`: `weight` | `scale` | |
| `running_mean`, `running_var` | `mean`, `var` | |
| `Embedding.weight` | `embedding` | |
| `bias` | `bias` | |
| `ConvTranspose1d`, `2d`, `3d`: `weight` | `kernel` | (in, out, ...) → (..., in, out), flipped in space |
| `MultiheadAttention`: `in_proj_weight` | `query`, `key`, `value` | (3 heads·size, in) → 3 (in, heads, size) |
| `out_proj` | `out` | (out, heads·size) → (heads, size, out) |
| `LSTM`, `LSTMCell`: `weight_ih`, `weight_hh` | `LSTMCell`, `OptimizedLSTMCell` | (4 hidden, in) → 4 (in, hidden) |
| `GRU`, `GRUCell` | `GRUCell` | (3 hidden, in) → (in, 3 hidden) |
| `RNN`, `RNNCell` | `SimpleCell` | (hidden, in) → (in, hidden) |
| `bias_ih` + `bias_hh` of these | one bias | |

Equinox has PyTorch's names and axes, except for attention (`query_proj`, ...), the biases of recurrent cells and
transposed convolutions, which are split, added and flipped likewise; its convolutions' biases get axes of length 1.
A recurrent layer `rnn` (`rnn.weight_ih_l0`) belongs to the cell `rnn`, to an `nnx.RNN` (`rnn.cell`) or to an
`nnx.Bidirectional`. The projections of attention may also be `q_proj`, `k_proj`, `v_proj` and `out_proj` or `o_proj`,
as in Hugging Face's models. `num_batches_tracked` has no counterpart and is left out.
"""

import dataclasses
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError
from learner.records.stored import Stored
from learner.records.torch_layers import ATTENTION, Part, split_layers
from learner.util.optional import is_instance_of
from learner.util.trees import path_name

NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "mean": "running_mean", "var": "running_var"}
COLLECTIONS = ("params.", "batch_stats.")  # of linen
COUNTER = "num_batches_tracked"
PICKLES = (".pt", ".pth")  # usual extensions of torch.save


def how_to_convert(path: str | os.PathLike[str]) -> str:
    """Return the message for a file of `torch.save`, which is a pickle and is not read.

    >>> print(how_to_convert("model.pt"))
    model.pt is a pickle of PyTorch, and reading a pickle runs code. Convert it once, where PyTorch is installed: \
safetensors.torch.save_file(torch.load('model.pt', weights_only=True), 'model.safetensors'); then \
load_model('model.safetensors', model, layout="torch")
    """
    old, new = repr(os.fspath(path)), repr(str(Path(path).with_suffix(".safetensors")))
    return (
        f"{os.fspath(path)} is a pickle of PyTorch, and reading a pickle runs code. Convert it once, where PyTorch is "
        f"installed: safetensors.torch.save_file(torch.load({old}, weights_only=True), {new}); then "
        f'load_model({new}, model, layout="torch")'
    )


def as_flax(parts: Mapping[str, Part], needed: Mapping[str, Any], model: Any) -> dict[str, Part]:
    """Return the arrays of a file by the paths of a model, with its axes. Those that it lacks have their own paths.

    Args:
      parts: the arrays of the file, by path.
      needed: the model's arrays, by path.
      model: the model, to find its layers.

    >>> weight = Part(Stored("float32", np.zeros((10, 64), np.float32)), "head.weight")
    >>> kernel = as_flax({"head.weight": weight}, {"head.kernel": np.zeros((64, 10))}, None)["head.kernel"]
    >>> kernel.stored.shape, kernel.origin, kernel.change
    ((64, 10), 'head.weight', 'axes 1, 0')
    """
    parts = split_layers(parts, {_without_collection(path): leaf for path, leaf in needed.items()})
    transposed = _transposed_convolutions(model)
    new: dict[str, Part] = {}
    used = set()
    for path, leaf in needed.items():
        source = _source(path, parts)
        if source is not None:
            stored = parts[source].stored
            data, change = _turned(path, stored.data, leaf, transposed.get(path))
            new[path] = dataclasses.replace(parts[source], stored=Stored(stored.dtype, data), change=change)
            used.add(source)
    rest = [path for path in parts if path not in used and path.rpartition(".")[2] != COUNTER]
    return new | {path: parts[path] for path in rest}


def _without_collection(path: str) -> str:
    for collection in COLLECTIONS:
        path = path.removeprefix(collection)
    return path


def _source(path: str, arrays: Collection[str]) -> str | None:
    """Return the array of the file that belongs to a path of the model."""
    if path in arrays:
        return path
    layer, dot, name = _without_collection(path).rpartition(".")
    candidate = layer + dot + NAMES.get(name, name)
    return candidate if candidate in arrays else None


def _turned(path: str, data: np.ndarray, leaf: Any, convolution: "Transposed | None") -> tuple[np.ndarray, str]:
    """Return an array with the axes of the model, and a description of the change."""
    shape, changes = tuple(leaf.shape), []
    layer, _, name = path.rpartition(".")
    if convolution is not None and data.ndim == len(shape):
        return convolution.turned(data)
    if name == "kernel" and data.ndim >= 2:
        data = np.moveaxis(data, (1, 0), (-2, -1))
        changes.append("axes " + ", ".join(map(str, (*range(2, data.ndim), 1, 0))))
    in_heads = layer.rpartition(".")[2] in ATTENTION["query.kernel"] and len(shape) == data.ndim + 1
    with_ones = data.ndim == 1 and shape == (data.size,) + (1,) * (len(shape) - 1)
    if data.shape != shape and data.size == math.prod(shape) and (in_heads or with_ones):
        data = data.reshape(shape)
        changes.append(f"shape {list(shape)}")
    return data, ", ".join(changes)


@dataclasses.dataclass(frozen=True)
class Transposed:
    """The kernel of a transposed convolution, which PyTorch stores as (in, out / groups, ...).

    Attributes:
      first: True if the channels are the first axes, as in Equinox, rather than the last.
      flipped: True if the model's kernel is that of the computed convolution; PyTorch's is that of its transpose.
      groups: the number of groups of channels.
    """

    first: bool
    flipped: bool
    groups: int = 1

    def turned(self, data: np.ndarray) -> tuple[np.ndarray, str]:
        """Return the kernel with the axes of the model, and a description of the change."""
        space = tuple(range(2, data.ndim))
        if self.groups > 1 and data.shape[0] % self.groups == 0:
            grouped = data.reshape(self.groups, -1, *data.shape[1:]).swapaxes(1, 2)
            data = grouped.reshape(-1, *grouped.shape[2:]).swapaxes(0, 1)
        if self.flipped:
            data = np.flip(data, space)
        axes = (1, 0, *space) if self.first else (*space, 0, 1) if self.flipped else (*space, 1, 0)
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        text = f"axes {', '.join(map(str, axes))}{groups}" + ", flipped in space" * self.flipped
        return data.transpose(axes), text


def _transposed_convolutions(model: Any) -> dict[str, Transposed]:
    """Return the kernels of transposed convolutions by path. Linen's cannot be recognized."""
    if is_instance_of(model, "flax.nnx", "Module"):
        from flax import nnx

        return {
            ".".join(map(str, (*path, "kernel"))): Transposed(first=False, flipped=not node.transpose_kernel)
            for path, node in nnx.iter_graph(model)
            if isinstance(node, nnx.ConvTranspose)
        }

    def is_layer(node: Any) -> bool:
        return is_instance_of(node, "equinox.nn", "ConvTranspose")

    nodes = jax.tree_util.tree_leaves_with_path(model, is_leaf=is_layer)
    return {
        path_name((*path, jax.tree_util.GetAttrKey("weight"))): Transposed(first=True, flipped=True, groups=node.groups)
        for path, node in nodes
        if is_layer(node)
    }


def refuse_unknown_layers(model: Any) -> None:
    """Raise `LearnerError` for recurrent cells that PyTorch lacks, whose arrays may fit by chance."""
    if not is_instance_of(model, "flax.nnx", "Module"):
        return
    from flax import nnx

    known = (nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.GRUCell, nnx.SimpleCell)
    odd = {
        ".".join(map(str, path)): type(node).__name__
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.RNNCellBase) and not isinstance(node, known)
    }
    if odd:
        shown = ", ".join(f"{path} ({kind})" for path, kind in odd.items())
        raise LearnerError(
            f"layout='torch' does not know how PyTorch holds {shown}; load the file without layout= into a dict of "
            "arrays with its paths and shapes, and put them into the model",
            code="record-torch-layout-unknown",
        )
