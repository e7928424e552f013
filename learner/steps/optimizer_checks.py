"""Checks of an optimizer and a learning rate before a program is compiled."""

import dataclasses
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from learner.errors import LearnerError, Problem
from learner.steps.eval_params import problems_of
from learner.steps.optimizer import OptimizerFn, Schedule, takes_each_example, try_update
from learner.util.executables import scalar_program
from learner.util.promotion import standard_promotion
from learner.util.text import abbreviate, join_names, name_of
from learner.util.traced_values import explained
from learner.util.trees import named_leaves

Array = Any
PyTree = Any
LONGEST_SHOWN = 100  # characters of an object that is not an optimizer
LONGEST_REASON = 400  # characters of the error of an update
MOST_NAMED = 3  # parameters, in a message


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
        (new_params, old_state, new_state), searched, raw = try_update(optimizer, params, params)
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


def check_replicas(optimizer: OptimizerFn | None, params: PyTree) -> list[str]:
    """Return the problems of an optimizer with replicas that see only a share of each batch. `optimizer` is None if
    `update=` makes the steps.
    """
    why = ""
    if optimizer is None:
        why = "update= makes a whole step of each batch"
    else:
        try:
            if try_update(optimizer, params, params)[1]:
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
