"""The command line, which builds and trains a run from a config file.

Each command is a module here, which `main` imports when it is called. `configs` reads, checks and builds what a config
describes; `sweeps` plans and reports the members of a sweep.
"""
