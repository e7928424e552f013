"""The parts of a run that a checkpoint restores: metrics, the reporter's values, early stopping and the plateau."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError
from learner.metrics.base import CollectingMetric, HostMetric, MetricBase
from learner.runs.history import History
from learner.schedules.plateau import ReduceOnPlateau
from learner.steps.measure import MetricCollection
from learner.steps.population import stacked_shapes
from learner.training.checkpoints.resume import all_ended_reason, set_stopping
from learner.training.checks.fingerprints import metrics_in_flight, saved_fingerprint
from learner.training.options import Options
from learner.training.programs.executor import MetricAccumulator, Runner
from learner.training.progress.restore import Restored
from learner.util.json_values import decode


def accumulator_in_flight(restored: Restored | None, runner: Runner, options: Options) -> MetricAccumulator:
    """Return the metric states of the train split: those of a checkpoint inside an epoch, or empty ones."""
    fresh = runner.start("train")
    if restored is None or restored.metrics is None or not _same_metrics(restored, options):
        return fresh
    measure = MetricCollection.of(options.metrics_of("train"))
    separate = dataclasses.replace(measure, separate=True)
    states = restored.metrics["states"]
    saved = [x for i in range(len(states)) if (x := states.get(str(i))) is not None]
    if runner.lanes is not None:
        saved = _in_lanes(saved, restored.progress, runner.lanes)
    members = None if runner.lanes is None else len(runner.lanes)
    # In checkpoints of earlier versions no metrics share a state.
    for layout in (measure, separate) if members is None else (measure,):
        shapes = jax.eval_shape(layout.fresh)
        leaves, tree = jax.tree.flatten(shapes if members is None else stacked_shapes(shapes, members))
        if [(x.shape, x.dtype) for x in leaves] == [(x.shape, x.dtype) for x in saved]:
            metrics = jax.tree.unflatten(tree, saved)
            return runner.start("train", metrics if layout is measure else measure.share(metrics))
    raise LearnerError(
        f"the checkpoint of step {restored.entry.step} holds other states of the train split's metrics than these "
        "metrics have now; resume from the end of an epoch: checkpoint(epoch)",
        code="resume-metric-state-differs",
    )


def _in_lanes(saved: list[Any], progress: Mapping[str, Any], lanes: Sequence[int]) -> list[Any]:
    """Return the metric states of a population for these lanes, which other devices may fill with other members.

    Args:
      saved: a state for each lane of the checkpoint.
      progress: the progress of the checkpoint.
      lanes: the current member of each lane.
    """
    before = list(progress.get("lanes") or range(len(progress["members"])))
    if before == list(lanes) or any(len(x) != len(before) for x in saved):  # the latter are refused by their shapes
        return saved
    # A member without a lane before has ended: its state is never read.
    places = np.array([before.index(member) if member in before else 0 for member in lanes])
    return [x[places] for x in saved]


def reporter_values(
    options: Options, restored: Restored | None, splits: Sequence[str], runner: Runner, first_batch: Any
) -> dict[str, Any]:
    """Return the arguments of the reporter that a checkpoint changes: the metrics and the history; for a checkpoint
    inside an epoch, also the values and rows so far.
    """
    metrics = {split: options.metrics_of(split) for split in splits}
    restore_host_metrics(restored, metrics)
    collecting = {split: [m.name for m in ms if isinstance(m, CollectingMetric)] for split, ms in metrics.items()}
    arguments: dict[str, Any] = {"metrics": metrics, "history": History()}
    # A checkpoint has the leaves of these rows, and the current step gives their structure.
    if rows := rows_in_flight(restored, collecting, options):
        row_trees = dict(zip(collecting["train"], runner.row_trees(first_batch), strict=True))
        arguments |= {"collected": rows, "row_trees": row_trees}
    if restored is not None:
        arguments["history"] = History.from_json(restored.progress["history"])
        arguments["epoch_values"] = {k: decode(value) for k, value in restored.progress["epoch_values"].items()}
    return arguments


def rows_in_flight(
    restored: Restored | None, names: Mapping[str, list[str]], options: Options
) -> dict[str, dict[str, list[list[np.ndarray]]]]:
    """Return the rows that collecting metrics (their names by split) held in a checkpoint inside an epoch."""
    if restored is None or options.population is not None or not _same_metrics(restored, options):
        return {}  # each member of a population has its own
    stored = (restored.metrics or {}).get("rows") or {}
    rows_by_split: dict[str, dict[str, list[list[np.ndarray]]]] = {}
    for split, metrics in stored.items():
        for index, columns in metrics.items():
            rows = [np.asarray(columns[str(i)]) for i in range(len(columns))]
            rows_by_split.setdefault(split, {})[names[split][int(index)]] = [rows]
    return rows_by_split


def restore_host_metrics(restored: Restored | None, metrics: Mapping[str, Sequence[MetricBase]]) -> None:
    """Restore the states of the metrics on the host from the checkpoint. `metrics`: by split."""
    kept = {} if restored is None else restored.progress["host_metrics"]
    for split, of_split in metrics.items():
        for metric in of_split:
            if isinstance(metric, HostMetric) and metric.name in kept.get(split, {}):
                metric.set_state(kept[split][metric.name])


def _same_metrics(restored: Restored, options: Options) -> bool:
    names: Any = saved_fingerprint(restored.progress)["settings"].get("metrics")
    return bool(names == metrics_in_flight(options))


def restore_decisions(options: Options, plateau: ReduceOnPlateau | None, restored: Restored) -> list[str]:
    """Restore early stopping and the plateau, and return the reasons to stop that early stopping already has. The
    members of a population have their own.
    """
    if options.population is not None:
        return [reason] if (reason := all_ended_reason(restored.progress["members"])) else []
    set_stopping(options.early_stopping, restored.progress["early_stopping"])
    if plateau is not None and restored.progress["plateau"] is not None:
        plateau.set_state(restored.progress["plateau"])
    return [f"early stopping: {stopping.reason}" for stopping in options.early_stopping if stopping.reason]
