"""Checkpoints: their contents, their schedule, retention, and restoration."""

from typing import TYPE_CHECKING

from learner.util.discovery import import_lazily

if TYPE_CHECKING:
    from learner.checkpoint.manifest import DamagedError as DamagedError
    from learner.checkpoint.retention import CheckpointOptions as CheckpointOptions
    from learner.checkpoint.retention import Retention as Retention
    from learner.checkpoint.saver import Saver as Saver
    from learner.checkpoint.store import CheckpointStore as CheckpointStore
    from learner.checkpoint.store import Entry as Entry

if not TYPE_CHECKING:
    __getattr__, __dir__ = import_lazily(__name__)
