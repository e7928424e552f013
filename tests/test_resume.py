"""Tests of runs that resume for longer, and from an older checkpoint."""

import json
import shutil

import jax
import pytest

from learner.strategies import Replicated, Sharded
from tests.support.codes import raises_code
from tests.support.runs import (
    LastRow,
    Net,
    batches,
    build_line,
    build_net,
    journal_of,
    quiet,
    saved_steps,
    shuffled,
    tree_of,
    valid_data,
)
from tests.support.stopped import all_of, same, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.mark.full
def test_more_epochs_than_saves(tmp_path):
    """The last checkpoint of the short run exists only because the run ended: it is removed in the longer one."""
    make = lambda name, n: quiet(tmp_path / name).num_epochs(n).with_file_checkpointer(every_epochs=2)  # noqa: E731
    build_line(make("run", 3)).fit(shuffled())
    assert saved_steps(tmp_path / "run") == [12, 18]
    build_line(make("run", 4).resume()).fit(shuffled())
    build_line(make("whole", 4)).fit(shuffled())
    assert saved_steps(tmp_path / "run") == saved_steps(tmp_path / "whole") == [12, 24]


@pytest.mark.full
def test_more_steps(tmp_path):
    make = lambda name, n: quiet(tmp_path / name).num_steps(n).metrics(LastRow()).with_file_checkpointer()  # noqa: E731
    build_line(make("run", 8)).fit(shuffled())
    result = build_line(make("run", 15).resume()).fit(shuffled())
    same(all_of(tmp_path / "run", result), all_of(tmp_path / "whole", build_line(make("whole", 15)).fit(shuffled())))


# -- going back --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def five(tmp_path_factory, compiled_once):
    """A run of five epochs with all its checkpoints; the first is the best, as mode="max" prefers the highest loss."""
    directory = tmp_path_factory.mktemp("five") / "run"
    result = fit_five(quiet(directory))
    return directory, all_of(directory, result), tree_of(directory)


def fit_five(builder):
    return build_line(builder.num_epochs(5).with_file_checkpointer(keep_last=5, mode="max")).fit(
        shuffled(), valid_data()
    )


@pytest.fixture
def copy(five, tmp_path):
    shutil.copytree(five[0], tmp_path / "run")
    return tmp_path / "run"


def test_from_an_older_epoch(copy, five):
    _, expected, files = five
    result = fit_five(quiet(copy).checkpoint(epoch=2))
    same(all_of(copy, result), expected)
    aside = {path: content for path, (content, _) in tree_of(copy / "superseded" / "1").items()}
    moved = {path for path in files if path.startswith(tuple(f"checkpoint/{6 * n}/" for n in (3, 4, 5)))}
    logs = {path for path in files if path.split("/")[1:2] in (["epoch-3"], ["epoch-4"], ["epoch-5"])}
    assert set(aside) == moved | logs | {"journal.jsonl"}
    assert all(aside[path] == files[path][0] for path in moved | logs)
    assert [json.loads(text)["epoch"] for text in aside["journal.jsonl"].splitlines()] == [3, 4, 5]
    starts = [entry["step"] for entry in journal_of(copy) if entry["event"] == "start"]
    assert starts == [0, 12]


@pytest.mark.full
def test_from_older_epochs_twice(copy, five):
    fit_five(quiet(copy).checkpoint(epoch=4))
    result = fit_five(quiet(copy).checkpoint(epoch=1))
    same(all_of(copy, result), five[1])
    assert sorted(path.name for path in (copy / "superseded").iterdir()) == ["1", "2"]
    assert saved_in(copy / "superseded" / "1") == [30]
    assert saved_in(copy / "superseded" / "2") == [12, 18, 24, 30]


def saved_in(directory):
    return sorted(int(path.name) for path in (directory / "checkpoint").iterdir())


@pytest.mark.parametrize(
    ("requested", "start"), [pytest.param({"step": 24}, 24, marks=pytest.mark.full), ({"epoch": "best"}, 6)]
)
def test_from_a_step_or_from_the_best(copy, five, requested, start):
    result = fit_five(quiet(copy).checkpoint(**requested))
    same(all_of(copy, result), five[1])
    assert journal_of(copy)[-1]["event"] == "end"
    assert [entry["step"] for entry in journal_of(copy) if entry["event"] == "start"] == [0, start]


def test_from_the_latest_checkpoint_of_a_finished_run(copy, five):
    result = fit_five(quiet(copy).checkpoint(epoch="latest"))
    same(all_of(copy, result), five[1])
    assert tree_of(copy).keys() == five[2].keys()


@pytest.mark.full
def test_run_that_stops_after_rewinding_can_resume(copy, five):
    fit_five(stopping_at(quiet(copy).checkpoint(epoch=2), 15))
    assert saved_steps(copy) == [6, 12, 15]
    same(all_of(copy, fit_five(quiet(copy).resume())), five[1])


@pytest.mark.full
def test_going_back_without_saving(copy, five):
    """The newer checkpoints belong to a discarded history: they must not remain next to the new one."""
    builder = quiet(copy).checkpoint(epoch=2).num_epochs(3).with_file_checkpointer(None)
    build_line(builder).fit(shuffled(), valid_data())
    assert saved_steps(copy) == [6, 12]
    same(all_of(copy, fit_five(quiet(copy).resume())), five[1])


@pytest.mark.parametrize(
    ("requested", "missing"), [({"epoch": 9}, "the end of epoch 9"), ({"step": 7}, "step 7")], ids=["epoch", "step"]
)
def test_missing_checkpoint(copy, five, requested, missing):
    known = ", ".join(f"step {6 * epoch} (epoch {epoch})" for epoch in range(1, 6))
    with raises_code("checkpoint-not-found", name=missing, known=known):
        fit_five(quiet(copy).checkpoint(**requested))
    assert {path: content for path, (content, _) in tree_of(copy).items()} == {p: c for p, (c, _) in five[2].items()}


@pytest.mark.parametrize("requested", [{"epoch": 1}, {"epoch": "best"}, {"step": 6}])
def test_checkpoint_of_a_missing_run(tmp_path, requested):
    with raises_code("resume-checkpoint-missing", place=str(tmp_path / "run")):
        build_line(quiet(tmp_path / "run").checkpoint(**requested)).fit(batches())
    assert list(tmp_path.iterdir()) == []


# -- random keys -------------------------------------------------------------------------------------------------------


@pytest.fixture
def rbg():
    """Use random keys of another implementation, as `JAX_DEFAULT_PRNG_IMPL=rbg` does."""
    before = jax.config.jax_default_prng_impl
    jax.config.update("jax_default_prng_impl", "rbg")
    yield
    jax.config.update("jax_default_prng_impl", before)


STRATEGIES = {
    "replicated": lambda: Replicated(2),
    "sharded": lambda: Sharded(devices=2),
}


@pytest.mark.full
@pytest.mark.parametrize("where", STRATEGIES)
def test_random_keys_of_another_implementation(tmp_path, rbg, where):
    def fit(name, epochs, resume=False):
        builder = quiet(tmp_path / name).num_epochs(epochs).with_file_checkpointer()
        builder.strategy(STRATEGIES[where]())
        return build_net(builder.resume() if resume else builder).fit(shuffled(), valid_data())

    fit("run", 1)
    result = fit("run", 2, resume=True)
    same(all_of(tmp_path / "run", result), all_of(tmp_path / "whole", fit("whole", 2)))
    jax.config.update("jax_default_prng_impl", "threefry2x32")
    with raises_code("checkpoint-key-implementation", saved="rbg", now="threefry2x32"):
        fit("run", 3, resume=True)


@pytest.mark.full
def test_model_with_other_random_keys_than_the_run(tmp_path, rbg):
    """The model's streams use the run's root key."""
    model = Net()
    jax.config.update("jax_default_prng_impl", "threefry2x32")
    result = build_net(quiet(tmp_path / "run"), model).fit(shuffled())
    assert result.summary["steps"] > 0
