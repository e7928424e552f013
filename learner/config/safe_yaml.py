"""Safe loading of untrusted YAML: limits are checked before any object is created."""

import os
import re
import stat
from collections.abc import Callable
from typing import Any

import yaml

from learner.errors import LearnerError

LARGEST, DEEPEST = 2**20, 50  # characters and levels of an untrusted file
BITS = 1024  # of an integer, as of the largest float
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TOO_DEEP = f"is nested more than {DEEPEST} levels deep"


class UnsafeYamlError(yaml.YAMLError):
    """A YAML text that is absurdly large or deep, or has a key twice."""


class ConfigLoader(LOADER):  # type: ignore[misc, valid-type]
    """A safe PyYAML loader with the booleans and integers of YAML 1.2 (`on`, `off`, `yes`, `no` and `12:30` are texts,
    `0100` is 100), with `1e-3` as a number, and without dates. All errors in a text are `yaml.YAMLError`.
    """

    def __init__(self, text: str, include: Callable[[str], Any] | None = None) -> None:
        # Before anything is composed: PyYAML composes recursively, and deep texts would overflow C's stack.
        if problem := check_yaml_size(text):
            raise UnsafeYamlError(problem)
        super().__init__(text)
        self._flat: set[yaml.MappingNode] = set()
        self._include = include

    def include(self, node: Any) -> Any:
        """Return the content of the file that `!include` names."""
        if self._include is None or not isinstance(node, yaml.ScalarNode):
            problem = "!include names a file in a config, and is not possible here"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return self._include(str(node.value))

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node. Errors of PyYAML's constructors become a `ConstructorError` with the line."""
        try:
            value = super().construct_object(node, deep=deep)
        except LearnerError:  # of an included file
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # such as of `!!int abc`
            raise yaml.constructor.ConstructorError(None, None, f"no {node.tag}: {error}", node.start_mark) from error
        if isinstance(value, int) and value.bit_length() > BITS:
            raise yaml.constructor.ConstructorError(None, None, "an integer that is absurdly large", node.start_mark)
        return value

    def construct_int(self, node: yaml.ScalarNode) -> int:
        """Return an integer: leading zeros are ignored, and `0o17` is octal."""
        text = str(self.construct_scalar(node)).replace("_", "")
        return int(text, 0 if text.lstrip("+-")[:2] in ("0b", "0o", "0x") else 10)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge `<<` like PyYAML, but raise `UnsafeYamlError` if the mapping itself has a key twice."""
        if node in self._flat:  # an anchor, which already has the merged keys
            return
        self._flat.add(node)
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in keys:
                    raise UnsafeYamlError(f"has the key {key.value!r} twice (line {key.start_mark.line + 1})")
                keys.add(key.value)
        super().flatten_mapping(node)


ConfigLoader.add_constructor("!include", ConfigLoader.include)
_BOOL, _INT, _FLOAT, _DATE = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp"))
ConfigLoader.add_constructor(_INT, ConfigLoader.construct_int)
ConfigLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_BOOL, _INT, _FLOAT, _DATE)]
    for first, resolvers in LOADER.yaml_implicit_resolvers.items()
}
ConfigLoader.add_implicit_resolver(_BOOL, re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
ConfigLoader.add_implicit_resolver(
    _INT, re.compile("^[-+]?(?:[0-9][0-9_]*|0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+)$"), list("-+0123456789")
)
ConfigLoader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"""^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
            |[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+
            |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
            |[-+]?\.(?:inf|Inf|INF)
            |\.(?:nan|NaN|NAN))$""",
        re.VERBOSE,
    ),
    list("-+0123456789."),
)


def parse_yaml(text: str, include: Callable[[str], Any] | None = None) -> Any:
    """Return the content of a YAML text. `include` returns the value of `!include NAME`, which is an error without it.

    Raises:
      UnsafeYamlError: the text is absurdly large or deep, or has a key twice.
      yaml.YAMLError: the text is not YAML.

    >>> parse_yaml("{on: [epoch, 1e-3], off: true, date: 2001-01-01}")
    {'on': ['epoch', 0.001], 'off': True, 'date': '2001-01-01'}
    """
    loader = ConfigLoader(text, include)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read_bounded(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file, or its first `LARGEST + 1` bytes if it is larger.

    Raises:
      OSError: the file cannot be read, or it is a pipe or a device, which may have no end.
    """
    # A pipe without a writer would block the call of `open`.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is a pipe or a device; write the content to a regular file")
        return file.read(LARGEST + 1)


def check_yaml_size(text: str) -> str | None:
    """Return the problem with the size of a YAML text, or None. An alias counts as much as its anchor, because a few
    lines of aliases can expand beyond any memory. The text is only scanned, not composed.

    >>> check_yaml_size("a: &a [1, 2]\\nb: *a")
    >>> check_yaml_size("a: &a [*a]")
    'has the alias *a inside its own anchor'
    """
    if len(text) > LARGEST:
        return f"has more than {LARGEST} characters"
    try:
        return _size_problem(text)
    except yaml.scanner.ScannerError as error:
        # Newer versions of libyaml have their own limit, and read so far ahead that they reach it first.
        if "nesting depth" in str(error.problem):
            return TOO_DEEP
        raise


def _size_problem(text: str) -> str | None:
    size = 0
    sizes: dict[str | None, int] = {}  # by anchor
    inside: list[tuple[int, str | None]] = []  # the open collections: the size before each, and its anchor
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((size, event.anchor))
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            before, anchor = inside.pop()
            sizes[anchor] = size - before
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1 + len(event.value)
            size += 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for _, anchor in inside):
                return f"has the alias *{event.anchor} inside its own anchor"
            size += sizes.get(event.anchor, 1)
        if len(inside) > DEEPEST:
            return TOO_DEEP
        if size > LARGEST:
            return f"has aliases that stand for more than {LARGEST} characters"
    return None
