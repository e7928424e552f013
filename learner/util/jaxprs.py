"""Traced programs."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from jax.interpreters import partial_eval

T = TypeVar("T")
LOOPS = ("scan", "while", "cond")
FORWARDING = ("convert_element_type", "copy", "optimization_barrier", "reduce_precision", "sharding_constraint")
"""Primitives whose outputs equal their inputs, except for the dtype."""


def inner_jaxprs(value: Any) -> list[Any]:
    """Return the programs in a parameter of an equation of a traced program."""
    if isinstance(value, tuple | list):
        return [jaxpr for item in value for jaxpr in inner_jaxprs(item)]
    if hasattr(value, "eqns"):
        return [value]
    return [value.jaxpr] if hasattr(value, "jaxpr") and hasattr(value.jaxpr, "eqns") else []


def programs_in(equation: Any) -> list[Any]:
    """Return the programs in the parameters of an equation: of a jitted function, a loop, a rule of derivatives."""
    return inner_jaxprs(list(equation.params.values()))


def propagate(jaxpr: Any, given: Sequence[T], rule: Callable[[Any, list[T]], Sequence[T]], default: T) -> list[T]:
    """Return a value for each output of a traced program, from one for each input (`given`).

    `rule(equation, values)` returns the values of an equation's outputs from those of its inputs. It is not called for
    equations that call a program once, such as jitted functions: the values pass through that program. Literals and
    constants have the value `default`.

    >>> import jax
    >>> program = jax.make_jaxpr(lambda x: (jax.jit(lambda y: y + 1)(x * 2), x))(1.0)
    >>> propagate(program.jaxpr, [0], lambda equation, depths: [max(depths) + 1], default=0)
    [2, 0]
    """
    values = dict(zip(jaxpr.invars, given, strict=True))

    def of(x: Any) -> T:
        return default if hasattr(x, "val") else values.get(x, default)  # literals have a value

    for equation in jaxpr.eqns:
        inputs = [of(x) for x in equation.invars]
        program = called_program(equation)
        outputs = rule(equation, inputs) if program is None else propagate(program, inputs, rule, default)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [of(x) for x in jaxpr.outvars]


def forwarded_inputs(jaxpr: Any) -> list[int | None]:
    """Return, for each output of a traced program, the index of the input that it forwards, also through jitted
    functions and `scan`; None for computed outputs.

    >>> import jax
    >>> program = jax.make_jaxpr(lambda x, y: (jax.jit(lambda a, b: (b, a * b))(x, y), x))(1.0, 2.0)
    >>> forwarded_inputs(program.jaxpr)
    [1, None, 0]
    """

    def rule(equation: Any, inputs: list[int | None]) -> list[int | None]:
        if equation.primitive.name in FORWARDING:
            return inputs
        sources = _forwarded_by_scan(equation) if equation.primitive.name == "scan" else [None] * len(equation.outvars)
        return [None if source is None else inputs[source] for source in sources]

    return propagate(jaxpr, range(len(jaxpr.invars)), rule, None)


def _forwarded_by_scan(equation: Any) -> list[int | None]:
    """Return the index of the input that each output of a `scan` forwards: a carry that all iterations return as it
    was, or an input whose slices they return.
    """
    body = equation.params["jaxpr"].jaxpr
    # By their shapes, as the parameters that count them differ between versions of JAX: an iteration gets a slice.
    carries = sum(x.aval.shape == y.aval.shape for x, y in zip(equation.outvars, body.outvars, strict=True))
    unsliced = sum(x.aval.shape == y.aval.shape for x, y in zip(equation.invars, body.invars, strict=True))
    sources = forwarded_inputs(body)
    forwards = [
        source is not None and (source == unsliced - carries + index if index < carries else source >= unsliced)
        for index, source in enumerate(sources)
    ]
    return [source if forwarded else None for source, forwarded in zip(sources, forwards, strict=True)]


def dependent_outputs(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    """Return, for each output of a traced program, True if it may depend on one of the marked inputs, other than
    through `stop_gradient`.

    >>> import jax
    >>> program = jax.make_jaxpr(lambda x, y: (x * y, y + 1, y * jax.lax.stop_gradient(x)))(1.0, 2.0)
    >>> dependent_outputs(program.jaxpr, [True, False])
    [True, False, False]
    """
    marked = {var for var, is_marked in zip(jaxpr.invars, inputs, strict=True) if is_marked}

    def of(var: Any) -> bool:
        return not hasattr(var, "val") and var in marked  # literals have a value

    for equation in jaxpr.eqns:
        given = [of(var) for var in equation.invars]
        if not any(given) or equation.primitive.name == "stop_gradient":
            continue
        # Custom derivatives differ from those of the function.
        program = None if equation.primitive.name.startswith("custom_") else called_program(equation)
        found = [True] * len(equation.outvars) if program is None else dependent_outputs(program, given)
        marked.update(var for var, is_found in zip(equation.outvars, found, strict=True) if is_found)
        # Values written into a reference are read from it later.
        marked.update(var for var in equation.invars if "Ref" in type(getattr(var, "aval", None)).__name__)
    return [of(var) for var in jaxpr.outvars]


def computed_from(jaxpr: Any, inputs: Sequence[bool]) -> list[bool]:
    """Return, for each output of a traced program, True if it may be computed from one of the marked inputs. Unlike in
    `dependent_outputs`, `stop_gradient` changes nothing.

    >>> import jax
    >>> program = jax.make_jaxpr(lambda x, y: (x * y, y + 1, y * jax.lax.stop_gradient(x)))(1.0, 2.0)
    >>> computed_from(program.jaxpr, [True, False])
    [True, False, True]
    """
    return propagate(jaxpr, inputs, lambda equation, given: [any(given)] * len(equation.outvars), False)


def needed_inputs(jaxpr: Any, outputs: Collection[int]) -> list[bool]:
    """Return, for each input of a traced program, True if one of these outputs needs it, also inside of loops.

    >>> import jax
    >>> loop = lambda x, w: jax.lax.scan(lambda x, w: (x * w, w + 1), x, w)
    >>> program = jax.make_jaxpr(loop)(1.0, jax.numpy.ones(3))
    >>> needed_inputs(program.jaxpr, [0]), needed_inputs(program.jaxpr, [1])
    ([True, True], [False, True])
    """
    needed: list[bool] = partial_eval.dce_jaxpr(jaxpr, [i in outputs for i in range(len(jaxpr.outvars))])[1]
    return list(needed)


def draws_from_constants(jaxpr: Any, varies: Sequence[bool]) -> bool:
    """Return True if an output of a traced program needs random numbers from a key that depends on none of the inputs
    that vary. `varies`: True for each of these inputs.

    >>> import jax
    >>> noisy = lambda x: x + jax.random.normal(jax.random.key(0))
    >>> [draws_from_constants(jax.make_jaxpr(f)(1.0).jaxpr, [True]) for f in (noisy, lambda x: (noisy(x), x)[1])]
    [True, False]
    """
    found = False

    def rule(equation: Any, varying: list[bool]) -> list[bool]:
        nonlocal found
        is_draw = equation.primitive.name == "random_bits" or any(map(_has_draws, programs_in(equation)))
        found |= is_draw and not any(varying)
        return [any(varying)] * len(equation.outvars)

    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
    propagate(needed, varies, rule, False)
    return found


def _has_draws(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name == "random_bits" or any(map(_has_draws, programs_in(equation)))
        for equation in jaxpr.eqns
    )


def called_program(equation: Any) -> Any:
    """Return the program that an equation calls once, with its own inputs and outputs (a jitted function, a rule of
    custom derivatives); None for any other equation.
    """
    inner = programs_in(equation)
    sizes = len(equation.invars), len(equation.outvars)
    if equation.primitive.name in LOOPS or len(inner) != 1 or (len(inner[0].invars), len(inner[0].outvars)) != sizes:
        return None
    return inner[0]
