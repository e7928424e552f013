"""Batches as NumPy arrays that can be put on a device."""

from typing import Any

import jax
import numpy as np

from learner.data.sources.foreign import as_array
from learner.errors import LearnerError
from learner.util.trees import named_leaves

PyTree = Any
MOST_NAMED = 8  # arrays of a batch in a message


def batch_arrays(batch: PyTree, split: str) -> PyTree:
    """A batch as NumPy arrays with one common leading axis, or an error that says what is wrong with it."""
    leaves = named_leaves(batch)
    if not leaves:
        raise LearnerError(
            f"a batch of the {split} data holds no arrays: it is {batch!r}{_yields(batch)}",
            code="batch-empty-structure",
            split=split,
        )
    try:
        arrays = {name: np.asarray(as_array(leaf)) for name, leaf in leaves.items()}
    except ValueError as error:
        raise LearnerError(
            f"a batch of the {split} data cannot be read as arrays: {error}", code="batch-not-arrays", split=split
        ) from error
    for name, array in arrays.items():
        if array.dtype.kind in "OUSMm" or array.dtype.names:
            raise LearnerError(
                f"{field_text(name)} of a {split} batch has dtype {array.dtype}; batches hold numbers{_yields(batch)}",
                code="batch-dtype",
                split=split,
            )
    shapes = {name: array.shape for name, array in arrays.items()}
    if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
        shown = ", ".join(f"{field_text(name)} {list(shape)}" for name, shape in list(shapes.items())[:MOST_NAMED])
        shown += f" and {len(shapes) - MOST_NAMED} more" if len(shapes) > MOST_NAMED else ""
        raise LearnerError(
            f"the arrays of a {split} batch need one common leading axis; they have {shown}{_yields(batch)}",
            code="batch-axes-differ",
            split=split,
        )
    if not next(iter(shapes.values()))[0]:
        raise LearnerError(f"a batch of the {split} data has 0 rows", code="batch-without-rows", split=split)
    return jax.tree.unflatten(jax.tree.structure(batch), list(arrays.values()))


def refuse_wrapped(batch: PyTree, split: str) -> None:
    """Raise `LearnerError` for integers that would be others on the device, where 64 bits become 32.

    >>> refuse_wrapped({"label": np.array([1, 4294967196])}, "train")
    Traceback (most recent call last):
    learner.errors.LearnerError: 'label' of a train batch holds 4294967196 (int64), which is -100 as int32, ...
    """
    for name, array in named_leaves(batch).items():
        if is_narrowed(array.dtype):
            _refuse_wrapped(name, array, split)


def is_narrowed(dtype: np.dtype) -> bool:
    """Return True for 64-bit integers that JAX converts to 32 bits."""
    return dtype.kind in "iu" and dtype.itemsize == 8 and jax.dtypes.canonicalize_dtype(dtype) != dtype


def _refuse_wrapped(name: str, array: np.ndarray, split: str) -> None:
    narrow = np.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
    if not array.size or (array.min() >= narrow.min and array.max() <= narrow.max):
        return
    wrong = array[(array < narrow.min) | (array > narrow.max)][0]
    raise LearnerError(
        f"{field_text(name)} of a {split} batch holds {wrong} ({array.dtype}), which is {wrong.astype(narrow.dtype)} "
        f"as {narrow.dtype}, with which JAX computes: give integers from {narrow.min} to {narrow.max}, or set the "
        "option jax_enable_x64 of JAX",
        code="batch-integer-too-large",
        split=split,
    )


def _yields(batch: PyTree) -> str:
    """A hint for what may be no batch: an item, a number, a text."""
    leaves = jax.tree.leaves(batch)
    if leaves and all(np.ndim(as_array(leaf)) for leaf in leaves):
        return ""
    hint = (
        ". A loader yields batches: dicts (or other pytrees) of arrays [rows, ...]; of a list of items "
        "DataLoaderBuilder().batch_size(32).build(items) makes them"
    )
    if not isinstance(batch, dict) or not any(isinstance(value, list) for value in batch.values()):
        return hint
    return f"{hint}. Lists are read number by number: make arrays of them (Hugging Face: with_format('numpy'))"


def field_text(name: str) -> str:
    """Return the name of a field of a batch for a message."""
    return f"'{name}'" if name else "the array"
