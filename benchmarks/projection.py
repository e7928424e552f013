"""Formulas for the memory and the communication of a step on each device: `python -m benchmarks.projection`.

Prints the results for a transformer of a billion parameters, trained with Adam on 8, 64 and 1000 devices, without
measuring. `tests/test_scaling.py` compares the formulas with XLA's numbers for programs compiled for 2, 4 and 8
devices; `docs/scaling.md` explains them.
"""

import argparse
import dataclasses
from collections.abc import Sequence

BILLION = 1e9


@dataclasses.dataclass(frozen=True)
class Model:
    """The inputs of the formulas for a model and its batch; all sizes are bytes.

    Attributes:
      params: `P`, all parameters.
      split: `S`, parameters in arrays that the rules split.
      row: `a`, activations of one row that the forward pass keeps for the backward pass.
      undivided: the part of `row` that tensor parallelism does not split.
      added: `x`, activations of one row that tensor parallelism sums in a step.
      moments: parameter-sized arrays of the optimizer; 2 for Adam.
    """

    params: float
    split: float = 0
    row: float = 0
    undivided: float = 0
    added: float = 0
    moments: int = 2


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one step on one device, in bytes.

    Attributes:
      params, optimizer: kept between steps.
      gradients: largest at the end of the backward pass.
      activations: largest at its start.
      gathered: parameters gathered for the step.
      sent: to the other devices.
    """

    params: float
    optimizer: float
    gradients: float
    activations: float
    gathered: float = 0
    sent: float = 0

    @property
    def state(self) -> float:
        """Return the bytes kept between steps."""
        return self.params + self.optimizer

    @property
    def most(self) -> float:
        """Return the upper bound of the memory in use."""
        return self.state + self.gradients + self.activations + self.gathered

    @property
    def least(self) -> float:
        """Return the lower bound of the peak, if no gradient exists while all activations do."""
        return self.state + self.gathered + max(self.gradients, self.activations)


def all_reduce(size: float, n: int) -> float:
    """Return the bytes that each of `n` devices sends in a ring to get the sum of arrays of `size` bytes on all
    devices.

    >>> all_reduce(800, 8)
    1400.0
    """
    return 2 * all_gather(size, n)


def all_gather(size: float, n: int) -> float:
    """Return the bytes that each device sends to get all `size` bytes on all devices; a reduce-scatter sends as many.

    >>> all_gather(800, 8)
    700.0
    """
    return size * (n - 1) / n


def single(model: Model, rows: int) -> Cost:
    """Return the cost for `SingleDevice`, with a batch of `rows` rows."""
    return Cost(model.params, model.moments * model.params, model.params, rows * model.row)


def replicated(model: Model, rows: int, n: int) -> Cost:
    """Return the cost for `Replicated`, and for `Sharded` without rules: the gradients are all-reduced."""
    return dataclasses.replace(single(model, rows), activations=rows * model.row / n, sent=all_reduce(model.params, n))


def fsdp(model: Model, rows: int, n: int, scatters: bool = False) -> Cost:
    """Return the cost for `Sharded` with `fsdp()`: split arrays are gathered once per step and kept for the backward
    pass.

    Args:
      scatters: True if XLA sends each device only its part of the summed gradients (reduce-scatter); on a CPU it sums
        whole gradients and slices.
    """
    kept = _kept(model, n)
    replicated = model.params - model.split
    if scatters:
        gradients, sent = kept, 2 * all_gather(model.split, n) + all_reduce(replicated, n)
    else:
        gradients, sent = model.params, all_gather(model.split, n) + all_reduce(model.params, n)
    return Cost(kept, model.moments * kept, gradients, rows * model.row / n, model.split, sent)


def tensor(model: Model, rows: int, n: int, m: int) -> Cost:
    """Return the cost for `Sharded` with rules that split arrays over an axis `model` of `m` devices, and rows over the
    other `n / m`.
    """
    kept, groups = _kept(model, m), n // m
    row = model.undivided + (model.row - model.undivided) / m
    sent = all_reduce(rows / groups * model.added, m) + all_reduce(kept, groups)
    return Cost(kept, model.moments * kept, kept, rows / groups * row, sent=sent)


def _kept(model: Model, n: int) -> float:
    return model.params - model.split + model.split / n


@dataclasses.dataclass(frozen=True)
class Transformer:
    """The transformer of `benchmarks.workloads`, in numbers.

    Attributes:
      width, blocks, heads: its sizes.
      length: tokens of a row.
      kinds: kinds of tokens.
      bytes: of a number.
    """

    width: int
    blocks: int
    length: int
    kinds: int
    heads: int = 4
    bytes: int = 4

    @property
    def parameters(self) -> int:
        """Return the number of parameters: for each block four matrices of attention, two of the dense layer, their
        biases and two norms; besides these the embeddings, the last norm and the head.

        >>> Transformer(128, 4, 128, 96).parameters
        834400
        """
        d = self.width
        ends = (self.kinds + self.length) * d + 2 * d + d * self.kinds + self.kinds
        return self.blocks * (12 * d * d + 13 * d) + ends

    @property
    def kernels(self) -> int:
        """Return the parameters that the rules of tensor parallelism split: the matrices of the blocks, and their
        biases.
        """
        return self.blocks * (12 * self.width**2 + 7 * self.width)

    @property
    def activations(self) -> int:
        """Return the numbers kept for one token, by XLA on a CPU without `remat`: 24 widths and four rows of attention
        per head in a block, and twice the logits.
        """
        block = 24 * self.width + 4 * self.heads * self.length
        return self.blocks * block + 5 * self.width + 2 * self.kinds

    @property
    def undivided(self) -> int:
        """Return the activations that every device keeps under tensor parallelism: norms and sums of a block, and
        activations outside blocks.
        """
        return self.blocks * 8 * self.width + 5 * self.width + 2 * self.kinds

    @property
    def added(self) -> int:
        """Return the numbers of one token that tensor parallelism sums: in each block once after attention and once
        after the dense layer; in the backward pass once before the dense layer, and for queries, keys and values each.
        """
        return self.blocks * 6 * self.width

    def model(self, split: float) -> Model:
        """Return the inputs of the formulas; `split` is the number of parameters that are split."""
        of_row = (self.length * self.bytes * count for count in (self.activations, self.undivided, self.added))
        return Model(self.parameters * self.bytes, split * self.bytes, *of_row)


LARGE = Transformer(width=2048, blocks=16, length=2048, kinds=50_000, heads=16)


def table(large: Transformer = LARGE, rows: int = 1, devices: Sequence[int] = (8, 64, 1000)) -> list[str]:
    """Return the projection as a table, with `rows` rows for each device."""
    split, kernels = large.model(large.parameters), large.model(large.kernels)
    lines = [
        f"{large.parameters / BILLION:.2f} B parameters ({large.blocks} blocks of width {large.width}, {large.heads} "
        f"heads, {large.kinds} kinds of tokens), float32, Adam, {rows} x {large.length} tokens per device",
        "",
        "| devices | strategy | parameters | optimizer | gradients | gathered | activations | sent per step |",
        "|---|---|---|---|---|---|---|---|",
        _line(1, "SingleDevice", single(split, rows)),
    ]
    for n in devices:
        total = rows * n
        lines += [
            _line(n, "Replicated, Sharded", replicated(split, total, n)),
            _line(n, "Sharded, fsdp, all-reduce", fsdp(split, total, n)),
            _line(n, "Sharded, fsdp, reduce-scatter", fsdp(split, total, n, scatters=True)),
            _line(n, "Sharded, tensor, model=8", tensor(kernels, total, n, 8)),
        ]
    return lines


def _line(n: int, name: str, cost: Cost) -> str:
    parts = (cost.params, cost.optimizer, cost.gradients, cost.gathered, cost.activations, cost.sent)
    return f"| {n} | {name} | " + " | ".join(f"{part / BILLION:.2f} GB" for part in parts) + " |"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1, help="of a batch for each device")
    parser.add_argument("--devices", nargs="+", type=int, default=[8, 64, 1000], help="multiples of 8")
    args = parser.parse_args(argv)
    print("\n".join(table(rows=args.rows, devices=args.devices)))


if __name__ == "__main__":
    main()
