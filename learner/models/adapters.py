"""Models of every library, split into what is differentiated, what is carried, and how to put them together again.

A `ModelAdapter` is all that differs between `flax.nnx`, `flax.linen` and pytrees (Equinox modules are pytrees): the
rest of the project sees `params` and `model_state`, and requests a model from the adapter inside the traced step.
"""

import abc
import contextlib
import copy
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from learner.errors import LearnerError
from learner.util.code_location import code_location
from learner.util.executables import share
from learner.util.optional import is_instance_of
from learner.util.text import first_line, join_names
from learner.util.trees import named_leaves, path_name

Array = Any
PyTree = Any
Trainable = Any  # a predicate (path, array) -> bool; for nnx models also an nnx filter
PARAMS, ARRAYS = "params", "arrays"  # kinds of arrays
MOST_CONSTANT = 2**20  # bytes of arrays that a function that makes a model may have already: tables and the like


class NothingToTrainError(LearnerError):
    """A model has nothing that is to be differentiated.

    Attributes:
      adapter: of the model.
    """

    def __init__(self, message: str, adapter: "ModelAdapter", /, *, code: str, **fields: Any) -> None:
        super().__init__(message, code=code, **fields)
        self.adapter = adapter


OF_VARIABLES = (
    "Every variable must exist before training: make it in the model's __init__ (or run the model once before building "
    "the learner)"
)
OF_COLLECTIONS = (
    "Every variable must be among those of Linen(module, variables) before training. A collection that the module sows "
    "into is no state: leave it out of them, and read it by out, sown = model(x, mutable=['losses'])"
)


class ModelAdapter(abc.ABC):
    """The interface to models of one library, which splits and merges them.

    Attributes:
      params: what is differentiated, under its names.
      model_state: the other arrays of the model.
      frozen: which of them are parameters that are not trained: booleans in the shape of `model_state`.
      kinds: what each of them is, in the same shape: `params`, its collection or type of variable (`batch_stats`),
        `state` of what an Equinox `State` holds, `arrays` of others.
      kind: the library, for people.
      name: of the model's class.
      streams: what of the model belongs to neither: the random streams that it was given with.
      fresh: makes `(params, model_state)` anew of a random key, inside of a program, where they are shapes, or some of
        their arrays are; see `abstract_adapter`.
      fresh_streams: makes `streams` anew of a random key. None if they are those of the model that was given.
      seeded: True if the function that makes the model takes random streams, so that the key matters.
      note: why there is none although one was wanted, for people.
      annotations: the axes of a mesh that the model's own annotations name, by parameter (`nnx.with_partitioning`).
      rngs: the names of the random streams that each call of a linen module gets.
      of_variables: the remedy where a step adds or removes variables.
    """

    kind: str
    name: str = ""
    params: PyTree
    model_state: PyTree
    frozen: PyTree
    kinds: PyTree
    streams: PyTree = ()
    fresh: Callable[[Array], tuple[PyTree, PyTree]] | None = None
    fresh_streams: Callable[[Array], PyTree] | None = None
    seeded: bool = False
    note: str | None = None
    annotations: Mapping[str, tuple[Any, ...]] = types.MappingProxyType({})
    rngs: tuple[str, ...] = ()
    of_variables = OF_VARIABLES

    @abc.abstractmethod
    def merge(self, params: PyTree, model_state: PyTree, key: Array | None, *, train: bool) -> Any:
        """Return a model for one trace, in train or eval mode. Its random streams start from `key`; without one, from
        where they were when the model was given.
        """

    @abc.abstractmethod
    def read_all(self, model: Any) -> tuple[PyTree, PyTree]:
        """Return `(params, model_state)` of a model that `merge` made, or that a step returned, after it ran."""

    @abc.abstractmethod
    def rebuild(self, params: PyTree, model_state: PyTree) -> Any:
        """Return a model as the user gave it, outside of any trace, in eval mode."""

    @abc.abstractmethod
    def put(self, model: Any, model_state: PyTree, streams: PyTree) -> Any:
        """Update the model that was split with the state that a step has left, in place where its library does so, and
        return it.
        """

    def streams_of(self, model: Any) -> PyTree:
        """Return `streams` of a model that `merge` made, after it ran."""
        return ()

    def with_key(self, key: Array) -> "ModelAdapter":
        """Return the adapter of the model that the function makes of another random key."""
        if self.fresh_streams is None:
            return self
        adapter = copy.copy(self)
        adapter.streams = self.fresh_streams(key)
        return adapter

    def sync_batch_norm(self, model: Any, axis: str) -> None:  # noqa: B027 (most have none that could be told)
        """Make the BatchNorm layers of a merged model use the statistics over a mapped axis, too."""

    def is_synced(self, model: Any) -> bool:
        """Return True if the step ran layers whose statistics are synchronized."""
        return False

    @property
    def changes_in_place(self) -> bool:
        """True if a step changes the model that it is given, rather than returning a new one."""
        return True

    @property
    def constants(self) -> list[str]:
        """The names of Python's floats in a model of arrays, which are part of the program."""
        return []

    def attributes(self, model: Any) -> dict[str, Any]:
        """Return by path what a model holds beside variables and modules, as far as a step may assign it."""
        return {}

    def grads(self, grads: Any) -> PyTree:
        """Return gradients that a step computed by itself, under the names of `params`."""
        return grads

    def read(self, model: Any) -> PyTree:
        """Return the model state after a step. Raise if the step added or removed variables."""
        params, model_state = self.read_all(model)
        what = "a step changed the variables of the model"
        same_structure(params, self.params, what, self.of_variables)
        return same_structure(model_state, self.model_state, what, self.of_variables)


def same_tree(a: PyTree, b: PyTree) -> bool:
    """Return True if two trees have the same structure."""
    structures: list[Any] = [jax.tree.structure(a), jax.tree.structure(b)]
    return bool(structures[0] == structures[1])


OF_GRADIENTS = "Return those of jax.grad with respect to the model that the step got"


def same_structure(got: PyTree, needed: PyTree, what: str, remedy: str = OF_VARIABLES) -> PyTree:
    """Return `got`. Raise an error that names the paths in which it differs from `needed`, and the remedy."""
    if same_tree(got, needed):
        return got
    new, old = set(named_leaves(got)), set(named_leaves(needed))
    parts = [
        f"{word} {', '.join(sorted(paths))}" for word, paths in (("new:", new - old), ("missing:", old - new)) if paths
    ]
    raise LearnerError(
        f"{what}; {'; '.join(parts) or 'the containers are of other types'}. {remedy}",
        code="model-structure-changed",
    )


class NnxAdapter(ModelAdapter):
    """`flax.nnx` modules. Their random streams are not state: each step makes them from its key."""

    kind = "flax.nnx"

    def __init__(self, model: Any, trainable: Trainable = None):
        from flax import nnx  # costs 0.1 s, and whoever has such a model has paid it

        self._nnx = nnx
        _refuse_numbers(nnx.state(model), nnx)
        self._kinds = (_nnx_filter(trainable), nnx.RngKey, nnx.RngCount, ...)
        parts: Any = nnx.split(model, *self._kinds)
        self._graph, params, keys, counts, rest = parts
        self.params, self.model_state = nnx.as_pure(params), nnx.as_pure(rest)
        variables = jax.tree.leaves(rest, is_leaf=lambda x: isinstance(x, nnx.Variable))
        frozen = [
            isinstance(x, nnx.Param) or not isinstance(x, nnx.Variable) for x in variables for _ in jax.tree.leaves(x)
        ]
        self.frozen = jax.tree.unflatten(jax.tree.structure(self.model_state), frozen)
        kinds = [variable_kind(x) for x in variables for _ in jax.tree.leaves(x)]
        self.kinds = jax.tree.unflatten(jax.tree.structure(self.model_state), kinds)
        self.streams = tuple(jax.tree.map(_copy, nnx.as_pure(s)) for s in (keys, counts))
        trained = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, nnx.Variable))
        found = zip(named_leaves(self.params), map(_annotation, trained), strict=True)
        self.annotations = {name: axes for name, axes in found if axes}

    def merge(self, params: PyTree, model_state: PyTree, key: Array | None, *, train: bool) -> Any:
        """See `ModelAdapter`. A stream that was split over an axis stays split."""
        streams = self.streams if key is None else self._streams_from(key)
        model = self._nnx.merge(self._graph, params, *streams, model_state)
        model.train() if train else model.eval()
        return model

    def _streams_from(self, key: Array) -> tuple[PyTree, PyTree]:
        old_keys, old_counts = self.streams
        leaves, tree = jax.tree.flatten(old_keys)
        folded = [jax.random.fold_in(key, i) for i in range(len(leaves))]
        keys = [k if old.shape == () else jax.random.split(k, old.shape) for k, old in zip(folded, leaves, strict=True)]
        return jax.tree.unflatten(tree, keys), jax.tree.map(jnp.zeros_like, old_counts)

    def streams_of(self, model: Any) -> PyTree:
        """See `ModelAdapter`."""
        parts: Any = self._nnx.split(model, *self._kinds)
        _, _, keys, counts, _ = parts
        return self._nnx.as_pure(keys), self._nnx.as_pure(counts)

    def put(self, model: Any, model_state: PyTree, streams: PyTree) -> Any:
        """See `ModelAdapter`."""
        for part in (*streams, model_state):
            self._nnx.update(model, part)
        return model

    def read_all(self, model: Any) -> tuple[PyTree, PyTree]:
        """See `ModelAdapter`."""
        parts: Any = self._nnx.split(model, *self._kinds)
        _, params, _, _, rest = parts
        return self._nnx.as_pure(params), self._nnx.as_pure(rest)

    def rebuild(self, params: PyTree, model_state: PyTree) -> Any:
        """See `ModelAdapter`. The random streams are those of the model that was given."""
        model = self._nnx.merge(self._graph, params, *jax.tree.map(_copy, self.streams), model_state)
        model.eval()
        return model

    def sync_batch_norm(self, model: Any, axis: str) -> None:
        """See `ModelAdapter`."""
        for _, node in self._nnx.iter_graph(model):
            if isinstance(node, self._nnx.BatchNorm) and node.axis_name is None:
                node.axis_name = axis

    def is_synced(self, model: Any) -> bool:
        """See `ModelAdapter`."""
        nodes = (node for _, node in self._nnx.iter_graph(model))
        return any(isinstance(node, self._nnx.BatchNorm) and node.axis_name is not None for node in nodes)

    def attributes(self, model: Any) -> dict[str, Any]:
        """See `ModelAdapter`."""
        nodes = (self._nnx.Pytree, self._nnx.Variable)
        found: dict[str, Any] = {}
        for place, module in self._nnx.iter_graph(model):
            if not isinstance(module, self._nnx.Pytree):
                continue
            # Of the modules' own dicts, as `iter_graph` yields an object once, and None or 0 is one wherever it is.
            own = {name: x for name, x in vars(module).items() if not name.startswith("_pytree")}  # flax's own
            for path, value in jax.tree_util.tree_leaves_with_path(own, lambda x: x is None or isinstance(x, nodes)):
                if not isinstance(value, nodes):
                    name = jax.tree_util.keystr(path, simple=True, separator=".")
                    found[".".join((*map(str, place), name))] = value
        return found

    def grads(self, grads: Any) -> PyTree:
        """See `ModelAdapter`. Takes what `nnx.grad` returns."""
        return self._nnx.as_pure(grads) if isinstance(grads, self._nnx.State) else grads


def _annotation(variable: Any) -> tuple[Any, ...]:
    metadata = variable.get_metadata() if hasattr(variable, "get_metadata") else {}
    given = metadata.get("out_sharding") or metadata.get("sharding_names") or ()
    return tuple(getattr(given, "spec", given))


def _nnx_filter(trainable: Trainable) -> Any:
    from flax import nnx

    chosen = nnx.Param if trainable is None else trainable
    if isinstance(trainable, types.FunctionType | types.MethodType | partial):
        chosen = nnx.All(nnx.Param, by_path(trainable))
    # A filter such as nnx.PathContains("head") takes in all that is there.
    return nnx.All(chosen, nnx.Not(nnx.Any(nnx.RngState, nnx.BatchStat)), _is_inexact)


def by_path(predicate: Callable[[str, Any], Any]) -> Callable[[Any, Any], bool]:
    """Return a predicate of paths and arrays as a filter of nnx, which gives it variables."""

    def matches(path: Any, value: Any) -> bool:
        return bool(predicate(".".join(map(str, path)), value[...] if hasattr(value, "get_value") else value))

    return matches


def _is_inexact(path: Any, value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


@jax.tree_util.register_pytree_with_keys_class
class Linen:
    """A `flax.linen` module with its variables, callable inside a step.

    Give it to `build` as the model. In a train step every collection but `params` is mutable and kept up to date;
    `train` says which mode the step runs in, for modules that take it as an argument:

        def train_step(model, batch):
            logits = model(batch["image"], train=model.train)

    Attributes:
      module: the `flax.linen.Module`.
      variables: its variables, `{"params": ..., "batch_stats": ...}`.
      rngs: the names of the random streams that the module draws from, such as `("dropout", "noise")`. In a step, also
        of a validation or a prediction, each call gets a key of its own for each of them; elsewhere, pass them to the
        call.
      train: whether a train step is running.

    >>> import flax.linen as nn
    >>> module = nn.Dense(2)
    >>> model = Linen(module, module.init(jax.random.key(0), jnp.ones((1, 3))))
    >>> model(jnp.ones((4, 3))).shape
    (4, 2)

    >>> class Noisy(nn.Module):
    ...     def __call__(self, x):
    ...         return x + jax.random.normal(self.make_rng("noise"), x.shape)
    >>> noisy = Linen(Noisy(), {"params": {}}, rngs=("noise",))
    >>> noisy(jnp.zeros((4, 3)), rngs={"noise": jax.random.key(0)}).shape
    (4, 3)
    """

    def __init__(self, module: Any, variables: Any, rngs: Sequence[str] = ("dropout",)):
        import flax.core

        if "params" not in variables:
            raise LearnerError(
                f"Linen got variables with {sorted(variables)}; it needs what module.init returns, with 'params'",
                code="model-linen-variables",
            )
        self.module = module
        self.variables: dict[str, Any] = dict(flax.core.unfreeze(variables))
        self.rngs = (rngs,) if isinstance(rngs, str) else tuple(rngs)
        self.train = False
        self._axis: str | None = None
        self._synced = False
        self._key: Array | None = None
        self._calls = 0

    def __call__(self, *args: Any, method: Any = None, rngs: Any = None, mutable: Any = False, **kwargs: Any) -> Any:
        """Call `module.apply` with the variables, in a step with its random streams, and with those in `rngs`.

        With `mutable`, such as `["losses"]` for what the module sows there, return `(output, collections)`, as flax
        does.
        """
        from flax.core.scope import in_filter, union_filters

        given = rngs if isinstance(rngs, Mapping) else {} if rngs is None else {"params": rngs}  # as flax reads a key
        streams: dict[str, Array] = {}
        if self._key is not None:
            key = jax.random.fold_in(self._key, self._calls)
            streams = {name: jax.random.fold_in(key, i) for i, name in enumerate(self.rngs)}
        self._calls += 1
        apply = partial(self.module.apply, self.variables, *args, rngs={**streams, **given}, method=method)
        with self._explaining_errors():
            if not self.train:
                return apply(mutable=mutable, **kwargs)
            carried = [name for name in self.variables if name != "params"]
            with _batch_norm_over(self._axis, self._met):
                out, changed = apply(mutable=union_filters(carried, mutable), **kwargs)
        self.variables = {**self.variables, **{name: changed[name] for name in carried if name in changed}}
        return out if mutable is False else (out, {name: x for name, x in changed.items() if in_filter(mutable, name)})

    @contextlib.contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Raise `LearnerError` with the remedy where the module draws from a random stream that it did not get, or
        changes its statistics in eval mode.
        """
        from flax.errors import InvalidRngError, ModifyScopeVariableError

        try:
            yield
        except InvalidRngError as error:
            if found := re.search(r'needs PRNG for "(.+?)"', str(error)):
                raise self._missing_stream(found[1], error) from error
            raise
        except ModifyScopeVariableError as error:
            if self.train or not (found := re.search(r'because collection "(.+?)" is immutable', str(error))):
                raise
            raise LearnerError(
                f"{type(self.module).__name__} changes {found[1]!r} in eval mode ({code_location(error)}): give it the "
                "mode, such as model(x, train=model.train) where its __call__ has the argument train",
                code="model-linen-mode",
                name=found[1],
            ) from error

    def _missing_stream(self, name: str, error: Exception) -> LearnerError:
        named = tuple(dict.fromkeys((*self.rngs, name)))
        remedy = (
            f"outside of a step, pass it to the call: model(x, rngs={{{name!r}: jax.random.key(0)}})"
            if self._key is None
            else f"name it where the model is made, and each step gets it: Linen(module, variables, rngs={named})"
        )
        if name == "dropout" and self._key is None:
            remedy += (
                ". To evaluate, call it in eval mode, such as model(x, train=False), or, where the mode is a field, "
                "Linen(model.module.clone(deterministic=True), model.variables)(x)"
            )
        return LearnerError(
            f"{type(self.module).__name__} draws from the random stream {name!r} ({code_location(error)}), which "
            f"it did not get; {remedy}",
            code="model-linen-stream",
            name=name,
        )

    def _met(self) -> None:
        self._synced = True

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """Return the children and the rest, for JAX: functions may have a `Linen` as argument and as result."""
        names = ("variables", "_key")
        children = tuple((jax.tree_util.GetAttrKey(name.lstrip("_")), getattr(self, name)) for name in names)
        return children, (self.module, self.rngs, self.train)

    @classmethod
    def tree_unflatten(cls, fixed: Any, children: Any) -> "Linen":
        """Return the model of these children, for JAX."""
        box = object.__new__(cls)
        (box.variables, box._key), (box.module, box.rngs, box.train) = children, fixed
        box._axis, box._synced, box._calls = None, False, 0
        return box


@contextlib.contextmanager
def _batch_norm_over(axis: str | None, met: Callable[[], None]) -> Iterator[None]:
    """Make linen's BatchNorm layers without an axis of their own use this one, inside the block. `met` is called for
    each.
    """
    if axis is None:
        yield
        return
    import flax.linen as nn

    def call(next_fun: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if isinstance(module, nn.BatchNorm):
            met()
        if isinstance(module, nn.BatchNorm) and module.axis_name is None:
            object.__setattr__(module, "axis_name", axis)  # modules are frozen; this one is a copy for this call
        return next_fun(*args, **kwargs)

    with nn.intercept_methods(call):
        yield


class LinenAdapter(ModelAdapter):
    """`Linen(module, variables)`."""

    kind = "flax.linen"
    of_variables = OF_COLLECTIONS

    def __init__(self, model: Linen, trainable: Trainable = None):
        self._module, self.rngs = model.module, model.rngs
        state = {name: v for name, v in model.variables.items() if name != "params"}
        self._all = TreeAdapter(model.variables["params"], trainable)
        self.params = self._all.params
        self.model_state = {"collections": state, "frozen": self._all.model_state}
        self.frozen = {"collections": jax.tree.map(lambda _: False, state), "frozen": self._all.frozen}
        collections = {name: jax.tree.map(lambda _, name=name: name, each) for name, each in state.items()}
        self.kinds = {"collections": collections, "frozen": dict.fromkeys(self._all.frozen, PARAMS)}
        self._all.params = self._all.model_state = None  # the arrays are held once

    def merge(self, params: PyTree, model_state: PyTree, key: Array | None, *, train: bool) -> Linen:
        """See `ModelAdapter`."""
        rebuilt = self._rebuilt(params, model_state)
        rebuilt.train, rebuilt._key = train, key
        return rebuilt

    def put(self, model: Linen, model_state: PyTree, streams: PyTree) -> Linen:
        """See `ModelAdapter`."""
        model.variables = {"params": model.variables["params"], **model_state["collections"]}
        return model

    def sync_batch_norm(self, model: Linen, axis: str) -> None:
        """See `ModelAdapter`."""
        model._axis = axis

    def is_synced(self, model: Linen) -> bool:
        """See `ModelAdapter`."""
        return model._synced

    def _rebuilt(self, params: PyTree, model_state: PyTree) -> Linen:
        params = self._all.combine(params, model_state["frozen"])
        return Linen(self._module, {"params": params, **model_state["collections"]}, self.rngs)

    def read_all(self, model: Linen) -> tuple[PyTree, PyTree]:
        """See `ModelAdapter`."""
        params, frozen = self._all.read_all(model.variables["params"])
        state = {name: v for name, v in model.variables.items() if name != "params"}
        return params, {"collections": state, "frozen": frozen}

    def rebuild(self, params: PyTree, model_state: PyTree) -> Linen:
        """See `ModelAdapter`."""
        return self._rebuilt(params, model_state)


class _Axes(tuple[Any, ...]):
    """Names of axes in place of the `given` ones: a leaf of a pytree, where JAX would take a tuple apart."""

    given: Any


class TreeAdapter(ModelAdapter):
    """Any pytree: a dict of arrays, an Equinox module, a tuple of a module and its `eqx.nn.State`.

    Inexact arrays are differentiated, also scalars of NumPy outside of modules; other arrays, everything inside an
    Equinox `State` and the variables of nnx modules that are no `nnx.Param` are carried; the remaining leaves
    (functions, strings, numbers) are fixed.
    """

    kind = "pytree"

    def __init__(self, model: PyTree, trainable: Trainable = None, *, shared: bool = False):
        self._equinox = equinox_of(model)
        self.kind = "equinox" if self._equinox else "pytree"
        self._in_place = bool(nnx_modules(model))
        paths, tree = jax.tree_util.tree_flatten_with_path(model)
        self._tree: Any = tree
        self._names = [path_name(path) for path, _ in paths]
        leaves = [leaf for _, leaf in paths]
        _refuse_same_names(self._names)
        if not shared:
            _refuse_shared(self._names, leaves)
        carried = self._carried(model)
        is_trainable = trainable or (lambda name, leaf: True)
        # A number of NumPy in a module is a setting, as `np.sqrt(width)` is, and in a tree of arrays a parameter.
        of_arrays = not self._equinox and not self._in_place
        array = jax.Array | np.ndarray | np.inexact if of_arrays else jax.Array | np.ndarray
        self._arrays = [isinstance(leaf, array) for leaf in leaves]
        self._trained = [
            array and jnp.issubdtype(leaf.dtype, jnp.inexact) and kind is None and bool(is_trainable(name, leaf))
            for name, leaf, array, kind in zip(self._names, leaves, self._arrays, carried, strict=True)
        ]
        self._static = [None if array else leaf for leaf, array in zip(leaves, self._arrays, strict=True)]
        self.params, self.model_state = self._divide(leaves)
        kinds = {name: kind for name, kind in zip(self._names, carried, strict=True) if name in self.model_state}
        self.frozen = {name: kind is None for name, kind in kinds.items()}
        self.kinds = {name: kind or ARRAYS for name, kind in kinds.items()}

    def _carried(self, model: PyTree) -> list[str | None]:
        """Return, for each leaf that is state whatever its dtype is, its kind; None for the others."""
        if not self._equinox and not self._in_place:
            return [None] * len(self._names)
        nodes = jax.tree.leaves(model, is_leaf=self._is_state)
        return [self._kind(node) for node in nodes for _ in jax.tree.leaves(node)]

    def _kind(self, node: Any) -> str | None:
        if not self._is_state(node):
            return None
        return variable_kind(node) if is_instance_of(node, "flax.nnx", "Variable") else "state"

    def _is_state(self, node: Any) -> bool:
        if self._equinox and isinstance(node, self._equinox.nn.State):
            return True
        return is_instance_of(node, "flax.nnx", "Variable") and not is_instance_of(node, "flax.nnx", "Param")

    def _divide(self, leaves: list[Any]) -> tuple[PyTree, dict[str, Array]]:
        params = self._tree.unflatten(
            [leaf if trained else None for leaf, trained in zip(leaves, self._trained, strict=True)]
        )
        rows = zip(self._names, leaves, self._arrays, self._trained, strict=True)
        return params, {name: leaf for name, leaf, array, trained in rows if array and not trained}

    def combine(self, params: PyTree, model_state: dict[str, Array]) -> PyTree:
        """Return the tree with all its leaves."""
        trained = iter(jax.tree.leaves(params))
        rows = zip(self._names, self._static, self._arrays, self._trained, strict=True)
        leaves = [next(trained) if t else model_state[name] if array else static for name, static, array, t in rows]
        return self._tree.unflatten(leaves)

    def merge(self, params: PyTree, model_state: PyTree, key: Array | None, *, train: bool) -> PyTree:
        """See `ModelAdapter`. Randomness reaches these models through the step's `rng` argument."""
        model = self.combine(params, model_state)
        for module in nnx_modules(model):
            module.train() if train else module.eval()
        return inference_mode(model, not train) if self._equinox else model

    def put(self, model: PyTree, model_state: PyTree, streams: PyTree) -> PyTree:
        """See `ModelAdapter`. The model that was given stays as it is, but for the nnx modules in it."""
        rebuilt = self.combine(self.params, model_state)
        nnx: Any = sys.modules.get("flax.nnx")
        for given, new in zip(nnx_modules(model), nnx_modules(rebuilt), strict=True):
            nnx.update(given, nnx.state(new))
        return rebuilt

    def read_all(self, model: PyTree) -> tuple[PyTree, PyTree]:
        """See `ModelAdapter`."""
        for norm in self._batch_norms(model):
            object.__setattr__(norm, "axis_name", getattr(norm.axis_name, "given", norm.axis_name))
        rows = jax.tree_util.tree_leaves_with_path(model)
        if [path_name(path) for path, _ in rows] != self._names:
            same_structure(model, self._tree.unflatten(self._names), "a step returned another model than it was given")
        return self._divide([leaf for _, leaf in rows])

    def rebuild(self, params: PyTree, model_state: PyTree) -> PyTree:
        """See `ModelAdapter`."""
        return self.merge(params, model_state, None, train=False)

    def sync_batch_norm(self, model: PyTree, axis: str) -> None:
        """See `ModelAdapter`. An Equinox layer has the axis of its `jax.vmap`, and gets this one beside it."""
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

    def is_synced(self, model: PyTree) -> bool:
        """See `ModelAdapter`."""
        return any(isinstance(norm.axis_name, _Axes) for norm in self._batch_norms(model))

    def _batch_norms(self, model: PyTree) -> list[Any]:
        if not self._equinox:
            return []
        is_norm = lambda node: isinstance(node, self._equinox.nn.BatchNorm)  # noqa: E731
        return list(filter(is_norm, jax.tree.leaves(model, is_leaf=is_norm)))

    @property
    def changes_in_place(self) -> bool:
        """See `ModelAdapter`."""
        return self._in_place

    @property
    def constants(self) -> list[str]:
        """See `ModelAdapter`. Those of modules are settings, such as the rate of a dropout."""
        if self._equinox or self._in_place:
            return []
        return [name for name, leaf in zip(self._names, self._static, strict=True) if isinstance(leaf, float)]

    def grads(self, grads: Any) -> PyTree:
        """See `ModelAdapter`. Takes what `jax.grad` or `eqx.filter_grad` return."""
        rows = jax.tree_util.tree_leaves_with_path(grads)
        if [path_name(path) for path, _ in rows] != self._names:
            return grads
        return self._divide([leaf for _, leaf in rows])[0]


def variable_kind(variable: Any) -> str:
    """Return the kind of an nnx module's variable: the name that flax has for its type, or that of the type.

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


def nnx_modules(model: PyTree) -> list[Any]:
    """Return the nnx modules of a pytree, without those inside of others. It never imports the library."""

    def is_module(node: Any) -> bool:
        return is_instance_of(node, "flax.nnx", "Module")

    return list(filter(is_module, jax.tree.leaves(model, is_leaf=is_module)))


def equinox_of(model: PyTree) -> Any:
    """Return the equinox module, if the model holds anything of it. It never imports the library."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return None
    is_module = lambda node: isinstance(node, equinox.Module | equinox.nn.State)  # noqa: E731
    return equinox if any(map(is_module, jax.tree.leaves(model, is_leaf=is_module))) else None


def inference_mode(model: PyTree, value: bool) -> PyTree:
    """Return a tree with Equinox modules whose `inference` flags are `value`.

    Unlike `eqx.nn.inference_mode` it takes the state of an optimizer, too: modules with `None` in the place of all
    that is not trained, which stays.

    >>> import equinox as eqx
    >>> dropout = eqx.nn.Dropout(0.5)
    >>> inference_mode((dropout, eqx.filter(dropout, eqx.is_inexact_array)), True)
    (Dropout(p=0.5, inference=True), Dropout(p=None, inference=None))
    """
    import equinox

    def flags(tree: PyTree) -> list[Any]:
        has_flag = lambda node: hasattr(node, "inference") and node is not tree  # noqa: E731
        own = [] if getattr(tree, "inference", None) is None else [tree.inference]
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


def _refuse_numbers(state: Any, nnx: Any) -> None:
    """Raise `LearnerError` for Python numbers in the place of trained or plain arrays, such as `nnx.Param(1.0)`."""
    for path, x in jax.tree_util.tree_leaves_with_path(state, lambda x: isinstance(x, nnx.Variable)):
        if isinstance(x, nnx.Variable) and not isinstance(x, nnx.Param):
            continue
        value = x.get_value() if isinstance(x, nnx.Param) else x
        if isinstance(value, int | float | complex):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise LearnerError(
                f"{name} of the model is {value!r}, a Python number: give an array, such as jnp.float32({value!r})",
                code="model-leaf-number",
                name=name,
                value=value,
            )


def _refuse_shared(names: list[str], leaves: list[Any]) -> None:
    seen: dict[int, str] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, jax.Array | np.ndarray) and leaf.size and seen.setdefault(id(leaf), name) != name:
            raise LearnerError(
                f"the model holds the same array twice, as {seen[id(leaf)]} and {name}; in a pytree these would "
                "become two arrays that train apart. Hold it once and use it in both places (or copy it with "
                "jnp.copy if they should be two)",
                code="model-array-shared",
                name=name,
            )


def _refuse_long_integers(model_state: PyTree) -> None:
    """Raise `LearnerError` for integers that JAX would cut to 32 bits."""
    for name, x in named_leaves(model_state).items():
        if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "iu" and x.size:
            dtype = np.dtype(jax.dtypes.canonicalize_dtype(x.dtype))
            limits = np.iinfo(dtype)
            if dtype == x.dtype:
                continue
            if x.min() < limits.min or x.max() > limits.max:
                raise LearnerError(
                    f"{name} of the model has integers that {dtype} cannot hold ({x.min()} to {x.max()}, {x.dtype}): "
                    "JAX computes with 32 bits unless its option jax_enable_x64 is set",
                    code="model-integer-too-large",
                    name=name,
                )


def _copy(x: Array) -> Array:
    return jnp.array(x, x.dtype, copy=True)


def adapter_of(model: Any, trainable: Trainable = None, *, shared: bool = False) -> ModelAdapter:
    """Return the adapter of a model, with the model split.

    Args:
      model: an `nnx.Module`, a `Linen`, or any pytree with arrays (an Equinox module, a dict).
      trainable: what is differentiated: a predicate `(path, array) -> bool` such as `lambda path, x: "head" in path`,
        or for nnx also a filter such as `nnx.LoRAParam`. Default: `nnx.Param`, linen's `params`, inexact arrays
        elsewhere.
      shared: whether a pytree may hold one array in several places, which become arrays of their own. The state of an
        `update=` may: the first states of some optimizers hold the parameters.

    >>> adapter = adapter_of({"w": jnp.ones(2), "n": jnp.array(3)})
    >>> list(named_leaves(adapter.params)), list(adapter.model_state)
    (['w'], ['n'])
    """
    kind: Callable[[Any, Trainable], ModelAdapter] = partial(TreeAdapter, shared=shared)
    if is_instance_of(model, "flax.nnx", "Module"):
        kind = NnxAdapter
    elif isinstance(model, Linen):
        kind = LinenAdapter
    elif is_instance_of(model, "flax.linen", "Module"):
        raise LearnerError(
            f"the model is a linen module without variables ({type(model).__name__}); pass Linen(module, variables) "
            "with variables = module.init(key, example_input)",
            code="model-linen-without-variables",
        )
    check_trainable(trainable, takes_filters=kind is NnxAdapter)
    adapter = kind(model, trainable)
    adapter.name = type(model.module if isinstance(model, Linen) else model).__name__
    _refuse_long_integers(adapter.model_state)
    if not jax.tree.leaves(adapter.params):
        raise NothingToTrainError(_no_parameters(model, adapter, trainable), adapter, code="model-nothing-to-train")
    return adapter


def check_trainable(trainable: Any, takes_filters: bool) -> None:
    """Raise `LearnerError` unless `trainable` is a predicate or, for nnx, a filter. A text would be a tag for nnx, and
    is more likely to be meant as a pattern, as in `freeze`.
    """
    if is_instance_of(trainable, "equinox", "Module"):  # of booleans, for `eqx.partition`; it may be callable
        raise LearnerError(
            f"trainable is a {type(trainable).__name__}, as eqx.partition takes it; it needs a predicate of the paths "
            "that experiment.log lists, such as lambda path, x: path.startswith('layers.2')",
            code="model-trainable-type",
        )
    is_predicate = trainable is None or (callable(trainable) and not isinstance(trainable, type))
    is_filter = takes_filters and isinstance(trainable, type | bool | tuple | list | types.EllipsisType)
    if not is_predicate and not is_filter:
        filters = ", or of an nnx model a filter such as nnx.LoRAParam or nnx.WithTag('x')" if takes_filters else ""
        raise LearnerError(
            f"trainable is {trainable!r}; it needs a predicate such as lambda path, x: 'head' in path{filters}",
            code="model-trainable-type",
        )


def abstract_adapter(
    make: Callable[..., Any], trainable: Trainable = None, *, shared: bool = False, seed: int = 0
) -> tuple[ModelAdapter, Any]:
    """Return the adapter of the model that a function makes, and a model that has its type. The model itself is not
    made: its arrays are shapes, and `fresh` makes them inside the program that needs them. Only the random streams are
    made.

    A function that cannot be traced, or that has the arrays already, is called for the model itself.

    Args:
      make: a function without arguments, or of `rngs`; it is called once where it can be traced.
      trainable: see `adapter_of`.
      shared: see `adapter_of`.
      seed: of the random streams that `make` gets, if it takes some.

    >>> adapter, _ = abstract_adapter(lambda: {"w": jnp.ones(2)})
    >>> type(adapter.params["w"]).__name__, adapter.fresh(jax.random.key(0))
    ('ShapeDtypeStruct', ({'w': Array([1., 1.], dtype=float32)}, {}))
    """
    traced: list[tuple[ModelAdapter, Any]] = []
    seeded = takes_rngs(make) is not None

    def split(key: Array) -> tuple[PyTree, PyTree, PyTree]:
        model = call_with_key(make, key)
        refuse_abstract(model)
        if is_instance_of(model, "flax.nnx", "Module"):
            _mark_traced(model)
        traced.append((adapter_of(model, trainable, shared=shared), model))
        adapter = traced[-1][0]
        return adapter.params, adapter.model_state, adapter.streams

    key = jax.random.key(seed)
    try:
        program, shapes = jax.make_jaxpr(split, return_shape=True)(key)
    except LearnerError:
        raise
    except Exception as error:  # whatever a function does with arrays that have no numbers yet
        model = call_with_key(make, key)
        return _on_one_device(model, trainable, shared, f"it cannot be traced: {first_line(error)}")
    constants = sum(x.nbytes for x in program.consts)
    if constants > MOST_CONSTANT:
        why = f"it has {constants} bytes of arrays before it is called"
        return _on_one_device(call_with_key(make, key), trainable, shared, why)
    adapter, model = traced[-1]
    run, tree = jaxpr_as_fun(program), jax.tree.structure(shapes)

    def fresh(key: Array) -> tuple[PyTree, PyTree, PyTree]:
        everything: tuple[PyTree, PyTree, PyTree] = jax.tree.unflatten(tree, run(key))
        return everything

    adapter.params, adapter.model_state, _ = shapes
    streams = jax.jit(lambda key: fresh(key)[2])  # XLA leaves out whatever else the program makes
    adapter.fresh_streams = share(streams, jax.local_devices()[:1], run_once=True)
    adapter.streams = adapter.fresh_streams(key)
    adapter.fresh, adapter.seeded = lambda key: fresh(key)[:2], seeded
    return adapter, model


def takes_rngs(make: Callable[..., Any]) -> str | None:
    """Return how a function that makes a model takes random streams: `"by name"`, as `rngs=`, or `"first"`. Return None
    if it takes no argument.

    Raises:
      LearnerError: it needs other arguments.

    >>> takes_rngs(lambda: None), takes_rngs(lambda rngs: None), takes_rngs(lambda width=4, *, rngs: None)
    (None, 'by name', 'by name')
    """
    function = make.func if isinstance(make, functools.partial) else make
    given = (make.args, make.keywords) if isinstance(make, functools.partial) else ((), {})
    if isinstance(function, type):  # the signature of a class may be that of its metaclass
        function, given = function.__init__, ((None, *given[0]), given[1])  # type: ignore[misc]
    try:
        parameters = inspect.signature(functools.partial(function, *given[0], **given[1])).parameters.values()
    except (TypeError, ValueError):
        return None
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1 or (needed and needed[0].kind is needed[0].KEYWORD_ONLY and needed[0].name != "rngs"):
        names = ", ".join(p.name for p in needed)
        raise LearnerError(
            f"the function that makes the model needs the arguments {names}; it may have one, the random streams "
            "(rngs: nnx.Rngs): functools.partial(function, ...) fixes the others",
            code="model-function-arguments",
            names=names,
        )
    if not needed:
        return None
    return "by name" if needed[0].name == "rngs" and needed[0].kind is not needed[0].POSITIONAL_ONLY else "first"


def call_with_key(make: Callable[..., Any], key: Array) -> Any:
    """Return the model that a function makes, of `nnx.Rngs(key)` if it takes random streams."""
    way = takes_rngs(make)
    if way is None:
        return make()
    from flax import nnx

    return make(rngs=nnx.Rngs(key)) if way == "by name" else make(nnx.Rngs(key))


def _mark_traced(model: Any) -> None:
    """Mark arrays that are attributes without a variable: nnx knows them as data, but not while they are traced.

    Raises:
      TypeError: there are some in a container that is no data for nnx, which refuses it where nothing is traced.
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


def refuse_abstract(model: Any) -> None:
    """Raise `LearnerError` for a model of shapes without numbers."""
    tree = model.variables if isinstance(model, Linen) else model
    if is_instance_of(model, "flax.nnx", "Module"):
        from flax import nnx

        tree = nnx.to_pure_dict(nnx.state(model))
    shapes = [path_name(p) for p, x in jax.tree_util.tree_leaves_with_path(tree) if isinstance(x, jax.ShapeDtypeStruct)]
    if shapes:
        raise LearnerError(
            f"the model ({type(model).__name__}) has shapes in place of arrays ({join_names(shapes, most=3)}), as "
            "nnx.eval_shape and jax.eval_shape make them: pass the function that makes the model, "
            "build(lambda: Model(...), ...); where the strategy splits models, each device makes its part of the "
            "arrays",
            code="model-only-shapes",
        )


def _on_one_device(model: Any, trainable: Trainable, shared: bool, why: str) -> tuple[ModelAdapter, Any]:
    adapter = adapter_of(model, trainable, shared=shared)
    adapter.note = f"the function that makes the model made it on one device, whole, before it was split: {why}"
    return adapter, model


def _no_parameters(model: Any, adapter: ModelAdapter, trainable: Trainable) -> str:
    others = [
        f"{name} ({getattr(x, 'dtype', type(x).__name__)})" for name, x in named_leaves(adapter.model_state).items()
    ]
    have = f"it has {', '.join(others[:8])}" if others else "it has no arrays"
    why = (
        "trainable= selects none of them, or freeze leaves none"
        if trainable is not None and others
        else "nothing in it can be differentiated: parameters are arrays of floats, such as jnp.asarray(0.5)"
    )
    return f"the model ({type(model).__name__}) has no parameters to train: {have}, and {why}"
