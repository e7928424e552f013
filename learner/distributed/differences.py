"""Texts about the processes of a run, and about the values in which they differ."""

import collections
import itertools
import json
from collections.abc import Sequence
from typing import Any

SHOWN, LONGEST = 6, 120  # differing positions to show, and characters of each
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
    flat = [_leaves(value) for value in values]
    paths = [path for path in dict.fromkeys(itertools.chain(*flat)) if len({leaves.get(path) for leaves in flat}) > 1]
    lines = []
    for path in paths[:SHOWN]:
        processes_with = collections.defaultdict(list)
        for index, leaves in enumerate(flat):
            processes_with[leaves.get(path, "missing")].append(index)
        values = "; ".join(
            f"{text[:LONGEST]} in {named_processes(processes)}" for text, processes in processes_with.items()
        )
        lines.append(f"{path} is {values}" if path else values)
    title = f"the processes of the run differ in {what}:"
    if paths == [""]:
        return f"{title} {lines[0]}"
    more = [f"and at {len(paths) - SHOWN} more places"] if len(paths) > SHOWN else []
    return "\n  ".join([title, *lines, *more])


def _leaves(value: Json, prefix: str = "") -> dict[str, str]:
    """Return the parts of a JSON value, and the lines of a text, as JSON by position."""
    if isinstance(value, str) and "\n" in value:
        value = {f"line {number}": line for number, line in enumerate(value.split("\n"), 1)}
    if not value or not isinstance(value, dict | list):
        return {prefix: json.dumps(value)}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        path: text
        for key, item in items
        for path, text in _leaves(item, f"{prefix}.{key}" if prefix else str(key)).items()
    }
