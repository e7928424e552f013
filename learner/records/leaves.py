"""Models of any library as arrays by path."""

import dataclasses
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError
from learner.models.linen import Linen
from learner.models.tree_structure import TreeStructure
from learner.util.optional import is_instance_of
from learner.util.trees import named_leaves

PyTree = Any
ARRAYS = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct


@dataclasses.dataclass(frozen=True)
class Leaves:
    """The arrays of a model by path, and the function that rebuilds the model.

    Attributes:
      arrays: every array of the model by its path: parameters, statistics, counters, random keys.
      build: makes a model of the same type from other arrays; omitted paths keep the model's arrays.
      library: the model's library, for messages.
    """

    arrays: Mapping[str, Any]
    build: Callable[[Mapping[str, Any]], Any]
    library: str


def leaves_of(model: Any) -> Leaves:
    """Return the arrays of a model, which is not changed.

    Args:
      model: an `nnx.Module` or `nnx.State`, a `Linen`, or any pytree with arrays (an Equinox module, a dict). Shapes in
        the place of arrays, as `nnx.eval_shape` gives them, are arrays that are to come.

    Raises:
      LearnerError: the argument is not a model, or two of its arrays have the same path.

    >>> parts = leaves_of({"w": jax.numpy.ones(2), "scale": 3})
    >>> parts.build({"w": jax.numpy.zeros(2)})
    {'scale': 3, 'w': Array([0., 0.], dtype=float32)}
    """
    tree, finish, library = _pure(model)
    paths = list(named_leaves(tree))
    leaves = jax.tree.leaves(tree)
    structure = TreeStructure(tree)
    if len(paths) != len(leaves):
        names = structure.names
        twice = sorted({name for name in names if names.count(name) > 1})
        raise LearnerError(
            f"two leaves of the model are named {', '.join(twice)}; give them other names", code="model-leaf-name-twice"
        )
    named = zip(paths, leaves, strict=True)
    arrays = {path: leaf for path, leaf in named if isinstance(leaf, ARRAYS) and path not in structure.tied}
    if not arrays:
        raise LearnerError(
            f"{_describe(model)} has no arrays: there is nothing to save or to load", code="record-model-empty"
        )

    def build(new: Mapping[str, Any]) -> Any:
        return finish(structure.unflatten([new.get(path, old) for path, old in zip(paths, leaves, strict=True)]))

    return Leaves(arrays, build, library)


def _pure(model: Any) -> tuple[PyTree, Callable[[PyTree], Any], str]:
    """Return the model as a tree of arrays, the function that rebuilds a model from such a tree, and the library."""
    if is_instance_of(model, "flax.nnx", "Module"):
        from flax import nnx

        graph, state = nnx.split(model)
        return nnx.as_pure(state), lambda tree: nnx.merge(graph, tree), "flax.nnx"
    if is_instance_of(model, "flax.nnx", "State"):
        from flax import nnx

        structure: Any = jax.tree.structure(model)  # of variables, whose paths would end in `.value`
        return nnx.as_pure(model), lambda tree: structure.unflatten(jax.tree.leaves(tree)), "flax.nnx"
    if isinstance(model, Linen):
        return model.variables, lambda tree: Linen(model.module, tree, model.rngs), "flax.linen"
    if is_instance_of(model, "flax.linen", "Module"):
        raise LearnerError(
            f"the model is a linen module without variables ({type(model).__name__}); pass Linen(module, variables)",
            code="model-linen-without-variables",
        )
    if isinstance(model, types.FunctionType | types.MethodType | partial | type):
        raise LearnerError(
            f"{_describe(model)} makes a model and is not one; call it, and pass the result",
            code="record-model-is-function",
        )
    return model, lambda tree: tree, "pytree"


def _describe(model: Any) -> str:
    name = getattr(model, "__name__", None)
    return f"the model ({type(model).__name__})" if name is None else f"the model ({name})"
