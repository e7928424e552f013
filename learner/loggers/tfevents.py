"""TensorBoard's event files: records of scalars, texts, images and hyper-parameters, as protocol buffers."""

import collections
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.loggers.flat_settings import plain_settings
from learner.util.json_values import encode
from learner.util.png import png
from learner.util.samples import Histogram
from learner.util.text import utf8_safe

LARGEST = 2**63
"""Integers of at least this size are written as texts among the hyper-parameters."""


EPOCH, STEP = "epoch", "step"
SAMPLE = "sample"
"""The first parts of tags. TensorBoard sorts them alphabetically, so single steps come last."""


def folder_of(split: str) -> str:
    """Return a safe directory name for a split.

    >>> folder_of("valid-b"), folder_of("../a")
    ('valid-b', '___a')
    """
    return re.sub(r"[^\w-]", "_", split)


class Records:
    """An encoder of records of TensorBoard's event files.

    All times are in seconds since 1970. Needs tensorboardX.

    Args:
      write: called with the bytes of each record; `write` of tensorboardX's `RecordWriter` frames them.

    Attributes:
      count: the number of records written.
    """

    def __init__(self, write: Callable[[bytes], object]):
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

        self._hparams = HParamsPluginData
        self._event_class, self._session, self._summaries, self._write = Event, SessionLog, summary, write
        self.count = 0

    def begin(self, wall: float) -> None:
        """Write the first record of a file."""
        self._add(wall, file_version="brain.Event:2")

    def resume(self, wall: float, step: int, earlier: Iterable[Path], known: Mapping[str, int]) -> None:
        """Resume a run at `step`: TensorBoard discards the values of earlier files from that step on, and the values
        that the run knows for that step are written again.

        A checkpoint may lie between the values of one step, such as those of two validation splits. Values after it are
        measured again, but TensorBoard can only discard whole steps.

        Args:
          wall: the current time.
          step: the step of the checkpoint.
          earlier: the event files of the run so far, in order.
          known: the number of values of whole splits that the run knows at `step`, by key.
        """
        kept = self._of_step(step, earlier, known)
        self._add(wall, step, session_log=self._session(status=self._session.START))
        for event in kept:
            self._put(event)

    def _of_step(self, step: int, earlier: Iterable[Path], known: Mapping[str, int]) -> list[Any]:
        """Return the events at `step`: those of single steps, and as many others as are known."""
        kept: list[Any] = []
        for path in earlier:
            for record in read_records(path):
                try:
                    event = self._event_class.FromString(record)
                except Exception:  # protobuf's own: a damaged file ends here, for TensorBoard too
                    break
                if event.HasField("session_log") and event.session_log.status == self._session.START:
                    kept = kept if event.step > step else []
                elif event.step == step and event.HasField("summary"):
                    kept.append(event)
        left = collections.Counter({tag: count for key, count in known.items() for tag in _tags(key)})
        for event in kept:  # in the order of writing, so that values measured after the checkpoint come last
            values = list(event.summary.value)
            del event.summary.value[:]
            for value in values:
                left[value.tag] -= 1
                if value.tag.startswith((f"{STEP}/", f"{SAMPLE}/")) or left[value.tag] >= 0:
                    event.summary.value.append(value)
        return [event for event in kept if event.summary.value]

    def scalars(self, wall: float, step: int, tags: Sequence[str], numbers: Sequence[float]) -> None:
        """Write numbers, each with its tag."""
        event = self._event_class(wall_time=wall, step=step)
        for tag, number in zip(tags, numbers, strict=True):
            event.summary.value.add(tag=tag, simple_value=number)
        self._put(event)

    def values(self, values: Mapping[str, float | str], wall: float, step: int) -> None:
        """Write the values of a whole split by name: numbers as scalars, others as texts."""
        numbers = {utf8_safe(f"{EPOCH}/{name}"): float(x) for name, x in values.items() if not isinstance(x, str)}
        if numbers:
            self.scalars(wall, step, list(numbers), list(numbers.values()))
        for name, value in values.items():
            if isinstance(value, str):
                self.text(f"{EPOCH}/{name}", value, wall, step)

    def text(self, tag: str, content: str | Mapping[str, Any], wall: float, step: int) -> None:
        """Write a text verbatim (indented by four spaces for Markdown), or a mapping as JSON."""
        text = (
            content if isinstance(content, str) else json.dumps(encode(content), indent=2, allow_nan=False, default=str)
        )
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._add(wall, step, summary=self._summaries.text(utf8_safe(tag), utf8_safe(indented)))

    def picture(self, tag: str, picture: np.ndarray, wall: float, step: int) -> None:
        """Write a picture, uint8 `[height, width]` or `[height, width, 3]`."""
        event = self._event_class(wall_time=wall, step=step)
        colours = 1 if picture.ndim == 2 else 3
        image = {"height": picture.shape[0], "width": picture.shape[1], "colorspace": colours}
        event.summary.value.add(tag=tag, image={**image, "encoded_image_string": png(picture)})
        self._put(event)

    def histogram(self, tag: str, histogram: Histogram, wall: float, step: int) -> None:
        """Write a histogram. Its sums are computed from the centers of its bins."""
        counts, edges = histogram.counts, histogram.edges
        centers = (edges[:-1] + edges[1:]) / 2
        event = self._event_class(wall_time=wall, step=step)
        histo = event.summary.value.add(tag=utf8_safe(tag)).histo
        histo.min, histo.max, histo.num = float(edges[0]), float(edges[-1]), float(counts.sum())
        histo.sum, histo.sum_squares = float(counts @ centers), float(counts @ centers**2)
        histo.bucket_limit.extend(edges[1:].tolist())
        histo.bucket.extend(counts.astype(float).tolist())
        self._put(event)

    def settings(
        self, config: Mapping[str, Any], metrics: Sequence[tuple[str, str]], wall: float
    ) -> Callable[[float], None]:
        """Write the hyper-parameters of a run, and the metrics to show with them, each as a split and a tag.

        Returns:
          A function to call with the current time when the run ends.
        """
        given = {utf8_safe(name): _plain(value) for name, value in plain_settings(config).items()}
        experiment, begin, end = self._summaries.hparams(given, {})
        plugin = experiment.value[0].metadata.plugin_data
        content = self._hparams.FromString(plugin.content)
        for split, tag in metrics:
            content.experiment.metric_infos.add(name={"group": folder_of(split), "tag": utf8_safe(tag)})
        plugin.content = content.SerializeToString()
        self._add(wall, summary=experiment)
        self._add(wall, summary=begin)
        return lambda wall: self._add(wall, summary=end)

    def _add(self, wall: float, step: int = 0, **what: Any) -> None:
        self._put(self._event_class(wall_time=wall, step=step, **what))

    def _put(self, event: Any) -> None:
        self._write(event.SerializeToString())
        self.count += 1


def read_records(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the records of an event file up to its end, or up to a record that was torn when its process was killed."""
    with open(path, "rb") as file:
        left = os.fstat(file.fileno()).st_size
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack_from("<Q", head)
            left -= 16 + length  # the length and the record are each followed by a checksum of 4 bytes
            if left < 0:
                return
            yield file.read(length)
            file.seek(4, os.SEEK_CUR)


def _tags(key: str) -> set[str]:
    """Return the tags of a metric's number, text and picture."""
    return {key, utf8_safe(key), f"{utf8_safe(key)}/text_summary"}


def _plain(value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= LARGEST:
        return str(value)
    return utf8_safe(value) if isinstance(value, str) else encode(value)  # tensorboardX warns about NaN on the terminal
