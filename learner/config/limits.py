"""Size limits of untrusted files."""

SUFFIXES = (".json", ".yaml", ".yml")
LARGEST, DEEPEST = 2**20, 50  # of a file, in characters and levels
BITS = 1024  # of an integer, as of the largest float
