"""Checkpoints: their contents, when they are saved, which are kept, and how they are restored."""

from learner.checkpoint.manifest import DamagedError
from learner.checkpoint.retention import CheckpointOptions, Retention
from learner.checkpoint.saver import Saver
from learner.checkpoint.store import CheckpointStore, Entry

__all__ = [
    "CheckpointOptions",
    "CheckpointStore",
    "DamagedError",
    "Entry",
    "Retention",
    "Saver",
]
