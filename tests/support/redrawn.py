"""Data that differs each time it is read, until it gets back its earlier state."""

import numpy as np

from tests.support.runs import batches


class Drawn:
    """Batches in an order that a generator of their own draws in each epoch."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        parts = batches(8)
        return (parts[number] for number in self.rng.permutation(len(parts)))


class Counted:
    """Batches whose numbers depend on how often they were read, which is their state."""

    reads = 0

    def __iter__(self):
        self.reads += 1
        return ({**part, "x": part["x"] * np.float32(self.reads)} for part in batches(8))

    def state_dict(self):
        return {"reads": self.reads}

    def load_state_dict(self, state):
        self.reads = state["reads"]


def drawn_function():
    """Return a function with a generator around it, which draws the order of its batches."""
    rng = np.random.default_rng(0)

    def read():
        parts = batches(8)
        return (parts[number] for number in rng.permutation(len(parts)))

    return read


REDRAWN = [Drawn, Counted, drawn_function]
