"""The processes of a run."""
