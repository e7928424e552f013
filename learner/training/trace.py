"""Device times from a trace of `jax.profiler`: in total and by kind of operation."""

import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Span = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Operations:
    """Operations of one kind, such as all matrix multiplications.

    Attributes:
      name: XLA's name of the kind: `dot`, `convolution`, `fusion`, ...
      seconds: the time on one device (the mean over several), without that of nested operations.
      count: the number of operations on all devices.
    """

    name: str
    seconds: float
    count: int


@dataclasses.dataclass(frozen=True)
class Trace:
    """The work of the devices while they were traced.

    Attributes:
      busy: seconds in which a device computed, the mean over the devices that did; `None` if the trace has no device.
      operations: the operations by kind, the longest first.
    """

    busy: float | None
    operations: tuple[Operations, ...] = ()


def read_trace(directory: Path) -> Trace:
    """Read the newest trace below a directory. Without a trace the result is empty."""
    import jax

    files = sorted(directory.glob("plugins/profile/*/*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    if not files:
        return Trace(None)
    lines: dict[str, list[list[tuple[float, float, str]]]] = {}
    with warnings.catch_warnings():
        # Python 3.12 and later warn about the types that read a trace. As an error, this would end the process.
        warnings.simplefilter("ignore", DeprecationWarning)
        for plane in jax.profiler.ProfileData.from_file(str(files[-1])).planes:
            for line in plane.lines:
                for device, events in _operations_by_device(plane.name, line.events).items():
                    lines.setdefault(device, []).append(events)
    return summed(lines)


def summed(devices: dict[str, list[list[tuple[float, float, str]]]]) -> Trace:
    """Combine the operations of all devices.

    Args:
      devices: the lines (threads or streams) of each device. A line lists its operations, each as the begin and end in
        nanoseconds and the name. Operations of a line may be nested, but do not overlap otherwise.

    >>> trace = summed({"0": [[(0, 8e9, "while.1"), (1e9, 3e9, "dot.2"), (4e9, 5e9, "dot.7")], [(6e9, 9e9, "copy")]]})
    >>> trace.busy, [(kind.name, kind.seconds) for kind in trace.operations]
    (9.0, [('while', 5.0), ('dot', 3.0), ('copy', 3.0)])
    """
    if not devices:
        return Trace(None)
    busy = sum(_covered((begin, end) for line in lines for begin, end, _ in line) for lines in devices.values())
    kinds: dict[str, list[float]] = {}
    for lines in devices.values():
        for line in lines:
            for name, seconds in _exclusive_times(line):
                kinds.setdefault(name.split(".")[0], []).append(seconds)
    scale = 1e-9 / len(devices)
    operations = [Operations(name, sum(spans) * scale, len(spans)) for name, spans in kinds.items()]
    return Trace(busy * scale, tuple(sorted(operations, key=lambda kind: -kind.seconds)))


def _operations_by_device(plane: str, events: Iterable[Any]) -> dict[str, list[tuple[float, float, str]]]:
    """Return the operations in the events of a line, by device. On a CPU, the name of a thread gives the device."""
    by_device: dict[str, list[tuple[float, float, str]]] = {}
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats:
            device = f"{plane} {stats.get('device_ordinal', '')}"
            span = event.start_ns, event.start_ns + event.duration_ns
            by_device.setdefault(device, []).append((*span, str(stats["hlo_op"])))
    return by_device


def _covered(spans: Iterable[Span]) -> float:
    """Return the time that at least one of the spans covers."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _exclusive_times(line: Sequence[tuple[float, float, str]]) -> list[tuple[str, float]]:
    """Return each operation with its time, without the operations directly inside it."""
    times: list[list[Any]] = []
    inside: list[tuple[float, int]] = []  # the open operations: their ends, and their indices in `times`
    for begin, end, name in sorted(line, key=lambda event: (event[0], -event[1])):
        while inside and inside[-1][0] <= begin:
            inside.pop()
        if inside:
            times[inside[-1][1]][1] -= end - begin
        inside.append((end, len(times)))
        times.append([name, end - begin])
    return [(name, max(0.0, seconds)) for name, seconds in times]
