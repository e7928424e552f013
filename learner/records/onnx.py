"""Programs as ONNX, for other runtimes: jax2onnx converts them, and ONNX Runtime checks the result."""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import partial_eval

from learner.errors import LearnerError
from learner.util.optional import import_optional
from learner.util.promotion import standard_promotion

TOLERANCE = 1e-3  # relative to the largest output: kernels of ONNX Runtime add in another order
MOST_POOLED = 3  # axes that ONNX Runtime pools over

PyTree = Any


def onnx_program(program: Callable[[PyTree], PyTree], inputs: PyTree, shapes: PyTree) -> bytes:
    """Return a function of one pytree as the content of an ONNX file; its constants are the weights.

    The inputs and outputs have their paths as names, `inputs` and `outputs` if they are single arrays.

    Args:
      program: `inputs -> outputs`.
      inputs: an example, arrays `[rows, ...]`: ONNX Runtime must compute the same outputs for these rows.
      shapes: the shapes of the file's inputs, instead of the example's; the number of rows may be symbolic.

    Raises:
      LearnerError: a package is missing, or ONNX Runtime computes other outputs.
      Exception: jax2onnx or JAX cannot convert the function.
    """
    what = "an export to ONNX"
    import_optional("onnx", "onnx", what)
    runtime = import_optional("onnxruntime", "onnx", what)
    names, structure = list(_paths(shapes, "inputs")), jax.tree.structure(shapes)

    def flat(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(program(jax.tree.unflatten(structure, leaves)))

    outputs = [
        name if name not in names else f"outputs.{name}" for name in _paths(jax.eval_shape(program, shapes), "outputs")
    ]
    # Trace before jax2onnx replaces functions of jax.numpy and flax, as its replacements accept fewer arguments: it
    # sees primitives only. It does not support random keys, and a model in eval mode needs no random streams.
    traced = jax.make_jaxpr(flat)(*jax.tree.leaves(shapes))
    used, _ = partial_eval.dce_jaxpr(traced.jaxpr, [True] * len(outputs), instantiate=True)
    with _contained():
        convert = import_optional("jax2onnx", "onnx", what).to_onnx
        model = convert(
            jaxpr_as_fun(traced.replace(jaxpr=used)),
            jax.tree.leaves(shapes),
            model_name="model",
            input_names=names,
            output_names=outputs,
        )
    _narrow_pools(model.graph)
    content: bytes = model.SerializeToString()
    _compare(runtime, content, names, flat, jax.tree.leaves(inputs), jax.tree.leaves(shapes))
    return content


def _paths(tree: PyTree, single: str) -> Iterator[str]:
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path, simple=True, separator=".") or single


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """Undo jax2onnx's side effects (0.17.1 puts another `cumsum` into `jax.numpy`), and silence its output."""
    before = dict(vars(jnp))
    loggers = [logging.getLogger(name) for name in ("jax2onnx", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), standard_promotion():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            if vars(jnp).get(name) is not value:
                setattr(jnp, name, value)


def _narrow_pools(graph: Any) -> None:
    """Pool only over the axes that have a window. jax2onnx pools over all axes, some with a window of 1, and ONNX
    Runtime rejects more than three.
    """
    makers = {name: node for node in graph.node for name in node.output}
    readers = {name: node for node in graph.node for name in node.input}
    for pool in [node for node in graph.node if node.op_type == "MaxPool"]:
        chain = [makers.get(pool.input[0]), pool, readers.get(pool.output[0])]
        chain = [chain[0] and makers.get(chain[0].input[0]), *chain]
        if [node and node.op_type for node in chain] == ["Unsqueeze", "Unsqueeze", "MaxPool", "Squeeze"]:
            place = list(graph.node).index(pool)
            nodes = _narrow_pool(pool, chain[0].input[0], chain[-1].output[0])
            for offset, node in enumerate(nodes):
                graph.node.insert(place + offset, node)
            for node in chain if nodes else ():
                graph.node.remove(node)


def _narrow_pool(pool: Any, source: str, target: str) -> list[Any]:
    """Return nodes that pool `source` into `target`, or no nodes unless two axes of four or five have no window."""
    from onnx import helper

    settings = {each.name: helper.get_attribute_value(each) for each in pool.attribute}
    rank = len(settings["kernel_shape"])
    defaults = {"strides": [1] * rank, "dilations": [1] * rank, "pads": [0] * 2 * rank}
    settings = {name: np.array(values) for name, values in {**defaults, **settings}.items()}
    settings["pads"] = settings["pads"].reshape(2, rank)  # before and after each axis
    idle = (settings["kernel_shape"] == 1) & (settings["strides"] == 1) & (settings["pads"] == 0).all(0)
    idle &= np.cumsum(idle) <= 2  # the rows and channels of ONNX
    if idle.sum() < 2 or not MOST_POOLED < rank <= MOST_POOLED + 2:
        return []
    order = np.argsort(~idle, stable=True)
    pooled = {
        name: values[..., ~idle].flatten().tolist()
        for name, values in settings.items()
        if name in (*defaults, "kernel_shape")
    }
    names = [f"{pool.name}_transposed", f"{pool.name}_pooled"]
    return [
        helper.make_node("Transpose", [source], names[:1], perm=order.tolist()),
        helper.make_node("MaxPool", names[:1], names[1:], **pooled),
        helper.make_node("Transpose", names[1:], [target], perm=np.argsort(order).tolist()),
    ]


def _compare(
    runtime: Any,
    content: bytes,
    names: Sequence[str],
    function: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    shapes: Sequence[jax.ShapeDtypeStruct],
) -> None:
    """Raise `LearnerError` unless ONNX Runtime computes the same as JAX, also with another number of rows."""
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised
    fixed = shapes[0].shape[0]
    rows = len(inputs[0])
    for count in (fixed,) if isinstance(fixed, int) else (rows, rows + 1):
        given = [
            np.resize(np.asarray(x), (count, *np.shape(x)[1:])).astype(s.dtype)
            for x, s in zip(inputs, shapes, strict=True)
        ]
        needed = [np.asarray(x) for x in jax.device_get(function(*given))]
        try:
            session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            found = session.run(None, dict(zip(names, given, strict=True)))
        except Exception as error:  # from the runtime, whose classes are private
            raise LearnerError(
                f"the model was converted to ONNX, and ONNX Runtime cannot run it: {error}",
                code="export-onnx-unsupported",
            ) from error
        if problem := next((p for pair in zip(found, needed, strict=True) if (p := _difference(*pair))), None):
            raise LearnerError(
                f"the model was converted to ONNX wrongly: {problem}, with {count} rows; nothing was written",
                code="export-onnx-differs",
            )


def _difference(found: np.ndarray, needed: np.ndarray) -> str | None:
    if found.shape != needed.shape:
        return f"an output is {list(found.shape)} rather than {list(needed.shape)}"
    wide = needed.astype(np.float64)
    largest = np.abs(wide[np.isfinite(wide)]).max(initial=1.0)
    if np.allclose(found.astype(np.float64), wide, rtol=0, atol=TOLERANCE * largest, equal_nan=True):
        return None
    return f"an output differs by {np.nanmax(np.abs(found.astype(np.float64) - wide)):.3g}"
