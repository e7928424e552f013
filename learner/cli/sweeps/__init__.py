"""Sweeps: the values of their members, what trains in which directory, and the report."""
