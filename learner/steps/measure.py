"""The metrics of one split, inside a program: states, values of a step, rows that are collected."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from learner.metrics.base import CollectingMetric, Info, Metric, MetricBase

Array = Any
PyTree = Any
Packed = dict[str, Any]
SCALARS = ("float32", "uint32", "int32")


@dataclasses.dataclass(frozen=True)
class Measure:
    """Pure functions over all traced metrics of a split; a state is a tuple with one entry per `Metric`.

    The states of an epoch go from program to program packed, scalars of a dtype as one array: a program pays for each
    array that goes in and out, some 3 µs on a CPU.

    Attributes:
      metrics: those with a state on the device.
      collecting: those that collect rows.
    """

    metrics: tuple[Metric, ...]
    collecting: tuple[CollectingMetric, ...] = ()

    @classmethod
    def of(cls, metrics: Sequence[MetricBase]) -> "Measure":
        """Takes the traced ones out of a split's metrics."""
        traced = tuple(m for m in metrics if isinstance(m, Metric))
        return cls(traced, tuple(m for m in metrics if isinstance(m, CollectingMetric)))

    @property
    def step_names(self) -> tuple[str, ...]:
        """The metrics that have a number per step, in the order of `step_values`."""
        return tuple(m.name for m in self.metrics if m.numeric)

    def init(self) -> PyTree:
        """The states of no rows."""
        return tuple(_strong(m.init()) for m in self.metrics)

    def fresh(self) -> Packed:
        """The packed states of no rows."""
        return self._pack(self.init())

    def add(self, epoch: Packed, state: PyTree) -> Packed:
        """The states of an epoch so far, with those of a step or a validation batch."""
        return self._pack(self.merge(self._unpack(epoch), state))

    def totals(self, epoch: Packed) -> dict[str, PyTree]:
        """Every metric's value by name over an epoch; see `values`."""
        return self.values(self._unpack(epoch))

    def _pack(self, state: PyTree) -> Packed:
        packed: dict[str, list[Array]] = {}
        for name, leaf in zip(self._places, jax.tree.leaves(state), strict=True):
            packed.setdefault(name, []).append(leaf)
        return {name: jnp.stack(leaves) if name in SCALARS else leaves[0] for name, leaves in packed.items()}

    def _unpack(self, packed: Packed) -> PyTree:
        leaves, taken = [], dict.fromkeys(SCALARS, 0)
        for name in self._places:
            leaves.append(packed[name][taken[name]] if name in SCALARS else packed[name])
            taken[name] = taken.get(name, 0) + 1
        return self._empty[1].unflatten(leaves)

    @functools.cached_property
    def _empty(self) -> tuple[list[Any], Any]:
        return jax.tree.flatten(jax.eval_shape(self.init))

    @functools.cached_property
    def _places(self) -> list[str]:
        """Where each leaf is packed: scalars with those of their dtype, any other by itself."""
        leaves = self._empty[0]
        return [x.dtype.name if x.shape == () and x.dtype.name in SCALARS else str(i) for i, x in enumerate(leaves)]

    def update(self, state: PyTree, output: Any, info: Info) -> PyTree:
        """Adds one (micro-)batch."""
        return self._update(state, output, info, per_step=False)

    def update_step(self, state: PyTree, info: Info) -> PyTree:
        """Adds what is known once per optimizer step."""
        return self._update(state, None, info, per_step=True)

    def _update(self, state: PyTree, output: Any, info: Info, per_step: bool) -> PyTree:
        rows = zip(self.metrics, state, strict=True)
        return tuple(_strong(m.update(s, output, info)) if m.per_step == per_step else s for m, s in rows)

    def merge(self, a: PyTree, b: PyTree) -> PyTree:
        """The states of both."""
        return tuple(_strong(m.merge(x, y)) for m, x, y in zip(self.metrics, a, b, strict=True))

    def step_values(self, state: PyTree) -> Array:
        """float32 `[len(step_names)]`."""
        rows = zip(self.metrics, state, strict=True)
        values = [jnp.asarray(m.compute(s), jnp.float32) for m, s in rows if m.numeric]
        return jnp.stack(values) if values else jnp.zeros((0,), jnp.float32)

    def values(self, state: PyTree) -> dict[str, PyTree]:
        """Every metric's value by name: float32 scalars, or arrays of those that are not numeric."""
        return {m.name: m.compute(s) for m, s in zip(self.metrics, state, strict=True)}

    def collect(self, output: Any) -> tuple[PyTree, ...]:
        """The rows to keep of one (micro-)batch, per collecting metric."""
        return tuple(m.collect(output) for m in self.collecting)


def _strong(tree: PyTree) -> PyTree:
    """Arrays of strong types: a weak one would be another program at the next dispatch."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.asarray(x).dtype), tree)
