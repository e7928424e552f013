"""The metrics of one split inside of a program: states, values of a step, collected rows."""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.metrics.base import CollectingMetric, Info, Metric, MetricBase
from learner.steps.axis import Axis

Array = Any
PyTree = Any
Packed = dict[str, Any]
SCALARS = ("float32", "uint32", "int32")


@dataclasses.dataclass(frozen=True)
class MetricCollection:
    """Pure functions over all traced metrics of a split. A state is a tuple with one entry for each `Metric`, or for
    several that share a state; see `Metric.state_key`.

    The states of an epoch pass between programs in packed form, with all scalars of a dtype in one array: each argument
    and result of a program takes time, about 3 µs on a CPU.

    Attributes:
      metrics: the metrics with a state on the device.
      collecting: the metrics that collect rows.
      separate: True if no metrics share a state, as in checkpoints of earlier versions.
    """

    metrics: tuple[Metric, ...]
    collecting: tuple[CollectingMetric, ...] = ()
    separate: bool = False

    @classmethod
    def of(cls, metrics: Sequence[MetricBase]) -> "MetricCollection":
        """Return the collection of the traced metrics of a split."""
        traced = tuple(m for m in metrics if isinstance(m, Metric))
        return cls(traced, tuple(m for m in metrics if isinstance(m, CollectingMetric)))

    @functools.cached_property
    def state_of(self) -> tuple[int, ...]:
        """The index of the state of each metric."""
        indices: dict[Hashable, int] = {}
        return tuple(
            indices.setdefault(number if self.separate else _state_key(metric, number), len(indices))
            for number, metric in enumerate(self.metrics)
        )

    @functools.cached_property
    def stateful(self) -> tuple[Metric, ...]:
        """The first metric of each state."""
        return tuple(self.metrics[self.state_of.index(index)] for index in range(max(self.state_of, default=-1) + 1))

    @functools.cached_property
    def _computes(self) -> tuple[Any, ...]:
        """The functions from states to values. All programs of the collection share one trace of each."""
        return tuple(jax.jit(metric.compute) for metric in self.metrics)

    def share(self, separate: Packed) -> Packed:
        """Return the packed states of this collection, given those of a `separate` one."""
        states = dataclasses.replace(self, separate=True)._unpack(separate)
        return self._pack(tuple(states[self.state_of.index(index)] for index in range(len(self.stateful))))

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the metrics with a number per step, in the order of `step_values`."""
        return tuple(m.name for m in self.metrics if m.numeric)

    @property
    def requires(self) -> tuple[str, ...]:
        """The fields of `Info` that metrics require, each once."""
        return tuple(sorted({name for metric in self.metrics for name in metric.requires}))

    def init(self) -> PyTree:
        """Return the initial states, of no rows."""
        return tuple(_strong(m.init()) for m in self.stateful)

    def fresh(self) -> Packed:
        """Return the packed initial states, of no rows."""
        return self._pack(self.init())

    def add(self, epoch: Packed, state: PyTree) -> Packed:
        """Return the states of an epoch so far, merged with those of a step or a validation batch.

        Metrics that merge scalars in the same way are merged together: separately, each would add about ten small
        operations to every step, whose overhead on a CPU exceeds the computation.
        """
        before = self._unpack(epoch)
        scalars: dict[str, list[tuple[np.ndarray, Array]]] = {}  # by dtype: positions, and the new values
        packed: Packed = {}
        for group in self._mergeable_groups:
            metric, slots = self.stateful[group[0]], list(zip(*(self._slots[i] for i in group), strict=True))
            if len(group) == 1:
                merged = jax.tree.leaves(_strong(metric.merge(before[group[0]], state[group[0]])))
            else:
                tree: Any = jax.tree.structure(state[group[0]])
                old = [_at(epoch[slot[0][0]], np.array([index for _, index in slot])) for slot in slots]
                new = [jnp.stack(leaves) for leaves in zip(*(jax.tree.leaves(state[i]) for i in group), strict=True)]
                merged = jax.tree.leaves(_strong(jax.vmap(metric.merge)(tree.unflatten(old), tree.unflatten(new))))
            for slot, leaf in zip(slots, merged, strict=True):
                if slot[0][0] in SCALARS:
                    places = np.array([index for _, index in slot])
                    scalars.setdefault(slot[0][0], []).append((places, leaf.reshape(len(group))))
                else:
                    packed[slot[0][0]] = leaf
        for name, columns in scalars.items():
            places = np.concatenate([numbers for numbers, _ in columns])
            packed[name] = _at(jnp.concatenate([column for _, column in columns]), np.argsort(places))
        return packed

    @functools.cached_property
    def _slots(self) -> list[list[tuple[str, int]]]:
        """The packed array of each leaf of each metric's state, by name, and the leaf's index in it."""
        used: dict[str, int] = {}
        names, slots = iter(self._places), []
        for state in jax.eval_shape(self.init):
            own = []
            for name in [next(names) for _ in jax.tree.leaves(state)]:
                own.append((name, used.get(name, 0)))
                used[name] = used.get(name, 0) + 1
            slots.append(own)
        return slots

    def totals(self, epoch: Packed) -> dict[str, PyTree]:
        """Return every metric's value over an epoch by name; see `values`."""
        return self.values(self._unpack(epoch))

    def _pack(self, state: PyTree) -> Packed:
        packed: dict[str, list[Array]] = {}
        for name, leaf in zip(self._places, jax.tree.leaves(state), strict=True):
            packed.setdefault(name, []).append(leaf)
        return {name: jnp.stack(leaves) if name in SCALARS else leaves[0] for name, leaves in packed.items()}

    def _unpack(self, packed: Packed) -> PyTree:
        leaves, used = [], dict.fromkeys(SCALARS, 0)
        for name in self._places:
            leaves.append(packed[name][used[name]] if name in SCALARS else packed[name])
            used[name] = used.get(name, 0) + 1
        return self._empty[1].unflatten(leaves)

    @functools.cached_property
    def _empty(self) -> tuple[list[Any], Any]:
        return jax.tree.flatten(jax.eval_shape(self.init))

    @functools.cached_property
    def _places(self) -> list[str]:
        """The name of the packed array of each leaf: scalars share that of their dtype, any other has its own."""
        leaves = self._empty[0]
        return [x.dtype.name if x.shape == () and x.dtype.name in SCALARS else str(i) for i, x in enumerate(leaves)]

    def update(self, state: PyTree, output: Any, info: Info) -> PyTree:
        """Return the states after one more (micro-)batch."""
        return self._update(state, output, info, per_step=False)

    def update_step(self, state: PyTree, info: Info) -> PyTree:
        """Return the states after one more optimizer step, for metrics with `per_step`."""
        return self._update(state, None, info, per_step=True)

    def _update(self, state: PyTree, output: Any, info: Info, per_step: bool) -> PyTree:
        rows = zip(self.stateful, state, strict=True)
        return tuple(_strong(m.update(s, output, info)) if m.per_step == per_step else s for m, s in rows)

    def merge(self, a: PyTree, b: PyTree) -> PyTree:
        """Return the merged states."""
        return tuple(_strong(m.merge(x, y)) for m, x, y in zip(self.stateful, a, b, strict=True))

    @functools.cached_property
    def _mergeable_groups(self) -> tuple[tuple[int, ...], ...]:
        """The indices of the states, in groups that merge scalars in the same way; see `add`."""
        groups: dict[Any, list[int]] = {}
        for number, metric in enumerate(self.stateful):
            groups.setdefault(_merge_signature(metric) or number, []).append(number)
        return tuple(tuple(group) for group in groups.values())

    def all_reduce(self, axis: Axis, state: PyTree) -> PyTree:
        """Return the merged states of all devices."""
        packed = axis.merged(lambda a, b: self.add(a, self._unpack(b)), self._pack(state))
        return self._unpack(packed)

    def step_values(self, state: PyTree) -> Array:
        """Return the values of one step, float32 `[len(step_names)]`."""
        rows = zip(self.metrics, self._computes, self.state_of, strict=True)
        values = [jnp.asarray(_value(m, compute, state[index]), jnp.float32) for m, compute, index in rows if m.numeric]
        return jnp.stack(values) if values else jnp.zeros((0,), jnp.float32)

    def values(self, state: PyTree) -> dict[str, PyTree]:
        """Return every metric's value by name: float32 scalars, or arrays for metrics that are not numeric."""
        rows = zip(self.metrics, self._computes, self.state_of, strict=True)
        return {m.name: _value(m, compute, state[index]) for m, compute, index in rows}

    def collect(self, output: Any) -> tuple[PyTree, ...]:
        """Return the rows of one (micro-)batch to keep, per collecting metric."""
        return tuple(m.collect(output) for m in self.collecting)


def _value(metric: Metric, compute: Callable[[Any], Any], state: Any) -> Any:
    """Return the value of a metric. An error of `jax.debug_nans` gets a note that names it."""
    try:
        return compute(state)
    except FloatingPointError as error:
        error.add_note(f"while computing the metric {metric.name}, which is NaN if {metric.undefined}")
        raise


def _state_key(metric: Metric, number: int) -> Hashable:
    """Return a value that is equal for metrics that share a state."""
    kind, key = type(metric), metric.state_key
    names = "state_key", "init", "update", "merge"
    owners = [next(owner for owner in kind.__mro__ if name in vars(owner)) for name in names]
    # A method of a subclass may read attributes that an inherited key does not know.
    if key is None or not all(issubclass(owners[0], owner) for owner in owners):
        return number
    return kind.init, kind.update, kind.merge, metric.per_step, key


def _merge_signature(metric: Metric) -> str | None:
    """Return the text of the program that merges a metric's scalar states, or None if a text cannot determine it."""
    state = jax.eval_shape(lambda: _strong(metric.init()))
    leaves = jax.tree.leaves(state)
    if not leaves or any(leaf.shape or leaf.dtype.name not in SCALARS for leaf in leaves):
        return None
    program = jax.make_jaxpr(metric.merge)(state, state)
    return f"{jax.tree.structure(state)} {program}" if _is_plain(program) else None


def _is_plain(program: Any) -> bool:
    """Return True if the text of a program determines its results: it holds no arrays and calls no Python code."""
    calls = [equation for equation in program.jaxpr.eqns if equation.primitive.name in ("jit", "pjit")]
    others = [equation for equation in program.jaxpr.eqns if equation.primitive.name not in ("jit", "pjit")]
    plain = str, int, float, bool, tuple, np.dtype, type(None)
    return (
        not program.consts
        and all(isinstance(value, plain) for equation in others for value in equation.params.values())
        and all(_is_plain(equation.params["jaxpr"]) for equation in calls)
    )


def _at(array: Array, places: np.ndarray) -> Array:
    """Return the entries of a vector at positions within its bounds."""
    if np.array_equal(places, np.arange(array.shape[0])):
        return array
    return array.at[places].get(mode="promise_in_bounds", unique_indices=True)


def _strong(tree: PyTree) -> PyTree:
    """Return the arrays with strong types, as a weak type would need another program at the next dispatch."""
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.asarray(x).dtype), tree)
