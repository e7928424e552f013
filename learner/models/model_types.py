"""Types of models for type checkers, and of the functions that create them."""

import functools
import types
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ModelT = TypeVar("ModelT", default=Any)  # `Learner` alone, such as a base class, is one of any model
else:
    from typing import TypeVar

    ModelT = TypeVar("ModelT")

CreatedT = TypeVar("CreatedT", covariant=True)


class PythonFunction(Protocol):
    """A function, or a method of an object. A model with a `__call__` is none."""

    @property
    def __code__(self) -> types.CodeType:
        """The compiled body."""


class FunctionOfNothing(PythonFunction, Protocol[CreatedT]):
    """A function that creates a model without arguments."""

    def __call__(self) -> CreatedT:
        """Return the model."""


class FunctionOfKeyword(PythonFunction, Protocol[CreatedT]):
    """A function that creates a model from the keyword `rngs`, and has other, optional arguments."""

    def __call__(self, first: Any = ..., /, *, rngs: Any) -> CreatedT:
        """Return the model."""


class FunctionOfRngs(PythonFunction, Protocol[CreatedT]):
    """A function that creates a model from random streams, its first argument.

    It needs an overload of its own: in a union, mypy infers `Any` for a lambda.
    """

    def __call__(self, rngs: Any, /) -> CreatedT:
        """Return the model."""


CreatesModel = type[ModelT] | functools.partial[ModelT] | FunctionOfNothing[ModelT] | FunctionOfKeyword[ModelT]
