"""Detection of random numbers from a constant key: each step draws the same numbers."""

from collections.abc import Sequence
from typing import Any

from jax.interpreters import partial_eval

from learner.util.jaxprs import called_program


def draws_of_constant_keys(jaxpr: Any, output: int, rows: int) -> bool:
    """Return True if an output of a traced program needs random numbers for each of the `rows` of a batch, from a key
    that depends on no input. Loops are not examined.

    >>> import jax
    >>> x, key = jax.numpy.ones((4, 3)), jax.random.key(0)
    >>> noisy = lambda x, key: x + jax.random.normal(key, x.shape)
    >>> constant = lambda x, key: noisy(x, jax.random.key(0))
    >>> [draws_of_constant_keys(jax.make_jaxpr(f)(x, key).jaxpr, 0, rows=4) for f in (noisy, constant)]
    [False, True]
    """
    needed, _ = partial_eval.dce_jaxpr(jaxpr, [index == output for index in range(len(jaxpr.outvars))], True)
    return _draws(needed, [True] * len(needed.invars), rows)[0]


def _draws(jaxpr: Any, given: Sequence[bool], rows: int) -> tuple[bool, list[bool]]:
    """Return True if the program has such draws, and for each output, True if it depends on an input that varies
    (`given`).
    """
    varies = dict(zip(jaxpr.invars, given, strict=True))

    def of(x: Any) -> bool:
        return not hasattr(x, "val") and varies.get(x, False)  # literals; constants

    found = False
    for equation in jaxpr.eqns:
        inputs = [of(x) for x in equation.invars]
        outputs = [any(inputs)] * len(equation.outvars)
        if (program := called_program(equation)) is not None:
            inside, outputs = _draws(program, inputs, rows)
            found |= inside
        elif equation.primitive.name == "random_bits":
            found |= not any(inputs) and equation.outvars[0].aval.shape[:1] == (rows,)
        varies.update(zip(equation.outvars, outputs, strict=True))
    return found, [of(x) for x in jaxpr.outvars]
