"""What is saved, when, what is kept, and how it comes back."""

from learner.checkpoint.options import CheckpointOptions, Retention
from learner.checkpoint.saver import Saver
from learner.checkpoint.store import CheckpointStore, Entry

__all__ = ["CheckpointOptions", "CheckpointStore", "Entry", "Retention", "Saver"]
