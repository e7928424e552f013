"""Read offline files of Weights & Biases with only its protocol buffers: blocks of 32 KiB with records, as in LevelDB's
logs.
"""

import json
import struct
from pathlib import Path

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path):
    """Return the records of a file."""
    content, position, whole, complete = Path(path).read_bytes(), HEADER, b"", []
    assert content[:4] == b":W&B"
    while position + HEADER <= len(content):
        left = BLOCK - position % BLOCK
        if left < HEADER:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + HEADER])
        if kind == 0 and length == 0:
            position += left
            continue
        part = content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        whole = part if kind in (FULL, FIRST) else whole + part
        if kind in (FULL, LAST):
            complete.append(Record.FromString(whole))
    return complete


def read(directory):
    """Return the ids, rows, configs, summaries and logs of all starts of a run, in order."""
    contents = {"ids": [], "rows": [], "config": {}, "summary": {}, "exits": [], "logs": [], "artifacts": []}
    paths = Path(directory).glob("wandb/offline-run-*/*.wandb")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):  # file names are precise to the second only
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                contents["ids"].append(record.run.run_id)
                contents["config"] |= _items(record.run.config.update)
            elif kind == "config":
                contents["config"] |= _items(record.config.update)
            elif kind == "history":
                contents["rows"].append(_items(record.history.item))
            elif kind == "summary":
                contents["summary"] |= _items(record.summary.update)
            elif kind == "output_logger":
                contents["logs"].append(record.output_logger.line)
            elif kind == "artifact":
                names = [entry.path for entry in record.artifact.manifest.contents]
                aliases = set(record.artifact.aliases) - {"latest"}  # added by wandb
                contents["artifacts"].append((record.artifact.type, aliases, sorted(names)))
            elif kind == "exit":
                contents["exits"].append(record.exit.exit_code)
    return contents


def files(directory):
    """Return the directory of images and texts, for a run with one start."""
    (place,) = Path(directory).glob("wandb/offline-run-*/files")
    return place


def _items(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
