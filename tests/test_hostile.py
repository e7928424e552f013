"""Check that no file in a run's directory, and no name, makes a run execute code or write elsewhere.

Rejections of single files are tested with their readers: `tests/data/test_npz.py`, `tests/runs/test_log_cutting.py`,
`tests/runs/test_appended.py`, `tests/runs/test_journal.py`, `tests/training/files/test_directory.py`,
`tests/cli/configs/test_overrides.py`.
"""

import ast
import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import learner
from learner import Interrupter, LearnerError
from learner.checkpoint.store import CheckpointStore
from learner.cli.main import main
from learner.metrics import LearningRate
from learner.runs.history import read_history
from tests.support.codes import raises_code
from tests.support.runs import STEPS, batches, build_line, logs_of, model_bits, quiet, saved_steps, tree_of

pytestmark = pytest.mark.usefixtures("compiled_once")

# -- the code ----------------------------------------------------------------------------------------------------------

ROOT = Path(learner.__file__).parent

PICKLES = ("_pickle", "cloudpickle", "copyreg", "dbm", "dill", "joblib", "jsonpickle", "marshal", "pickle", "shelve")
RUNS = ("builtins", "cffi", "code", "codeop", "ctypes", "logging.config", "runpy", "subprocess")
BUILTINS = ("__import__", "compile", "eval", "exec")
YAML = ("full_load", "full_load_all", "load", "load_all", "unsafe_load", "unsafe_load_all")
LOADERS = ("CFullLoader", "CLoader", "CUnsafeLoader", "FullLoader", "Loader", "UnsafeLoader")
NUMPY = ("load", "read_array", "save", "savez", "savez_compressed", "write_array")
HOOKS = ("__reduce__", "__reduce_ex__", "__setstate__", "find_class")
FIELDS = {ast.FunctionDef: "name", ast.Attribute: "attr", ast.Name: "id", ast.Constant: "value"}

# Why each is safe: the first names come from a config, which is trusted, all other modules are constants, and one
# pickles an exception within the process, as `multiprocessing` would.
ALLOWED = {
    "__init__.py: importlib.import_module",  # public names, and modules of this package
    "cli/configs/importing.py: importlib.import_module",
    "cli/main.py: importlib.import_module",
    "data/pipeline.py: multiprocessing.reduction",
    "data/sources/numpy_files.py: __reduce__",  # travel to worker processes as paths
    "data/sources/database.py: __reduce__",
    "data/sources/text_files.py: __setstate__",
    "errors.py: __reduce__",  # a worker process rebuilds the error from its class, message and code
    "training/definition.py: __reduce__",  # refuses to be pickled
    "util/discovery.py: importlib.import_module",  # modules in one of our packages
    "util/optional.py: importlib.import_module",  # packages of extras, constants
    "cli/beside.py: subprocess",  # runs `learner fit` beside the live view, with the arguments of the command
    "util/slurm.py: subprocess",  # asks squeue for the end of the job, with constants and a number
    "training/files/run_metadata.py: subprocess",  # asks git for the commit, with constants
    "distributed/departure.py: ctypes",  # keeps JAX's objects alive; no file determines what it calls
}


def findings(tree):
    """Return the calls in a module that could run code named by a file."""
    names = {}  # full names by local names, according to imports
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            whole = {alias.name.split(".")[0]: alias.name.split(".")[0] for alias in node.names if not alias.asname}
            names |= whole | {alias.asname: alias.name for alias in node.names if alias.asname}
            yield from _modules(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            yield from _modules([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    for node in nodes:
        field = FIELDS.get(type(node))
        if field and getattr(node, field) in HOOKS:
            yield getattr(node, field)
        if isinstance(node, ast.Name) and node.id in BUILTINS:
            yield node.id
        if isinstance(node, ast.Name | ast.Attribute) and (path := _path(node, names)):
            yield from _risky(path)
        if isinstance(node, ast.Call):
            yield from _arrays(node, _path(node.func, names))
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allow_pickle"


def _modules(names):
    for name in names:
        parts = name.split(".")
        if {".".join(parts[: i + 1]) for i in range(len(parts))} & {*PICKLES, *RUNS}:
            yield parts[0]
        if name == "multiprocessing.reduction":
            yield name


def _path(node, names):
    """Return `numpy.load` for `np.load`; empty for anything but a dotted name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    inner = _path(node.value, names) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner else ""


def _risky(path):
    module, _, name = path.rpartition(".")
    runs = path in ("importlib.import_module", "importlib.__import__", "os.system", "os.popen")
    starts = module == "os" and name.startswith(("exec", "spawn", "posix_spawn"))
    loads = module.split(".")[0] == "yaml" and name in (*YAML, *LOADERS)
    if runs or starts or loads:
        yield path


def _arrays(call, path):
    if path.split(".")[0] in ("numpy", "jax") and path.rpartition(".")[2] in NUMPY:
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if given.get("allow_pickle") != "False":
            yield f"{path} without allow_pickle=False"


def test_no_code_is_loaded_from_data():
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
    calls = {f"{module}: {finding}" for module, tree in trees.items() for finding in findings(tree)}
    assert calls == ALLOWED


def test_risky_code_is_detected():
    snippets = [
        *((f"import {name}", name.split(".")[0]) for name in (*PICKLES, *RUNS)),
        ("def f():\n    from pickle import loads as read", "pickle"),
        ("import concurrent.futures, dill as serious", "dill"),
        ("from logging import config", "logging"),
        ("import logging.config", "logging"),
        ("from multiprocessing.reduction import ForkingPickler", "multiprocessing.reduction"),
        ("from multiprocessing import reduction", "multiprocessing.reduction"),
        *((f"x = {name}(text)", name) for name in BUILTINS),
        ("functions = [eval]", "eval"),
        ("import importlib as i\ni.import_module(name)", "importlib.import_module"),
        ("from importlib import import_module as get\nget(name)", "importlib.import_module"),
        ("import os\nos.system(text)", "os.system"),
        ("from os import popen\npopen(text)", "os.popen"),
        ("import os\nos.execvp(text, [])", "os.execvp"),
        ("import os\nos.posix_spawn(text, [], {})", "os.posix_spawn"),
        *((f"import yaml\nyaml.{name}(text)", f"yaml.{name}") for name in YAML),
        *((f"import yaml as y\nx = y.{name}", f"yaml.{name}") for name in LOADERS),
        ("from yaml import unsafe_load\nunsafe_load(text)", "yaml.unsafe_load"),
        ("import yaml.loader\nyaml.loader.UnsafeLoader(text)", "yaml.loader.UnsafeLoader"),
        ("import numpy as np\nnp.load(path)", "numpy.load without allow_pickle=False"),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", "numpy.load without allow_pickle=False"),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", "allow_pickle"),
        ("from numpy import load\nload(path)", "numpy.load without allow_pickle=False"),
        ("import numpy\nnumpy.savez(path, x=x)", "numpy.savez without allow_pickle=False"),
        ("import jax.numpy as jnp\njnp.load(path)", "jax.numpy.load without allow_pickle=False"),
        (
            "import numpy as np\nnp.lib.format.read_array(f)",
            "numpy.lib.format.read_array without allow_pickle=False",
        ),
        ("read(path, allow_pickle=not safe)", "allow_pickle"),
        *((f"class A:\n    def {name}(self): ...", name) for name in HOOKS),
        ("unpickler.find_class = f", "find_class"),
        ("getattr(x, '__reduce__')", "__reduce__"),
    ]
    assert [snippet for snippet, finding in snippets if finding not in set(findings(ast.parse(snippet)))] == []


def test_harmless_code_is_accepted():
    snippets = [
        "import re\nre.compile(text)",
        "strategy.compile(program)",
        "import json\njson.load(file)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import yaml\nyaml.parse(text, Loader=yaml.SafeLoader)\nyaml.safe_dump(x)",
        "import os\nos.open(path)",
        "from importlib import metadata",
    ]
    assert [snippet for snippet in snippets if set(findings(ast.parse(snippet)))] == []


# -- what lies in a run's directory ------------------------------------------------------------------------------------


class Canary:
    """An object that creates a directory when it is unpickled."""

    def __init__(self, place):
        self.place = str(place)

    def __reduce__(self):
        return os.mkdir, (self.place,)


@pytest.fixture
def created(tmp_path, monkeypatch):
    """A directory where a file appears when a pickle is loaded, or a module is imported that only data name."""
    place = tmp_path / "created"
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "canary.py").write_text(f"import os\nos.mkdir({str(place)!r})\n")
    monkeypatch.syspath_prepend(str(modules))
    yield place
    sys.modules.pop("canary", None)


def test_unpickling_is_detected(created):
    pickle.loads(pickle.dumps(Canary(created)))
    assert created.exists()
    created.rmdir()
    __import__("canary")
    assert created.exists()


def resumed(directory):
    builder = quiet(directory, saves=True).with_file_checkpointer(every_steps=4, keep_last=5).num_epochs(3)
    return build_line(builder.resume())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that was stopped within its second epoch."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    interrupter = Interrupter()
    builder = quiet(directory, saves=True).with_file_checkpointer(every_steps=4, keep_last=5).num_epochs(2)
    builder.interrupter(interrupter).every(steps=8, fn=lambda info, model: interrupter.stop("here"))
    build_line(builder).fit(batches(), batches())
    assert saved_steps(directory)[-1] == 8
    assert CheckpointStore(directory / "checkpoint").metrics(8) is not None
    return directory


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def attempt(directory):
    """Resume a changed run and ignore its errors, which other tests check."""
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(Exception):
        return resumed(directory).fit(batches(), batches())
    return None


@pytest.mark.full
def test_unchanged_run_resumes(run):
    """The control: the tests below get as far as reading the changed file."""
    assert attempt(run).summary["steps"] == 3 * STEPS


def changed_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def newest(run):
    return run / "checkpoint/8"


@pytest.mark.full
def test_what_a_checkpoint_names_is_not_imported(run, created):
    command = f"!!python/object/apply:os.mkdir [{str(created)!r}]"
    named = {"py/object": "canary.Thing", "class_path": "canary.Thing", "__reduce__": ["os.mkdir", [str(created)]]}
    state = {"py/reduce": [{"py/type": "os.mkdir"}, [str(created)]], "best": 1.0, "without": 0, "seen": 1}
    further = {"config": f"model: {command}\ntrain: {{class_path: canary.Thing}}\n", "early_stopping": [state]}
    changed_json(newest(run) / "progress/metadata", **named, **further, made_on=named)
    assert attempt(run) is not None
    assert not created.exists()


@pytest.mark.full
def test_handlers_named_in_checkpoint_metadata_are_not_imported(run, created):
    replaced = 0
    for path in newest(run).rglob("*"):
        if path.name in ("_CHECKPOINT_METADATA", "_METADATA", "_sharding"):
            text = path.read_text()
            for name in ("orbax.checkpoint._src.handlers.pytree_checkpoint_handler", "np.ndarray"):
                text = text.replace(name, "canary.Thing")
            replaced += text != path.read_text()
            path.write_text(text)
    assert replaced == 2  # the handler, and the types of the leaves
    attempt(run)
    assert not created.exists()


def test_pickles_and_modules_beside_the_items_are_not_loaded(run, created):
    payload = pickle.dumps(Canary(created))
    for place in [run, *(path for path in run.rglob("*") if path.is_dir())]:
        for name in ("evil.pkl", "checkpoint", "state.msgpack", "model.pickle"):
            if not (place / name).exists():
                (place / name).write_bytes(payload)
        for name in ("__init__.py", "sitecustomize.py", "conftest.py"):
            (place / name).write_text("import canary\n")
    attempt(run)
    assert not created.exists()


def kinds_of_files(directory):
    """Return a file of each kind in a checkpoint."""
    files = [path for place in ("", "state", "progress") for path in (directory / place).rglob("*") if path.is_file()]
    kinds = {path.parent.name if path.parent.name == "d" else path.name: path for path in files}
    return [path.relative_to(directory) for path in kinds.values()]


READ_EACH = """
import contextlib, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = sys.argv[1].split(":")
import test_hostile
for directory in sys.argv[2:]:
    with contextlib.suppress(Exception):
        test_hostile.resumed(directory).evaluate(test_hostile.batches())
print("read", len(sys.argv[2:]))
"""


@pytest.mark.full
def test_pickle_in_place_of_a_checkpoint_file_is_not_loaded(finished, tmp_path, created):
    """Run in a separate process: after failures Orbax leaves reads behind, which raise at some later time."""
    payload, runs = pickle.dumps(Canary(created)), []
    for number, file in enumerate(kinds_of_files(newest(finished))):
        runs.append(shutil.copytree(finished, tmp_path / str(number)))
        (newest(runs[-1]) / file).write_bytes(payload)
    assert len(runs) >= 6
    tests = Path(__file__).parent
    path = ":".join(map(str, (tmp_path / "modules", tests, ROOT.parent)))
    command = [sys.executable, "-c", READ_EACH, path, *map(str, runs)]
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": jax.config.values["jax_compilation_cache_dir"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"read {len(runs)}\n"
    assert not created.exists()


@pytest.mark.full
@pytest.mark.parametrize(
    "file",
    [
        "journal.jsonl",
        "config.yaml",
        *(
            pytest.param(file, marks=pytest.mark.full)
            for file in ("summary.json", "experiment.log", "train/epoch-1/Loss.log")
        ),
    ],
)
def test_pickle_in_place_of_a_log_is_not_loaded(run, created, capsys, file):
    (run / file).write_bytes(pickle.dumps(Canary(created)) + b"\n")
    with warnings.catch_warnings(action="ignore"):
        with contextlib.suppress(LearnerError):
            read_history(run)
        main(["summary", str(run)])
        main(["resume", str(run)])
    attempt(run)
    assert "Traceback" not in capsys.readouterr().err
    assert not created.exists()


@pytest.mark.parametrize("command", ["resume", "evaluate", "predict"])
def test_tags_of_a_config_run_nothing(run, created, capsys, command):
    """A config names code by `class_path`, and the command warns that it trusts it; its YAML is plain nevertheless."""
    for tag in (
        f"!!python/object/apply:os.mkdir [{created}]",
        f"!!python/object/new:os.mkdir [{created}]",
        "!!python/module:canary",
        "!!python/name:canary.Thing",
        "!!python/object:canary.Thing {}",
    ):
        (run / "config.yaml").write_text(f"lr: {tag}\n")
        words = [command, str(run)] + ["data.npz", "-o", "out.npz"] * (command == "predict")
        assert main(words) == 2, tag
        trusted, refused = capsys.readouterr().err.splitlines()[:2]
        assert trusted == f"learner: {run}/config.yaml is trusted: the code that it names is imported and run now"
        assert refused.startswith(f"learner: the config file {run}/config.yaml is not YAML: ")
        assert "python/" in refused
        assert not created.exists(), tag


# -- positions and names that lead elsewhere ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["../outside/epoch-2/Loss.log", "{outside}/epoch-2/Loss.log", "train/../../outside/epoch-2/Loss.log"]
)
def test_a_checkpoint_cannot_shorten_files_elsewhere(run, tmp_path, path):
    outside = tmp_path / "outside"
    (outside / "epoch-2").mkdir(parents=True)
    (outside / "epoch-2/Loss.log").write_text("mine")
    before = tree_of(outside)
    for saved in run.glob("checkpoint/*/progress/metadata"):
        files = {path.format(outside=outside): 0}
        changed_json(saved, log={"epoch_lines": 0, "epoch": 2, "files": files})
    assert attempt(run) is None
    assert tree_of(outside) == before


def test_a_linked_split_does_not_lead_a_resumed_run_elsewhere(run, tmp_path):
    """Otherwise the lines after the checkpoint would be cut there, and others written."""
    (run / "train").rename(tmp_path / "outside")
    with (tmp_path / "outside/epoch-2/Loss.log").open("a") as file:
        file.write("0.5,4\n")
    (run / "train").symlink_to(tmp_path / "outside")
    before = tree_of(tmp_path / "outside")
    with raises_code("directory-unusable"):
        resumed(run).fit(batches(), batches())
    assert tree_of(tmp_path / "outside") == before


NAMES = {
    "../../outside": "it contains a path separator",
    "/absolute": "it contains a path separator",
    "a/b": "it contains a path separator",
    "a\\b": "it contains a path separator",
    "two\nlines": "it contains a character that cannot be printed",
    "\x1b[31mred": "it contains a character that cannot be printed",
    "nul\x00": "it contains a character that cannot be printed",
    "turned\u202earound": "it contains a character that cannot be printed",
    "\ud800": "it contains a character that cannot be printed",
    "long" * 100: "it is longer than 200 bytes",
}
BARE = {".": "it begins with a dot", "..": "it begins with a dot", "\t ": "it is empty"}


def named(name):
    metric = LearningRate()
    metric.name = name
    return metric


def test_a_metric_cannot_have_such_a_name(tmp_path):
    for name, reason in (NAMES | BARE).items():
        with raises_code("run-metric-name-unusable", name=name, reason=reason) as error:
            quiet(tmp_path / "run").metric_train(named(name))
        assert repr(name) in str(error.value)
        assert list(tmp_path.iterdir()) == [], name


def test_a_split_cannot_have_such_a_name(tmp_path):
    learner = build_line(quiet(tmp_path / "run"))
    for name, reason in NAMES.items():
        with raises_code("run-metric-name-unusable", name=f"valid-{name}", reason=reason):
            learner.fit(batches(), {name: batches()})
        assert list(tmp_path.iterdir()) == [], name


@pytest.mark.parametrize("name", ["../../outside", "two\nlines", ".."])
def test_a_number_of_a_hook_cannot_have_such_a_name(tmp_path, name):
    builder = quiet(tmp_path / "run").on_epoch_end(lambda info, model: {name: 1.0})
    with raises_code("run-metric-name-unusable", name=name):
        build_line(builder).fit(batches())
    assert os.listdir(tmp_path) == ["run"]
    assert not list(tmp_path.glob("run/custom/**/*.log"))


@pytest.mark.full
def test_odd_valid_names_stay_below_the_directory(tmp_path):
    names = ["~", "-rf", "$HOME", "a:b", "*", "Größe 5", "con", "é" * 100, "a..b", "%2e%2e%2f"]
    builder = quiet(tmp_path / "run").on_epoch_end(lambda info, model: dict.fromkeys(names, 1.0))
    splits = {name: batches() for name in ["", *names[:-3], ".."]}
    result = build_line(builder.metric_train(named("-rf /"[:-2]))).fit(batches(), splits)
    assert os.listdir(tmp_path) == ["run"]
    written = set(logs_of(tmp_path / "run"))
    assert {f"custom/epoch-1/{name.replace(' ', '_')}.log" for name in names} <= written
    assert {f"valid-{name.replace(' ', '_')}/epoch-1/Loss.log" for name in splits} <= written
    assert read_history(tmp_path / "run") == result.history
    build_line(quiet(tmp_path / "run", overwrite=True)).fit(batches())  # the next run accepts the names as its own
    assert set(logs_of(tmp_path / "run")) == {"train/epoch-1/Loss.log"}


# -- data --------------------------------------------------------------------------------------------------------------


def test_archives_of_objects_are_not_unpickled(tmp_path, created):
    from learner.data.npz import read_npz

    np.savez(tmp_path / "a.npz", x=np.array([Canary(created)], object))
    with np.load(tmp_path / "a.npz", allow_pickle=True) as content:
        assert content["x"].dtype == object  # NumPy would unpickle it if allowed
    assert created.exists()
    created.rmdir()
    with raises_code("npz-unreadable"):
        read_npz(tmp_path / "a.npz")
    assert not created.exists()


@pytest.mark.full
def test_foreign_files_do_not_affect_a_resumed_run(run, finished, tmp_path):
    """Files that do not belong to the run are neither read nor removed."""
    (run / "train/epoch-9").mkdir()
    others = ["evil.pkl", "train/notes.txt", "checkpoint/readme.txt", "downloads/epoch-3/a.log"]
    for name in others:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("mine")
    beside = resumed(run).fit(batches(), batches())
    alone = resumed(shutil.copytree(finished, tmp_path / "alone")).fit(batches(), batches())
    assert model_bits(beside.model) == model_bits(alone.model)
    assert [(run / name).read_text() for name in others] == ["mine"] * len(others)
