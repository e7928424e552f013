"""The result of `fit`."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from learner.runs.history import History


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

    def __repr__(self) -> str:
        return f"LearningResult(stopped_by={self.stopped_by!r}, history={list(self.history)})"
