"""Checks of the arguments of a mixture. One error lists all problems."""

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import jax
import numpy as np

from learner.data.array_dataset import ArrayDataset
from learner.data.batch_arrays import as_array, field_name, refuse_keys
from learner.data.dataset import Dataset, read_item, view
from learner.data.randomness import generators_of
from learner.data.sources.foreign import adapt
from learner.errors import LearnerError, Problem, near

Problems = list[str]
Kind = tuple[str, tuple[int | None, ...]]  # dtype and shape


def check_sources(sources: Any, problems: Problems) -> tuple[list[str], dict[str, Any]]:
    """Return the names of all sources, and the readable ones: datasets, or streams, of which no item is read."""
    if not isinstance(sources, Mapping | list | tuple):
        problems.append(
            Problem(
                f"the sources of a mixture are a {type(sources).__name__}: give a dict of datasets, or a list",
                code="data-mixture-sources-type",
            )
        )
        return [], {}
    named = sources if isinstance(sources, Mapping) else {str(number): each for number, each in enumerate(sources)}
    if not named:
        problems.append(
            Problem("a mixture has no sources: give a dict of datasets, or a list", code="data-mixture-empty")
        )
    datasets = {}
    for name, source in named.items():
        try:
            datasets[name] = _checked(name, source)
        except LearnerError as error:
            problems.append(Problem(f"source {name!r}: {error}", code=error.code, **error.fields))
    streams = [each for each in datasets.values() if not isinstance(each, Dataset)]
    if len({id(stream) for stream in streams}) < len(streams):
        problems.append(
            Problem(
                "two sources of a mixture are the same stream, which has one position: create it twice",
                code="data-mixture-source-twice",
            )
        )
    return list(map(str, named)), datasets


def _checked(name: Any, source: Any) -> Any:
    """Return a source as a dataset, or a stream unchanged: an iterable of items, or a function that returns one."""
    if not isinstance(name, str) or not name:
        raise LearnerError("the name of a source needs to be a text", code="data-mixture-name-type")
    source = adapt(source)
    indexed = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    if indexed or not (isinstance(source, Iterable) or callable(source)) or isinstance(source, str | bytes):
        return view(source)
    batched = isinstance(getattr(source, "batch_size", None), int)
    if isinstance(source, Iterator) or batched:
        reason = "has batches: pass its dataset" if batched else "can be read only once"
        raise LearnerError(
            f"a {type(source).__name__} {reason}; it needs data with a length and an index, an iterable of items "
            "that can be read again, or a function that returns one",
            code="data-mixture-stream",
            source=name,
        )
    if generators_of(source):
        raise LearnerError(
            f"the {type(source).__name__} shuffles with its own random generator, whose state a mixture cannot "
            "restore: shuffle by set_epoch(epoch), or pass data with a length and an index",
            code="data-mixture-stream-random",
            source=name,
        )
    return source


def check_weights(weights: Any, names: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of weights for the sources of these names."""
    given = _by_source(weights, names)
    if given is None:
        yield Problem(
            f"the weights of a mixture are {weights!r}: give a dict of numbers by source, or a list of them",
            code="data-mixture-weights-type",
        )
        return
    if not isinstance(weights, Mapping) and len(weights) != len(names):
        yield Problem(
            f"a mixture of {len(names)} sources has {len(weights)} weights: give one for each source",
            code="data-mixture-weights-count",
            count=len(weights),
        )
    for name in [name for name in given if name not in names]:
        yield Problem(
            f"the mixture has a weight for {name!r}, which is not a source: {near(name, names)}",
            code="data-mixture-weight-unknown",
            source=name,
        )
    missing = [name for name in names if name not in given]
    for name in missing if isinstance(weights, Mapping) else ():  # a list has the wrong length
        yield Problem(
            f"the mixture has no weight for the source {name!r}: give each a number, 0 to leave one out",
            code="data-mixture-weight-missing",
            source=name,
        )
    wrong = {name: weight for name, weight in given.items() if not _is_weight(weight)}
    for name, weight in wrong.items():
        yield Problem(
            f"the weight of the source {name!r} is {weight!r}: give a finite number, 0 or more",
            code="data-mixture-weight-value",
            source=name,
        )
    if given and not wrong and not any(given.values()):
        yield Problem("the weights of a mixture are all 0: give a number above 0", code="data-mixture-weights-zero")


def fractions_of(weights: Any, names: Sequence[str]) -> list[Fraction]:
    """Return checked weights in the order of `names`, as fractions: rounding in sums of floats would decide on rows."""
    given = _by_source(weights, names)
    assert given is not None
    ordered = [given[name] for name in names]
    return [Fraction(weight.item() if isinstance(weight, np.generic) else weight) for weight in ordered]


def _by_source(weights: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Return the weights by source, or None if they are neither a mapping nor a list."""
    if isinstance(weights, Mapping):
        return {str(name): weight for name, weight in weights.items()}
    is_list = isinstance(weights, list | tuple) or (isinstance(weights, np.ndarray) and weights.ndim == 1)
    return dict(zip(names, weights, strict=False)) if is_list else None


def _is_weight(weight: Any) -> bool:
    real = isinstance(weight, numbers.Real) and not isinstance(weight, bool | np.bool_)
    return real and math.isfinite(weight) and weight >= 0


def first_items(sources: Mapping[str, Dataset]) -> dict[str, Any]:
    """Return the first item of each source."""
    items = {}
    for name, source in sources.items():
        try:
            items[name] = read_item(source, 0, 1)
        except Exception as error:
            error.add_note(f"while reading item 0 of the source {name!r} of a mixture")
            raise
    return items


def check_fields(sources: Mapping[str, Any], items: Mapping[str, Any]) -> Iterator[Problem]:
    """Compare the first item of each source with that of the first source, and yield the problems.

    The lengths of first axes differ between texts, so they are compared only between arrays in memory.
    """
    kinds = [(name, *_fields(items[name], isinstance(source, ArrayDataset))) for name, source in sources.items()]
    for name, fields, structure in kinds[1:]:
        first, expected, other = kinds[0]
        differing = [field for field in {**expected, **fields} if not _agree(expected.get(field), fields.get(field))]
        for field in differing:
            yield Problem(
                f"the sources of a mixture need equal fields; {field} is {_text(expected.get(field))} in {first!r} "
                f"and {_text(fields.get(field))} in {name!r}",
                code="data-mixture-fields-differ",
                source=name,
                field=field,
            )
        if not differing and structure != other:
            yield Problem(
                f"the sources of a mixture need items of one structure; it is {other} in {first!r} and {structure} "
                f"in {name!r}",
                code="data-mixture-structures-differ",
                source=name,
            )


def check_source_field(field: Any, items: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each source whose items are not dicts without the field."""
    if not isinstance(field, str) or not field:
        yield Problem(
            f"source_field is {field!r}: give the name of a new field, such as 'source'",
            code="data-mixture-source-field-type",
        )
        return
    for name, item in items.items():
        if not isinstance(item, Mapping) or field in item:
            reason = f"have a field {field!r} already" if isinstance(item, Mapping) else "are not dicts"
            yield Problem(
                f"source_field is {field!r}, and the items of the source {name!r} {reason}: give another name, or "
                "map the items",
                code="data-mixture-source-field-taken",
                source=name,
                field=field,
            )


def _fields(item: Any, in_memory: bool) -> tuple[dict[str, Kind], Any]:
    """Return dtype and shape by field, and the structure of an item. The length of an open axis is None."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(item, is_leaf=lambda value: isinstance(value, list))
    refuse_keys(item)
    fields = {}
    for path, leaf in leaves:
        array = np.asarray(as_array(leaf))
        dtype = {"U": "text", "S": "bytes", "O": "object"}.get(array.dtype.kind, str(array.dtype))
        fields[field_name(path)] = dtype, array.shape if in_memory else (None, *array.shape[1:])[: array.ndim]
    return fields, structure


def _agree(a: Kind | None, b: Kind | None) -> bool:
    if a is None or b is None:
        return False
    pairs = zip(a[1], b[1], strict=False)
    return a[0] == b[0] and len(a[1]) == len(b[1]) and all(m == n or m is None or n is None for m, n in pairs)


def _text(kind: Kind | None) -> str:
    if kind is None:
        return "not there"
    return f"{kind[0]} [{', '.join('?' if length is None else str(length) for length in kind[1])}]"
