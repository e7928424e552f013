"""The compiled programs of a run: they are compiled, kept, and called with the state that they change."""
