"""Texts about the processes of a run, and about the values in which they differ."""

import collections
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

SHOWN, LONGEST = 6, 120  # differing positions to show, and characters of each
COMMON = 40  # characters of a long text that are shown before the first difference
MISSING = object()
Json = Any


def named_processes(processes: Sequence[int]) -> str:
    """Return the names of processes as a text.

    >>> named_processes([0]), named_processes([0, 1, 4])
    ('process 0', 'processes 0, 1 and 4')
    """
    if len(processes) == 1:
        return f"process {processes[0]}"
    return f"processes {', '.join(map(str, processes[:-1]))} and {processes[-1]}"


def describe_difference(what: str, values: Sequence[Json]) -> str:
    """Describe the positions at which the values differ, with the values by process.

    >>> print(describe_difference("the config", [{"lr": 1, "seed": 0}, {"lr": 2, "seed": 0}, {"lr": 1, "seed": 0}]))
    the processes of the run differ in the config:
      lr is 1 in processes 0 and 2; 2 in process 1
    >>> print(describe_difference("the seed", [3, 4]))
    the processes of the run differ in the seed: 3 in process 0; 4 in process 1
    """
    differing = list(differing_parts(values))
    lines = []
    for path, texts in differing[:SHOWN]:
        processes_with = collections.defaultdict(list)
        for index, text in enumerate(texts):
            processes_with[text].append(index)
        excerpts = zip(_excerpts(list(processes_with)), processes_with.values(), strict=True)
        shown = "; ".join(f"{text} in {named_processes(processes)}" for text, processes in excerpts)
        lines.append(f"{path} is {shown}" if path else shown)
    title = f"the processes of the run differ in {what}:"
    if [path for path, _ in differing] == [""]:
        return f"{title} {lines[0]}"
    more = [f"and at {len(differing) - SHOWN} more places"] if len(differing) > SHOWN else []
    return "\n  ".join([title, *lines, *more])


def _excerpts(texts: Sequence[str]) -> list[str]:
    """Return the parts of texts that contain the first difference between them."""
    if all(len(text) <= LONGEST for text in texts):
        return list(texts)
    first = next(i for i, characters in enumerate(itertools.zip_longest(*texts)) if len(set(characters)) > 1)
    begin = max(0, first - COMMON)
    return [("…" if begin else "") + text[begin : begin + LONGEST] for text in texts]


def differing_parts(values: Sequence[Json], path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the smallest parts in which JSON values differ: their positions, and the JSON of each value there.

    >>> list(differing_parts([{"lr": 1, "sizes": [8, 8]}, {"lr": 1, "sizes": [8, 4]}]))
    [('sizes.1', ['8', '4'])]
    """
    texts = ["missing" if value is MISSING else json.dumps(value) for value in values]
    if len(set(texts)) == 1:
        return
    parts = [part for value in values if (part := _parts(value)) is not None]
    if len(parts) < len(values):
        yield path, texts
        return
    for key in dict.fromkeys(itertools.chain(*parts)):
        yield from differing_parts([part.get(key, MISSING) for part in parts], f"{path}.{key}" if path else str(key))


def _parts(value: Json) -> dict[Any, Json] | None:
    """Return the parts of a JSON object or array, or the lines of a text, by position; None if it has no parts."""
    if isinstance(value, str) and "\n" in value:
        return {f"line {number}": line for number, line in enumerate(value.split("\n"), 1)}
    if isinstance(value, list):
        return dict(enumerate(value))
    return value if isinstance(value, dict) else None
