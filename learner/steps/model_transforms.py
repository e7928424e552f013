"""User functions that change the model after each update: a teacher that follows, weights that stay within bounds."""

import dataclasses
from collections.abc import Callable
from typing import Any

from learner.errors import LearnerError
from learner.steps.step_definition import is_model_like
from learner.util.signatures import positional_count

Array = Any


@dataclasses.dataclass(frozen=True)
class ModelTransform:
    """A function that changes a model, with a uniform call for all signatures.

    Attributes:
      fn: `(model)` or `(model, step)`.
      takes_step: True for `(model, step)`.
    """

    fn: Callable[..., Any]
    takes_step: bool

    @classmethod
    def of(cls, fn: Any) -> "ModelTransform":
        """Return the transform of a function.

        Raises:
          LearnerError: it is not a function of a model, and optionally of the step.
        """
        count = positional_count(fn, "step")
        if count not in (1, 2):
            raise LearnerError(
                f"after_step got {fn!r}; it needs a function (model) or (model, step)", code="step-model-transform"
            )
        return cls(fn, count == 2)

    def __call__(self, model: Any, step: Array, in_place: bool) -> Any:
        """Return the changed model. `in_place`: the function may change the model in place, and return nothing.

        Raises:
          LearnerError: the function returned no such model.
        """
        returned = self.fn(model, step) if self.takes_step else self.fn(model)
        if returned is None and in_place:
            return model
        # Of its own type the adapter names what is missing.
        if not (type(returned) is type(model) or is_model_like(returned, model)):
            raise LearnerError(
                f"after_step got {self.fn!r}, which returned {type(returned).__name__}; it needs to return the model",
                code="step-model-transform-returns",
            )
        return returned
