"""Models and gradients by path: trainable parameters, their partition, and models with other values."""

import copy
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError, near, one_error
from learner.models.adapters import adapter_of, check_trainable
from learner.models.base import Trainable
from learner.models.linen import Linen
from learner.models.masks import as_predicate
from learner.models.matching import check_predicate
from learner.models.model_types import ModelT
from learner.models.nnx_modules import nnx_modules, set_modes
from learner.models.pytrees import TreeAdapter, equinox_of, inference_mode
from learner.models.tree_structure import TreeStructure, is_module, without_variables
from learner.util.trees import named_leaves, path_name

Array = Any
PyTree = Any
Choice = str | Callable[[str, Array], bool]


def trainable_params(model: Any, trainable: Trainable = None) -> PyTree:
    """Return the differentiated arrays of a model under their names: a tree of arrays, as optimizers accept it.

    Args:
      model: an `nnx.Module`, a `Linen`, or any pytree (an Equinox module, a dict, gradients).
      trainable: a predicate `(path, array) -> bool`, or a tree of booleans; for nnx also an nnx filter. Default:
        `nnx.Param`, linen's `params`, inexact arrays elsewhere.

    Returns:
      For nnx and linen the variables in their dicts, otherwise the tree itself, with `None` for everything else.

    >>> trainable_params({"w": jnp.ones(2), "n": jnp.array(3)})
    {'n': None, 'w': Array([1., 1.], dtype=float32)}
    """
    if is_module(model):
        return adapter_of(model, trainable).params
    trainable = as_predicate(trainable)
    check_trainable(trainable, takes_filters=bool(nnx_modules(model)))
    tree = model.variables["params"] if isinstance(model, Linen) else without_variables(model)
    return TreeAdapter(tree, trainable, shared=True).params


def with_parameters(model: ModelT, params: PyTree) -> ModelT:
    """Return the model with the values of `params`, by path. Parameters that are not in `params` keep their values.

    Args:
      model: as for `trainable_params`; it is not changed.
      params: arrays of the same shapes and dtypes, for all or some of the parameters.

    Raises:
      LearnerError: the model lacks paths, or has arrays of other shapes or dtypes there; the message lists all of them.

    >>> with_parameters({"w": jnp.ones(2), "n": jnp.array(3)}, {"w": jnp.zeros(2)})
    {'n': Array(3, dtype=int32, weak_type=True), 'w': Array([0., 0.], dtype=float32)}
    """
    new = named_leaves(without_variables(params))
    if is_module(model):
        from flax import nnx

        graph, state = nnx.split(model)
        return nnx.merge(graph, _replaced(nnx.as_pure(state), new))
    if isinstance(model, Linen):
        copied = copy.copy(model)
        copied.variables = {**model.variables, "params": _replaced(model.variables["params"], new)}
        return copied
    return _replaced(model, new)


def partition_params(tree: PyTree, *chosen: Choice) -> tuple[PyTree, PyTree]:
    """Split gradients or parameters into a part and the rest, for several optimizers or learning rates in one model.

    Args:
      tree: gradients, or parameters, or a model.
      chosen: paths, each of an array (`"conv1.bias"`) or of all arrays below it (`"conv1"`); or predicates
        `(path, array) -> bool`.

    Returns:
      `(part, rest)`: trees like `trainable_params(tree)`, each with `None` for the leaves of the other one.

    Raises:
      LearnerError: a path or a predicate selects nothing; the message lists all of these.

    >>> grads = {"conv1": {"bias": jnp.ones(1), "kernel": jnp.ones(2)}, "head": jnp.zeros(1)}
    >>> biases, rest = partition_params(grads, lambda path, array: path.endswith("bias"))
    >>> conv1, rest = partition_params(rest, "conv1")
    >>> conv1
    {'conv1': {'bias': None, 'kernel': Array([1., 1.], dtype=float32)}, 'head': None}
    >>> rest
    {'conv1': {'bias': None, 'kernel': None}, 'head': Array([0.], dtype=float32)}
    >>> partition_params(grads, "conv2")
    Traceback (most recent call last):
    learner.errors.LearnerError: partition_params found nothing at 'conv2': did you mean 'conv1'?
    """
    params = trainable_params(tree)
    leaves = named_leaves(params)
    chosen_paths, problems = set(), []
    for choice in chosen:
        paths = {name for name, leaf in leaves.items() if _is_chosen(choice, name, leaf)}
        if not paths:
            problems.append(_nothing_at(choice, list(leaves)))
        chosen_paths |= paths
    if not chosen:
        problems.append('partition_params got nothing to partition: give it paths, such as "conv1"')
    if problems:
        raise one_error(problems, "the parameters cannot be partitioned", code="params-partition-unmatched")

    def side(which: bool) -> PyTree:
        keep = lambda path, x: x if (path_name(path) in chosen_paths) == which else None  # noqa: E731
        return jax.tree_util.tree_map_with_path(keep, params)

    return side(True), side(False)


def _is_chosen(choice: Choice, name: str, leaf: Array) -> bool:
    if isinstance(choice, str):
        return name == choice or name.startswith(choice + ".")
    if not callable(choice):
        raise LearnerError(
            f"partition_params got {choice!r}; it needs paths (text) or predicates (path, array) -> bool",
            code="params-partition-type",
        )
    check_predicate(choice)
    return bool(choice(name, leaf))


def _nothing_at(choice: Choice, names: list[str]) -> str:
    if not isinstance(choice, str):
        name = getattr(choice, "__name__", repr(choice))
        return f"the predicate {name} of partition_params chose nothing; {near('', _tops(names))}"
    known = {".".join(name.split(".")[: depth + 1]): None for name in names for depth in range(name.count(".") + 1)}
    if deeper := [name for name in known if name.endswith(f".{choice}")]:
        return f"partition_params found nothing at {choice!r}: did you mean {' or '.join(map(repr, deeper[:3]))}?"
    hint = near(choice, list(known))
    return f"partition_params found nothing at {choice!r}: {hint if hint.startswith('did') else near('', _tops(names))}"


def _tops(names: list[str]) -> list[str]:
    return list(dict.fromkeys(name.split(".")[0] for name in names))


def eval_mode(model: ModelT) -> ModelT:
    """Return a copy of a model in eval mode: no dropout, running statistics, and any other modes of its library.

    Later training does not change its values. The modules of a pytree get the mode; one without modules is returned
    unchanged.

    >>> from flax import nnx
    >>> dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    >>> eval_mode(dropout)(jnp.ones(3)), eval_mode({"drop": dropout})["drop"].deterministic, dropout.deterministic
    (Array([1., 1., 1.], dtype=float32), True, False)
    """
    return _in_mode(model, train=False)


def train_mode(model: ModelT) -> ModelT:
    """Return a copy of a model in train mode; see `eval_mode`. `value_and_grad` does this automatically."""
    return _in_mode(model, train=True)


def _in_mode(model: ModelT, train: bool) -> ModelT:
    if is_module(model):
        from flax import nnx

        graph, state = nnx.split(model)
        module: Any = nnx.merge(graph, nnx.as_pure(state))
        module.train() if train else module.eval()
        in_mode: ModelT = module
        return in_mode
    if isinstance(model, Linen):
        result = copy.copy(model)
        result.train = train
        return result
    tree: ModelT = inference_mode(model, not train) if equinox_of(model) else model
    if nnx_modules(model):
        tree = TreeStructure(model).unflatten(jax.tree.leaves(tree))  # of new modules
        set_modes(tree, train)
    return tree


def named_arrays(model: Any) -> dict[str, Array]:
    """Return all arrays of a model by path, differentiated or not, with the paths of `trainable_params`."""
    if is_module(model):
        from flax import nnx

        return named_leaves(nnx.as_pure(nnx.state(model)))
    return named_leaves(model.variables["params"] if isinstance(model, Linen) else without_variables(model))


def _replaced(tree: ModelT, new: dict[str, Array]) -> ModelT:
    """Return the tree with other arrays at the paths of `new`."""
    old, problems = named_leaves(tree), []
    for name, x in new.items():
        if name not in old:
            problems.append(f"the model has no {name!r}: {near(name, list(old))}")
        elif (current := _described(old[name])) != _described(x):
            problems.append(f"{name} of the model is {current}, and {_described(x)} was given")
    if problems:
        raise one_error(problems, "these are other parameters", code="params-differ")
    structure = TreeStructure(tree)
    for name, first in structure.tied.items():
        if name in new:
            new.setdefault(first, new[name])
    leaves = zip(structure.names, jax.tree.leaves(tree), strict=True)
    replaced: ModelT = structure.unflatten([new.get(name, x) for name, x in leaves])
    return replaced


def _described(x: Any) -> str:
    is_array = hasattr(x, "dtype") or isinstance(x, bool | int | float | complex)
    return f"{jnp.result_type(x)}{list(jnp.shape(x))}" if is_array else f"a {type(x).__name__}"
