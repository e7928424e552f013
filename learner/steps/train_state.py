"""The state of a run between steps: one pytree of arrays."""

import dataclasses
from typing import Any

import jax

Array = Any
PyTree = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """The arrays that an optimizer step reads and writes. They are donated to each dispatch.

    Attributes:
      step: int32 scalar, the number of optimizer steps so far.
      params: the trained parameters, by their names in the model.
      model_state: all other arrays of the model: batch statistics, counters, frozen parameters.
      opt_state: the optimizer's state.
      lr_scale: float32 scalar; the learning rate of a step is `schedule(step) * lr_scale`.
      rng: the run's root random key; a step's key is `fold_in(rng, step)`.
      extra: pytrees added by options, by name.
    """

    step: Array
    params: PyTree
    model_state: PyTree
    opt_state: PyTree
    lr_scale: Array
    rng: Array
    extra: dict[str, PyTree]
