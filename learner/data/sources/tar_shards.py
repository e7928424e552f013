"""Tar archives of samples in WebDataset's format, with random access: nothing is extracted or unpickled."""

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.dataset import Dataset
from learner.data.indices import item_number
from learner.data.input_files import PathLike, present_files
from learner.data.npz import read_header
from learner.data.sources.image_decoder import ImageDecoder
from learner.errors import LearnerError, near
from learner.util.number_checks import check_int

IMAGES = ("jpg", "jpeg", "png")
KINDS = (*IMAGES, "cls", "json", "npy", "txt")
LONGEST_HEADER = 2**20  # bytes; headers of names have a few hundred
COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst")

Members = dict[str, tuple[int, int]]  # position and size in bytes, by extension


class TarShards(Dataset):
    """Samples in tar archives: the files of a sample follow each other, and share the name before the first dot.

    `0001.jpg` and `0001.cls` are a sample with the fields `jpg` and `cls`. The archives' headers are read once. Then
    any sample can be read, so order, shuffling and resuming work as for every dataset.

    Args:
      path: the path of an archive, a pattern such as `shards/train-*.tar` (sorted), or a list of these. Archives must
        not be compressed.
      fields: the fields of an item, and their extensions, or lists of extensions of which a sample has one:
        `{"image": ["jpg", "png"], "label": "cls"}`. Default: all extensions, under their own names.
      size: the size of images; see `ImageFolder`.
      mode: the mode of images; see `ImageFolder`.
      scaled: return scaled pixels; see `ImageFolder`.
      max_pixels: the maximum number of pixels of an image; see `ImageFolder`.
      max_bytes: the maximum size of a file; a larger one is an error, before it is read.

    Attributes:
      files: the paths of the archives.

    The last part of an extension determines how a file is decoded: `jpg`, `jpeg`, `png` as an image, `cls` as int32,
    `json`, `npy` as an array, `txt` as a text.

    Raises:
      LearnerError: an archive does not exist, is damaged or compressed, or has links or samples without a field; or, on
        access, a file cannot be decoded.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.tar")
    >>> with tarfile.open(path, "w") as archive:
    ...     for name, content in {"1.cls": b"7", "1.txt": b"seven", "2.cls": b"2", "2.txt": b"two"}.items():
    ...         info = tarfile.TarInfo(name)
    ...         info.size = len(content)
    ...         archive.addfile(info, io.BytesIO(content))
    >>> samples = TarShards(path, fields={"label": "cls", "name": "txt"})
    >>> samples, samples[1]
    (TarShards(2 samples in 1 archive: label, name), {'label': array(2, dtype=int32), 'name': 'two'})
    """

    def __init__(
        self,
        path: list[PathLike] | PathLike,
        fields: dict[str, str | list[str]] | None = None,
        size: list[int] | None = None,
        mode: str = "RGB",
        scaled: bool = True,
        max_pixels: int = 2**26,
        max_bytes: int = 2**28,
    ) -> None:
        self.files = [str(file.absolute()) for file in _archives(path)]
        self._max_bytes = check_int("max_bytes", max_bytes, least=1)
        extensions_of = None if fields is None else _normalized(fields)
        rows: list[tuple[int, int]] = []
        self._extensions: list[str] = []  # of all fields, in the order of their numbers
        shards, kinds = [], []
        for shard, file in enumerate(self.files):
            for key, members in _samples(file):
                extensions_of = {name: [name] for name in members} if extensions_of is None else extensions_of
                for extension in _chosen(f"{file}: the sample {key!r}", members, extensions_of, fields is None):
                    self._refuse_large(file, key, extension, members[extension][1])
                    if extension not in self._extensions:
                        self._extensions.append(extension)
                    rows.append(members[extension])
                    kinds.append(self._extensions.index(extension))
                shards.append(shard)
        if not shards or not extensions_of:
            raise LearnerError(f"{', '.join(self.files)}: there are no samples", code="data-without-rows")
        self._names = tuple(extensions_of)
        shape = len(shards), len(extensions_of)
        self._places = np.array(rows, np.int64).reshape(*shape, 2)
        self._kinds = np.array(kinds, np.min_scalar_type(len(self._extensions))).reshape(shape)
        self._shards = np.array(shards, np.int32)
        self._images: ImageDecoder | None = None
        if any(_kind(extension) in IMAGES for extension in self._extensions):
            self._images = ImageDecoder("TarShards", size, mode, scaled, max_pixels)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index = item_number(index, len(self), "TarShards")
        path = self.files[self._shards[index]]
        item = {}
        with _readable(path), open(path, "rb") as file:
            for name, kind, (start, size) in zip(self._names, self._kinds[index], self._places[index], strict=True):
                file.seek(start)
                content = file.read(size)
                extension = self._extensions[kind]
                text = f"{path}, sample {index}, {extension}"
                if len(content) != size:
                    raise LearnerError(
                        f"{text}: the archive is shorter than it was", code="data-archive-damaged", path=path
                    )
                item[name] = self._decoded(_kind(extension), content, text)
        return item

    def _decoded(self, kind: str, content: bytes, name: str) -> Any:
        if kind in IMAGES and self._images is not None:
            return self._images.decode(io.BytesIO(content), name)
        try:
            return DECODERS[kind](content)
        except Exception as error:  # a damaged file raises errors of many kinds
            raise LearnerError(f"{name} cannot be read: {error}", code="data-sample-unreadable", path=name) from error

    def _refuse_large(self, file: str, key: str, extension: str, size: int) -> None:
        if size > self._max_bytes:
            raise LearnerError(
                f"{file}: {key}.{extension} has {size:,} bytes, and max_bytes is {self._max_bytes:,}",
                code="data-sample-too-large",
                path=file,
                size=size,
            )

    def __repr__(self) -> str:
        archives = "archive" if len(self.files) == 1 else "archives"
        return f"TarShards({len(self)} samples in {len(self.files)} {archives}: {', '.join(self._names)})"


def _array(content: bytes) -> np.ndarray:
    stream = io.BytesIO(content)
    header = read_header(stream, len(content), "it")
    flat = np.frombuffer(content, header.dtype, offset=header.start)
    return flat.reshape(header.shape, order="F" if header.fortran else "C").copy()


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "cls": lambda content: np.array(int(content), np.int32),
    "json": json.loads,
    "npy": _array,
    "txt": lambda content: content.decode(),
}


def _archives(path: list[PathLike] | PathLike) -> list[Path]:
    files = present_files(path, "TarShards")
    for file in files:
        if file.suffix in COMPRESSED:
            raise LearnerError(
                f"TarShards: {file} is compressed, so its samples cannot be read in random order: unpack it to .tar",
                code="data-archive-compressed",
                file=file,
            )
    return files


def _normalized(fields: Any) -> dict[str, list[str]]:
    """Return the extensions of each field."""
    if not isinstance(fields, Mapping) or not fields:
        raise LearnerError(
            f"fields is {fields!r}: give a mapping of fields to extensions, such as {{'image': 'jpg', 'label': 'cls'}}",
            code="data-tar-fields",
            fields=fields,
        )
    extensions_of = {}
    for name, extensions in fields.items():
        given = [extensions] if isinstance(extensions, str) else list(extensions)
        extensions_of[str(name)] = [str(extension).removeprefix(".").lower() for extension in given]
        for extension in extensions_of[str(name)]:
            _check_kind(extension, f"the field {name!r}")
    return extensions_of


def _check_kind(extension: str, where: str) -> None:
    if _kind(extension) not in KINDS:
        raise LearnerError(
            f"{where}: files with the extension {extension!r} are not decoded: {near(_kind(extension), KINDS)}; "
            "fields= chooses extensions",
            code="data-tar-extension-unknown",
            extension=extension,
        )


def _kind(extension: str) -> str:
    return extension.rpartition(".")[2]


def _chosen(where: str, members: Members, extensions_of: Mapping[str, Sequence[str]], exactly: bool) -> list[str]:
    """Return the extension of each field of a sample. `exactly`: the sample may have no others."""
    chosen = []
    for name, extensions in extensions_of.items():
        found = [extension for extension in extensions if extension in members]
        if len(found) != 1:
            has = f"it has {', '.join(sorted(members))}"
            raise LearnerError(
                f"{where} has {'several files' if found else 'no file'} for the field {name!r} "
                f"({', '.join(extensions)}); {has}",
                code="data-sample-fields-differ",
                name=name,
            )
        chosen += found
    if exactly and (others := sorted(set(members) - set(chosen))):
        raise LearnerError(
            f"{where} has {', '.join(others)}, which the first sample has not: choose with fields=",
            code="data-sample-fields-differ",
            name=others[0],
        )
    for extension in chosen:
        _check_kind(extension, where)
    return chosen


def _samples(path: str) -> Iterator[tuple[str, Members]]:
    """Yield the name of each sample of an archive, and where its files are."""
    length = os.path.getsize(path)
    key, members = "", Members()
    for name, start, size in _members(path):
        if start + size > length:
            raise LearnerError(
                f"{path}: {name} claims {size:,} bytes, but the archive ends earlier",
                code="data-archive-damaged",
                path=path,
            )
        folder, _, file = name.rpartition("/")
        base, dot, extension = file.partition(".")
        if not base or not dot:
            continue  # hidden files, and files without an extension, are not parts of samples
        sample = f"{folder}/{base}".removeprefix("/")
        if sample != key and members:
            yield key, members
            members = {}
        key, extension = sample, extension.lower()
        if extension in members:
            raise LearnerError(f"{path}: {name} occurs twice", code="data-sample-twice", path=path, name=name)
        members[extension] = start, size
    if members:
        yield key, members


def _members(path: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, position and size of each file of an archive, as its headers claim."""
    with _readable(path), Headers(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # which would keep every header
            if member.isdir():
                continue
            if member.size < 0:
                raise tarfile.ReadError(f"{member.name} has {member.size} bytes")  # as newer versions of Python do
            if not member.isreg() or member.issparse():
                raise LearnerError(
                    f"{path}: {member.name} is a link, a device or a sparse file; it needs regular files",
                    code="data-archive-member",
                    path=path,
                )
            yield member.name, member.offset_data, member.size
        # `tarfile` takes a damaged header in the middle for the end, and a truncated archive has no end.
        stream.seek(archive.offset)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise LearnerError(
                f"{path}: byte {archive.offset:,} is neither a header nor the end of an archive: it is damaged or "
                "truncated",
                code="data-archive-damaged",
                path=path,
            )


class Headers(io.BufferedReader):
    """A file from which `tarfile` reads headers of limited length."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path))

    def read(self, size: int | None = -1, /) -> bytes:
        """See `io.BufferedReader`."""
        if size is None or not 0 <= size <= LONGEST_HEADER:
            raise LearnerError(f"a header claims {size} bytes", code="data-archive-header-too-large")
        return super().read(size)


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Convert errors of an archive into `LearnerError` with its path."""
    try:
        yield
    except LearnerError as error:
        if error.code != "data-archive-header-too-large":
            raise
        raise LearnerError(f"{path} cannot be read as tar: {error}", code="data-archive-damaged", path=path) from None
    except (tarfile.TarError, OSError, ValueError, EOFError, OverflowError) as error:
        raise LearnerError(f"{path} cannot be read as tar: {error}", code="data-archive-damaged", path=path) from error
