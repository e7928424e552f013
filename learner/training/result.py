"""The result of `fit`."""

import contextlib
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from learner.checkpoint.items import from_items, to_items
from learner.checkpoint.manifest import DamagedError
from learner.errors import LearnerError
from learner.runs.history import History, Point, read_history
from learner.steps.eval_params import eval_params, has_eval_params
from learner.steps.train_state import TrainState
from learner.training.definition import TrainingDefinition
from learner.training.dispatch_plan import make_runner
from learner.training.executor import Runner
from learner.training.preflight import RunPlan
from learner.training.restore import Restored
from learner.training.resume import finished_summary, too_few_epochs
from learner.training.run_directory import open_store
from learner.util.fragments import fragment, paragraph
from learner.util.trees import named_leaves


class LearningResult:
    """The outcome of a run.

    Attributes:
      model: the trained model as it was given: the same type, a new object, in eval mode.
      history: what every metric was, epoch by epoch.
      stopped_by: why the run ended: `num_epochs`, `num_steps`, `ctrl-c`, `sigterm`, or what stopped it and its
        reason.
      summary: the content of `summary.json`.
    """

    def __init__(
        self,
        model: Any,
        history: History,
        stopped_by: str,
        summary: Mapping[str, Any],
        load_best: Callable[[], Any],
    ):
        self.model = model
        self.history = history
        self.stopped_by = stopped_by
        self.summary = summary
        self._load_best = load_best

    @cached_property
    def best_model(self) -> Any:
        """The model of the best epoch, in eval mode: the one with the best value of the monitored metric, `valid/Loss`
        by default. Read from its checkpoint at the first access; in a run of several processes by all of them.

        Raises:
          LearnerError: the run saved nothing (`with_file_checkpointer(None)`), or its checkpoints are gone or damaged.
        """
        return self._load_best()

    def _repr_html_(self) -> str:
        points = {key: metric["best"] for key, metric in self.summary["metrics"].items()}
        best = {key: None if point is None else Point(**point) for key, point in points.items()}
        ended = f"ended at epoch {self.summary['epochs']}, step {self.summary['steps']:,}: {self.stopped_by}"
        return fragment(paragraph(ended), self.history.html(best))

    def __repr__(self) -> str:
        return f"LearningResult(stopped_by={self.stopped_by!r}, history={list(self.history)})"


def result_of(
    definition: TrainingDefinition, runner: Runner, history: History, summary: Mapping[str, Any]
) -> LearningResult:
    """Return the result of a run that has ended, with a copy of the state that `runner` holds."""
    model = rebuild(definition, runner.copy(runner.state))
    return LearningResult(model, history, summary["stopped_by"], summary, lambda: load_best_model(definition))


def finished_result(plan: RunPlan, restored: Restored) -> tuple[Runner, LearningResult] | None:
    """Return the programs and the result of a run that has nothing left to train, or None. Nothing is written."""
    summary = finished_summary(plan, restored)
    if summary is None:
        return None
    for text in too_few_epochs(plan.options, restored.position):
        warnings.warn(text, stacklevel=3)  # the line that called `fit`
    runner = make_runner(plan.step, restored.state, plan.strategy)
    return runner, result_of(plan.definition, runner, read_history(plan.options.directory), summary)


def rebuild(definition: TrainingDefinition, state: TrainState) -> Any:
    """Return the model of a state, of the type that was given to `build`, in eval mode."""
    return definition.step.adapter.rebuild(eval_params(state.params, state.opt_state), state.model_state)


def load_best_model(definition: TrainingDefinition) -> Any:
    """Return the model of the best checkpoint that is not damaged.

    Raises:
      LearnerError: the run saved nothing, or none of its checkpoints can be read.
    """
    if definition.options.checkpoints is None:
        raise LearnerError(
            "the run kept no best model: with_file_checkpointer(None) turns saving off. Leave it out, or use "
            "result.model, the model after the last step",
            code="learner-best-not-kept",
        )
    damaged = []
    with contextlib.closing(open_store(definition.options)) as store:
        shapes = definition.placed_shapes()
        averaged = has_eval_params(named_leaves(shapes.opt_state))
        items = {name: x for name, x in to_items(shapes).items() if name == "model" or (name == "optim" and averaged)}
        for entry in store.ranked():
            try:
                restored = store.restore(entry.step, items)
            except DamagedError as error:
                damaged.append(str(error))
            else:
                return rebuild(definition, from_items(restored, shapes))
    reason = "; ".join(damaged) or f"there is no checkpoint in {store.path(0).parent}"
    raise LearnerError(
        f"the best model cannot be read: {reason}. result.model is the model after the last step",
        code="learner-best-unreadable",
    )
