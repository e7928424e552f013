"""optax's optimizers for config files: `AdamW(weight_decay=1e-4)` is a function of the learning rate.

There is a class for every function of `optax` and `optax.contrib` that takes a `learning_rate`, with its other
parameters. Each also has `clip_norm`, which clips the gradients to a global norm before the optimizer sees them, and
those with a weight decay have `weight_decay_on`, which says of what. `learner.optimizers` has what is made of other
optimizers: groups, averages, other ways to clip.

    optimizer:
      class_path: AdamW
      init_args: {weight_decay: 1.0e-4, clip_norm: 1.0}

In Python, optax itself is as short: `partial(optax.adamw, weight_decay=1e-4)`.
"""

import dataclasses
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar, Literal

import optax
import optax.contrib

from learner.cli.generated import make_class
from learner.errors import LearnerError
from learner.optimizers import kernels


class Optimizer:
    """An optax optimizer without its learning rate: calling it with a rate makes the `optax.GradientTransformation`.

    >>> SGD(momentum=0.9)
    SGD(momentum=0.9, nesterov=False, accumulator_dtype=None, clip_norm=None)
    >>> transformation = AdamW(weight_decay=1e-4, weight_decay_on="kernels", clip_norm=1.0)(1e-3)
    >>> sorted(transformation._fields)
    ['init', 'update']
    """

    function: ClassVar[Callable[..., Any]]
    function_name: ClassVar[str]

    def __post_init__(self) -> None:
        limit = getattr(self, "clip_norm", None)
        if limit is not None and not limit > 0:
            raise LearnerError(f"clip_norm of {type(self).__name__} is {limit!r}; it needs a positive number")

    def __call__(self, learning_rate: Any) -> Any:
        """The optimizer at this rate, a float or a traced scalar."""
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        clip_norm = settings.pop("clip_norm")
        if settings.pop("weight_decay_on", "all") == "kernels":
            settings[_mask_of(self.function)] = kernels
        for name, value in settings.items():
            if isinstance(value, Optimizer):
                settings[name] = value(learning_rate)
        try:
            made = self.function(learning_rate=learning_rate, **settings)
        except ValueError as error:
            raise LearnerError(f"{self!r}: {error}") from error
        return made if clip_norm is None else optax.chain(optax.clip_by_global_norm(clip_norm), made)


def _functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The module's optimizers: what takes a learning rate, except for the pieces (`scale_by_...`) they are made of."""
    found = {}
    for name, value in vars(module).items():
        if name.startswith(("_", "scale_by_")) or inspect.isclass(value) or not callable(value):
            continue
        try:
            parameters = inspect.signature(value).parameters
        except ValueError:  # type aliases are callable, but have no signature
            continue
        if "learning_rate" in parameters:
            found[f"{module.__name__}.{name}"] = value
    return found


def _mask_of(function: Callable[..., Any]) -> str:
    """The parameter that says which arrays decay, or nothing."""
    parameters = inspect.signature(function).parameters
    found = [name for name in ("mask", "weight_decay_mask") if name in parameters and "weight_decay" in parameters]
    return found[0] if found else ""


_CLIP_NORM = ("clip_norm", float | None, None, "Clip the gradients to this global norm first. null: as they are.")
_DECAY = (
    "weight_decay_on",
    Literal["all", "kernels"],
    "all",
    "What decays: all arrays, or not the biases and the parameters of norms.",
)

_made = [
    make_class(
        function,
        name,
        Optimizer,
        {"learning_rate"},
        {optax.GradientTransformation: Optimizer},
        [*([_DECAY] if _mask_of(function) else []), _CLIP_NORM],
    )
    for name, function in (_functions(optax) | _functions(optax.contrib)).items()
]

OPTIMIZERS: dict[str, type[Optimizer]] = {
    made.__name__: made for made in sorted(_made, key=lambda m: m.__name__.lower())
}
"""Every class by its name."""

globals().update(OPTIMIZERS)
__all__ = list(OPTIMIZERS)


def __getattr__(name: str) -> Any:  # for type checkers; the classes are in `globals()`
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
