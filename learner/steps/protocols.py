"""Protocols for models with their own steps, for annotations and `isinstance`."""

from typing import Protocol, TypeVar, runtime_checkable

BatchT = TypeVar("BatchT", contravariant=True)
OutputT = TypeVar("OutputT", covariant=True)


@runtime_checkable
class TrainStep(Protocol[BatchT, OutputT]):
    """A model with a train step, which `LearnerBuilder.build` finds by its name.

    The step is only the forward pass: it maps a batch to an output with a `loss`, a mean over the batch's rows, which
    the learner differentiates. A model need not derive from this class. A step that draws random numbers takes a key
    after the batch; `isinstance` is True for it, too, because it checks only the name.

    >>> from flax import nnx
    >>> from learner import ClassificationOutput
    >>> class Model(nnx.Module):
    ...     def __init__(self, rngs):
    ...         self.head = nnx.Linear(64, 10, rngs=rngs)
    ...     def train_step(self, batch: dict) -> ClassificationOutput:
    ...         return ClassificationOutput.from_logits(self.head(batch["image"]), batch["label"])
    >>> def describe(model: TrainStep[dict, ClassificationOutput]) -> str:
    ...     return f"{type(model).__name__} trains itself"
    >>> describe(Model(nnx.Rngs(0)))
    'Model trains itself'
    >>> isinstance(Model(nnx.Rngs(0)), TrainStep), isinstance(Model(nnx.Rngs(0)), ValidStep)
    (True, False)
    """

    def train_step(self, batch: BatchT, /) -> OutputT:
        """Return the output of a batch, in train mode."""


@runtime_checkable
class ValidStep(Protocol[BatchT, OutputT]):
    """A model with a step for validation, `evaluate` and `predict`: like `TrainStep`, in eval mode without gradients.

    Often it is the same function: `valid_step = train_step`.
    """

    def valid_step(self, batch: BatchT, /) -> OutputT:
        """Return the output of a batch, in eval mode."""
