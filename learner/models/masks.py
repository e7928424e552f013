"""Trees of booleans that select parameters, as for `optax.masked` and `eqx.partition`."""

from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError, near_path
from learner.util.optional import is_instance_of
from learner.util.trees import named_leaves


def as_predicate(trainable: Any) -> Any:
    """Return a tree of booleans as a predicate of paths and arrays, and everything else unchanged.

    The tree has the structure of the parameters, or of its upper part, where a boolean applies to everything below it.

    >>> is_trained = as_predicate({"body": False, "head": {"bias": False, "kernel": True}})
    >>> [is_trained(path, None) for path in ("body.kernel", "head.bias", "head.kernel")]
    [False, False, True]
    >>> is_trained("neck", None)
    Traceback (most recent call last):
    learner.errors.LearnerError: trainable is a tree of booleans, and has none for neck; ...
    """
    leaves = jax.tree.leaves(trainable)
    is_tree = bool(leaves) and not jax.tree_util.all_leaves([trainable])
    if not (is_tree and all(isinstance(leaf, bool | np.bool_) for leaf in leaves)):
        return trainable
    if is_instance_of(trainable, "flax.nnx", "State"):
        from flax import nnx

        trainable = nnx.as_pure(trainable)  # the paths of variables end in `.value`
    selected = named_leaves(trainable)

    def is_trained(path: str, leaf: Any) -> bool:
        parts = path.split(".")
        above = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        name = next((name for name in above if name in selected), None)
        if name is None:
            raise LearnerError(
                f"trainable is a tree of booleans, and has none for {path}; {near_path(path, list(selected))}",
                code="model-trainable-structure",
                path=path,
            )
        return bool(selected[name])

    return is_trained
