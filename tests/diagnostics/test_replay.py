"""Tests of runs that are repeated from their checkpoints, to the bit."""

import contextlib
import shutil

import numpy as np
import pytest

from learner.diagnostics.array_difference import first_difference
from learner.diagnostics.replay import ReplayedRun, RunInputs, common_start, replay
from learner.schedules import ReduceOnPlateau
from learner.training.checked_inputs import read_checked
from tests.support.codes import raises_code
from tests.support.runs import ROWS, batches, build_line, build_net, quiet, saved_steps, shuffled, tree_of, valid_data

pytestmark = pytest.mark.usefixtures("optimized", "compiled_once")


def net(directory):
    """Return a learner of 6 steps: each of two epochs has 6 batches, the last of 2 rows, and 3 steps."""
    builder = quiet(directory, saves=True).num_epochs(2).grads_accumulation(2)
    return build_net(builder.with_file_checkpointer(every_steps=1, keep_last=9))


def line(directory, every=2, lr=0.05):
    return build_line(quiet(directory, saves=True).num_epochs(1).with_file_checkpointer(every_steps=every), lr)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("replay") / "run"
    net(directory).fit(shuffled(rows=ROWS))
    return directory


@contextlib.contextmanager
def replayed(directory, start):
    definition = net(directory).definition
    with contextlib.closing(read_checked(definition, shuffled(rows=ROWS), None)) as inputs:
        yield ReplayedRun(definition, inputs, start)


def saved_arrays(directory, step):
    """Return the arrays of a checkpoint."""
    with replayed(directory, step) as run:
        return run.arrays()


@pytest.mark.full
@pytest.mark.parametrize(
    ("start", "stop"),
    [(2, 4), pytest.param(0, 6, marks=pytest.mark.full), pytest.param(3, 4, marks=pytest.mark.full)],
)
def test_replayed_steps_have_the_bits_of_the_run(trained, start, stop):
    """Replays start inside an epoch, before its short batch, and continue in the next; at the beginning; and between
    epochs.
    """
    with replayed(trained, start) as run:
        for _ in range(start, stop):
            loss, gradients = run.train(tuple(micro.batch for micro in run.read().micro_batches))
            assert np.isfinite(loss["loss"])
            assert "gradients/out.kernel" in gradients
        assert first_difference(run.arrays(), saved_arrays(trained, stop)) is None


@pytest.mark.full  # by default, `tests/cli/test_diff.py` replays a run without a difference
def test_run_does_not_differ_from_itself(trained):
    before = tree_of(trained)
    sides = [RunInputs(net(trained).definition, shuffled(rows=ROWS), None) for _ in range(2)]
    result = replay(*sides, 5)
    assert (result.start, result.stop, result.step, result.difference) == (4, 5, None, None)
    assert result.lines() == ["replayed from the checkpoints of step 4 to step 5: no array differs"]
    assert tree_of(trained) == before


@pytest.mark.full
def test_update_differs_although_gradients_agree(tmp_path):
    """A replay from before the first step needs no trained run."""
    a, b = (
        RunInputs(line(tmp_path / str(rate), lr=lambda step, rate=rate: rate).definition, batches(), None)
        for rate in (0.05, 0.025)
    )
    result = replay(a, b, 2)
    assert (result.start, result.step, result.difference.path) == (0, 1, "params/b")
    assert result.difference.further == 1  # `params/w`
    updated, other = result.difference.values
    assert updated == pytest.approx(2 * other)  # SGD: the update from 0 is the rate times the gradient
    assert len(result.losses) == 1
    assert result.losses[0][0] == result.losses[0][1] == pytest.approx(np.mean(batches()[0]["t"] ** 2))
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_replay_starts_at_a_common_checkpoint(tmp_path):
    for name, every in (("a", 2), ("b", 3)):
        line(tmp_path / name, every).fit(batches())
    assert [saved_steps(tmp_path / name) for name in "ab"] == [[4, 6], [3, 6]]
    definitions = [line(tmp_path / name).definition for name in "ab"]
    assert [common_start(definitions, stop) for stop in (1, 3, 7)] == [0, 0, 6]
    for stop in (4, 6):
        with raises_code("replay-checkpoint-missing", "b has 3", "Steps up to 3", stop=stop):
            common_start(definitions, stop)


@pytest.mark.full
def test_replay_with_reduce_on_plateau(tmp_path):
    builder = quiet(tmp_path / "run", saves=True).num_epochs(2)
    rate = ReduceOnPlateau(0.05, "valid/Loss", patience=0)
    build_line(builder, rate).fit(batches(), valid_data())
    sides = [RunInputs(build_line(builder.resume(), rate).definition, batches(), valid_data()) for _ in range(2)]
    assert replay(*sides, 6).step is None
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with raises_code("replay-plateau", step=7):
        replay(*sides, 7)
