"""A mesh of devices: batches are sharded over one of its axes, arrays of the model by rules."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from learner.errors import LearnerError
from learner.strategies.base import Kind, PyTree, Strategy
from learner.strategies.device_lookup import find_devices
from learner.strategies.replicated import first_replica
from learner.strategies.rules import Rules, names_of, without
from learner.util.number_checks import is_int, plain_numbers
from learner.util.own_context import automatic
from learner.util.several import as_several
from learner.util.text import count
from learner.util.trees import is_key, named_leaves, path_name

_DEFAULT_BATCH = ("data",)


class Sharded(Strategy):
    """`jax.jit` over a mesh of devices, of one process or of several.

    Rows of a batch are sharded over the axis `data` of the mesh; each array of the model and its optimizer state are
    sharded by the rules. Programs see whole batches and whole arrays, and XLA inserts the communication, so every
    number, including random masks, is the same as on one device.

    Args:
      mesh: a `jax.sharding.Mesh`, or the sizes of its axes, `{"data": 4, "model": 2}`; default: all devices along
        `data`. Axes of the type `Explicit`, as `jax.make_mesh` returns, are used as `Auto`.
      rules: `fsdp()`, or `"fsdp"`; patterns of paths with a spec for each, `{r"attention.*kernel": (None, "model")}`;
        or a list of both, in which the first match applies. Default: the model is replicated on every device.
      batch: the axis of the mesh over which rows are sharded, or several; axes that the mesh does not have are left
        out. With None or `()`, rows are not sharded: each device computes all of them. This is also the default on a
        mesh without the axis `data`.
        The members of a population are sharded over the axis `member`: `{"member": 4, "data": 2}`.
      devices: the devices of the mesh, if sizes are given: their number, or a list of `jax.Device` objects or ids;
        default: all.

    Raises:
      LearnerError: the mesh does not fit the devices, a rule or the mesh is malformed, or the mesh has none of the axes
        that `batch` names.

    >>> Sharded({"data": 1}, devices=jax.devices()[:1]).description
    "sharded over 1 device (cpu): {'data': 1}, rows over 'data'"
    """

    def __init__(
        self,
        mesh: Mesh | Mapping[str, int] | None = None,
        rules: Any = None,
        batch: str | Sequence[str] | None = "data",
        devices: int | str | Sequence[Any] | None = None,
    ):
        self.mesh = automatic(mesh) if isinstance(mesh, Mesh) else _mesh(mesh, devices)
        super().__init__(list(self.mesh.devices.flat), NamedSharding(self.mesh, PartitionSpec()))
        if len({device.platform for device in self.devices}) > 1:
            raise LearnerError(
                f"the mesh mixes platforms: {', '.join(map(str, self.devices))}", code="strategy-mesh-platforms-mixed"
            )
        self.rules = Rules.of(rules)
        self.splits = bool(self.rules.rows)
        self.batch = tuple(as_several(batch or ()))
        self._batch = tuple(name for name in self.batch if name in self.mesh.shape)
        if not self._batch and self.batch not in ((), _DEFAULT_BATCH):
            raise LearnerError(
                f"batch of Sharded names {', '.join(map(repr, self.batch))}, and the mesh has "
                f"{', '.join(map(repr, self.mesh.shape))}; with batch=() each device computes all rows",
                code="strategy-batch-axis-unknown",
            )
        self._shares = math.prod(self.mesh.shape[name] for name in self._batch)
        self._local = jax.process_count() == 1

    @property
    def description(self) -> str:
        """See `Strategy`."""
        rows = f"rows over {' and '.join(map(repr, self._batch))}" if self._batch else "rows on every device"
        model = f", the model over {' and '.join(map(repr, self.rules.axes))}" if self.rules.axes else ""
        devices = f"{count(len(self.devices), 'device')} ({self.platform})"
        return f"sharded over {devices}: {dict(self.mesh.shape)}, {rows}{model}"

    # -- where arrays go -----------------------------------------------------------------------------------------------

    def shardings(self, state: PyTree) -> PyTree:
        """See `Strategy`. An array of the optimizer's state, or of another tree that mirrors the parameters, is sharded
        like the parameter with the path that its own path ends with, if the shapes are equal.
        """
        specs = self._specs(state)
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: NamedSharding(self.mesh, _spec_of(path_name(path), leaf, specs)), state
        )

    def gather(self, state: PyTree) -> Callable[..., PyTree] | None:
        """See `Strategy`. Arrays sharded over an axis of the rows are gathered along it, and their gradients are
        scattered again. Without this, XLA would shard the computation like the parameters, and send every activation
        between devices.
        """
        where = self.shardings(state)
        split = {"params": where.params, "model_state": where.model_state}
        if not any(set(names_of(s.spec)) & set(self._batch) for s in jax.tree.leaves(split)):
            return None

        def gathered(part: str, tree: PyTree, forward_mode: bool = False) -> PyTree:
            return jax.tree.map(functools.partial(self._gathered, forward_mode), tree, split[part])

        return gathered

    def exchanges_rows(self, state: PyTree) -> bool:
        """See `Strategy`. Gathered arrays are whole in every process; those sharded over another axis stay sharded."""
        specs = [without(spec, self._batch) for _, spec in self._specs(state).values()]
        return any(self._spans_processes(axis) for axis in {name for spec in specs for name in names_of(spec)})

    def _spans_processes(self, axis: str) -> bool:
        """Return True if devices in a line along an axis of the mesh belong to several processes."""
        owners = np.vectorize(lambda device: device.process_index, otypes=[int])(self.mesh.devices)
        return bool((np.diff(owners, axis=list(self.mesh.shape).index(axis)) != 0).any())

    def _gathered(self, forward_mode: bool, array: Any, split: NamedSharding) -> Any:
        gathered = NamedSharding(self.mesh, without(split.spec, self._batch))
        if gathered.spec == split.spec:
            return array
        if forward_mode:  # which a `custom_vjp` excludes; the gradients are reduced before they are scattered
            return jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(array, split), gathered)

        @jax.custom_vjp
        def gather(x: Any) -> Any:
            return jax.lax.with_sharding_constraint(x, gathered)

        gather.defvjp(lambda x: (gather(x), None), lambda _, g: (jax.lax.with_sharding_constraint(g, split),))
        return gather(array)

    def problems(self, state: PyTree) -> list[str]:
        """See `Strategy`."""
        return self.rules.problems(_model_leaves(state), dict(self.mesh.shape))

    def warnings(self, state: PyTree) -> list[str]:
        """See `Strategy`."""
        sizes = dict(self.mesh.shape)
        idle = [name for name, size in sizes.items() if size > 1 and name not in self._axes_in_use]
        return self.rules.warnings(_model_leaves(state), sizes) + [
            f"the axis {name!r} of the mesh ({sizes[name]} devices) spreads neither rows nor arrays of the model, so "
            "that the devices along it compute the same: name it in rules or in batch, or leave it out. Ignore this "
            "warning if a step constrains arrays to it"
            for name in idle
        ]

    @property
    def _axes_in_use(self) -> set[str]:
        """The axes of the mesh that something is sharded over."""
        return {*self._batch, *self.rules.axes}

    def _specs(self, state: PyTree) -> dict[str, tuple[tuple[int, ...], PartitionSpec]]:
        sizes = dict(self.mesh.shape)
        leaves = _model_leaves(state)
        return {path: (leaf.shape, self.rules.spec(path, leaf.shape, sizes)) for path, leaf in leaves.items()}

    def place(self, tree: PyTree, shardings: PyTree = None) -> PyTree:
        """See `Strategy`."""
        if self._local:
            return super().place(tree, shardings)
        if shardings is None:
            shardings = jax.tree.map(lambda _: self.replicated_sharding, tree)
        return jax.tree.map(_from_all, tree, shardings)

    def to_single_device(self, tree: PyTree) -> PyTree:
        """See `Strategy`."""
        return tree if self.splits or not self._local else first_replica(tree)

    # -- batches -------------------------------------------------------------------------------------------------------

    def divides(self, rows: int) -> bool:
        """See `Strategy`."""
        return not rows % self._shares

    @functools.cached_property
    def share(self) -> tuple[int, int, int] | None:
        """See `Strategy`."""
        if self._local:
            return None
        mine = sorted(
            {self._position(index) for index, device in np.ndenumerate(self.mesh.devices) if _is_mine(device)}
        )
        if not mine:
            raise LearnerError(
                f"the mesh has no device of process {jax.process_index()}: all {jax.process_count()} processes take "
                "part, so it needs devices of each",
                code="strategy-mesh-without-process",
            )
        first, own = mine[0], len(mine)
        if mine != list(range(first, first + own)) or first % own or self._shares % own:
            raise LearnerError(
                f"the devices of process {jax.process_index()} are not neighbours along {self._batch} of the mesh: "
                "order the devices by their processes",
                code="strategy-mesh-order",
            )
        return first // own, self._shares // own, self._shares

    def _position(self, index: Sequence[int]) -> int:
        """Return the position of a device along the axes that rows are sharded over."""
        names = list(self.mesh.shape)
        position = 0
        for name in self._batch:
            position = position * self.mesh.shape[name] + index[names.index(name)]
        return position

    def put(self, tree: PyTree, axis: int = 0, replicated: bool = False, one_off: bool = False) -> PyTree:
        """See `Strategy`."""
        sharding = self.replicated_sharding
        if not replicated:
            sharding = NamedSharding(self.mesh, PartitionSpec(*[None] * axis, self._batch))
        if self._local:
            return jax.device_put(tree, sharding)
        if replicated:
            return jax.tree.map(lambda x: _from_all(x, sharding), tree)
        return jax.tree.map(lambda x: self._from_shares(x, sharding, axis), tree)

    def _from_shares(self, x: np.ndarray, sharding: jax.sharding.Sharding, axis: int) -> jax.Array:
        assert self.share is not None
        shape = [*x.shape]
        shape[axis] *= self.share[1]
        array: jax.Array = jax.make_array_from_process_local_data(sharding, x, tuple(shape))
        return array

    # -- programs ------------------------------------------------------------------------------------------------------

    def compile(
        self,
        program: Callable[..., Any],
        arguments: Sequence[Kind] = (),
        results: Sequence[Kind] | Kind = "same",
        donate: tuple[int, ...] = (),
        shardings: Mapping[str, PyTree] | None = None,
    ) -> Any:
        """See `Strategy`. The shardings of the results are fixed, so that XLA cannot choose others for the arguments of
        the next dispatch.
        """
        kinds = [results] if isinstance(results, str) else results
        each = [self._sharding_of(kind, shardings or {}) for kind in kinds]
        out = each[0] if isinstance(results, str) else tuple(each)
        return jax.jit(program, donate_argnums=donate, out_shardings=out, keep_unused=True)

    def _sharding_of(self, kind: Kind, shardings: Mapping[str, PyTree]) -> PyTree:
        """Return the sharding of a result of this kind."""
        return shardings.get(kind, self.replicated_sharding)


def _mesh(sizes: Mapping[str, int] | None, devices: int | str | Sequence[Any] | None) -> Mesh:
    devices = find_devices("all" if devices is None else devices)
    if not (sizes is None or isinstance(sizes, Mapping)):
        raise LearnerError(
            f"the mesh, the first argument of Sharded, is {sizes!r}; it needs the sizes of its axes, such as "
            "{'data': 4}, or a jax.sharding.Mesh. For a number of devices or for rules, use the keywords: "
            "Sharded(devices=8), Sharded(rules=fsdp())",
            code="strategy-mesh-type",
        )
    sizes = {"data": len(devices)} if sizes is None else {name: plain_numbers(size) for name, size in sizes.items()}
    invalid_axes = [name for name, size in sizes.items() if not is_int(size) or size < 1]
    if invalid_axes or not sizes:
        raise LearnerError(
            f"the mesh is {sizes!r}; give the sizes of its axes, such as {{'data': 4, 'model': 2}}",
            code="strategy-mesh-sizes",
        )
    if math.prod(sizes.values()) != len(devices):
        raise LearnerError(
            f"the mesh {sizes} needs {math.prod(sizes.values())} devices, and there are {len(devices)}: "
            f"{', '.join(map(str, devices[:8]))}{' and more' if len(devices) > 8 else ''}; Sharded(..., devices=n) "
            "chooses some of them",
            code="strategy-mesh-device-count",
        )
    types = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types, devices=devices)


def _is_mine(device: Any) -> bool:
    return bool(device.process_index == jax.process_index())


def _model_leaves(state: PyTree) -> dict[str, Any]:
    """Return the arrays of the model, trainable or not, by path. The rules apply to these."""
    return named_leaves(state.params) | named_leaves(state.model_state)


def _spec_of(path: str, leaf: Any, specs: Mapping[str, tuple[tuple[int, ...], PartitionSpec]]) -> PartitionSpec:
    """Return the spec of the longest path of a model's array that this path ends with."""
    parts = path.split(".")
    for first in range(len(parts) + 1):
        shape, spec = specs.get(".".join(parts[first:]), (None, PartitionSpec()))
        if shape == leaf.shape:
            return spec
    return PartitionSpec()


def _from_all(x: Any, sharding: jax.sharding.Sharding) -> Any:
    """Return an array over the devices of several processes, each of which passes the whole array."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.device_put(x, sharding)
    if is_key(x):
        data = _from_all(jax.random.key_data(x), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    host = np.asarray(x)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
