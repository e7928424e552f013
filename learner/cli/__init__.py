"""The command line: config files in, a builder and a run out."""
