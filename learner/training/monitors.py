"""The monitored metrics for the best checkpoint, early stopping and plateaus, and their direction."""

from collections.abc import Sequence
from typing import Any

from learner.checkpoint.retention import CheckpointOptions
from learner.errors import Problem, near
from learner.events import MetricInfo
from learner.metrics.base import Metric
from learner.metrics.monitor import Monitor
from learner.schedules.plateau import ReduceOnPlateau
from learner.training.options import NUMBERS, Options
from learner.util.text import join_names


def default_monitor(valid_splits: Sequence[str]) -> str:
    """Return the default metric that selects the best checkpoint."""
    return f"{valid_splits[0]}/Loss" if valid_splits else "train/Loss"


def monitor_of(options: Options, valid_splits: list[str]) -> tuple[str, bool]:
    """Return the key of the metric that selects the best checkpoint, and True if higher is better."""
    checkpoints = options.checkpoints or CheckpointOptions()
    key = checkpoints.monitor or default_monitor(valid_splits)
    return key, direction_of(options, valid_splits, key, checkpoints.mode)[0] == "max"


def monitored_keys(options: Options, valid_splits: list[str], plateau: ReduceOnPlateau | None) -> set[str]:
    """Return the keys of all metrics on which a decision depends."""
    best = [] if options.checkpoints is None else [monitor_of(options, valid_splits)[0]]
    return {*(monitor.monitor for _, monitor in _monitors(options, plateau)), *best}


def _monitors(options: Options, plateau: ReduceOnPlateau | None) -> list[tuple[str, Monitor]]:
    """Return the monitors of all decisions except for the best checkpoint, each with the name of the decision."""
    named: list[tuple[str, Any]] = [("early stopping", stopping) for stopping in options.early_stopping]
    named += [("ReduceOnPlateau", plateau), ("halving", options.halving), ("exploit", options.exploit)]
    return [(name, decision.monitor) for name, decision in named if decision is not None]


def monitored_on_host(options: Options, valid_splits: list[str], plateau: ReduceOnPlateau | None) -> list[str]:
    """Return the keys of the monitored metrics that each process computes on its host."""
    metrics = [(split, metric) for split in ("train", *valid_splits) for metric in options.metrics_of(split)]
    on_host = {f"{split}/{metric.name}" for split, metric in metrics if not isinstance(metric, Metric)}
    return sorted(on_host & monitored_keys(options, valid_splits, plateau))


def set_directions(options: Options, valid_splits: list[str], plateau: ReduceOnPlateau | None) -> list[str]:
    """Set the direction of each monitor to that of its metric, and return the problems of monitors without one."""
    problems: list[tuple[str, str | None]] = []
    for what, monitor in _monitors(options, plateau):
        direction, problem = direction_of(options, valid_splits, monitor.monitor, monitor.mode)
        # In place, as early stopping and the plateau hold this object.
        monitor.mode = monitor.mode or direction
        problems.append((what, problem))
    for logger in options.loggers:
        name = type(logger).__name__
        problems += [(name, direction_of(options, valid_splits, key, None)[1]) for key in logger.monitors]
    if options.checkpoints is not None:
        key = options.checkpoints.monitor or default_monitor(valid_splits)
        problems.append(("the checkpointer", direction_of(options, valid_splits, key, options.checkpoints.mode)[1]))
    return [
        Problem(f"{what} monitors {problem}", code="monitor-metric", name=what) for what, problem in problems if problem
    ]


def differing_monitors(options: Options, valid_splits: list[str]) -> list[str]:
    """Return a warning if early stopping follows other metrics than the choice of the best checkpoint, which nobody has
    named.
    """
    checkpoints = options.checkpoints
    if checkpoints is None or checkpoints.monitor is not None or not checkpoints.keep_best:
        return []
    best, stopping = default_monitor(valid_splits), [each.monitor.monitor for each in options.early_stopping]
    if not stopping or best in stopping:
        return []
    return [
        f"early stopping follows {join_names(stopping, 8)}, but the best checkpoint is chosen by {best}: name a metric "
        f"for it, with_file_checkpointer(monitor={stopping[0]!r}), or monitor={best!r} to keep this choice"
    ]


def direction_of(options: Options, valid_splits: list[str], key: str, mode: str | None) -> tuple[str, str | None]:
    """Return `min` or `max` for a metric, and the problem with monitoring it or None."""
    infos = {info.key: info for info in options.metric_infos(["train", *valid_splits])}
    numeric = [k for k, info in infos.items() if info.numeric and k != key]
    if key not in infos and key.startswith("valid/") and not valid_splits:
        return "min", f"{key!r}, and there is no validation data; {near('', numeric)}"
    if key.startswith(NUMBERS):
        if not (options.has_hooks or options.learner_class):  # a loop of the user's may log numbers as well
            return "min", f"{key!r}, a number that a hook returns, and there is no hook (on_epoch_end, every)"
        infos.setdefault(key, MetricInfo("custom", key.removeprefix(NUMBERS)))
    if key not in infos:
        return "min", f"{key!r}, which no metric provides; {near(key, numeric)}"
    if not infos[key].numeric:
        return "min", f"{key!r}, which is not a number"
    better = infos[key].higher_is_better
    if mode is None and better is None:
        remedy = "give mode='min' or mode='max' beside the monitor"
        if not key.startswith(NUMBERS):
            remedy += ", or the metric a direction: its attribute higher_is_better, or that argument of FieldMean"
        return "min", f"{key!r}, which has no direction of its own: {remedy}"
    return mode or ("max" if better else "min"), None
