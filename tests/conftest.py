"""Every test runs under the strictest rules that JAX has, on eight simulated devices."""

import functools
import gc
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # others would wait in loops, in each process that tests start

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

os.environ["LEARNER_CHECK_OWNERS"] = "1"  # before learner is imported: each part of a run checks who writes to it
fast = False  # whether programs are compiled with fewer passes
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

from learner.util import executables  # noqa: E402  # which reads the environment


def pytest_addoption(parser):
    parser.addoption("--fewer-passes", action="store_true", help="compile faster, also with -m full")


def pytest_xdist_auto_num_workers(config):
    """One worker more than processors: for a quarter of its time the default suite waits for processes and disks."""
    if "not full" not in config.option.markexpr or not hasattr(os, "sched_getaffinity"):
        return None
    return len(os.sched_getaffinity(0)) + 1


def pytest_configure(config):
    """Only tests of accelerators look for one; `JAX_PLATFORMS` says otherwise. A test sets what a terminal is to be.

    The default suite compiles with fewer passes, which halves its time; files that compare the bits of different
    programs ask for `optimized`, and `-m full` compiles as users do, unless it has `--fewer-passes`. Set before JAX's
    backend exists.
    """
    global fast
    fast = "not full" in config.option.markexpr and "or" not in config.option.markexpr.split()
    fast = fast or config.option.fewer_passes
    if jax.__version_info__ < (0, 11):  # whose internals and flags are known
        share_context()
    if fast:
        if jax.__version_info__ < (0, 11):  # a later XLA may not know the flag, and ends the process that has it
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # of the processes that tests start, too
    jax.config.update("jax_disable_most_optimizations", fast)
    executables.MOST = 256  # shared between files, too
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        os.environ.pop(name, None)
    words = (config.option.markexpr or "").split()
    asked = "accelerator" in words and words[max(words.index("accelerator") - 1, 0)] != "not"
    if not asked and "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")


def share_context():
    """Lower all programs into one context of MLIR. JAX makes one for each, which takes a quarter of the time of a small
    program, and 1.2 MB for as long as JAX keeps the program.
    """
    from jax._src.interpreters import mlir

    mlir.make_ir_context = functools.cache(mlir.make_ir_context)
    COMPILED.enough = Compiled.MANY


class Compiled:
    """How many programs were compiled since all were let go. Linux gives a process 65530 pieces of memory; a program
    for eight devices takes up to a hundred, and JAX keeps thousands of programs: a whole run would die of it. They are
    let go between files, where no test counts what the others compiled, unless there is hardly room."""

    FEW, MANY, HALF, MAPS = 400, 4_000, 22_000, 45_000  # programs, with a context each or in one; pieces of memory

    def __init__(self):
        self.count, self.looked, self.frozen, self.enough, self.maps = 0, 0, 0, Compiled.FEW, 0
        jax.monitoring.register_event_duration_secs_listener(self.heard)

    def heard(self, event, seconds, **_):
        self.count += event == "/jax/core/compile/backend_compile_duration"

    def let_go(self):
        self.count, self.looked, self.frozen, self.maps = 0, 0, 0, 0
        gc.unfreeze()
        jax.clear_caches()
        self.freeze()

    def freeze(self):
        """What JAX keeps stays: later collections, such as that of each member of a sweep, need not look through it."""
        self.frozen = self.count
        gc.collect()
        gc.freeze()

    def look(self):
        """Count the pieces after a hundred programs, which have room in any case: looking takes its time."""
        if self.count >= self.looked + 100:
            self.looked = self.count
            maps = Path("/proc/self/maps")
            self.maps = len(maps.read_bytes().splitlines()) if maps.exists() else 0


COMPILED = Compiled()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    COMPILED.look()
    last = nextitem is None or nextitem.path != item.path
    crowded = COMPILED.maps > (Compiled.HALF if last else Compiled.MAPS)
    if crowded:
        executables.clear()
    if crowded or (last and COMPILED.count > COMPILED.enough):
        COMPILED.let_go()
    elif last and COMPILED.count >= COMPILED.frozen + 100:
        COMPILED.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Importing and rewriting tests leaves hardly any garbage: a third of the time went into looking for it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """What is imported by now stays: nobody need look through it for garbage again and again. No bytecode comes to lie
    beside what tests write and import.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)  # JAX's caches make a look through everything slow
    sys.dont_write_bytecode = True


KNOWN = set()


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory):
    """Modules that a test wrote are forgotten after it: the next may write others of the same names."""
    yield
    made = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - KNOWN:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(made):
            del sys.modules[name]
        else:
            KNOWN.add(name)


@pytest.fixture(scope="session")
def _compilations(tmp_path_factory):
    return str(tmp_path_factory.mktemp("compilations"))


@pytest.fixture(scope="module")
def compiled_once(_compilations):
    """Programs that were compiled before are taken from the disk: files that train the same model often ask for it."""
    settings = {
        "jax_compilation_cache_dir": _compilations,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


@pytest.fixture(scope="module")
def optimized():
    """XLA optimizes as it does for users: for files that compare the bits of different programs."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", fast)
    executables.MOST = 256  # shared between files, too
