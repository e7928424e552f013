"""Populations: the steps of one run, mapped over a leading axis of members.

The members share the batches, and each has a state, metrics and random keys of its own. A population is a `TrainState`
whose leaves have a leading axis `[members, ...]`, and its programs are those of one run under `jax.vmap`: the loop over
steps, whose count all members share, stays outside of the mapped axis.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from learner.steps.measure import Packed
from learner.steps.program import Leaves, Programs
from learner.steps.step import ACTIVE, StepFunctions
from learner.steps.train_state import TrainState
from learner.steps.tree_math import keep_if

Array = Any
PyTree = Any


@dataclasses.dataclass(frozen=True)
class Start:
    """What the state of a member begins with.

    Attributes:
      lr_scale: the first rate, or the factor of the schedule.
      seed: of the root random key, and of the random streams of the model.
      hyperparameters: keywords of the optimizer.
    """

    lr_scale: float
    seed: int
    hyperparameters: Mapping[str, float]


def init_population(
    step: StepFunctions, starts: Sequence[Start]
) -> tuple[Callable[..., TrainState], tuple[PyTree, ...]]:
    """Return the function that makes the states of all members, and its arguments; see `StepFunctions.init_function`.

    Each member has the bits of a run by itself.
    """
    functions = [step.init_function(s.lr_scale, s.seed, s.hyperparameters) for s in starts]
    make, (existing, *_) = functions[0]
    of_members = [arguments[1:] for _, arguments in functions]
    stacked: Any = jax.tree.map(lambda *x: jnp.stack(x), *of_members)

    def make_member(*arguments: Any) -> TrainState:
        return as_member(make(*arguments))

    return jax.vmap(make_member, in_axes=(None, 0, 0, 0)), (existing, *stacked)


def as_member(state: TrainState) -> TrainState:
    """Return the state of one run as that of a member, which is active."""
    return dataclasses.replace(state, extra={**state.extra, ACTIVE: jnp.bool_(True)})


def count_members(state: TrainState) -> int | None:
    """Return the number of members of a population, or None for the state of one run."""
    return state.step.shape[0] if state.step.shape else None


def member_of(tree: PyTree, index: int) -> PyTree:
    """Return the arrays of one member.

    >>> member_of({"w": jnp.array([[1, 2], [3, 4]])}, 1)
    {'w': Array([3, 4], dtype=int32)}
    """
    return jax.tree.map(lambda x: x[index], tree)


def member_shapes(tree: PyTree) -> PyTree:
    """Return the shapes of the arrays of one member."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree)


def stacked_shapes(tree: PyTree, members: int) -> PyTree:
    """Return the shapes of the arrays of so many members, given those of one."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((members, *x.shape), x.dtype), tree)


SHARED = None
TRAIN = (0, 0, SHARED, SHARED, SHARED), (0, 0, SHARED, 0)
ADD = (0, 0, SHARED, SHARED, SHARED), (0, SHARED, SHARED, 0)
VALID = (0, 0, SHARED, SHARED, SHARED), (0, SHARED, SHARED, 0)
AXES: dict[str, tuple[Any, Any]] = {
    "train": TRAIN,
    "train_tail": TRAIN,
    "train_single": TRAIN,
    "begin": ((0,), 0),
    "add": ADD,
    "add_tail": ADD,
    "finish": ((0, 0, 0), 0),
    "valid": ((*VALID[0], SHARED), VALID[1]),
    "valid_single": VALID,
    "valid_tail": VALID,
    "outputs": ((0, SHARED, SHARED), 0),
}
"""The axis of members of each argument and of each result of a program. Batches, cursors and counts are shared."""
TAKES_TRAIN_DATA = "train", "train_tail", "train_single", "add", "add_tail"
CHANGES_STATE = "train", "train_tail", "train_single", "finish"


def _keeping(program: Callable[..., Any], tree: Any) -> Callable[..., Any]:
    """Return a program of one member that leaves the state of one that has ended as it is.

    The choice is made once for all steps of a dispatch: members end between two dispatches.
    """

    def kept(leaves: Leaves, *rest: Any) -> Any:
        new, *others = program(leaves, *rest)
        active = tree.unflatten(leaves).extra[ACTIVE]
        return keep_if(active, new, leaves), *others

    return kept


def _mapped(program: Callable[..., Any], takes: Any, gives: Any, members: int) -> Callable[..., Any]:
    if members > 1:
        return jax.vmap(program, takes, gives)

    def alone(*arguments: Any) -> Any:
        """Add and remove the axis: products of matrices with an axis of length 1 take twice as long on a CPU."""
        inner = [x if axis is SHARED else member_of(x, 0) for x, axis in zip(arguments, takes, strict=True)]
        results = program(*inner)
        if gives == 0:
            return _expanded(results)
        return tuple(x if axis is SHARED else _expanded(x) for x, axis in zip(results, gives, strict=True))

    return alone


def _expanded(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], tree)


def population_programs(programs: Programs, members: int, ends: bool, own_data: bool = False) -> Programs:
    """Return the programs of a population: states, metrics and outputs have a leading axis of members.

    Args:
      programs: of one member.
      members: their number.
      ends: whether members may end alone, whose state then stays. It costs the memory of a second state.
      own_data: whether each has batches of its own to train on.
    """
    mapped = copy.copy(programs)

    def fresh(kind: str) -> Packed:
        states: Packed = jax.tree.map(lambda x: jnp.broadcast_to(x, (members, *x.shape)), programs.fresh(kind))
        return states

    def totals(kind: str, epoch_metrics: Packed) -> tuple[dict[str, PyTree], Packed]:
        return jax.vmap(programs.measure(kind).totals)(epoch_metrics), fresh(kind)

    replaced: dict[str, Any] = {"fresh": fresh, "totals": totals}
    for name, (takes, gives) in AXES.items():
        if own_data and name in TAKES_TRAIN_DATA:
            takes = (*takes[:2], 0, *takes[3:])
        program = getattr(programs, name)
        if ends and name in CHANGES_STATE:
            program = functools.wraps(program)(_keeping(program, programs.tree))
        replaced[name] = functools.wraps(program)(_mapped(program, takes, gives, members))
    for name, program in replaced.items():
        object.__setattr__(mapped, name, program)  # the instance is frozen for everybody else
    return mapped
