"""Copies of run directories in object stores, or in any other store that fsspec writes."""

import contextlib
import itertools
import json
import os
import posixpath
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from learner.errors import LearnerError
from learner.runs import control_files, lock
from learner.runs.layout import MARK
from learner.util.addresses import is_address
from learner.util.distribution import install_hint
from learner.util.optional import import_optional

CHECKPOINTS, MANIFEST = "checkpoint", "manifest.json"
MANIFEST_PATH = re.compile(rf"{CHECKPOINTS}/([0-9]+)/{re.escape(MANIFEST)}")  # with the step
HEAD = 1 << 16  # bytes of a journal that distinguish runs: they contain the time of the first start
READ_AT_ONCE = 1 << 24  # bytes of a file that are read at once
LEFT_OUT = (lock.NAME, *(f"{what}.ask" for what in control_files.WHAT))


class RemoteRun:
    """The copy of one run directory.

    The manifest of a checkpoint is copied last and removed first, so that an interrupted copy does not count as a
    checkpoint. Logs are copied before the checkpoints that rely on them.

    Args:
      url: the address of the copy: `s3://bucket/runs/digits`, `gs://...`, `az://...`, or a path.

    Attributes:
      url: the address without a trailing slash.

    Raises:
      LearnerError: the package for such addresses is not installed, or the address contains a user.
    """

    def __init__(self, url: str | os.PathLike[str]):
        scheme = os.fspath(url).partition("://")[0] if is_address(url) else "file"
        self.url = os.fspath(url).rstrip("/")
        self._files, self._root = _open(self.url, scheme)
        self._copied: dict[str, tuple[int, int]] = {}  # size and time of change of the files that were copied
        self._checkpoints: dict[str, bytes] = {}  # the manifests of the checkpoints in the store, by step

    def refuse_unwritable(self) -> None:
        """Raise `LearnerError` unless files can be written to the store and removed."""
        probe = f"{self._root}/.learner-{uuid.uuid4().hex}"
        try:
            self._files.pipe_file(probe, b"")
            self._files.rm_file(probe)
        except Exception as error:
            raise LearnerError(
                f"{self.url} cannot be written: {_reason(error)}", code="remote-unwritable", url=self.url
            ) from error

    def refuse_another(self, directory: Path, resumed: bool) -> None:
        """Raise `LearnerError` if the address holds the copy of another run than the one in the directory, which is new
        unless it is resumed.
        """
        if not is_address(self.url) and Path(self._root).resolve().is_relative_to(directory.resolve()):
            raise LearnerError(
                f"{self.url} is in {directory}, the directory of the run itself: choose another place for its copy",
                code="remote-inside-run",
                url=self.url,
            )
        place = f"{self._root}/{MARK}"
        if not self._files.exists(place):
            return
        head = self._files.cat_file(place, start=0, end=HEAD).partition(b"\n")[0]
        if not (resumed and head == _head(directory / MARK)):
            raise LearnerError(
                f"{self.url} has the copy of another run: choose another address, or remove it",
                code="remote-holds-another",
                url=self.url,
            )

    # -- to the store --------------------------------------------------------------------------------------------------

    def upload(self, directory: Path) -> None:
        """Copy new files of a run directory, and remove the copies of checkpoints that the run has removed. Another
        thread may write to the directory meanwhile.
        """
        # Listed before the logs are copied, so that the logs contain everything that the checkpoints rely on.
        manifests = _manifests(directory)
        self._upload_files(directory)
        self._checkpoints = self._checkpoints or self._remote_manifests()
        for name in sorted(manifests, key=int):
            # A run that resumed from an older checkpoint may have saved other values at the same step.
            if self._checkpoints.get(name) != manifests[name]:
                self._upload_checkpoint(directory / CHECKPOINTS / name, name, manifests[name])
        # Only now: if the run dies in between, it leaves one checkpoint too many, never one too few.
        for name in sorted(self._checkpoints.keys() - _manifests(directory).keys(), key=int):
            self._remove_checkpoint(name)

    def _upload_files(self, directory: Path) -> None:
        """Copy the changed files, except for those of checkpoints."""
        found = set()
        for path in _files_of(directory):
            name = path.relative_to(directory).as_posix()
            try:
                status = path.stat()
                if self._copied.get(name) != (state := (status.st_size, status.st_mtime_ns)):
                    self._put(path, name)
                    self._copied[name] = state
            except FileNotFoundError:
                if path.exists():  # the store lacks something: the bucket
                    raise
                continue  # removed meanwhile: its copy is removed below
            found.add(name)
        for name in self._copied.keys() - found:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(f"{self._root}/{name}")
            del self._copied[name]

    def _upload_checkpoint(self, directory: Path, name: str, manifest: bytes) -> None:
        self._remove_checkpoint(name)  # left by an interrupted copy
        try:
            for each in json.loads(manifest)["files"]:
                self._put(directory / each, f"{CHECKPOINTS}/{name}/{each}")
        except FileNotFoundError:
            if (directory / MANIFEST).exists():
                raise
            self._remove_checkpoint(name)  # the run has removed it meanwhile
            return
        self._files.pipe_file(f"{self._root}/{CHECKPOINTS}/{name}/{MANIFEST}", manifest)
        self._checkpoints[name] = manifest

    def _remove_checkpoint(self, name: str) -> None:
        place = f"{self._root}/{CHECKPOINTS}/{name}"
        if self._files.exists(f"{place}/{MANIFEST}"):
            self._files.rm_file(f"{place}/{MANIFEST}")
        if self._files.exists(place):
            self._files.rm(place, recursive=True)
        self._checkpoints.pop(name, None)

    def _put(self, path: Path, name: str) -> None:
        # Read at once: a log grows while it is copied, and stores refuse a length other than the announced one.
        if path.stat().st_size < READ_AT_ONCE:
            self._files.pipe_file(f"{self._root}/{name}", path.read_bytes())
        else:
            self._files.put_file(str(path), f"{self._root}/{name}")

    # -- from the store ------------------------------------------------------------------------------------------------

    def download(self, directory: Path, progress: Callable[[int, int], None] = lambda copied, total: None) -> None:
        """Copy the run to a new directory, which appears only when the copy is complete.

        Args:
          directory: the directory to create; it may exist if it is empty.
          progress: called with the number of bytes copied and the total number.

        Raises:
          LearnerError: the directory is not empty, the store cannot be read, or it has no run.
        """
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise LearnerError(
                f"{directory} exists already; name another directory", code="remote-directory-exists", path=directory
            )
        try:
            sizes = self._sizes()
        except Exception as error:
            raise LearnerError(
                f"{self.url} cannot be read: {_reason(error)}", code="remote-unreadable", url=self.url
            ) from error
        if MARK not in sizes:
            raise LearnerError(f"there is no run at {self.url}", code="remote-run-missing", url=self.url)
        # An empty directory may be a mounted disk, so files are created and moved inside it.
        name = f"{uuid.uuid4().hex}.partial"
        partial = directory / name if directory.exists() else directory.with_name(f"{directory.name}.{name}")
        try:
            copied = 0
            for name, size in sizes.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(f"{self._root}/{name}", str(partial / name))
                copied += size
                progress(copied, sum(sizes.values()))
            if partial.parent == directory:
                for path in sorted(partial.iterdir(), key=lambda path: path.name == MARK):  # without it there is no run
                    path.rename(directory / path.name)
            else:
                partial.rename(directory)
        except Exception as error:
            raise LearnerError(
                f"{self.url} cannot be copied to {directory}: {_reason(error)}", code="remote-unreadable", url=self.url
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # also after Ctrl-C

    def _sizes(self) -> dict[str, int]:
        """Return the sizes of the run's files by name, without those of checkpoints that have no manifest."""
        found = self._files.find(self._root, detail=True)
        sizes = {posixpath.relpath(path, self._root): int(info["size"]) for path, info in found.items()}
        complete = {match[1] for name in sizes if (match := MANIFEST_PATH.fullmatch(name))}
        return {name: size for name, size in sizes.items() if _is_mirrored(name, complete)}

    def _remote_manifests(self) -> dict[str, bytes]:
        matches = filter(None, map(MANIFEST_PATH.fullmatch, self._sizes()))
        return {match[1]: self._files.cat_file(f"{self._root}/{match[0]}") for match in matches}


def _open(url: str, scheme: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise LearnerError(
            f"the address {scheme}://***@... has a user in it: put credentials where the store's own tools find them",
            code="remote-address-user",
            scheme=scheme,
        )
    fsspec = import_optional("fsspec", "stores", f"{scheme}://")
    try:
        options = {"auto_mkdir": True} if scheme == "file" else {"use_listings_cache": False}
        files, root = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        hint = f" ({install_hint('stores')})" if isinstance(error, ImportError) else ""
        raise LearnerError(
            f"{scheme}:// cannot be opened: {error}{hint}", code="remote-scheme-unknown", scheme=scheme
        ) from error
    return files, str(root).rstrip("/")


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD).partition(b"\n")[0]


def _manifests(directory: Path) -> dict[str, bytes]:
    """Return the manifests of the complete checkpoints of a run, by step."""
    manifests = {}
    for path in (directory / CHECKPOINTS).glob(f"*/{MANIFEST}"):
        if MANIFEST_PATH.fullmatch(path.relative_to(directory).as_posix()):
            with contextlib.suppress(FileNotFoundError):  # the run removes it
                manifests[path.parent.name] = path.read_bytes()
    return manifests


def _files_of(directory: Path) -> Iterator[Path]:
    """Yield the regular files of a run that are not part of a checkpoint: logs, the config, records of models."""
    for path in itertools.chain(directory.iterdir(), directory.glob("*/**/*")):
        parts = path.relative_to(directory).parts
        in_checkpoint = parts[0] == CHECKPOINTS and len(parts) > 2
        partial = parts[0] == CHECKPOINTS and path.suffix in (".partial", ".saving")
        if not in_checkpoint and not partial and path.name not in LEFT_OUT and path.is_file() and not path.is_symlink():
            yield path


def _is_mirrored(name: str, complete: set[str]) -> bool:
    """Return True for a file of a run; `complete`: its checkpoints with a manifest. No name may lead elsewhere."""
    parts = name.split("/")
    if ".." in parts or name.startswith(("/", ".learner-")):
        return False
    return not (parts[0] == CHECKPOINTS and len(parts) > 2) or parts[1] in complete


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
