"""The parameters to evaluate, which may differ from the trained ones.

Averages (`learner.optimizers.Ema`) and schedule-free optimizers (`optax.contrib.schedule_free`) compute them from
values in their state. These are found by the names of the leaves, as a checkpoint has only names. So it is treated like
the state of a run.
"""

import re
import types
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import optax.contrib

from learner.errors import Problem
from learner.util.trees import named_leaves

Array = Any
PyTree = Any

_AVERAGE = re.compile(r"(?:^|\.)averaged_params(?:\.|$)")
_PARTS = ("weight_sum", "max_lr", "step_count")  # with `b1` and `z`, in the state of a schedule-free optimizer


def eval_params(params: PyTree, opt_state: PyTree) -> PyTree:
    """Return the parameters to evaluate, in the form of `params`: the trained ones, unless the optimizer keeps others.

    >>> import jax.numpy as jnp
    >>> optimizer = optax.contrib.schedule_free_sgd(0.5, b1=0.5)
    >>> eval_params({"w": jnp.float32(3)}, optimizer.init({"w": jnp.float32(1)}))
    {'w': Array(5., dtype=float32)}
    """
    named = named_leaves(params)
    others = eval_leaves(named, named_leaves(opt_state))
    if not others:
        return params
    return jax.tree.unflatten(jax.tree.structure(params), [others.get(path, x) for path, x in named.items()])


def eval_leaves(params: Mapping[str, Array], opt_state: Mapping[str, Array]) -> dict[str, Array]:
    """Return, by path, the parameters whose values for evaluation differ from the trained ones."""
    params_to_evaluate: dict[str, Array] = {}
    for prefix in _schedule_free(opt_state):
        z = {path: opt_state[name] for path in params if (name := f"{prefix}z.{path}".rstrip(".")) in opt_state}
        state: Any = types.SimpleNamespace(b1=opt_state[f"{prefix}b1"], z=z)
        params_to_evaluate |= optax.contrib.schedule_free_eval_params(state, {path: params[path] for path in z})
    for name, x in opt_state.items():
        if at := _AVERAGE.search(name):
            path = name[at.end() :]
            if path in params and x.shape == params[path].shape and _is_average(name, at, opt_state):
                params_to_evaluate[path] = x
    return {path: x.astype(params[path].dtype) for path, x in params_to_evaluate.items()}


def has_eval_params(opt_state: Iterable[str]) -> bool:
    """Return True if the names of an optimizer's state show that it keeps other parameters for evaluation."""
    return bool(_averages(opt_state) or _schedule_free(opt_state))


def problems_of(opt_state: Iterable[str]) -> list[str]:
    """Return the problems of an optimizer with these leaves in its state."""
    averages = _averages(opt_state)
    if _schedule_free(opt_state) and averages:
        problem = "the parameters of a schedule-free optimizer, which averages them itself: leave out Ema or Swa"
    elif len(set(averages)) < len(averages):
        problem = "the same parameters twice, and only one average would be evaluated: leave out one of Ema and Swa"
    else:
        return []
    return [Problem(f"the optimizer averages {problem}", code="optimizer-averages-twice")]


def _averages(opt_state: Iterable[str]) -> list[str]:
    """Return the path of the parameter of each average."""
    names = set(opt_state)
    matches = [(name, at) for name in names if (at := _AVERAGE.search(name)) is not None]
    return [name[at.end() :] for name, at in matches if _is_average(name, at, names)]


def _is_average(name: str, at: re.Match[str], opt_state: Collection[str]) -> bool:
    """Return True if the leaf is next to a count of steps. Otherwise a model has a parameter of that name."""
    return f"{name[: at.start()]}.count".lstrip(".") in opt_state


def _schedule_free(opt_state: Iterable[str]) -> list[str]:
    names = set(opt_state)
    prefixes = [name.removesuffix("b1") for name in opt_state if name.rpartition(".")[2] == "b1"]
    return [prefix for prefix in prefixes if all(f"{prefix}{part}" in names for part in _PARTS)]
