"""Tests of the population benchmark."""

import importlib
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_each_way_measures_all_members(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    population = importlib.import_module("benchmarks.population")
    monkeypatch.setitem(population.EPOCHS, "digits", (2, 1))
    with jax.numpy_dtype_promotion("standard"):
        for way in population.WAYS:
            result = population.measure(population.Measurement("digits", way, members=2))
            assert result["epochs"] > 0
            assert result["peak"] > 50  # MiB
