"""Arithmetic on trees of arrays for the programs of steps."""

from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError
from learner.models.base import same_structure, same_tree
from learner.util.trees import named_leaves

Array = Any
PyTree = Any
Batch = Any

# The largest array, in elements, that shares its reduction in a norm with others of its shape. XLA compiles three loops
# per reduction: for a twelve-layer transformer, a third more loops in its step, and 0.7 of 5.2 CPU seconds. Larger
# arrays would take longer to copy than to reduce.
SMALL = 4096


def weight_of(output: Any, rows: int) -> Any:
    """Return an output's `weight`, or the number of rows of its batch if all of them count."""
    weight = getattr(output, "weight", None)
    if weight is None and getattr(output, "mask", None) is not None:
        raise LearnerError(
            "the output has a mask and no weight, by which the losses of batches are averaged: return "
            "weight=mask.sum() if the loss is the mean over the rows that the mask keeps (weighted_mean(losses, mask) "
            "computes both), and the number of rows if it is the mean over all",
            code="output-mask-without-weight",
        )
    return float(rows) if weight is None else weight


def rows_of(batch: Batch) -> int:
    """Return the length of a batch's leading axis."""
    return int(jax.tree.leaves(batch)[0].shape[0])


def split_rows(batch: Batch, parts: int) -> tuple[Batch, Batch | None]:
    """Return the rows of a batch as arrays `[rows of a part, parts, ...]`, and the remaining rows, or None.

    A part has every `parts`-th row, so that the parts of a sharded batch are sharded as well. If the rows do not divide
    evenly, the last part has fewer.

    >>> split_rows(jnp.arange(7), 3)
    (Array([[0, 1],
           [2, 3],
           [4, 5]], dtype=int32), Array([6], dtype=int32))
    """
    rows = rows_of(batch)
    size = -(-rows // parts)
    full = rows // size
    full_batches = jax.tree.map(lambda x: x[: full * size].reshape(size, full, *x.shape[1:]), batch)
    return full_batches, jax.tree.map(lambda x: x[full * size :], batch) if rows % size else None


def global_norm(grads: PyTree) -> Array:
    """Return the square root of the sum of squares of all gradients or parameters, float32."""
    groups: dict[Any, list[Array]] = {}
    for number, g in enumerate(jax.tree.leaves(grads)):
        # Not of real numbers: XLA would compile a loop per array.
        x = (jnp.abs(g) if jnp.iscomplexobj(g) else g).astype(jnp.float32)
        groups.setdefault(x.shape if x.size <= SMALL else number, []).append(x)
    squares = [jnp.sum(jnp.square(jnp.stack(group))) for group in groups.values()]
    return jnp.sqrt(jnp.stack(squares).sum())


def like(new: PyTree, old: PyTree, what: str) -> PyTree:
    """Return `new` with exactly the types of `old` (a weak type becomes strong). Raise an error that names the array if
    its shape or dtype differs.
    """
    if not same_tree(new, old):
        same_structure(new, old, f"a step changed the structure of {what}")
    for name, a, b in zip(named_leaves(old), jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
        a = jnp.asarray(a)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise LearnerError(
                f"a step changed {what}: {name} was {b.dtype}{list(b.shape)} and became {a.dtype}{list(a.shape)}; "
                "its shape and dtype must stay the same",
                code="step-state-changed",
                name=name,
            )
    return jax.tree.map(strong, new)


def copied(tree: Any) -> Any:
    """Return copies of all arrays, strongly typed."""
    return jax.tree.map(lambda x: jnp.array(x, jnp.asarray(x).dtype, copy=True), tree)


def strong(x: Array) -> Array:
    """Return an array with a strong type, as a weak type would need another program at the next dispatch."""
    x = jnp.asarray(x)
    return jax.lax.convert_element_type(x, x.dtype) if x.aval.weak_type else x


def scale_by_weight(value: Array, weight: Array) -> Array:
    """Return `weight * value` in the dtype of sums, or 0 for weight 0, even if the value is NaN."""
    value = value.astype(sum_dtype(value.dtype))
    return jnp.where(weight > 0, value * weight.astype(value.dtype), jnp.zeros((), value.dtype))


def difference(new: PyTree, old: PyTree) -> PyTree:
    """Return `new - old` in the dtype of sums."""
    return jax.tree.map(lambda a, b: a.astype(sum_dtype(a.dtype)) - b.astype(sum_dtype(b.dtype)), new, old)


def sum_dtype(dtype: Any) -> Any:
    """Return the dtype in which to sum values of a dtype: float32 for half precision."""
    return dtype if jnp.dtype(dtype).itemsize >= 4 else jnp.float32


def loss_dtype(params: PyTree) -> Any:
    """Return the dtype of the loss for an optimizer: float64 if a parameter has 64-bit numbers, else float32."""
    is_double = any(p.dtype in (jnp.float64, jnp.complex128) for p in jax.tree.leaves(params))
    return jnp.float64 if is_double else jnp.float32


def same_leaves(a: PyTree, b: PyTree) -> bool:
    """Return True if the leaves are identical objects, so that nothing was computed between them."""
    return all(x is y for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def keep_if(condition: Array, new: PyTree, old: PyTree) -> PyTree:
    """Return `new` where the condition holds, otherwise `old`."""
    return jax.tree.map(lambda a, b: a if a is b else jnp.where(condition, a, b), new, old)
