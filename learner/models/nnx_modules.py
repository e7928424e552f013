"""Modules of `flax.nnx`, which is imported only if there is one."""

import itertools
import types
from collections.abc import Callable, Container
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.models.base import ARRAYS, PARAMS, ModelAdapter, Trainable
from learner.models.tree_structure import is_box, is_module
from learner.util.optional import is_instance_of
from learner.util.trees import is_key, named_leaves, path_name

Array = Any
PyTree = Any


class NnxAdapter(ModelAdapter):
    """`flax.nnx` modules. Their random streams are not state: each step creates them from its key."""

    kind = "flax.nnx"

    def __init__(self, model: Any, trainable: Trainable = None):
        from flax import nnx  # takes 0.1 s, but a user with such a model has imported it already

        self._nnx = nnx
        self._filters = (trained_filter(trainable), nnx.RngKey, nnx.RngCount, ...)
        parts: Any = nnx.split(model, *self._filters)
        self._graph, params, keys, counts, rest = parts
        self.params, self.model_state = nnx.as_pure(params), nnx.as_pure(rest)
        variables = jax.tree.leaves(rest, is_leaf=lambda x: isinstance(x, nnx.Variable))
        kinds = [variable_kind(x) for x in variables for _ in jax.tree.leaves(x)]
        self.kinds = jax.tree.unflatten(jax.tree.structure(self.model_state), kinds)
        self.frozen = jax.tree.map(lambda kind: kind in (PARAMS, ARRAYS), self.kinds)
        self.streams = tuple(jax.tree.map(copy_array, nnx.as_pure(s)) for s in (keys, counts))
        trained = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, nnx.Variable))
        found = zip(named_leaves(self.params), map(annotation, trained), strict=True)
        self.annotations = {name: axes for name, axes in found if axes}
        self.given_modes = modes_of(model)

    def merge(self, params: PyTree, model_state: PyTree, key: Array | None, *, train: bool) -> Any:
        """See `ModelAdapter`. A stream that was split over an axis stays split."""
        streams = self.streams if key is None else start_streams(self.streams, key)
        model = self._nnx.merge(self._graph, params, *streams, model_state)
        set_modes(model, train, self.kept_in_eval)
        return model

    def streams_of(self, model: Any) -> PyTree:
        """See `ModelAdapter`."""
        parts: Any = self._nnx.split(model, *self._filters)
        _, _, keys, counts, _ = parts
        return self._nnx.as_pure(keys), self._nnx.as_pure(counts)

    def put(self, model: Any, model_state: PyTree, streams: PyTree) -> Any:
        """See `ModelAdapter`."""
        for part in (*streams, model_state):
            self._nnx.update(model, part)
        return model

    def read_all(self, model: Any) -> tuple[PyTree, PyTree]:
        """See `ModelAdapter`."""
        parts: Any = self._nnx.split(model, *self._filters)
        _, params, _, _, rest = parts
        return self._nnx.as_pure(params), self._nnx.as_pure(rest)

    def rebuild(self, params: PyTree, model_state: PyTree) -> Any:
        """See `ModelAdapter`. The random streams are those of the given model."""
        model = self._nnx.merge(self._graph, params, *jax.tree.map(copy_array, self.streams), model_state)
        model.eval()
        return model

    def sync_batch_norm(self, model: Any, axis: str) -> None:
        """See `ModelAdapter`."""
        sync_batch_norms(model, axis)

    def is_synced(self, model: Any) -> bool:
        """See `ModelAdapter`."""
        return has_synced_batch_norms(model)

    def attributes(self, model: Any) -> dict[str, Any]:
        """See `ModelAdapter`."""
        return module_attributes(model)

    def grads(self, grads: Any) -> PyTree:
        """See `ModelAdapter`. Accepts the results of `nnx.grad` and `jax.grad`."""
        state = self._nnx.state(grads) if isinstance(grads, self._nnx.Module) else grads
        return super().grads(self._nnx.as_pure(state) if isinstance(state, self._nnx.State) else state)


def start_streams(streams: PyTree, key: Array) -> PyTree:
    """Return the random streams of modules as they start from a key: key `i` is `fold_in(key, i)`, and counts are 0.

    Args:
      streams: keys, whose shapes remain, and counts.
      key: a random key.
    """
    leaves = jax.tree.leaves(streams)
    are_keys = [is_key(x) for x in leaves]
    numbers = itertools.count()

    def started(old: Array) -> Array:
        new = jax.random.fold_in(key, next(numbers))
        return new if old.shape == () else jax.random.split(new, old.shape)

    new = [started(x) if k else jnp.zeros_like(x) for x, k in zip(leaves, are_keys, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(streams), new)


def sync_batch_norms(model: PyTree, axis: str) -> None:
    """Make the BatchNorm layers of the nnx modules in a pytree use the statistics over a mapped axis, too."""
    for layer in _batch_norms(model):
        if layer.axis_name is None:
            layer.axis_name = axis


def has_synced_batch_norms(model: PyTree) -> bool:
    """Return True if the nnx modules in a pytree have BatchNorm layers with statistics over a mapped axis."""
    return any(layer.axis_name is not None for layer in _batch_norms(model))


def _batch_norms(model: PyTree) -> list[Any]:
    return [node for node in _nodes(model) if is_instance_of(node, "flax.nnx", "BatchNorm")]


def has_dropout(model: PyTree) -> bool:
    """Return True if the nnx modules in a pytree have Dropout layers that drop anything."""
    return any(is_instance_of(node, "flax.nnx", "Dropout") and node.rate > 0 for node in _nodes(model))


def modes_of(model: PyTree) -> dict[str, bool]:
    """Return by path, for each layer with modes of the nnx modules in a pytree, True for eval mode.

    >>> from flax import nnx
    >>> modes_of({"drop": nnx.Dropout(0.5), "norm": nnx.BatchNorm(2, use_running_average=True, rngs=nnx.Rngs(0))})
    {'drop': False, 'norm': True}
    """
    flags = {path: flags_of(node).values() for path, node in _paths_and_nodes(model)}
    return {path: all(of_node) for path, of_node in flags.items() if of_node}


def flags_of(node: Any) -> dict[str, bool]:
    """Return the attributes of a layer that determine its mode, True for eval mode."""
    own = vars(node) if hasattr(node, "__dict__") else {}
    return {name: x for name in ("deterministic", "use_running_average") if isinstance(x := own.get(name), bool)}


def set_modes(model: PyTree, train: bool, kept_in_eval: Container[str] = ()) -> None:
    """Put the nnx modules in a pytree into train or eval mode; see `ModelAdapter.kept_in_eval`."""
    for module in nnx_modules(model).values():
        module.train() if train else module.eval()
    for path, node in _paths_and_nodes(model) if train and kept_in_eval else ():
        if path in kept_in_eval:
            for name in flags_of(node):
                setattr(node, name, True)


def _nodes(model: PyTree) -> list[Any]:
    return [node for _, node in _paths_and_nodes(model)]


def _paths_and_nodes(model: PyTree) -> list[tuple[str, Any]]:
    modules = nnx_modules(model).items()
    if not modules:
        return []
    from flax import nnx

    return [
        (".".join((*filter(None, [place]), *map(str, path))), node)
        for place, module in modules
        for path, node in nnx.iter_graph(module)
    ]


def annotation(variable: Any) -> tuple[Any, ...]:
    """Return the axes of a mesh that the annotation of a variable, or of a box of linen, names (`with_partitioning`);
    nothing without one.
    """
    if is_box(variable):
        return tuple(variable.names)
    metadata = variable.get_metadata() if hasattr(variable, "get_metadata") else {}
    given = metadata.get("out_sharding") or metadata.get("sharding_names") or ()
    return tuple(getattr(given, "spec", given))


def is_filter(trainable: Trainable) -> bool:
    """Return True for a filter of nnx, such as `nnx.LoRAParam` and `nnx.PathContains("head")`; False for a predicate of
    paths and arrays, a function or an object of the user's.
    """
    of_nnx = type(trainable).__module__.startswith("flax.nnx")
    return of_nnx or isinstance(trainable, type | bool | tuple | list | types.EllipsisType)


def trained_filter(trainable: Trainable) -> Any:
    """Return the nnx filter of the variables that are trained."""
    from flax import nnx

    chosen = nnx.Param if trainable is None else trainable
    if trainable is not None and not is_filter(trainable):
        chosen = nnx.All(nnx.Param, by_path(trainable))
    # A filter such as nnx.PathContains("head") selects all variables there.
    return nnx.All(chosen, nnx.Not(nnx.Any(nnx.RngState, nnx.BatchStat)), _is_inexact)


def by_path(predicate: Callable[[str, Any], Any]) -> Callable[[Any, Any], bool]:
    """Return a predicate of paths and arrays as an nnx filter, which is called with variables."""

    def matches(path: Any, value: Any) -> bool:
        return bool(predicate(".".join(map(str, path)), value[...] if hasattr(value, "get_value") else value))

    return matches


def _is_inexact(path: Any, value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def variable_kind(variable: Any) -> str:
    """Return the kind of an nnx module's variable: flax's name for its type, or the name of the type.

    >>> from flax import nnx
    >>> [variable_kind(nnx_type(0)) for nnx_type in (nnx.Param, nnx.LoRAParam, nnx.BatchStat, nnx.Intermediate)]
    ['params', 'params', 'batch_stats', 'intermediates']
    """
    from flax import nnx

    if not isinstance(variable, nnx.Variable):
        return ARRAYS
    if isinstance(variable, nnx.Param):
        return PARAMS
    try:
        return nnx.variable_name_from_type(type(variable))
    except ValueError:
        return type(variable).__name__


def module_attributes(model: Any) -> dict[str, Any]:
    """Return, by path, the attributes of an nnx module and its submodules other than variables and modules."""
    from flax import nnx

    nodes = (nnx.Pytree, nnx.Variable)
    found: dict[str, Any] = {}
    for place, module in nnx.iter_graph(model):
        if not isinstance(module, nnx.Pytree):
            continue
        # From the modules' dicts, as `iter_graph` yields an object once, and None and 0 are single objects.
        own = {name: x for name, x in vars(module).items() if not name.startswith("_pytree")}  # flax's own
        for path, value in jax.tree_util.tree_leaves_with_path(own, lambda x: x is None or isinstance(x, nodes)):
            if not isinstance(value, nodes):
                found[".".join((*map(str, place), path_name(path)))] = value
    return found


def module_paths(model: Any) -> list[str]:
    """Return the paths of the nnx modules in a model, also of those without arrays; nothing for other models."""
    nodes = _paths_and_nodes(model)
    return [path for path, node in nodes if path and is_module(node)]


def nnx_modules(model: PyTree) -> dict[str, Any]:
    """Return the nnx modules of a pytree by path, but not modules inside modules. It never imports the library."""
    nodes = jax.tree_util.tree_leaves_with_path(model, is_leaf=is_module)
    return {path_name(path): node for path, node in nodes if is_module(node)}


def refuse_values(module: Any, place: str = "") -> None:
    """Raise `LearnerError` for Python numbers in place of trained or plain arrays, such as `nnx.Param(1.0)`, and for
    variables of several arrays.

    Args:
      module: an nnx module.
      place: its path in the model.
    """
    from flax import nnx

    state = nnx.state(module)
    for path, x in jax.tree_util.tree_leaves_with_path(state, lambda x: isinstance(x, nnx.Variable)):
        if isinstance(x, nnx.Intermediate):  # it lasts for one step
            continue
        name = ".".join(filter(None, (place, path_name(path))))
        value = x.get_value() if isinstance(x, nnx.Variable) else x
        if value is not None and not jax.tree_util.all_leaves([value]):
            raise LearnerError(
                f"{name} of the model is a variable that holds a {type(value).__name__}: make each of its arrays a "
                f"variable, as in nnx.Dict(a={type(x).__name__}(...)) or nnx.List([...])",
                code="model-variable-of-several",
                name=name,
            )
        is_number = isinstance(value, int | float | complex) and not isinstance(value, np.generic)
        if is_number and (value is x or isinstance(x, nnx.Param)):
            raise LearnerError(
                f"{name} of the model is {value!r}, a Python number: give an array, such as jnp.float32({value!r})",
                code="model-leaf-number",
                name=name,
                value=value,
            )


def copy_array(x: Array) -> Array:
    """Return a copy of an array, which may be a random key."""
    return jnp.array(x, x.dtype, copy=True)


def mark_traced(model: Any) -> None:
    """Mark arrays that are attributes without a variable: nnx recognizes them as data, but not while they are traced.

    Raises:
      TypeError: such arrays are in a container that is not data for nnx, as nnx raises outside a trace.
    """
    from flax import nnx

    nodes = (nnx.Pytree, nnx.Variable)
    for node in [node for _, node in nnx.iter_graph(model) if isinstance(node, nnx.Pytree)]:
        for name in [name for name, x in vars(node).items() if isinstance(x, jax.core.Tracer)]:
            setattr(node, name, nnx.data(getattr(node, name)))
        if jax.tree_util.all_leaves([node]):  # of a class with pytree=False, all of whose attributes nnx reads
            continue
        data = {id(x) for x in jax.tree.leaves(node)}
        for name, x in vars(node).items():
            leaves = jax.tree.leaves(x, is_leaf=lambda x: isinstance(x, nodes))
            if any(isinstance(leaf, jax.core.Tracer) and id(leaf) not in data for leaf in leaves):
                raise TypeError(f"its attribute {name} holds arrays that are no data")
