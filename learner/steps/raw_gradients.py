"""Detection of gradients that an optimizer returns as its updates: added to the parameters, they raise the loss."""

from collections.abc import Sequence
from typing import Any

from learner.util.jaxprs import FORWARDING, propagate

BOUNDS = ("max", "min", "clamp")


def passed_inputs(jaxpr: Any) -> list[int | None]:
    """Return, for each output of a traced program, the index of the input that it equals, even if clipped by a number
    or a norm, or only in some steps; None for a computed output.

    >>> import jax, optax
    >>> clipped = lambda g: optax.clip_by_global_norm(1.0).update(g, optax.EmptyState())[0]
    >>> program = jax.make_jaxpr(lambda x, y: (jax.numpy.clip(y, -1, 1), clipped(x), -x))(1.0, 2.0)
    >>> passed_inputs(program.jaxpr)
    [1, 0, None]
    """
    return propagate(jaxpr, range(len(jaxpr.invars)), _passed, None)


def _passed(equation: Any, given: list[int | None]) -> list[int | None]:
    name = equation.primitive.name
    if name in FORWARDING:
        return given
    if name == "select_n":  # the first operand chooses
        return [_first(given[1:])]
    if name == "cond":  # the first operand chooses
        branches = [propagate(branch.jaxpr, given[1:], _passed, None) for branch in equation.params["branches"]]
        return [_first(outputs) for outputs in zip(*branches, strict=True)]
    others = [x for x, index in zip(equation.invars, given, strict=True) if index is None]
    is_bounded = name in BOUNDS and all(x.aval.shape == () for x in others)
    return [_first(given) if is_bounded else None] * len(equation.outvars)


def _first(indices: Sequence[int | None]) -> int | None:
    return next((index for index in indices if index is not None), None)
