"""Configs: the settings of a model or a training as one object that can be validated, saved and loaded.

class MlpConfig(Config):
    hidden: int = 64
    activation: Literal["relu", "gelu"] = "relu"

config = MlpConfig(hidden=128)
config.save("mlp.yaml")
MlpConfig.load("mlp.yaml") == config
"""

import copy
import dataclasses
import functools
import inspect
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from learner.config.fields import add_type_problem, read, tagged, write
from learner.config.mappings import SUFFIXES, is_deep, json_text, read_mapping, yaml_text
from learner.config.safe_yaml import DEEPEST
from learner.config.types import shown
from learner.errors import LearnerError, near, one_error


class Field(NamedTuple):
    """A field of a config: its type, and a function that returns its default, or None for a required field."""

    kind: Any
    default: Callable[[], Any] | None


@typing.dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
@dataclasses.dataclass(frozen=True)
class Config:
    """A dataclass that validates its fields, and can be saved in files.

    A subclass is a frozen dataclass without a decorator; its fields are passed by name. A field may be a bool, int,
    float, str, None, `Path`, an enumeration, a `Literal`, another config, a list, tuple or dict of these, or a union of
    them. Lists and dicts may be defaults. Types are checked when a config is created, also by `dataclasses.replace`,
    and one error lists all problems. Define `__post_init__` to check several fields together; when a file is read, its
    exception is part of that error.

    A config file of `learner fit` can contain one as an argument of a model (`init_args: {config: {hidden: 128}}`), or
    as the model itself, if it has a method `init(rngs)` that creates the model.

    Raises:
      LearnerError: a field is unknown, missing, or of the wrong type.

    >>> class Head(Config):
    ...     classes: int
    ...     bias: bool = True
    >>> class Network(Config):
    ...     widths: list[int] = [64, 64]
    ...     head: Head
    >>> network = Network(head=Head(classes=10))
    >>> network.to_dict()
    {'widths': [64, 64], 'head': {'classes': 10, 'bias': True}}
    >>> Network.from_dict({"head": {"classes": 10}}) == network
    True
    >>> Network.from_dict({"widht": [8], "head": {"classes": "ten", "bais": False}})
    Traceback (most recent call last):
    learner.errors.LearnerError: this is not a valid Network, 3 problems:
      1. Network has no 'widht': did you mean 'widths'?
      2. Network.head has no 'bais': did you mean 'bias'?
      3. Network.head.classes is 'ten': it needs a whole number
    """

    _fill: ClassVar[Callable[..., None]]
    _known: ClassVar[dict[str, Field]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _check_class(cls)
        for name in inspect.get_annotations(cls):
            default = vars(cls).get(name)
            if isinstance(default, list | dict):
                setattr(cls, name, dataclasses.field(default_factory=functools.partial(copy.deepcopy, default)))
        hashed = vars(cls).get("__hash__")
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        cls._fill = cls.__init__
        cls.__init__ = _checked(cls.__init__)  # type: ignore[method-assign]
        type.__setattr__(cls, "__hash__", hashed or _hash)

    def to_dict(self) -> dict[str, Any]:
        """Return the complete config as values for JSON and YAML: dicts, lists, numbers and texts."""
        return {name: write(field.kind, getattr(self, name)) for name, field in fields_of(type(self)).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the config that `content` describes; omitted fields have their defaults.

        Raises:
          LearnerError: the content is invalid; the message lists all problems, each with its path.
        """
        _refuse_deep(content, cls)
        problems: list[str] = []
        config: Self = cls.read_fields(content, cls.__name__, problems)
        if problems:
            raise one_error(problems, f"this is not a valid {cls.__name__}", code="config-fields-wrong")
        return config

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the complete config to a file for `load`, replacing an existing file.

        Args:
          path: the path of the file, which ends with .json, .yaml or .yml.

        Raises:
          LearnerError: the path ends otherwise, the file cannot be created, or a field would be loaded as something
            else: a tuple in `tuple[int, ...] | list[int]`.
        """
        _check_suffix(path)
        content = self.to_dict()
        self._check_round_trip(content)
        text = json_text(content) + "\n" if Path(path).suffix == ".json" else yaml_text(content)
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            raise LearnerError(
                f"{type(self).__name__} cannot be saved as {os.fspath(path)}: {error}", code="config-unsavable"
            ) from error

    def _check_round_trip(self, content: Mapping[str, Any]) -> None:
        back = type(self).from_dict(content)
        for name in fields_of(type(self)):
            if repr(getattr(back, name)) != repr(getattr(self, name)):
                raise LearnerError(
                    f"{type(self).__name__} cannot be saved: {name} is {shown(getattr(self, name))}, and would come "
                    f"back as {shown(getattr(back, name))}; its type annotation is too general",
                    code="config-value-changes",
                    name=name,
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the config in a file, without importing or running code.

        Args:
          path: the path of the file, which ends with .json, .yaml or .yml. Missing fields get their defaults, so files
            stay valid when a class gets new fields.

        Raises:
          LearnerError: the file does not exist or cannot be read, or fields are invalid; the message lists all of them.
        """
        _check_suffix(path)
        problems: list[str] = []
        config: Self = cls.read_fields(read_mapping(path, f"{cls.__name__} file"), cls.__name__, problems)
        if problems:
            problems = [f"{os.fspath(path)}: {problems[0]}"] if len(problems) == 1 else problems
            raise one_error(problems, f"{os.fspath(path)} is not a valid {cls.__name__}", code="config-fields-wrong")
        return config

    @classmethod
    def read_fields(cls, value: Any, path: str, problems: list[str]) -> Any:
        """Return an instance from a mapping, for `learner.config.fields`; append all problems to `problems`."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            return add_type_problem(
                path, value, f"{cls.__name__}, a mapping of {', '.join(fields_of(cls)) or 'nothing'}", problems
            )
        if "class_path" in value and "class_path" not in fields_of(cls):
            return cls.read_tagged([cls], value, path, problems)
        own_problems: list[str] = []
        values = _values(cls, value, path, own_problems)
        config = None
        if not own_problems:
            config = cls.__new__(cls)
            try:
                cls._fill(config, **values)
            except (ValueError, TypeError) as error:  # from the user's __post_init__
                own_problems.append(f"{path}: {error}")
        problems += own_problems
        return config

    @staticmethod
    def read_tagged(members: "Sequence[type[Config]]", value: Mapping[str, Any], path: str, problems: list[str]) -> Any:
        """Return a config of the class that a file names: one of `members`, or a subclass of one, without importing
        anything.
        """
        classes = {f"{each.__module__}.{each.__qualname__}": each for member in members for each in _derived(member)}
        class_path = str(value["class_path"])
        name = class_path.rpartition(".")[2]
        named = [each for each in classes.values() if each.__name__ == name]
        kind = classes.get(class_path) or (named[0] if len(named) == 1 else None)
        if kind is None:
            hint = near(name, [each.__name__ for each in classes.values()])
            problems.append(f"{path}.class_path is {class_path!r}: {hint} (other classes must be imported first)")
            return None
        beside = [key for key in value if key not in ("class_path", "init_args")]
        problems += [f"{path} has {key!r} beside class_path: fields belong under init_args" for key in beside]
        return kind.read_fields(value.get("init_args") or {}, path, problems)

    @classmethod
    def write_fields(cls, value: "Config") -> dict[str, Any]:
        """Return the mapping that `read_fields` of this class reads."""
        return value.to_dict() if type(value) is cls else tagged(value)


def is_config(kind: Any) -> bool:
    """Return True if a type is a `Config`."""
    return isinstance(kind, type) and issubclass(kind, Config)


def _check_class(cls: type[Config]) -> None:
    """Raise `LearnerError` for definitions in a subclass that would have no effect."""
    if "__init__" in vars(cls):
        raise LearnerError(
            f"{cls.__name__} defines __init__: a config has fields, and __post_init__ for checks",
            code="config-defines-init",
        )
    annotated = inspect.get_annotations(cls)
    if methods := [name for name in annotated if hasattr(Config, name)]:
        raise LearnerError(
            f"{cls.__name__} has a field {methods[0]!r}, which is a method of every config: rename it",
            code="config-field-is-method",
        )
    before = {field.name for field in dataclasses.fields(cls)}  # of the base classes
    if bare := [name for name in vars(cls) if name in before and name not in annotated]:
        raise LearnerError(
            f"{cls.__name__}.{bare[0]} has no type: repeat the type of a field when changing its default",
            code="config-field-without-type",
        )


def _checked(fill: Callable[..., None]) -> Callable[..., None]:
    """Return an `__init__` that validates all fields, including defaults."""

    @functools.wraps(fill)
    def __init__(self: Config, *arguments: Any, **given: Any) -> None:  # noqa: N807
        cls = type(self)
        _refuse_deep(given, cls)
        problems: list[str] = []
        if arguments:
            problems.append(f"{cls.__name__} takes its fields by name, and got {arguments[0]!r} without one")
        values = _values(cls, given, cls.__name__, problems)
        if problems:
            raise one_error(problems, f"this is not a valid {cls.__name__}", code="config-fields-wrong")
        fill(self, **values)

    return __init__


def _refuse_deep(content: Any, cls: type[Config]) -> None:
    if is_deep(content):
        raise LearnerError(
            f"{cls.__name__} is given values that are nested more than {DEEPEST} levels deep", code="config-too-deep"
        )


def fields_of(cls: type[Config]) -> dict[str, Field]:
    """Return the fields of a config by name.

    Raises:
      LearnerError: their types cannot be resolved.
    """
    if "_known" in vars(cls):
        return cls._known
    try:
        kinds = typing.get_type_hints(cls)  # only when needed: a type may be defined later
    except Exception as error:  # evaluating an annotation may raise anything
        raise LearnerError(
            f"the types of the fields of {cls.__name__} cannot be read: {error}", code="config-types-unreadable"
        ) from error
    cls._known = {each.name: Field(kinds[each.name], _default(each)) for each in dataclasses.fields(cls) if each.init}
    return cls._known


def _default(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default is not dataclasses.MISSING:
        return lambda: field.default
    return None if field.default_factory is dataclasses.MISSING else field.default_factory


def _values(cls: type[Config], given: Mapping[str, Any], path: str, problems: list[str]) -> dict[str, Any]:
    """Return the values of all fields, passed or default."""
    fields = fields_of(cls)
    problems += [f"{path} has no {name!r}: {near(str(name), list(fields))}" for name in given if name not in fields]
    problems += [f"{path} needs {name!r}" for name, field in fields.items() if name not in given and not field.default]
    values = {name: given[name] for name in fields if name in given}
    values |= {name: field.default() for name, field in fields.items() if name not in given and field.default}
    return {name: read(fields[name].kind, value, f"{path}.{name}", problems) for name, value in values.items()}


def _derived(cls: type[Config]) -> Iterator[type[Config]]:
    yield cls
    for each in cls.__subclasses__():
        yield from _derived(each)


def _check_suffix(path: str | os.PathLike[str]) -> None:
    if Path(path).suffix not in SUFFIXES:
        raise LearnerError(
            f"{os.fspath(path)} ends with {Path(path).suffix!r}; a config needs one of {', '.join(SUFFIXES)}",
            code="config-suffix-unknown",
        )


def _hash(self: Config) -> int:
    """Return a hash that includes lists and dicts, which must not change: a config in a model is static in compiled
    programs.
    """
    return hash((type(self), *(_frozen(getattr(self, field.name)) for field in dataclasses.fields(self))))


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return frozenset((key, _frozen(item)) for key, item in value.items()) if isinstance(value, dict) else value
