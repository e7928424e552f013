"""Check that a checkpoint whose progress no run wrote, with matching checksums, is rejected with an error or has no
effect.
"""

import copy
import functools
import math
import random
import shutil
import warnings

import pytest

from learner import Interrupter, LearnerError, MetricEarlyStopping, ReduceOnPlateau
from tests.support.runs import build_line, model_bits, progress_of, quiet, streamed, tamper, valid_data

pytestmark = pytest.mark.usefixtures("compiled_once")

GONE = object()
ODD = [
    None,
    True,
    -1,
    0,
    7,
    2**31,
    2**63,
    10**400,
    0.5,
    math.inf,
    "",
    "odd",
    [],
    [None],
    {},
    {"": None},
    [[1, 2]],
    GONE,
]


def build(directory):
    builder = quiet(directory, saves=True).num_epochs(3).with_file_checkpointer(every_steps=4, keep_last=9)
    builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=9))
    return builder.resume()


def fit(builder):
    rate = ReduceOnPlateau(0.05, "valid/Loss", factor=0.5, patience=9)
    return build_line(builder, rate).fit(streamed(), valid_data())


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, compiled_once):
    """Return a run that was stopped within its second epoch, its progress, and a function that returns the model of the
    uninterrupted run.
    """
    directory, interrupter = tmp_path_factory.mktemp("stopped") / "run", Interrupter()
    stop = lambda info, model: interrupter.stop("here") if info.step == 8 else None  # noqa: E731
    fit(build(directory).interrupter(interrupter).every(8, stop))
    progress = progress_of(directory, 8)
    assert all((progress["position"]["batch"], progress["plateau"], progress["early_stopping"]))

    @functools.cache
    def resumed():
        return model_bits(fit(build(shutil.copytree(directory, directory.with_name("resumed")))).model)

    return directory, progress, resumed


def places(value, path=()):
    """Yield every path within a JSON value; for lists, the first two items and the last."""
    if path:
        yield path
    listed = {*range(2), len(value) - 1} if isinstance(value, list) and value else ()
    inner = value.items() if isinstance(value, dict) else ((i, value[i]) for i in listed if i < len(value))
    for key, item in inner:
        yield from places(item, (*path, key))


def changed(value, path, odd):
    """Return the value with another value at a path, or without it."""
    mutated = copy.deepcopy(value)
    *above, last = path
    inside = mutated
    for key in above:
        inside = inside[key]
    if odd is GONE:
        del inside[last]
    else:
        inside[last] = odd
    return mutated


def outcome(directory, progress, tmp_path):
    """Return `"refused"`, or the model of the resumed run."""
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.copytree(directory, tmp_path / "run")
    tamper(tmp_path / "run", 8, progress)
    with warnings.catch_warnings(action="ignore"):
        try:
            return model_bits(fit(build(tmp_path / "run")).model)
        except LearnerError:
            return "refused"


def mutations(progress):
    return [(path, odd) for path in places(progress) for odd in ODD]


def check(stopped, tmp_path, chosen):
    directory, progress, _ = stopped
    raw = []
    for path, odd in chosen:
        try:
            outcome(directory, changed(progress, path, odd), tmp_path)
        except Exception as error:
            print(path, repr(odd)[:40], type(error).__name__, error)
            raw.append((path, "gone" if odd is GONE else odd, f"{type(error).__name__}: {error}"[:200]))
    assert raw == []


HARD = [  # each of them raised an error of Python, NumPy or JAX before
    (("format",), "odd"),
    (("root_key",), [7]),
    (("position", "left"), None),
    (("position", "epoch"), 10**400),
    (("data",), {"processes": 7}),
    (("plateau", "best"), ""),
    (("plateau", "rate"), -1),
    (("plateau", "initial"), -1),
    (("early_stopping", 0, "without"), "odd"),
    (("epoch_values",), {"odd": [[1]]}),
    (("log", "files", "train/epoch-2/Loss.log"), 10**400),
    (("log", "checksums"), 7),
]


@pytest.mark.full
def test_malformed_progress_is_refused(stopped, tmp_path):
    directory, progress, resumed = stopped
    for path, odd in HARD:
        ending = outcome(directory, changed(progress, path, odd), tmp_path)
        assert ending == "refused" or ending == resumed(), (path, odd)
    assert outcome(directory, progress, tmp_path) != "refused"


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_every_mutation_is_rejected_or_harmless(stopped, tmp_path, seed):
    """Some of more than a thousand mutations; each trains for a second."""
    _, progress, _ = stopped
    check(stopped, tmp_path, random.Random(seed).sample(mutations(progress), 16))
