"""Models for inference: a program and its weights, which run without `learner` and without the model's code."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from learner.errors import LearnerError, near
from learner.models.adapters import adapter_of
from learner.records.model_files import save_model
from learner.records.onnx import onnx_program
from learner.util.code_location import code_location
from learner.util.distribution import VERSION
from learner.util.jaxprs import draws_from_constants
from learner.util.number_checks import check_int
from learner.util.optional import import_optional
from learner.util.text import join_names
from learner.util.trees import is_key, named_leaves
from learner.util.user_warnings import warn

PLATFORMS = ("cpu", "cuda", "tpu")
KNOWN = ("cpu", "cuda", "rocm", "tpu")
FORMATS = ("jax", "onnx")
MOST_NAMED = 3
PROGRAM, WEIGHTS, ONNX, CARD = "model.jaxexport", "weights.safetensors", "model.onnx", "README.md"
FILES = {PROGRAM, WEIGHTS, ONNX, CARD}
ANY_NUMBER = (
    "If this is about the number of rows, it is a symbol here: take it from x.shape[0], not len(x), or use "
    "reshape(-1, n); or fix it by batch_size=, on the command line --batch_size="
)
USE_ONNX = f"""\
import onnxruntime

session = onnxruntime.InferenceSession("{ONNX}")
outputs = session.run(None, {{INPUTS}})  # NumPy arrays
"""
USE = f"""\
import jax
from pathlib import Path
from safetensors.flax import load_file  # safetensors.numpy, if no weight is bfloat16

program = jax.export.deserialize(bytearray(Path("{PROGRAM}").read_bytes()))
outputs = program.call(load_file("{WEIGHTS}"), inputs)
"""

PyTree = Any


def export_model(
    path: str | Path,
    model: Any,
    inputs: PyTree,
    *,
    function: Callable[[Any, Any], Any] | None = None,
    batch_size: int | None = None,
    platforms: Sequence[str] = PLATFORMS,
    metrics: Mapping[str, float] | None = None,
    format: str = "jax",
) -> Path:
    """Write a model for inference into a directory, and return its path. The directory has a serialized program of
    `jax.export`, the weights as safetensors, and a model card with the code that uses them, which needs only JAX and
    safetensors. In the format `onnx`, one ONNX file has the program and the weights.

    Args:
      path: the directory. An existing export in it is replaced.
      model: an `nnx.Module`, `Linen`, an Equinox module or any pytree of arrays. It is exported in eval mode.
      inputs: an example: an array, or a pytree of arrays, `[rows, ...]`. Only shapes and dtypes matter; an ONNX file is
        also checked with the rows.
      function: `(model, inputs) -> outputs`, arrays in dicts, lists and tuples. Default: `model(inputs)`.
      batch_size: the number of rows that the program accepts. Default: any number.
      platforms: the platforms on which the program runs: `cpu`, `cuda`, `rocm`, `tpu`.
      metrics: values for the card.
      format: `jax`, or `onnx` for other runtimes; its package jax2onnx cannot convert all operations.

    Raises:
      LearnerError: the model cannot be exported with these arguments.
    """
    _check_arguments(model, function, batch_size, platforms, format)
    directory = _checked(Path(path))
    program, weights = _program(model, function or (lambda model, inputs: model(inputs)))
    if format == "jax" and (eighths := [name for name, x in weights.items() if x.dtype.name.startswith("float8")]):
        raise LearnerError(
            f"{join_names(eighths, MOST_NAMED)} of the weights are float8, which the loaders of safetensors for JAX "
            "and NumPy cannot read: export a copy of the model with bfloat16 in their place",
            code="export-float8",
        )
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in weights.items()}
    example = _shapes(inputs, batch_size)
    content: bytes | bytearray
    try:
        outputs = jax.eval_shape(program, shapes, example)
        traced = jax.make_jaxpr(program)(shapes, example).jaxpr
        draws = draws_from_constants(traced, [False] * len(shapes) + [True] * len(jax.tree.leaves(example)))
        if format == "onnx":
            name, content = ONNX, onnx_program(partial(program, weights), inputs, example)
        else:
            exported = jax.export.export(jax.jit(program), platforms=list(platforms))(shapes, example)
            name, content = PROGRAM, exported.serialize()
    except LearnerError:
        raise
    except Exception as error:  # from the model's code, or from JAX or jax2onnx
        reason = f"{str(error).rstrip('.')} ({code_location(error)})"
        advice = "" if batch_size is not None else f". {ANY_NUMBER}"
        if "string indexing" in reason:  # of an array, by JAX
            advice = ". The inputs are one array; pass a dict, on the command line --inputs=FIELD, with a comma"
        raise LearnerError(f"the model cannot be exported: {reason}{advice}", code="export-impossible") from error
    if draws:
        warn(
            "the exported program draws random numbers from a key that is a constant of it, so each call has the "
            "same ones: export a model that is deterministic in eval mode, or a function that draws none"
        )
    card = _card(type(model).__name__, format, platforms, example, outputs, weights, metrics or {})
    directory.mkdir(parents=True, exist_ok=True)
    for old in FILES:  # of another format
        (directory / old).unlink(missing_ok=True)
    if format == "jax":
        save_model(directory / WEIGHTS, {name: np.asarray(x) for name, x in weights.items()})
    (directory / name).write_bytes(content)
    (directory / CARD).write_text(card)
    return directory


def _check_arguments(model: Any, function: Any, batch_size: int | None, platforms: Sequence[str], format: str) -> None:
    _check_format(format, platforms)
    if function is None and not callable(model):
        raise LearnerError(
            f"a model of type {type(model).__name__} cannot be called: give function=, (model, inputs) -> outputs",
            code="export-function-missing",
        )
    if function is None and (reason := _unlike_one_argument(model)):
        raise LearnerError(
            f"{type(model).__name__} cannot be called with one argument, the inputs ({reason}): give function=, a "
            "function such as lambda model, inputs: model(**inputs), which a command takes by import path "
            "(--function=mine.call)",
            code="export-function-missing",
        )
    if batch_size is not None:
        check_int("batch_size", batch_size, least=1, code="export-batch-size")
    if isinstance(platforms, str) or not platforms or not set(platforms) <= set(KNOWN):
        shown = platforms if isinstance(platforms, str) else list(platforms)
        raise LearnerError(
            f"platforms is {shown!r}; it needs a list of one or more of {', '.join(KNOWN)}", code="export-platforms"
        )


def _unlike_one_argument(model: Callable[..., Any]) -> str:
    """Return the reason why a model cannot be called with one argument, or nothing."""
    try:
        signature = inspect.signature(model)
    except ValueError:  # some callables of C have no signature
        return ""
    try:
        signature.bind(None)
    except TypeError as error:
        return str(error)
    return ""


def _check_format(format: str, platforms: Sequence[str]) -> None:
    if format not in FORMATS:
        raise LearnerError(
            f"the format of an export is {format!r}: {near(str(format), FORMATS)}", code="export-format-unknown"
        )
    if format == "onnx" and tuple(platforms) != PLATFORMS:
        raise LearnerError(
            "platforms are of the format 'jax'; the runtime chooses where an ONNX file runs: leave them out",
            code="export-platforms",
        )
    if format == "jax":
        import_optional("flatbuffers", "export", "export_model")


def _program(model: Any, call: Callable[[Any, Any], Any]) -> tuple[Callable[..., PyTree], dict[str, Any]]:
    """Return the function of weights and inputs that is exported, and the weights by path."""
    adapter = adapter_of(model)
    leaves, tree = jax.tree.flatten((adapter.params, adapter.model_state))
    names = list(named_leaves({"params": adapter.params, "state": adapter.model_state}))

    def program(weights: Mapping[str, Any], inputs: PyTree) -> PyTree:
        given = [weights.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
        return call(adapter.rebuild(*jax.tree.unflatten(tree, given)), inputs)

    # Random keys are not weights: eval mode draws no random numbers, and constants are part of the program.
    return program, {name: leaf for name, leaf in zip(names, leaves, strict=True) if not is_key(leaf)}


def _checked(directory: Path) -> Path:
    if directory.exists() and (not directory.is_dir() or {each.name for each in directory.iterdir()} - FILES):
        raise LearnerError(
            f"{directory} has other files than those of an export; name another directory",
            code="export-directory-used",
            path=directory,
        )
    return directory


def _shapes(inputs: PyTree, batch_size: int | None) -> PyTree:
    rows = jax.export.symbolic_shape("rows")[0] if batch_size is None else batch_size

    def of(x: Any) -> jax.ShapeDtypeStruct:
        shape = np.shape(x)
        if not shape:
            raise LearnerError(
                "an input has no axis of rows; inputs are arrays [rows, ...]", code="export-input-without-rows"
            )
        return jax.ShapeDtypeStruct((rows, *shape[1:]), jax.dtypes.canonicalize_dtype(np.asarray(x).dtype))

    return jax.tree.map(of, inputs)


def _card(
    name: str,
    format: str,
    platforms: Sequence[str],
    inputs: PyTree,
    outputs: PyTree,
    weights: Mapping[str, Any],
    metrics: Mapping[str, float],
) -> str:
    """Return the model card as Markdown."""
    rows = [f"| input {path or 'array'} | {x.dtype}{list(x.shape)} |" for path, x in named_leaves(inputs).items()]
    rows += [f"| output {path or 'array'} | {x.dtype}{list(x.shape)} |" for path, x in named_leaves(outputs).items()]
    rows += [f"| {key} | {value:.6g} |" for key, value in metrics.items()]
    numbers = sum(int(np.prod(x.shape)) for x in weights.values())
    where = f"for {', '.join(platforms)}" if format == "jax" else "as ONNX"
    about = f"Exported by learner {VERSION} with JAX {jax.__version__} {where}."
    table = "\n".join(["| | |", "|---|---|", f"| numbers in weights | {numbers:,} |", *rows])
    given = ", ".join(f'"{path or "inputs"}": {(path or "inputs").rpartition(".")[2]}' for path in named_leaves(inputs))
    use = USE if format == "jax" else USE_ONNX.replace("INPUTS", given)
    return f"# {name}\n\n{about}\n\n{table}\n\n```python\n{use}```\n"
