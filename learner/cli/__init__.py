"""The command line, which builds and trains a run from a config file."""
