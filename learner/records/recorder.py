"""The base class of recorders: flattening models, writing arrays in a precision, and restoring them."""

import abc
import contextlib
import dataclasses
import gzip
import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from learner.errors import LearnerError
from learner.records.file_dtypes import PRECISIONS, in_precision, refuse_overflow
from learner.records.fitting import LoadReport, Rename, fitted
from learner.records.leaves import Leaves, leaves_of
from learner.records.stored import Buffer, Stored, stored_of
from learner.records.unpacking import Limits, limits_for, readable, unpacked

FORMAT = "learner.record"
VERSION = 1
GZIP = b"\x1f\x8b"
LEVEL = 1  # of gzip: higher levels save less than 1 % more on weights


@dataclasses.dataclass(frozen=True)
class Content:
    """The content of a file.

    Attributes:
      version: the version of the format, or None for a file of another program.
      precision: one of `PRECISIONS`, or None.
      arrays: the arrays by path, in the order of the file.
    """

    version: int | None
    precision: str | None
    arrays: Mapping[str, Stored]


@dataclasses.dataclass(frozen=True)
class Recorder(abc.ABC):
    """Base of recorders, which write and read models; see `save_model` and `load_model`.

    Attributes:
      precision: `"full"` (every array in its own dtype), `"half"` or `"double"`; see `learner.records.file_dtypes`.
      gzip: True if the file is compressed.
    """

    precision: str = "full"
    gzip: bool = False
    suffix: ClassVar[str] = ""
    called: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise LearnerError(
                f"precision of {type(self).__name__} is {self.precision!r}; it needs "
                + " or ".join(map(repr, PRECISIONS)),
                code="record-precision-unknown",
            )
        if not isinstance(self.gzip, bool):
            raise LearnerError(
                f"gzip of {type(self).__name__} is {self.gzip!r}; it needs True or False", code="record-gzip-type"
            )

    @property
    def extension(self) -> str:
        """The extension of its files: `.mpk`, `.mpk.gz`, ..."""
        return self.suffix + (".gz" if self.gzip else "")

    def in_full(self) -> "Recorder":
        """Return the recorder of the same format and compression in full precision.

        >>> from learner.records import CompactRecorder
        >>> CompactRecorder().in_full()
        MessagePackRecorder(precision='full', gzip=True)
        """
        if self.precision == "full":
            return self
        full: Recorder = _base(self)(gzip=self.gzip)
        return full

    def check(self, model: Any) -> None:
        """Raise `LearnerError` if the model cannot be recorded in its present state; the error names every array, and
        the recorder to use.

        >>> import jax.numpy as jnp
        >>> from learner.records import CompactRecorder
        >>> CompactRecorder().check({"w": jnp.float32([1e5]), "n": jnp.int32(10**6)})
        Traceback (most recent call last):
        learner.errors.LearnerError: half precision cannot hold this model:
          w has 100000, and float16 ends at 65504
        Use MessagePackRecorder(precision='full', gzip=True)
        """
        self._arrays(leaves_of(model))

    def to_bytes(self, model: Any) -> bytes:
        """Return the model as the content of a file.

        Raises:
          LearnerError: see `check`.
        """
        file = io.BytesIO()
        self.write(model, file)
        return file.getvalue()

    def write(self, model: Any, file: Any) -> None:
        """Write the model to a binary file.

        Raises:
          LearnerError: see `check`; nothing is written then.
        """
        arrays = self._arrays(leaves_of(model))
        narrow = {path: in_precision(stored, self.precision) for path, stored in arrays.items()}
        out: Any = contextlib.nullcontext(file)
        if self.gzip:
            out = gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=LEVEL, mtime=0)
        with out as opened:
            for chunk in self._chunks(narrow):
                opened.write(chunk)

    def from_bytes(
        self,
        data: Buffer,
        model: Any,
        *,
        rename: Rename = (),
        strict: bool = True,
        layout: str | None = None,
        report: Callable[[LoadReport], Any] | None = None,
    ) -> Any:
        """Return a model with the arrays that `to_bytes` wrote; see `load_model`.

        >>> import jax.numpy as jnp
        >>> from learner.records import JsonRecorder
        >>> data = JsonRecorder(precision="half").to_bytes({"w": jnp.float32([0.5, 0.1])})
        >>> JsonRecorder().from_bytes(data, {"w": jnp.zeros(2)})
        {'w': Array([0.5       , 0.09997559], dtype=float32)}
        """
        how = {"rename": rename, "strict": strict, "layout": layout, "report": report}
        return self.read(io.BytesIO(data), len(data), "the record", model, **how)

    def read(self, file: Any, size: int, what: str, model: Any, **how: Any) -> Any:
        """Return a model with the arrays of a file of `size` bytes, named `what` in errors; see `from_bytes`."""
        leaves = leaves_of(model)
        with readable(what):
            _refuse_mistaken(file, size, self.gzip)
            limits = limits_for(leaves, size, self.gzip)
            content = self._read(unpacked(file, limits.room) if self.gzip else file, limits)
        written = "of another program"
        if content.version is not None:
            written = f"version {content.version}, {content.precision} precision"
        source = f"{what} ({self.called}, {written})"
        return fitted(content.arrays, leaves, model, source, foreign=content.version is None, **how)

    def _arrays(self, leaves: Leaves) -> dict[str, Stored]:
        """Return the model's arrays on the host, after a check that all fit the precision."""
        arrays = {path: stored_of(path, leaf) for path, leaf in leaves.arrays.items()}
        full = f"{_base(self).__name__}(precision='full', gzip={self.gzip})"
        refuse_overflow(arrays, self.precision, full)
        self._refuse(arrays)
        return arrays

    def _refuse(self, arrays: Mapping[str, Stored]) -> None:  # noqa: B027 (most formats accept all arrays)
        """Raise `LearnerError` for arrays that the format cannot store."""

    @abc.abstractmethod
    def _chunks(self, arrays: Mapping[str, Stored]) -> Iterable[Buffer]:
        """Yield the uncompressed file in pieces."""

    @abc.abstractmethod
    def _read(self, file: Any, limits: Limits) -> Content:
        """Return the content of an uncompressed file."""


def check_header(format: Any, version: Any, precision: Any, *, newest: int = VERSION) -> tuple[int, str]:
    """Return version and precision from a file's header; `newest` is the newest version of its format.

    Raises:
      LearnerError: the file is not a record, or of a later version.
    """
    if format != FORMAT:
        raise LearnerError(
            f"it is not a record of learner: its format is {str(format)[:40]!r} and not {FORMAT!r}",
            code="record-not-a-record",
        )
    if type(version) is not int or version < 1:
        raise LearnerError(f"its version {str(version)[:40]!r} is unknown", code="record-version-unknown")
    if version > newest:
        raise LearnerError(
            f"it has version {version}, and this version of learner reads up to {newest}: use a newer one",
            code="record-newer-version",
            version=version,
        )
    if precision not in PRECISIONS:
        raise LearnerError(f"its precision {str(precision)[:40]!r} is unknown", code="record-precision-unknown")
    return version, precision


def _base(recorder: Recorder) -> type:
    """Return the recorder of this format that has all options."""
    return next(kind for kind in type(recorder).__mro__ if Recorder in kind.__bases__)


def _refuse_mistaken(file: Any, size: int, packed: bool) -> None:
    """Raise if a file is compressed and its name has no `.gz`, or the reverse."""
    if not size:
        raise LearnerError("it is empty", code="record-empty")
    first = file.read(2)
    file.seek(0)
    if packed and first != GZIP:
        raise LearnerError(
            "it is not compressed by gzip: leave .gz out of its name, or gzip=True out of the recorder",
            code="record-not-gzip",
        )
    if not packed and first == GZIP:
        raise LearnerError(
            "it is compressed by gzip: its name has to end with .gz, or its recorder needs gzip=True",
            code="record-gzip-unexpected",
        )
