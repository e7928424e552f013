"""Executables that programs share."""

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


def times(factor, **options):
    return share(jax.jit(lambda x: x * factor, **options), DEVICES[:1])


def compiled(*calls):
    """The number of programs that these calls compile, and their results."""
    with CompileTimes() as found:
        results = [call() for call in calls]
    return found.count, results


def test_the_same_program_is_compiled_once():
    x, y = jnp.arange(3.0), jnp.ones(3)
    count, results = compiled(lambda: times(2.5)(x), lambda: times(2.5)(y))
    assert count == 1
    np.testing.assert_array_equal(results, [[0, 2.5, 5], [2.5] * 3])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: times(2.0)(jnp.ones(3)), lambda: times(3.0)(jnp.ones(3))),
        (lambda: times(np.float32([1, 2, 3]))(jnp.ones(3)), lambda: times(np.float32([1, 2, 4]))(jnp.ones(3))),
        (lambda: times(np.arange(3e4, dtype=np.float32))(1.0), lambda: times(-np.arange(3e4, dtype=np.float32))(1.0)),
        (lambda: times(2)(jnp.ones(3)), lambda: times(2)(jnp.ones(3, int))),
        (lambda: times(2)(jnp.ones(3)), lambda: times(2)(jnp.ones(4))),
        (lambda: times(2)([jnp.ones(())][0]), lambda: times(2)(1.0)),  # another weak type
        (
            lambda: times(2)(jax.device_put(jnp.ones(3), DEVICES[0])),
            lambda: times(2)(jax.device_put(jnp.ones(3), DEVICES[1])),
        ),
        (lambda: times(2)(jnp.ones(3)), lambda: times(2, donate_argnums=0)(jnp.ones(3))),
    ],
    ids=["scalar", "constant", "large constant", "dtype", "shape", "weak type", "device", "donation"],
)
def test_other_programs_are_not_shared(one, other):
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


def test_settings_of_the_compiler_count():
    x = jnp.ones(3)
    compiled(lambda: times(2)(x))
    with jax.disable_jit(False):
        assert compiled(lambda: times(2)(x))[0] == 0
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", not before)
    try:
        assert compiled(lambda: times(2)(x))[0] == 1
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


def test_an_argument_may_vary():
    program = share(jax.jit(lambda x, y: x + y.sum().astype(x.dtype)), DEVICES[:1], [1])
    one = jnp.float32(1)
    for length in (2, 3, 2):
        assert program(one, jnp.ones(length)) == 1 + length
    assert program(one, jnp.ones(2, int)) == 3
    with pytest.raises(TypeError):
        program(jnp.ones(3), jnp.ones(2))


def test_callbacks_are_those_of_their_own_program():
    calls = [], []

    def program(number):
        return jax.jit(lambda x: jax.experimental.io_callback(calls[number].append, None, x))

    for number in (0, 1):
        share(program(number), DEVICES[:1])(jnp.float32(number))
    jax.effects_barrier()
    assert [list(map(float, each)) for each in calls] == [[0], [1]]


def test_an_executable_keeps_no_function_and_no_array():
    class Model:
        weights = jnp.arange(4.0)

    def run():
        model = Model()
        assert share(jax.jit(lambda x: x + model.weights.size), DEVICES[:1])(1.0) == 5
        return weakref.ref(model)

    gone = run()
    gc.collect()
    assert gone() is None


@pytest.mark.full
def test_a_program_that_runs_once_has_the_same_bits():
    def make(key):
        normal = jax.random.normal(key, (77, 3)), jax.random.truncated_normal(key, -2.0, 2.0, (33, 5))
        return *normal, jax.random.uniform(key, (1001,), jnp.bfloat16), jax.nn.initializers.orthogonal()(key, (9, 7))

    key = jax.random.key(3)
    for fast, slow in zip(share(jax.jit(make), DEVICES[:1], run_once=True)(key), jax.jit(make)(key), strict=True):
        assert fast.tobytes() == slow.tobytes()


def test_donated_arguments_are_gone():
    for _ in range(2):
        x = jnp.ones(3)
        jax.block_until_ready(times(2, donate_argnums=0)(x))
        assert x.is_deleted()


def test_the_newest_are_kept(monkeypatch):
    monkeypatch.setattr(executables, "MOST", 2)
    x = jnp.ones(3)
    calls = [lambda n=n: times(n)(x) for n in (1.5, 2.5, 3.5)]
    assert compiled(*calls)[0] == 3
    assert compiled(calls[2], calls[1])[0] == 0
    assert compiled(calls[0])[0] == 1
    assert compiled(calls[1])[0] == 0  # it is newer than the third
    assert compiled(calls[2])[0] == 1


def test_threads_may_share():
    x = jnp.ones(3)
    results = [None] * 8

    def call(number):
        results[number] = times(1 + number % 2)(x)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(results, [[1 + n % 2] * 3 for n in range(8)])


@pytest.mark.parametrize("mode", [jax.debug_nans, jax.disable_jit])
def test_debugging_modes_work(mode):
    with mode(True):
        program = times(2)
        assert program(jnp.ones(())) == 2
        if mode is jax.debug_nans:
            with pytest.raises(FloatingPointError):
                share(jax.jit(jnp.log), DEVICES[:1])(jnp.float32(-1))


class TestCompileAhead:
    def test_a_call_compiles_what_no_thread_has_begun(self):
        program, x, free = times(7.5), jnp.ones(3), threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as threads, CompileTimes() as found:
            threads.submit(free.wait)
            executables.compile_ahead(program, threads, x)
            np.testing.assert_array_equal(program(x), [7.5] * 3)
            free.set()
        assert found.count == 1

    def test_a_call_waits_for_a_thread_that_has_begun(self):
        program, x, begun, free = times(7.5), jnp.ones(3), threading.Event(), threading.Event()

        def hold(*_, **__):  # JAX calls it in the thread that has compiled
            if threading.current_thread() is not threading.main_thread():
                begun.set()
                free.wait()

        jax.monitoring.register_event_duration_secs_listener(hold)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            executables.compile_ahead(program, threads, x)
            begun.wait()
            threading.Timer(0.01, free.set).start()
            with CompileTimes() as found:
                np.testing.assert_array_equal(program(x), [7.5] * 3)
        jax.monitoring.unregister_event_duration_listener(hold)
        assert (found.count, found.in_thread > 0) == (0, True)  # the wait counts

    def test_it_is_shared(self):
        x = jnp.ones(3)
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            executables.compile_ahead(times(8.5), threads, x)
        assert compiled(lambda: times(8.5)(x))[0] == 0

    def test_each_kind_of_a_varying_argument_by_itself(self):
        program, one = share(jax.jit(lambda x, y: x + y.sum()), DEVICES[:1], [1]), jnp.float32(1)
        arrays = [jax.device_put(np.ones(n, np.float32)) for n in (2, 3, 2)]
        with CompileTimes() as found, concurrent.futures.ThreadPoolExecutor(2) as threads:
            for y in arrays:
                executables.compile_ahead(program, threads, one, y)
        assert found.count == 2
        assert compiled(*[lambda y=y: program(one, y) for y in arrays]) == (0, [3, 4, 3])

    def test_what_was_given_up_is_compiled_by_the_call(self):
        program, x, began = times(9.5), jnp.ones(3), threading.Event()
        threads = concurrent.futures.ThreadPoolExecutor(1)
        threads.submit(began.wait)
        executables.compile_ahead(program, threads, x)
        threads.shutdown(wait=False, cancel_futures=True)
        began.set()
        np.testing.assert_array_equal(program(x), [9.5] * 3)

    def test_what_was_given_up_is_shared_as_what_a_thread_compiles(self):
        """Its arguments were shapes, which have no device, and the call has arrays."""
        shape, x = jax.ShapeDtypeStruct((3,), jnp.float32), jnp.ones(3)
        program, began, given_up = times(10.5), threading.Event(), concurrent.futures.ThreadPoolExecutor(1)
        given_up.submit(began.wait)
        executables.compile_ahead(program, given_up, shape)
        given_up.shutdown(wait=False, cancel_futures=True)
        began.set()
        program(x)
        with CompileTimes() as found, concurrent.futures.ThreadPoolExecutor(1) as threads:
            executables.compile_ahead(times(10.5), threads, shape)
        assert found.count == 0

    def test_settings_of_the_thread_that_asks_count(self):
        program, x, y = share(jax.jit(lambda x, y: x + y), DEVICES[:1]), jnp.bfloat16(1), jnp.float32(2)
        with concurrent.futures.ThreadPoolExecutor(1) as threads, jax.numpy_dtype_promotion("standard"):
            executables.compile_ahead(program, threads, x, y)  # the threads have the strict promotion of the tests
            assert program(x, y) == 3

    def test_an_error_of_the_compiler_is_raised_by_the_call(self):
        program = share(jax.jit(lambda x: jax.ffi.ffi_call("no_such_target", x)(x)), DEVICES[:1])
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            executables.compile_ahead(program, threads, jnp.ones(3))
            with pytest.raises(jax.errors.JaxRuntimeError, match="no_such_target"):
                program(jnp.ones(3))

    def test_an_interrupt_is_that_of_its_own_thread(self, monkeypatch):
        """A program whose compilation was interrupted is compiled by whoever needs it next, also by one who waits."""
        x, compiling, waiting = jnp.ones(3), threading.Event(), threading.Event()
        first, second = times(11.5), times(11.5)
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

    def test_a_program_that_shares_nothing_is_left_alone(self):
        with concurrent.futures.ThreadPoolExecutor(1) as threads, CompileTimes() as found:
            executables.compile_ahead(jax.jit(lambda x: x), threads, jnp.ones(3))
        assert found.count == 0


def test_an_interrupt_waits_for_no_thread_that_compiles():
    done = threading.Event()
    with pytest.raises(KeyboardInterrupt), executables.compile_threads(1) as threads:  # noqa: PT012
        running, waiting = threads.submit(done.wait), threads.submit(done.wait)
        raise KeyboardInterrupt
    assert executables.is_compiling()
    assert waiting.cancelled()
    done.set()
    assert running.result(60)


def test_an_interrupted_command_ends_at_once():
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
