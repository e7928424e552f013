"""What TensorBoard reads: records of scalars, texts, pictures and hyper-parameters, as protocol buffers."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from learner.journal import encode
from learner.loggers.flat import flat
from learner.loggers.png import png
from learner.text import sayable

LARGEST = 2**63
"""Whole numbers from it on are texts among the hyper-parameters."""


class Records:
    """Makes records of TensorBoard's event files, and hands each of them on.

    All times are in seconds since 1970. It needs tensorboardX.

    Args:
      write: gets the bytes of each record.
    """

    def __init__(self, write: Callable[[bytes], object]):
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        self._event_class, self._session, self._summaries, self._write = Event, SessionLog, summary, write

    def begin(self, wall: float) -> None:
        """The first record of a file."""
        self._add(wall, file_version="brain.Event:2")

    def go_on(self, wall: float, step: int) -> None:
        """A run goes on: the values of earlier files from `step` on are forgotten."""
        self._add(wall, step, session_log=self._session(status=self._session.START))

    def scalars(self, wall: float, step: int, tags: Sequence[str], numbers: Sequence[float]) -> None:
        """Numbers, each with its tag."""
        event = self._event_class(wall_time=wall, step=step)
        for tag, number in zip(tags, numbers, strict=True):
            event.summary.value.add(tag=tag, simple_value=number)
        self._write(event.SerializeToString())

    def text(self, tag: str, content: str | Mapping[str, Any], wall: float, step: int) -> None:
        """A text as it stands (four spaces before each line are Markdown's for that), or a mapping as JSON."""
        text = (
            content if isinstance(content, str) else json.dumps(encode(content), indent=2, allow_nan=False, default=str)
        )
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._add(wall, step, summary=self._summaries.text(sayable(tag), sayable(indented)))

    def picture(self, tag: str, picture: np.ndarray, wall: float, step: int) -> None:
        """A picture, uint8 `[height, width]` or `[height, width, 3]`."""
        event = self._event_class(wall_time=wall, step=step)
        colours = 1 if picture.ndim == 2 else 3
        image = {"height": picture.shape[0], "width": picture.shape[1], "colorspace": colours}
        event.summary.value.add(tag=tag, image={**image, "encoded_image_string": png(picture)})
        self._write(event.SerializeToString())

    def settings(self, config: Mapping[str, Any], keys: Sequence[str], wall: float) -> Callable[[float], None]:
        """The hyper-parameters of a run, and the tags of the metrics beside them.

        Returns:
          What is to be called with the time when the run ends.
        """
        given = {sayable(name): _plain(value) for name, value in flat(config).items()}
        experiment, begin, end = self._summaries.hparams(given, dict.fromkeys(keys, 0.0))
        self._add(wall, summary=experiment)
        self._add(wall, summary=begin)
        return lambda wall: self._add(wall, summary=end)

    def _add(self, wall: float, step: int = 0, **what: Any) -> None:
        self._write(self._event_class(wall_time=wall, step=step, **what).SerializeToString())


def _plain(value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= LARGEST:
        return str(value)
    return sayable(value) if isinstance(value, str) else value
