"""NumPy's files: `.npy`, a directory of `.npy` files, and `.npz`. Arrays stay on the disk if their file allows it."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.dataset import Dataset
from learner.data.input_files import PathLike, as_path, present, readable
from learner.data.npz import Header, members_of, read_header, read_npz, unreadable
from learner.errors import LearnerError

LOCAL_HEADER = 30  # bytes before the name of a member of an archive


def numpy_arrays(path: str | dict[str, str]) -> Dataset:
    """Return the arrays of NumPy's files, one row per item.

    Arrays are memory-mapped: a row is read from the disk on access. Arrays of a compressed archive
    (`numpy.savez_compressed`) are loaded into memory. Objects are never unpickled.

    Args:
      path: the path of an `.npz` file, whose arrays are the fields; of a directory, in which each `.npy` file is a
        field; of an `.npy` file, which is the field of its name; or `.npy` files by field.

    Returns:
      A dataset that workers open by its path: an `ArrayDataset`, or one that reads row by row if NumPy cannot gather
      rows of the mapped file (arrays in Fortran order, or at unaligned positions of an `.npz` file).

    Raises:
      LearnerError: a file is missing, damaged, or claims more than it contains; or it contains anything but plain
        arrays of one length.

    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> np.save(place / "x.npy", np.zeros((3, 2), np.float32))
    >>> np.save(place / "y.npy", np.arange(3))
    >>> numpy_arrays(place)
    MappedArrays(3 rows: x float32 [2], y int64 [])
    """
    arrays = _arrays(path)
    kind: type[MappedArrays | MappedRows] = MappedRows
    if all(array.flags.c_contiguous and array.flags.aligned for array in arrays.values()):
        kind = MappedArrays
    try:
        return kind(arrays, path)
    except LearnerError as error:
        raise LearnerError(f"numpy_arrays: {path}: {error}", code="data-file-unreadable", path=path) from None


class MappedArrays(ArrayDataset):
    """An `ArrayDataset` of mapped files, pickled for workers as the files' paths."""

    def __init__(self, arrays: Any, path: Any) -> None:
        super().__init__(arrays)
        self._path = path

    def __reduce__(self) -> Any:
        return numpy_arrays, (self._path,)

    def __repr__(self) -> str:
        return super().__repr__().replace("ArrayDataset", "MappedArrays", 1)


class MappedRows(Dataset):
    """Rows of mapped files, read one by one, because gathering several rows would read the whole file."""

    def __init__(self, arrays: Any, path: Any) -> None:
        self._rows = ArrayDataset(arrays)
        self._path = path

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return {field: np.array(value) for field, value in self._rows[index].items()}

    def __reduce__(self) -> Any:
        return numpy_arrays, (self._path,)

    def __repr__(self) -> str:
        return repr(self._rows).replace("ArrayDataset", "MappedRows", 1)


def _arrays(path: PathLike | Mapping[str, PathLike]) -> dict[str, np.ndarray]:
    if isinstance(path, Mapping):
        return {field: _npy(present(file, "numpy_arrays")) for field, file in path.items()}
    directory = as_path(path, "numpy_arrays")
    with readable(directory):
        is_directory = directory.is_dir()
    if is_directory:
        arrays = {path.stem: _npy(present(path, "numpy_arrays")) for path in sorted(directory.glob("*.npy"))}
        if not arrays:
            raise LearnerError(
                f"numpy_arrays: the directory {directory} has no .npy files",
                code="data-files-missing",
                directory=directory,
            )
        return arrays
    file = present(path, "numpy_arrays")
    if file.suffix == ".npy":
        return {file.stem: _npy(file)}
    if file.suffix != ".npz":
        raise LearnerError(
            f"numpy_arrays: {file} has the ending {file.suffix!r}; it needs .npy or .npz",
            code="data-file-suffix",
            file=file,
        )
    return _npz(file)


def _npy(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as stream:
            header = read_header(stream, os.path.getsize(path), path.name)
        return _mapped(path, header, 0)
    except Exception as error:  # a damaged header raises errors of many kinds
        raise LearnerError(f"{path} cannot be read as .npy: {error}", code="data-file-unreadable", path=path) from error


def _npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            members = dict(members_of(archive, os.path.getsize(path)))
            arrays: dict[str, np.ndarray] = {}
            for name, info in members.items():
                if info.compress_type == zipfile.ZIP_STORED:
                    with archive.open(info) as stream:
                        header = read_header(stream, info.file_size, info.filename)
                    file.seek(info.header_offset + LOCAL_HEADER - 4)
                    lengths = np.frombuffer(file.read(4), "<u2")  # of the name, and of what follows it
                    arrays[name] = _mapped(path, header, info.header_offset + LOCAL_HEADER + int(lengths.sum()))
    except Exception as error:  # a damaged archive raises errors of many kinds
        raise unreadable(path, error) from error
    return arrays if len(arrays) == len(members) else read_npz(path)


def _mapped(path: Path, header: Header, start: int) -> np.ndarray:
    order = "F" if header.fortran else "C"
    return np.memmap(path, header.dtype, "r", start + header.start, header.shape, order)  # type: ignore[call-overload,no-any-return]
