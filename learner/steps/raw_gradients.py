"""Detection of gradients that an optimizer returns as its updates: added to the parameters, they raise the loss."""

from collections.abc import Sequence
from typing import Any

from learner.util.jaxprs import FORWARDING, called_program

BOUNDS = ("max", "min", "clamp")


def passed_inputs(jaxpr: Any, inputs: Sequence[int | None] | None = None) -> list[int | None]:
    """Return, for each output of a traced program, the index of the input that it equals, even if clipped by a number
    or a norm, or only in some steps; None for a computed output.

    >>> import jax, optax
    >>> clipped = lambda g: optax.clip_by_global_norm(1.0).update(g, optax.EmptyState())[0]
    >>> program = jax.make_jaxpr(lambda x, y: (jax.numpy.clip(y, -1, 1), clipped(x), -x))(1.0, 2.0)
    >>> passed_inputs(program.jaxpr)
    [1, 0, None]
    """
    indices = dict(zip(jaxpr.invars, range(len(jaxpr.invars)) if inputs is None else inputs, strict=True))

    def of(x: Any) -> int | None:
        return None if hasattr(x, "val") else indices.get(x)  # literals have a value

    for equation in jaxpr.eqns:
        name, given = equation.primitive.name, [of(x) for x in equation.invars]
        if (program := called_program(equation)) is not None:
            indices.update(zip(equation.outvars, passed_inputs(program, given), strict=True))
        elif name in FORWARDING:
            indices.update(zip(equation.outvars, given, strict=True))
        elif name == "select_n":  # the first operand chooses
            indices[equation.outvars[0]] = _first(given[1:])
        elif name in BOUNDS:
            others = [x for x, index in zip(equation.invars, given, strict=True) if index is None]
            indices[equation.outvars[0]] = _first(given) if all(x.aval.shape == () for x in others) else None
    return [of(x) for x in jaxpr.outvars]


def _first(indices: Sequence[int | None]) -> int | None:
    return next((index for index in indices if index is not None), None)
