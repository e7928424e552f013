"""Pytrees of arrays, and Equinox modules, which are pytrees."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.models.base import ARRAYS, STATE, TREES_REMEDY, ModelAdapter, Trainable, same_structure, select_leaves
from learner.models.nnx_modules import (
    annotation,
    copy_array,
    has_synced_batch_norms,
    is_filter,
    modes_of,
    module_attributes,
    nnx_modules,
    set_modes,
    start_streams,
    sync_batch_norms,
    trained_filter,
    variable_kind,
)
from learner.models.tree_structure import TreeStructure, holders_of, is_variable
from learner.util.optional import is_instance_of
from learner.util.text import join_names
from learner.util.trees import named_leaves, path_name

Array = Any
PyTree = Any
TRAINED, CARRIED, STREAM, FIXED = "trained", "carried", "stream", "fixed"  # roles of leaves


class _Axes(tuple[Any, ...]):
    """Names of axes in place of the `given` ones: a leaf of a pytree, where JAX would traverse a tuple."""

    given: Any


def _is_new_number(leaf: Any, given: Any) -> bool:
    if not isinstance(given, bool | int | float | complex | np.number | np.bool_):
        return False
    if isinstance(leaf, jax.Array):
        return True
    # A step may set a flag, such as that of `eqx.nn.inference_mode`.
    if isinstance(leaf, bool) or not isinstance(leaf, int | float | complex | np.number):
        return False
    both_nan = leaf != leaf and given != given  # not by `np.isnan`, which refuses long integers
    return not both_nan and bool(leaf != given)


class TreeAdapter(ModelAdapter):
    """Any pytree: a dict of arrays, an Equinox module, a tuple of a module and its `eqx.nn.State`.

    Inexact arrays are differentiated, also NumPy scalars outside modules. Other arrays, everything inside an Equinox
    `State`, and variables of nnx modules other than `nnx.Param` are carried, except for their random streams, which
    each step creates from its key. The remaining leaves (functions, strings, numbers) are fixed, but for the `step` of
    a `TrainState` of Flax, which becomes an array.
    """

    kind = "pytree"

    def __init__(self, model: PyTree, trainable: Trainable = None, *, shared: bool = False):
        self._equinox = equinox_of(model)
        self.kind = "equinox" if self._equinox else "pytree"
        self._has_modules = bool(nnx_modules(model))
        leaves, tree = jax.tree.flatten(model)
        leaves = _counters_as_arrays(model, leaves)
        self._tree: Any = tree
        self._structure = TreeStructure(model)
        holders = holders_of(model)
        self._in_place = self._has_modules or any(map(is_variable, holders))
        _refuse_same_names(self._names)
        # Each variable counts once: what its further places hold is neither trained nor carried.
        leaves = [
            leaf if i == origin else None
            for i, (leaf, origin) in enumerate(zip(leaves, self._structure.origins, strict=True))
        ]
        carried = self._carried(model, has_variables=any(map(is_variable, holders)))
        is_trainable = self._selected(trainable, holders)
        # A NumPy scalar in a module is a setting, such as `np.sqrt(width)`; in a tree of arrays it is a parameter.
        of_arrays = not self._equinox and not self._has_modules
        array = jax.Array | np.ndarray | np.inexact if of_arrays else jax.Array | np.ndarray

        def role_of(index: int, leaf: Any) -> str:
            if not isinstance(leaf, array):
                return FIXED
            if isinstance(leaf, jax.Array) and is_instance_of(holders[index], "flax.nnx", "RngState"):
                return STREAM
            is_inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
            return TRAINED if is_inexact and is_trainable(index, leaf, carried[index]) else CARRIED

        self._roles = [role_of(index, leaf) for index, leaf in enumerate(leaves)]
        if not shared:
            _refuse_shared(self._names, [None if role == STREAM else x for x, role in self._with_roles(leaves)])
        self._static = [leaf if role == FIXED else None for leaf, role in self._with_roles(leaves)]
        self.params, self.model_state = self._divide(leaves)
        self.streams = jax.tree.map(copy_array, self._streams_in(leaves))
        kinds = {name: kind for name, kind in zip(self._names, carried, strict=True) if name in self.model_state}
        self.frozen = {name: kind is None for name, kind in kinds.items()}
        self.kinds = {name: kind or ARRAYS for name, kind in kinds.items()}
        flags = {n.removesuffix(".inference"): x for n, x in zip(self._names, leaves, strict=True) if _is_flag(n, x)}
        self.given_modes = {**modes_of(model), **(flags if self._equinox else {})}
        annotated = {name: annotation(node) for name, node in zip(self._names, holders, strict=True)}
        self.annotations = {name: annotated[name] for name in named_leaves(self.params) if annotated[name]}

    @property
    def tied(self) -> Mapping[str, str]:
        """See `ModelAdapter`."""
        return self._structure.tied

    @property
    def _names(self) -> list[str]:
        return self._structure.names

    def _with_roles(self, leaves: list[Any]) -> Iterator[tuple[Any, str]]:
        return zip(leaves, self._roles, strict=True)

    def _selected(self, trainable: Trainable, holders: list[Any]) -> Callable[[int, Any, str | None], bool]:
        """Return the function of the index, the array and the kind of a leaf that selects what is trained."""
        if trainable is None or not (self._has_modules and is_filter(trainable)):
            is_trainable = trainable or (lambda name, leaf: True)
            return lambda index, leaf, kind: kind is None and bool(is_trainable(self._names[index], leaf))
        from flax import nnx

        matches = nnx.filterlib.to_predicate(trained_filter(trainable))
        # A filter such as nnx.LoRAParam may select variables of any type, as in an nnx module.
        paths = [tuple(int(x) if x.isdigit() else x for x in name.split(".")) for name in self._names]
        return lambda index, leaf, kind: bool(matches(paths[index], holders[index]))

    def _carried(self, model: PyTree, has_variables: bool) -> list[str | None]:
        """Return the kind of each leaf that is state regardless of its dtype; None for the others."""
        if not self._equinox and not has_variables:
            return [None] * len(self._names)
        nodes = jax.tree.leaves(model, is_leaf=self._is_state)
        return [self._kind(node) for node in nodes for _ in jax.tree.leaves(node)]

    def _kind(self, node: Any) -> str | None:
        if not self._is_state(node):
            return None
        return variable_kind(node) if is_variable(node) else STATE

    def _is_state(self, node: Any) -> bool:
        if self._equinox and isinstance(node, self._equinox.nn.State):
            return True
        return is_variable(node) and not is_instance_of(node, "flax.nnx", "Param")

    def _divide(self, leaves: list[Any]) -> tuple[PyTree, dict[str, Array]]:
        params = self._tree.unflatten([leaf if role == TRAINED else None for leaf, role in self._with_roles(leaves)])
        rows = zip(self._names, leaves, self._roles, strict=True)
        return params, {name: leaf for name, leaf, role in rows if role == CARRIED}

    def _streams_in(self, leaves: list[Any]) -> list[Array]:
        return [leaf for leaf, role in self._with_roles(leaves) if role == STREAM]

    def combine(self, params: PyTree, model_state: Mapping[str, Array], streams: Sequence[Array] = ()) -> PyTree:
        """Return the tree with all its leaves."""
        carried = [model_state[name] for name, role in zip(self._names, self._roles, strict=True) if role == CARRIED]
        fixed = [leaf for leaf, role in self._with_roles(self._static) if role == FIXED]
        parts = {
            TRAINED: iter(jax.tree.leaves(params)),
            CARRIED: iter(carried),
            STREAM: iter(streams),
            FIXED: iter(fixed),
        }
        return self._structure.unflatten([next(parts[role]) for role in self._roles])

    def merge(self, params: PyTree, model_state: PyTree, key: Array | None, *, train: bool) -> PyTree:
        """See `ModelAdapter`. Randomness reaches models other than nnx modules through the step's `rng` argument."""
        streams = jax.tree.map(copy_array, self.streams) if key is None else start_streams(self.streams, key)
        model = self.combine(params, model_state, streams)
        set_modes(model, train, self.kept_in_eval)
        if not self._equinox:
            return model
        kept = {f"{path}.inference" for path in self.kept_in_eval if train}
        leaves = zip(self._names, jax.tree.leaves(inference_mode(model, not train)), strict=True)
        return self._structure.unflatten([name in kept or leaf for name, leaf in leaves])

    def put(self, model: PyTree, model_state: PyTree, streams: PyTree) -> PyTree:
        """See `ModelAdapter`. The given model does not change, except for the nnx modules in it."""
        rebuilt = self.combine(self.params, model_state, streams)
        nnx: Any = sys.modules.get("flax.nnx")
        for given, new in zip(nnx_modules(model).values(), nnx_modules(rebuilt).values(), strict=True):
            nnx.update(given, nnx.state(new))
        return rebuilt

    def streams_of(self, model: PyTree) -> PyTree:
        """See `ModelAdapter`."""
        return self._streams_in(jax.tree.leaves(model))

    def read_all(self, model: PyTree) -> tuple[PyTree, PyTree]:
        """See `ModelAdapter`."""
        for norm in self._batch_norms(model):
            object.__setattr__(norm, "axis_name", getattr(norm.axis_name, "given", norm.axis_name))
        rows = jax.tree_util.tree_leaves_with_path(model)
        if [path_name(path) for path, _ in rows] != self._names:
            what = "a step returned another model than it was given"
            same_structure(model, self._tree.unflatten(self._names), what, TREES_REMEDY)
        leaves = [leaf for _, leaf in rows]
        self._refuse_new_numbers(leaves)
        self._refuse_untied(leaves)
        return self._divide(leaves)

    def _refuse_untied(self, leaves: list[Any]) -> None:
        """Raise `LearnerError` for a variable that has different values in the places where the model holds it."""
        for i, origin in enumerate(self._structure.origins):
            if i != origin and not _is_same(leaves[i], leaves[origin]):
                raise LearnerError(
                    f"a step returned different arrays for {self._names[origin]} and {self._names[i]}, which are one "
                    "variable of the model. jax.grad, jax.jit and jax.tree.map see two: use nnx.grad, nnx.jit and "
                    "nnx.update, or learner.value_and_grad and Optimizer. If they are meant to be two, give the model "
                    "a copy (nnx.clone)",
                    code="model-untied",
                    first=self._names[origin],
                    second=self._names[i],
                )

    def _refuse_new_numbers(self, leaves: list[Any]) -> None:
        """Raise `LearnerError` for numbers that a step has replaced: only arrays pass from one step to the next."""
        changed = [
            name
            for name, leaf, role, static in zip(self._names, leaves, self._roles, self._static, strict=True)
            if role == FIXED and leaf is not static and _is_new_number(leaf, static)
        ]
        if changed:
            raise LearnerError(
                f"a step returned new values of {join_names(changed, 3)}: Python and NumPy numbers are constants of "
                "the compiled program. Make them arrays, such as jnp.int32(0)",
                code="model-number-replaced",
            )

    def rebuild(self, params: PyTree, model_state: PyTree) -> PyTree:
        """See `ModelAdapter`. The random streams are those of the given model."""
        return self.merge(params, model_state, None, train=False)

    def sync_batch_norm(self, model: PyTree, axis: str) -> None:
        """See `ModelAdapter`. An Equinox layer has the axis of its `jax.vmap`, and gets this one in addition."""
        for norm in self._batch_norms(model):
            if getattr(norm, "mode", "batch") != "batch":
                raise LearnerError(
                    f"BatchNorm of Equinox in the mode {norm.mode!r} cannot be computed by replicas: make it with "
                    'mode="batch", or use strategy(Sharded())',
                    code="model-batch-norm-mode",
                    mode=norm.mode,
                )
            given = norm.axis_name
            axes = _Axes((*(given if isinstance(given, tuple | list) else (given,)), axis))
            axes.given = given
            # Modules are frozen; those of a merged model are copies.
            object.__setattr__(norm, "axis_name", axes)
        sync_batch_norms(model, axis)

    def is_synced(self, model: PyTree) -> bool:
        """See `ModelAdapter`."""
        synced = any(isinstance(norm.axis_name, _Axes) for norm in self._batch_norms(model))
        return synced or has_synced_batch_norms(model)

    def _batch_norms(self, model: PyTree) -> list[Any]:
        if not self._equinox:
            return []
        is_norm = lambda node: isinstance(node, self._equinox.nn.BatchNorm)  # noqa: E731
        return list(filter(is_norm, jax.tree.leaves(model, is_leaf=is_norm)))

    @property
    def changes_in_place(self) -> bool:
        """See `ModelAdapter`."""
        return self._in_place

    def attributes(self, model: PyTree) -> dict[str, Any]:
        """See `ModelAdapter`. Only nnx modules have them."""
        modules = nnx_modules(model).items() if self._has_modules else ()
        return {f"{path}.{name}": x for path, module in modules for name, x in module_attributes(module).items()}

    def with_own_containers(self, model: PyTree) -> PyTree:
        """See `ModelAdapter`. A step may change a dict for itself, and an Equinox `State` cannot be read once it was
        set.
        """
        return model if self._has_modules else jax.tree.map(lambda x: x, model, is_leaf=is_variable)

    def items(self, model: PyTree) -> dict[str, Any]:
        """See `ModelAdapter`. Trees of Equinox do not change."""
        if self._equinox or self._has_modules:
            return {}
        leaves = zip(named_leaves(model).items(), holders_of(model), strict=True)
        return {name: leaf for (name, leaf), holder in leaves if not is_variable(holder)}

    @property
    def constants(self) -> list[str]:
        """See `ModelAdapter`. Floats in modules are settings, such as a dropout rate."""
        if self._equinox or self._has_modules:
            return []
        return [name for name, leaf in zip(self._names, self._static, strict=True) if isinstance(leaf, float)]

    def grads(self, grads: Any) -> PyTree:
        """See `ModelAdapter`. Accepts the results of `jax.grad`, `nnx.grad` and `eqx.filter_grad`. `jax.grad` returns a
        gradient for each place of a variable, which are added.
        """
        return select_leaves(self._structure.add_to_first(named_leaves(grads)), self.params, self._names, grads)


def _counters_as_arrays(model: PyTree, leaves: list[Any]) -> list[Any]:
    """Return the leaves of a model, with the `step` of a `TrainState` of Flax, which `apply_gradients` counts from the
    Python number 0, as an array.
    """

    def is_state(node: Any) -> bool:
        return is_instance_of(node, "flax.training.train_state", "TrainState")

    nodes = jax.tree.leaves(model, is_leaf=is_state)
    paths = [(is_state(node), path) for node in nodes for path, _ in jax.tree_util.tree_leaves_with_path(node)]
    return [
        # By NumPy, as JAX's own arrays of Python numbers are weakly typed.
        jnp.asarray(np.asarray(x)) if inside and jax.tree_util.keystr(path) == ".step" and type(x) is int else x
        for x, (inside, path) in zip(leaves, paths, strict=True)
    ]


def _has_inference(node: Any) -> bool:
    # Not `nnx.Rngs`, which has every attribute.
    return hasattr(node, "inference") and not is_instance_of(node, "flax.nnx", "Pytree")


def _is_flag(name: str, leaf: Any) -> bool:
    return isinstance(leaf, bool) and f".{name}".endswith(".inference")


def _is_same(a: Any, b: Any) -> bool:
    if a is b or isinstance(a, jax.core.Tracer) or isinstance(b, jax.core.Tracer):
        return a is b
    return isinstance(a, jax.Array) and isinstance(b, jax.Array) and bool((a == b).all())


def equinox_of(model: PyTree) -> Any:
    """Return the equinox package if the model contains objects of it, otherwise None. It never imports the package."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return None
    is_module = lambda node: isinstance(node, equinox.Module | equinox.nn.State)  # noqa: E731
    return equinox if any(map(is_module, jax.tree.leaves(model, is_leaf=is_module))) else None


def inference_mode(model: PyTree, value: bool) -> PyTree:
    """Return a tree with Equinox modules whose `inference` flags are `value`.

    Unlike `eqx.nn.inference_mode` it also accepts the state of an optimizer: modules with `None` in place of everything
    that is not trained, which is kept.

    >>> import equinox as eqx
    >>> dropout = eqx.nn.Dropout(0.5)
    >>> inference_mode((dropout, eqx.filter(dropout, eqx.is_inexact_array)), True)
    (Dropout(p=0.5, inference=True), Dropout(p=None, inference=None))
    """
    import equinox

    def flags(tree: PyTree) -> list[Any]:
        has_flag = lambda node: node is not tree and _has_inference(node)  # noqa: E731
        own = [tree.inference] if _has_inference(tree) and tree.inference is not None else []
        inner = filter(has_flag, jax.tree.leaves(tree, is_leaf=has_flag))
        return own + [flag for node in inner for flag in flags(node)]

    return equinox.tree_at(flags, model, replace_fn=lambda _: value)


def _refuse_same_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise LearnerError(
            f"two leaves of the model are named {', '.join(twice)}, as {{'a.b': x}} and {{'a': {{'b': y}}}} would be; "
            "give them other names",
            code="model-leaf-name-twice",
        )


def _refuse_shared(names: list[str], leaves: list[Any]) -> None:
    seen: dict[int, str] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, jax.Array | np.ndarray) and leaf.size and seen.setdefault(id(leaf), name) != name:
            raise LearnerError(
                f"the model holds the same array twice, as {seen[id(leaf)]} and {name}; in a pytree these would "
                "become two arrays that train separately. Store it once and use it in both places (or copy it with "
                "jnp.copy if they are meant to be two)",
                code="model-array-shared",
                name=name,
            )
