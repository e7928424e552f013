"""The update of a custom loop: it updates the parameters that have gradients; the learning rate is an argument."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError, near, one_error
from learner.models.base import same_tree, select_leaves
from learner.models.model_types import ModelT
from learner.models.params import named_arrays, trainable_params, with_parameters
from learner.models.tree_structure import TreeStructure
from learner.steps.optimizer import OptimizerFn, init_optimizer, reads_rate_in_init, takes_each_example, update_params
from learner.steps.optimizer_checks import not_a_function_of_the_rate
from learner.steps.tree_math import like
from learner.util.text import join_names, name_of
from learner.util.trees import named_leaves, path_name

Array = Any
PyTree = Any
MOST_NAMED = 4


class Optimizer:
    """An optax optimizer that takes the learning rate as an argument and updates the parameters that have gradients.

    Use several of them, or one with several states and rates, for parts of one model; see `partition_params`.

    >>> import optax
    >>> from learner.models.params import partition_params
    >>> opt, model = Optimizer(optax.adam), {"body": jnp.ones(1), "head": jnp.ones(1)}
    >>> grads = {"body": jnp.ones(1), "head": jnp.ones(1)}
    >>> head, rest = partition_params(grads, "head")
    >>> opt_state = opt.init(partition_params(model, "head")[0])
    >>> model, opt_state = opt.step(0.5, model, head, opt_state)
    >>> print(model["body"], model["head"].round(3))
    [1.] [0.5]
    """

    def __init__(self, optimizer: OptimizerFn):
        """Use `optimizer`, a function of the learning rate: `optax.adamw`, `partial(optax.adamw, weight_decay=1e-4)` or
        `lambda lr: optax.chain(...)`.

        Raises:
          LearnerError: `optimizer` is not such a function, but for example `optax.adamw(1e-3)`, which has its rate.
        """
        if problem := not_a_function_of_the_rate(optimizer):
            raise LearnerError(problem, code="optimizer-unusable")
        self._optimizer = optimizer

    def __repr__(self) -> str:
        return f"Optimizer({name_of(self._optimizer)})"

    def init(self, params: PyTree, lr: Any = None) -> PyTree:
        """Return the initial state for these parameters.

        Args:
          params: a model, `trainable_params(model, trainable)`, or a part of it from `partition_params`.
          lr: the first rate, for optimizers that keep it in their state (`optax.rprop`).

        Raises:
          LearnerError: the optimizer needs the rate, and `lr` is not given.
        """
        params = trainable_params(params)
        if lr is None and reads_rate_in_init(self._optimizer, params):
            raise LearnerError(
                f"the state of {self!r} depends on the first rate: init(params, lr=1e-3)", code="optimizer-rate-needed"
            )
        return init_optimizer(self._optimizer, None, params, _checked_lr(0.0 if lr is None else lr))

    def step(
        self,
        lr: Any,
        params: ModelT,
        grads: PyTree,
        opt_state: PyTree,
        *,
        loss: Array | None = None,
        value_fn: Callable[[PyTree], Array] | None = None,
    ) -> tuple[ModelT, PyTree]:
        """Return `(params, opt_state)` after one update of the parameters that have gradients.

        Args:
          lr: the rate of this step, a number or a float scalar.
          params: a model, or parameters. Parameters without gradients stay unchanged.
          grads: the gradients of all parameters or of a part, from `value_and_grad` and `partition_params`; for
            `optax.contrib.dpsgd`, the gradients of each example, `[examples, ...]`, from `jax.vmap(jax.grad(...))`.
          opt_state: the state from `init` for the same part, or from an earlier step.
          loss: the loss, for optimizers that use it (`optax.polyak_sgd`).
          value_fn: the loss as a function of the updated part, for optimizers that evaluate it again (`optax.lbfgs`).

        Raises:
          LearnerError: a gradient has no parameter or another shape, or the state belongs to another part.
        """
        grads, lr = trainable_params(grads), _checked_lr(lr)
        if not jax.tree.leaves(grads):
            raise LearnerError(
                "there are no gradients; the order is step(lr, params, grads, opt_state)",
                code="optimizer-gradients-missing",
            )
        grads = _in_containers_of(params, grads)
        part = self._part_like(params, grads)
        self._refuse_other_state(params, part, opt_state)
        try:
            new, opt_state = update_params(self._optimizer, lr, grads, opt_state, part, loss=loss, value_fn=value_fn)
        except TypeError as error:
            if loss is not None or "value" not in str(error):
                raise
            raise LearnerError(
                f"{self!r} needs the loss: step(lr, params, grads, opt_state, loss=output.loss)",
                code="optimizer-loss-needed",
            ) from error
        return with_parameters(params, like(new, part, "the parameters")), opt_state

    def _part_like(self, params: Any, grads: PyTree) -> PyTree:
        """Return the parameters that have gradients, in the containers of those."""
        arrays, problems, are_known = named_arrays(params), [], True
        for name, g in named_leaves(grads).items():
            if name not in arrays:
                are_known = False
                problems.append(f"there is a gradient of {name}, which is not a parameter: {near(name, list(arrays))}")
            elif jnp.shape(g) != (shape := jnp.shape(arrays[name])):
                problems.append(f"the gradient of {name} is {list(jnp.shape(g))}, and {name} is {list(shape)}")
        part = jax.tree_util.tree_map_with_path(lambda path, _: arrays.get(path_name(path)), grads)
        if problems and not (are_known and takes_each_example(self._optimizer, part)):
            raise one_error(
                problems, "these gradients are not of these parameters", code="optimizer-gradients-mismatch"
            )
        return part

    def _refuse_other_state(self, params: Any, part: PyTree, opt_state: PyTree) -> None:
        needed = jax.eval_shape(lambda p: init_optimizer(self._optimizer, None, p, jnp.float32(0)), part)
        trees: list[Any] = [jax.tree.structure(tree) for tree in (needed, opt_state)]
        shapes = [[jnp.shape(x) for x in jax.tree.leaves(tree)] for tree in (needed, opt_state)]
        if trees[0] == trees[1] and shapes[0] == shapes[1]:
            return
        names, needs, has = list(named_leaves(part)), set(named_leaves(needed)), set(named_leaves(opt_state))
        sides = (("too much:", has - needs), ("missing:", needs - has))
        differs = [f"{word} {join_names(sorted(paths), MOST_NAMED)}" for word, paths in sides if paths]
        some = ", ".join(f'"{name}"' for name in _shortest(names, list(named_leaves(trainable_params(params)))))
        raise LearnerError(
            f"the state of {self!r} is not that of the parameters that have gradients "
            f"({join_names(names, MOST_NAMED)}); it has {'; '.join(differs) or 'other shapes or containers'}. Create "
            "the state for that part alone, and pass it with its gradients:\n    part, rest = "
            f"partition_params(grads, {some})\n    opt_state = opt.init(partition_params(params, {some})[0])  # once, "
            "before the first step\n    params, opt_state = opt.step(lr, params, part, opt_state)",
            code="optimizer-state-mismatch",
        )


def _in_containers_of(model: Any, grads: PyTree) -> PyTree:
    """Return the gradients in the containers of the model's parameters if they have the same paths: those of `nnx.grad`
    are in an `nnx.State`, also inside of a dict of modules; `jax.grad` returns one for each place of a variable.
    """
    params, given = trainable_params(model), named_leaves(grads)
    if same_tree(grads, params):
        return grads
    structure = TreeStructure(model)
    added = structure.add_to_first(given)
    if not given.keys() & structure.tied.keys():
        return select_leaves(added, params, (), grads)
    # Perhaps those of a part, which may hold a variable at another place than its first.
    part = jax.tree_util.tree_map_with_path(lambda path, _: added.get(path_name(path)), params)
    return part if added.keys() <= named_leaves(params).keys() else grads


def _shortest(part: list[str], everything: list[str]) -> list[str]:
    """Return the shortest paths that have these names below them, and no others."""
    others, shortest = set(everything) - set(part), []
    for name in part:
        words = name.split(".")
        prefixes = (".".join(words[:count]) for count in range(1, len(words)))
        fitting = (p for p in prefixes if not any(other.startswith(p + ".") for other in others))
        shortest.append(next(fitting, name))
    return list(dict.fromkeys(shortest))


def _checked_lr(lr: Any) -> Array:
    if callable(lr):
        raise LearnerError(
            f"the rate is a function ({name_of(lr)}): call it with the step, opt.step(schedule(step), ...)",
            code="optimizer-rate-is-function",
        )
    if isinstance(lr, str | bool) or (isinstance(lr, int | float) and not 0 <= lr < math.inf):
        raise LearnerError(
            f"the rate is {lr!r}; it needs a number that is 0 or more, and finite", code="optimizer-rate-value"
        )
    if not jax.tree_util.all_leaves([lr]):
        raise LearnerError(
            f"the rate is a {type(lr).__name__}; the order is step(lr, params, grads, opt_state)",
            code="optimizer-rate-type",
        )
    lr = jnp.asarray(lr, jnp.float32)
    if lr.shape != ():
        raise LearnerError(f"the rate has shape {list(lr.shape)}; it needs one number", code="optimizer-rate-shape")
    return lr
