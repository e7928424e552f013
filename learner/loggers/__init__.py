"""Listeners that store the events of a run, and the files that every run writes."""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.loggers.application import close_application_log, open_application_log
    from learner.loggers.base import MetricLogger
    from learner.loggers.json_lines import JsonLines
    from learner.loggers.memory import MemoryLogger
    from learner.loggers.mirror import RunMirror
    from learner.loggers.mlflow import MLflow
    from learner.loggers.table import Csv
    from learner.loggers.tensorboard import TensorBoard
    from learner.loggers.wandb import WandB
    from learner.loggers.webhook import Webhook
    from learner.runs.file_names import file_name
    from learner.runs.metric_logs import RunFiles

    __all__ = [
        "Csv",
        "JsonLines",
        "MLflow",
        "MemoryLogger",
        "MetricLogger",
        "RunFiles",
        "RunMirror",
        "TensorBoard",
        "WandB",
        "Webhook",
        "close_application_log",
        "file_name",
        "open_application_log",
    ]

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__, "learner.events.Listener")
