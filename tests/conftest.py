"""Run every test under JAX's strictest rules, on eight simulated CPU devices."""

import functools
import gc
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # idle threads would spin in every process that tests start

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

# read when learner is imported: assert which thread writes to each part of a run
os.environ["LEARNER_CHECK_OWNERS"] = "1"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell begins with Ctrl-C ignored
fast = False  # True if programs are compiled with fewer optimization passes
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

from learner.util import executables  # noqa: E402  # which reads the environment


def pytest_addoption(parser):
    parser.addoption("--fewer-passes", action="store_true", help="compile faster, also with -m full")


def pytest_xdist_auto_num_workers(config):
    """Return one worker more than processors: both suites wait for processes and disks a quarter of their time."""
    if "full" not in config.option.markexpr or not hasattr(os, "sched_getaffinity"):
        return None
    return len(os.sched_getaffinity(0)) + 1


def pytest_configure(config):
    """Configure JAX before its backend exists.

    Only tests of accelerators look for one, unless `JAX_PLATFORMS` is set. The default suite compiles with fewer
    passes, which halves its time; files that compare the bits of different programs use the fixture `optimized`. `-m
    full` compiles as for users, unless `--fewer-passes` is given. Variables that describe the terminal are removed;
    tests set them.
    """
    global fast
    fast = "not full" in config.option.markexpr and "or" not in config.option.markexpr.split()
    fast = fast or config.option.fewer_passes
    if jax.__version_info__ < (0, 11):  # versions whose internals are known
        share_context()
    if fast:
        if jax.__version_info__ < (0, 11):  # a later XLA may not know the flag, and aborts on unknown flags
            # Otherwise XLA divides a program into up to 32 modules, each of which costs as much as a small program.
            flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # inherited by the processes that tests start
    jax.config.update("jax_disable_most_optimizations", fast)
    executables.MOST = 256  # also shared between files
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        os.environ.pop(name, None)
    words = (config.option.markexpr or "").split()
    on_accelerator = "accelerator" in words and words[max(words.index("accelerator") - 1, 0)] != "not"
    if not on_accelerator and "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")


def share_context():
    """Lower all programs into one MLIR context. JAX creates one per program, which takes a quarter of the time of a
    small program, and 1.2 MB for as long as JAX keeps the program.
    """
    from jax._src.interpreters import mlir

    mlir.make_ir_context = functools.cache(mlir.make_ir_context)
    COMPILED.enough = Compiled.MANY


class Compiled:
    """Count programs compiled since the caches were cleared.

    Linux limits a process to 65530 memory mappings. A program for eight devices takes up to a hundred, and JAX keeps
    thousands of programs, so a whole run would exceed the limit. Caches are cleared between files, where no test counts
    compilations of another, and within a file only when mappings run out.
    """

    # programs with a context each, programs in a shared context; memory mappings between files, within a file
    FEW, MANY, HALF, MAPS = 400, 4_000, 22_000, 45_000

    def __init__(self):
        self.count, self.counted, self.frozen, self.enough, self.maps = 0, 0, 0, Compiled.FEW, 0
        jax.monitoring.register_event_duration_secs_listener(self.on_duration)

    def on_duration(self, event, seconds, **_):
        self.count += event == "/jax/core/compile/backend_compile_duration"

    def clear(self):
        self.count, self.counted, self.frozen, self.maps = 0, 0, 0, 0
        gc.unfreeze()
        jax.clear_caches()
        self.freeze()

    def freeze(self):
        """Freeze the objects that JAX keeps, so that later collections, such as after each member of a sweep, skip
        them.
        """
        self.frozen = self.count
        gc.collect()
        gc.freeze()

    def count_maps(self):
        """Count memory mappings, after every hundred programs only: reading them takes time."""
        if self.count >= self.counted + 100:
            self.counted = self.count
            maps = Path("/proc/self/maps")
            self.maps = len(maps.read_bytes().splitlines()) if maps.exists() else 0


COMPILED = Compiled()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    COMPILED.count_maps()
    last = nextitem is None or nextitem.path != item.path
    crowded = COMPILED.maps > (Compiled.HALF if last else Compiled.MAPS)
    if crowded:
        executables.clear()
    if crowded or (last and COMPILED.count > COMPILED.enough):
        COMPILED.clear()
    elif last and COMPILED.count >= COMPILED.frozen + 100:
        COMPILED.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect tests without garbage collection, which took a third of the time and freed hardly anything."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    """Freeze imported objects, so that garbage collections skip them, and write no bytecode beside modules of tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)  # JAX's caches make full collections slow
    sys.dont_write_bytecode = True


KNOWN = set()


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory):
    """Forget the modules that a test wrote: the next test may write others with the same names."""
    yield
    root = str(tmp_path_factory.getbasetemp())
    for name in sys.modules.keys() - KNOWN:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(root):
            del sys.modules[name]
        else:
            KNOWN.add(name)


@pytest.fixture(scope="session")
def _compilations(tmp_path_factory):
    return str(tmp_path_factory.mktemp("compilations"))


@pytest.fixture(scope="module")
def compiled_once(_compilations):
    """Keep compiled programs on disk, for files that train the same model often."""
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
    """Compile with all passes, as for users: for files that compare the bits of different programs."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", fast)
    executables.MOST = 256  # also shared between files
