"""Tests of batches of several lengths in two processes: the numbers are those of one process, or all processes end."""

import json

import jax
import numpy as np
import pytest

from tests.support.processes import ROOT, start

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("compiled_once")]

PROGRAM = ROOT / "tests" / "support" / "padded.py"
EQUAL = [6] * 8  # a batch whose halves have one length
OTHER = [3, 5, 4, 5, 9, 7, 8, 9]  # a batch whose halves are padded to other lengths


def run(directory, count, expect=0, **options):
    """Return the last lines of `count` processes, which have two devices together."""
    given = ["localhost:{port}", "{count}", "{index}", directory]
    text = json.dumps(options).replace("{", "{{").replace("}", "}}")
    cache = {
        "JAX_COMPILATION_CACHE_DIR": jax.config.values["jax_compilation_cache_dir"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    ended = start([PROGRAM, *given, text], count, devices=2 // count, timeout=100, **cache)
    assert [process.code for process in ended] == [expect] * count, "\n".join(
        f"{process.code}\n{process.out[-800:]}\n{process.err[-3000:]}" for process in ended
    )
    return [json.loads(process.out.splitlines()[-1]) for process in ended]


def assert_equal_numbers(expected, *others):
    for other in others:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=2e-5), expected, other)


@pytest.mark.parametrize(
    ("batcher", "lengths", "accumulate"),
    [
        ("pad", EQUAL + OTHER, 2),
        ("declared", OTHER + EQUAL, 1),
        ("pack", EQUAL + OTHER, 1),
    ],
)
def test_two_processes_have_the_numbers_of_one(tmp_path, batcher, lengths, accumulate):
    """The loss depends on the padding. The packed batches have 4 rows, 2 in each process, and 5 rows, in both."""
    options = {"batcher": batcher, "lengths": lengths, "accumulate": accumulate}
    (expected,) = run(tmp_path / "one", 1, **options)
    assert_equal_numbers(expected, *run(tmp_path / "two", 2, **options))
