"""Tests of batches of several lengths in two processes: the numbers are those of one process, or all processes end."""

import json

import jax
import numpy as np
import pytest

from tests.support.processes import ROOT, start
from tests.support.runs import saved_steps

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


REFUSED = [
    ("function", False, EQUAL + OTHER, "batch 2 in pass 1 of the train data has mask [4, 5] in process 0, mask [4, 9]"),
    ("pad", True, EQUAL + OTHER, "batch 2 in pass 1 of the train data has mask [4, 5] in process 0, mask [4, 9]"),
    ("function", False, OTHER + EQUAL, "batch 1 in pass 1 of the train data has mask [4, 5] in process 0, mask [4, 9]"),
]


@pytest.mark.parametrize(("batcher", "own", "lengths", "text"), REFUSED)
def test_parts_of_batches_with_other_shapes_end_all_processes(tmp_path, batcher, own, lengths, text):
    """Both programs would run, with wrong numbers. No checkpoint has the result."""
    options = {"batcher": batcher, "own": own, "lengths": lengths, "accumulate": 2, "epochs": 9}
    for end in run(tmp_path / "run", 2, expect=2, **options):
        assert text in end["error"]
        assert "in process 1: " in end["error"]
        assert "Pad(length=n)" in end["error"]
        assert "programs" not in end["error"]
    assert not saved_steps(tmp_path / "run")


def test_an_evaluation_of_parts_with_other_shapes_ends_all_processes(tmp_path):
    for lengths, batch in [(OTHER, 1), (EQUAL + OTHER, 2)]:
        for end in run(tmp_path / "run", 2, expect=2, batcher="function", evaluate=True, lengths=lengths):
            text = f"batch {batch} in pass 1 of the valid data has mask [4, 5] in process 0, mask [4, 9] in process 1"
            assert text in end["error"]
