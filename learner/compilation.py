"""Compilations: counted, timed and, on accelerators, kept on disk."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

COMPILED = "/jax/core/compile/backend_compile_duration"
MADE = (COMPILED, "/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration")
_listeners: list[Callable[[str, float], None]] = []
_lock = threading.Lock()
_registered = False


class CompileTimes:
    """Counts the programs that are compiled while it is open, and the seconds that takes.

    Attributes:
      count: how many programs.
      seconds: of compiling them, in all threads.
      own: seconds of tracing, lowering and compiling in the thread that opened this.

    >>> with CompileTimes() as times:
    ...     _ = jax.jit(lambda x: x * 3 + 1)(jax.numpy.arange(7))
    >>> times.count >= 1
    True
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = self.own = 0.0
        self._spans: list[tuple[float, float]] = []  # of the thread, apart from each other
        self._thread = threading.get_ident()

    def _heard(self, event: str, seconds: float) -> None:
        if event == COMPILED:
            self.count += 1
            self.seconds += seconds
        if threading.get_ident() != self._thread:
            return
        now = time.perf_counter()
        began = now - seconds
        while self._spans and self._spans[-1][0] >= began:  # a part of this, such as a function that it calls
            first, last = self._spans.pop()
            self.own -= last - first
        began = max(began, self._spans[-1][1]) if self._spans else began
        self._spans.append((began, now))
        self.own += now - began

    def __enter__(self) -> "CompileTimes":
        global _registered
        self._thread = threading.get_ident()
        with _lock:
            if not _registered:  # JAX has no public way to take a listener back
                jax.monitoring.register_event_duration_secs_listener(_heard)
                _registered = True
            _listeners.append(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            _listeners.remove(self._heard)


def _heard(event: str, duration_secs: float, **_: Any) -> None:
    if event in MADE:
        with _lock:
            listeners = list(_listeners)
        for listener in listeners:
            listener(event, duration_secs)


def use_cache(platform: str, directory: str | None) -> str | None:
    """Turns JAX's persistent compilation cache on: in `directory`, or on GPU and TPU in a directory of the user's.

    A cache that is already set is left alone. Returns where it is, or `None`.
    """
    current: str | None = jax.config.values.get("jax_compilation_cache_dir")
    if current is None and directory is None and platform == "cpu":
        return None
    if directory is None and current is not None:
        return current
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = directory or str(cache / "learner" / "compilations")
    jax.config.update("jax_compilation_cache_dir", place)
    # JAX's own thresholds would keep neither small nor quickly compiled programs, which is what most of ours are.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return place
