"""The interface to the models of one library.

A `ModelAdapter` has everything that differs between `flax.nnx`, `flax.linen` and pytrees (Equinox modules are pytrees).
The rest of the project uses `params` and `model_state`, and requests a model from the adapter inside the traced step.
"""

import abc
import copy
import types
from collections.abc import Callable, Collection, Container, Mapping
from typing import Any

import jax

from learner.errors import LearnerError
from learner.util.text import join_names
from learner.util.trees import named_leaves

Array = Any
PyTree = Any
Trainable = Any  # a predicate (path, array) -> bool, or a tree of booleans; for nnx models also an nnx filter
PARAMS, ARRAYS, STATE = "params", "arrays", "state"  # kinds of arrays


class NothingToTrainError(LearnerError):
    """Raised for a model without arrays to differentiate.

    Attributes:
      adapter: the adapter of the model.
    """

    def __init__(self, message: str, adapter: "ModelAdapter", /, *, code: str, **fields: Any) -> None:
        super().__init__(message, code=code, **fields)
        self.adapter = adapter


VARIABLES_REMEDY = (
    "Every variable must exist before training: make it in the model's __init__ (or run the model once before building "
    "the learner). Values that a module sows are no state: output, sown = nnx.capture(model, nnx.Intermediate)(x)"
)
COLLECTIONS_REMEDY = (
    "Every variable must be among those of Linen(module, variables) before training. A collection that the module "
    "sows into is not state: leave it out, and read it with out, sown = model(x, mutable=['losses'])"
)
MOST_NAMED = 8  # paths, in a message
TREES_REMEDY = (
    "Return everything that the step got, in the same containers. Variables of modules must exist before training"
)
GRADIENTS_REMEDY = "Return the gradients of jax.grad with respect to the model that the step got"


class ModelAdapter(abc.ABC):
    """The interface to models of one library, which splits and merges them.

    Attributes:
      params: the differentiated arrays, under their names.
      model_state: the other arrays of the model.
      frozen: booleans in the structure of `model_state`, True for parameters that are not trained.
      kinds: the kind of each array of `model_state`, in its structure: `params`, its collection or type of variable
        (`batch_stats`), `state` for arrays of an Equinox `State`, `arrays` for others.
      kind: the library, for messages.
      name: the name of the model's class.
      streams: the random streams of the given model, which are in neither tree.
      fresh: creates `(params, model_state)` from a random key, inside a program, if they, or some of their arrays, are
        shapes; see `abstract_adapter`.
      fresh_streams: creates `streams` from a random key. None if they are those of the given model.
      seeded: True if the function that makes the model uses random streams, so that the key matters.
      note: the reason why `fresh` is missing although it was wanted, for messages.
      annotations: the axes of a mesh that the model's own annotations name, by parameter (`with_partitioning` of nnx
        and linen).
      given_modes: by path, True for each layer that has modes and was given in eval mode.
      kept_in_eval: the paths of layers that train mode leaves in eval mode; see `keeping_in_eval`.
      rngs: the names of the random streams that each call of a linen module gets.
      variables_remedy: the remedy if a step adds or removes variables.
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
    given_modes: Mapping[str, bool] = types.MappingProxyType({})
    kept_in_eval: frozenset[str] = frozenset()
    rngs: tuple[str, ...] = ()
    variables_remedy = VARIABLES_REMEDY

    @abc.abstractmethod
    def merge(self, params: PyTree, model_state: PyTree, key: Array | None, *, train: bool) -> Any:
        """Return a model for one trace, in train or eval mode. Its random streams start from `key`; without a key, from
        their state in the given model.
        """

    @abc.abstractmethod
    def read_all(self, model: Any) -> tuple[PyTree, PyTree]:
        """Return `(params, model_state)` of a model from `merge`, or from a step, after it ran."""

    @abc.abstractmethod
    def rebuild(self, params: PyTree, model_state: PyTree) -> Any:
        """Return a model like the user's, outside any trace, in eval mode."""

    @abc.abstractmethod
    def put(self, model: Any, model_state: PyTree, streams: PyTree) -> Any:
        """Update the original model with the state after a step, in place if its library does so, and return it."""

    def streams_of(self, model: Any) -> PyTree:
        """Return the `streams` of a model from `merge`, after it ran."""
        return ()

    def with_key(self, key: Array) -> "ModelAdapter":
        """Return the adapter of the model that the function makes from another random key."""
        if self.fresh_streams is None:
            return self
        adapter = copy.copy(self)
        adapter.streams = self.fresh_streams(key)
        return adapter

    def keeping_in_eval(self, layers: Collection[str]) -> "ModelAdapter":
        """Return an adapter whose models have these layers in eval mode, also in train mode."""
        adapter = copy.copy(self)
        adapter.kept_in_eval = frozenset(layers)
        return adapter

    def sync_batch_norm(self, model: Any, axis: str) -> None:  # noqa: B027 (most have no such layers)
        """Make the BatchNorm layers of a merged model also use the statistics over a mapped axis."""

    def is_synced(self, model: Any) -> bool:
        """Return True if the step ran layers whose statistics are synchronized."""
        return False

    @property
    def changes_in_place(self) -> bool:
        """True if a step changes its model in place, rather than returning a new one."""
        return True

    @property
    def constants(self) -> list[str]:
        """The names of Python floats in a tree of arrays, which are constants of the program."""
        return []

    @property
    def tied(self) -> Mapping[str, str]:
        """The path of the first place of a variable by the path of each further place, in pytrees of nnx modules."""
        return {}

    def attributes(self, model: Any) -> dict[str, Any]:
        """Return, by path, the attributes other than variables and modules that a step may assign."""
        return {}

    def with_own_containers(self, model: Any) -> Any:
        """Return a model from `merge` in containers that a step cannot change, with the same variables. A model of
        modules is returned as it is.
        """
        return model

    def items(self, model: Any) -> dict[str, Any]:
        """Return, by path, the values in the containers of a model that lose what a step assigns to them."""
        return {}

    def grads(self, grads: Any) -> PyTree:
        """Return gradients that the step computed in the structure of `params`, without those of parameters that are
        not trained. Gradients of other paths are returned as they are.
        """
        return select_leaves(named_leaves(grads), self.params, named_leaves(self.model_state), grads)

    def read(self, model: Any) -> PyTree:
        """Return the model state after a step. Raise if the step added or removed variables."""
        params, model_state = self.read_all(model)
        what = "a step changed the variables of the model"
        same_structure(params, self.params, what, self.variables_remedy)
        return same_structure(model_state, self.model_state, what, self.variables_remedy)


def select_leaves(given: Mapping[str, Any], tree: PyTree, known: Container[str], default: PyTree) -> PyTree:
    """Return the tree with the leaves of `given` by path. Return the default if `given` lacks one of them, or has
    others that are not `known`.

    >>> select_leaves({"w": 1, "frozen": 2}, {"w": 0, "frozen": None}, {"frozen"}, None)
    {'frozen': None, 'w': 1}
    """
    names = list(named_leaves(tree))
    if not given.keys() >= set(names) or any(name not in known for name in given.keys() - set(names)):
        return default
    structure: Any = jax.tree.structure(tree)
    return structure.unflatten([given[name] for name in names])


def same_tree(a: PyTree, b: PyTree) -> bool:
    """Return True if two trees have the same structure."""
    structures: list[Any] = [jax.tree.structure(a), jax.tree.structure(b)]
    return bool(structures[0] == structures[1])


def same_structure(got: PyTree, needed: PyTree, what: str, remedy: str = VARIABLES_REMEDY) -> PyTree:
    """Return `got` if it has the structure of `needed`. Otherwise raise an error with the paths that differ, and the
    remedy.
    """
    if same_tree(got, needed):
        return got
    new, old = set(named_leaves(got)), set(named_leaves(needed))
    parts = [
        f"{word} {join_names(sorted(paths), MOST_NAMED)}"
        for word, paths in (("new:", new - old), ("missing:", old - new))
        if paths
    ]
    raise LearnerError(
        f"{what}; {'; '.join(parts) or 'the containers are of other types'}. {remedy}",
        code="model-structure-changed",
    )
