"""The plan of a run: its definition and its data, read and checked."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from learner.distributed.process_group import ProcessGroup
from learner.optimizers.schedule_resolution import OF_RUN, describe_schedules
from learner.schedules.plateau import ReduceOnPlateau
from learner.steps.step import StepFunctions
from learner.strategies.base import Strategy
from learner.training.definition import TrainingDefinition
from learner.training.feed.inputs import Inputs, run_length
from learner.training.monitors import monitor_of
from learner.training.options import Options


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """A checked run that can begin.

    Attributes:
      definition: the options, the step and the optimizer.
      inputs: the data.
      resumes: True if the run in the directory is resumed.
      processes: the processes of the run.
      fingerprint_of_run: computes `fingerprint` once; its traces take longer than all checks.
      began: the time at which reading the data began, by `time.monotonic`.
    """

    definition: TrainingDefinition
    inputs: Inputs
    resumes: bool
    processes: ProcessGroup
    fingerprint_of_run: Callable[[], Mapping[str, Any]]
    began: float

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The fingerprint of the run; see `learner.training.checks.fingerprints`."""
        found = self.fingerprint_of_run()
        # For `split="auto"` it has the number, once that is known.
        changed = {**found, "settings": {**found["settings"], **self.options.recorded("resume")}}
        if self.options.epoch_changes:  # schedules are resolved again once the checkpoint is known
            texts, programs = describe_schedules(self.step.schedule, self.step.optimizer), found["programs"]
            hashes = {name: text for name, text in programs["hashes"].items() if not name.startswith(OF_RUN)}
            changed["settings"]["schedules"], changed["programs"] = texts, {**programs, "hashes": hashes}
        return changed

    @property
    def options(self) -> Options:
        """The options of the builder."""
        return self.definition.options

    @property
    def step(self) -> StepFunctions:
        """The definition of the steps."""
        return self.definition.step

    @property
    def plateau(self) -> ReduceOnPlateau | None:
        """The scheduler that lowers the learning rate after validations, or None."""
        return self.definition.optimizer.plateau

    @property
    def monitor(self) -> tuple[str, bool]:
        """The key of the metric that selects the best checkpoint, and True if higher is better."""
        return monitor_of(self.options, list(self.inputs.valid))

    @property
    def num_steps(self) -> int | None:
        """The number of optimizer steps of the run, or None if it is unknown."""
        return run_length(self.options, self.inputs.source("train").batches).steps

    @property
    def strategy(self) -> Strategy:
        """The devices of the run."""
        return self.definition.strategy
