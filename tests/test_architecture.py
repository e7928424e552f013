"""The house keeps its order: who imports whom, what is loaded when, and that everything says what it is."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import learner

ROOT = Path(learner.__file__).parent
PATHS = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text()) for name, path in PATHS.items()}

# From the bottom to the top. A part imports from its own row and from those above it in this table.
ROWS = [
    {"disk", "distribution", "errors"},
    {"metrics", "steps"},
    {"asking", "checkpoint", "compilation", "config", "data", "directory", "events", "fields", "history", "hosts"}
    | {"journal", "kinds", "lock", "loggers", "mappings", "memory", "optimizers", "options", "plots", "profile"}
    | {"rate_range", "records", "renderers", "result", "runs", "schedules", "signals", "spent", "stopping"}
    | {"strategies", "text", "trace", "untrusted", "watch", "watchdog"},
    {"agreement", "arrays", "check", "facts", "fingerprints", "inputs", "loading", "onebyone", "overview", "profiler"}
    | {"report", "resuming", "run", "run_writer", "runner", "session", "start", "together", "worker"},
    {"fit"},
    {"builder"},
    {"learner"},
    {"examples"},
    {"cli", "__main__"},
]
# Those that may import even less, besides themselves.
ONLY = {
    "metrics": {"distribution", "errors"},
    "steps": {"errors", "metrics"},
    "loggers": {"disk", "distribution", "errors", "events", "history", "journal", "text"},
    "renderers": {"errors", "events", "history", "journal", "text"},
    "runs": {
        "directory",
        "disk",
        "distribution",
        "errors",
        "events",
        "history",
        "journal",
        "lock",
        "loggers",
        "mappings",
        "plots",
        "text",
    },
    "asking": {"errors", "lock", "text"},
    "watch": {"asking", "directory", "errors", "events", "plots", "runs", "text"},
    "strategies": {"errors"},
    "optimizers": {"errors", "fields", "schedules", "steps"},
    "checkpoint": {"disk", "errors", "journal", "records", "steps"},
    "records": {"errors", "steps", "text"},
}
PURE = ("metrics", "steps")


def part_of(module):
    """`steps` of `learner.steps.program`; `learner` of the package itself."""
    return module.split(".")[1] if "." in module else module


def imported(tree):
    """Full names of what is imported anywhere in a module, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in PATHS else node.module, node


def own_imports(module, nodes=None):
    return {name for name, node in imported(TREES[module]) if name in PATHS and (nodes is None or node in nodes)}


def row_of(module):
    (row,) = [number for number, parts in enumerate(ROWS) if part_of(module) in parts]
    return row


def test_every_part_has_its_row():
    assert {part_of(module) for module in PATHS} == set().union(*ROWS)


@pytest.mark.parametrize("module", PATHS)
def test_imports_go_downwards_only(module):
    assert {name for name in own_imports(module) if row_of(name) > row_of(module)} == set()


@pytest.mark.parametrize("module", [module for module in PATHS if part_of(module) in ONLY])
def test_some_parts_import_little(module):
    allowed = ONLY[part_of(module)] | {part_of(module)}
    assert {name for name in own_imports(module) if part_of(name) not in allowed} == set()


def test_the_rules_would_notice_an_import_that_goes_upwards():
    tree = ast.parse(
        "def f():\n    from learner import fit\n    import learner.builder\n    from learner.cli.main import main\n"
    )
    names = {name for name, _ in imported(tree)}
    assert names == {"learner.fit", "learner.builder", "learner.cli.main"}
    assert min(map(row_of, names)) > row_of("learner.run")


def test_no_two_modules_need_each_other_to_be_imported():
    """Those that are imported when the module is; a package stands for its `__init__`."""
    graph = {module: own_imports(module, TREES[module].body) - {module} for module in PATHS}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names them


@pytest.mark.parametrize("module", [module for module in PATHS if part_of(module) in PURE])
def test_steps_and_metrics_know_no_files_no_threads_and_no_clock(module):
    outside = {"io", "logging", "os", "pathlib", "queue", "random", "shutil", "socket", "subprocess", "tempfile"}
    outside |= {"threading", "time", "multiprocessing", "asyncio", "datetime"}
    assert {name.split(".")[0] for name, _ in imported(TREES[module])} & outside == set()


@pytest.mark.parametrize("module", PATHS)
def test_nothing_unpickles_and_nothing_uses_the_network(module):
    """Loading runs no code. Only what connects the processes of a run asks whether the first of them is there, and a
    webhook posts to the address that it was given.
    """
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "socket", "urllib", "http", "requests"}
    allowed = {
        "learner.hosts": {"socket"},
        "learner.loggers.posts": {"http", "socket", "urllib"},
        "learner.loggers.secrets": {"urllib"},
        "learner.loggers.urls": {"urllib"},
    }.get(module, set())
    assert {name.split(".")[0] for name, _ in imported(TREES[module])} & forbidden == allowed
    keywords = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.keyword)]
    assert {ast.unparse(node) for node in keywords if node.arg == "allow_pickle"} <= {"allow_pickle=False"}


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
    "sklearn",
    "tensorboard",
    "tensorboardX",
    "textual",
    "wandb",
    "yaml",
)


def loaded_by(statement):
    program = f"import sys\n{statement}\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert ran.stderr == ""
    return ran.stdout.split()


def test_importing_learner_loads_nothing_that_a_run_may_not_need():
    assert loaded_by("import learner, learner.metrics, learner.data, learner.events") == []


def test_commands_that_read_the_files_of_runs_do_without_jax():
    program = "import sys, learner.cli.{}; print('jax' in sys.modules)"
    found = {}
    for command in ("runs", "watch", "training"):
        ran = subprocess.run(
            [sys.executable, "-c", program.format(command)], capture_output=True, text=True, check=True
        )
        found[command] = ran.stdout
    assert found == {"runs": "False\n", "watch": "False\n", "training": "True\n"}


def test_what_is_imported_when_it_is_asked_for():
    """What checkers of types read is what a program gets."""
    node = next(n for n in TREES["learner"].body if isinstance(n, ast.If) and isinstance(n.test, ast.Name))
    said = {alias.name: each.module for each in node.body for alias in each.names}
    assert said == learner._PLACES
    assert sorted(said) == learner.__all__
    assert {*said} <= {*dir(learner)}
    with pytest.raises(AttributeError, match="module 'learner' has no attribute 'Lerner'"):
        learner.Lerner  # noqa: B018


def test_this_would_be_noticed():
    assert loaded_by("import rich") == ["rich"]


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", PATHS)
def test_every_module_says_what_it_is(module):
    assert ast.get_docstring(TREES[module])


def public(tree):
    """Public functions and classes of a module, and the public methods of those classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef | ast.ClassDef) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner


@pytest.mark.parametrize("module", PATHS)
def test_everything_public_says_what_it_does(module):
    assert [name for name, node in public(TREES[module]) if not ast.get_docstring(node)] == []


@pytest.mark.parametrize(
    "module",
    [
        "learner",
        *(f"learner.{part}" for part in ("data", "data.sources", "loggers", "metrics", "optimizers", "records")),
        *(f"learner.{part}" for part in ("renderers", "schedules", "strategies")),
    ],
)
def test_public_names_are_one_sorted_list_of_what_is_there(module):
    package = __import__(module, fromlist=["__all__"])
    assert sorted(package.__all__) == list(package.__all__)
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert [name for name in package.__all__ if not getattr(package, name).__doc__] == []
