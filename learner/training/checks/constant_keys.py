"""Detection of random numbers from a constant key: each step draws the same numbers."""

from typing import Any

from jax.interpreters import partial_eval

from learner.util.jaxprs import propagate


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
    found = False

    def rule(equation: Any, varies: list[bool]) -> list[bool]:
        nonlocal found
        if equation.primitive.name == "random_bits":
            found |= not any(varies) and equation.outvars[0].aval.shape[:1] == (rows,)
        return [any(varies)] * len(equation.outvars)

    propagate(needed, [True] * len(needed.invars), rule, False)
    return found
