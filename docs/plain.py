"""Convert docstrings to reStructuredText before `sphinx.ext.napoleon` parses their sections.

Docstrings are written to be read in the source: code in single backticks, plain stars, indented examples. Public names
become links.
"""

import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

SECTION = re.compile(r"^\s*(Args|Attributes|Raises|Returns|Yields):$")
ITEM = re.compile(r"^\s*(- |\d+\. )")
CODE = re.compile(r"(``.+?``|`[^`]+`)", re.DOTALL)
BEFORE, AFTER = "'\"([{<-/: \n", "'\")]}>-/\\:.,;!? \n"  # next to these, code needs no separator
LITERAL = 4  # additional spaces of an indented example
NAME = re.compile(r"(\w+)((?:\.\w+)*)(?:\(\))?")
PARTS = ("checkpoint", "data", "events", "loggers", "metrics", "optimizers", "records", "renderers", "runs")
PARTS += ("schedules", "strategies")
BASES = {  # base classes of the reference that are documented where they are defined
    "BinnedRankingMetric": "learner.metrics.ranking_bins",
    "ClassMetric": "learner.metrics.class_counts",
    "MatrixMetric": "learner.metrics.matrix",
    "RankingMetric": "learner.metrics.ranking",
    "RetrievalMetric": "learner.metrics.retrieval",
    "RunLogger": "learner.loggers.base",
}

Find = Callable[[str], str | None]


def rst(text: str, find: Find = lambda code: None) -> str:
    """Return a docstring as reStructuredText. `find` returns the full name for a piece of code, if it is one.

    >>> print(rst("Adds `a*b`s to *args, see `x`."))
    Adds ``a*b``\\ s to \\*args, see ``x``.
    """
    return "\n\n".join(_blocks(re.split(r"\n\s*\n", text.strip("\n")), find))


def _blocks(blocks: list[str], find: Find) -> Iterator[str]:
    """Yield paragraphs, examples and sections in order."""
    literal: int | None = None  # the smallest indentation of an indented example
    last = 0
    for number, block in enumerate(blocks):
        indent = _indent(block.split("\n")[0])
        if literal is not None and indent >= literal:
            yield block
            continue
        literal = None
        if block.lstrip().startswith(">>>"):
            yield block
            continue
        following = blocks[number + 1] if number + 1 < len(blocks) else ""
        last = _indent(block.split("\n")[-1])
        text = (_section if SECTION.match(block.split("\n")[0]) else _paragraph)(block, find)
        if _indent(following) >= last + LITERAL and not following.lstrip().startswith(">>>"):
            literal = _indent(following)
            text = f"{text}:" if text.endswith(":") else f"{text}\n\n{' ' * indent}::"
        yield text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _paragraph(block: str, find: Find) -> str:
    """Convert a paragraph: lists start after an empty line, and indented lines do not make it a definition."""
    head, *rest = _escaped(block, find).split("\n")
    lines = [head]
    in_list = bool(ITEM.match(head))
    for line in rest:
        if ITEM.match(line) and not in_list:
            lines.append("")
            in_list = True
        lines.append(line if in_list else " " * _indent(head) + line.lstrip())
    return "\n".join(lines)


def _section(block: str, find: Find) -> str:
    """Convert a section: a colon in the sentence of `Returns` does not follow a type."""
    head, *rest = _escaped(block, find).split("\n")
    if head.strip() not in ("Returns:", "Yields:"):
        return "\n".join([head, *rest])
    field = f"{' ' * _indent(head)}:{head.strip().lower()} "
    return field + " ".join(line.strip() for line in rest)


def _escaped(text: str, find: Find) -> str:
    parts = CODE.split(text)
    for i in range(1, len(parts), 2):
        code = " ".join(parts[i].strip("`").split("\n")[:1] + [x.strip() for x in parts[i].strip("`").split("\n")[1:]])
        before = "" if not parts[i - 1] or parts[i - 1][-1] in BEFORE else "\\ "
        after = "" if not parts[i + 1] or parts[i + 1][0] in AFTER else "\\ "
        target = find(code)
        parts[i] = f"{before}:py:obj:`{code} <{target}>`{after}" if target else f"{before}``{code}``{after}"
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"[\\*|]|_(?!\w)", r"\\\g<0>", parts[i])
    return "".join(parts)


@functools.cache
def _public() -> dict[str, list[str]]:
    """Return the packages that have each public name, without names that are also words, such as `digits`."""
    names = {name: [module] for name, module in BASES.items()}
    for package in ("learner", *(f"learner.{part}" for part in PARTS)):
        module = importlib.import_module(package)
        own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", "") == package]
        for name in getattr(module, "__all__", own):
            if not name.islower() or "_" in name:
                names.setdefault(name, []).append(package)
    return names


def found(code: str, within: str) -> str | None:
    """Return the full name for the public name `code` in the docstring of `within`. Of several, prefer one in that
    package; return `None` if there is none, or if it is `within` itself.

    >>> found("ReduceOnPlateau.lr", "learner.schedules.Step"), found("Linen", "learner.Linen")
    ('learner.schedules.ReduceOnPlateau.lr', None)
    """
    match = NAME.fullmatch(code)
    packages = _public().get(match[1], []) if match else []
    chosen = [package for package in packages if f"{within}.".startswith(f"{package}.")][-1:] or packages
    if match is None or len(chosen) != 1:
        return None
    target = f"{chosen[0]}.{match[1]}{match[2]}"
    return None if f"{within}.".startswith(f"{target}.") else target


def _overrides(thing: Any) -> bool:
    """Return True if a method overrides a documented method of a base class in this package."""
    function = getattr(thing, "fget", None) or getattr(thing, "__func__", thing)
    owner: Any = sys.modules.get(getattr(function, "__module__", None) or "")
    *names, name = getattr(function, "__qualname__", "").split(".")
    for part in names:
        owner = getattr(owner, part, None)
    bases = owner.__mro__[1:] if isinstance(owner, type) else ()
    return any(name in vars(base) and base.__module__.startswith("learner") for base in bases)


def _docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Prepend an empty comment to a property's docstring: napoleon would take the text before a colon for a type."""
    before = ["..", ""] if what in ("attribute", "data", "property") else []
    lines[:] = [*before, *rst("\n".join(lines), lambda code: found(code, name)).split("\n"), ""]


def _signature(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Remove unreadable parts of a signature: defaults made anew, and Python's signature of a protocol."""
    if signature == "(*args, **kwargs)" and what == "class":
        return "", returned
    return signature and signature.replace("<factory>", "..."), returned


def _skip(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    return True if _overrides(thing) else None


def setup(app: Any) -> dict[str, bool]:
    """Connect before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", _docstring, priority=400)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
