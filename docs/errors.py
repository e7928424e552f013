"""Write the pages of all errors, `reference/errors*.md`, from the source: `python docs/errors.py`."""

import ast
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "learner"
REFERENCE = Path(__file__).parent / "reference"
PAGES = {
    "data": ("batch", "data", "file", "npz", "sample", "worker"),
    "models": ("freeze", "init", "model", "output", "params", "precision", "step"),
    "training": (
        "builder",
        "check",
        "learner",
        "learning",
        "monitor",
        "optimizer",
        "population",
        "schedule",
        "stopping",
    ),
    "metrics": ("metric",),
    "devices": ("device", "process", "remote", "strategy"),
    "runs": ("checkpoint", "directory", "export", "hub", "record", "replay", "resume", "run"),
    "observers": ("logger", "profile", "renderer", "report"),
}
"""The prefixes of the codes on each page; the others are on the page `commands`."""
OTHERS = "commands"
HEAD = """\
# Errors

Wrong input raises a `LearnerError`, or a kind of it. `error.code` names the fault and stays, while the words of a
message may change; `error.fields` has values that the message is made of, by name. Where a message joins several
problems, `error.problems` has each of them, and `error.codes` the code of each.
An error that a function of yours raises without a code has the code `user`.

These pages are written by `python docs/errors.py`. A part in `{}` of a message is a value; `{...}` is a computed one.
"""
TITLE = "# Errors: {}\n"


class Site(NamedTuple):
    """A call that makes an error: `code` is `None` if it has none, and empty if it is another error's."""

    path: str
    line: int
    code: str | None
    template: str

    @property
    def module(self) -> str:
        """Return its dotted name."""
        return ".".join(Path("learner", self.path).with_suffix("").parts)


def kinds(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names of `LearnerError`, of its subclasses, and of `one_error`."""
    classes = [node for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)]
    bases = {node.name: {ast.unparse(base) for base in node.bases} for node in classes}
    names = {"LearnerError"}
    while more := {name for name, of_class in bases.items() if names & of_class} - names:
        names |= more
    return names | {"one_error", "Problem"}


@functools.cache
def sites() -> list[Site]:
    """Return every call in the package that makes an error, in the order of files and lines."""
    trees = {str(p.relative_to(PACKAGE)): ast.parse(p.read_text()) for p in sorted(PACKAGE.rglob("*.py"))}
    names = kinds(trees)
    return [
        Site(path, call.lineno, _code(call), _template(call))
        for path, tree in trees.items()
        for call in sorted(_calls(tree, names), key=lambda call: call.lineno)
        if path != "errors.py" and not (call.func.id == "Problem" and _code(call) is None)  # of another error
    ]


def pages() -> dict[Path, str]:
    """Return the text of each page: a table for each prefix of the codes, and a page that leads to them."""
    coded = sorted({(s.code, s.template, s.module) for s in sites() if s.code})
    page_of = {prefix: name for name, prefixes in PAGES.items() for prefix in prefixes}
    tables: dict[str, dict[str, str]] = {name: {} for name in (*PAGES, OTHERS)}
    for prefix, of_prefix in itertools.groupby(coded, key=lambda row: row[0].split("-")[0]):
        tables[page_of.get(prefix, OTHERS)][prefix] = _table(prefix, list(of_prefix))
    texts = {_path(name): "\n".join([TITLE.format(name), *tables[name].values()]) for name in tables}
    links = [f"| [{name}]({_path(name).name}) | {', '.join(f'`{p}-`' for p in tables[name])} |" for name in tables]
    index = [HEAD, "| page | codes |", "|---|---|", *links, "", "```{toctree}", ":hidden:", ""]
    return {REFERENCE / "errors.md": "\n".join([*index, *(_path(name).stem for name in tables), "```\n"]), **texts}


def _path(name: str) -> Path:
    return REFERENCE / f"errors-{name}.md"


def _table(prefix: str, coded: list[tuple[str, str, str]]) -> str:
    lines = [f"## {prefix}\n", "| Code | Message | Where |", "|---|---|---|"]
    for code, rows in itertools.groupby(coded, key=lambda row: row[0]):
        _, templates, modules = zip(*rows, strict=True)
        shown, places = (dict.fromkeys(map(_cell, row)) for row in (templates, modules))
        lines.append(f"| `{code}` | {'<br>'.join(shown)} | {'<br>'.join(places)} |")
    return "\n".join([*lines, ""])


def _calls(tree: ast.Module, names: set[str]) -> Iterator[ast.Call]:
    """Yield the calls that make an error, and those of `check_int` that give its error a code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            has_code = any(keyword.arg == "code" for keyword in node.keywords)
            if node.func.id in names or (node.func.id == "check_int" and has_code):
                yield node


def _code(call: ast.Call) -> str | None:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    if not given:
        return None
    (value,) = given
    if isinstance(value, ast.BoolOp):
        value = value.values[-1]  # the default of `check_int`
    if isinstance(value, ast.Constant):
        return str(value.value)
    return "" if isinstance(value, ast.Attribute) and value.attr == "code" else None


def _template(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Name)
    if call.func.id == "check_int":
        of = "".join(f" of {_text(keyword.value)}" for keyword in call.keywords if keyword.arg == "of")
        return f"{_text(call.args[0])}{of} is {{value}}: give a whole number, {{least}} or more"
    if call.func.id == "one_error":
        return f"{_text(call.args[1]) if len(call.args) > 1 else 'this cannot be trained'}, {{...}} problems: {{...}}"
    if call.func.id == "ItemError":
        return "".join(map(_text, call.args[0].elts)) if isinstance(call.args[0], ast.List) else "{...}"
    return _text(call.args[1] if call.func.id == "RefusedError" else call.args[0])


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(part.value if isinstance(part, ast.FormattedValue) else part) for part in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return f"{{{name}}}"
    return "{...}"


def _cell(text: str) -> str:
    return "`" + text.replace("\n", " ").replace("`", "'").replace("|", "\\|") + "`"


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
