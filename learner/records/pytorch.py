"""Conversion of PyTorch's names and axes of arrays to flax's.

| PyTorch | flax | axes |
|---|---|---|
| `Linear.weight` | `kernel` | (out, in) → (in, out) |
| `Conv1d`, `Conv2d`, `Conv3d`: `weight` | `kernel` | (out, in, ...) → (..., in, out) |
| `BatchNorm`, `LayerNorm`, `GroupNorm`: `weight` | `scale` | |
| `running_mean`, `running_var` | `mean`, `var` | |
| `Embedding.weight` | `embedding` | |
| `bias` | `bias` | |

Arrays that have the same path in both, as those of Equinox, are taken as they are; its convolutions' biases get their
axes of length 1. `num_batches_tracked` has no counterpart and is left out.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learner.errors import LearnerError
from learner.records.stored import Stored
from learner.util.optional import is_instance_of

NAMES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "mean": "running_mean", "var": "running_var"}
COLLECTIONS = ("params.", "batch_stats.")  # of linen
COUNTER = "num_batches_tracked"
PICKLES = (".pt", ".pth")  # what torch.save is used to write


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


def as_flax(
    arrays: Mapping[str, Stored], origins: Mapping[str, str], needed: Mapping[str, Any]
) -> tuple[dict[str, Stored], dict[str, str]]:
    """Return the arrays by the paths of a model, with its axes, and their paths in the file.

    Args:
      arrays: of the file, by path.
      origins: their paths in the file, by those.
      needed: the model's arrays, by path.

    >>> weight = Stored("float32", np.zeros((10, 64), np.float32))
    >>> arrays, _ = as_flax({"head.weight": weight}, {}, {"head.kernel": np.zeros((64, 10))})
    >>> {path: stored.shape for path, stored in arrays.items()}
    {'head.kernel': (64, 10)}
    """
    converted, used = {}, set()
    for path, leaf in needed.items():
        source = _source(path, arrays)
        if source is not None:
            converted[path] = _turned(path, arrays[source], leaf)
            used.add(source)
    paths = {path: origins.get(source, source) for path in converted if (source := _source(path, arrays)) is not None}
    for path, stored in arrays.items():
        if path not in used and path.rpartition(".")[2] != COUNTER:
            converted[path] = stored
            paths[path] = origins.get(path, path)
    return converted, paths


def _source(path: str, arrays: Mapping[str, Stored]) -> str | None:
    """Return the array of the file that belongs to a path of the model."""
    if path in arrays:
        return path
    for collection in COLLECTIONS:
        path = path.removeprefix(collection)
    layer, dot, name = path.rpartition(".")
    candidate = layer + dot + NAMES.get(name, name)
    return candidate if candidate in arrays else None


def _turned(path: str, stored: Stored, leaf: Any) -> Stored:
    data = stored.data
    if path.rpartition(".")[2] == "kernel" and data.ndim >= 2:
        data = np.moveaxis(data, (1, 0), (-2, -1))
    if data.ndim == 1 and tuple(leaf.shape) == (data.size,) + (1,) * (len(leaf.shape) - 1):
        data = data.reshape(leaf.shape)
    return Stored(stored.dtype, data)


def refuse_unknown_layers(model: Any) -> None:
    """Raise `LearnerError` for layers whose arrays PyTorch stores differently, in shapes that may fit by chance."""
    if not is_instance_of(model, "flax.nnx", "Module"):
        return
    from flax import nnx

    kinds = (nnx.ConvTranspose, nnx.MultiHeadAttention, nnx.RNNCellBase)
    odd = {
        ".".join(map(str, path)): type(node).__name__ for path, node in nnx.iter_graph(model) if isinstance(node, kinds)
    }
    if odd:
        shown = ", ".join(f"{path} ({kind})" for path, kind in odd.items())
        raise LearnerError(
            f"layout='torch' does not know how PyTorch holds {shown}; load the file without layout= into a dict of "
            "arrays with its paths and shapes, and put them into the model",
            code="record-torch-layout-unknown",
        )
