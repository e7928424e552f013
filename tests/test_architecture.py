"""Tests of the architecture: which package imports which, what is loaded when, and that everything public is
documented.
"""

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import learner

ROOT = Path(learner.__file__).parent
PATHS = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


@functools.cache
def trees():
    """Return the syntax trees of all modules, parsed once per process."""
    return {name: ast.parse(path.read_text()) for name, path in PATHS.items()}


# From bottom to top. A part, which is a package or a module of the root, imports only itself and the rows above it in
# this table, also within functions.
ROWS = [
    {"errors"},
    {"util"},
    {"config", "events", "metrics"},
    {"models"},
    {"steps"},
    {"distributed", "schedules", "strategies"},
    {"data", "optimizers", "runs"},
    {"loggers", "records", "renderers"},
    {"checkpoint"},
    {"training"},
    {"diagnostics", "reports"},
    {"learner"},
    {"builder"},
    {"__init__"},
    {"examples"},
    {"cli"},
    {"__main__"},
]
PURE = ("metrics", "steps")
SVG = "{http://www.w3.org/2000/svg}"


def part_of(module):
    """Return `steps` for `learner.steps.program`, and `__init__` for the package itself."""
    return module.split(".")[1] if "." in module else "__init__"


def row_of(module):
    (row,) = [number for number, parts in enumerate(ROWS) if part_of(module) in parts]
    return row


def imported(tree):
    """Return the full names of everything that a module imports, also within functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in PATHS else node.module, node


@functools.cache
def imports():
    """Return the full names of everything that each module imports, by module."""
    return {module: {name for name, _ in imported(tree)} for module, tree in trees().items()}


def own_imports(module):
    return (imports()[module] & PATHS.keys()) - {module}


def upward(module, names):
    """Return the imports of a module that do not lead downwards."""
    return [name for name in names if part_of(name) != part_of(module) and row_of(name) >= row_of(module)]


def test_root_has_few_modules():
    assert {path.stem for path in ROOT.glob("*.py")} == {
        "__init__",
        "__main__",
        "builder",
        "errors",
        "events",
        "learner",
    }
    assert len({part_of(module) for module in PATHS if (ROOT / part_of(module)).is_dir()}) <= 20
    assert {part_of(module) for module in PATHS} == set().union(*ROWS)
    assert max(map(len, ROWS)) <= 3


def test_imports_go_downwards_only():
    # the package's public names are resolved on access, from anywhere above
    assert {
        module: bad for module in PATHS if module != "learner" and (bad := upward(module, own_imports(module)))
    } == {}


def rows_of_picture(text):
    rows = [group for group in ElementTree.fromstring(text).iter(f"{SVG}g") if group.get("class") == "row"]
    return [{label.text for label in row.iter(f"{SVG}text")} for row in rows]


def test_the_picture_shows_these_packages():
    docs = ROOT.parent / "docs"
    text = (docs / "static" / "architecture.svg").read_text()
    assert rows_of_picture(text) == ROWS[::-1]
    assert rows_of_picture(text.replace(">checkpoint</text>", ">checkpoints</text>")) != ROWS[::-1]
    page = (docs / "architecture.md").read_text()
    assert "(static/architecture.svg)" in page
    assert len(re.findall(r"[\w`./]*[A-Za-z][\w`./-]*", page)) <= 700


def test_upward_import_is_detected():
    tree = ast.parse("def f():\n    from learner import builder\n    from learner.cli.main import main\n")
    names = [name for name, _ in imported(tree)]
    assert upward("learner.training.run", names) == ["learner.builder", "learner.cli.main"]
    assert upward("learner.loggers.base", ["learner.renderers.rich", "learner.loggers.csv", "learner.util.text"]) == [
        "learner.renderers.rich"
    ]


def test_imports_of_modules_have_no_cycle():
    """A package stands for its `__init__`, which only has the names of its modules."""
    graph = {module: own_imports(module) for module in PATHS}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def parts_graph(package, imports):
    """Return which direct parts of a package, modules or folders, import which others."""
    depth = package.count(".") + 1
    graph = {}
    for module, names in imports.items():
        part, *others = [".".join(name.split(".")[: depth + 1]) for name in (module, *names) if f"{package}." in name]
        graph.setdefault(part, set()).update({*others} - {part})
    return graph


def test_imports_of_packages_have_no_cycle():
    """Folders count as one part, so that each package can be read from top to bottom."""
    graph = {module: own_imports(module) for module in PATHS}
    for package in {module.rpartition(".")[0] for module in PATHS} - {"", "learner"}:
        inside = {module: names for module, names in graph.items() if module.startswith(f"{package}.")}
        graphlib.TopologicalSorter(parts_graph(package, inside)).prepare()
    circle = {"a.b.c": {"a.d.e"}, "a.d.f": {"a.b.g"}}
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(parts_graph("a", circle)).prepare()


def test_steps_and_metrics_import_no_files_threads_or_clocks():
    outside = {"io", "logging", "os", "pathlib", "queue", "random", "shutil", "socket", "subprocess", "tempfile"}
    outside |= {"threading", "time", "multiprocessing", "asyncio", "datetime"}
    for module in PATHS:
        if part_of(module) in PURE:
            assert {name.split(".")[0] for name in imports()[module]} & outside == set(), module


def test_nothing_unpickles_and_nothing_uses_the_network():
    """Loading runs no code. Only connections between a run's processes, and webhooks, use sockets."""
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "socket", "urllib", "http", "requests"}
    allowed = {
        "learner.distributed.connection": {"socket"},
        "learner.loggers.posts": {"http", "socket", "urllib"},
        "learner.loggers.secrets": {"urllib"},
        "learner.util.urls": {"urllib"},
    }
    used = {}
    for module, names in imports().items():
        if names := {name.split(".")[0] for name in names} & forbidden:
            used[module] = names
        nodes = ast.walk(trees()[module]) if "allow_pickle" in PATHS[module].read_text() else ()
        keywords = [node for node in nodes if isinstance(node, ast.keyword)]
        assert {ast.unparse(node) for node in keywords if node.arg == "allow_pickle"} <= {"allow_pickle=False"}, module
    assert used == allowed


def test_private_modules_of_jax_are_imported_lazily_in_one_file():
    """A renamed module in JAX must not break `import learner`."""
    private = {
        module
        for module, names in imports().items()
        if any(".".join(name.split(".")[:2]) == "jax._src" for name in names)
    }
    assert private == {"learner.util.jax_internals"}
    at_import = [
        node for node in trees()["learner.util.jax_internals"].body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert {name.split(".")[0] for node in at_import for name, _ in imported(node)} == {"sys", "typing"}


# -- what is loaded ----------------------------------------------------------------------------------------------------

HEAVY = (
    "IPython",
    "PIL",
    "equinox",
    "grain",
    "jsonargparse",
    "matplotlib",
    "mlflow",
    "orbax",
    "plotext",
    "psutil",
    "pyarrow",
    "pynvml",
    "rich",
    "sacrebleu",
    "sklearn",
    "tensorboard",
    "tensorboardX",
    "textual",
    "wandb",
    "yaml",
)


def loaded_by(*statements):
    """Return the names of the modules that are loaded after each of the statements, in one process."""
    show = "print(*(name for name in sys.modules if '\\n' not in name))"
    program = "\n".join(["import sys", *(f"{statement}\n{show}" for statement in statements)])
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert ran.stderr == ""
    return [set(line.split()) for line in ran.stdout.splitlines()]


def test_imports_load_only_what_they_need():
    """Run the imports of the README's first script, and check one module of each kind that it does not use. Then import
    everything that a run may need.
    """
    script = "from learner import ClassificationOutput, LearnerBuilder\nfrom learner.data import digits\n"
    script += "from learner.metrics import Accuracy"
    by_script, by_catalogs = loaded_by(script, "import learner, learner.metrics, learner.data, learner.events")
    unused = ("diagnostics.check", "data.sources.database", "loggers.mlflow", "metrics.bleu", "renderers.rich")
    names = {f"learner.{name}" for name in (*unused, "metrics.classification")}
    assert names & by_script == {"learner.metrics.classification"}
    assert by_catalogs & {*HEAVY} == set()


def test_commands_that_only_read_runs_do_not_import_jax():
    """The control comes last: training needs JAX."""
    commands = ("runs", "watch", "fit")
    program = "import sys\n" + "".join(f"import learner.cli.{name}; print('jax' in sys.modules)\n" for name in commands)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert dict(zip(commands, ran.stdout.split(), strict=True)) == {
        "runs": "False",
        "watch": "False",
        "fit": "True",
    }


def test_type_checkers_and_programs_see_equal_names():
    """Type checkers read the same names that programs get."""
    node = next(n for n in trees()["learner"].body if isinstance(n, ast.If) and isinstance(n.test, ast.Name))
    declared = {alias.name: statement.module for statement in node.body for alias in statement.names}
    assert [n for n, module in declared.items() if getattr(learner, n) is not getattr(sys.modules[module], n)] == []
    assert declared == learner._MODULES  # a table, as the source may not be installed
    assert sorted(declared) == learner.__all__
    assert {*declared} <= {*dir(learner)}
    with pytest.raises(AttributeError, match="module 'learner' has no attribute 'Lerner'"):
        learner.Lerner  # noqa: B018


def test_heavy_import_is_detected():
    (names,) = loaded_by("import rich")
    assert names & {*HEAVY} == {"rich"}


# -- docstrings and names ----------------------------------------------------------------------------------------------


def test_every_module_and_everything_public_has_a_docstring():
    assert [module for module, tree in trees().items() if not ast.get_docstring(tree)] == []
    missing = [
        (module, name) for module, tree in trees().items() for name, node in public(tree) if not ast.get_docstring(node)
    ]
    assert missing == []


def is_overload(node):
    """Return True for a signature that only type checkers read."""
    return any(isinstance(item, ast.Name) and item.id == "overload" for item in node.decorator_list)


def public(tree):
    """Return public functions and classes of a module, and the public methods of those classes."""
    for node in tree.body:
        if is_public(node):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if is_public(inner):
                    yield f"{node.name}.{inner.name}", inner


def is_public(node):
    is_definition = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    return is_definition and not is_overload(node)


def test_public_names_are_sorted():
    parts = (
        "data",
        "data.sources",
        "loggers",
        "metrics",
        "optimizers",
        "records",
        "renderers",
        "schedules",
        "strategies",
    )
    for module in ("learner", *(f"learner.{part}" for part in parts)):
        package = __import__(module, fromlist=["__all__"])
        assert sorted(package.__all__) == list(package.__all__), module
        assert [name for name in package.__all__ if not getattr(getattr(package, name, None), "__doc__", "")] == [], (
            module
        )
