"""optax's optimizers for configs: `AdamW(weight_decay=1e-4)` is a function of the learning rate.

There is a class for every function of `optax` and `optax.contrib` that takes a `learning_rate`, with its other
parameters. Each class also has `clip_norm`, which clips the gradients to a global norm before the optimizer sees them.
Classes with a weight decay have `weight_decay_on`, which selects the parameters that decay. `learner.optimizers` has
optimizers made of others: groups, averages, other ways to clip.

    optimizer:
      class_path: AdamW
      init_args: {weight_decay: 1.0e-4, clip_norm: 1.0}

A `learner.Config` has one as a field, `optimizer: OptimizerConfig = AdamW(weight_decay=1e-4)`. Elsewhere in Python,
optax itself is as short: `partial(optax.adamw, weight_decay=1e-4)`.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import optax
import optax.contrib

from learner.config.fields import add_type_problem, read, write
from learner.errors import LearnerError, near
from learner.optimizers.generated import make_class
from learner.optimizers.gradient_transforms import kernels
from learner.util.number_checks import is_number, plain_numbers


class OptimizerConfig:
    """An optax optimizer without its learning rate. Calling it with a learning rate returns the
    `optax.GradientTransformation`.

    There is a subclass for each optimizer of optax. Instances can be fields of a `learner.Config`, whose files name the
    class:

    >>> from learner import Config
    >>> class Training(Config):
    ...     optimizer: OptimizerConfig = AdamW(weight_decay=1e-4)
    >>> Training.from_dict({"optimizer": {"class_path": "SGD", "init_args": {"momentum": 0.9}}}).optimizer
    SGD(momentum=0.9, nesterov=False, accumulator_dtype=None, clip_norm=None)
    >>> Training.from_dict({"optimizer": {"class_path": "SGD", "init_args": {"momentun": 0.9}}})
    Traceback (most recent call last):
    learner.errors.LearnerError: Training.optimizer has no 'momentun': did you mean 'momentum'?

    >>> SGD(momentum=0.9)
    SGD(momentum=0.9, nesterov=False, accumulator_dtype=None, clip_norm=None)
    >>> transformation = AdamW(weight_decay=1e-4, weight_decay_on="kernels", clip_norm=1.0)(1e-3)
    >>> sorted(transformation._fields)
    ['init', 'update']
    """

    function: ClassVar[Callable[..., Any]]

    def __post_init__(self) -> None:
        limit = getattr(self, "clip_norm", None)
        if limit is not None and not (is_number(plain_numbers(limit)) and limit > 0):
            raise LearnerError(
                f"clip_norm of {type(self).__name__} is {limit!r}; it needs a positive number",
                code="optimizer-clip-norm-value",
                limit=limit,
            )

    def __call__(self, learning_rate: Any, **changed: Any) -> Any:
        """Return the optimizer at this rate, a float or a traced scalar, with `changed` settings, as of the members of
        a population.
        """
        if changed:
            return dataclasses.replace(self, **changed)(learning_rate)  # type: ignore[type-var]
        settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        clip_norm = settings.pop("clip_norm")
        if settings.pop("weight_decay_on", "all") == "kernels":
            settings[_mask_of(self.function)] = kernels
        for name, value in settings.items():
            if isinstance(value, OptimizerConfig):
                settings[name] = value(learning_rate)
        try:
            transformation = self.function(learning_rate=learning_rate, **settings)
        except ValueError as error:
            raise LearnerError(f"{self!r}: {error}", code="optimizer-refused") from error
        return (
            transformation if clip_norm is None else optax.chain(optax.clip_by_global_norm(clip_norm), transformation)
        )

    @classmethod
    def read_fields(cls, value: Any, path: str, problems: list[str]) -> Any:
        """Return the optimizer for a file's value, for `learner.Config`; append its problems to `problems`.

        `value` is a name, a mapping of `class_path` and `init_args`, or, if the field's type is one optimizer, a
        mapping of its parameters.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls.read_tagged([cls], {"class_path": value}, path, problems)
        if not isinstance(value, Mapping):
            return add_type_problem(
                path, value, "the name of an optimizer, such as AdamW, or {class_path: ..., init_args: ...}", problems
            )
        if "class_path" in value or cls is OptimizerConfig:
            return cls.read_tagged([cls], value, path, problems)
        kinds = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        of_fields = [f"{path} has no {key!r}: {near(str(key), list(kinds))}" for key in value if key not in kinds]
        needed = [name for name, field in kinds.items() if field.default is dataclasses.MISSING and name not in value]
        of_fields += [f"{path} needs {name!r}" for name in needed]
        settings = {
            key: read(kinds[key].type, setting, f"{path}.{key}", of_fields)
            for key, setting in value.items()
            if key in kinds
        }
        config = None
        if not of_fields:
            try:
                config = cls(**settings)
            except (ValueError, TypeError) as error:
                of_fields.append(f"{path}: {error}")
        problems += of_fields
        return config

    @staticmethod
    def read_tagged(
        members: "Sequence[type[OptimizerConfig]]", value: Mapping[str, Any], path: str, problems: list[str]
    ) -> Any:
        """Return the optimizer that `class_path` names, one of `members`, without importing anything."""
        allowed = {name: kind for name, kind in OPTIMIZERS.items() if issubclass(kind, tuple(members))}
        name = str(value.get("class_path", "")).rpartition(".")[2]
        others = [key for key in value if key not in ("class_path", "init_args")]
        problems += [f"{path} has {key!r} beside class_path: parameters belong under init_args" for key in others]
        if name not in allowed:
            problems.append(f"{path} names the optimizer {name!r}: {near(name, list(allowed))}")
            return None
        return allowed[name].read_fields(value.get("init_args") or {}, path, problems)

    @classmethod
    def write_fields(cls, value: "OptimizerConfig") -> dict[str, Any]:
        """Return the mapping that `read_fields` of this class reads, with all parameters."""
        fields = dataclasses.fields(value)  # type: ignore[arg-type]
        settings = {field.name: write(field.type, getattr(value, field.name)) for field in fields}
        return settings if type(value) is cls else {"class_path": type(value).__name__, "init_args": settings}


def _functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the module's optimizers: functions with a learning rate, except for their building blocks
    (`scale_by_...`).
    """
    functions = {}
    for name, value in vars(module).items():
        if name.startswith(("_", "scale_by_")) or inspect.isclass(value) or not callable(value):
            continue
        try:
            parameters = inspect.signature(value).parameters
        except ValueError:  # type aliases are callable, but have no signature
            continue
        if "learning_rate" in parameters:
            functions[f"{module.__name__}.{name}"] = value
    return functions


def _mask_of(function: Callable[..., Any]) -> str:
    """Return the name of the parameter that selects the arrays that decay, or an empty string."""
    parameters = inspect.signature(function).parameters
    names = [name for name in ("mask", "weight_decay_mask") if name in parameters and "weight_decay" in parameters]
    return names[0] if names else ""


_CLIP_NORM = ("clip_norm", float | None, None, "Clip the gradients to this global norm first. null: as they are.")
_DECAY = (
    "weight_decay_on",
    Literal["all", "kernels"],
    "all",
    "What decays: all arrays, or not the biases and the parameters of norms.",
)

_classes = [
    make_class(
        function,
        name,
        OptimizerConfig,
        {"learning_rate"},
        {optax.GradientTransformation: OptimizerConfig},
        [*([_DECAY] if _mask_of(function) else []), _CLIP_NORM],
    )
    for name, function in (_functions(optax) | _functions(optax.contrib)).items()
]

OPTIMIZERS: dict[str, type[OptimizerConfig]] = {
    kind.__name__: kind for kind in sorted(_classes, key=lambda kind: kind.__name__.lower())
}
"""Every class by its name."""

globals().update(OPTIMIZERS)
__all__ = list(OPTIMIZERS)

if TYPE_CHECKING:  # at run time the classes are in `globals()`

    def __getattr__(name: str) -> Any: ...
