"""Tests of counting compilations and of the compilation cache."""

import os
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from learner.training.programs.compilation import CompileTimes, compilation_cache
from tests.support.runs import batches, build_line, quiet

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


def compile_one(size):
    """Compile a program that no other test compiles; return a function that calls it again."""
    program = jax.jit(lambda x: x * 2 + size)
    x = jax.device_put(np.zeros(size, np.int32))
    program(x)
    return lambda: program(x)


def test_compilations_are_counted_and_timed_but_not_calls():
    with CompileTimes() as times:
        again = compile_one(3)
        assert times.count == 1
        assert times.seconds > 0
        seconds = times.seconds
        again()
    assert (times.count, times.seconds) == (1, seconds)


def test_only_compilations_inside_the_block_are_counted():
    compile_one(4)
    with CompileTimes() as times:
        pass
    compile_one(5)
    assert (times.count, times.seconds) == (0, 0.0)


def test_counts_may_be_nested():
    with CompileTimes() as outer:
        compile_one(6)
        with CompileTimes() as inner:
            compile_one(7)
        compile_one(8)
    assert (outer.count, inner.count) == (3, 1)


def test_other_threads_are_counted():
    with CompileTimes() as times:
        thread = threading.Thread(target=compile_one, args=(9,))
        thread.start()
        thread.join()
    assert times.count == 1


def test_an_error_ends_the_count():
    with pytest.raises(ZeroDivisionError), CompileTimes() as times:
        _ = 1 / 0
    compile_one(10)
    assert times.count == 0


@pytest.fixture
def settings():
    """Set JAX's cache to its defaults and restore it afterwards; yield a function that returns the settings."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    reset_cache()
    yield lambda: tuple(getattr(jax.config, name) for name in SETTINGS)
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


def used(platform, directory, settings):
    """Return the directory of the cache and JAX's settings inside the block."""
    with compilation_cache(platform, directory) as place:
        return place, settings()


def test_the_cache_is_off_by_default_on_cpus(settings):
    before = settings()
    assert used("cpu", None, settings) == (None, before)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_the_cache_of_accelerators_is_in_the_users_cache_directory(settings, monkeypatch, tmp_path, platform):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    place, before = str(tmp_path / "learner" / "compilations"), settings()
    assert used(platform, None, settings) == (
        place,
        (place, 0.0, 0),
    )  # JAX's defaults would skip small programs
    assert settings() == before


def test_each_set_of_xla_flags_has_its_own_cache(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    places = []
    for flags in ("", "--xla_gpu_deterministic_ops=true", "--a=1 --a=2", " --a=1  --a=2", "--a=2 --a=1"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        places.append(used("gpu", None, settings)[0])
    assert len(set(places)) == 4
    assert places[2] == places[3]  # whitespace does not matter, the order does


def test_without_xdg_the_cache_is_in_the_home_directory(settings, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert used("gpu", None, settings)[0] == str(tmp_path / ".cache" / "learner" / "compilations")


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_given_directory_is_used(settings, tmp_path, monkeypatch, platform):
    monkeypatch.chdir(tmp_path)
    place = str(tmp_path / "here")
    assert used(platform, place, settings) == used(platform, "here", settings) == (place, (place, 0.0, 0))


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_configured_cache_is_not_changed(settings, tmp_path, platform):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    before = settings()
    assert used(platform, None, settings) == (str(tmp_path), before)
    assert settings() == before


def test_a_cache_that_the_user_disabled_stays_off(settings, tmp_path):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        before = settings()
        assert used("gpu", str(tmp_path), settings) == (None, before)
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


def test_a_setting_changed_inside_the_block_is_kept(settings, tmp_path):
    before = settings()
    with compilation_cache("cpu", str(tmp_path / "a")):
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / "b"))
    assert settings() == (str(tmp_path / "b"), *before[1:])


def programs(place):
    """Return the number of programs in a cache."""
    return len(list(place.glob("*-cache"))) if place.exists() else 0


def fit(directory, cache=None, fails=False):
    """Train two steps with programs that are not yet compiled."""
    jax.clear_caches()

    def hook(info, model):
        if fails:
            raise RuntimeError("it fails here")

    builder = quiet(directory, overwrite=True).num_steps(2).every(1, hook)
    build_line(builder if cache is None else builder.compilation_cache(cache)).fit(batches())


@pytest.mark.full
def test_a_cache_contains_only_the_programs_of_its_run(settings, tmp_path):
    """Programs of other runs and of the user are not stored in it, and the settings are restored."""
    before, a, b = settings(), tmp_path / "a", tmp_path / "b"
    fit(tmp_path / "run", a)
    of_a_run = programs(a)
    assert of_a_run > 2
    assert settings() == before
    compile_one(11)
    fit(tmp_path / "run")
    assert programs(a) == of_a_run
    with pytest.raises(RuntimeError, match="it fails here"):
        fit(tmp_path / "run", b, fails=True)
    of_b = programs(b)
    assert (programs(a), settings()) == (of_a_run, before)
    assert 2 < of_b <= of_a_run
    compile_one(12)
    assert (programs(a), programs(b)) == (of_a_run, of_b)


@pytest.mark.full
def test_the_users_cache_is_restored_after_a_run(settings, tmp_path):
    for name, value in zip(SETTINGS, (str(tmp_path / "own"), 0.0, 0), strict=True):
        jax.config.update(name, value)
    compile_one(13)
    own = programs(tmp_path / "own")
    assert own >= 1
    fit(tmp_path / "run", tmp_path / "a")
    assert programs(tmp_path / "a") > 2
    after = programs(tmp_path / "own")  # programs outside the run, such as the copy of the model
    compile_one(14)
    assert programs(tmp_path / "own") == after + 1
    assert settings()[0] == str(tmp_path / "own")


PROGRAM = """
import sys
import jax.monitoring, numpy as np, optax
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
from learner import LearnerBuilder, RegressionOutput
def step(model, batch):
    return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["x"])
builder = LearnerBuilder(sys.argv[1], overwrite=True).renderer(None).with_file_checkpointer(None)
model = {"w": np.zeros((2, 2), np.float32)}
learner = builder.compilation_cache(sys.argv[2]).build(model, optax.sgd, 0.1, train_step=step)
learner.fit([{"x": np.ones((4, 2), np.float32)}] * 3)
print(len(hits))
"""


@pytest.mark.full
def test_a_second_process_loads_its_programs_from_the_cache(tmp_path):
    run = lambda: subprocess.run(  # noqa: E731
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
    )
    assert int(run().stdout) == 0
    assert (tmp_path / "cache").is_dir()
    assert int(run().stdout) >= 2
    assert f"compilations are kept in {tmp_path / 'cache'}" in (tmp_path / "run" / "experiment.log").read_text()
