"""Nested settings as one table."""

import math

from learner.loggers.flat import flat


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
    assert flat(settings) == {
        "lr": 0.1,
        "devices": 8,
        "summary": True,
        "train.dataset.class_path": "digits",
        "train.dataset.init_args.split": "train",
        "metrics.0.class_path": "Accuracy",
        "metrics.1.class_path": "TopK",
        "metrics.1.init_args.k": 5,
        "sizes": '[64, "Infinity"]',
    }
