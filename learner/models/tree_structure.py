"""The structure of pytrees in which one variable of `flax.nnx` may be in several places, such as tied weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from learner.util.optional import is_instance_of
from learner.util.trees import path_name

PyTree = Any


class TreeStructure:
    """The structure of a pytree. Unlike a tree that JAX rebuilds, one that it rebuilds has a variable of nnx that is in
    several places in all of them.

    Attributes:
      names: the path of each leaf.
      origins: for each leaf the index of the first leaf of the same variable: its own index in the first place.
      tied: the path of the first place, by the path of each further place.

    >>> from flax import nnx
    >>> kernel = nnx.Param(jax.numpy.ones(2))
    >>> structure = TreeStructure({"a": kernel, "b": kernel})
    >>> structure.tied
    {'b.value': 'a.value'}
    >>> tree = structure.unflatten([jax.numpy.zeros(2), None])
    >>> tree["a"] is tree["b"]
    True
    """

    def __init__(self, tree: PyTree):
        self.names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        nodes, self._outer = jax.tree.flatten(tree, is_leaf=is_variable)
        # The state of an optimizer may hold the parameters it began with, in named tuples: they are arrays of its own.
        groups = _groups(tree) if len({id(node) for node in nodes}) < len(nodes) else [0] * len(nodes)
        firsts: dict[tuple[int, int], int] = {}
        self._nodes: list[tuple[int, Any]] = []  # the index of the node that holds the leaves, and their structure
        self.origins: list[int] = []
        starts: list[int] = []
        for index, node in enumerate(nodes):
            first = firsts.setdefault((id(node), groups[index]), index) if is_variable(node) else index
            structure: Any = jax.tree.structure(node)
            starts.append(len(self.origins))
            self._nodes.append((first, structure))
            self.origins += [starts[first] + i for i in range(structure.num_leaves)]
        self.tied = {self.names[i]: self.names[origin] for i, origin in enumerate(self.origins) if i != origin}

    def add_to_first(self, grads: Mapping[str, Any]) -> dict[str, Any]:
        """Return gradients by path, with those of all places of a variable added to that of the first place."""
        added = {name: grad for name, grad in grads.items() if name not in self.tied}
        for name, first in self.tied.items():
            if name in grads and jax.numpy.issubdtype(grads[name].dtype, jax.numpy.inexact):
                added[first] = added[first] + grads[name] if first in added else grads[name]
        return added

    def unflatten(self, leaves: Sequence[Any]) -> PyTree:
        """Return the tree with other leaves. Those of further places of a variable are not used."""
        nodes: list[Any] = []
        start = 0
        for index, (first, structure) in enumerate(self._nodes):
            own = leaves[start : start + structure.num_leaves]
            start += structure.num_leaves
            nodes.append(structure.unflatten(own) if first == index else nodes[first])
        outer: Any = self._outer
        return outer.unflatten(nodes)


def _groups(tree: PyTree) -> list[int]:
    """Return for each variable of `flax.nnx` and each other leaf the identity of the innermost named tuple that holds
    it, or 0.
    """
    groups: list[int] = []

    def visit(node: Any, group: int) -> None:
        if is_variable(node) or jax.tree_util.all_leaves([node]):
            groups.append(group)
            return
        inner = id(node) if isinstance(node, tuple) and hasattr(node, "_fields") else group
        for child in jax.tree.leaves(node, is_leaf=lambda x: x is not node):
            if child is not None:
                visit(child, inner)

    visit(tree, 0)
    return groups


def holders_of(tree: PyTree) -> list[Any]:
    """Return for each leaf of a pytree the variable of `flax.nnx` or the box of linen (`Partitioned`) that holds it, or
    else the leaf itself.
    """
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: is_variable(node) or is_box(node))
    return [node for node in nodes for _ in jax.tree.leaves(node)]


def is_module(node: Any) -> bool:
    """Return True for a module of `flax.nnx`, without importing it."""
    return is_instance_of(node, "flax.nnx", "Module")


def is_variable(node: Any) -> bool:
    """Return True for a variable of `flax.nnx`, without importing it."""
    return is_instance_of(node, "flax.nnx", "Variable")


def without_variables(tree: PyTree) -> PyTree:
    """Return an `nnx.State`, such as the gradients of `nnx.grad`, as plain arrays: the paths of its variables end in
    `.value`. Other trees are returned unchanged.
    """
    if is_instance_of(tree, "flax.nnx", "State"):
        from flax import nnx

        return nnx.as_pure(tree)
    return tree


def is_box(node: Any) -> bool:
    """Return True for an array of linen with the names of its axes (`nn.with_partitioning`), without importing it."""
    return is_instance_of(node, "flax.core.meta", "Partitioned")
