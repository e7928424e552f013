"""Base classes of loggers."""

from typing import Any

import numpy as np

from learner.errors import LearnerError, one_error
from learner.events import (
    Event,
    Listener,
    Message,
    RunEnded,
    RunFailed,
    RunStarted,
    SamplesLogged,
    SplitEnded,
    StepsEnded,
)
from learner.util.number_checks import check_int

EVERY = 10  # steps, for loggers that write lines: a step costs a few microseconds
EVERY_DEAR = 50  # for loggers to which a step costs more


class MetricLogger(Listener):
    """Base class of loggers that receive single values: override `log`, and also `log_step` for the values of steps.

    The methods are called in a separate thread. If one raises, the logger is detached with one warning and training
    continues.

    Attributes:
      every_steps: `log_step` gets the steps whose number is a multiple of this; None disables it.
      every_epochs: `log` gets the epochs whose number is a multiple of this, and every validation inside an epoch.

    >>> class Printer(MetricLogger):
    ...     def log(self, split, name, value, epoch, step):
    ...         print(f"{split} {name} was {value} at the end of epoch {epoch}")
    >>> Printer().on_event(SplitEnded(0.0, "valid", epoch=3, step=135, values={"Loss": 0.25}, seconds=0.1))
    valid Loss was 0.25 at the end of epoch 3
    """

    every_steps: int | None = 1
    every_epochs: int = 1

    def log(self, split: str, name: str, value: Any, epoch: int, step: int) -> None:
        """Store a metric's value over a split, after the optimizer step `step`; a text if the metric is not numeric."""

    def log_step(self, split: str, name: str, value: float, epoch: int, step: int) -> None:
        """Store a metric's value for one step: `step` is the optimizer step in `train`, the batch number elsewhere."""

    def on_event(self, event: Event) -> None:
        """Call `log` and `log_step`."""
        if isinstance(event, SplitEnded) and split_is_due(event, self.every_epochs):
            for name, value in event.values.items():
                self.log(event.split, name, value, event.epoch, event.step)
        elif isinstance(event, StepsEnded) and type(self).log_step is not MetricLogger.log_step:
            steps, due = steps_due(event, self.every_steps)
            for name, column in event.values.items():
                for step, number in zip(steps, column[due].tolist(), strict=True):
                    self.log_step(event.split, name, number, event.epoch, step)


def check_listener(listener: Listener, what: str) -> None:
    """Raise `LearnerError` for a listener that overrides no method, perhaps because of a misspelled name, or that has
    attributes of another type. `what`: `logger` or `renderer`.
    """
    kind = type(listener)
    methods = ("log", "log_step") if isinstance(listener, MetricLogger) else ("on_event",)
    base = MetricLogger if isinstance(listener, MetricLogger) else Listener
    every = (*methods, "on_event", "close", "abandon")
    if all(getattr(getattr(listener, name), "__func__", None) is getattr(base, name) for name in every):
        raise LearnerError(
            f"the {what} {kind.__name__} does nothing: it overrides none of {', '.join(methods)}",
            code="listener-idle",
            name=kind.__name__,
        )
    if isinstance(listener, MetricLogger):
        for name in ("every_steps", "every_epochs"):
            if not (name == "every_steps" and listener.every_steps is None):
                check_int(f"{name} of {kind.__name__}", getattr(listener, name), least=1)
    if isinstance(listener.monitors, str):
        raise LearnerError(
            f"monitors of {kind.__name__} is the text {listener.monitors!r}; it needs a tuple: "
            f"({listener.monitors!r},)",
            code="listener-monitors-type",
            name=kind.__name__,
        )


class RunLogger(Listener):
    """Base class of the loggers of this package, with a method for each kind of event.

    Args:
      every_steps: store the training steps whose number is a multiple of this; None stores none.
      every_epochs: store the values of the epochs whose number is a multiple of this. Values of validations inside an
        epoch are always stored.

    Attributes:
      file: the file in the run's directory that only one logger may write, or None. Loggers with a `place`
        write there instead.

    Raises:
      LearnerError: a value is not an integer of at least 1.
    """

    file: str | None = None

    def __init__(self, every_steps: int | None = 1, every_epochs: int = 1):
        problems = []
        for name, value in (("every_steps", every_steps), ("every_epochs", every_epochs)):
            is_positive = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not is_positive and not (value is None and name == "every_steps"):
                none = ", or None for no values of steps" if name == "every_steps" else ""
                what = f"{name} of {type(self).__name__} is {value!r}"
                problems.append(f"{what}; it needs a whole number, 1 or more{none}")
        if problems:
            raise one_error(problems, f"{type(self).__name__} cannot be used", code="logger-arguments-wrong")
        self.every_steps, self.every_epochs = every_steps, every_epochs

    def on_event(self, event: Event) -> None:
        """Call the method for the event."""
        if isinstance(event, StepsEnded):
            if event.split == "train" and self.every_steps is not None:
                steps, due = steps_due(event, self.every_steps)
                if steps:
                    self.steps(event, steps, {name: column[due] for name, column in event.values.items()})
        elif isinstance(event, SplitEnded):
            if split_is_due(event, self.every_epochs):
                self.split(event)
        elif isinstance(event, SamplesLogged):
            self.samples(event)
        elif isinstance(event, RunStarted):
            self.started(event)
        elif isinstance(event, RunEnded):
            self.ended(event)
        elif isinstance(event, RunFailed):
            self.failed(event)
        elif isinstance(event, Message):
            self.message(event)

    def started(self, event: RunStarted) -> None:
        """Called when the run starts or is resumed."""

    def steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Called with the numbers of the optimizer steps that are due, and the values of each metric at them."""

    def split(self, event: SplitEnded) -> None:
        """Called with the values of a split."""

    def samples(self, event: SamplesLogged) -> None:
        """Called with the texts, pictures and histograms that hooks returned."""

    def message(self, event: Message) -> None:
        """Called with a message, at any time."""

    def ended(self, event: RunEnded) -> None:
        """Called when the run is completed or stopped."""

    def failed(self, event: RunFailed) -> None:
        """Called when the run ends with an error."""


def steps_due(event: StepsEnded, every: int | None) -> tuple[range, slice]:
    """Return the steps of an event whose number is a multiple of `every`, and the indices of their values. The choice
    depends only on the number, so it is the same after a resume.

    >>> column = np.float32([0.5, 0.4, 0.3, 0.2])
    >>> event = StepsEnded(0.0, "train", 1, 3, 4, 6, None, 6, {"Loss": column}, np.ones_like(column), 0.1)
    >>> steps, due = steps_due(event, 2)
    >>> list(steps), column[due]
    ([4, 6], array([0.4, 0.2], dtype=float32))
    """
    if every is None:
        return range(0), slice(0, 0)
    begin = -event.first % every
    return range(event.first + begin, event.first + event.count, every), slice(begin, event.count, every)


def split_is_due(event: SplitEnded, every: int) -> bool:
    """Return True for the values of a validation inside an epoch, and of an epoch that is due."""
    return event.at_step is not None or event.epoch % every == 0
