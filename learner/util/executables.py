"""Executables shared between programs: a program identical to an earlier one is not compiled again."""

import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from learner.util.default_device import default_device

MOST = 64  # executables to keep: a run has some ten, and on an accelerator each takes device memory
LARGEST = 2**24  # characters of a program; longer ones have large constants, which executables keep in memory
# XLA spends most of its time on loops, such as those of random numbers. Level 1 compiles these three times as fast as
# level 3, with the same bits; level 0 has others.
FASTER_TO_COMPILE = {"xla_backend_optimization_level": 1}
WAITED = "/learner/compile/wait_duration"  # an event of JAX: a thread waited for another thread's compilation
# A callback is an index or an address in the text of a program, so different functions have the same text.
THREADS = "learner-compile"  # the names of threads that compile
UNSHARED = "callback", "CustomSPMDPartitioning"
# XLA packs them in loops, which JAX's check of an executable's arguments rejects.
PACKED = ("int2", "uint2", "int4", "uint4")

_executables: collections.OrderedDict[Hashable, concurrent.futures.Future[Any]] = collections.OrderedDict()
_lock = threading.Lock()


def share(jitted: Any, devices: Sequence[Any], varying: Sequence[int] = (), run_once: bool = False) -> Any:
    """Return a jitted program that shares its executables with all programs of the process whose lowered text,
    arguments, devices and compiler settings are the same.

    Each program is traced and lowered, but compiled only once. A call costs as much as a call of the jitted function.
    The `MOST` newest executables outlive their programs; they reference neither Python functions nor their arrays.

    Args:
      jitted: the result of `jax.jit`. It is returned unchanged if its executables cannot be shared: with several
        processes, and in JAX's debugging modes.
      devices: the devices on which it runs.
      varying: the indices of arguments whose shapes, dtypes or shardings may change from call to call. For all other
        arguments they must not change.
      run_once: compile faster at the cost of the program's speed. Its results are the same to the bit.

    >>> import jax.numpy as jnp
    >>> first, second = (share(jax.jit(lambda x: 2 * x), jax.devices()[:1]) for _ in range(2))
    >>> print(first(jnp.float32(1)), second(jnp.float32(3)))   # one compilation
    2.0 6.0
    """
    settings = jax.config.values
    # Constants may be hidden arguments, which are not in the text. Processes must compile the same programs, as
    # compilers for accelerators communicate. The debugging modes run a program's operations one by one.
    modes = "jax_use_simplified_jaxpr_constants", "jax_disable_jit", "jax_debug_nans", "jax_debug_infs"
    in_a_mode = any(settings.get(mode) or getattr(jax.config, mode, False) for mode in modes)
    if jax.process_count() > 1 or in_a_mode:
        return jitted
    faster = run_once and devices[0].platform == "cpu" and not settings["jax_disable_most_optimizations"]
    return _SharedProgram(jitted, tuple(devices), tuple(varying), FASTER_TO_COMPILE if faster else {})


def compile_ahead(program: Any, threads: concurrent.futures.Executor, *arguments: Any) -> None:
    """Compile a program of `share` for these arguments in another thread. Calls wait for a compilation that has begun.

    It is traced and lowered in this thread, as JAX's settings may be thread-local. Programs that are not shared are
    ignored.
    """
    if isinstance(program, _SharedProgram):
        program.compile_ahead(threads, *arguments)


def executable_of(program: Any, *arguments: Any) -> Any:
    """Return the executable of a jitted function or a program of `share` for these arguments, which calls of it use.
    Wait for a compilation that has begun in another thread.
    """
    if isinstance(program, _SharedProgram):
        return program.executable(*arguments)
    return program.lower(*arguments).compile()


def scalar_program(function: Callable[[Any], Any]) -> Callable[[int], float]:
    """Return a function of an int32 scalar as one program: called directly, JAX would compile each operation.
    Functions with the same program are compiled once.

    >>> scalar_program(lambda step: step * step)(3)
    9.0
    """
    program = share(jax.jit(function), [default_device()], run_once=True)
    return lambda number: float(program(np.int32(number)))


@contextlib.contextmanager
def compile_threads(count: int | None = None) -> Iterator[concurrent.futures.Executor]:
    """Yield threads for `compile_ahead`. After the block, pending compilations are dropped. After an interrupt, running
    ones are not awaited either: XLA cannot be stopped.
    """
    threads = concurrent.futures.ThreadPoolExecutor(count, THREADS)
    waits = False
    try:
        yield threads
        waits = True
    except Exception:
        waits = True
        raise
    finally:
        threads.shutdown(wait=waits, cancel_futures=True)


def is_compiling() -> bool:
    """Return True if there are threads of `compile_threads`, which Python joins before it exits."""
    return any(thread.name.startswith(THREADS) for thread in threading.enumerate())


def clear() -> None:
    """Drop the executables that no program uses."""
    with _lock:
        _executables.clear()


class _SharedProgram:
    def __init__(
        self, jitted: Any, devices: tuple[Any, ...], varying: tuple[int, ...], options: Mapping[str, Any]
    ) -> None:
        self._jitted, self._devices, self._varying, self._options = jitted, devices, varying, dict(options)
        self._own: dict[Hashable, Any] = {}
        self._ahead: dict[Hashable, tuple[concurrent.futures.Future[Any], tuple[Any, Hashable]]] = {}
        self.trace, self.lower = jitted.trace, jitted.lower

    def __call__(self, *arguments: Any) -> Any:
        key = self._key(arguments)
        executable = self._own.get(key)
        if executable is None:
            executable = self._jitted if _are_packed(arguments) else self._executable(key, arguments)
            self._own[key] = executable
        return executable(*arguments)

    def executable(self, *arguments: Any) -> Any:
        """Return the executable for these arguments; see `executable_of`."""
        if _are_packed(arguments):
            return self._jitted.lower(*arguments).compile()
        key = self._key(arguments)
        if key not in self._own:
            self._own[key] = self._executable(key, arguments)
        return self._own[key]

    def _executable(self, key: Hashable, arguments: tuple[Any, ...]) -> Any:
        return self._wait(key) or self._compile(*self._lower(arguments))

    def compile_ahead(self, threads: concurrent.futures.Executor, *arguments: Any) -> None:
        """Compile in another thread; see `compile_ahead`."""
        key = self._key(arguments)
        if key not in self._own and key not in self._ahead and not _are_packed(arguments):
            lowered = self._lower(arguments)
            self._ahead[key] = threads.submit(self._compile, *lowered), lowered

    def _wait(self, key: Hashable) -> Any:
        """Return the executable that another thread compiles, or compile it if that has not begun. Return None if no
        compilation was requested.
        """
        if key not in self._ahead:
            return None
        future, lowered = self._ahead.pop(key)
        # As lowered for the thread: with other arguments the executable would be shared under another key.
        return self._compile(*lowered) if future.cancel() else _result(future)

    def _key(self, arguments: tuple[Any, ...]) -> Hashable:
        return tuple(self._types(arguments[index]) for index in self._varying)

    def _types(self, tree: Any) -> Hashable:
        leaves, structure = jax.tree.flatten(tree)
        # Shardings take as long as everything else, and one device has only one.
        return structure, *[x.aval for x in leaves], *[x.sharding for x in leaves if len(self._devices) > 1]

    def _lower(self, arguments: tuple[Any, ...]) -> tuple[Any, Hashable]:
        """Return the lowered program, and the key of its executable, or None if it is not shared."""
        traced = self._jitted.trace(*arguments)
        lowered = traced.lower()
        text = lowered.as_text()
        if len(text) > LARGEST or any(word in text for word in UNSHARED):
            return lowered, None
        settings = jax.config.values, getattr(jax.config, "jax_default_device", None), self._options
        avals = traced.jaxpr.in_avals, traced.jaxpr.out_avals  # the text has neither weak types nor those of keys
        digest = hashlib.sha256(f"{text}\n{settings}\n{avals}".encode()).digest()
        places = tuple(getattr(x, "sharding", None) for x in jax.tree.leaves(arguments))
        return lowered, (digest, lowered.in_tree, lowered.out_tree, places, self._devices)

    def _compile(self, lowered: Any, key: Hashable) -> Any:
        compile_ = functools.partial(lowered.compile, compiler_options=self._options)
        if key is None:
            return compile_()
        own: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            with _lock:
                future = _executables[key] = _executables.pop(key, own)
                while len(_executables) > MOST:
                    _executables.popitem(last=False)
            if future is own:
                own.set_result(compile_())
            return _result(future) or compile_()
        finally:
            if not own.done():  # an error, or an interrupt: waiting threads compile by themselves
                with _lock:
                    if _executables.get(key) is own:
                        del _executables[key]
                own.set_result(None)


def _are_packed(arguments: tuple[Any, ...]) -> bool:
    """Return True if an array has several numbers in a byte; see `PACKED`."""
    return any(getattr(getattr(x, "dtype", None), "name", "") in PACKED for x in jax.tree.leaves(arguments))


def _result(future: concurrent.futures.Future[Any]) -> Any:
    """Return the executable, waiting for another thread to finish it if needed."""
    began = time.perf_counter()
    is_done = future.done()
    result = future.result()
    if not is_done:
        jax.monitoring.record_event_duration_secs(WAITED, time.perf_counter() - began)
    return result
