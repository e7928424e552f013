"""The interface of optimizers: functions of the learning rate."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import optax

from learner.errors import LearnerError

Change = Callable[[str, Callable[[Any], Any]], Callable[[Any], Any]]
"""`(place, schedule) -> schedule`; the place describes where an optimizer has the schedule, for messages."""


class OptimizerFactory(abc.ABC):
    """An optimizer without its learning rate, made of other optimizers. Subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def __call__(self, lr: Any) -> optax.GradientTransformation:
        """Return the optimizer with this learning rate, a float or a traced scalar."""

    def with_schedules(self, change: Change) -> "OptimizerFactory":
        """Return this optimizer with `change(place, schedule)` in place of each schedule of the optimizers inside it.
        The field `optimizer` is searched; subclasses with other fields override this method.
        """
        inner: Any = getattr(self, "optimizer", None)
        if not (isinstance(inner, OptimizerFactory) and "optimizer" in getattr(self, "__dataclass_fields__", ())):
            return self
        around: Any = self
        changed: OptimizerFactory = dataclasses.replace(around, optimizer=inner.with_schedules(change))
        return changed


def refuse_no_function(optimizer: Any, what: str) -> None:
    """Raise `LearnerError` unless the argument is a function of the learning rate. `what` names it in the message.

    >>> refuse_no_function(optax.sgd(0.1), "the optimizer of Ema")
    Traceback (most recent call last):
    learner.errors.LearnerError: the optimizer of Ema is already built, with its rate inside; it needs a function of \
the rate: optax.adamw, or partial(optax.adamw, weight_decay=1e-4)
    """
    needs = "it needs a function of the rate: optax.adamw, or partial(optax.adamw, weight_decay=1e-4)"
    if hasattr(optimizer, "init") and hasattr(optimizer, "update"):
        raise LearnerError(f"{what} is already built, with its rate inside; {needs}", code="optimizer-already-built")
    if not callable(optimizer):
        raise LearnerError(f"{what} is {optimizer!r}; {needs}", code="optimizer-type")
