"""Every test runs under the strictest rules that JAX has, on eight simulated devices."""

import sys
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

sys.path.insert(0, str(Path(__file__).parent / "support"))  # what several test files share


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
