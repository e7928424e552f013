"""The keys of a config.

They are the arguments of `LearnerBuilder`, `build` and `fit`, and every method of the builder.
"""

from learner.cli.importing import exports

PARTS = ("directory", "model", "optimizer", "lr", "train", "valid", "train_step", "valid_step", "update", "trainable")
"""Keys that are arguments of the builder, of `build` and of `fit`; all others are methods of the builder."""

OBJECTS: dict[str, dict[str, bool]] = {
    "model": {"model": True},
    "optimizer": {"alone": True, "partial": True},
    "lr": {"alone": True},
    "train_step": {"alone": True, "partial": True},
    "valid_step": {"alone": True, "partial": True},
    "update": {"alone": True, "partial": True},
    "trainable": {"alone": True, "partial": True},
}
"""Those of them that are objects, and how `learner.cli.recipes.recipe` reads them."""

NEEDED = ("directory", "model", "optimizer", "lr", "train")

PROCESS = ("overwrite", "resume", "checkpoint")
"""Keys about one start of a run, which are never saved with it."""

DEFAULTS = {"seed": 0, "num_epochs": 1, "grads_accumulation": 1}

_METRIC = ("learner.metrics", "learner.metrics.MetricBase")

NAMED: dict[str, list[tuple[str, str | None]]] = {
    "optimizer": [("learner.cli.optimizers", None)],
    "lr": [("learner.cli.schedules", None), ("learner", "learner.ReduceOnPlateau")],
    "metrics": [_METRIC],
    "metric_train": [_METRIC],
    "metric_valid": [_METRIC],
    "metric_train_numeric": [_METRIC],
    "metric_valid_numeric": [_METRIC],
    "metric_loggers": [("learner.loggers", "learner.events.Listener")],
    "renderer": [("learner.renderers", "learner.events.Listener")],
    "early_stopping": [("learner", "learner.MetricEarlyStopping")],
    "interrupter": [("learner", "learner.Interrupter")],
}
"""Keys that take objects, and the modules whose classes (of a base class) need no import path there."""

CONTEXT = {
    "directory": "where the run leaves its logs and checkpoints",
    "overwrite": "true: replace the run that is there",
    "resume": "true: go on with the newest checkpoint of the run that is there, start afresh where there is none; "
    "or {allow: [metrics, optimizer, logs]}: where these are not as they were, too",
    "model": "a class, or a function that makes the model; rngs, key and seed come from the seed if left out",
    "optimizer": "one of those below, or a function of the learning rate by import path",
    "lr": "a number, one of the schedules below, ReduceOnPlateau, or a function of the step by import path",
    "train": "dataset, batch_size, shuffle, num_workers, drop_last, prefetch, batcher; or a loader by import path",
    "valid": "the same; or a mapping of several by name",
    "train_step": "a function (model, batch) or (model, batch, rng) by import path; default: the model's method",
    "valid_step": "the same for validation",
    "update": "a function (state, batch, lr, rng) by import path that replaces the whole update",
    "trainable": "what is differentiated, by import path: a function (path, array), or an nnx filter",
}
"""The keys that are not only a method of the builder, for people."""


def names_for(key: str) -> dict[str, str]:
    """Short names that an object at `key` may have, with their import paths.

    >>> names_for("early_stopping")
    {'MetricEarlyStopping': 'learner.MetricEarlyStopping'}
    """
    return {name: path for module, base in NAMED.get(key, []) for name, path in exports(module, base).items()}
