"""The memory of the training programs, as planned by XLA."""

import dataclasses
from typing import Any

from learner.steps.buffers import Feed
from learner.training.programs.executor import Runner


@dataclasses.dataclass(frozen=True)
class ProgramMemory:
    """XLA's memory analysis of a compiled program, in bytes on each device.

    Attributes:
      name: `loop`: all steps of a dispatch. `step`: one step. `micro-batch` and `update`: the parts of a step.
      arguments: the state, the metrics' states and the batches of a dispatch.
      outputs: the new state, the metrics' states and the logged values.
      aliased: the part of the outputs that reuses the memory of arguments.
      temporaries: memory in use only while it runs: activations, gradients, gathered parameters.
    """

    name: str
    arguments: int
    outputs: int
    aliased: int
    temporaries: int

    @property
    def peak(self) -> int:
        """The estimated peak: all of them together, with aliased bytes counted once."""
        return self.arguments + self.outputs - self.aliased + self.temporaries


def memory_of(runner: Runner, feed: Feed, loop: bool) -> tuple[ProgramMemory, ...]:
    """Compile the training programs and return their memory. A run does not compile them again."""
    return tuple(_memory(name, program) for name, program in runner.compiled(feed, loop).items())


def _memory(name: str, compiled: Any) -> ProgramMemory:
    analysis = compiled.memory_analysis()
    return ProgramMemory(
        name,
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes,
        analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
    )
