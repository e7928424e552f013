"""TensorBoard's event files, read without the code under test: frames of TFRecord, each a protocol buffer `Event`."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog


def events_of(path):
    """The events of a file."""
    content, events = Path(path).read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert len(content) >= length + 16, "the last event is torn"
        events.append(Event.FromString(content[12 : 12 + length]))
        content = content[length + 16 :]
    return events


def read(directory):
    """All events of a directory in order, without those of directories in it. What a restart takes back is left out, as
    TensorBoard does: everything before it that has its step or a later one.
    """
    kept = []
    for path in sorted(path for path in Path(directory).iterdir() if path.is_file()):
        for event in events_of(path):
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                kept = [each for each in kept if each.step < event.step or not each.HasField("summary")]
            kept.append(event)
    return kept


def values(directory):
    """Each value of a run and of its splits, as `(split and tag, event, value)`."""
    folders = sorted(path for path in Path(directory).iterdir() if path.is_dir())
    for prefix, folder in [("", directory), *((f"{path.name}/", path) for path in folders)]:
        for event in read(folder):
            for value in event.summary.value:
                yield prefix + value.tag, event, value


def scalars(directory):
    """For each split and tag (`train/step/Loss`) the values by step, as `(step, value)` in order."""
    found = {}
    for tag, event, value in values(directory):
        if value.HasField("simple_value"):
            found.setdefault(tag, []).append((event.step, value.simple_value))
    return found


def texts(directory):
    """The newest text of each tag."""
    found = {}
    for tag, _, value in values(directory):
        if value.metadata.plugin_data.plugin_name == "text":
            found[tag.removesuffix("/text_summary")] = value.tensor.string_val[0].decode()
    return found
