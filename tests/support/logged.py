"""Events for loggers, and functions that send them to one."""

import numpy as np

from learner.events import MetricInfo, RunEnded, RunStarted, SplitEnded, StepsEnded

INFOS = (MetricInfo("train", "Loss", higher_is_better=False),)


def started(directory, step=0, history=(), metrics=INFOS, time=1.0, **others):
    """Return the start of a run, or its resumption at a step, in an existing directory."""
    directory.mkdir(parents=True, exist_ok=True)
    others = {"resumed": step > 0, "history": dict(history), **others}
    return RunStarted(time, directory, 1, None, 3, metrics, 10, step=step, **others)


def steps(first, *losses, weights=None, time=0.0):
    """Return training steps; the second metric is greater by one."""
    values = np.float32(losses)
    weights = np.float32([32] * len(losses) if weights is None else weights)
    last, columns = first + len(losses) - 1, {"Loss": values, "Top-5 Accuracy": values + np.float32(1)}
    return StepsEnded(time, "train", 1, first, len(losses), last, None, last, columns, weights, 0.1)


def split(name, step, values, epoch=1, at_step=None, time=0.0, **others):
    """Return the values of a whole split."""
    return SplitEnded(time, name, epoch, step, values, 0.1, at_step, **others)


def ended(step, stopped_by="num_epochs", best=0.25):
    """Return the end of a run."""
    metric = {"unit": "", "higher_is_better": False, "best": {"value": best, "epoch": 1, "step": step}}
    summary = {"stopped_by": stopped_by, "metrics": {"valid/Loss": metric, "train/Odd": {"best": None}}}
    return RunEnded(9.0, 1, step, stopped_by, summary, 8.0, False)


def played(logger, *events):
    """Send events to a logger, and then the end of the run."""
    for event in events:
        logger.on_event(event)
    logger.close()
