"""Reductions over a named axis of devices, each with its own rows."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = Any
PyTree = Any


@dataclasses.dataclass(frozen=True)
class Axis:
    """A mapped axis of devices.

    Attributes:
      name: the name of the axis in `jax.shard_map`.
      sync_batch_norm: True if batch statistics are over the rows of all devices.
    """

    name: str
    sync_batch_norm: bool = True

    def fold(self, key: Array) -> Array:
        """Return a separate random key for each device."""
        return jax.random.fold_in(key, jax.lax.axis_index(self.name))

    def sum(self, tree: PyTree) -> PyTree:
        """Return the sum over the devices, on each of them."""
        summed: PyTree = jax.lax.psum(tree, self.name)
        return summed

    def once(self, new: PyTree, old: PyTree) -> PyTree:
        """Return `new` on the first device and `old` on the others, for results that all devices computed from the same
        rows.
        """
        first = jax.lax.axis_index(self.name) == 0
        return jax.tree.map(lambda a, b: jnp.where(first, a, b), new, old)

    def rows(self, tree: PyTree) -> PyTree:
        """Return arrays `[rows, ...]` of the whole batch, in its order, from those of each device."""
        gathered: PyTree = jax.lax.all_gather(tree, self.name, tiled=True)
        return gathered

    def merged(self, merge: Callable[[PyTree, PyTree], PyTree], state: PyTree) -> PyTree:
        """Return the merged state of all devices, on each of them. Neighbours are merged in pairs, then pairs in pairs.

        >>> add = lambda a, b: a + b
        >>> jax.vmap(lambda x: Axis("i").merged(add, x), axis_name="i")(jnp.arange(5)).tolist()
        [10, 10, 10, 10, 10]
        """
        states, count = jax.lax.all_gather(state, self.name), jax.lax.axis_size(self.name)
        while count > 1:
            even = count // 2 * 2
            pairs = jax.vmap(merge)(_part(states, 0, even, 2), _part(states, 1, even, 2))
            states = jax.tree.map(lambda a, b, e=even: jnp.concatenate([a, b[e:]]), pairs, states)
            count = count - even // 2
        return jax.tree.map(lambda x: x[0], states)

    def averaged(self, new: PyTree, old: PyTree, weight: Array, total: Array) -> PyTree:
        """Return the mean of a step's changes over the devices, by weight. As only the change is averaged, unchanged
        values stay bit-identical.

        Args:
          new: the values after the step, on each device.
          old: the values before the step, the same on all devices.
          weight: the weight of the device's rows.
          total: the weight of all rows.
        """

        def mean(a: Array, b: Array) -> Array:
            if a is b or not jnp.issubdtype(a.dtype, jnp.inexact):
                return a
            share = (weight / jnp.where(total > 0, total, 1)).astype(a.dtype)
            same = (a == b) | (jnp.isnan(a) & jnp.isnan(b))  # infinities have no difference
            change = jnp.where((weight > 0) & ~same, (a - b) * share, 0)
            return b + self.sum(change)

        return jax.tree.map(mean, new, old)


def _part(tree: PyTree, start: int, end: int, step: int) -> PyTree:
    return jax.tree.map(lambda x: x[start:end:step], tree)
