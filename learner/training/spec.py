"""The arguments for opening a run."""

import dataclasses
from collections.abc import Callable
from typing import Any

from learner.steps.population import member_shapes
from learner.steps.train_state import TrainState
from learner.training.population import Member
from learner.training.progress.restore import Restored
from learner.training.run_plan import RunPlan


@dataclasses.dataclass(frozen=True)
class RunSpec(RunPlan):
    """A plan, and the start of the run.

    Attributes:
      state: the initial state.
      restored: the checkpoint to resume from, or None.
      overview: shows the plan of the run to its listeners; called with a `Planned` and the `Run`.
    """

    state: TrainState
    restored: Restored | None
    overview: Callable[[Any, Any], None]

    @property
    def members(self) -> tuple[Member, ...]:
        """The members of a population; empty for a single run."""
        population = self.options.population
        return () if population is None else population.members

    @property
    def member_state(self) -> TrainState:
        """The state of a single run, or the shapes of one member's state in a population."""
        shapes: TrainState = member_shapes(self.state) if self.members else self.state
        return shapes

    @property
    def splits(self) -> list[str]:
        """All splits, the train split first."""
        return ["train", *self.inputs.valid]
