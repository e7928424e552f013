"""The arrays that a run places on its devices, their shardings, and the memory of its compiled programs. No state is
created and nothing is trained.
"""

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from learner.models.array_info import optimizer_paths
from learner.steps.train_state import TrainState
from learner.training.checked_inputs import read_checked
from learner.training.definition import TrainingDefinition
from learner.training.programs.program_memory import ProgramMemory, memory_of
from learner.training.setup.dispatch_plan import planned
from learner.util.fragments import fragment, preformatted
from learner.util.text import aligned, size
from learner.util.trees import named_leaves

PARTS = {"params": "parameters", "model_state": "model state", "opt_state": "optimizer"}
OTHER = "other"


@dataclasses.dataclass(frozen=True)
class PlacedArray:
    """An array of the state.

    Attributes:
      part: `parameters`, `model state`, `optimizer` or `other`.
      path: the path in that part.
      shape: the global shape.
      dtype: the name of the dtype.
      spec: for each axis, the axis or axes of the mesh, or `None`; `()` if every device has the whole array.
      bytes: the size of the whole array.
      per_device: the bytes on each device.
      parameter: the path of the parameter to which an array of the optimizer belongs, or `None`.
    """

    part: str
    path: str
    shape: tuple[int, ...]
    dtype: str
    spec: tuple[Any, ...]
    bytes: int
    per_device: int
    parameter: str | None = None


@dataclasses.dataclass(frozen=True)
class ShardingReport:
    """The arrays and programs of a run on its devices. `str` returns tables.

    Attributes:
      strategy: the description of the strategy.
      devices: the number of devices.
      arrays: the arrays of the state.
      programs: the training programs.
      warnings: the warnings of the strategy about the state, such as that `fsdp` splits nothing.
    """

    strategy: str
    devices: int
    arrays: tuple[PlacedArray, ...]
    programs: tuple[ProgramMemory, ...]
    warnings: tuple[str, ...] = ()

    def per_device(self, part: str | None = None) -> int:
        """Return the bytes of the state, or of a part of it, on each device."""
        return sum(array.per_device for array in self._of(part))

    def on_one_device(self, part: str | None = None) -> int:
        """Return the bytes on a single device."""
        return sum(array.bytes for array in self._of(part))

    def _of(self, part: str | None) -> list[PlacedArray]:
        return [array for array in self.arrays if part in (None, array.part)]

    def _repr_html_(self) -> str:
        """Return the text for a notebook."""
        return fragment(preformatted(str(self).splitlines()))

    def __str__(self) -> str:
        lines = [self.strategy]
        for table in (self._parameters(), self._model_state(), self._totals(), self._programs()):
            lines += ["", *aligned(table)] if len(table) > 1 else []
        for warning in self.warnings:
            lines += ["", f"warning: {warning}"]
        return "\n".join(lines)

    def _parameters(self) -> list[list[str]]:
        """Return the rows of parameters, each with its optimizer state."""
        optimizer: dict[str | None, int] = {}
        for array in self._of(PARTS["opt_state"]):
            optimizer[array.parameter] = optimizer.get(array.parameter, 0) + array.per_device
        rows = [[*_cells(x), size(optimizer.get(x.path, 0))] for x in self._of(PARTS["params"])]
        return [["parameters", "shape", "dtype", "spec", "bytes per device", "its optimizer state"], *rows]

    def _model_state(self) -> list[list[str]]:
        rows = [_cells(x) for x in self._of(PARTS["model_state"])]
        return [["model state", "shape", "dtype", "spec", "bytes per device"], *rows]

    def _totals(self) -> list[list[str]]:
        parts = dict.fromkeys(array.part for array in self.arrays)
        rows = [[part, *self._sums(part)] for part in parts]
        over = f"over {self.devices} device{'' if self.devices == 1 else 's'}"
        return [["bytes", "per device", over, "if on one device"], *rows, ["total", *self._sums(None)]]

    def _sums(self, part: str | None) -> list[str]:
        each = self.per_device(part)
        return [size(each), size(each * self.devices), size(self.on_one_device(part))]

    def _programs(self) -> list[list[str]]:
        rows = [[p.name, *map(size, (p.arguments, p.outputs, p.aliased, p.temporaries, p.peak))] for p in self.programs]
        return [["program, per device", "arguments", "outputs", "aliased", "temporaries", "peak (at most)"], *rows]


def build_sharding_report(definition: TrainingDefinition, train: Any, valid: Any) -> ShardingReport:
    """Compile the programs of a run before it trains, and return their sharding report. The first batches of the data
    are read.
    """
    with contextlib.closing(read_checked(definition, train, valid)) as inputs:
        plan = planned(definition, inputs)
        memory = memory_of(plan.runner, plan.feed(), plan.feeder.loop)
        strategy, arrays = plan.strategy, placed_arrays(plan.state)
        warnings = tuple(strategy.warnings(plan.state))
        return ShardingReport(strategy.description, len(strategy.devices), arrays, memory, warnings)


def placed_arrays(state: TrainState) -> tuple[PlacedArray, ...]:
    """Return the arrays of a state, or of a tree of its shapes and shardings."""
    parameters, of_optimizers = named_leaves(state.params), optimizer_paths(state.params)
    arrays = []
    for field in dataclasses.fields(state):
        part = PARTS.get(field.name, OTHER)
        for path, leaf in named_leaves(getattr(state, field.name)).items():
            shapes = leaf.shape, leaf.sharding.shard_shape(leaf.shape)
            total, per_device = (math.prod(shape) * int(leaf.dtype.itemsize) for shape in shapes)
            name = path if part != OTHER else ".".join(filter(None, (field.name, path)))
            array_part = PARTS["opt_state"] if field.name == "params" and path in of_optimizers else part
            of = _parameter_of(path, leaf, parameters) if field.name == "opt_state" else None
            spec = tuple(getattr(leaf.sharding, "spec", ()))
            arrays.append(PlacedArray(array_part, name, leaf.shape, str(leaf.dtype), spec, total, per_device, of))
    return tuple(sorted(arrays, key=lambda array: array.part == OTHER))


def _parameter_of(path: str, leaf: Any, parameters: Mapping[str, Any]) -> str | None:
    """Return the parameter whose path is the longest suffix of this path, or None. A model that is a single array has
    the path "".
    """
    if "" in parameters:
        return "" if leaf.shape == parameters[""].shape else None
    parts = path.split(".")
    ends = (".".join(parts[first:]) for first in range(len(parts)))
    return next((end for end in ends if end in parameters), None)


def _cells(array: PlacedArray) -> list[str]:
    spec = ", ".join("-" if entry is None else str(entry).replace("'", "") for entry in array.spec)
    return [array.path or "array", str(list(array.shape)), array.dtype, spec or "-", size(array.per_device)]
