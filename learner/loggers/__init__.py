"""Listeners that store the events of a run, and the files that every run writes."""

from learner.events import Listener
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
from learner.util.discovery import export_classes

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

export_classes(__name__, Listener)
