"""The runner of a population: its programs step the active members, and it keeps the others."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.steps.population import count_members, population_programs
from learner.steps.program import Programs
from learner.steps.step import ACTIVE, HYPERPARAMETERS
from learner.steps.train_state import TrainState
from learner.strategies.base import Strategy
from learner.training.programs.executor import Runner

PyTree = Any


class PopulationRunner(Runner):
    """Hold the states of all members, and step those with a lane: a position on the leading axis of the programs.
    Checkpoints and results have all members, regardless of lanes.

    Args:
      programs: the programs of one member.
      strategy: the placement of the arrays.
      state: the state of all members, or its shapes.
      lanes: the members in the programs; None: all. Members that have ended pad them to a multiple of the number of
        devices.
      ends: see `population_programs`.
      own_data: see `population_programs`.

    Attributes:
      lanes: see above.
    """

    lanes: tuple[int, ...]

    def __init__(
        self,
        programs: Programs,
        strategy: Strategy,
        state: TrainState,
        lanes: Sequence[int] | None = None,
        ends: bool = False,
        own_data: bool = False,
    ):
        self._of_one, self._ends, self._own_data = programs, ends, own_data
        self._shares = strategy.member_shares
        self._parked: TrainState | None = None
        self._count = count_members(state) or 0
        self.lanes = self._filled(range(self._count) if lanes is None else lanes)
        self._merge = jax.jit(_merge)
        if isinstance(state.step, jax.ShapeDtypeStruct):
            state = jax.tree.map(self._lane_shapes, state)
        else:
            state = self._park(state)
        super().__init__(self._programs_of_lanes(strategy), strategy, state)

    def _programs_of_lanes(self, strategy: Strategy) -> Programs:
        """Return the programs of the lanes, of one device if each device has its own programs."""
        shares = strategy.member_shares if strategy.members_are_mapped else 1
        # On a CPU one after another: 16 members of the digits MLP take 63 us a step each, and 95 us under `vmap`.
        # Not if XLA divides the members over devices: each device would loop over all of them.
        in_turn = strategy.platform == "cpu" and (strategy.members_are_mapped or len(strategy.devices) == 1)
        return population_programs(self._of_one, len(self.lanes) // shares, self._ends, self._own_data, in_turn)

    def _filled(self, lanes: Sequence[int]) -> tuple[int, ...]:
        others = [member for member in range(self._count) if member not in lanes]
        return tuple(sorted([*lanes, *others[: -len(lanes) % self._shares]]))

    def begin(self, state: TrainState, lr: np.ndarray) -> None:
        """See `Runner`. `state` has all members."""
        super().begin(self._park(state), lr)

    def _lane_shapes(self, x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((len(self.lanes), *x.shape[1:]), x.dtype, sharding=x.sharding)

    @property
    def _ended(self) -> list[int]:
        return [member for member in range(self._count) if member not in self.lanes]

    def _park(self, state: TrainState) -> TrainState:
        """Keep the members without a lane, and return the state of the lanes."""
        self._parked = _picked(state, self._ended) if self._ended else None
        lanes: TrainState = state if self._parked is None else _picked(state, self.lanes)
        return lanes

    def copied_state(self) -> TrainState:
        """See `Runner`."""
        if self._parked is None:
            return super().copied_state()
        # The merged arrays are already new, so nothing is copied twice.
        state: TrainState = self._merge(self.state, self._parked, np.argsort([*self.lanes, *self._ended]))
        return state

    def active(self) -> np.ndarray:
        """Return the active members, bool `[members]`. This waits for the device."""
        active = np.zeros(self._count, bool)
        active[list(self.lanes)] = np.asarray(self.state.extra[ACTIVE])
        return active

    def saves_lanes(self, members: int) -> bool:
        """Return True if the programs for this number of members have fewer lanes."""
        return members + -members % self._shares < len(self.lanes)

    def set_active(self, active: np.ndarray, compact: bool) -> None:
        """Set the active members: a subset of those active before. The others keep their state.

        Args:
          active: the active members, bool `[members]`.
          compact: continue with programs for only these members. They are compiled, and metrics start over.
        """
        state = self.state
        flags = self.strategy.place_members(np.asarray(active[list(self.lanes)], bool))
        self.leaves = jax.tree.leaves(dataclasses.replace(state, extra={**state.extra, ACTIVE: flags}))
        if compact:
            # Copied before the lanes change, as the copy uses them to join the lanes and the parked members.
            state = self.copied_state()
            self.lanes = self._filled(np.flatnonzero(active).tolist())
            state = self._placed(self._park(state))
            self._use(self._programs_of_lanes(self.strategy), state)

    def take_over(self, replaced: Mapping[int, tuple[int, float]]) -> dict[int, dict[str, float]]:
        """Copy the states of members to others, except for random keys. Return the new factor of the learning rate and
        keyword arguments of the optimizer of each replaced member, by name.

        Args:
          replaced: for each member to replace, the member to copy and the factor of that member's learning rate.
        """
        state, sources, factors = self.state, list(range(len(self.lanes))), np.ones(len(self.lanes), np.float32)
        for member, (source, factor) in replaced.items():
            lane = self.lanes.index(member)
            sources[lane], factors[lane] = self.lanes.index(source), factor
        new = _picked(state, sources)
        rates = np.asarray(new.lr_scale) * factors
        extra = {**new.extra, ACTIVE: state.extra[ACTIVE]}
        new = dataclasses.replace(new, rng=state.rng, extra=extra, lr_scale=self.strategy.place_members(rates))
        self.leaves = jax.tree.leaves(self._placed(new))
        numbers = {"lr_scale": rates, **jax.device_get(new.extra.get(HYPERPARAMETERS, {}))}
        return {m: {name: float(x[self.lanes.index(m)]) for name, x in numbers.items()} for m in replaced}


def _picked(tree: PyTree, members: Sequence[int]) -> PyTree:
    """Return the arrays of some members."""
    return _pick(tree, np.asarray(members, np.int32))


@jax.jit  # array by array, JAX would compile the operations of an index for each shape
def _pick(tree: PyTree, members: jax.Array) -> PyTree:
    return jax.tree.map(lambda x: x[members], tree)


def _merge(lanes: PyTree, parked: PyTree, order: jax.Array) -> PyTree:
    return jax.tree.map(lambda x, y: jnp.concatenate([x, y])[order], lanes, parked)
