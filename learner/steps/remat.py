"""Rematerialisation: the backward pass recomputes parts of the forward pass instead of keeping them in memory.

If the layers of a model are a loop (`jax.lax.scan`, `nnx.scan`, `nn.scan`), `jax.checkpoint` wraps the loop's body, so
that the backward pass recomputes one layer at a time. If less than half of the forward pass is in loops, as in a model
whose layers come one after the other, it also wraps the whole forward pass, and the gain depends on the compiler.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from learner.errors import LearnerError
from learner.util.jaxprs import programs_in

Policy = Callable[..., Any]

REMAT = (
    "nothing_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
)
"""The policies of `jax.checkpoint_policies` that take no arguments."""


def remat_of(given: Any) -> Policy:
    """Return the policy of `jax.checkpoint` for an argument: a policy, or its name in `jax.checkpoint_policies`.

    >>> remat_of("dots_saveable") is jax.checkpoint_policies.dots_saveable
    True
    """
    names = [name for name in dir(jax.checkpoint_policies) if not name.startswith("_")]
    policies = [getattr(jax.checkpoint_policies, name) for name in REMAT]
    if isinstance(given, str) and given in names:
        given = getattr(jax.checkpoint_policies, given)
    makers = {name for name in names if getattr(jax.checkpoint_policies, name) is given}
    if callable(given) and (given in policies or not makers):
        policy: Policy = given
        return policy
    if makers:
        name = min(makers)
        raise LearnerError(
            f"remat got {name}, which makes a policy of its arguments: pass jax.checkpoint_policies.{name}(...), as in "
            "save_only_these_names('hidden')",
            code="step-remat-policy-factory",
            name=name,
        )
    raise LearnerError(
        f"remat got {given!r}; it needs {' or '.join(map(repr, REMAT))}, or a policy for jax.checkpoint, such as "
        "jax.checkpoint_policies.save_only_these_names('hidden')",
        code="step-remat-unknown",
    )


def remat_name(policy: Any) -> str:
    """Return the name of a policy in logs."""
    named = [name for name in REMAT if getattr(jax.checkpoint_policies, name) is policy]
    return named[0] if named else getattr(policy, "__qualname__", type(policy).__name__)


def rematerialised(forward: Callable[[Any], Any], policy: Policy) -> Callable[[Any], Any]:
    """Return `forward`, a function of one pytree, with `jax.checkpoint` around the bodies of its loops. If they compute
    less than half of its floating-point values, in bytes, it is also around the whole function.

    >>> import jax.numpy as jnp
    >>> def deep(x):
    ...     return jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=3)[0]
    >>> wrapped = rematerialised(deep, jax.checkpoint_policies.nothing_saveable)
    >>> bool(jax.grad(wrapped)(1.0) == jax.grad(deep)(1.0))
    True
    """

    def wrapped(argument: Any) -> Any:
        traced, shapes = jax.make_jaxpr(forward, return_shape=True)(argument)
        program = jaxpr_as_fun(_with_remat(traced, policy))
        if 2 * bytes_in_loops(traced.jaxpr) < bytes_of(traced.jaxpr):
            program = jax.checkpoint(program, policy=policy)
        outs = program(*jax.tree.leaves(argument))
        return jax.tree.unflatten(jax.tree.structure(shapes), outs)

    return wrapped


def bytes_in_loops(jaxpr: Any) -> int:
    """Return the bytes of the floating-point values that the scans of a traced program compute, in nested functions
    too.
    """
    total = 0
    for equation in jaxpr.eqns:
        if _is_jit(equation):
            total += bytes_in_loops(equation.params["jaxpr"].jaxpr)
        elif equation.primitive.name == "scan":
            total += bytes_of(equation.params["jaxpr"].jaxpr) * equation.params["length"]
    return total


def bytes_of(jaxpr: Any) -> int:
    """Return the bytes of the floating-point values that a traced program computes, in its loops too.

    >>> import jax.numpy as jnp
    >>> bytes_of(jax.make_jaxpr(lambda x: jnp.sin(x) + jnp.cos(x))(jnp.ones(3, jnp.float32)).jaxpr)
    36
    """
    total = 0
    for equation in jaxpr.eqns:
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        inner = sum(map(bytes_of, programs_in(equation))) * times
        total += inner or sum(_nbytes(x.aval) for x in equation.outvars)
    return total


def _nbytes(aval: Any) -> int:
    is_float = hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.inexact)
    return math.prod(aval.shape) * aval.dtype.itemsize if is_float else 0


def _is_jit(equation: Any) -> bool:
    return equation.primitive.name in ("jit", "pjit")


def _with_remat(traced: ClosedJaxpr, policy: Policy) -> ClosedJaxpr:
    """Return the traced function with `jax.checkpoint` around the bodies of its scans."""
    equations = []
    for equation in traced.jaxpr.eqns:
        inner = equation.params.get("jaxpr")
        if _is_jit(equation) and bytes_in_loops(inner.jaxpr):
            inner = _with_remat(inner, policy)
        elif equation.primitive.name == "scan":
            # XLA cannot merge operations outside of a loop with recomputed ones inside: there is no CSE to prevent.
            body = jax.checkpoint(jaxpr_as_fun(inner), policy=policy, prevent_cse=False)
            inner = jax.make_jaxpr(body)(*inner.in_avals)
        if inner is not equation.params.get("jaxpr"):
            equation = equation.replace(params={**equation.params, "jaxpr": inner})
        equations.append(equation)
    changed: ClosedJaxpr = traced.replace(jaxpr=traced.jaxpr.replace(eqns=equations))
    return changed
