"""The train step and the valid step as pure functions, checked at the first call."""

from typing import Any

import jax
import jax.numpy as jnp

from learner.errors import LearnerError, one_error
from learner.steps.measure import MetricCollection
from learner.steps.optimizer_checks import no_optimizer
from learner.steps.train_state import TrainState
from learner.training.checks.step_checks import no_step, trace_train, trace_valid
from learner.training.checks.step_tracing import GIVEN, Tracing
from learner.training.definition import TrainingDefinition
from learner.training.programs.single_step import SingleStepRunner

PyTree = Any


class PureSteps:
    """The steps of a definition, one at a time. Outside of JAX's transformations they run the programs of `fit`.

    Args:
      definition: the definition of the step. It changes once the train step is known to compute its own gradients.
      train: the training data given to `build`, whose length may resolve schedules, or None.
    """

    def __init__(self, definition: TrainingDefinition, train: Any):
        self._definition, self._train = definition, train
        self._checked: set[str] = set()
        self._runner: SingleStepRunner | None = None

    def train(self, state: TrainState, batches: tuple[PyTree, ...]) -> tuple[TrainState, dict[str, Any]]:
        """Return the new state, and a dict of the metrics of one optimizer step and its `weight`."""
        definition = self._definition
        if not 1 <= len(batches) <= definition.step.accumulate:
            raise LearnerError(
                f"train_step got {len(batches)} batches; a step has 1 to {definition.step.accumulate} micro-batches",
                code="step-batch-count",
            )
        if definition.step.train is None and definition.step.update is None:
            raise LearnerError(no_step("train_step"), code="step-train-missing")
        if definition.step.optimizer is None and definition.step.update is None:
            raise one_error(no_optimizer(), code="learner-untrainable")
        definition.resolve_without_fit(self._train)
        if "train" not in self._checked:
            traced = trace_train(definition.step, state, batches[0])
            if traced.problems:
                raise one_error(traced.problems, code="learner-untrainable")
            definition.change(**traced.facts)
            self._checked.add("train")
        if not _is_traced(state, batches):
            with Tracing("train_step", GIVEN, lambda: batches[-1]):
                return self._compiled().train(state, batches)
        state, metrics, weight = definition.step.unrolled_step(state, list(batches))
        return state, _by_name(definition.step.train_metrics, metrics) | {"weight": weight}

    def valid(self, state: TrainState, batch: PyTree) -> dict[str, Any]:
        """Return a dict of the metrics of one validation batch and its `weight`."""
        step = self._definition.step
        if step.valid is None:
            raise LearnerError(no_step("valid_step"), code="step-valid-missing")
        if "valid" not in self._checked:
            if problems := trace_valid(step, state, batch, GIVEN).problems:
                raise one_error(problems, code="learner-untrainable")
            self._checked.add("valid")
        if not _is_traced(state, batch):
            with Tracing("valid_step", GIVEN, lambda: batch):
                return self._compiled().valid(state, batch)
        metrics, weight, _ = step.validate(state, batch, jnp.int32(0))
        return _by_name(step.valid_metrics, metrics) | {"weight": weight}

    def _compiled(self) -> SingleStepRunner:
        step = self._definition.step
        # A changed definition has another step, and other programs.
        if self._runner is None or self._runner.step is not step:
            self._runner = SingleStepRunner(step, self._definition.strategy.platform)
        return self._runner


def _by_name(metrics: MetricCollection, states: PyTree) -> dict[str, Any]:
    return dict(zip(metrics.step_names, metrics.step_values(states), strict=True))


def _is_traced(*trees: PyTree) -> bool:
    """Return True if JAX traces the caller."""
    return any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(trees))
