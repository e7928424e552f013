"""Read damaged files of every format, as a separate process: `python damaged.py COUNT FIRST KIND...`.

Prints a line before each file, so that the last line names the file that crashed the process, and a line for each
unexpected result.
"""

import gzip
import io
import json
import random
import resource
import shutil
import sqlite3
import struct
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
from PIL import Image

from learner.data import ImageFolder, Lines, SQLiteTable, TarShards, TextWindows, sources
from learner.errors import LearnerError

ROOM = 3 * 2**30  # bytes of address space that reading may add to the process

ROWS = [(i, i / 7, "xy"[i % 2]) for i in range(20)]
NUMBERS = np.random.default_rng(0).normal(size=(20, 3))
COLUMNS = pa.table(
    {
        "x": NUMBERS[:, 0],
        "n": pa.array([1, None] * 10),
        "kind": ["ab", "c"] * 10,
        "d": pa.array(["u", "v"] * 10).dictionary_encode(),
        "l": [[1, 2], [3, 4]] * 10,
        "f": pa.array([[1.0, 2.0]] * 20, pa.list_(pa.float32(), 2)),
        "b": [True, False] * 10,
    }
)
CSV = "a,b,k\n" + "".join(f"{a},{b},{k}\n" for a, b, k in ROWS)
IDX = bytes([0, 0, 8, 3]) + struct.pack(">3I", 5, 4, 4) + bytes(range(80))


def columns(read):
    return lambda path: read(path, labels=["kind", "d"], missing=0)


def parquet_pages(path):
    pa.parquet.write_table(COLUMNS, path, compression="zstd", row_group_size=7, data_page_version="2.0")


def stream(path):
    with pa.ipc.new_stream(str(path), COLUMNS.schema) as writer:
        writer.write_table(COLUMNS, 7)


def feather(compression):
    return lambda path: pa.feather.write_feather(COLUMNS, str(path), compression=compression)


def archive(path):
    files = {"cls": b"3", "txt": b"three", "json": b'{"a": [1, 2]}'}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(2):
            for extension, content in files.items():
                info = tarfile.TarInfo(f"{'folder' * 30}/{number}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def database(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a INT, b REAL, k TEXT)")
    connection.executemany("INSERT INTO t VALUES (?, ?, ?)", ROWS)
    connection.commit()
    connection.close()


# By kind: the file's name, a function that writes it, and a function that reads it.
KINDS = {
    "parquet": ("a.parquet", lambda path: pa.parquet.write_table(COLUMNS, path), columns(sources.parquet)),
    "parquet pages": ("a.parquet", parquet_pages, columns(sources.parquet)),
    "arrow": ("a.arrow", feather("uncompressed"), columns(sources.arrow)),
    "arrow stream": ("a.arrow", stream, columns(sources.arrow)),
    "arrow lz4": ("a.arrow", feather("lz4"), columns(sources.arrow)),
    "arrow zstd": ("a.arrow", feather("zstd"), columns(sources.arrow)),
    "csv": ("a.csv", lambda path: path.write_text(CSV), lambda path: sources.csv(path, labels=["k"])),
    "csv gzip": (
        "a.csv.gz",
        lambda path: path.write_bytes(gzip.compress(CSV.encode(), mtime=0)),
        lambda path: sources.csv(path, labels=["k"]),
    ),
    "csv utf-16": (
        "a.csv",
        lambda path: path.write_text(CSV, encoding="utf-16"),
        lambda path: sources.csv(path, labels=["k"], encoding="utf-16"),
    ),
    "json lines": (
        "a.jsonl",
        lambda path: path.write_text("".join(json.dumps({"a": a, "b": [b, 1], "k": k}) + "\n" for a, b, k in ROWS)),
        lambda path: sources.json_lines(path, labels=["k"]),
    ),
    "npy": ("a.npy", lambda path: np.save(path, NUMBERS), lambda path: sources.numpy_arrays(str(path))),
    "npz": ("a.npz", lambda path: np.savez(path, x=NUMBERS, y=ROWS), lambda path: sources.numpy_arrays(str(path))),
    "npz packed": (
        "a.npz",
        lambda path: np.savez_compressed(path, x=NUMBERS, y=np.arange(20)),
        lambda path: sources.numpy_arrays(str(path)),
    ),
    "idx": ("a.idx", lambda path: path.write_bytes(IDX), lambda path: [sources.read_idx(path)]),
    "idx gzip": (
        "a.idx.gz",
        lambda path: path.write_bytes(gzip.compress(IDX, mtime=0)),
        lambda path: [sources.read_idx(path)],
    ),
    "cifar": (
        "test_batch.bin",
        lambda path: path.write_bytes((bytes([3]) + bytes(3072)) * 2),
        lambda path: sources.cifar10(str(path.parent), "test"),
    ),
    "png": (
        "class/a.png",
        lambda path: Image.fromarray(NUMBERS.astype(np.uint8)).save(path),
        lambda path: ImageFolder(path.parent.parent),
    ),
    "jpeg": (
        "class/a.jpg",
        lambda path: Image.fromarray(NUMBERS.astype(np.uint8)).save(path),
        lambda path: ImageFolder(path.parent.parent),
    ),
    "tar": ("a.tar", archive, TarShards),
    "sqlite": ("a.db", database, lambda path: SQLiteTable(path, "t", labels=["k"])),
    "lines": ("a.txt", lambda path: path.write_text("one two\nthree é four\n" * 9), Lines),
    "characters": (
        "a.txt",
        lambda path: path.write_text("one two\nthree é four\n" * 9),
        lambda path: TextWindows(path, 5, level="characters"),
    ),
}


def damaged(content, rng):
    """Return the content with bytes changed, removed, inserted or moved; often as a too large number."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 8])):
        at, size = rng.randrange(len(data) or 1), rng.choice([1, 2, 4, 8])
        some = rng.randbytes(rng.randrange(1, 9))
        number = rng.choice([0, 1, 127, 128, 255, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1])
        other = rng.randrange(len(data) or 1)
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([data[at] ^ 1 << rng.randrange(8)]) if data else b""
            case 1:
                data[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
            case 2:
                del data[at:]
            case 3:
                del data[at : at + len(some)]
            case 4:
                data[at:at] = some
            case 5:
                data[at : at + 4 * size] = data[other : other + 4 * size]
    return bytes(data)


def read_all(data):
    """Read every item, as training would."""
    for index in range(len(data)):
        item = data[index]
        for value in item.values() if isinstance(item, dict) else [item]:
            np.sum(np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value) == 0)


def main(count, first, *kinds):
    limit = psutil.Process().memory_info().vms + ROOM
    for kind in kinds:
        name, write, read = KINDS[kind]
        place = Path(tempfile.mkdtemp())
        path = place / name
        path.parent.mkdir(exist_ok=True)
        write(path)
        content = path.read_bytes()
        read_all(read(path))  # before the limit: import the packages that reading needs
        if sys.platform != "darwin":  # macOS has no such limit
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        for number in range(int(first), int(count)):
            print("reading", kind, number, flush=True)
            path.unlink()  # a new file: the last one may be mapped into memory
            path.write_bytes(damaged(content, random.Random(number)))
            try:
                read_all(read(path))
            except LearnerError as error:
                if str(place) not in str(error):
                    print("NAMELESS", kind, number, error, flush=True)
            except BaseException as error:
                print("RAW", kind, number, type(error), error, flush=True)
        first = 0
        shutil.rmtree(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
