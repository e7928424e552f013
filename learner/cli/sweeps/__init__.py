"""Sweeps: the values of the members, the groups that train and their directories, and the report."""
