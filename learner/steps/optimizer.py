"""The learning rate at step time: an optimizer is a function of the rate.

`optax.adamw`, `partial(optax.adamw, weight_decay=1e-4)` or `lambda lr: optax.chain(optax.clip_by_global_norm(1.0),
optax.adamw(lr))` is called inside the traced step with a traced rate. The bits equal those of a fixed rate, one
compilation serves every rate, and schedules, schedulers and members of a population may change the rate.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from learner.errors import LearnerError
from learner.steps.extra import extra_arguments, filter_kwargs, steepest_ascent
from learner.steps.raw_gradients import passed_inputs
from learner.steps.tree_math import loss_dtype
from learner.util.jaxprs import dependent_outputs
from learner.util.promotion import standard_promotion
from learner.util.text import join_names, name_of
from learner.util.trees import named_leaves

Array = Any
PyTree = Any
OptimizerFn = Callable[[Any], optax.GradientTransformation]
MOST_NAMED = 3  # parameters, in a message
Schedule = Callable[[Array], Array]


def update_params(
    optimizer: OptimizerFn,
    lr: Array,
    grads: PyTree,
    opt_state: PyTree,
    params: PyTree,
    *,
    loss: Array | None,
    value_fn: Callable[[PyTree], Array] | None = None,
    step: Array | None = None,
) -> tuple[PyTree, PyTree]:
    """Return `(params, opt_state)` after one update of `optimizer(rate)`.

    Optimizers that take extra arguments get those of `learner.steps.extra`: the loss, the gradients, the loss as a
    function of the parameters on the same batch and random keys, and the number of the step. `grads` are as returned by
    `jax.grad`; gradients of complex parameters are conjugated for the optimizer.

    Raises:
      ValueError: the shapes of the updates differ from those of the parameters.

    >>> params = {"w": jnp.array([1.0, 2.0])}
    >>> grads, opt_state = {"w": jnp.array([1.0, 1.0])}, optax.sgd(0.5).init(params)
    >>> update_params(optax.sgd, 0.5, grads, opt_state, params, loss=jnp.array(0.0))[0]
    {'w': Array([0.5, 1.5], dtype=float32)}
    """
    extra = extra_arguments(grads, loss, value_fn, step)
    with standard_promotion():
        try:
            updates, opt_state = _updates_of(optimizer, lr, grads, opt_state, params, extra)
        except (ValueError, IndexError) as error:  # IndexError: of the gradient of a scalar
            if not takes_each_example(optimizer, params):
                raise
            raise _each_example_error(optimizer, grads) from error
        return optax.apply_updates(params, updates), opt_state


def _updates_of(
    optimizer: OptimizerFn, lr: Array, grads: PyTree, opt_state: PyTree, params: PyTree, extra: dict[str, Any]
) -> tuple[PyTree, PyTree]:
    """Return the updates to add to the parameters, and the next state of the optimizer."""
    transformation = optimizer(lr)
    opt_state = with_injected_rate(optimizer, lr, opt_state, params)
    extra = filter_kwargs(transformation, extra)
    updates, opt_state = transformation.update(steepest_ascent(grads), opt_state, params, **extra)
    new, old = jax.tree.leaves(updates), jax.tree.leaves(params)
    if len(new) == len(old) and [*map(jnp.shape, new)] != [*map(jnp.shape, old)]:
        raise ValueError("it makes updates of other shapes than the parameters have")  # which would be broadcast
    return updates, opt_state


def with_injected_rate(optimizer: OptimizerFn, lr: Array, opt_state: PyTree, params: PyTree) -> PyTree:
    """Return the state with the hyperparameters of `optax.inject_hyperparams` set for the rate of this step, as far as
    they depend on the rate: its update reads them from the state.
    """
    injected = injected_hyperparameters(opt_state)
    if not injected:
        return opt_state
    depends = _outputs_of_rate(optimizer, params)
    fresh = jax.tree.leaves(optimizer(lr).init(params))
    columns = zip(named_leaves(opt_state).items(), fresh, depends, strict=True)
    leaves = [new if name in injected and of_rate else old for (name, old), new, of_rate in columns]
    return jax.tree.unflatten(jax.tree.structure(opt_state), leaves)


def injected_hyperparameters(opt_state: PyTree) -> list[str]:
    """Return the paths of the numbers that `optax.inject_hyperparams` keeps in the state of an optimizer.

    >>> injected_hyperparameters(optax.inject_hyperparams(optax.adam)(0.1).init(jnp.ones(2)))[:2]
    ['hyperparams.b1', 'hyperparams.b2']
    """
    rows, _ = jax.tree_util.tree_flatten_with_path(opt_state)
    inside = [any(getattr(key, "name", None) == "hyperparams" for key in path) for path, _ in rows]
    return [name for name, is_inside in zip(named_leaves(opt_state), inside, strict=True) if is_inside]


def unfit(opt_state: PyTree) -> str | None:
    """Return the reason why an optimizer with this state is unsuitable, or None.

    >>> unfit(optax.adam(0.1).init(jnp.ones(2))) is None
    True
    """
    kinds = (optax.LookaheadState, optax.contrib.SAMState)
    for node in jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kinds)):
        if isinstance(node, optax.LookaheadState):
            return (
                "is made with optax.lookahead, which trains pairs of parameters (optax.LookaheadParams), and a model "
                "has one of each: leave it out; learner.optimizers.Ema and Swa average parameters, which are then "
                "evaluated"
            )
        if isinstance(node, optax.contrib.SAMState) and node.cache is not None:
            return (
                "is made with optax.contrib.sam, which moves the parameters uphill in some steps, after which they "
                "would be evaluated and saved: use sam(..., opaque_mode=True), which computes the second gradient in "
                "the same step"
            )
    return None


def may_evaluate_loss(optimizer: OptimizerFn, params: PyTree) -> bool:
    """Return False if an update does not evaluate the loss again, as a line search does. Nothing is compiled."""
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)
    try:
        return try_update(optimizer, shapes, shapes)[1]
    except Exception:  # it needs the gradients of each example
        return True


def try_update(
    optimizer: OptimizerFn, params: PyTree, grads: PyTree
) -> tuple[tuple[PyTree, PyTree, PyTree], bool, list[str]]:
    """Return the shapes of the parameters after an update and of the optimizer's state before and after it, True if the
    update evaluated the loss again, and the names of parameters whose updates are their gradients.
    """
    searched = []

    def value_fn(params: PyTree) -> Array:
        searched.append(True)
        return no_loss(params)

    def once(grads: PyTree, params: PyTree, lr: Array) -> tuple[PyTree, tuple[PyTree, PyTree, PyTree]]:
        old = init_optimizer(optimizer, None, params, lr)
        if why := unfit(old):
            raise LearnerError(f"the optimizer ({name_of(optimizer)}) {why}", code="optimizer-unusable")
        extra = extra_arguments(grads, no_loss(params), value_fn)
        with standard_promotion():
            updates, new = _updates_of(optimizer, lr, grads, old, params, extra)
            return updates, (optax.apply_updates(params, updates), old, new)

    lr = jax.ShapeDtypeStruct((), jnp.float32)
    program, (updates, shapes) = jax.make_jaxpr(once, return_shape=True)(grads, params, lr)
    passed = passed_inputs(program.jaxpr)[: len(jax.tree.leaves(updates))]
    raw = [name for index, name in enumerate(named_leaves(params)) if passed[index : index + 1] == [index]]
    return shapes, bool(searched), raw


def no_loss(params: PyTree) -> Array:
    """Return a loss of 0 in the dtype for optimizers, for updates that are only traced."""
    return jnp.zeros((), loss_dtype(params))


def takes_each_example(optimizer: OptimizerFn, params: PyTree) -> bool:
    """Return True if an optimizer can update with gradients `[examples, ...]`, like differentially private ones."""
    try:
        try_update(optimizer, params, jax.tree.map(lambda p: jax.ShapeDtypeStruct((2, *p.shape), p.dtype), params))
    except Exception:
        return False
    return True


def _each_example_error(optimizer: OptimizerFn, grads: PyTree) -> LearnerError:
    shapes = [f"{name} {list(jnp.shape(g))}" for name, g in named_leaves(grads).items()]
    return LearnerError(
        f"the optimizer ({name_of(optimizer)}) needs the gradient of each example, [examples, ...], of equally "
        f"many for each parameter, and got {join_names(shapes, MOST_NAMED)}: compute them with jax.vmap(jax.grad(...))",
        code="optimizer-needs-each-gradient",
    )


def lr_at(schedule: Schedule | None, step: Array, lr_scale: Array) -> Array:
    """Return the float32 learning rate of the optimizer step number `step`: `schedule(step) * lr_scale`."""
    if schedule is None:
        return lr_scale
    with standard_promotion():
        return jnp.asarray(schedule(step), jnp.float32) * lr_scale


def init_optimizer(optimizer: OptimizerFn, schedule: Schedule | None, params: PyTree, lr_scale: Array) -> PyTree:
    """Return the optimizer's initial state, given the first learning rate, which `optax.rprop` stores."""
    with standard_promotion():
        return optimizer(lr_at(schedule, jnp.int32(0), lr_scale)).init(params)


def reads_rate_in_init(optimizer: OptimizerFn, params: PyTree) -> bool:
    """Return True if the optimizer's initial state depends on the rate, as with `optax.rprop`.

    >>> reads_rate_in_init(optax.rprop, jnp.ones(2)), reads_rate_in_init(optax.adam, jnp.ones(2))
    (True, False)
    """
    return any(_outputs_of_rate(optimizer, params))


def _outputs_of_rate(optimizer: OptimizerFn, params: PyTree) -> list[bool]:
    """Return, for each array of the optimizer's initial state, True if it depends on the rate."""
    program = jax.make_jaxpr(lambda lr: init_optimizer(optimizer, None, params, lr))(jnp.float32(0))
    return dependent_outputs(program.jaxpr, [True])


def accumulates_by_itself(opt_state: PyTree) -> bool:
    """Return True if the optimizer with this state (or its shapes) contains `optax.MultiSteps`.

    >>> accumulates_by_itself(optax.MultiSteps(optax.sgd(0.1), 2).init(jnp.ones(2)))
    True
    """
    is_state = lambda x: isinstance(x, optax.MultiStepsState)  # noqa: E731
    return any(map(is_state, jax.tree.leaves(opt_state, is_leaf=is_state)))


def varies(schedule: Schedule | None) -> bool:
    """Return True for a schedule whose rates differ.

    >>> varies(optax.cosine_decay_schedule(0.1, 9)), varies(optax.constant_schedule(0.1)), varies(None)
    (True, False, False)
    """
    if schedule is None:
        return False
    program = jax.make_jaxpr(lambda step: lr_at(schedule, step, jnp.float32(1)))(jnp.int32(0))
    return any(dependent_outputs(program.jaxpr, [True]))


def ignores_rate(optimizer: OptimizerFn, params: PyTree) -> bool:
    """Return True if neither the optimizer's state nor its update of the parameters (or shapes) uses the rate. An
    optimizer that fails counts as using it.

    >>> [ignores_rate(make, jnp.ones(2)) for make in (lambda lr: optax.adam(1e-3), optax.adam, optax.rprop)]
    [True, False, False]
    """

    def update(lr: Array, params: PyTree) -> PyTree:
        opt_state = init_optimizer(optimizer, None, params, lr)
        return update_params(optimizer, lr, params, opt_state, params, loss=no_loss(params), value_fn=no_loss)

    def uses_rate(params: PyTree) -> bool | None:
        try:
            program = jax.make_jaxpr(update)(jnp.float32(0), params).jaxpr
        except Exception:
            return None
        return any(dependent_outputs(program, [True] + [False] * (len(program.invars) - 1)))

    # First with a single array, which takes a millisecond: most optimizers use the rate for any array.
    return not uses_rate(jnp.ones(2)) and uses_rate(params) is False
