"""Data for tests of views, and functions that other processes import by their path."""

import numpy as np

from learner.data import Dataset

N = 10
ITEMS = [{"x": np.float32([i, -i]), "n": np.int32(i)} for i in range(N)]
ARRAYS = {"x": np.array([item["x"] for item in ITEMS]), "n": np.array([item["n"] for item in ITEMS])}


class Numbers(Dataset):
    """A sequence without negative indices."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        assert type(index) is int
        assert 0 <= index < N
        return ITEMS[index]


def double(item):
    return {name: value * 2 for name, value in item.items()}


def is_odd(item):
    return item["n"] % 2 == 1


def add_noise(item, rng):
    return {"x": item["x"] + rng.normal(size=2).astype(np.float32), "n": item["n"]}


def is_even_half(item):
    return item["n"] // 2 % 2 == 0
