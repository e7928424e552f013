"""The learning rate at step time: an optimizer is a function of the rate.

`optax.adamw`, `partial(optax.adamw, weight_decay=1e-4)` or `lambda lr: optax.chain(optax.clip_by_global_norm(1.0),
optax.adamw(lr))` is called inside the traced step with a traced rate. The bits equal those of a fixed rate, one
compilation serves every rate, and schedules, schedulers and members of a population may change the rate.
"""

import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from learner.errors import LearnerError, Problem
from learner.steps.eval_params import problems_of
from learner.steps.extra import extra_arguments, filter_kwargs, steepest_ascent
from learner.steps.raw_gradients import passed_inputs
from learner.steps.tree_math import loss_dtype
from learner.util.executables import scalar_program
from learner.util.jaxprs import dependent_outputs
from learner.util.promotion import standard_promotion
from learner.util.text import abbreviate, join_names, name_of
from learner.util.traced_values import explained
from learner.util.trees import named_leaves

Array = Any
PyTree = Any
OptimizerFn = Callable[[Any], optax.GradientTransformation]
LONGEST_SHOWN = 100  # characters of an object that is not an optimizer
LONGEST_REASON = 400  # characters of the error of an update
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


@dataclasses.dataclass(frozen=True)
class OptimizerCheck:
    """The result of `check_optimizer`.

    Attributes:
      problems: the problems of the optimizer with the parameters.
      raw: the names of parameters to which it adds unchanged gradients, if there are no problems; see
        `raw_gradients_problem`.
    """

    problems: list[str]
    raw: tuple[str, ...] = ()


def check_optimizer(optimizer: Any, params: PyTree, accumulates: bool, own_grads: bool = False) -> OptimizerCheck:
    """Return the problems of an optimizer for these parameters. Nothing is compiled.

    Args:
      optimizer: the user's optimizer.
      params: arrays, or their shapes.
      accumulates: True if an optimizer step is a sum over micro-batches.
      own_grads: True if the train step is annotated to return `TrainOutput`, so that it may return gradients of each
        example.
    """
    if text := not_a_function_of_the_rate(optimizer):
        return OptimizerCheck([Problem(text, code="optimizer-type")])
    name = name_of(optimizer)
    try:
        (new_params, old_state, new_state), searched, raw = _try_update(optimizer, params, params)
    except LearnerError as error:
        return OptimizerCheck([Problem(error, code=error.code, **error.fields)])
    except Exception as error:
        if takes_each_example(optimizer, params):
            return OptimizerCheck(_each_example_problems(optimizer, accumulates, own_grads))
        return OptimizerCheck([Problem(f"the optimizer ({name}) {_failure_text(error)}", code="optimizer-fails")])
    if searched and accumulates:
        problem = Problem(
            f"the optimizer ({name}) evaluates the loss again in each step (as a line search does), which needs the "
            "whole batch at once, and grads_accumulation has it in parts: use grads_accumulation(1) or another "
            "optimizer",
            code="optimizer-needs-whole-batch",
        )
        return OptimizerCheck([problem])
    pairs = zip(jax.tree.leaves(new_params), jax.tree.leaves(params), strict=True)
    # Models made of NumPy arrays may hold 64-bit numbers, which become 32-bit ones on the device.
    if any((new.shape, new.dtype) != (old.shape, jax.dtypes.canonicalize_dtype(old.dtype)) for new, old in pairs):
        problem = Problem(
            f"the optimizer ({name}) changes the shapes or dtypes of the parameters",
            code="optimizer-changes-parameters",
        )
        return OptimizerCheck([problem])
    if changed := _changed(old_state, new_state):
        problem = Problem(
            f"the state of the optimizer ({name}) changes in a step: {', '.join(changed)}",
            code="optimizer-changes-state",
        )
        return OptimizerCheck([problem])
    return OptimizerCheck(problems_of(named_leaves(old_state)), tuple(raw))


def raw_gradients_problem(optimizer: Any, names: Sequence[str]) -> Problem:
    """Return the problem of an optimizer that adds unchanged gradients to these parameters."""
    return Problem(
        f"the optimizer ({name_of(optimizer)}) adds the gradients of {join_names(names, MOST_NAMED)} to them as they "
        "are, which raises the loss: optax.masked passes on what its mask leaves out. Freeze these parameters (freeze, "
        "or trainable=), or use optax.partition or learner.optimizers.Groups, and end chains in "
        "optax.scale_by_learning_rate(lr)",
        code="optimizer-adds-gradients",
        parameters=list(names),
    )


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


def _failure_text(error: Exception) -> str:
    """Return the reason why an update failed, as the rest of a sentence about the optimizer."""
    # JAX and optax name the parameters in further lines.
    message = textwrap.shorten(str(error), LONGEST_REASON, placeholder=" ...") or type(error).__name__
    if isinstance(error, TypeError) and "unexpected keyword argument" in message:
        return (
            f"has a part that receives arguments it does not accept ({message}): optax.chain and others pass on all "
            "arguments. Wrap them, sam(optax.chain(...), ...), or give your own update function **extra_args"
        )
    # Of a tree of labels or masks, or of `flax.traverse_util`, which accepts a "(frozen)dict".
    if "dict" in message and "flax.nnx.statelib.State" in message:
        message = (
            f"{message.rstrip('.')}. The parameters of an nnx model are an nnx.State: give optax a function that "
            "labels or masks them, lambda params: jax.tree_util.tree_map_with_path(lambda path, x: ..., params), or "
            "use Groups or freeze"
        )
    return f"cannot update this model: {message}"


def may_evaluate_loss(optimizer: OptimizerFn, params: PyTree) -> bool:
    """Return False if an update does not evaluate the loss again, as a line search does. Nothing is compiled."""
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)
    try:
        return _try_update(optimizer, shapes, shapes)[1]
    except Exception:  # it needs the gradients of each example
        return True


def check_replicas(optimizer: OptimizerFn | None, params: PyTree) -> list[str]:
    """Return the problems of an optimizer with replicas that see only a share of each batch. `optimizer` is None if
    `update=` makes the steps.
    """
    why = ""
    if optimizer is None:
        why = "update= makes a whole step of each batch"
    else:
        try:
            if _try_update(optimizer, params, params)[1]:
                name = name_of(optimizer)
                why = f"the optimizer ({name}) evaluates the loss again in each step (as a line search does)"
        except Exception:
            why = f"the optimizer ({name_of(optimizer)}) needs the gradient of each example"
    if not why:
        return []
    return [
        Problem(
            f"{why}, and each device of Replicated has a share of it: use strategy(Sharded())",
            code="optimizer-needs-whole-batch",
        )
    ]


def _changed(old: PyTree, new: PyTree) -> list[str]:
    """Return the differences between two trees of shapes."""
    before, after = named_leaves(old), named_leaves(new)
    shapes = {name: (_shape(before.get(name)), _shape(after.get(name))) for name in {**before, **after}}
    changed = [f"{name} was {a} and became {b}" for name, (a, b) in shapes.items() if a != b]
    containers: list[Any] = [jax.tree.structure(tree) for tree in (old, new)]
    if changed or containers[0] == containers[1]:
        return changed
    return ["its containers are of other types"]


def _shape(leaf: Any) -> str:
    return "nothing" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"


def _try_update(
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
        _try_update(optimizer, params, jax.tree.map(lambda p: jax.ShapeDtypeStruct((2, *p.shape), p.dtype), params))
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


def _each_example_problems(optimizer: OptimizerFn, accumulates: bool, own_grads: bool) -> list[str]:
    needs = f"the optimizer ({name_of(optimizer)}) needs the gradient of each example"
    if not own_grads:
        return [
            Problem(
                f"{needs}, and a train step has the mean over the batch: compute them with jax.vmap(jax.grad(...)), "
                "return TrainOutput(grads, output), and declare it in the signature, def train_step(...) -> "
                "TrainOutput",
                code="optimizer-needs-each-gradient",
            )
        ]
    if accumulates:
        return [
            Problem(
                f"{needs}, which cannot be added up, and grads_accumulation adds them up: use grads_accumulation(1)",
                code="optimizer-needs-each-gradient",
            )
        ]
    return []


def no_optimizer() -> list[str]:
    """Return the problem of training without an optimizer and without `update=`."""
    return [
        Problem(
            f"{not_a_function_of_the_rate(None)}. A learner without one only evaluates and predicts",
            code="optimizer-type",
        )
    ]


def not_a_function_of_the_rate(optimizer: Any) -> str | None:
    """Return the problem of an optimizer that is not a function of the rate, or None."""
    right = (
        "pass the function (optax.adamw), partial(optax.adamw, weight_decay=1e-4), or lambda lr: "
        "optax.chain(..., optax.adamw(lr))"
    )
    if problem := _of_pytorch(optimizer):
        return problem
    if is_built(optimizer):
        return (
            "the optimizer is already built: its rate is fixed inside. An optimizer here is a function of the "
            f"learning rate: {right}, and the rate as build(model, optimizer, lr)"
        )
    if not callable(optimizer):
        return f"the optimizer is {abbreviate(repr(optimizer), LONGEST_SHOWN)}; {right}"
    try:
        transformation = optimizer(jnp.float32(1e-3))
    except LearnerError as error:
        return str(error)
    except Exception as error:
        if isinstance(optimizer, type) and any("__call__" in vars(base) for base in optimizer.__mro__):
            name = optimizer.__name__
            return f"the optimizer is the class {name}: pass an instance, {name}(...); or {right}"
        if isinstance(error, AttributeError) and error.name in ("init", "update"):
            if callable(error.obj):
                inner = name_of(error.obj)
                return f"the optimizer ({name_of(optimizer)}) got the function {inner} inside: call it, {inner}(lr)"
            return (
                f"the optimizer ({name_of(optimizer)}) takes an optimizer, and gets a learning rate: pass a function "
                f"of the rate, lambda lr: {name_of(optimizer)}(optax.adamw(lr), ...)"
            )
        return f"the optimizer ({name_of(optimizer)}) cannot be called with a learning rate: {error}; {right}"
    if isinstance(transformation, jax.Array | float | int):
        return (
            f"the optimizer ({name_of(optimizer)}) gave a number for a rate, as schedules do: a schedule is the third "
            f"argument, build(model, optimizer, lr); as the optimizer {right}"
        )
    if not (hasattr(transformation, "init") and hasattr(transformation, "update")):
        return (
            f"the optimizer ({name_of(optimizer)}) returned {type(transformation).__name__} for a rate, not an optax "
            f"transformation; {right}"
        )
    return None


def _of_pytorch(optimizer: Any) -> str | None:
    """Return the problem of an optimizer of PyTorch, its class or a partial of that; None for all others."""
    inner = getattr(optimizer, "func", optimizer)
    kind = inner if isinstance(inner, type) else type(inner)
    if not any(base.__module__.startswith("torch.optim") for base in kind.__mro__):
        return None
    name = kind.__name__
    same = name.lower() if callable(getattr(optax, name.lower(), None)) else "adamw"
    return f"the optimizer is PyTorch's {name}, which cannot update arrays of JAX: pass optax.{same}"


def is_built(optimizer: Any) -> bool:
    """Return True for an optimizer that already has its rate: an optax transformation, or an `nnx.Optimizer`.

    >>> is_built(optax.adamw(1e-3)), is_built(optax.adamw)
    (True, False)
    """
    return hasattr(optimizer, "update") and (hasattr(optimizer, "init") or not callable(optimizer))


def is_schedule(lr: Any) -> bool:
    """Return True if `lr` is a function of the optimizer step, as optax's schedules are."""
    if not callable(lr) or isinstance(lr, type):
        return False
    try:
        inspect.signature(lr).bind(0)
    except (TypeError, ValueError):
        return False
    return True


def no_schedule(lr: Any) -> str | None:
    """Return the problem of a schedule factory given in place of a rate, with its remedy, or None.

    >>> no_schedule(optax.cosine_decay_schedule)
    'cosine_decay_schedule, which needs init_value and decay_steps: give what it makes, or a function of the step'
    """
    if isinstance(lr, type):
        return f"the class {lr.__name__}: pass an instance, {lr.__name__}(...)"
    if not callable(lr) or is_schedule(lr):
        return None
    try:
        parameters = inspect.signature(lr).parameters.values()
    except (TypeError, ValueError):
        return None
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) < 2:
        return f"{name_of(lr)}, which takes no step: give a function of the step"
    return f"{name_of(lr)}, which needs {' and '.join(needed)}: give what it makes, or a function of the step"


def check_schedule(schedule: Schedule) -> list[str]:
    """Return the problems of a schedule: it must map an int32 scalar to a real scalar."""
    number = lambda step: _number(schedule(step), name_of(schedule))  # noqa: E731
    try:
        with standard_promotion():
            traced, lr = jax.make_jaxpr(number, return_shape=True)(jax.ShapeDtypeStruct((), jnp.int32))
    except LearnerError as error:
        return [Problem(f"the learning rate: {error}", code=error.code, **error.fields)]
    except Exception as error:
        return [
            Problem(
                f"the learning-rate schedule ({name_of(schedule)}) cannot be called with a traced step: "
                f"{explained(error)}",
                code="learning-rate-schedule-fails",
            )
        ]
    if lr.shape != () or not jnp.issubdtype(lr.dtype, jnp.number):
        return [
            Problem(
                f"the learning-rate schedule ({name_of(schedule)}) gives "
                f"{lr.dtype}{list(lr.shape)}; it needs one number",
                code="learning-rate-schedule-value",
            )
        ]
    # JAX may be tracing the optimizer at this moment: a function of the user's own may make Groups in it.
    with standard_promotion(), jax.ensure_compile_time_eval():
        first = scalar_program(number)(0) if traced.eqns else float(schedule(jnp.int32(0)))
    if not 0 <= first < float("inf"):
        return [
            Problem(
                f"the learning-rate schedule ({name_of(schedule)}) starts with {first}; a "
                "rate is 0 or more, and finite",
                code="learning-rate-schedule-value",
            )
        ]
    return []


def _number(lr: Any, name: str) -> Array:
    if hasattr(lr, "init") and hasattr(lr, "update"):
        raise LearnerError(
            f"{name} makes an optimizer, not a rate; build takes (model, optimizer, lr)",
            code="optimizer-as-rate",
            name=name,
        )
    return jnp.asarray(lr)


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
