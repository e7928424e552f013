"""Listeners that store what happens in a run, and the files that every run writes."""

from learner.loggers.application import close_application_log, open_application_log
from learner.loggers.base import MetricLogger
from learner.loggers.files import RunFiles, file_name
from learner.loggers.memory import MemoryLogger

__all__ = ["MemoryLogger", "MetricLogger", "RunFiles", "close_application_log", "file_name", "open_application_log"]
