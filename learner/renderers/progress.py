"""The progress of a run: its length, its speed, and the remaining time."""

from collections.abc import Callable

from learner.events import Compiling, EpochEnded, EpochStarted, Event, RunStarted, StepsEnded
from learner.util.text import duration, printable, short

MEMORY = 0.95  # the factor by which each further dispatch reduces the weight of a dispatch in the speed


# Not `rich.progress.Progress`: it measures the time between updates, including compilation and validations, and has
# only one length, but here the bar shows an epoch and the remaining time is the run's. Pages and lines of text also
# need both.
class Progress:
    """The position and speed of a run, from its events.

    >>> from pathlib import Path
    >>> seconds = iter([10.0, 20.0, 20.0])
    >>> progress = Progress(clock=lambda: next(seconds))
    >>> progress.on_event(RunStarted(0.0, Path("runs/a"), 2, None, 100, (), parameters=10))
    >>> for step in (50, 100):
    ...     progress.on_event(StepsEnded(0.0, "train", 1, step - 49, 50, step, 100, step, {}, (), seconds=2.0))
    >>> progress.speed, progress.seconds_left(), progress.completed()
    (25.0, 20.0, (100, 100))
    >>> progress.label(), *progress.texts()
    ('epoch 1/2', 'step 100/100', '25 steps/s', '20.0 s left')
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._run: RunStarted | None = None
        self._first: tuple[float, int] | None = None  # when a dispatch ended from which time is measured, and its step
        self._newest: StepsEnded | None = None
        self._compiling = ""
        self._steps = self._seconds = 0.0
        self.epoch = 1
        self.step = 0
        self.total: int | None = None
        self.train_loss: float | None = None  # of the newest step

    def on_event(self, event: Event) -> None:
        """Update the progress."""
        if isinstance(event, RunStarted):
            self._run, self.step, self.total = event, event.step, _total(event)
            self._first = self._newest = self.train_loss = None
            self._compiling = ""
            self._steps = self._seconds = 0.0
        if isinstance(event, (RunStarted, EpochStarted, StepsEnded, EpochEnded)):
            self.epoch = event.epoch
        if isinstance(event, StepsEnded):
            self._newest = event
        if isinstance(event, Compiling):
            self._compiling = f"compiling {event.number} of {event.total}" if event.number else ""
            self._first = None  # steps that waited for a program, or shared the processor with its compiler, are slower
        if isinstance(event, StepsEnded) and event.split == "train":
            self._on_train_steps(event)
        elif isinstance(event, EpochEnded) and self.total is None and self._run and self._run.num_epochs:
            self.total = self._run.num_epochs * event.step // event.epoch  # epochs are as long as the first

    def _on_train_steps(self, event: StepsEnded) -> None:
        self.step = event.step
        if "Loss" in event.values:
            self.train_loss = float(event.values["Loss"][-1])
        if self._first is None:  # a dispatch that waited for the compiler does not measure the speed
            self._first = None if self._compiling else (self._clock(), event.step)
            return
        self._steps = MEMORY * self._steps + event.count
        self._seconds = MEMORY * self._seconds + event.seconds

    @property
    def speed(self) -> float | None:
        """Training steps per second, mostly of the last twenty dispatches."""
        return self._steps / self._seconds if self._seconds > 0 else None

    def seconds_left(self) -> float | None:
        """Return the remaining time of the run with its validations, or None if unknown, as while programs compile."""
        if self._first is None or self.total is None or self.step <= self._first[1]:
            return None
        seconds_per_step = (self._clock() - self._first[0]) / (self.step - self._first[1])
        return max(0, self.total - self.step) * seconds_per_step

    def completed(self) -> tuple[int, int | None]:
        """Return the completed and the total number of steps: of the run if its steps are counted, else of the epoch or
        the validation.
        """
        newest = self._newest
        if newest is not None and newest.split == "train" and self._run and self._run.num_steps is not None:
            return newest.step, self._run.num_steps
        return (newest.in_epoch, newest.total) if newest is not None else (0, None)

    def texts(self) -> tuple[str, str, str]:
        """Return the progress within a split, such as `step 120/450` or `valid 3`, the speed, and the remaining time.
        Unknown ones are empty texts.
        """
        left = self.seconds_left()
        return (
            self._position(),
            "" if self.speed is None else f"{short(self.speed)} steps/s",
            "" if left is None else f"{duration(left)} left",
        )

    def _position(self) -> str:
        if self._newest is None:
            return self._compiling or "compiling"  # the first dispatch comes back after it
        unit = "step" if self._newest.split == "train" else printable(self._newest.split)
        completed, total = self.completed()
        position = f"{unit} {completed}" if total is None else f"{unit} {completed}/{total}"
        return f"{position}, {self._compiling}" if self._compiling else position

    def label(self) -> str:
        """Return the text `epoch 3/10`, or `epoch 3` if the number of epochs is not set."""
        known = self._run and self._run.num_epochs
        return f"epoch {self.epoch}/{known}" if known else f"epoch {self.epoch}"


def _total(event: RunStarted) -> int | None:
    if event.num_steps is not None:
        return event.num_steps
    return event.num_epochs * event.steps_per_epoch if event.num_epochs and event.steps_per_epoch else None
