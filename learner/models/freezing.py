"""Parameters that are not trained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError, Problem
from learner.models.adapters import check_trainable
from learner.models.base import ModelAdapter
from learner.models.linen import LinenAdapter
from learner.models.masks import as_predicate
from learner.models.matching import Match, match_text, matcher, matching_paths
from learner.models.nnx_modules import by_path, is_filter
from learner.models.tree_structure import TreeStructure, is_module
from learner.util.text import join_names
from learner.util.trees import named_leaves


def trained_of(trainable: Any, frozen: Sequence[Match]) -> Any:
    """Return the part of `trainable` that is not frozen, as `learner.models.adapters.adapter_of` accepts it.

    >>> trained = trained_of(None, ["^backbone"])
    >>> trained("backbone.kernel", None), trained("head.kernel", None)
    (False, True)
    """
    trainable = as_predicate(trainable)
    check_trainable(trainable, takes_filters=True)
    matchers = [matcher(pattern) for pattern in frozen]

    def is_frozen(path: str, leaf: Any) -> bool:
        return any(matches(path, leaf) for matches in matchers)

    if not is_filter(trainable):
        is_trained: Callable[[str, Any], bool] = trainable or (lambda path, leaf: True)
        return lambda path, leaf: is_trained(path, leaf) and not is_frozen(path, leaf)
    from flax import nnx

    return nnx.All(trainable, nnx.Not(by_path(is_frozen)))


def check_freeze_patterns(frozen: Sequence[Match], adapter: ModelAdapter, model: Any) -> list[str]:
    """Return the problems of the frozen patterns: a pattern matches no parameter of the model, or matches a parameter
    by another path than the one under which it is trained.
    """
    leaves = {**named_leaves(adapter.params), **frozen_leaves(adapter, adapter.model_state)}
    tied = tied_paths(model, leaves)
    frozen_paths = {path for path, leaf in leaves.items() if any(matcher(pattern)(path, leaf) for pattern in frozen)}
    problems: list[str] = []
    for pattern in frozen:
        others = {path: leaves[first] for path, first in tied.items()}
        by_another = [
            path for path, leaf in others.items() if matcher(pattern)(path, leaf) and tied[path] not in frozen_paths
        ]
        if by_another:
            rows = ", ".join(f"{path} is {tied[path]}" for path in by_another)
            problems.append(
                Problem(
                    f"freeze: {match_text(pattern)} matches the second path of a parameter that the model holds "
                    f"twice: {rows}. Parameters are known by their first path: freeze that one, which freezes both, "
                    "or neither",
                    code="freeze-second-path",
                )
            )
            continue
        try:
            matching_paths(pattern, leaves | others, "freeze:")
        except LearnerError as error:
            problems.append(Problem(error, code=error.code, **error.fields))
    return problems


def tied_paths(model: Any, leaves: Mapping[str, Any]) -> dict[str, str]:
    """Return the additional paths of parameters that a model of nnx modules has in several places, with their path in
    `leaves`.

    >>> from flax import nnx
    >>> embed = nnx.Embed(3, 2, rngs=nnx.Rngs(0))
    >>> tied_paths(nnx.Dict(body=embed, head=embed), {"body.embedding": None})
    {'head.embedding': 'body.embedding'}
    """
    if not is_module(model):
        return {path: first for path, first in TreeStructure(model).tied.items() if first in leaves}
    from flax import nnx

    first_paths: dict[str, str] = {}
    for places in nnx.find_duplicates(model):
        names = [".".join(map(str, path)) for path in places]
        for first in leaves:
            start = next((name for name in names if f"{first}.".startswith(f"{name}.")), None)
            if start is not None:
                first_paths |= {name + first.removeprefix(start): first for name in names if name != start}
    return first_paths


def explain_empty_trainable(frozen: Sequence[Match], trainable: Any, adapter: ModelAdapter) -> str | None:
    """Return the message for a model whose parameters are all frozen, or None if freezing is not the reason."""
    paths = list(frozen_leaves(adapter, adapter.model_state))
    if not paths or not frozen:
        return None
    shown = join_names(paths, most=8)
    what = f"freeze ({', '.join(map(match_text, frozen))})"
    if trainable is not None:
        return f"nothing is left to train: {what} matches all that trainable= selects. The parameters are {shown}"
    return f"nothing is left to train: {what} matches all parameters of the model, {shown}: freeze fewer of them"


def frozen_leaves(adapter: ModelAdapter, model_state: Any) -> dict[str, Any]:
    """Return the parameters that are not trained, by path, without statistics and integers, such as counters.

    >>> from learner.models.adapters import adapter_of
    >>> model = {"w": jax.numpy.ones(2), "v": jax.numpy.ones(3), "n": jax.numpy.array(1)}
    >>> adapter = adapter_of(model, lambda path, x: path == "w")
    >>> list(frozen_leaves(adapter, adapter.model_state))
    ['v']
    """
    prefix = "frozen." if isinstance(adapter, LinenAdapter) else ""
    rest = zip(named_leaves(model_state).items(), jax.tree.leaves(adapter.frozen), strict=True)
    return {
        name.removeprefix(prefix): x
        for (name, x), is_frozen in rest
        if is_frozen and jnp.issubdtype(x.dtype, jnp.inexact)
    }
