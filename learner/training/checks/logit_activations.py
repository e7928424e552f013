"""Detection of logits that are already probabilities: losses and metrics would apply softmax or sigmoid again."""

from typing import Any

from learner.util.jaxprs import FORWARDING, called_program

WITH_NUMBERS = ("max", "min", "add")  # a lower bound, an upper bound, and a term that keeps a logarithm finite
KINDS = ("softmax", "sigmoid")
RESHAPING = (*FORWARDING, "reshape", "squeeze", "broadcast_in_dim", "transpose", "slice", "concatenate")


def activations(jaxpr: Any) -> list[str | None]:
    """Return, for each output of a traced program, `softmax` or `sigmoid` if it is the result of one, even reshaped,
    clipped, or cast; otherwise None.

    >>> import jax
    >>> function = lambda x: (x, jax.nn.softmax(x), jax.nn.sigmoid(x)[None], jax.nn.log_softmax(x))
    >>> activations(jax.make_jaxpr(function)(jax.numpy.ones(3)).jaxpr)
    [None, 'softmax', 'sigmoid', None]
    """
    return [kind if kind in KINDS else None for kind in _found(jaxpr, [None] * len(jaxpr.invars))]


def _found(jaxpr: Any, given: list[str | None]) -> list[str | None]:
    """Return the kinds of the outputs, including the parts of a softmax: exponentials, their sums, logarithms."""
    kinds = dict(zip(jaxpr.invars, given, strict=True))

    def of(x: Any) -> str | None:
        return None if hasattr(x, "val") else kinds.get(x)  # literals have a value

    for equation in jaxpr.eqns:
        name, inputs = equation.primitive.name, [of(x) for x in equation.invars]
        program = called_program(equation)
        if program is not None:
            kinds.update(zip(equation.outvars, _found(program, inputs), strict=True))
        elif name in RESHAPING and len({*inputs}) == 1:
            kinds[equation.outvars[0]] = inputs[0]
        elif name == "reduce_sum" and inputs[0] == "exp" and _is_over_last_axis(equation):
            kinds[equation.outvars[0]] = "sum"
        elif name in WITH_NUMBERS and any(inputs) and all(map(_is_number_or_known, equation.invars, inputs)):
            kinds[equation.outvars[0]] = next(filter(None, inputs))
        elif (name, *inputs) == ("div", "exp", "sum"):
            kinds[equation.outvars[0]] = "softmax"
        elif (name, *inputs) == ("log", "sum"):
            kinds[equation.outvars[0]] = "log sum"
        elif name == "sub" and inputs[1] == "log sum":
            kinds[equation.outvars[0]] = "log softmax"
        elif name == "exp":
            kinds[equation.outvars[0]] = "softmax" if inputs[0] == "log softmax" else "exp"
        elif name == "logistic":
            kinds[equation.outvars[0]] = "sigmoid"
    return [of(x) for x in jaxpr.outvars]


def _is_over_last_axis(equation: Any) -> bool:
    return bool(equation.params["axes"] == (len(equation.invars[0].aval.shape) - 1,))


def _is_number_or_known(x: Any, kind: str | None) -> bool:
    return kind is not None or x.aval.shape == ()
