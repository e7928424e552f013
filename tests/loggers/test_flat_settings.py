"""Tests of nested settings as one flat table."""

import math

from learner.loggers.flat_settings import plain_settings


def test_settings_by_dotted_name():
    settings = {
        "lr": 0.1,
        "devices": 8,
        "summary": True,
        "train": {"dataset": {"class_path": "digits", "init_args": {"split": "train"}}, "shuffle": None},
        "metrics": [{"class_path": "Accuracy"}, {"class_path": "TopK", "init_args": {"k": 5}}],
        "sizes": [64, math.inf],
        "nothing": {},
    }
    assert plain_settings(settings) == {
        "lr": 0.1,
        "devices": 8,
        "summary": True,
        "train.dataset": "digits",
        "train.dataset.split": "train",
        "metrics.0": "Accuracy",
        "metrics.1": "TopK",
        "metrics.1.k": 5,
        "sizes": '[64, "Infinity"]',
    }
