"""Text files: line by line, or as windows of bytes or characters."""

import codecs
from typing import Any

import numpy as np

from learner.data.dataset import Dataset
from learner.data.indices import item_number
from learner.data.input_files import LONGEST_SIGNATURE, PathLike, packer_of, present, undecodable
from learner.errors import LearnerError, near
from learner.util.number_checks import check_int

CHUNK = 2**24
LEVELS = ("bytes", "characters")


class Lines(Dataset):
    """The lines of a text file without line ends, each read from the disk on access.

    A view (`map`) or a batcher converts them to numbers. A byte order mark of UTF-8 is no part of the first line.

    Args:
      path: the path of the file.
      encoding: an encoding in which lines end with the byte 10, such as utf-8 or latin-1.
      skip_blank: skip empty lines and lines of white space.

    Raises:
      LearnerError: the file does not exist, is compressed or has no lines; or, on access, a line is not in the
        encoding.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "poem.txt")
    >>> _ = path.write_text("one\\n\\ntwo\\n")
    >>> lines = Lines(path, skip_blank=True)
    >>> len(lines), lines[1]
    (2, 'two')
    """

    def __init__(self, path: PathLike, encoding: str = "utf-8", skip_blank: bool = False) -> None:
        self._path = present(path, "Lines").absolute()
        self._encoding = encoding
        try:
            if "\n".encode(encoding) != b"\n":
                raise LearnerError(
                    f"encoding is {encoding!r}: Lines needs one in which a line ends with the byte 10",
                    code="data-encoding-unusable",
                    encoding=encoding,
                )
        except (LookupError, TypeError) as error:
            raise LearnerError(
                f"encoding is {encoding!r}: {error}", code="data-encoding-unusable", encoding=encoding
            ) from error
        self._bytes = _mapped(self._path, "Lines")
        starts = range(0, len(self._bytes), CHUNK)  # a comparison of the whole file would take its size in memory
        ends = np.concatenate([np.flatnonzero(self._bytes[i : i + CHUNK] == 10) + i for i in starts])
        if not len(ends) or ends[-1] != len(self._bytes) - 1:
            ends = np.append(ends, len(self._bytes))
        self._starts, self._ends = np.append(0, ends[:-1] + 1), ends
        mark = codecs.lookup(encoding).name == "utf-8" and self._bytes[:3].tobytes() == codecs.BOM_UTF8
        self._starts[0] = 3 if mark else 0
        self._numbers = np.arange(len(ends))  # of the remaining lines, from 0
        if skip_blank:
            self._numbers = np.array([i for i in self._numbers if self._raw(i).strip()], np.int64)
        if not len(self._numbers):
            raise LearnerError(f"{self._path} has no lines", code="data-without-rows")

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> str:
        number = self._numbers[item_number(index, len(self), "Lines")]
        try:
            return self._raw(number).decode(self._encoding)
        except UnicodeError as error:
            raise LearnerError(f"{self._path}, line {number + 1}: {error}", code="data-line-unreadable") from error

    def _raw(self, number: Any) -> bytes:
        return self._bytes[self._starts[number] : self._ends[number]].tobytes().removesuffix(b"\r")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bytes": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _bytes=_mapped(state["_path"], "Lines"))


class TextWindows(Dataset):
    """A text file as rows for a model that predicts the next byte or character.

    Args:
      path: the path of the file.
      length: bytes or characters in a row.
      stride: the distance between the starts of two rows; default `length`: rows do not overlap.
      level: "bytes": 256 classes, and the file stays on the disk; "characters": the text is in memory, and the classes
        are the positions in `vocabulary`.
      vocabulary: all characters, each once, in the order of their numbers; default: the characters of the file, sorted.
        Pass the vocabulary of the training text to all other splits.
      encoding: the encoding of the file, for characters. A byte order mark is no part of the text.

    Attributes:
      vocabulary: the characters; empty for bytes.
      classes: the number of classes.

    Items are `text` int32 `[length]` and `target`, the text shifted by one.

    Raises:
      LearnerError: the file does not exist, is compressed, is shorter than a row, is not in the encoding, or has a
        character outside the vocabulary.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "a.txt")
    >>> _ = path.write_text("abcabca")
    >>> rows = TextWindows(path, length=3, level="characters")
    >>> len(rows), rows.vocabulary, rows[1]["text"].tolist(), rows[1]["target"].tolist()
    (2, 'abc', [0, 1, 2], [1, 2, 0])
    """

    def __init__(
        self,
        path: PathLike,
        length: int,
        stride: int | None = None,
        level: str = "bytes",
        vocabulary: str | None = None,
        encoding: str = "utf-8",
    ) -> None:
        self._path = present(path, "TextWindows").absolute()
        self._length = check_int("length", length, least=1)
        self._stride = self._length if stride is None else check_int("stride", stride, least=1)
        if level not in LEVELS:
            raise LearnerError(
                f"level is {level!r}: {near(str(level), LEVELS)}", code="data-text-level-unknown", level=level
            )
        if level == "bytes" and vocabulary is not None:
            raise LearnerError(
                "vocabulary is for characters: give level='characters'", code="data-text-vocabulary-level"
            )
        if vocabulary is not None and len(set(vocabulary)) < len(vocabulary):
            twice = next(character for character in vocabulary if vocabulary.count(character) > 1)
            raise LearnerError(
                f"vocabulary has {twice!r} twice; it needs each character once", code="data-text-vocabulary-duplicate"
            )
        self._codes = _mapped(self._path, "TextWindows")
        self._on_disk = level == "bytes"
        self.vocabulary, self.classes = "", 256
        if level == "characters":
            self._codes, self.vocabulary = self._characters(vocabulary, encoding)
            self.classes = len(self.vocabulary)
        if len(self._codes) <= self._length:
            raise LearnerError(
                f"length is {length}: {self._path} has {len(self._codes)} {level}, give less",
                code="data-length-too-large",
                length=length,
                level=level,
            )

    def _characters(self, vocabulary: str | None, encoding: str) -> tuple[np.ndarray, str]:
        try:
            text = self._codes.tobytes().decode(encoding).removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            line = undecodable(self._path, encoding)
            raise LearnerError(
                f"{self._path}, line {line}: it is not {encoding} ({error.reason})",
                code="data-text-encoding",
                line=line,
                encoding=encoding,
            ) from error
        except (LookupError, TypeError, UnicodeError) as error:
            raise LearnerError(
                f"{self._path} is not {encoding}: {error}", code="data-text-encoding", encoding=encoding
            ) from error
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        known = np.unique(points) if vocabulary is None else np.array([ord(c) for c in vocabulary], np.uint32)
        order = np.argsort(known, kind="stable")
        at = np.searchsorted(known[order], points).clip(max=max(len(known) - 1, 0))
        unknown = np.flatnonzero(known[order][at] != points) if len(known) else np.arange(len(points))
        if len(unknown):
            line = text.count("\n", 0, int(unknown[0])) + 1
            raise LearnerError(
                f"{self._path}, line {line}: {text[unknown[0]]!r} is not in the vocabulary",
                code="data-character-unknown",
                line=line,
            )
        return order[at].astype(np.int32), "".join(map(chr, known))

    def __len__(self) -> int:
        return (len(self._codes) - 1 - self._length) // self._stride + 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        row = item_number(index, len(self), "TextWindows")
        start = row * self._stride
        codes = self._codes[start : start + self._length + 1].astype(np.int32)
        return {"text": codes[:-1], "target": codes[1:]}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_codes": None if self._on_disk else self._codes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        codes = _mapped(state["_path"], "TextWindows") if state["_on_disk"] else state["_codes"]
        self.__dict__.update(state, _codes=codes)


def _mapped(path: Any, what: str) -> np.ndarray:
    try:
        mapped = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise LearnerError(
            f"{what}: {path} {'is empty' if not path.stat().st_size else error}", code="data-text-unusable", path=path
        ) from error
    if packer := packer_of(mapped[:LONGEST_SIGNATURE].tobytes()):
        raise LearnerError(
            f"{what}: {path} is compressed by {packer}, and rows are read from any place of a text: decompress it",
            code="data-file-packed",
            path=path,
        )
    return mapped
