"""Size limits of untrusted files."""

SUFFIXES = (".json", ".yaml", ".yml")
LARGEST, DEEPEST = 2**20, 50  # characters and levels of a file
BITS = 1024  # of an integer, as of the largest float
