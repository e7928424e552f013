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
    """Return the arguments of `RunValues` that a checkpoint changes: the metrics and the history; for a checkpoint
    inside an epoch, also the values and rows so far.
    """
    metrics = {split: options.metrics_of(split) for split in splits}
    if restored is None:
        return {"metrics": metrics, "history": History()}
    progress = restored.progress
    _restore_host_metrics(progress["host_metrics"], metrics)
    arguments: dict[str, Any] = {"metrics": metrics, "history": History.from_json(progress["history"])}
    arguments["epoch_values"] = {key: decode(value) for key, value in progress["epoch_values"].items()}
    collecting = [metric.name for metric in metrics["train"] if isinstance(metric, CollectingMetric)]
    # The run of a population has no rows, as each member has its own.
    in_flight = None if options.population is not None else restored.metrics
    if in_flight is not None and collecting and _same_metrics(restored, options):
        rows = _rows_in_flight(in_flight, collecting)
        # A checkpoint has the leaves of these rows, and the current step gives their structure. In the order of the
        # metrics, by which the next checkpoint numbers them.
        shapes = dict(zip(collecting, runner.row_shapes(first_batch), strict=True))
        of_train = {name: [rows.get(name) or _no_rows(shapes[name])] for name in collecting}
        row_trees = {name: jax.tree.structure(tree) for name, tree in shapes.items()}
        arguments |= {"collected": {"train": of_train}, "row_trees": row_trees}
    return arguments


def _rows_in_flight(metrics: Mapping[str, Any], names: Sequence[str]) -> dict[str, list[np.ndarray]]:
    """Return the rows that the collecting metrics of the train split, of these names, held in a checkpoint inside an
    epoch. Metrics without a row are left out. `metrics`: see `Restored`.
    """
    stored = (metrics.get("rows") or {}).get("train", {})
    return {
        names[int(index)]: [np.asarray(columns[str(i)]) for i in range(len(columns))]
        for index, columns in stored.items()
    }


def _no_rows(shapes: Any) -> list[np.ndarray]:
    """Return the leaves of no rows, from the shapes `[rows, ...]` of a batch's rows."""
    return [np.zeros((0, *x.shape[1:]), x.dtype) for x in jax.tree.leaves(shapes)]


def _restore_host_metrics(states: Mapping[str, Any], metrics: Mapping[str, Sequence[MetricBase]]) -> None:
    """Restore the states of the metrics on the host, by split and name. `metrics`: by split."""
    for split, of_split in metrics.items():
        for metric in of_split:
            if isinstance(metric, HostMetric) and metric.name in states.get(split, {}):
                metric.set_state(states[split][metric.name])


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
