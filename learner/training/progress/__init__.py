"""The position and the state of a run in their checkpoint format."""
