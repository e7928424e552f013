"""Short scripts, each of which trains something real: `python -m examples.digits`, from the root of the repository."""
