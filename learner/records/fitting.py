"""Matching of a file's arrays to a model's, and reports of what does not fit."""

import dataclasses
import difflib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from learner.errors import LearnerError, near, one_error
from learner.records.file_dtypes import cast, cast_problem
from learner.records.leaves import Leaves
from learner.records.pytorch import as_flax, refuse_unknown_layers
from learner.records.stored import Stored, dtype_name
from learner.records.torch_layers import Part
from learner.util.text import count, printable
from learner.util.trees import is_key, key_impl

Rename = Sequence[tuple[str, str]]
LAYOUTS = (None, "torch")
MOST_ROWS = 1000  # lines of an error, whose length depends on untrusted files
MOST_HINTS = 20


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of `load_model`.

    Attributes:
      source: the file, its format and precision.
      loaded: the paths of the model's arrays that were loaded.
      renamed: the path in the file, by the model's path, of loaded arrays for which these differ.
      transformed: the change of axes, by the model's path, of loaded arrays with other axes (`layout="torch"`).
      left: the reasons why other arrays of the model were not loaded, by path.
      unused: dtype and shape, by path, of the file's arrays that were not used.
    """

    source: str
    loaded: tuple[str, ...]
    renamed: Mapping[str, str]
    left: Mapping[str, str]
    unused: Mapping[str, str]
    transformed: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if every array was loaded and every array of the file was used."""
        return not self.left and not self.unused

    def __str__(self) -> str:
        total = count(len(self.loaded) + len(self.left), "array")
        unused = f"; {count(len(self.unused), 'array')} of it unused" if self.unused else ""
        lines = [f"loaded {len(self.loaded)} of {total} from {self.source}{unused}"]
        lines += [f"  renamed: {old} -> {new}{self._change(new)}" for new, old in self.renamed.items()]
        same = [path for path in self.transformed if path not in self.renamed]
        lines += [f"  transformed: {path}{self._change(path)}" for path in same]
        lines += [f"  not loaded: {path}: {why}" for path, why in self.left.items()]
        lines += [f"  unused: {path}: {what}" for path, what in self.unused.items()]
        return "\n".join(map(printable, _cut(lines)))

    def _change(self, path: str) -> str:
        return f" ({self.transformed[path]})" if path in self.transformed else ""


def fitted(
    arrays: Mapping[str, Stored],
    leaves: Leaves,
    model: Any,
    source: str,
    *,
    foreign: bool,
    rename: Rename = (),
    strict: bool = True,
    layout: str | None = None,
    report: Callable[[LoadReport], Any] | None = None,
) -> Any:
    """Return a model with the arrays of a file; see `load_model`.

    Args:
      arrays: the arrays of the file, by path.
      leaves: the arrays of the model.
      model: the model.
      source: the description of the file, for messages.
      foreign: True if another program wrote the file, which has no random keys then.
    """
    if layout not in LAYOUTS:
        raise LearnerError(
            f"layout is {layout!r}; it needs 'torch', or None for a file that learner wrote",
            code="record-layout-unknown",
            layout=layout,
        )
    if not isinstance(strict, bool):
        raise LearnerError(f"strict is {strict!r}; it needs True or False", code="record-strict-type")
    names, _ = rename_paths({path: path for path in arrays}, rename, source)
    parts = {name: Part(arrays[path], path) for name, path in origins_of(names, source).items()}
    if layout == "torch":
        refuse_unknown_layers(model)
        parts = as_flax(parts, leaves.arrays, model)
    new, left = _match(parts, leaves, foreign)
    others = [part for path, part in parts.items() if path not in leaves.arrays]
    unused = {part.origin: _described(part.stored) + part.problem for part in others}
    moved = {path: parts[path].origin for path in new if parts[path].origin != path}
    transformed = {path: parts[path].change for path in new if parts[path].change}
    result = LoadReport(source, tuple(new), moved, left, unused, transformed)
    if not new or (strict and not result.complete):
        raise LearnerError(_differences(result, leaves, partly=bool(new)), code="record-model-differs")
    _refuse_shapes(left, leaves)
    if report is not None:
        report(result)
    elif not result.complete:
        logging.getLogger("learner.records").warning("%s", result)
    return leaves.build(new)


def refuse_malformed(rules: Any) -> None:
    """Raise `LearnerError` unless these are rules of `rename`."""
    for rule in rules if isinstance(rules, list | tuple) else [rules]:
        try:
            if not isinstance(rule, list | tuple):
                raise TypeError("it is not a pair")
            pattern, replacement = rule
            re.sub(pattern, replacement, "")
        except (TypeError, ValueError, IndexError, re.error) as error:
            raise _malformed(rule, error) from None


def _malformed(rule: Any, error: Exception) -> LearnerError:
    return LearnerError(
        f"rename has {rule!r}, which is not a rule ({error}); it needs pairs of a regular expression and what "
        'takes its place: (r"^encoder\\.", "backbone.")',
        code="record-rename-malformed",
    )


def rename_paths(paths: Mapping[str, str], rules: Rename, source: str) -> tuple[dict[str, str], list[list[str]]]:
    """Return the paths after all rules, by the same keys, and for each rule the keys of the paths that it matches.

    >>> rename_paths({"a": "encoder.w", "b": "head.w"}, [("^encoder", "backbone")], "model.npz")
    ({'a': 'backbone.w', 'b': 'head.w'}, [['a']])

    Raises:
      LearnerError: a rule is malformed, or matches no path of `source`.
    """
    names, matched, problems = dict(paths), list[list[str]](), list[str]()
    for rule in rules:
        try:
            pattern, replacement = rule
            changed = {path: re.sub(pattern, replacement, name) for path, name in names.items()}
            matched.append([path for path, name in names.items() if re.search(pattern, name)])
        except (TypeError, ValueError, IndexError, re.error) as error:
            raise _malformed(rule, error) from None
        if not matched[-1]:
            near_names = near(re.sub(r"[\\^$]", "", pattern), list(names.values())[:MOST_ROWS])
            problems.append(f"the rule {rule!r} of rename matches no path of {source}; {near_names}")
        names = changed
    if problems:
        raise one_error([printable(text) for text in problems], "rename is wrong", code="record-rename-malformed")
    return names, matched


def origins_of(names: Mapping[str, str], source: str) -> dict[str, str]:
    """Return the paths of `source` by their new names. Raise if two have the same name."""
    origins: dict[str, str] = {}
    for path, name in names.items():
        if name in origins:
            raise LearnerError(
                printable(f"rename makes {name!r} of both {origins[name]!r} and {path!r} of {source}"),
                code="record-rename-collides",
                name=name,
                path=path,
            )
        origins[name] = path
    return origins


def _match(parts: Mapping[str, Part], leaves: Leaves, foreign: bool) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the model's new arrays, and the reason for each array that is not loaded. Files of other libraries have
    no random streams.
    """
    new, left = {}, {}
    for path, leaf in leaves.arrays.items():
        part = parts.get(path)
        if part is None:
            if not (foreign and leaves.library == "flax.nnx" and _is_stream(path, leaf)):
                left[path] = f"not in the file, {dtype_name(leaf)}{list(leaf.shape)} in the model"
        elif (why := _why_not(part.stored, leaf)) is not None:
            left[path] = (
                f"{_described(part.stored)} in the file, {dtype_name(leaf)}{list(leaf.shape)} in the model{why}"
            )
        else:
            new[path] = _placed(part.stored, leaf)
    return new, left


def _is_stream(path: str, leaf: Any) -> bool:
    """Return True for a part of nnx's random streams: a key, or the counter beside one."""
    return is_key(leaf) or (path.endswith(".count") and leaf.dtype == np.uint32)


def _why_not(stored: Stored, leaf: Any) -> str | None:
    """Return the reason why an array does not fit, empty if dtype and shape show it, or None if it fits."""
    if stored.shape != tuple(leaf.shape) or stored.is_key != is_key(leaf):
        return ""
    if stored.is_key:
        return None if stored.dtype == dtype_name(leaf) else ""
    problem = cast_problem(stored, leaf.dtype)
    return None if problem is None else f": {problem}"


def _placed(stored: Stored, leaf: Any) -> Any:
    """Return the array with the dtype, the array type and the placement on devices of the model's array."""
    if stored.is_key:
        keys = jax.random.wrap_key_data(jnp.asarray(stored.data), impl=key_impl(leaf))
        return _like(keys, leaf)
    data = cast(stored.data, leaf.dtype)
    if isinstance(leaf, np.generic):
        return data[()]
    return np.array(data) if isinstance(leaf, np.ndarray) else _like(data, leaf)


def _like(array: Any, leaf: Any) -> Any:
    sharding = getattr(leaf, "sharding", None)
    if sharding is not None and (isinstance(leaf, jax.ShapeDtypeStruct) or leaf.committed):
        return jax.device_put(array, sharding)
    return jnp.asarray(array)


def _described(stored: Stored) -> str:
    return f"{stored.dtype}{list(stored.shape)}"


def _refuse_shapes(left: Mapping[str, str], leaves: Leaves) -> None:
    """Raise if arrays are missing for an abstract model, which needs all of them."""
    if absent := [path for path in left if isinstance(leaves.arrays[path], jax.ShapeDtypeStruct)]:
        raise LearnerError(
            f"{', '.join(absent[:MOST_HINTS])} of the model are shapes, and the file has nothing for them: "
            "give a model with arrays",
            code="record-model-only-shapes",
        )


def _differences(result: LoadReport, leaves: Leaves, partly: bool) -> str:
    """Return every path that differs, with the arrays of both sides."""
    known: list[str] = list(leaves.arrays)
    rows: list[str] = []
    unused = list(result.unused)[:MOST_ROWS]
    for path, why in result.left.items():
        close = _close(path, unused) if why.startswith("not in the file") and len(rows) < MOST_HINTS else ""
        rows.append(f"{path}: {why}{close}")
    for path, what in result.unused.items():
        close = _close(path, known) if len(rows) < 2 * MOST_HINTS and not result.left else ""
        rows.append(f"{path}: {what} in the file, not in the model{close}")
    if partly:
        title = f"{result.source} does not fit the model; {count(len(rows), 'array')} differ{'s' * (len(rows) == 1)}:"
        advice = "strict=False loads the others and leaves these as they are; rename= gives them other paths"
    else:
        title = f"nothing in {result.source} fits the model, by path, shape and dtype:"
        advice = "rename= gives the arrays of the file other paths; layout='torch' reads those of PyTorch"
    return "\n".join(map(printable, [*_cut([title, *(f"  {row}" for row in rows)]), advice]))


def _close(path: str, known: Sequence[str]) -> str:
    candidates = difflib.get_close_matches(path, known, n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, candidates))}?" if candidates else ""


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MOST_ROWS else [*lines[:MOST_ROWS], f"  and {len(lines) - MOST_ROWS} more"]
