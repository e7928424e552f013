"""Extra arguments of an optimizer: the loss, the loss as a function, the number of the step.

Optax passes such arguments through `chain` and `partition` to the transformations inside, which refuse those that they
do not know. Here each transformation gets only the arguments that it takes.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from learner.errors import LearnerError

Array = Any
PyTree = Any


def extra_arguments(
    grads: PyTree,
    loss: Array | None = None,
    value_fn: Callable[[PyTree], Array] | None = None,
    step: Array | None = None,
) -> dict[str, Any]:
    """Return the extra arguments of optax's optimizers by name: `value`, `grad`, `value_fn` (also as `obj_fn`), its
    gradient `grad_fn`, and `step`, for the optimizers of `learner.optimizers`.

    Args:
      grads: the gradients of this step.
      loss: the loss of this step, if known.
      value_fn: the loss as a function of the parameters, if it can be evaluated again.
      step: the number of the optimizer step, from 0.

    >>> extra = extra_arguments(0.5, step=3, value_fn=lambda w: w * w)
    >>> sorted(extra), float(extra["grad_fn"](3.0, 0))
    (['grad', 'grad_fn', 'obj_fn', 'step', 'value_fn'], 6.0)
    """
    have = {"grad": grads} | ({} if loss is None else {"value": loss}) | ({} if step is None else {"step": step})
    if value_fn is None:
        return have
    again = jax.grad(value_fn)
    return have | {
        "value_fn": ignore_extra_kwargs(value_fn),
        "obj_fn": value_fn,
        "grad_fn": lambda params, number: steepest_ascent(again(params)),  # an update of `optax.contrib.sam`
    }


def steepest_ascent(grads: PyTree) -> PyTree:
    """Return the gradients as directions of steepest ascent: gradients of complex parameters, which `jax.grad` returns
    conjugated (∂f/∂x - i ∂f/∂y), are conjugated again. Real gradients are unchanged.

    >>> print(steepest_ascent({"w": jax.grad(lambda w: jnp.abs(w) ** 2)(1.0 + 2.0j)})["w"])
    (2+4j)
    """
    return jax.tree.map(lambda g: jnp.conj(g) if jnp.iscomplexobj(g) else g, grads)


def ignore_extra_kwargs(value_fn: Callable[[PyTree], Array]) -> Callable[..., Array]:
    """Return a function that ignores further arguments. Optax's line searches refuse arguments that `value_fn` does not
    take.
    """

    def value(params: PyTree, obj_fn: Any = None, grad_fn: Any = None, step: Any = None) -> Array:
        return value_fn(params)

    return value


def filter_kwargs(transformation: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the update of a transformation accepts.

    >>> sam = optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1))
    >>> filter_kwargs(optax.sgd(0.1), {"value": 1.0}), filter_kwargs(sam, {"value": 1.0})
    ({'value': 1.0}, {})
    """
    if type(transformation) is optax.GradientTransformation:
        return {}
    try:
        parameters = inspect.signature(transformation.update).parameters.values()
    except (TypeError, ValueError):
        return dict(extra)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(extra)
    names = {p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY}
    return {name: value for name, value in extra.items() if name in names}


def accepting(transformation: Any) -> optax.GradientTransformationExtraArgs:
    """Return a transformation that ignores unknown arguments, which `optax.chain` and `optax.partition` pass on.

    Raises:
      LearnerError: it is not a transformation.
    """
    if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
        raise LearnerError(
            f"an optimizer inside another returned {type(transformation).__name__} for a rate, not an optax "
            "transformation: it needs a function of the rate, such as optax.adamw",
            code="optimizer-inner-type",
        )

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        changed: tuple[PyTree, PyTree] = transformation.update(
            updates, state, params, **filter_kwargs(transformation, extra)
        )
        return changed

    return optax.GradientTransformationExtraArgs(transformation.init, update)
