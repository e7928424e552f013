"""The command line, which builds and trains a run from a config file.

Each command is a module in this package, which `main` imports when the command is called. `configs` reads and checks
configs and builds their objects; `sweeps` plans and reports the members of a sweep.
"""
