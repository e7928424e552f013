"""Models of every library, split into what is differentiated, what is carried, and how to put them together again.

A `Family` is all that differs between `flax.nnx`, `flax.linen` and pytrees (Equinox modules are pytrees): the rest of
the project sees `params` and `model_state`, and asks the family for a model inside the traced step.
"""

import abc
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.steps.state import named_leaves, path_name

Array = Any
PyTree = Any
Trainable = Any  # a predicate (path, array) -> bool; for nnx models also an nnx filter


class Family(abc.ABC):
    """How models of one library are split and merged.

    Attributes:
      params: what is differentiated, under its names.
      model_state: the other arrays of the model.
      kind: the library, for people.
    """

    kind: str
    params: PyTree
    model_state: PyTree

    @abc.abstractmethod
    def merge(self, params: PyTree, model_state: PyTree, key: Array, *, train: bool) -> Any:
        """A model for one trace, in train or eval mode, whose random streams start from `key`."""

    @abc.abstractmethod
    def read_all(self, model: Any) -> tuple[PyTree, PyTree]:
        """`(params, model_state)` of a model that `merge` made, or that a step returned, after it ran."""

    @abc.abstractmethod
    def rebuild(self, params: PyTree, model_state: PyTree) -> Any:
        """A model as the user gave it, outside of any trace, in eval mode."""

    @property
    def changes_in_place(self) -> bool:
        """Whether a step changes the model that it is given, rather than returning a new one."""
        return True

    def grads(self, grads: Any) -> PyTree:
        """Gradients that a step computed by itself, under the names of `params`."""
        return grads

    def read(self, model: Any) -> PyTree:
        """The model state after a step. A step that adds or removes variables is an error that names them."""
        params, model_state = self.read_all(model)
        what = "a step changed the variables of the model"
        same_structure(params, self.params, what)
        return same_structure(model_state, self.model_state, what)


def same_tree(a: PyTree, b: PyTree) -> bool:
    """Whether two trees have the same structure."""
    structures: list[Any] = [jax.tree.structure(a), jax.tree.structure(b)]
    return bool(structures[0] == structures[1])


def same_structure(got: PyTree, needed: PyTree, what: str) -> PyTree:
    """`got`, or an error that names the paths in which it differs from `needed`."""
    if same_tree(got, needed):
        return got
    new, old = set(named_leaves(got)), set(named_leaves(needed))
    parts = [
        f"{word} {', '.join(sorted(paths))}" for word, paths in (("new:", new - old), ("missing:", old - new)) if paths
    ]
    raise LearnerError(
        f"{what}; {'; '.join(parts) or 'the containers are of other types'}. Every variable must exist before "
        "training: "
        "make it in the model's __init__ (or run the model once before building the learner)"
    )


class NnxFamily(Family):
    """`flax.nnx` modules. Their random streams are not state: each step makes them from its key."""

    kind = "flax.nnx"

    def __init__(self, model: Any, trainable: Trainable = None):
        from flax import nnx  # costs 0.1 s, and whoever has such a model has paid it

        self._nnx = nnx
        self._kinds = (_nnx_filter(trainable), nnx.RngKey, nnx.RngCount, ...)
        parts: Any = nnx.split(model, *self._kinds)
        self._graph, params, keys, counts, rest = parts
        self.params, self.model_state = nnx.as_pure(params), nnx.as_pure(rest)
        self._keys, self._counts = (jax.tree.map(_copy, nnx.as_pure(s)) for s in (keys, counts))

    def merge(self, params: PyTree, model_state: PyTree, key: Array, *, train: bool) -> Any:
        """See `Family`. A stream that was split over an axis stays split."""
        leaves, tree = jax.tree.flatten(self._keys)
        folded = [jax.random.fold_in(key, i) for i in range(len(leaves))]
        keys = [k if old.shape == () else jax.random.split(k, old.shape) for k, old in zip(folded, leaves, strict=True)]
        counts = jax.tree.map(jnp.zeros_like, self._counts)
        model = self._nnx.merge(self._graph, params, jax.tree.unflatten(tree, keys), counts, model_state)
        model.train() if train else model.eval()
        return model

    def read_all(self, model: Any) -> tuple[PyTree, PyTree]:
        """See `Family`."""
        parts: Any = self._nnx.split(model, *self._kinds)
        _, params, _, _, rest = parts
        return self._nnx.as_pure(params), self._nnx.as_pure(rest)

    def rebuild(self, params: PyTree, model_state: PyTree) -> Any:
        """See `Family`. The random streams are those of the model that was given."""
        model = self._nnx.merge(self._graph, params, *jax.tree.map(_copy, (self._keys, self._counts)), model_state)
        model.eval()
        return model

    def grads(self, grads: Any) -> PyTree:
        """See `Family`. Takes what `nnx.grad` returns."""
        return self._nnx.as_pure(grads) if isinstance(grads, self._nnx.State) else grads


def _nnx_filter(trainable: Trainable) -> Any:
    from flax import nnx

    chosen = nnx.Param if trainable is None else trainable
    if isinstance(trainable, types.FunctionType | types.MethodType | partial):
        chosen = nnx.All(nnx.Param, lambda path, value: bool(trainable(".".join(map(str, path)), value)))
    # A filter such as nnx.PathContains("head") takes in all that is there.
    return nnx.All(chosen, nnx.Not(nnx.Any(nnx.RngState, nnx.BatchStat)), _is_inexact)


def _is_inexact(path: Any, value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


class Linen:
    """A `flax.linen` module with its variables, callable inside a step.

    Give it to `build` as the model. In a train step every collection but `params` is mutable and kept up to date;
    `train` says which mode the step runs in, for modules that take it as an argument:

        def train_step(model, batch):
            logits = model(batch["image"], train=model.train)

    Attributes:
      module: the `flax.linen.Module`.
      variables: its variables, `{"params": ..., "batch_stats": ...}`.
      rngs: the names of the random streams that the module uses, besides `params`.
      train: whether a train step is running.

    >>> import flax.linen as nn
    >>> module = nn.Dense(2)
    >>> model = Linen(module, module.init(jax.random.key(0), jnp.ones((1, 3))))
    >>> model(jnp.ones((4, 3))).shape
    (4, 2)
    """

    def __init__(self, module: Any, variables: Any, rngs: tuple[str, ...] = ("dropout",)):
        import flax.core

        if "params" not in variables:
            raise LearnerError(
                f"Linen got variables with {sorted(variables)}; it needs what module.init returns, with 'params'"
            )
        self.module = module
        self.variables: dict[str, Any] = dict(flax.core.unfreeze(variables))
        self.rngs = rngs
        self.train = False
        self._key: Array | None = None
        self._calls = 0

    def __call__(self, *args: Any, method: Any = None, **kwargs: Any) -> Any:
        """`module.apply` with the variables as they are, and with random streams while training."""
        rngs = {}
        if self._key is not None:
            key = jax.random.fold_in(self._key, self._calls)
            rngs = {name: jax.random.fold_in(key, i) for i, name in enumerate(self.rngs)}
        self._calls += 1
        if not self.train:
            return self.module.apply(self.variables, *args, rngs=rngs, method=method, **kwargs)
        mutable = [name for name in self.variables if name != "params"]
        out, changed = self.module.apply(self.variables, *args, rngs=rngs, mutable=mutable, method=method, **kwargs)
        self.variables = {**self.variables, **changed}
        return out


class LinenFamily(Family):
    """`Linen(module, variables)`."""

    kind = "flax.linen"

    def __init__(self, model: Linen, trainable: Trainable = None):
        self._model = model
        state = {name: v for name, v in model.variables.items() if name != "params"}
        self._all = TreeFamily(model.variables["params"], trainable)
        self.params = self._all.params
        self.model_state = {"collections": state, "frozen": self._all.model_state}

    def merge(self, params: PyTree, model_state: PyTree, key: Array, *, train: bool) -> Linen:
        """See `Family`."""
        made = self._rebuilt(params, model_state)
        made.train, made._key = train, key
        return made

    def _rebuilt(self, params: PyTree, model_state: PyTree) -> Linen:
        whole = self._all.combine(params, model_state["frozen"])
        return Linen(self._model.module, {"params": whole, **model_state["collections"]}, self._model.rngs)

    def read_all(self, model: Linen) -> tuple[PyTree, PyTree]:
        """See `Family`."""
        params, frozen = self._all.read_all(model.variables["params"])
        state = {name: v for name, v in model.variables.items() if name != "params"}
        return params, {"collections": state, "frozen": frozen}

    def rebuild(self, params: PyTree, model_state: PyTree) -> Linen:
        """See `Family`."""
        return self._rebuilt(params, model_state)


class TreeFamily(Family):
    """Any pytree: a dict of arrays, an Equinox module, a tuple of a module and its `eqx.nn.State`.

    Inexact arrays are differentiated, other arrays and everything inside an Equinox `State` are carried, the remaining
    leaves (functions, strings, Python numbers) are fixed.
    """

    kind = "pytree"

    def __init__(self, model: PyTree, trainable: Trainable = None, *, shared: bool = False):
        self._equinox = _equinox_of(model)
        self.kind = "equinox" if self._equinox else "pytree"
        paths, tree = jax.tree_util.tree_flatten_with_path(model)
        self._tree: Any = tree
        self._names = [path_name(path) for path, _ in paths]
        leaves = [leaf for _, leaf in paths]
        _refuse_same_names(self._names)
        if not shared:
            _refuse_shared(self._names, leaves)
        in_state = self._leaves_in_state(model)
        wanted = trainable or (lambda name, leaf: True)
        self._arrays = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]
        self._trained = [
            array and jnp.issubdtype(leaf.dtype, jnp.inexact) and not carried and bool(wanted(name, leaf))
            for name, leaf, array, carried in zip(self._names, leaves, self._arrays, in_state, strict=True)
        ]
        self._static = [None if array else leaf for leaf, array in zip(leaves, self._arrays, strict=True)]
        self.params, self.model_state = self._divide(leaves)

    def _leaves_in_state(self, model: PyTree) -> list[bool]:
        if not self._equinox:
            return [False] * len(self._names)
        state = self._equinox.nn.State
        nodes = jax.tree.leaves(model, is_leaf=lambda node: isinstance(node, state))
        return [isinstance(node, state) for node in nodes for _ in jax.tree.leaves(node)]

    def _divide(self, leaves: list[Any]) -> tuple[PyTree, dict[str, Array]]:
        params = self._tree.unflatten(
            [leaf if trained else None for leaf, trained in zip(leaves, self._trained, strict=True)]
        )
        rows = zip(self._names, leaves, self._arrays, self._trained, strict=True)
        return params, {name: leaf for name, leaf, array, trained in rows if array and not trained}

    def combine(self, params: PyTree, model_state: dict[str, Array]) -> PyTree:
        """The whole tree again."""
        trained = iter(jax.tree.leaves(params))
        rows = zip(self._names, self._static, self._arrays, self._trained, strict=True)
        leaves = [next(trained) if t else model_state[name] if array else static for name, static, array, t in rows]
        return self._tree.unflatten(leaves)

    def merge(self, params: PyTree, model_state: PyTree, key: Array, *, train: bool) -> PyTree:
        """See `Family`. Randomness reaches these models through the step's `rng` argument."""
        model = self.combine(params, model_state)
        return self._equinox.nn.inference_mode(model, value=not train) if self._equinox else model

    def read_all(self, model: PyTree) -> tuple[PyTree, PyTree]:
        """See `Family`."""
        rows = jax.tree_util.tree_leaves_with_path(model)
        if [path_name(path) for path, _ in rows] != self._names:
            same_structure(model, self._tree.unflatten(self._names), "a step returned another model than it was given")
        return self._divide([leaf for _, leaf in rows])

    def rebuild(self, params: PyTree, model_state: PyTree) -> PyTree:
        """See `Family`."""
        return self.merge(params, model_state, None, train=False)

    @property
    def changes_in_place(self) -> bool:
        """See `Family`."""
        return False

    def grads(self, grads: Any) -> PyTree:
        """See `Family`. Takes what `jax.grad` or `eqx.filter_grad` return."""
        rows = jax.tree_util.tree_leaves_with_path(grads)
        if [path_name(path) for path, _ in rows] != self._names:
            return grads
        return self._divide([leaf for _, leaf in rows])[0]


def _equinox_of(model: PyTree) -> Any:
    """The equinox module, if the model holds anything of it. It is never imported for that."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return None
    is_module = lambda node: isinstance(node, equinox.Module | equinox.nn.State)  # noqa: E731
    return equinox if any(map(is_module, jax.tree.leaves(model, is_leaf=is_module))) else None


def _refuse_same_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise LearnerError(
            f"two leaves of the model are named {', '.join(twice)}, as {{'a.b': x}} and {{'a': {{'b': y}}}} would be; "
            "give them other names"
        )


def _refuse_shared(names: list[str], leaves: list[Any]) -> None:
    seen: dict[int, str] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if isinstance(leaf, jax.Array | np.ndarray) and leaf.size and seen.setdefault(id(leaf), name) != name:
            raise LearnerError(
                f"the model holds the same array twice, as {seen[id(leaf)]} and {name}; in a pytree these "
                "would become two arrays "
                "that train apart. Hold it once and use it in both places (or copy it with jnp.copy if they "
                "should be two)"
            )


def _copy(x: Array) -> Array:
    return jnp.array(x, x.dtype, copy=True)


def family_of(model: Any, trainable: Trainable = None, *, shared: bool = False) -> Family:
    """The family of a model, with the model split.

    Args:
      model: an `nnx.Module`, a `Linen`, or any pytree with arrays (an Equinox module, a dict).
      trainable: what is differentiated: a predicate `(path, array) -> bool` such as `lambda path, x: "head" in path`,
        or for nnx also a filter such as `nnx.LoRAParam`. Default: `nnx.Param`, linen's `params`, inexact arrays
        elsewhere.
      shared: whether a pytree may hold one array in several places, which become arrays of their own. The state of an
        `update=` may: the first states of some optimizers hold the parameters.

    >>> family = family_of({"w": jnp.ones(2), "n": jnp.array(3)})
    >>> list(named_leaves(family.params)), list(family.model_state)
    (['w'], ['n'])
    """
    kind: Callable[[Any, Trainable], Family] = partial(TreeFamily, shared=shared)
    if is_instance_of(model, "flax.nnx", "Module"):
        kind = NnxFamily
    elif isinstance(model, Linen):
        kind = LinenFamily
    elif is_instance_of(model, "flax.linen", "Module"):
        raise LearnerError(
            f"the model is a linen module without variables ({type(model).__name__}); pass Linen(module, "
            "variables) with "
            "variables = module.init(key, example_input)"
        )
    family = kind(model, trainable)
    if not jax.tree.leaves(family.params):
        raise LearnerError(_no_parameters(model, family, trainable))
    return family


def is_instance_of(value: Any, module: str, name: str) -> bool:
    """Whether a value is of a class of an optional library, which is never imported for that."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def _no_parameters(model: Any, family: Family, trainable: Trainable) -> str:
    others = list(named_leaves(family.model_state))
    have = f"it has {', '.join(others[:8])}" if others else "it has no arrays"
    why = (
        "trainable= selects none of them" if trainable is not None and others else "nothing in it can be differentiated"
    )
    return f"the model ({type(model).__name__}) has no parameters to train: {have}, and {why}"
