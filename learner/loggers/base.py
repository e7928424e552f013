"""Loggers that send numbers to one place."""

import importlib.util

import numpy as np

from learner.errors import LearnerError, one_error
from learner.events import Event, Listener, Message, RunEnded, RunFailed, RunStarted, SplitEnded, StepsEnded
from learner.util.distribution import install_hint

EVERY = 10  # steps, of loggers that write lines: a step costs a few microseconds
EVERY_DEAR = 50  # of those to which a step costs more


class MetricLogger(Listener):
    """Base of loggers that want values one by one: override `log`, and `log_step` as well for the values of each step.

    It is called from a thread of its own; when it raises, it is detached with one warning and training goes on.

    Attributes:
      every_steps: `log_step` gets the steps whose number this divides; `None`: none.
      every_epochs: `log` gets the epochs whose number this divides, and every validation inside of an epoch.

    >>> class Printer(MetricLogger):
    ...     def log(self, split, name, value, epoch, step):
    ...         print(f"{split} {name} was {value} at the end of epoch {epoch}")
    >>> Printer().on_event(SplitEnded(0.0, "valid", epoch=3, step=135, values={"Loss": 0.25}, seconds=0.1))
    valid Loss was 0.25 at the end of epoch 3
    """

    every_steps: int | None = 1
    every_epochs: int = 1

    def log(self, split: str, name: str, value: float | str, epoch: int, step: int) -> None:
        """A metric's value over a whole split, after the optimizer step `step`; a text where it is not numeric."""

    def log_step(self, split: str, name: str, value: float, epoch: int, step: int) -> None:
        """A metric's value for one step: `step` is the optimizer step in `train`, the batch's number elsewhere."""

    def on_event(self, event: Event) -> None:
        """Calls `log` and `log_step`."""
        if isinstance(event, SplitEnded) and split_is_due(event, self.every_epochs):
            for name, value in event.values.items():
                self.log(event.split, name, value, event.epoch, event.step)
        elif isinstance(event, StepsEnded) and type(self).log_step is not MetricLogger.log_step:
            steps, due = steps_due(event, self.every_steps)
            for name, column in event.values.items():
                for step, number in zip(steps, column[due].tolist(), strict=True):
                    self.log_step(event.split, name, number, event.epoch, step)


class RunLogger(Listener):
    """Base of the loggers of this package: a method for each thing that they store.

    Args:
      every_steps: the values of the training steps whose number this divides are stored; `None`: of none.
      every_epochs: the values of the epochs whose number this divides are stored. Those of validations inside of an
        epoch always are.

    Raises:
      LearnerError: one of them is no whole number that is 1 or more.
    """

    def __init__(self, every_steps: int | None = 1, every_epochs: int = 1):
        problems = []
        for name, value in (("every_steps", every_steps), ("every_epochs", every_epochs)):
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not whole and not (value is None and name == "every_steps"):
                none = ", or None for no values of steps" if name == "every_steps" else ""
                what = f"{name} of {type(self).__name__} is {value!r}"
                problems.append(f"{what}; it needs a whole number, 1 or more{none}")
        if problems:
            raise one_error(problems, f"{type(self).__name__} cannot be used")
        self.every_steps, self.every_epochs = every_steps, every_epochs

    def on_event(self, event: Event) -> None:
        """Calls the methods below."""
        if isinstance(event, StepsEnded):
            if event.split == "train" and self.every_steps is not None:
                steps, due = steps_due(event, self.every_steps)
                if steps:
                    self.steps(event, steps, {name: column[due] for name, column in event.values.items()})
        elif isinstance(event, SplitEnded):
            if split_is_due(event, self.every_epochs):
                self.split(event)
        elif isinstance(event, RunStarted):
            self.started(event)
        elif isinstance(event, RunEnded):
            self.ended(event)
        elif isinstance(event, RunFailed):
            self.failed(event)
        elif isinstance(event, Message):
            self.message(event)

    def started(self, event: RunStarted) -> None:
        """The run begins or goes on."""

    def steps(self, event: StepsEnded, steps: range, values: dict[str, np.ndarray]) -> None:
        """Optimizer steps that are due: their numbers, and for each metric float32 of the same length."""

    def split(self, event: SplitEnded) -> None:
        """The values of a whole split."""

    def message(self, event: Message) -> None:
        """A line for people, at any time."""

    def ended(self, event: RunEnded) -> None:
        """The run ended, or was stopped."""

    def failed(self, event: RunFailed) -> None:
        """The run ended with an error."""


def steps_due(event: StepsEnded, every: int | None) -> tuple[range, slice]:
    """The steps of an event whose number `every` divides, and where their values are. Which they are depends on
    nothing else, so it is the same where a run goes on.

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
    """Whether the values of a split are those of a validation inside of an epoch, or of an epoch that is due."""
    return event.at_step is not None or event.epoch % every == 0


def refuse_missing(module: str, extra: str, what: str) -> None:
    """Raises `LearnerError` where a package is not installed. It is not imported yet: that can take seconds, which the
    logger's own thread has.

    >>> refuse_missing("no_such_module", "nothing", "NoLogger")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    learner.errors.LearnerError: NoLogger needs no_such_module, which is not installed: pip install ...
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:  # a directory of that name is no package
        raise LearnerError(f"{what} needs {module}, which is not installed: {install_hint(extra)}")
