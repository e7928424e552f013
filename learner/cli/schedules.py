"""optax's learning-rate schedules as classes for config files.

Every function of `optax.schedules` that returns a schedule has a class, with the same parameters.

    lr:
      class_path: WarmupCosineDecaySchedule
      init_args: {init_value: 0.0, peak_value: 1.0e-3, warmup_steps: 100, decay_steps: 2000}

In Python, use optax's own functions.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import optax

from learner.errors import LearnerError
from learner.optimizers.generated import make_class


class OptaxSchedule:
    """An optax schedule: a function from the optimizer step (from 0) to the learning rate.

    >>> halved = ExponentialDecay(init_value=0.1, transition_steps=1, decay_rate=0.5)
    >>> print(f"{halved(0):.3f} {halved(2):.3f}")
    0.100 0.025
    """

    function: ClassVar[Callable[..., Any]]

    def __post_init__(self) -> None:
        """Create optax's function, so that invalid arguments raise here."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        try:
            object.__setattr__(self, "_schedule", self.function(**settings))
        except ValueError as error:
            raise LearnerError(f"{self!r}: {error}", code="schedule-refused") from error

    def __call__(self, step: Any) -> Any:
        """Return the learning rate at `step`, an int or a traced int scalar."""
        schedule: Callable[[Any], Any] = vars(self)["_schedule"]
        return schedule(step)


SCHEDULES: dict[str, type[OptaxSchedule]] = {
    generated.__name__: generated
    for name, function in sorted(vars(optax.schedules).items())
    if inspect.isfunction(function) and inspect.signature(function).return_annotation == optax.Schedule
    for generated in [make_class(function, f"optax.{name}", OptaxSchedule, set(), {optax.Schedule: OptaxSchedule})]
}
"""Every class by its name."""

globals().update(SCHEDULES)
__all__ = list(SCHEDULES)

if TYPE_CHECKING:  # at run time the classes are in `globals()`

    def __getattr__(name: str) -> Any: ...
