"""Optimizers of a part of the parameters: their further arguments are restricted to that part, too."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from learner.steps.extra import accepting, ignore_extra_kwargs

PyTree = Any


def in_parts(
    transformations: Mapping[str, Any], labels: Callable[[PyTree], PyTree]
) -> optax.GradientTransformationExtraArgs:
    """Return `optax.partition` for optimizers that may evaluate the loss again: as a function of their part, with the
    other parameters as before the step.

    Args:
      transformations: the optimizers by label.
      labels: returns a tree of labels for a tree of parameters or gradients.

    >>> made = in_parts({"a": optax.polyak_sgd(), "b": optax.sgd(0.5)}, lambda params: {"w": "a", "v": "b"})
    >>> params = {"w": jax.numpy.float32(3), "v": jax.numpy.float32(1)}
    >>> updates, _ = made.update(params, made.init(params), params, value=jax.numpy.float32(4.5), grad=params)
    >>> float(updates["w"]), float(updates["v"])
    (-1.5, -0.5)
    """
    partition = optax.partition(
        {label: _on_part(transformation) for label, transformation in transformations.items()}, labels
    )

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        for name in ("value_fn", "obj_fn"):
            if name in extra:
                extra[name] = _of_part(extra[name], params)
        if "grad_fn" in extra:
            extra["grad_fn"] = _gradient_of_part(extra["grad_fn"], params)
        changed: tuple[PyTree, PyTree] = partition.update(updates, state, params, **extra)
        return changed

    return optax.GradientTransformationExtraArgs(partition.init, update)


def _on_part(transformation: Any) -> optax.GradientTransformationExtraArgs:
    """Return the transformation with `grad` cut to its part, like its updates. It has no state for an empty part: some
    optimizers cannot be initialized without parameters.
    """
    inner = accepting(transformation)

    def init(params: PyTree) -> PyTree:
        return inner.init(params) if jax.tree.leaves(params) else optax.EmptyState()

    def update(updates: PyTree, state: PyTree, params: PyTree = None, **extra: Any) -> tuple[PyTree, PyTree]:
        if not jax.tree.leaves(updates):
            return updates, state
        if "grad" in extra:
            extra["grad"] = _cut(extra["grad"], updates)
        changed: tuple[PyTree, PyTree] = inner.update(updates, state, params, **extra)
        return changed

    return optax.GradientTransformationExtraArgs(init, update)


def _of_part(value_fn: Callable[[PyTree], Any], params: PyTree) -> Callable[..., Any]:
    return ignore_extra_kwargs(lambda part: value_fn(_filled(part, params)))


def _gradient_of_part(grad_fn: Callable[[PyTree, Any], PyTree], params: PyTree) -> Callable[[PyTree, Any], PyTree]:
    return lambda part, number: _cut(grad_fn(_filled(part, params), number), part)


def _filled(part: PyTree, tree: PyTree) -> PyTree:
    """Return the part, with missing leaves taken from the tree."""
    return jax.tree.map(lambda p, w: w if _is_left_out(p) else p, part, tree, is_leaf=_is_left_out)


def _cut(tree: PyTree, part: PyTree) -> PyTree:
    """Return only those leaves of a tree that the part has."""
    return jax.tree.map(lambda p, w: p if _is_left_out(p) else w, part, tree, is_leaf=_is_left_out)


def _is_left_out(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)
