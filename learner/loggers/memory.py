"""A logger that keeps everything in memory, for notebooks and tests."""

from typing import TypeVar

from learner.events import Event, Listener, SplitEnded, StepsEnded
from learner.runs.history import History

E = TypeVar("E", bound=Event)


class MemoryLogger(Listener):
    """Keep events and values in memory.

    Attributes:
      events: all events, in order.
      history: the values of whole splits, by key (`valid/Loss`).
      steps: the values of each step, by key; values of validations inside an epoch are concatenated.
      closed: True once the run is over.

    >>> memory = MemoryLogger()
    >>> memory.on_event(SplitEnded(0.0, "valid", epoch=1, step=45, values={"Loss": 0.25}, seconds=0.1))
    >>> memory.history["valid/Loss"]
    [0.25]
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.history = History()
        self.steps: dict[str, list[float]] = {}
        self.closed = False

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one type, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def on_event(self, event: Event) -> None:
        """Store the event."""
        self.events.append(event)
        if isinstance(event, SplitEnded):
            self.history.record(event.split, event.epoch, event.step, event.values)
        elif isinstance(event, StepsEnded):
            for name, column in event.values.items():
                self.steps.setdefault(f"{event.split}/{name}", []).extend(column.tolist())

    def close(self) -> None:
        """Do nothing: the events remain in memory."""
        self.closed = True
