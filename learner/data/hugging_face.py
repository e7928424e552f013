"""The position in a streamed Hugging Face dataset: an `IterableDataset`, recognized without importing it."""

from collections.abc import Iterator
from typing import Any

TABLES = ("arrow", "pandas", "polars")  # formats under which a batched map may skip a batch


def is_stream(data: Any) -> bool:
    """Return True for a streamed dataset of Hugging Face."""
    return type(data).__module__ == "datasets.iterable_dataset"


def restart(data: Any) -> None:
    """Make the next iterator of a streamed dataset begin at its start; do nothing for other data.

    After a state was loaded, every later iterator of the same epoch would begin at it.
    """
    if is_stream(data) and getattr(data, "_starting_state_dict", None) is not None:
        data.load_state_dict(None)


def flaw_of(data: Any) -> str:
    """Return the reason why the `state_dict` of a streamed dataset does not restore the same rows, or ""."""
    if not hasattr(data, "_ex_iterable"):
        return "" if hasattr(data, "load_state_dict") else ": this version of datasets has no load_state_dict"
    parts = list(_parts(data._ex_iterable))
    if any(getattr(part, "buffer_size", 1) > 1 for part in parts):
        return (
            ": the rows in its shuffle buffer are not in its state_dict (shuffle(buffer_size=1) only shuffles the "
            "shards, and can be put back)"
        )
    tables = getattr(getattr(data, "_formatting", None), "format_type", None) in TABLES
    if tables and any(getattr(part, "batched", False) for part in parts):
        return ": a batched map under a format of tables may skip a batch"
    return ""


def _parts(examples: Any) -> Iterator[Any]:
    yield examples
    inner = getattr(examples, "ex_iterable", None)
    for each in [*([] if inner is None else [inner]), *(getattr(examples, "ex_iterables", None) or ())]:
        yield from _parts(each)
