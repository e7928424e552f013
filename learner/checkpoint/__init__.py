"""Checkpoints: their contents, their schedule, retention, and restoration."""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
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

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)
