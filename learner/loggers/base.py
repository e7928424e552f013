"""Loggers that send numbers to one place."""

from learner.events import Event, Listener, SplitEnded, StepsEnded


class MetricLogger(Listener):
    """Base of loggers that want values one by one: override `log`, and `log_step` as well for the values of each step.

    It is called from a thread of its own; when it raises, it is detached with one warning and training goes on.

    >>> class Printer(MetricLogger):
    ...     def log(self, split, name, value, epoch, step):
    ...         print(f"{split} {name} was {value} at the end of epoch {epoch}")
    >>> Printer().on_event(SplitEnded(0.0, "valid", epoch=3, step=135, values={"Loss": 0.25}, seconds=0.1))
    valid Loss was 0.25 at the end of epoch 3
    """

    def log(self, split: str, name: str, value: float | str, epoch: int, step: int) -> None:
        """A metric's value over a whole split, after the optimizer step `step`; a text where it is not numeric."""

    def log_step(self, split: str, name: str, value: float, epoch: int, step: int) -> None:
        """A metric's value for one step: `step` is the optimizer step in `train`, the batch's number elsewhere."""

    def on_event(self, event: Event) -> None:
        """Calls `log` and `log_step`."""
        if isinstance(event, SplitEnded):
            for name, value in event.values.items():
                self.log(event.split, name, value, event.epoch, event.step)
        elif isinstance(event, StepsEnded) and type(self).log_step is not MetricLogger.log_step:
            for name, column in event.values.items():
                for step, number in enumerate(column.tolist(), event.first):
                    self.log_step(event.split, name, number, event.epoch, step)
