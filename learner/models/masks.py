"""Trees of booleans that select parameters, as for `optax.masked` and `eqx.partition`."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError, Problem, near_path
from learner.models.tree_structure import without_variables
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
    selected = _booleans(trainable)
    if selected is None:
        return trainable

    def is_trained(path: str, leaf: Any) -> bool:
        name = _name_for(path, selected)
        if name is None:
            raise LearnerError(
                f"trainable is a tree of booleans, and has none for {path}; {near_path(path, list(selected))}",
                code="model-trainable-structure",
                path=path,
            )
        return bool(selected[name])

    return is_trained


def mask_problems(trainable: Any, paths: Collection[str], tied: Mapping[str, str] | None = None) -> list[Problem]:
    """Return the problems of the names in a tree of booleans that are neither paths of the model nor above some, or
    that contradict the boolean of the same parameter. `tied`: the first path by each further path of a parameter.

    >>> list(mask_problems({"head": {"bias": False, "kernl": True}}, ["head.bias", "head.kernel"]))
    ["trainable has head.kernl, which is not in the model: did you mean 'head.kernel'?"]
    """
    selected, tied = _booleans(trainable) or {}, tied or {}
    parts = [path.split(".") for path in (*paths, *tied)]
    known = {".".join(names[:end]) for names in parts for end in range(1, len(names) + 1)}
    problems = [
        Problem(
            f"trainable has {name}, which is not in the model: {near_path(name, list(paths))}",
            code="model-trainable-unmatched",
            path=name,
        )
        for name in selected
        if name not in known
    ]
    for path, first in tied.items():
        values = [bool(selected[name]) for each in (path, first) if (name := _name_for(each, selected)) is not None]
        if len(set(values)) > 1:
            problems.append(
                Problem(
                    f"trainable has {values[0]} for {path}, which is {first} by another path, and {values[1]} for "
                    "that: give both the same",
                    code="model-trainable-second-path",
                    path=path,
                )
            )
    return problems


def _name_for(path: str, selected: Collection[str]) -> str | None:
    """Return the name of the boolean that applies to a path, or None."""
    parts = path.split(".")
    above = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in above if name in selected), None)


def _booleans(trainable: Any) -> dict[str, Any] | None:
    """Return the leaves of a tree of booleans by name, or None if it is anything else."""
    leaves = jax.tree.leaves(trainable)
    is_tree = bool(leaves) and not jax.tree_util.all_leaves([trainable])
    if not (is_tree and all(isinstance(leaf, bool | np.bool_) for leaf in leaves)):
        return None
    return named_leaves(without_variables(trainable))
