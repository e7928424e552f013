"""The interface to the models of one library.

A `ModelAdapter` is all that differs between `flax.nnx`, `flax.linen` and pytrees (Equinox modules are pytrees): the
rest of the project sees `params` and `model_state`, and requests a model from the adapter inside the traced step.
"""

import abc
import copy
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax

from learner.errors import LearnerError
from learner.util.trees import named_leaves

Array = Any
PyTree = Any
Trainable = Any  # a predicate (path, array) -> bool, or a tree of booleans; for nnx models also an nnx filter
PARAMS, ARRAYS = "params", "arrays"  # kinds of arrays


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
OF_GRADIENTS = "Return those of jax.grad with respect to the model that the step got"


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
