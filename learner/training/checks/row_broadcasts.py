"""Detection of losses that broadcast predictions against targets: `[rows, 1]` with `[rows]` is `[rows, rows]`."""

from typing import Any

from learner.util.jaxprs import propagate

Marks = tuple[bool, bool, str | None]  # depends on parameters; on the batch; its first broadcast


def broadcast_rows(jaxpr: Any, params: list[bool], batch: list[bool], rows: int) -> list[str | None]:
    """Return, for each output of a traced program, the first operation that it depends on and that combines a column of
    the model with a row of the batch, such as `sub of float32[8, 1] and float32[1, 8]`; otherwise None.

    Arrays that both depend on parameters are left out, as rankings compare scores in pairs on purpose; so are matrix
    products.

    Args:
      jaxpr: the program.
      params: for each input, True for a parameter.
      batch: for each input, True for an array of the batch.
      rows: the number of rows of the batch.

    >>> import jax, jax.numpy as jnp
    >>> error = lambda w, x, y: ((x @ w - y[None]) ** 2).mean()
    >>> program = jax.make_jaxpr(error)(jnp.ones((3, 1)), jnp.ones((8, 3)), jnp.ones(8))
    >>> broadcast_rows(program.jaxpr, [True, False, False], [False, True, True], rows=8)
    ['sub of float32[8, 1] and float32[1, 8]']
    """

    def rule(equation: Any, inputs: list[Marks]) -> list[Marks]:
        earlier = [text for *_, text in inputs if text is not None]
        operation = earlier[0] if earlier else _crossed(equation, inputs, rows)
        merged = any(params for params, *_ in inputs), any(batch for _, batch, _ in inputs), operation
        return [merged] * len(equation.outvars)

    given: list[Marks] = [(of_params, of_batch, None) for of_params, of_batch in zip(params, batch, strict=True)]
    return [operation for *_, operation in propagate(jaxpr, given, rule, (False, False, None))]


def _crossed(equation: Any, inputs: list[Marks], rows: int) -> str | None:
    """Return the text of an operation on a column and a row if exactly one of them depends on parameters."""
    shapes = sorted(getattr(x.aval, "shape", ()) for x in equation.invars)
    is_pair = rows > 1 and shapes == [(1, rows), (rows, 1)] and equation.primitive.name != "dot_general"
    if not is_pair or sorted(params for params, *_ in inputs) != [False, True]:
        return None
    if not all(batch for _, batch, _ in inputs):
        return None
    names = [f"{x.aval.dtype}{list(x.aval.shape)}" for x in equation.invars]
    return f"{equation.primitive.name} of {' and '.join(names)}"
