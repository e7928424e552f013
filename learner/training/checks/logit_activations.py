"""Detection of logits that are already probabilities: losses and metrics would apply softmax or sigmoid again."""

from typing import Any

from learner.util.jaxprs import FORWARDING, propagate

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
    return [kind if kind in KINDS else None for kind in propagate(jaxpr, [None] * len(jaxpr.invars), _kinds, None)]


def _kinds(equation: Any, inputs: list[str | None]) -> list[str | None]:
    """Return the kinds of an equation's outputs, including the parts of a softmax: exponentials, their sums,
    logarithms.
    """
    name, kind = equation.primitive.name, None
    if name in RESHAPING and len({*inputs}) == 1:
        kind = inputs[0]
    elif name == "reduce_sum" and inputs[0] == "exp" and _is_over_last_axis(equation):
        kind = "sum"
    elif name in WITH_NUMBERS and any(inputs) and all(map(_is_number_or_known, equation.invars, inputs)):
        kind = next(filter(None, inputs))
    elif (name, *inputs) == ("div", "exp", "sum"):
        kind = "softmax"
    elif (name, *inputs) == ("log", "sum"):
        kind = "log sum"
    elif name == "sub" and inputs[1] == "log sum":
        kind = "log softmax"
    elif name == "exp":
        kind = "softmax" if inputs[0] == "log softmax" else "exp"
    elif name == "logistic":
        kind = "sigmoid"
    return [kind] * len(equation.outvars)


def _is_over_last_axis(equation: Any) -> bool:
    return bool(equation.params["axes"] == (len(equation.invars[0].aval.shape) - 1,))


def _is_number_or_known(x: Any, kind: str | None) -> bool:
    return kind is not None or x.aval.shape == ()
