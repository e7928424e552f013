"""The overview of a run as text: the arrays of its model as a tree, and facts about its steps."""

from learner.events import Overview
from learner.renderers.tree import TreeRow, folded
from learner.util.text import aligned, count, fitted_rows, printable, size, truncate

COLUMNS = ("shape", "dtype", "parameters", "bytes", "share", "kind")
GIVEN_UP = ("dtype", "share", "shape", "kind", "bytes")
"""Columns that narrow terminals omit, the first ones first."""
UNITS = " kMGTPE"


def tree_table(overview: Overview, width: int | None = None) -> list[list[str]]:
    """Return a row of titles, then a row of texts for each array of the model, each group of arrays, and the total. All
    rows have the same length.

    Args:
      overview: the overview of the run.
      width: the width of the terminal in characters; None for no limit.
    """
    rows = folded(overview.arrays, overview.depth)
    total = max(1, sum(array.bytes for array in overview.arrays))
    cells = [_cells(row, total) for row in rows]
    names = ["  " * row.level + printable(row.name) for row in rows]
    title = printable(overview.model)
    columns = {
        name: [name if name != "kind" else "", *(cell[name] for cell in cells)]
        for name in COLUMNS
        if any(cell[name] for cell in cells)
    }
    return fitted_rows([title, *names], columns, width, GIVEN_UP, lambda name, room: truncate(name, room, ".."))


def facts(overview: Overview) -> list[tuple[str, str]]:
    """Return further facts with their labels."""
    o = overview
    pairs = [("optimizer", f"{o.optimizer}, {size(o.memory.get('optimizer', 0))}") if o.optimizer else None]
    pairs += [("devices", o.strategy), ("batch", _batch(o)), ("length", _length(o)), ("FLOPs", _flops(o))]
    pairs.append(("memory", _memory(o)))
    if o.peak is not None and o.temporaries is not None:
        pairs.append(("", needs(o.peak, o.temporaries)))
    return [(what, printable(text)) for what, text in filter(None, pairs)]


def needs(peak: int, temporaries: int) -> str:
    """Return a text about the memory that a compiled dispatch needs on each device.

    >>> needs(2_500_000, 1_300_000)
    'a dispatch needs 2.5 MB on each device, 1.3 MB of it while it runs only (activations, gradients)'
    """
    inside = f"{size(temporaries)} of it while it runs only (activations, gradients)"
    return f"a dispatch needs {size(peak)} on each device, {inside}"


def overview_lines(overview: Overview) -> list[str]:
    """Return the tree and the facts as lines without control characters.

    >>> from learner.events import ArrayInfo
    >>> kernel = ArrayInfo("out.kernel", (64, 10), "float32", "params", True, 2560)
    >>> bias = ArrayInfo("out.bias", (10,), "float32", "params", True, 40)
    >>> memory = {"parameters": 2600, "gradients": 2600, "optimizer": 5204, "data": 369_152}
    >>> where = {"strategy": "one device: cpu (cpu:0)", "devices": 1, "rows": 32, "spread": 1, "accumulate": 1}
    >>> length = {"batches": 45, "steps_per_epoch": 45, "num_epochs": 20, "steps": 900}
    >>> work = {"flops": 92_000, "flops_exact": True, "memory": memory}
    >>> seen = Overview(0.0, "Linear (flax.nnx)", (kernel, bias), "adam", **where, **length, **work)
    >>> print("\\n".join(overview_lines(seen)))
    Linear (flax.nnx)     shape    dtype  parameters     bytes  share
    out                                          650    2.6 kB  100 %
      kernel           [64, 10]  float32         640    2.6 kB   98 %
      bias                 [10]  float32          10  40 bytes  1.5 %
    total                                        650    2.6 kB  100 %
    optimizer  adam, 5.2 kB
    devices    one device: cpu (cpu:0)
    batch      32 rows, one batch a step
    length     45 batches = 45 steps an epoch; 20 epochs = 900 steps
    FLOPs      92.0 k a step, 2.9 k a row (forward, backward, update; of the traced step)
    memory     379.6 kB on each device: parameters 2.6 kB, gradients 2.6 kB, optimizer 5.2 kB, data 369.2 kB
    """
    pairs = facts(overview)
    width = max(len(what) for what, _ in pairs)
    return [*aligned(tree_table(overview)), *(f"{what.ljust(width)}  {text}" for what, text in pairs)]


def _cells(row: TreeRow, total: int) -> dict[str, str]:
    share = 100 * row.bytes / total
    return {
        "shape": "" if row.shape is None else str(list(row.shape)),
        "dtype": printable(row.dtype),
        "parameters": f"{row.parameters:,}" if row.parameters else "-",
        "bytes": size(row.bytes),
        "share": f"{share:.0f} %" if share >= 9.95 else f"{share:.1f} %" if share >= 0.05 else "<0.1 %",
        "kind": printable(row.kind) if row.arrays == 1 else f"{printable(row.kind)} {row.arrays} arrays".strip(),
    }


def _batch(o: Overview) -> str:
    where = f" ({o.rows // o.spread} on each of {o.spread} devices)" if o.spread > 1 else ""
    if o.spread == 1 and o.devices > 1:
        where = f" (all on each of {o.devices} devices)"
    parts = "" if o.split == 1 else f" in {o.split} parts"
    if o.accumulate == 1:
        return f"{count(o.rows, 'row')}{where}, one batch a step{parts}"
    rows = count(o.rows * o.accumulate, "row")
    return f"{count(o.rows, 'row')}{where} x {o.accumulate} batches{parts} = {rows} a step"


def _length(o: Overview) -> str:
    parts = []
    if o.batches is not None and o.steps_per_epoch is not None:
        parts.append(f"{count(o.batches, 'batch')} = {count(o.steps_per_epoch, 'step')} an epoch")
    if o.num_epochs is not None and o.steps_per_epoch is not None:
        parts.append(f"{count(o.num_epochs, 'epoch')} = {count(o.num_epochs * o.steps_per_epoch, 'step')}")
    elif o.num_epochs is not None:
        parts.append(f"{count(o.num_epochs, 'epoch')} of unknown length")
    if o.steps is not None and (o.num_epochs is None or o.steps != o.num_epochs * (o.steps_per_epoch or 0)):
        parts.append(f"ends after {count(o.steps, 'step')}")
    return "; ".join(parts) or "no fixed length"


def _flops(o: Overview) -> str:
    cell = o.flops / max(1, o.rows * o.accumulate)
    least = "" if o.flops_exact else "at least "
    return f"{least}{scaled(o.flops)} a step, {scaled(cell)} a row (forward, backward, update; of the traced step)"


def _memory(o: Overview) -> str:
    parts = ", ".join(f"{what} {size(number)}" for what, number in o.memory.items())
    room = "" if o.room is None else f" of {size(o.room)}"
    return f"{size(sum(o.memory.values()))}{room} on each device: {parts}"


def scaled(number: float) -> str:
    """Format a number with a unit prefix.

    >>> [scaled(number) for number in (12, 12_345, 16_300_000, 4.2e15)]
    ['12', '12.3 k', '16.3 M', '4.2 P']
    """
    unit = 0
    while number >= 999.95 and unit < len(UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.1f} {UNITS[unit]}" if unit else f"{number:.0f}"
