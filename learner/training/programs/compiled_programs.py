"""The programs of a run, compiled for its devices, and the form of the state for them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from learner.steps.program import Programs
from learner.steps.step import ACTIVE, HYPERPARAMETERS
from learner.steps.train_state import TrainState
from learner.strategies.base import Kind, Strategy
from learner.util.executables import share

PyTree = Any
Leaves = list[Any]
SPLIT_ARGUMENTS: tuple[Kind, ...] = ("metrics", "batch", "same", "same")  # the last: the count, or the number


class StateLeaves:
    """The leaves of a train state in two lists: those that steps change, and fixed ones.

    Programs take the fixed leaves (the factor of the learning rate, the root key) but do not return them: each returned
    array costs a small step measurable time.

    Attributes:
      moving: leaves that steps change. They are donated: the next training dispatch invalidates these arrays.
      fixed: the other leaves.
    """

    def __init__(self, tree: Any, state: TrainState):
        self._tree = tree
        marks = jax.tree.map(lambda _: False, state)
        extra = {
            name: jax.tree.map(lambda _, n=name: n in (HYPERPARAMETERS, ACTIVE), x) for name, x in marks.extra.items()
        }
        self._is_fixed: list[bool] = jax.tree.leaves(dataclasses.replace(marks, lr_scale=True, rng=True, extra=extra))
        self.replace(jax.tree.leaves(state))

    def replace(self, leaves: Leaves) -> None:
        """Replace the leaves."""
        self.moving, self.fixed = self.split(leaves)

    def split(self, leaves: Leaves) -> tuple[Leaves, Leaves]:
        """Return the leaves that steps change, and the others."""
        pairs = list(zip(leaves, self._is_fixed, strict=True))
        return [x for x, fixed in pairs if not fixed], [x for x, fixed in pairs if fixed]

    def join(self, moving: Leaves, fixed: Leaves) -> Leaves:
        """Return all leaves in the order of the state."""
        kinds = {False: iter(moving), True: iter(fixed)}
        return [next(kinds[kind]) for kind in self._is_fixed]

    @property
    def leaves(self) -> Leaves:
        """All leaves in the order of the state."""
        return self.join(self.moving, self.fixed)

    @property
    def state(self) -> TrainState:
        """The state as a tree."""
        state: TrainState = jax.tree.unflatten(self._tree, self.leaves)
        return state


class CompiledPrograms:
    """The programs of a run, compiled when they are first called.

    Each takes the leaves that steps change, the fixed leaves, and its other arguments. The train programs first return
    the leaves that steps change. Arguments that are returned are donated, so a step needs no second copy of them.

    Attributes:
      train: the training steps, by kind of dispatch.
      valid: the validation steps, by kind of dispatch.
      begin: returns empty sums over micro-batches.
      add: adds a micro-batch to the sums; the key is True for a tail.
      finish: the update of a step from its sums.
      outputs: the outputs of the valid step for one batch.
      fresh: returns empty metric states; by kind of split.
      values: returns the metrics' values, and new states in place of the old ones; by kind of split.
    """

    def __init__(self, programs: Programs, strategy: Strategy, leaves: StateLeaves):
        step = programs.step
        sums = _sums_shardings(programs, strategy, leaves.state) if step.accumulate > 1 else []
        shardings = {"state": [x.sharding for x in leaves.moving], "sums": sums}
        compiled = functools.partial(_compile, strategy, leaves, shardings)
        compiled_step = functools.partial(_compile_step, strategy, leaves, shardings)

        changes: tuple[Kind, ...] = ("state", "metrics", "same", "outputs")
        train = {"loop": programs.train, "single": programs.train_single, "tail": programs.train_tail}
        # Donated: the leaves, and the metrics' states behind the two lists of leaves.
        self.train = {kind: compiled_step(fn, SPLIT_ARGUMENTS, changes, (0, 2)) for kind, fn in train.items()}
        # A validation reads the state, which the next training dispatch needs: it donates the metrics' states only.
        results: tuple[Kind, ...] = ("metrics", "same", "same", "outputs")
        self.valid = {
            "loop": compiled(programs.valid, (*SPLIT_ARGUMENTS, "same"), results, (2,)),
            "single": compiled(programs.valid_single, SPLIT_ARGUMENTS, results, (2,)),
            "tail": compiled(programs.valid_tail, SPLIT_ARGUMENTS, results, (2,)),
        }
        self.begin = compiled(programs.begin, (), "sums")
        # Only here is the state donated: `begin` and `add` read it once for each micro-batch.
        self.finish = compiled_step(programs.finish, ("sums", "metrics"), ("state", "metrics", "outputs"), (0, 3))
        add = ("sums", "batch", "same", "same"), ("sums", "same", "same", "outputs")
        self.add = {False: compiled(programs.add, *add, (2,)), True: compiled(programs.add_tail, *add, (2,))}
        # Its batches are replicated, like the index.
        self.outputs = compiled(programs.outputs, ("same", "same"), "outputs", varying=[2])
        # Committed, as the results of programs are: otherwise the first dispatch of a split would be compiled twice.
        # Shared with other runs of the process: a second fit of the digits MLP compiled all of this again for 6 s.
        shared = functools.partial(share, devices=strategy.devices)
        kinds = "train", "valid"
        self.fresh = {
            kind: shared(strategy.compile(functools.partial(programs.fresh, kind), (), "metrics")) for kind in kinds
        }
        totals: tuple[Kind, ...] = ("outputs", "metrics")
        self.values = {
            kind: shared(strategy.compile(functools.partial(programs.totals, kind), ("metrics",), totals, (0,)))
            for kind in kinds
        }


def _compile(
    strategy: Strategy,
    leaves: StateLeaves,
    shardings: Mapping[str, PyTree],
    program: Callable[..., Any],
    takes: Sequence[Kind],
    gives: Sequence[Kind] | Kind = "same",
    donate: tuple[int, ...] = (),
    varying: Sequence[int] | None = None,
) -> Any:
    """Compile a program of all leaves as a program of the two lists. `takes`: the kinds of the other arguments."""

    def split(moving: Leaves, fixed: Leaves, *rest: Any) -> Any:
        return program(leaves.join(moving, fixed), *rest)

    split.__name__ = program.__name__  # for profiles
    jitted = strategy.compile(split, ("state", "fixed", *takes), gives, donate, shardings)
    # Batches differ in shape; everything else has the shapes and shardings of the first dispatch.
    batches = [index for index, kind in enumerate(takes, 2) if kind == "batch"]
    return share(jitted, strategy.devices, batches if varying is None else varying)


def _compile_step(
    strategy: Strategy,
    leaves: StateLeaves,
    shardings: Mapping[str, PyTree],
    program: Callable[..., Any],
    takes: Sequence[Kind],
    gives: Sequence[Kind],
    donate: tuple[int, ...],
) -> Any:
    """Compile a program that first returns all leaves as one that first returns only those that steps change."""

    def split(all_leaves: Leaves, *rest: Any) -> Any:
        all_leaves, *more = program(all_leaves, *rest)
        return leaves.split(all_leaves)[0], *more

    split.__name__ = program.__name__
    return _compile(strategy, leaves, shardings, split, takes, gives, donate)


def _sums_shardings(programs: Programs, strategy: Strategy, state: TrainState) -> list[Any]:
    """Return the shardings of the sums over micro-batches. Gradients have the shardings of their parameters."""
    same = strategy.scalar(0).sharding
    sums = jax.tree.map(lambda _: same, jax.eval_shape(programs.step.begin, state))
    grads, model_state = (jax.tree.map(lambda x: x.sharding, part) for part in (state.params, state.model_state))
    return jax.tree.leaves(dataclasses.replace(sums, grads=grads, model_state=model_state))
