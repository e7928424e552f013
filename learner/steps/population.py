"""Populations: the steps of one run, mapped over a leading axis of members.

The members share the batches; each has its own state, metrics and random keys. A population is a `TrainState` whose
leaves have a leading axis `[members, ...]`, and its programs map those of one run over that axis:

- with `jax.vmap`: one operation for all members fills an accelerator. The loop over steps, whose count all members
  share, stays outside of the mapped axis;
- in a loop over the members, each of which makes all steps of the dispatch: one member keeps a CPU core busy, products
  of large matrices take longer with another axis, and on one device the bits equal those of a separate run.
"""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from learner.steps.measure import Packed
from learner.steps.program import Leaves, Programs, has_convolution
from learner.steps.step import ACTIVE, StepFunctions
from learner.steps.train_state import TrainState
from learner.steps.tree_math import keep_if

Array = Any
PyTree = Any


@dataclasses.dataclass(frozen=True)
class Start:
    """The initial values of a member's state.

    Attributes:
      lr_scale: the first learning rate, or the factor of the schedule.
      seed: the seed of the root random key and of the model's random streams.
      hyperparameters: keyword arguments of the optimizer.
    """

    lr_scale: float
    seed: int
    hyperparameters: Mapping[str, float]


def init_population(
    step: StepFunctions, starts: Sequence[Start]
) -> tuple[Callable[..., TrainState], tuple[PyTree, ...]]:
    """Return the function that makes the states of all members, and its arguments; see `StepFunctions.init_function`.

    Each member is bit-identical to a separate run.
    """
    functions = [step.init_function(s.lr_scale, s.seed, s.hyperparameters) for s in starts]
    make, (existing, *_) = functions[0]
    of_members = [arguments[1:] for _, arguments in functions]
    stacked: Any = jax.tree.map(lambda *x: jnp.stack(x), *of_members)

    def make_member(*arguments: Any) -> TrainState:
        return as_member(make(*arguments))

    return jax.vmap(make_member, in_axes=(None, 0, 0, 0)), (existing, *stacked)


def as_member(state: TrainState) -> TrainState:
    """Return the state of one run as the state of an active member."""
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
    """Return the shapes of the arrays of several members, given the shapes of one."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((members, *x.shape), x.dtype), tree)


SHARED = None


@dataclasses.dataclass(frozen=True)
class MemberAxes:
    """The axis of members of the arguments and results of a program. Batches, cursors and counts are shared.

    Attributes:
      takes: the axis of each argument, 0 or `SHARED`.
      gives: the axis of each result, or of the only one.
      replaced: by the index of a result, the index of the argument that it replaces.
    """

    takes: tuple[int | None, ...]
    gives: tuple[int | None, ...] | int
    replaced: Mapping[int, int] = dataclasses.field(default_factory=dict)


TRAIN = MemberAxes((0, 0, SHARED, SHARED, SHARED), (0, 0, SHARED, 0), {0: 0, 1: 1})
ADD = MemberAxes((0, 0, SHARED, SHARED, SHARED), (0, SHARED, SHARED, 0), {0: 1})
VALID = MemberAxes((0, 0, SHARED, SHARED, SHARED), (0, SHARED, SHARED, 0), {0: 1})
AXES = {
    "train": TRAIN,
    "train_tail": TRAIN,
    "train_single": TRAIN,
    "begin": MemberAxes((0,), 0),
    "add": ADD,
    "add_tail": ADD,
    "finish": MemberAxes((0, 0, 0), (0, 0, 0), {0: 0, 1: 2}),
    "valid": dataclasses.replace(VALID, takes=(*VALID.takes, SHARED)),
    "valid_single": VALID,
    "valid_tail": VALID,
    "outputs": MemberAxes((0, SHARED, SHARED), 0),
}
TAKES_TRAIN_DATA = "train", "train_tail", "train_single", "add", "add_tail"
CHANGES_STATE = "train", "train_tail", "train_single", "finish"


def _keeping(program: Callable[..., Any], tree: Any) -> Callable[..., Any]:
    """Return a program of one member that leaves its state unchanged once the member has ended.

    The choice is made once for all steps of a dispatch, as members end between two dispatches.
    """

    def kept(leaves: Leaves, *rest: Any) -> Any:
        new, *others = program(leaves, *rest)
        active = tree.unflatten(leaves).extra[ACTIVE]
        return keep_if(active, new, leaves), *others

    return kept


def _mapped(program: Callable[..., Any], axes: MemberAxes, members: int, in_turn: bool) -> Callable[..., Any]:
    if members == 1:
        return _alone(program, axes)
    return _in_turn(program, axes, members) if in_turn else jax.vmap(program, axes.takes, axes.gives)


def _alone(program: Callable[..., Any], axes: MemberAxes) -> Callable[..., Any]:
    def alone(*arguments: Any) -> Any:
        """Add and remove the axis: products of matrices with an axis of length 1 take twice as long on a CPU."""
        inner = [x if axis is SHARED else member_of(x, 0) for x, axis in zip(arguments, axes.takes, strict=True)]
        results = program(*inner)
        if not isinstance(axes.gives, tuple):
            return _expanded(results)
        return tuple(x if axis is SHARED else _expanded(x) for x, axis in zip(results, axes.gives, strict=True))

    return alone


def _in_turn(program: Callable[..., Any], axes: MemberAxes, members: int) -> Callable[..., Any]:
    """Return the program of all members, which runs the program of one member for each of them.

    A result that replaces an argument is written into it, so that there is never a second state of all members. A
    program with a convolution is mapped: on a CPU, XLA runs one in a loop about 60 times slower than outside of one.
    """
    gives = axes.gives if isinstance(axes.gives, tuple) else (axes.gives,)

    def in_turn(*arguments: Any) -> Any:
        first = [x if axis is SHARED else member_shapes(x) for x, axis in zip(arguments, axes.takes, strict=True)]
        traced, shapes = jax.make_jaxpr(program, return_shape=True)(*first)

        def one(*inner: Any) -> Any:
            return jax.tree.unflatten(jax.tree.structure(shapes), jaxpr_as_fun(traced)(*jax.tree.leaves(inner)))

        if has_convolution(traced.jaxpr):
            return jax.vmap(one, axes.takes, axes.gives)(*arguments)

        def body(member: Array, results: list[PyTree]) -> list[PyTree]:
            given = list(arguments)
            for index, place in axes.replaced.items():
                given[place] = results[index]
            of_one = one(*(x if axis is SHARED else _at(x, member) for x, axis in zip(given, axes.takes, strict=True)))
            pairs = zip(results, of_one if isinstance(axes.gives, tuple) else (of_one,), gives, strict=True)
            return [new if axis is SHARED else _put(old, new, member) for old, new, axis in pairs]

        empty = shapes if isinstance(axes.gives, tuple) else (shapes,)
        results = [
            _zeros(x if axis is SHARED else stacked_shapes(x, members)) for x, axis in zip(empty, gives, strict=True)
        ]
        for index, place in axes.replaced.items():
            results[index] = arguments[place]
        results = jax.lax.fori_loop(0, members, body, results)
        return tuple(results) if isinstance(axes.gives, tuple) else results[0]

    return in_turn


def _zeros(shapes: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def _at(tree: PyTree, member: Array) -> PyTree:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, member, keepdims=False), tree)


def _put(tree: PyTree, of_member: PyTree, member: Array) -> PyTree:
    return jax.tree.map(lambda x, y: jax.lax.dynamic_update_index_in_dim(x, y, member, 0), tree, of_member)


def _expanded(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[None], tree)


def population_programs(
    programs: Programs, members: int, ends: bool, own_data: bool = False, in_turn: bool = False
) -> Programs:
    """Return the programs of a population: states, metrics and outputs have a leading axis of members.

    Args:
      programs: the programs of one member.
      members: the number of members.
      ends: True if members may end alone and keep their state. This needs memory for a second state of the members that
        are computed at once.
      own_data: True if each member has its own training batches.
      in_turn: run one member after another, rather than each operation for all members.
    """
    mapped = copy.copy(programs)

    def fresh(kind: str) -> Packed:
        states: Packed = jax.tree.map(lambda x: jnp.broadcast_to(x, (members, *x.shape)), programs.fresh(kind))
        return states

    def totals(kind: str, epoch_metrics: Packed) -> tuple[dict[str, PyTree], Packed]:
        return jax.vmap(programs.measure(kind).totals)(epoch_metrics), fresh(kind)

    replaced: dict[str, Any] = {"fresh": fresh, "totals": totals}
    for name, axes in AXES.items():
        if own_data and name in TAKES_TRAIN_DATA:
            axes = dataclasses.replace(axes, takes=(*axes.takes[:2], 0, *axes.takes[3:]))
        program = getattr(programs, name)
        if ends and name in CHANGES_STATE:
            program = functools.wraps(program)(_keeping(program, programs.tree))
        replaced[name] = functools.wraps(program)(_mapped(program, axes, members, in_turn))
    for name, program in replaced.items():
        object.__setattr__(mapped, name, program)  # the dataclass is frozen
    return mapped
