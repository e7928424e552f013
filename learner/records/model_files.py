"""Models in files: `save_model` and `load_model`."""

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learner.errors import LearnerError, near
from learner.models.model_types import ModelT
from learner.records.fitting import LoadReport, Rename
from learner.records.json import JsonRecorder
from learner.records.messagepack import MessagePackRecorder
from learner.records.pytorch import PICKLES, how_to_convert
from learner.records.recorder import Recorder
from learner.records.safetensors import BinRecorder, SafetensorsRecorder

RECORDERS = {
    recorder.extension: recorder
    for kind in (MessagePackRecorder, JsonRecorder, SafetensorsRecorder, BinRecorder)
    for recorder in (kind(), kind(gzip=True))
}
"""The recorders in full precision, by file extension."""


def save_model(path: str | Path, model: Any, recorder: Recorder | None = None) -> Path:
    """Write a model with its whole state to a file, atomically, replacing an existing file. Return the path of the
    file.

    Args:
      path: it ends with `.mpk`, `.json`, `.safetensors` or `.bin`, which chooses the format, and with `.gz` behind it
        where it is to be compressed. A recorder adds its extension to a path that has none.
      model: an `nnx.Module`, or a part of one (`nnx.state(model, nnx.LoRAParam)`), a `Linen`, an Equinox module (with
        its `State` in a tuple), or any pytree with arrays.
      recorder: default: the recorder of the extension, in full precision.

    Raises:
      LearnerError: the extension is unknown, or not the recorder's; the model cannot be recorded, see `Recorder.check`.

    >>> import os, tempfile
    >>> import jax.numpy as jnp
    >>> from learner.records import CompactRecorder
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> save_model(path, {"w": jnp.float32([0.5]), "n": jnp.int32(7)}, CompactRecorder()).name
    'model.mpk.gz'
    >>> load_model(path, {"w": jnp.zeros(1), "n": jnp.int32(0)})
    {'n': Array(7, dtype=int32), 'w': Array([0.5], dtype=float32)}
    """
    target = _with_extension(path, recorder)
    recorder = recorder_for(target, recorder)
    if not target.absolute().parent.is_dir():
        raise LearnerError(
            f"there is no directory {target.parent} to save {target.name} in", code="record-directory-missing"
        )
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("xb") as file:
            recorder.write(model, file)
        partial.replace(target)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return target


def load_model(
    path: str | Path,
    model: ModelT,
    *,
    rename: Rename = (),
    strict: bool = True,
    layout: str | None = None,
    report: Callable[[LoadReport], Any] | None = None,
    recorder: Recorder | None = None,
) -> ModelT:
    """Return a copy of a model with the arrays of a file.

    Arrays are cast to the dtypes of the model, whatever the precision of the file, and placed on the same devices as
    the model's arrays. No code from a file is run. Loading needs memory for the file's arrays, and for a compressed
    file little more than the model takes.

    Args:
      path: see `save_model`. A path without an extension means the only file of that name with a known extension.
      model: a model like the saved one, with any values. It provides the structure, and may have shapes in place of
        arrays (`nnx.eval_shape(lambda: Model(nnx.Rngs(0)))`).
      rename: pairs of a regular expression and its replacement (`re.sub`), applied to the paths of the file in order.
      strict: require every array to be in the file and in the model, with the same shape and kind. Otherwise, arrays
        that do not fit keep their values.
      layout: `"torch"` for a PyTorch file, whose arrays are renamed and transposed; see `learner.records.pytorch`.
      report: called with the `LoadReport`, such as `print`. By default, arrays that were left out are logged as a
        warning.
      recorder: needed only if files of one name differ in their extensions; it must match the extension.

    Raises:
      LearnerError: the file does not exist, is damaged, or is of another model; the message then lists all paths that
        differ, with dtype and shape on both sides.

    >>> import os, tempfile
    >>> import jax.numpy as jnp
    >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
    >>> _ = save_model(path, {"encoder": {"w": jnp.ones(2)}, "head": {"w": jnp.ones((2, 5))}})
    >>> model = {"backbone": {"w": jnp.zeros(2)}, "head": {"w": jnp.zeros((2, 3))}}
    >>> model = load_model(path, model, rename=[(r"^encoder\\.", "backbone.")], strict=False, report=print)
    loaded 1 of 2 arrays from ...model.safetensors (safetensors, version 1, full precision)
      renamed: encoder.w -> backbone.w
      not loaded: head.w: float32[2, 5] in the file, float32[2, 3] in the model
    >>> model["backbone"]
    {'w': Array([1., 1.], dtype=float32)}
    """
    if isinstance(path, str | os.PathLike) and Path(path).suffix in PICKLES:
        raise LearnerError(how_to_convert(path), code="record-pytorch-pickle")
    target = _with_extension(path, recorder) if recorder is not None else _find_record(path)
    recorder = recorder_for(target, recorder)
    if not target.is_file():
        raise LearnerError(_absent(target), code="record-file-missing")
    how = {"rename": rename, "strict": strict, "layout": layout, "report": report}
    with target.open("rb") as file:
        loaded: ModelT = recorder.read(file, target.stat().st_size, str(target), model, **how)
    return loaded


def _checked(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike) or not Path(path).name:
        given = repr(path) if isinstance(path, str) else f"a {type(path).__name__}"
        raise LearnerError(
            f"the path of a record is {given}; it needs a path, such as 'model.mpk.gz', before the model",
            code="record-path-type",
        )
    return Path(path)


def _with_extension(path: Any, recorder: Recorder | None) -> Path:
    """Return the path with the recorder's extension, unless it has a record's extension."""
    named = _checked(path)
    if not isinstance(recorder, Recorder) or named.name.endswith(tuple(RECORDERS)):
        return named
    return named.with_name(f"{named.name}{recorder.extension}")


def _find_record(path: Any) -> Path:
    """Return the path of the only record of that name, unless the path has a record's extension."""
    named = _checked(path)
    if named.name.endswith(tuple(RECORDERS)):
        return named
    files = [file for extension in RECORDERS if (file := named.with_name(f"{named.name}{extension}")).is_file()]
    if len(files) > 1:
        raise LearnerError(
            f"{path} may be {' or '.join(file.name for file in files)}: give one of them, or recorder=",
            code="record-path-ambiguous",
            path=path,
        )
    return files[0] if files else named


def recorder_for(path: Any, recorder: Recorder | None = None) -> Recorder:
    """Return the recorder for a file: the given one, if it matches the extension.

    Raises:
      LearnerError: it does not match, or the extension is unknown.

    >>> recorder_for("model.json.gz")
    JsonRecorder(precision='full', gzip=True)
    >>> recorder_for("model.jsn")
    Traceback (most recent call last):
    learner.errors.LearnerError: model.jsn has no extension of a record; did you mean '.json' or '.json.gz'?
    """
    name = _checked(path).name
    if recorder is not None and not isinstance(recorder, Recorder):
        raise LearnerError(
            f"the recorder is {recorder!r}; it needs an instance, such as CompactRecorder() or "
            'SafetensorsRecorder(precision="half")',
            code="record-recorder-type",
            recorder=recorder,
        )
    if recorder is not None:
        if not name.endswith(recorder.extension):
            raise LearnerError(
                f"{path} does not fit {recorder!r}, whose files end with {recorder.extension}",
                code="record-extension-mismatch",
                path=path,
                recorder=recorder,
            )
        return recorder
    fitting = [extension for extension in RECORDERS if name.endswith(extension)]
    if not fitting:
        raise LearnerError(
            f"{path} has no extension of a record; {near(_extension(name), list(RECORDERS))}",
            code="record-extension-unknown",
            path=path,
        )
    return RECORDERS[max(fitting, key=len)]


def _extension(name: str) -> str:
    suffixes = Path(name).suffixes
    return "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])


def _absent(target: Path) -> str:
    if target.is_dir():
        return f"{target} is a directory; load_model takes a file that save_model wrote, load_checkpoint takes a run"
    beside = target.absolute().parent
    names = sorted(p.name for p in beside.iterdir() if p.name.endswith(tuple(RECORDERS))) if beside.is_dir() else []
    return f"there is no file {target}" + (f"; in {target.parent} {near(target.name, names)}" if names else "")
