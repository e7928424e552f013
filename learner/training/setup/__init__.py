"""The setup of a run: programs, feeders, threads and parts, in the order of their dependencies."""
