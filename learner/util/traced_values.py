"""Errors of code that needs the value of a traced array."""

import jax

from learner.errors import LearnerError
from learner.util.code_location import code_location

OF_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
REMEDY = (
    "Print with jax.debug.print('{}', x), choose with jnp.where(condition, x, y), and leave out float(x), int(x), "
    "x.item(), and np functions of x"
)


def first_line(error: BaseException) -> str:
    """Return JAX's message, without the list of the program's arrays that follows."""
    return str(error).partition("\n")[0].rstrip(".")


def explained(error: BaseException) -> str:
    """Return the message of an error with its place in the user's code, and for the errors `OF_VALUES` with the remedy.
    The message of a `LearnerError` is unchanged.

    >>> explained(LearnerError("mine"))
    'mine'
    """
    if isinstance(error, LearnerError):
        return str(error)
    if isinstance(error, OF_VALUES):
        return f"{first_line(error)} ({code_location(error)}). {REMEDY}"
    return f"{type(error).__name__}: {error} ({code_location(error)})"
