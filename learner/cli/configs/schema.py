"""The keys of a config.

They are the arguments of `LearnerBuilder`, `build` and `fit`, and every method of the builder.
"""

from learner.cli.configs.importing import exports
from learner.runs.journal import OBSERVER_KEYS

_FUNCTIONS = ("train_step", "valid_step", "predict_step", "update", "trainable")

PARTS = ("directory", "model", "optimizer", "lr", "train", "valid", *_FUNCTIONS)
"""Keys that are arguments of the builder, of `build` and of `fit`; all others are methods of the builder."""

OBJECTS: dict[str, dict[str, bool]] = {
    "model": {"model": True},
    "optimizer": {"alone": True, "partial": True},
    "lr": {"alone": True},
    **{key: {"alone": True, "partial": True} for key in _FUNCTIONS},
}
"""The keys of arguments that are objects, and how `learner.cli.configs.recipes.recipe` reads them."""

_RATE = "the learning rate, a number or a schedule, is lr"
_ARGUMENT = "it is an argument of the optimizer, as in --optimizer=AdamW --optimizer."
_AVERAGE = "an optimizer averages the parameters, as in --optimizer=%s --optimizer.optimizer=AdamW "
_PROCESS = "it is an option of the commands fit, resume, evaluate and predict, and not a key of the config"

COMMON_GUESSES = {
    **dict.fromkeys(("ema", "ema_decay"), _AVERAGE % "Ema" + "--optimizer.decay=0.999"),
    "swa": _AVERAGE % "Swa" + "--optimizer.start=1000",
    **dict.fromkeys(("grad_clip", "grad_clip_norm", "gradient_clip_val", "max_grad_norm"), f"{_ARGUMENT}clip_norm=..."),
    **dict.fromkeys(("distributed", "coordinator", "num_processes", "process_id"), _PROCESS),
    "trainer": "options of the training are keys themselves, as in --num_epochs=3 --devices=2",
    "callbacks": "callbacks are keys themselves: early_stopping, with_file_checkpointer, on_epoch_end, metric_loggers",
    "patience": "it is an argument of early stopping, as in --early_stopping.patience=5",
    "config": "the config is an argument without a name, as in learner fit c.yaml",
    **dict.fromkeys(("logger", "loggers"), "loggers are given as metric_loggers, as in --metric_loggers=TensorBoard"),
    **dict.fromkeys(
        ("gpus", "num_gpus", "accelerator"), "the number of devices is given as devices, as in --devices=2"
    ),
    **{
        key: f"it is a key of train and of valid, as in --train.{key}=..."
        for key in ("dataset", "batch_size", "shuffle")
    },
    **dict.fromkeys(("schedule", "scheduler", "lr_schedule", "lr_scheduler", "learning_rate"), _RATE),
    **{name: f"{_ARGUMENT}{name}=..." for name in ("weight_decay", "clip_norm", "momentum")},
}
"""Common guesses for keys, and what to use instead."""

NEEDED = ("directory", "model", "optimizer", "lr", "train")

PROCESS = ("overwrite", "resume", "checkpoint")
"""Keys about one start of a run, which are never saved with it."""

OF_MACHINE = ("devices", "strategy", "with_time_limit", *OBSERVER_KEYS)
"""Options whose values are checked against the machine: its devices, job, packages and environment variables."""

SELECTIONS = ("halving", "exploit")
"""Keys that rank the members of a sweep. Ranked members train together."""

SWEEP = "sweep"
"""A section of a config for `learner sweep`. It is not an option, and other commands ignore it."""

DEFAULTS = {"seed": 0, "num_epochs": 1, "grads_accumulation": 1}

_DATASETS: list[tuple[str, str | None]] = [
    ("learner.data.sources", None),
    ("learner.data.bundled", None),
    ("learner.data.mixture", None),
]
_METRICS = ("metrics", "metric_train", "metric_valid", "metric_train_numeric", "metric_valid_numeric")
_METRIC = ("learner.metrics", "learner.metrics.MetricBase")

NAMED: dict[str, list[tuple[str, str | None]]] = {
    "optimizer": [("learner.optimizers.configs", None), ("learner.optimizers", "learner.optimizers.OptimizerFactory")],
    "lr": [
        ("learner.schedules", "learner.schedules.Schedule"),
        ("learner.schedules", "learner.schedules.ReduceOnPlateau"),
        ("learner.cli.schedules", None),
    ],
    **{key: [_METRIC] for key in _METRICS},
    "metric_loggers": [("learner.loggers", "learner.events.Listener")],
    "metric_loggers.only": [("learner.loggers", "learner.events.Listener")],
    "renderer": [("learner.renderers", "learner.events.Listener")],
    "early_stopping": [("learner", "learner.MetricEarlyStopping")],
    "interrupter": [("learner", "learner.Interrupter")],
    "precision": [("learner", "learner.Policy"), ("learner", "learner.LossScale")],
    "strategy": [("learner.strategies", "learner.strategies.Strategy")],
    "train.dataset": _DATASETS,
    "valid.dataset": _DATASETS,
    "with_file_checkpointer.record": [("learner.records", "learner.records.Recorder")],
}
"""Keys that take objects, and the modules whose classes (derived from a base class) need no import path there."""

PARTS_OF = {"strategy": {"fsdp": "learner.strategies.fsdp"}}
"""Functions that need no import path inside the object at a key, here the rules of a strategy."""

CONTEXT = {
    "directory": "where the run leaves its logs and checkpoints",
    "overwrite": "true: replace an existing run in the directory",
    "resume": "true: resume from the newest checkpoint in the directory, or start a new run if there is none; "
    "or {allow: [data, metrics, optimizer, logs]}: also if these have changed",
    "model": "a class, or a function that makes the model; rngs, key and seed come from the seed if left out",
    "optimizer": "a name of --help=optimizers, or a function of the learning rate by import path",
    "lr": "a number, a name of --help=schedules, or a function of the step by import path",
    "train": "dataset, views, batcher, batch_size, shuffle, num_workers, drop_last, prefetch; or a loader by its path",
    "valid": "as train; or a mapping of several by name",
    "train_step": "a function (model, batch) or (model, batch, rng) by import path; default: the model's method",
    "valid_step": "the function for validation, likewise",
    "predict_step": "the function for learner predict, likewise; default: the model's method, or valid_step",
    "update": "a function (state, batch, lr, rng) by import path that replaces the whole update",
    "trainable": "the parameters to train, by import path: a function (path, array), or an nnx filter",
}
"""Help texts of the keys that are not methods of the builder."""


def names_for(key: str) -> dict[str, str]:
    """Return the short names that an object at `key` may have, with their import paths.

    >>> names_for("early_stopping")
    {'MetricEarlyStopping': 'learner.MetricEarlyStopping'}
    """
    named = {name: path for module, base in NAMED.get(key, []) for name, path in exports(module, base).items()}
    return named | PARTS_OF.get(key, {})
