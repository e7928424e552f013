"""The compiled programs of a run: compilation, storage, and calls with the state that they change."""
