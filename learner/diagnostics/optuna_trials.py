"""Hyperparameter search with Optuna: a trial is a run, which reports its values and ends early if they are bad."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from learner.errors import LearnerError, NonFiniteError
from learner.events import Event, Listener, SplitEnded
from learner.training.options import Options
from learner.training.stopping import Interrupter
from learner.util.optional import import_optional

PRUNED = "pruned"


class _TrialReports(Listener):
    """A listener that reports the value of each epoch to a trial, and stops the run once the trial is pruned.

    Args:
      trial: the trial of a study.
      monitor: the metric, by key.
      interrupter: stops the run.
    """

    def __init__(self, trial: Any, monitor: str, interrupter: Interrupter):
        self.monitors = (monitor,)
        self._trial, self._interrupter = trial, interrupter
        self._split, _, self._name = monitor.partition("/")

    def on_event(self, event: Event) -> None:
        """See `Listener`."""
        if not isinstance(event, SplitEnded) or event.at_step is not None:
            return
        if event.split == self._split and self._name in event.values:
            self._trial.report(float(event.values[self._name]), event.epoch)
            if self._trial.should_prune():
                self._interrupter.stop(PRUNED)


def optuna_objective(
    make: Callable[[Any], Any], train: Any = None, valid: Any = None, monitor: str = "valid/Loss"
) -> Callable[[Any], float]:
    """Return an objective for `optuna.Study.optimize`. Each trial trains a run, and its value is the best value of the
    monitored metric.

    Each epoch reports its value with the number of the epoch. If the study's pruner rejects a trial, its run ends; a
    trial whose loss is not finite counts as pruned. Ctrl-C ends the study.

    Args:
      make: returns the learner of a trial, which suggests values: `trial.suggest_float("lr", 1e-5, 1e-1, log=True)`.
        Each trial needs its own directory, such as `f"runs/trial-{trial.number}"`.
      train: as for `fit`. Default: the data given to `build`.
      valid: as for `fit`.
      monitor: the metric, by key. The direction of the study must match the metric's.

    Raises:
      LearnerError: Optuna is not installed. Raised by the objective before it trains: the study has the other
        direction, or several directions.

    >>> def make(trial):
    ...     lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    ...     builder = LearnerBuilder(f"runs/trial-{trial.number}").num_epochs(5)
    ...     return builder.build(model, optax.adamw, lr, train_step=step, valid_step=step)
    >>> study = optuna.create_study(pruner=optuna.pruners.MedianPruner())  # doctest: +SKIP
    >>> study.optimize(optuna_objective(make, train, valid), n_trials=20)  # doctest: +SKIP
    """
    optuna = import_optional("optuna", "optuna", "optuna_objective")

    def objective(trial: Any) -> float:
        learner = make(trial)
        definition = learner.definition
        higher = _direction(definition.options, monitor, trial.study.directions)
        interrupter = definition.options.interrupter or Interrupter()
        loggers = (*definition.options.loggers, _TrialReports(trial, monitor, interrupter))
        definition.options = dataclasses.replace(definition.options, interrupter=interrupter, loggers=loggers)
        try:
            result = learner.fit(train, valid)
        except NonFiniteError as error:
            raise optuna.TrialPruned(str(error)) from error
        if result.stopped_by == "ctrl-c":
            raise KeyboardInterrupt
        best = result.history.best(monitor, higher)
        if interrupter.reason == PRUNED or best is None:
            raise optuna.TrialPruned(result.stopped_by)
        return float(best.value)

    return objective


def _direction(options: Options, monitor: str, directions: Sequence[Any]) -> bool:
    """Return True if higher is better for the metric; the study must agree. `fit` refuses unknown metrics."""
    infos = {info.key: info for info in options.metric_infos([monitor.partition("/")[0]])}
    higher = monitor in infos and bool(infos[monitor].higher_is_better)
    needed = "maximize" if higher else "minimize"
    if len(directions) > 1:
        raise LearnerError(
            f"the study has {len(directions)} directions, and optuna_objective returns one value, the best {monitor}: "
            f"create_study(direction={needed!r})",
            code="optuna-direction",
            monitor=monitor,
            direction=needed,
        )
    if monitor in infos and directions[0].name.lower() != needed:
        raise LearnerError(
            f"{monitor} is better {'higher' if higher else 'lower'}: create_study(direction={needed!r})",
            code="optuna-direction",
            monitor=monitor,
            direction=needed,
        )
    return higher
