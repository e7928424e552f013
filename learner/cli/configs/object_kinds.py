"""The kinds of objects in a config (optimizers and schedules, also nested), and error messages for a wrong kind.

optimizer:
  class_path: Groups
  init_args:
    optimizer: AdamW                  # as at the top
    groups: [{match: ^head, lr: mymodule.schedule}]
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from learner.cli.configs.importing import import_path
from learner.cli.configs.schema import names_for
from learner.errors import LearnerError

BASES = {
    "optimizer": ("learner.optimizers.OptimizerFactory", "learner.optimizers.configs.OptimizerConfig"),
    "lr": ("learner.schedules.Schedule", "learner.schedules.ReduceOnPlateau", "learner.cli.schedules.OptaxSchedule"),
}
"""The classes and functions that make optimizers and schedules, by the key to which they belong."""

BELONGS = {
    "optimizer": "an optimizer, which belongs under optimizer: it needs a number or a schedule, such as Cosine",
    "lr": "a learning-rate schedule, which belongs under lr, of the run or of a group: it needs an optimizer, such as "
    "AdamW",
}
"""The error text for an object of the other kind."""

PREDICATE = "predicate"
GROUP, GROUPS = "learner.optimizers.Group", "learner.optimizers.Groups"
AGGREGATE = "learner.metrics.Aggregate"
IN_GROUP = {"match": PREDICATE, "optimizer": "optimizer", "lr": "lr"}
"""The arguments of a group that are objects, and their kinds; `match` may also be a text."""


def kind_of(target: Any) -> str | None:
    """Return `optimizer` or `lr` if an object is known to be an optimizer or a schedule, otherwise None.

    >>> import optax
    >>> kind_of(optax.adamw), kind_of(optax.cosine_decay_schedule), kind_of(len)
    ('optimizer', 'lr', None)
    """
    for kind, bases in BASES.items():
        if issubclass(target if inspect.isclass(target) else type(target), tuple(import_path(b, b) for b in bases)):
            return kind
    if not inspect.isfunction(target) or target.__module__.partition(".")[0] != "optax":
        return None
    signature = inspect.signature(target)
    if "learning_rate" in signature.parameters:
        return "optimizer"
    return "lr" if "schedules" in target.__module__ else None


def refuse_other(kind: str | None, path: str, key: str, target: Any = None) -> None:
    """Raise `LearnerError` if a config has a schedule in place of an optimizer, or an optimizer in place of a schedule.

    Args:
      kind: the required kind; `None`: any.
      path: the name in the config.
      key: its path in the config.
      target: the object with that name; `None` if it is not known yet.

    >>> refuse_other("lr", "AdamW", "lr")
    Traceback (most recent call last):
    learner.errors.LearnerError: lr is AdamW, an optimizer, which belongs under optimizer: it needs a number or a \
schedule, such as Cosine
    """
    found = kind_of(target) if target is not None else named_kind(path)
    if kind is not None and found not in (kind, None):
        raise LearnerError(f"{key} is {path}, {BELONGS[found]}", code="config-other-kind", key=key, path=path)


def named_kind(name: Any) -> str | None:
    """Return the kind of the object with a short name, or None."""
    return next((kind for kind in BASES if isinstance(name, str) and name in names_for(kind)), None)


def argument_kinds(target: Any) -> Mapping[str, str | Mapping[str, str]]:
    """Return the kinds of the arguments of an optimizer or a schedule that are optimizers or schedules themselves. For
    lists of mappings, return the kinds of the items in each mapping.

    >>> from learner.optimizers import Groups
    >>> argument_kinds(Groups)
    {'optimizer': 'optimizer', 'groups': {'match': 'predicate', 'optimizer': 'optimizer', 'lr': 'lr'}}
    """
    if not inspect.isclass(target) or not dataclasses.is_dataclass(target):
        return {}
    if target is import_path(GROUP, GROUP):
        return IN_GROUP
    if kind_of(target) is None:
        return {}
    names = {field.name for field in dataclasses.fields(target)}
    if kind_of(target) == "lr":
        return {"parts": "lr"} if "parts" in names else {}
    found: dict[str, str | Mapping[str, str]] = {n: "optimizer" for n in ("optimizer", "base_optimizer") if n in names}
    return found | ({"groups": IN_GROUP} if issubclass(target, import_path(GROUPS, GROUPS)) else {})


def metric_mappings(target: Any) -> set[str]:
    """Return the names of the arguments that are mappings of metrics."""
    is_aggregate = inspect.isclass(target) and issubclass(target, import_path(AGGREGATE, AGGREGATE))
    return {"metrics"} if is_aggregate else set()
