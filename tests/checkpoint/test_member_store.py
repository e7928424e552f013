"""Tests of a population's member as a separate run: the contents of its checkpoints, and resuming from them."""

import itertools
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import MetricEarlyStopping, ReduceOnPlateau, load_checkpoint
from learner.checkpoint import DamagedError
from learner.checkpoint.member_store import MemberStore
from learner.checkpoint.places import DiskPlace
from learner.data import DataLoaderBuilder
from learner.metrics import Accuracy, LearningRate
from learner.training.checkpoints.resume import member_problem
from learner.training.evaluation import Evaluator
from tests.support.codes import raises_code
from tests.support.runs import (
    arrays,
    class_step,
    journal_of,
    line,
    progress_of,
    quiet,
    saved_steps,
    shuffled,
    tamper,
    tree_of,
)

pytestmark = pytest.mark.usefixtures("compiled_once")
PLACE = {"train_step": class_step, "valid_step": class_step}


def builder_in(run, epochs, **saves):
    builder = quiet(run).metrics(Accuracy()).num_epochs(epochs)
    return builder.with_file_checkpointer(**saves)


def population(directory, epochs=3, lr=(0.01, 0.1), build_lr=0.1, configure=lambda builder: None, **values):
    builder = builder_in(directory, epochs, keep_last=9).population(lr=list(lr), **values)
    configure(builder)
    optimizer = optax.sgd if values else (lambda lr: optax.sgd(lr))
    return builder.build(line(3, 3), optimizer, build_lr, **PLACE).fit(shuffled(), shuffled())


@pytest.fixture(scope="module")
def saved(tmp_path_factory, compiled_once):
    """Return four epochs of the rates 3 and 0.05, with all checkpoints."""
    return population(tmp_path_factory.mktemp("saved") / "run", 4, (3.0, 0.05))


def copied(saved, tmp_path):
    """Return the directory of the first member of a copy, and its losses."""
    directory = saved[0].directory
    shutil.copytree(directory.parent, tmp_path / "run")
    return tmp_path / "run" / directory.name, losses(saved[0])


def losses(result):
    return np.array(result.history["valid/Loss"])


@pytest.mark.full
def test_rates_that_a_plateau_has_lowered(tmp_path):
    """The loss of the rate 1 does not improve, so that its rate is lower when it resumes, with partly used patience."""

    def plateau(rate=0.1):
        return ReduceOnPlateau(rate, "valid/Loss", factor=0.5, patience=0)

    member = population(tmp_path / "run", 4, (0.001, 1.0), plateau())[1]
    resumed = builder_in(member.directory, 7).resume().build(line(3, 3), optax.sgd, plateau(1.0), **PLACE)
    whole = builder_in(tmp_path / "whole", 7).build(line(3, 3), optax.sgd, plateau(1.0), **PLACE)
    result, expected = resumed.fit(shuffled(), shuffled()), whole.fit(shuffled(), shuffled())
    np.testing.assert_allclose(losses(result), losses(expected), rtol=1e-5)
    ours, theirs = (progress_of(place, 42)["plateau"] for place in (member.directory, tmp_path / "whole"))
    assert ours["rate"] == theirs["rate"] < 0.5
    assert "although this changed" not in (member.directory / "experiment.log").read_text()


@pytest.mark.full
def test_a_number_in_place_of_the_plateau_of_a_member(tmp_path):
    """The number is the rate from here on, and no factor of the rate that the plateau has lowered."""
    plateau = ReduceOnPlateau(0.1, "valid/Loss", factor=0.5, patience=0, min_delta=1e6)
    member = population(tmp_path / "run", 2, (0.001, 0.5), plateau)[1]
    builder = builder_in(member.directory, 3).metric_train(LearningRate()).resume()
    result = builder.build(line(3, 3), optax.sgd, 0.02, **PLACE).fit(shuffled(), shuffled())
    np.testing.assert_allclose(result.history["train/Learning Rate"], [0.02], rtol=1e-6)


@pytest.mark.full
def test_early_stopping_continues_counting(tmp_path):
    """The rate 0 never improves on its first loss: it ends after the third epoch, the first one as a separate run."""

    def stopping(builder):
        return builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=2))

    member = population(tmp_path / "run", 2, (0.0, 0.1), configure=stopping)[0]
    alone = stopping(builder_in(member.directory, 9)).resume().build(line(3, 3), optax.sgd, 0.0, **PLACE)
    result = alone.fit(shuffled(), shuffled())
    assert (len(losses(result)), result.stopped_by.partition(":")[0]) == (3, "early stopping")


@pytest.mark.full
def test_the_rate_of_a_member_is_a_factor_of_a_schedule(tmp_path):
    schedule = optax.cosine_decay_schedule(0.2, 30)
    member = population(tmp_path / "run", 2, (0.5, 1.0), schedule)[0]
    alone = builder_in(member.directory, 4).resume().build(line(3, 3), optax.sgd, schedule, **PLACE)
    halved = lambda step: 0.5 * schedule(step)  # noqa: E731
    whole = builder_in(tmp_path / "whole", 4).build(line(3, 3), optax.sgd, halved, **PLACE)
    result, expected = alone.fit(shuffled(), shuffled()), whole.fit(shuffled(), shuffled())
    np.testing.assert_allclose(losses(result), losses(expected), rtol=1e-5)


@pytest.mark.full
def test_hyperparameters_changed_by_exploit(tmp_path):
    """After the first epoch, the rate 1 continues as the other member, with half of its rate and its momentum. A
    warning reports the momentum: the optimizer of the separate run needs it.
    """

    def exploit(builder):
        builder.exploit("train/Loss", part=0.5, factors=(0.5,))

    worst, _ = population(tmp_path / "run", 2, (1.0, 0.01), configure=exploit, momentum=[0.25, 0.5], zipped=True)
    sgd = lambda lr: optax.sgd(lr, momentum=0.5)  # noqa: E731
    result = builder_in(worst.directory, 3).resume().build(line(3, 3), sgd, 1.0, **PLACE).fit(shuffled(), shuffled())
    assert "it needs momentum=0.5 now" in (worst.directory / "experiment.log").read_text()
    rate = lambda step: jnp.where(step < 6, 0.01, 0.005)  # noqa: E731
    one = builder_in(tmp_path / "one", 3).build(line(3, 3), sgd, rate, **PLACE).fit(shuffled(), shuffled())
    np.testing.assert_allclose(result.model["w"], one.model["w"], rtol=1e-5)


@pytest.mark.full
def test_a_member_that_has_ended_is_evaluated_and_does_not_resume(tmp_path):
    def stopping(builder):
        builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=1))

    member = population(tmp_path / "run", 4, (0.0, 0.1), configure=stopping)[0]
    alone = builder_in(member.directory, 4).resume().build(line(3, 3), optax.sgd, 0.0, **PLACE)
    assert alone.evaluate(shuffled(), checkpoint="latest")["Loss"] == pytest.approx(losses(member)[-1], rel=1e-5)
    with raises_code("resume-member-ended", "step 12", "has not improved", f"initial_from({str(member.directory)!r})"):
        alone.fit(shuffled(), shuffled())


@pytest.mark.full
def test_a_member_that_is_not_finite_does_not_resume(tmp_path):
    def policy(builder):
        builder.on_nonfinite("stop")

    member = population(tmp_path / "run", 2, (0.1, 1e38), configure=policy)[1]
    alone = builder_in(member.directory, 4).resume().build(line(3, 3), optax.sgd, 1e38, **PLACE)
    with raises_code("resume-member-ended", "not finite"):
        alone.fit(shuffled(), shuffled())


@pytest.mark.full
def test_the_best_is_that_of_the_member(tmp_path):
    """The losses of a high rate increase, so that its best checkpoint is its first, and that of the population is
    another one.
    """
    high, low = population(tmp_path / "run", 4, (3.0, 0.05))
    first = int(np.argmin(losses(high))) + 1
    assert first != int(np.argmin(losses(low))) + 1 == 4
    for member, epoch in ((high, first), (low, 4)):
        loaded = load_checkpoint(member.directory, "best")
        assert loaded.epoch == epoch
        np.testing.assert_allclose(loaded.score, losses(member)[epoch - 1], rtol=1e-6)
    alone = builder_in(high.directory, 5, keep_last=1, keep_best=1).resume()
    result = alone.build(line(3, 3), optax.sgd, 3.0, **PLACE).fit(shuffled(), shuffled())
    assert saved_steps(high.directory) == sorted({6 * int(np.argmin(losses(result)) + 1), 30})


@pytest.mark.full
def test_checkpoints_of_a_population_that_saves_elsewhere(tmp_path):
    saved = tmp_path / "saved"
    builder = builder_in(tmp_path / "run", 1, directory=str(saved)).population(lr=[0.1, 0.2])
    member = builder.build(line(3, 3), optax.sgd, 0.1, **PLACE).fit(shuffled(), shuffled())[1]
    alone = builder_in(member.directory, 2, directory=str(saved / member.name)).resume()
    alone.build(line(3, 3), optax.sgd, 0.2, **PLACE).fit(shuffled(), shuffled())
    starts = [entry["step"] for entry in journal_of(member.directory) if entry["event"] == "start"]
    assert starts == [0, 6]
    assert sorted(path.name for path in (saved / member.name).iterdir()) == ["12", "6"]
    again = builder_in(tmp_path / "run", 2, directory=str(saved)).population(lr=[0.1, 0.2]).resume()
    with raises_code("population-member-resumed", member=member.name):
        again.build(line(3, 3), optax.sgd, 0.1, **PLACE).fit(shuffled(), shuffled())


def test_several_processes_resume_a_member_only_after_one_has(tmp_path):
    progress = {"keywords": {}, "halted": None, "stopped": None}
    for count, code in ((1, None), (2, "resume-member-processes")):
        plan = types.SimpleNamespace(processes=types.SimpleNamespace(count=count))
        assert getattr(member_problem(progress, plan), "code", None) == code
    assert member_problem({}, None) is None  # of a run that has its own checkpoints


def damage(directory, step):
    metadata = directory / "checkpoint" / str(step) / "state" / "_METADATA"
    metadata.write_bytes(metadata.read_bytes()[:-1] + b" ")


def resumed(run, epochs, lr=0.1, which=None, **saves):
    builder = builder_in(run, epochs, **saves)
    builder = builder.resume() if which is None else builder.checkpoint(which)
    return builder.build(line(3, 3), optax.sgd, lr, **PLACE).fit(shuffled(), shuffled())


def starts_of(directory):
    return [entry["step"] for entry in journal_of(directory) if entry["event"] == "start"]


@pytest.mark.full
def test_a_damaged_checkpoint_of_the_population(tmp_path):
    """The run resumes from the previous one, and rejects a damaged checkpoint requested by name."""
    member = population(tmp_path / "run", 3)[1]
    damage(tmp_path / "run", 18)
    with pytest.raises(DamagedError):
        load_checkpoint(member.directory, step=18)
    resumed(member.directory, 3)
    assert starts_of(member.directory) == [0, 12]
    assert saved_steps(tmp_path / "run") == [6, 12, 18]


@pytest.mark.full
def test_an_older_checkpoint_that_is_damaged_is_left_out(tmp_path):
    member = population(tmp_path / "run", 3)[1]
    damage(tmp_path / "run", 12)
    resumed(member.directory, 4, keep_last=9)
    assert saved_steps(member.directory) == [6, 18, 24]
    assert "resumes without it" in (member.directory / "experiment.log").read_text()


@pytest.mark.full
@pytest.mark.parametrize("key", ["members", "monitor", None])
def test_invalid_progress_of_a_population(tmp_path, key):
    """With matching checksums: it raises a described error, and other checkpoints are read."""
    member = population(tmp_path / "run", 3)[1]
    progress = progress_of(tmp_path / "run", 18)
    changed = [] if key is None else {name: value for name, value in progress.items() if name != key}
    tamper(tmp_path / "run", 18, changed)
    with pytest.raises(DamagedError):
        load_checkpoint(member.directory, step=18)
    assert load_checkpoint(member.directory, step=12).step == 12


@pytest.mark.full
@pytest.mark.parametrize("saves", [{"keep_last": 9}, None], ids=["saved", "not saved"])
def test_the_checkpoints_of_the_population_stay_where_they_are(tmp_path, saves):
    """If the member resumes from an older one, its later logs are kept, as in any run."""
    member = population(tmp_path / "run", 3)[1]
    if saves is None:
        builder = quiet(member.directory).metrics(Accuracy()).num_epochs(2).checkpoint(1)
        builder.build(line(3, 3), optax.sgd, 0.1, **PLACE).fit(shuffled(), shuffled())
    else:
        resumed(member.directory, 2, which=1, **saves)
        assert saved_steps(member.directory) == [6, 12]
    assert saved_steps(tmp_path / "run") == [6, 12, 18]
    assert starts_of(member.directory) == [0, 6]
    kept = member.directory / "superseded" / "1" / "valid"
    assert sorted(path.name for path in kept.iterdir()) == ["epoch-2", "epoch-3"]


@pytest.mark.full
@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3))])
def test_start_killed_while_copying(tmp_path, monkeypatch, saved, number):
    """Before its checkpoint has its name. The next start copies everything, including the best."""
    directory, values = copied(saved, tmp_path)
    best = 6 * (int(np.argmin(values)) + 1)
    name, calls = DiskPlace._name, itertools.count(1)

    def killed(place, *paths):
        if next(calls) == number:
            raise KilledError
        name(place, *paths)

    with monkeypatch.context() as patch:
        patch.setattr(DiskPlace, "_name", killed)
        patch.setattr(DiskPlace, "discard", lambda place, step: None)
        with pytest.raises(KilledError):
            resumed(directory, 5, 3.0, keep_last=1)
    result = resumed(directory, 5, 3.0, keep_last=1)
    assert starts_of(directory) == [0, 24]
    assert saved_steps(directory) == sorted({best, 30})
    assert len(losses(result)) == 5


class KilledError(Exception):
    """Raised in place of a kill."""


@pytest.mark.full
def test_population_without_checkpoints_or_with_them_elsewhere(tmp_path):
    """Nothing of the member is changed."""
    for name, saves in (("nothing", None), ("elsewhere", {"directory": str(tmp_path / "saved")})):
        builder = quiet(tmp_path / name).metrics(Accuracy()).num_epochs(1).population(lr=[0.1, 0.2])
        builder = builder if saves is None else builder.with_file_checkpointer(**saves)
        member = builder.build(line(3, 3), optax.sgd, 0.1, **PLACE).fit(shuffled(), shuffled())[1]
        before = tree_of(member.directory)
        where = f"{tmp_path}/saved/{member.name}"
        code, words = ("resume-member-unsaved", []) if saves is None else ("checkpoint-missing", [where])
        with raises_code(code, *words):
            resumed(member.directory, 2, 0.2)
        assert tree_of(member.directory) == before


@pytest.mark.full
def test_a_new_population_replaces_members_that_have_resumed(tmp_path):
    saved = tmp_path / "saved"

    def fit(epochs, **how):
        builder = quiet(tmp_path / "run", **how).metrics(Accuracy()).num_epochs(epochs).population(lr=[0.1, 0.2])
        builder = builder.with_file_checkpointer(directory=str(saved))
        builder = builder if how else builder.resume()
        return builder.build(line(3, 3), optax.sgd, 0.1, **PLACE).fit(shuffled(), shuffled())

    member = fit(1)[1]
    resumed(member.directory, 2, 0.2, directory=str(saved / member.name))
    fit(1, overwrite=True)
    assert load_checkpoint(saved / member.name, "latest").step == 6
    assert fit(2).history["train/Loss"]


@pytest.mark.full
def test_order_depends_on_the_members_seed(tmp_path):
    """The order depends on the seed of the member, also within an epoch; the order of the builder's seed is rejected
    there.
    """

    def rows(seed):
        return DataLoaderBuilder().batch_size(4).shuffle(seed).build(arrays(22))

    def make(rngs):
        return {"w": jax.random.normal(rngs.params(), (3, 3)), "b": jnp.zeros(3)}

    def fit(builder, seed):
        return builder.build(make, optax.sgd, 0.1, **PLACE).fit(rows(seed), shuffled())

    def steps(directory, number):
        return quiet(directory).metrics(Accuracy()).num_steps(number).with_file_checkpointer()

    several = steps(tmp_path / "run", 9).population(seed=[1, 2], data_order="own")
    member = fit(several, 0)[1]
    with raises_code("resume-differs", "seed 2 -> 0"):
        fit(steps(member.directory, 14).resume(), 0)
    result = fit(steps(member.directory, 14).seed(2).resume(), 2)
    whole = fit(steps(tmp_path / "whole", 14).seed(2), 2)
    np.testing.assert_allclose(result.history["train/Loss"], whole.history["train/Loss"], rtol=1e-5)
    assert "although" not in (member.directory / "experiment.log").read_text()


@pytest.mark.full
def test_keywords_of_the_optimizer_are_named(tmp_path):
    member = population(tmp_path / "run", 1, (0.1,), momentum=[0.25, 0.5])[1]
    sgd = lambda lr: optax.sgd(lr, momentum=0.5)  # noqa: E731
    builder_in(member.directory, 2).resume().build(line(3, 3), sgd, 0.1, **PLACE).fit(shuffled(), shuffled())
    assert "momentum=0.5 in its population, and needs it" in (member.directory / "experiment.log").read_text()


@pytest.mark.full
def test_ended_member_has_its_own_step(tmp_path):
    """The loss of the rate 0 does not improve: it ends after the second of three epochs of 6 steps."""

    def stopping(builder):
        return builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=1))

    ended, trained = population(tmp_path / "run", 4, (0.0, 0.1), configure=stopping)
    listed = [(entry["epoch"], entry["step"], entry["path"]) for entry in ended.summary["checkpoints"]]
    assert listed == [(1, 6, "../checkpoint/6"), (2, 12, "../checkpoint/12")]
    assert [entry["step"] for entry in trained.summary["checkpoints"]] == [6, 12, 18, 24]
    for member, place in ((ended, (2, 12)), (trained, (4, 24))):
        builder = stopping(builder_in(member.directory, 4)).checkpoint(epoch="latest")
        learner = builder.build(line(3, 3), optax.sgd, member.values["lr"], **PLACE)
        learner.evaluate(shuffled())
        entry = learner.loaded_checkpoint
        evaluation = Evaluator(learner.definition).evaluate_checkpoint(shuffled(), "test", "latest")
        assert (entry.epoch, entry.step) == (evaluation.epoch, evaluation.step) == place
        assert evaluation.values["Loss"] == pytest.approx(losses(member)[-1], rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("split", [None, "test"])
@pytest.mark.parametrize("removed", [1, 2, 4])
def test_a_checkpoint_that_is_removed_while_it_is_read(tmp_path, monkeypatch, saved, split, removed):
    """Another one is read instead, as long as one exists."""
    directory, values = copied(saved, tmp_path)
    builder = builder_in(directory, 4).checkpoint(epoch="latest")
    evaluator = Evaluator(builder.build(line(3, 3), optax.sgd, 3.0, **PLACE).definition)
    original, left = MemberStore.restore, [removed]

    def restore(self, step, items):
        if left[0]:
            left[0] -= 1
            shutil.rmtree(self.path(step))
        return original(self, step, items)

    monkeypatch.setattr(MemberStore, "restore", restore)
    if removed == 4:
        with raises_code("checkpoint-missing"):
            evaluator.evaluate(shuffled(), split, *(["latest"] if split else []))
        return
    measured = evaluator.evaluate(shuffled(), split, *(["latest"] if split else []))
    assert measured["Loss"] == pytest.approx(values[3 - removed], rel=1e-5)


@pytest.mark.full
def test_a_rate_that_was_0_before_exploit(tmp_path):
    def exploit(builder):
        builder.exploit("valid/Loss", part=0.5, factors=(0.5,))

    member = population(tmp_path / "run", 2, (0.0, 0.1), configure=exploit)[0]
    resumed(member.directory, 3, 0.0)
    assert "it needs lr=0.05 now" in (member.directory / "experiment.log").read_text()
