"""Listeners that store the events of a run, and the files that every run writes."""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.loggers.application import close_application_log as close_application_log
    from learner.loggers.application import open_application_log as open_application_log
    from learner.loggers.base import MetricLogger as MetricLogger
    from learner.loggers.json_lines import JsonLines as JsonLines
    from learner.loggers.memory import MemoryLogger as MemoryLogger
    from learner.loggers.mirror import RunMirror as RunMirror
    from learner.loggers.mlflow import MLflow as MLflow
    from learner.loggers.table import Csv as Csv
    from learner.loggers.tensorboard import TensorBoard as TensorBoard
    from learner.loggers.wandb import WandB as WandB
    from learner.loggers.webhook import Webhook as Webhook
    from learner.runs.file_names import file_name as file_name
    from learner.runs.metric_logs import RunFiles as RunFiles

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__, "learner.events.Listener")
