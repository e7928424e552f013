"""The result of `fit`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic

import jax

from learner.distributed.process_group import hosts
from learner.models.model_types import ModelT
from learner.runs.history import History, Point
from learner.runs.layout import end_word
from learner.steps.eval_params import eval_params
from learner.training.checkpoints.model_loading import find_best, load_best_state
from learner.training.definition import NotPicklable, TrainingDefinition
from learner.training.programs.executor import Runner
from learner.util.fragments import fragment, paragraph


@dataclasses.dataclass(frozen=True)
class BestModel(Generic[ModelT]):
    """The model of the best checkpoint of a run.

    Attributes:
      model: the model in eval mode.
      epoch: the epoch at whose end, or inside of which, the checkpoint was made.
      step: the optimizer step.
    """

    model: ModelT
    epoch: int
    step: int


class RunFunction(NotPicklable):
    """A function of a run in its result. Deep copies of the result share it, as they do any function."""

    def __init__(self, function: Callable[..., Any]):
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> "RunFunction":
        return self


class LearningResult(Generic[ModelT]):
    """The outcome of a run.

    Attributes:
      model: the trained model in eval mode, a new object of the same type as the model given to `build`. With
        `LearnerBuilder.restore_best`, the best model.
      history: the values of every metric, epoch by epoch.
      stopped_by: why the run ended: `num_epochs`, `num_steps`, `ctrl-c`, `sigterm`, `sighup`, or another cause with its
        reason.
      summary: the content of `summary.json`.
    """

    def __init__(
        self,
        model: ModelT,
        history: History,
        stopped_by: str,
        summary: Mapping[str, Any],
        load_best: Callable[[], BestModel[ModelT]],
        find_best: Callable[[], tuple[int, int]],
        model_step: int | None = None,
    ):
        self.model = model
        self.history = history
        self.stopped_by = stopped_by
        self.summary = summary
        self._load_best, self._find_best = RunFunction(load_best), RunFunction(find_best)
        self._model_step = summary["steps"] if model_step is None else model_step

    @functools.cached_property
    def _best(self) -> BestModel[ModelT]:
        best: BestModel[ModelT] = self._load_best()
        self._best_place = best.epoch, best.step
        return best

    @functools.cached_property
    def _best_place(self) -> tuple[int, int]:
        """The epoch and step of `best_model`."""
        place: tuple[int, int] = self._find_best()
        return place

    @property
    def best_model(self) -> ModelT:
        """The model of the best epoch, in eval mode: the one with the best value of the monitored metric, `valid/Loss`
        by default. The first access reads it from its checkpoint; if it is sharded over several processes, all of them
        must access it.

        Raises:
          LearnerError: the run saved nothing (`with_file_checkpointer(None)`), or its checkpoints are missing or
            damaged.
        """
        return self._best.model

    @property
    def best_epoch(self) -> int:
        """The epoch of `best_model`, 0 before the first one. Each process may access it alone. It verifies the
        checkpoint without loading the model, and raises like `best_model`.
        """
        return self._best_place[0]

    @property
    def best_step(self) -> int:
        """The optimizer step of `best_model`; see `best_epoch`."""
        return self._best_place[1]

    def export(self, path: str | Path, inputs: Any, *, best: bool = True, **options: Any) -> Path:
        """Export the model for inference to a directory, and return its path; see `learner.records.export_model`.

        Args:
          path: the directory.
          inputs: example inputs, `[rows, ...]`.
          best: export the best model rather than `model`.
          **options: options of `export_model`: `function`, `batch_size`, `platforms`, `format`.

        Raises:
          LearnerError: the model cannot be exported, or there is no best model.
        """
        model = self.best_model if best else self.model
        metrics = numbers_at(self.history, self.best_step if best else self._model_step)
        from learner.records.inference import export_model

        return export_model(path, model, inputs, metrics=metrics, **options)

    def push(self, repository: str, *, best: bool = True, **options: Any) -> str:
        """Push the model and its metrics to the Hugging Face Hub, and return the URL of the commit; see
        `learner.records.push_model`.

        Args:
          repository: the repository, such as `user/digits`.
          best: push the best model rather than `model`.
          **options: options of `push_model`: `config`, `export`, `private`, `revision`, `card`.

        Raises:
          LearnerError: the Hub rejects the push, or there is no best model.
        """
        model = self.best_model if best else self.model
        metrics = numbers_at(self.history, self.best_step if best else self._model_step)
        from learner.records.hub import push_model

        return push_model(repository, model, metrics=metrics, **options)

    def _repr_html_(self) -> str:
        points = {key: metric["best"] for key, metric in self.summary["metrics"].items()}
        best = {key: None if point is None else Point(**point) for key, point in points.items()}
        place = f"epoch {self.summary['epochs']}, step {self.summary['steps']:,}"
        ended = f"{end_word(self.stopped_by)} at {place}: {self.stopped_by}"
        return fragment(paragraph(ended), self.history.html(best))

    def __repr__(self) -> str:
        return f"LearningResult(stopped_by={self.stopped_by!r}, history={list(self.history)})"


def numbers_at(history: History, step: int) -> dict[str, float]:
    """Return the numeric values of a history at a step, by key."""
    points = [(key, point) for key in history for point in history.points(key) if point.step == step]
    return {key: point.value for key, point in points if not isinstance(point.value, str)}


def result_of(
    definition: TrainingDefinition, runner: Runner, history: History, summary: Mapping[str, Any]
) -> LearningResult[Any]:
    """Return the result of a run that has ended, with a copy of the state in `runner`, or with `restore_best` the best
    state.
    """

    def load_best() -> BestModel[Any]:
        state, epoch, step = load_best_state(definition, definition.placed_shapes())
        # As `Runner.copy` places the last model: JAX cannot compute with arrays on one device and on several.
        parts = definition.strategy.to_single_device((eval_params(state.params, state.opt_state), state.model_state))
        return BestModel(definition.step.adapter.rebuild(*parts), epoch, step)

    model_step = None
    if definition.options.restore_best:
        # The other parts stay: the optimizer's state of the last step does not belong to the best parameters.
        state, _, model_step = load_best_state(definition, runner.state)
        # Each process reads by itself: one that cannot read the best has another, and parts of both would be mixed.
        hosts().agree("the step of the best checkpoint that it can read", model_step)
        runner.leaves = jax.tree.leaves(state)
    model = runner.model()
    find = functools.partial(find_best, definition)
    return LearningResult(model, history, summary["stopped_by"], summary, load_best, find, model_step)
