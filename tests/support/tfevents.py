"""Read TensorBoard event files without the code under test: TFRecord frames, each with a protocol buffer `Event`."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog


def events_of(path):
    """Return the events of a file."""
    content, events = Path(path).read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert len(content) >= length + 16, "the last event is torn"
        events.append(Event.FromString(content[12 : 12 + length]))
        content = content[length + 16 :]
    return events


def read(directory):
    """Return all events of a directory in order, without subdirectories. As in TensorBoard, a restart discards earlier
    events of its step and later steps.
    """
    kept = []
    for path in sorted(path for path in Path(directory).iterdir() if path.is_file()):
        for event in events_of(path):
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                kept = [earlier for earlier in kept if earlier.step < event.step or not earlier.HasField("summary")]
            kept.append(event)
    return kept


def values(directory):
    """Return the values of a run and its splits, as `(split and tag, event, value)`."""
    folders = sorted(path for path in Path(directory).iterdir() if path.is_dir())
    for prefix, folder in [("", directory), *((f"{path.name}/", path) for path in folders)]:
        for event in read(folder):
            for value in event.summary.value:
                yield prefix + value.tag, event, value


def scalars(directory):
    """Return `(step, value)` pairs in order, for each split and tag (`train/step/Loss`)."""
    series = {}
    for tag, event, value in values(directory):
        if value.HasField("simple_value"):
            series.setdefault(tag, []).append((event.step, value.simple_value))
    return series


def texts(directory):
    """Return the newest text of each tag."""
    newest = {}
    for tag, _, value in values(directory):
        if value.metadata.plugin_data.plugin_name == "text":
            newest[tag.removesuffix("/text_summary")] = value.tensor.string_val[0].decode()
    return newest
