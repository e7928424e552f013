"""Tests of executables that are shared by programs that compute the same."""

import concurrent.futures
import gc
import subprocess
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.training.programs.compilation import CompileTimes
from learner.util import executables
from learner.util.executables import share

DEVICES = jax.devices()


@pytest.fixture(autouse=True)
def fresh():
    executables.clear()
    yield
    executables.clear()


def scale(factor, **options):
    return share(jax.jit(lambda x: x * factor, **options), DEVICES[:1])


def count_compilations(*calls):
    """Return the number of programs that these calls compile, and their results."""
    with CompileTimes() as compilations:
        results = [call() for call in calls]
    return compilations.count, results


def test_equal_programs_are_compiled_once():
    x, y = jnp.arange(3.0), jnp.ones(3)
    count, results = count_compilations(lambda: scale(2.5)(x), lambda: scale(2.5)(y))
    assert count == 1
    np.testing.assert_array_equal(results, [[0, 2.5, 5], [2.5] * 3])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: scale(2.0)(jnp.ones(3)), lambda: scale(3.0)(jnp.ones(3))),
        (lambda: scale(np.float32([1, 2, 3]))(jnp.ones(3)), lambda: scale(np.float32([1, 2, 4]))(jnp.ones(3))),
        (lambda: scale(np.arange(3e4, dtype=np.float32))(1.0), lambda: scale(-np.arange(3e4, dtype=np.float32))(1.0)),
        (lambda: scale(2)(jnp.ones(3)), lambda: scale(2)(jnp.ones(3, int))),
        (lambda: scale(2)(jnp.ones(3)), lambda: scale(2)(jnp.ones(4))),
        (lambda: scale(2)([jnp.ones(())][0]), lambda: scale(2)(1.0)),  # another weak type
        (
            lambda: scale(2)(jax.device_put(jnp.ones(3), DEVICES[0])),
            lambda: scale(2)(jax.device_put(jnp.ones(3), DEVICES[1])),
        ),
        (lambda: scale(2)(jnp.ones(3)), lambda: scale(2, donate_argnums=0)(jnp.ones(3))),
    ],
    ids=["scalar", "constant", "large constant", "dtype", "shape", "weak type", "device", "donation"],
)
def test_different_programs_are_not_shared(one, other):
    first, second = one(), other()
    again = share(jax.jit(lambda x: x), DEVICES[:1])
    assert again(1.0) == 1
    for call, shared in ((one, first), (other, second)):
        executables.clear()
        alone = call()
        assert alone.dtype == shared.dtype
        assert alone.weak_type == shared.weak_type
        assert alone.devices() == shared.devices()
        np.testing.assert_array_equal(alone, shared)


def test_compiler_settings_distinguish_programs():
    x = jnp.ones(3)
    count_compilations(lambda: scale(2)(x))
    with jax.disable_jit(False):
        assert count_compilations(lambda: scale(2)(x))[0] == 0
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", not before)
    try:
        assert count_compilations(lambda: scale(2)(x))[0] == 1
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def test_shape_of_one_argument_may_vary():
    program = share(jax.jit(lambda x, y: x + y.sum().astype(x.dtype)), DEVICES[:1], [1])
    one = jnp.float32(1)
    for length in (2, 3, 2):
        assert program(one, jnp.ones(length)) == 1 + length
    assert program(one, jnp.ones(2, int)) == 3
    with pytest.raises(TypeError):
        program(jnp.ones(3), jnp.ones(2))


def test_programs_with_callbacks_are_not_shared():
    calls = [], []

    def program(number):
        return jax.jit(lambda x: jax.experimental.io_callback(calls[number].append, None, x))

    for number in (0, 1):
        share(program(number), DEVICES[:1])(jnp.float32(number))
    jax.effects_barrier()
    assert [list(map(float, values)) for values in calls] == [[0], [1]]


def test_executable_keeps_no_function_and_no_array():
    class Model:
        weights = jnp.arange(4.0)

    def run():
        model = Model()
        assert share(jax.jit(lambda x: x + model.weights.size), DEVICES[:1])(1.0) == 5
        return weakref.ref(model)

    reference = run()
    gc.collect()
    assert reference() is None


@pytest.mark.full
def test_program_that_runs_once_has_the_same_bits():
    def make(key):
        normal = jax.random.normal(key, (77, 3)), jax.random.truncated_normal(key, -2.0, 2.0, (33, 5))
        return *normal, jax.random.uniform(key, (1001,), jnp.bfloat16), jax.nn.initializers.orthogonal()(key, (9, 7))

    key = jax.random.key(3)
    for fast, slow in zip(share(jax.jit(make), DEVICES[:1], run_once=True)(key), jax.jit(make)(key), strict=True):
        assert fast.tobytes() == slow.tobytes()


def test_donated_arguments_are_deleted():
    for _ in range(2):
        x = jnp.ones(3)
        jax.block_until_ready(scale(2, donate_argnums=0)(x))
        assert x.is_deleted()


def test_most_recently_used_programs_are_kept(monkeypatch):
    monkeypatch.setattr(executables, "MOST", 2)
    x = jnp.ones(3)
    calls = [lambda n=n: scale(n)(x) for n in (1.5, 2.5, 3.5)]
    assert count_compilations(*calls)[0] == 3
    assert count_compilations(calls[2], calls[1])[0] == 0
    assert count_compilations(calls[0])[0] == 1
    assert count_compilations(calls[1])[0] == 0  # used after the third
    assert count_compilations(calls[2])[0] == 1


def test_threads_share_programs():
    x = jnp.ones(3)
    results = [None] * 8

    def call(number):
        results[number] = scale(1 + number % 2)(x)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(results, [[1 + n % 2] * 3 for n in range(8)])


@pytest.mark.parametrize("mode", [jax.debug_nans, jax.disable_jit])
def test_debugging_modes_apply(mode):
    with mode(True):
        program = scale(2)
        assert program(jnp.ones(())) == 2
        if mode is jax.debug_nans:
            with pytest.raises(FloatingPointError):
                share(jax.jit(jnp.log), DEVICES[:1])(jnp.float32(-1))


USES = [lambda program, x: program(x), lambda program, x: executables.executable_of(program, x)(x)]


class TestCompileAhead:
    @pytest.mark.parametrize("use", USES)
    def test_call_compiles_a_program_that_no_thread_has_started(self, use):
        program, x, free = scale(7.5), jnp.ones(3), threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as threads, CompileTimes() as compilations:
            threads.submit(free.wait)
            executables.compile_ahead(program, threads, x)
            np.testing.assert_array_equal(use(program, x), [7.5] * 3)
            free.set()
        assert compilations.count == 1

    @pytest.mark.parametrize("use", USES)
    def test_call_waits_for_a_thread_that_compiles(self, use):
        program, x, begun, free = scale(7.5), jnp.ones(3), threading.Event(), threading.Event()

        def hold(*_, **__):  # JAX calls listeners in the compiling thread
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                free.wait()

        jax.monitoring.register_event_duration_secs_listener(hold)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            executables.compile_ahead(program, threads, x)
            begun.wait()
            threading.Timer(0.01, free.set).start()
            with CompileTimes() as compilations:
                np.testing.assert_array_equal(use(program, x), [7.5] * 3)
        jax.monitoring.unregister_event_duration_listener(hold)
        assert (compilations.count, compilations.in_thread > 0) == (0, True)  # the wait counts

    def test_program_is_shared(self):
        x = jnp.ones(3)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            executables.compile_ahead(scale(8.5), threads, x)
        assert count_compilations(lambda: scale(8.5)(x))[0] == 0

    def test_each_shape_of_a_varying_argument_is_compiled(self):
        program, one = share(jax.jit(lambda x, y: x + y.sum()), DEVICES[:1], [1]), jnp.float32(1)
        arrays = [jax.device_put(np.ones(n, np.float32)) for n in (2, 3, 2)]
        with CompileTimes() as compilations, concurrent.futures.ThreadPoolExecutor(2) as threads:
            for y in arrays:
                executables.compile_ahead(program, threads, one, y)
        assert compilations.count == 2
        assert count_compilations(*[lambda y=y: program(one, y) for y in arrays]) == (0, [3, 4, 3])

    def test_call_compiles_a_cancelled_program(self):
        program, x, began = scale(9.5), jnp.ones(3), threading.Event()
        threads = concurrent.futures.ThreadPoolExecutor(1)
        threads.submit(began.wait)
        executables.compile_ahead(program, threads, x)
        threads.shutdown(wait=False, cancel_futures=True)
        began.set()
        np.testing.assert_array_equal(program(x), [9.5] * 3)

    def test_cancelled_program_is_shared_once_compiled(self):
        """Compiling ahead has shapes without a device, while the call has arrays."""
        shape, x = jax.ShapeDtypeStruct((3,), jnp.float32), jnp.ones(3)
        program, began, cancelled = scale(10.5), threading.Event(), concurrent.futures.ThreadPoolExecutor(1)
        cancelled.submit(began.wait)
        executables.compile_ahead(program, cancelled, shape)
        cancelled.shutdown(wait=False, cancel_futures=True)
        began.set()
        program(x)
        with CompileTimes() as compilations, concurrent.futures.ThreadPoolExecutor(1) as threads:
            executables.compile_ahead(scale(10.5), threads, shape)
        assert compilations.count == 0

    def test_settings_of_the_submitting_thread_apply(self):
        program, x, y = share(jax.jit(lambda x, y: x + y), DEVICES[:1]), jnp.bfloat16(1), jnp.float32(2)
        with concurrent.futures.ThreadPoolExecutor(1) as threads, jax.numpy_dtype_promotion("standard"):
            executables.compile_ahead(program, threads, x, y)  # in other threads, promotion is strict
            assert program(x, y) == 3

    def test_call_raises_the_error_of_the_compiler(self):
        program = share(jax.jit(lambda x: jax.ffi.ffi_call("no_such_target", x)(x)), DEVICES[:1])
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            executables.compile_ahead(program, threads, jnp.ones(3))
            with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_target"):
                program(jnp.ones(3))

    def test_interrupt_affects_one_thread_only(self, monkeypatch):
        """After an interrupted compilation, the next caller compiles the program, even one that already waits."""
        x, compiling, waiting = jnp.ones(3), threading.Event(), threading.Event()
        first, second = scale(11.5), scale(11.5)
        (original,) = {type(first.lower(x)).compile}

        def interrupted(lowered, **options):
            monkeypatch.setattr(type(lowered), "compile", original)
            compiling.set()
            waiting.wait()
            raise KeyboardInterrupt

        monkeypatch.setattr(type(first.lower(x)), "compile", interrupted)
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            one = threads.submit(first, x)
            compiling.wait()
            other = threads.submit(second, x)
            threading.Timer(0.05, waiting.set).start()
            with pytest.raises(KeyboardInterrupt):
                one.result()
            np.testing.assert_array_equal(other.result(), [11.5] * 3)
        np.testing.assert_array_equal(first(x), [11.5] * 3)

    def test_program_that_is_not_shared_is_not_compiled_ahead(self):
        with concurrent.futures.ThreadPoolExecutor(1) as threads, CompileTimes() as compilations:
            executables.compile_ahead(jax.jit(lambda x: x), threads, jnp.ones(3))
        assert compilations.count == 0


def test_interrupt_does_not_wait_for_compiling_threads():
    done = threading.Event()
    with pytest.raises(KeyboardInterrupt), executables.compile_threads(1) as threads:  # noqa: PT012
        running, waiting = threads.submit(done.wait), threads.submit(done.wait)
        raise KeyboardInterrupt
    assert executables.is_compiling()
    assert waiting.cancelled()
    done.set()
    assert running.result(60)


@pytest.mark.full
def test_interrupted_command_ends_at_once():
    code = """
import sys, threading
from learner.cli import main
from learner.util.executables import compile_threads

def run(words):
    with compile_threads(1) as threads:
        threads.submit(threading.Event().wait)
        raise KeyboardInterrupt

main._run = run
sys.exit(main.main(["fit"]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 130
