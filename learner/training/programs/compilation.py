"""Compilation: counting, timing and, on accelerators, caching on disk."""

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from learner.util.executables import WAITED

COMPILED = "/jax/core/compile/backend_compile_duration"
TIMED = COMPILED, "/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration", WAITED
_listeners: list[Callable[[str, float], None]] = []
_lock = threading.Lock()
_registered = False


class CompileTimes:
    """Count the programs compiled inside of the block, and the seconds that this takes.

    JAX calls the listener in the thread that compiles.

    Attributes:
      count: the number of programs.
      seconds: the time of compiling them, in all threads.
      in_thread: the time that the opening thread spent on tracing, lowering, compiling, and waiting for other threads
        to compile.

    >>> with CompileTimes() as times:
    ...     _ = jax.jit(lambda x: x * 3 + 1)(jax.numpy.arange(7))
    >>> times.count >= 1
    True
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = self.in_thread = 0.0
        self._spans: list[tuple[float, float]] = []  # of the thread; they do not overlap
        self._thread = threading.get_ident()

    def _on_event(self, event: str, seconds: float) -> None:
        if event == COMPILED:
            self.count += 1
            self.seconds += seconds
        if threading.get_ident() != self._thread:
            return
        now = time.perf_counter()
        began = now - seconds
        # JAX reports inner functions first: spans within this one are part of it, and must not be counted twice.
        while self._spans and self._spans[-1][0] >= began:
            first, last = self._spans.pop()
            self.in_thread -= last - first
        began = max(began, self._spans[-1][1]) if self._spans else began
        self._spans.append((began, now))
        self.in_thread += now - began

    def __enter__(self) -> "CompileTimes":
        global _registered
        self._thread = threading.get_ident()
        with _lock:
            if not _registered:  # once: JAX has no public way to unregister a listener
                jax.monitoring.register_event_duration_secs_listener(_on_event)
                _registered = True
            _listeners.append(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _listeners.remove(self._on_event)


def _on_event(event: str, duration_secs: float, **_: Any) -> None:
    if event in TIMED:
        # A copy, called without the lock: other threads compile meanwhile, and may open or close a `CompileTimes`.
        with _lock:
            listeners = list(_listeners)
        for listener in listeners:
            listener(event, duration_secs)


@contextlib.contextmanager
def compilation_cache(platform: str, directory: str | None) -> Iterator[str | None]:
    """Keep compiled programs on disk inside the block, through JAX's persistent compilation cache.

    JAX's settings are restored when the block ends, also after an error. JAX's cache object is dropped: JAX binds it to
    the first directory, and would continue to write there.

    Args:
      platform: the platform of the devices. On GPU and TPU, programs are cached by default, in a per-user directory.
      directory: the directory to use instead. Without it, a cache that the user has set is used unchanged.

    Yields:
      The directory, or None if nothing is cached, or if the user has turned JAX's cache off.
    """
    current: str | None = jax.config.values["jax_compilation_cache_dir"]
    if not jax.config.values["jax_enable_compilation_cache"]:
        yield None
    elif directory is None and (current is not None or platform == "cpu"):
        yield current
    else:
        with _configured(_cache_directory(directory)) as settings:
            yield settings["jax_compilation_cache_dir"]


def _cache_directory(directory: str | None) -> str:
    if directory is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        # One for each set of flags: XLA also stores its choice of kernels there, and uses it for any program, even one
        # that must be deterministic.
        flags = " ".join(os.environ.get("XLA_FLAGS", "").split())
        name = f"compilations-{zlib.crc32(flags.encode()):08x}" if flags else "compilations"
        return str(cache / "learner" / name)
    # A relative path would change its meaning when a hook or a notebook changes the working directory.
    return directory if "://" in directory else os.path.abspath(directory)


@contextlib.contextmanager
def _configured(directory: str) -> Iterator[dict[str, Any]]:
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": directory,
        # JAX's own thresholds would not cache small or quickly compiled programs, as most of ours are.
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: jax.config.values[name] for name in settings}
    try:  # around the changes as well: a signal between two of them must not leave one
        for name, value in settings.items():
            jax.config.update(name, value)
        reset_cache()
        yield settings
    finally:
        for name, value in settings.items():
            if jax.config.values[name] == value:  # the user may have set another one meanwhile
                jax.config.update(name, before[name])
        reset_cache()
