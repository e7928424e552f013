"""The setup of a run: programs, feeders, threads and parts, in the order in which they depend on each other."""
