"""Batches as NumPy arrays that can be put on a device."""

import dataclasses
import functools
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError
from learner.util.text import join_names
from learner.util.trees import is_key, named_leaves, path_name

BATCHES_IN_CONFIG = "in a config, batch_size beside dataset makes batches"
"""The remedy for a config, in errors about data without batches."""

PyTree = Any
MOST_NAMED = 8  # arrays of a batch in a message


def batch_arrays(batch: PyTree, split: str, batchable: str = "") -> PyTree:
    """Return a batch as NumPy arrays with a common leading axis.

    Args:
      batch: the batch.
      split: the name of the split, for messages.
      batchable: the class of data whose method `batch` makes batches of its items, for messages.

    Raises:
      LearnerError: it is no batch of numbers.
    """
    leaves = named_leaves(batch)
    if not leaves:
        raise LearnerError(
            f"a batch of the {split} data holds no arrays: it is {batch!r}{_yields(batch, batchable)}. For a step that "
            "needs no data, pass np.zeros(1)",
            code="batch-empty-structure",
            split=split,
        )
    for name, leaf in leaves.items():
        refuse_masked(field_text(name), leaf)
    try:
        arrays = {name: np.asarray(as_array(leaf)) for name, leaf in leaves.items()}
    except TypeError:
        refuse_keys(batch)
        raise
    except ValueError as error:
        raise LearnerError(
            f"a batch of the {split} data cannot be read as arrays: {error}", code="batch-not-arrays", split=split
        ) from error
    for name, array in arrays.items():
        _refuse_dataclass(name, array, split)
        if array.dtype.kind in "OUSMm" or array.dtype.names:
            _refuse_texts(batch, split, batchable)
            raise LearnerError(
                f"{field_text(name)} of a {split} batch has dtype {array.dtype}; batches hold numbers: "
                f"leave it out, or encode it, as in learner.data.view(rows).map(fn){_codes(array)}"
                f"{_yields(batch, batchable)}",
                code="batch-dtype",
                split=split,
            )
        if not array.dtype.isnative:
            raise LearnerError(
                f"{field_text(name)} of a {split} batch has dtype {array.dtype.str}, which is not in this machine's "
                f"byte order: convert it with x.astype({array.dtype.name!r})",
                code="batch-byte-order",
                split=split,
            )
    shapes = {name: array.shape for name, array in arrays.items()}
    if len({shape[:1] for shape in shapes.values()}) > 1 or () in shapes.values():
        shown = join_names([f"{field_text(name)} {list(shape)}" for name, shape in shapes.items()], MOST_NAMED)
        graph = ". Those of a graph get an axis of length 1: x[None], and x[0] in the step"
        hint = _yields(batch, batchable) or _of_items(batchable) + graph
        raise LearnerError(
            f"the arrays of a {split} batch need one common leading axis; they have {shown}{hint}",
            code="batch-axes-differ",
            split=split,
        )
    if not next(iter(shapes.values()))[0]:
        raise LearnerError(
            f"a batch of the {split} data has 0 rows, so it has no mean and no gradient: leave such batches "
            "out, for example those that a filter has emptied",
            code="batch-without-rows",
            split=split,
        )
    return jax.tree.unflatten(jax.tree.structure(batch), list(arrays.values()))


def _refuse_dataclass(name: str, array: np.ndarray, split: str) -> None:
    """Raise `LearnerError` for dataclasses that JAX does not know, of which NumPy makes arrays of objects."""
    value = array.flat[0] if array.dtype == object and array.size else None
    if dataclasses.is_dataclass(value):
        kind = type(value).__qualname__
        raise LearnerError(
            f"{field_text(name) + ' of a ' if name else 'a '}{split} batch holds a {kind}, a dataclass that is not a "
            "pytree of JAX: decorate the class with jax.tree_util.register_dataclass, above @dataclass, or give a dict "
            "of its fields",
            code="batch-dataclass",
            split=split,
            kind=kind,
        )


def _refuse_texts(batch: PyTree, split: str, batchable: str) -> None:
    """Raise `LearnerError` for a field that is a list of texts, as PyTorch's loaders make of the texts of items."""
    fields = jax.tree_util.tree_leaves_with_path(batch, is_leaf=_is_texts)
    others = [value for _, value in fields if not _is_texts(value)]
    for path, value in fields:
        if path and _is_texts(value):
            hint = _yields(others, batchable) if others else ""
            raise LearnerError(
                f"{field_text(path_name(path))} of a {split} batch is a list of texts, and batches hold numbers: leave "
                f"the field out, or encode it, in the dataset or in collate_fn{hint}",
                code="batch-dtype",
                split=split,
            )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(x, str | bytes) for x in value)


def refuse_keys(arrays: PyTree) -> None:
    """Raise `LearnerError` if an array has keys of `jax.random`, which NumPy has no dtype for."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        if isinstance(leaf, jax.Array) and is_key(leaf):
            raise LearnerError(
                f"{field_name(path)} holds keys of jax.random, which are not numbers: put jax.random.key_data(keys) "
                "into the data, and convert it back with jax.random.wrap_key_data in the step",
                code="batch-random-keys",
                field=field_name(path),
            ) from None


def refuse_masked(field: str, values: Any) -> None:
    """Raise `LearnerError` for a NumPy masked array with masked values: conversion would drop the mask."""
    if not isinstance(values, np.ma.MaskedArray) or values.dtype.names is not None:
        return
    if masked := int(np.ma.getmaskarray(values).sum()):
        raise LearnerError(
            f"{field} has masked values ({masked} of {values.size}), which would count like the "
            "others: fill them, as x.filled(value) does, or leave their rows out",
            code="data-masked-values",
            field=field,
        )


def refuse_wrapped(batch: PyTree, split: str) -> None:
    """Raise `LearnerError` for integers that would wrap on the device, where 64 bits become 32, and for finite floats
    that would become infinite.

    >>> refuse_wrapped({"label": np.array([1, 4294967196])}, "train")
    Traceback (most recent call last):
    learner.errors.LearnerError: 'label' of a train batch holds 4294967196 (int64), which becomes -100 in int32, ...
    """
    for name, array in named_leaves(batch).items():
        if is_narrowed(array.dtype):
            refuse = _refuse_infinite if array.dtype.kind == "f" else _refuse_wrapped
            refuse(name, np.asarray(array), split)


def is_narrowed(dtype: np.dtype) -> bool:
    """Return True for 64-bit integers and floats that JAX converts to 32 bits."""
    return dtype.kind in "iuf" and dtype.itemsize == 8 and jax.dtypes.canonicalize_dtype(dtype) != dtype


def _refuse_wrapped(name: str, array: np.ndarray, split: str) -> None:
    narrow = np.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
    if not array.size or (array.min() >= narrow.min and array.max() <= narrow.max):
        return
    value = array[(array < narrow.min) | (array > narrow.max)][0]
    raise LearnerError(
        f"{field_text(name)} of a {split} batch holds {value} ({array.dtype}), which becomes "
        f"{value.astype(narrow.dtype)} in {narrow.dtype}, the dtype that JAX computes with: give integers from "
        f"{narrow.min} to {narrow.max}, or set JAX's option jax_enable_x64",
        code="batch-integer-too-large",
        split=split,
    )


def _refuse_infinite(name: str, array: np.ndarray, split: str) -> None:
    narrow = np.finfo(jax.dtypes.canonicalize_dtype(array.dtype))
    if not array.size or (array.min() >= narrow.min and array.max() <= narrow.max):
        return  # the usual case, without temporary arrays; NaN compares as False
    beyond = array[np.isfinite(array) & (np.abs(array) > narrow.max)]
    with np.errstate(over="ignore"):
        beyond = beyond[np.isinf(beyond.astype(narrow.dtype))]  # values just above the largest one are rounded to it
    if beyond.size:
        raise LearnerError(
            f"{field_text(name)} of a {split} batch holds {beyond[0]} ({array.dtype}), which becomes infinite in "
            f"{narrow.dtype}, the dtype that JAX computes with: scale the field, give numbers from {narrow.min:.3g} to "
            f"{narrow.max:.3g}, or set JAX's option jax_enable_x64",
            code="batch-float-too-large",
            split=split,
        )


def _codes(array: np.ndarray) -> str:
    """Return a hint for an array of objects with texts, which NumPy makes of the texts and the categories of pandas."""
    has_texts = array.dtype == object and any(isinstance(x, str) for x in array.flat)
    return ", or for texts of pandas frame[name].astype('category').cat.codes" if has_texts else ""


def _yields(batch: PyTree, batchable: str) -> str:
    """Return a hint for a value that may not be a batch: an item, a number, a text."""
    leaves = jax.tree.leaves(batch)
    if leaves and all(np.ndim(as_array(leaf)) for leaf in leaves):
        return ""
    hint = _of_items(batchable) or (
        ". A loader yields batches: dicts (or other pytrees) of arrays [rows, ...]. Of a list of items "
        "DataLoaderBuilder().batch_size(32).build(items) makes them, of a generator function (or another iterable) "
        f"learner.data.stream(items).batch(32); {BATCHES_IN_CONFIG}"
    )
    if not isinstance(batch, dict) or not any(isinstance(value, list) for value in batch.values()):
        return hint
    return f"{hint}. Lists are read number by number: make arrays of them (Hugging Face: with_format('numpy'))"


def _of_items(batchable: str) -> str:
    """Return a hint for data of items whose method `batch` makes batches, or an empty text."""
    hint = f". If these are items, call .batch(n) on the {batchable}: with_batch_size does not apply to it"
    return hint if batchable else ""


def field_text(name: str) -> str:
    """Return the name of a field of a batch for a message."""
    return f"'{name}'" if name else "the array"


def field_name(path: tuple[Any, ...]) -> str:
    """Return the name of a leaf for messages: `image`, `meta/id`, or `the array` if it is the only one."""
    return jax.tree_util.keystr(path, simple=True, separator="/") or "the array"


def as_dicts(tree: PyTree) -> PyTree:
    """Return an item or a batch with dicts in place of other mappings, such as Hugging Face's `BatchEncoding`. Those
    that JAX knows as pytrees stay.

    >>> import collections
    >>> as_dicts([collections.UserDict(x=np.arange(2), y=collections.UserDict(z=1))])
    [{'x': array([0, 1]), 'y': {'z': 1}}]
    """
    if type(tree) is dict and {*map(type, tree.values())} == {np.ndarray}:
        return tree  # the usual batch, at no cost
    leaves, structure = jax.tree.flatten(tree)
    if not any(isinstance(leaf, Mapping) for leaf in leaves):
        return tree
    return jax.tree.unflatten(structure, [as_dicts(dict(x)) if isinstance(x, Mapping) else x for x in leaves])


def as_array(value: Any) -> Any:
    """Return a leaf of an item or batch for NumPy: tensors, images and lists of numbers as arrays.

    Numbers, texts, bytes and objects that NumPy cannot read are returned unchanged. PyTorch tensors may require a
    gradient, and may be on another device.

    >>> as_array([1, 2]), as_array(3), as_array("text")
    (array([1, 2]), 3, 'text')
    """
    if isinstance(value, np.ndarray | np.generic | int | float | complex | str | bytes | None):
        return value
    if callable(getattr(value, "detach", None)) and callable(getattr(value, "numpy", None)):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # which NumPy lacks
            return value.float().numpy().astype(jnp.bfloat16)
        return value.numpy()
    if is_array(value):
        return np.asarray(value)
    return value


def is_array(value: Any) -> bool:
    """Return True if NumPy can convert the value to an array, by a protocol or from a list of numbers."""
    if isinstance(value, list):
        return bool(value) and not isinstance(value[0], dict | str | bytes) and _regular(value)
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


def _regular(value: list[Any]) -> bool:
    try:
        return np.array(value).dtype.kind in "biufc"
    except (ValueError, TypeError, RuntimeError):
        return False


def digest_of(batch: Any) -> int | None:
    """Return a checksum of the numbers of a batch; None if an array holds objects, whose bytes are addresses."""
    batch = as_dicts(batch)
    refuse_keys(batch)
    parts = [np.ascontiguousarray(as_array(x)) for x in jax.tree.leaves(batch)]
    if any(x.dtype.hasobject for x in parts):
        return None
    return functools.reduce(lambda digest, x: zlib.crc32(x.tobytes(), digest), parts, 0)
