"""The arrays of a model: for `model.json`, and for the overview before a run."""

import math
from collections.abc import Sequence
from typing import Any

import jax

from learner.events import ArrayInfo
from learner.models.base import PARAMS, ModelAdapter
from learner.models.freezing import frozen_leaves
from learner.models.linen import LinenAdapter
from learner.util.trees import named_leaves, path_name

PyTree = Any
OPTIMIZER = "optimizer"


def array_infos(adapter: ModelAdapter, params: PyTree, model_state: PyTree) -> tuple[ArrayInfo, ...]:
    """Return the arrays of a model, with the paths that `freeze` and error messages use: first the trained arrays, then
    the rest. Random streams are not part of a run's state, and are left out.

    Args:
      adapter: the adapter of the model.
      params: the `params` of a run's state, or shapes.
      model_state: the `model_state` of a run's state, or shapes.

    >>> from learner.models.adapters import adapter_of
    >>> adapter = adapter_of({"w": jax.numpy.ones((2, 3)), "seen": jax.numpy.int32(0)})
    >>> for array in array_infos(adapter, adapter.params, adapter.model_state):
    ...     print(array.path, array.shape, array.dtype, array.kind, array.trainable, array.bytes)
    w (2, 3) float32 params True 24
    seen () int32 arrays False 4
    """
    frozen, of_optimizers = set(frozen_leaves(adapter, model_state)), optimizer_paths(params)
    kinds = {path: OPTIMIZER if path in of_optimizers else PARAMS for path in named_leaves(params)}
    infos = [_info(path, x, kinds[path], True) for path, x in named_leaves(params).items()]
    rest = zip(named_leaves(model_state).items(), jax.tree.leaves(adapter.kinds), strict=True)
    for (name, x), kind in rest:
        path = name.partition(".")[2] if isinstance(adapter, LinenAdapter) else name  # after the collection
        infos.append(_info(path, x, PARAMS if path in frozen else kind, False))
    return tuple(infos)


def optimizer_paths(params: PyTree) -> set[str]:
    """Return the paths of arrays in optimizer states, which the state of `update=` may contain besides parameters.

    >>> import optax
    >>> w = jax.numpy.ones(2)
    >>> sorted(optimizer_paths({"w": w, "opt": optax.sgd(0.1, momentum=0.9).init(w)}))
    ['opt.0.trace']
    """

    def is_state(node: Any) -> bool:
        return hasattr(node, "_fields") and type(node).__module__.startswith(("optax.", "learner.optimizers."))

    states = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_state)
    return {
        path_name((*path, *inner))
        for path, node in states
        if is_state(node)
        for inner, _ in jax.tree_util.tree_leaves_with_path(node)
    }


def _info(path: str, x: Any, kind: str, trainable: bool) -> ArrayInfo:
    size = math.prod(x.shape) * int(x.dtype.itemsize)
    return ArrayInfo(path, tuple(x.shape), str(x.dtype), kind, trainable, size)


def model_json(arrays: Sequence[ArrayInfo]) -> dict[str, Any]:
    """Return the content of `model.json`.

    Returns:
      `parameters`: the number of values in arrays of the kind `params`, trained or not. `bytes`: the size of all
      arrays. `arrays`: each with `path`, `shape`, `dtype`, `kind` and `trainable`.
    """
    rows = [
        {"path": x.path, "shape": list(x.shape), "dtype": x.dtype, "kind": x.kind, "trainable": x.trainable}
        for x in arrays
    ]
    parameters = sum(x.count for x in arrays if x.kind == PARAMS)
    return {"parameters": parameters, "bytes": sum(x.bytes for x in arrays), "arrays": rows}
