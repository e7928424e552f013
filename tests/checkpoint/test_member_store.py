"""A member of a population as a run by itself: what its checkpoints hold, and what its run does from there."""

import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from learner import MetricEarlyStopping, ReduceOnPlateau, load_checkpoint
from learner.checkpoint import DamagedError
from learner.metrics import Accuracy
from learner.training.resume import member_problem
from tests.support.codes import raises_code
from tests.support.runs import class_step, journal_of, line, progress_of, quiet, saved_steps, shuffled

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


def losses(result):
    return np.array(result.history["valid/Loss"])


def test_rates_that_a_plateau_has_lowered(tmp_path):
    """The loss of the rate 1 does not improve, so that its rate is lower when it resumes, with its patience used."""

    def plateau(rate=0.1):
        return ReduceOnPlateau(rate, "valid/Loss", factor=0.5, patience=0)

    member = population(tmp_path / "run", 4, (0.001, 1.0), plateau())[1]
    resumed = builder_in(member.directory, 7).resume().build(line(3, 3), optax.sgd, plateau(1.0), **PLACE)
    whole = builder_in(tmp_path / "whole", 7).build(line(3, 3), optax.sgd, plateau(1.0), **PLACE)
    found, expected = resumed.fit(shuffled(), shuffled()), whole.fit(shuffled(), shuffled())
    np.testing.assert_allclose(losses(found), losses(expected), rtol=1e-5)
    ours, theirs = (progress_of(place, 42)["plateau"] for place in (member.directory, tmp_path / "whole"))
    assert ours["rate"] == theirs["rate"] < 0.5


def test_early_stopping_counts_on(tmp_path):
    """The rate 0 never improves on its first loss: it ends after the third epoch, the first by itself."""

    def stopping(builder):
        return builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=2))

    member = population(tmp_path / "run", 2, (0.0, 0.1), configure=stopping)[0]
    alone = stopping(builder_in(member.directory, 9)).resume().build(line(3, 3), optax.sgd, 0.0, **PLACE)
    result = alone.fit(shuffled(), shuffled())
    assert (len(losses(result)), result.stopped_by.partition(":")[0]) == (3, "early stopping")


def test_the_rate_of_a_member_is_a_factor_of_a_schedule(tmp_path):
    schedule = optax.cosine_decay_schedule(0.2, 30)
    member = population(tmp_path / "run", 2, (0.5, 1.0), schedule)[0]
    alone = builder_in(member.directory, 4).resume().build(line(3, 3), optax.sgd, schedule, **PLACE)
    halved = lambda step: 0.5 * schedule(step)  # noqa: E731
    whole = builder_in(tmp_path / "whole", 4).build(line(3, 3), optax.sgd, halved, **PLACE)
    found, expected = alone.fit(shuffled(), shuffled()), whole.fit(shuffled(), shuffled())
    np.testing.assert_allclose(losses(found), losses(expected), rtol=1e-5)


def test_numbers_that_exploit_has_changed(tmp_path):
    """After the first epoch, the rate 1 continues as the other member, with half of its rate and its momentum, of which
    a warning tells: the optimizer of the run by itself needs it.
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


def test_a_member_that_has_ended_is_evaluated_and_does_not_resume(tmp_path):
    def stopping(builder):
        builder.early_stopping(MetricEarlyStopping("valid/Loss", patience=1))

    member = population(tmp_path / "run", 4, (0.0, 0.1), configure=stopping)[0]
    alone = builder_in(member.directory, 4).resume().build(line(3, 3), optax.sgd, 0.0, **PLACE)
    assert alone.evaluate(shuffled(), checkpoint="latest")["Loss"] == pytest.approx(losses(member)[-1], rel=1e-5)
    with raises_code("resume-member-ended", "step 12", "has not improved"):
        alone.fit(shuffled(), shuffled())


def test_a_member_that_is_not_finite_does_not_resume(tmp_path):
    def policy(builder):
        builder.on_nonfinite("stop")

    member = population(tmp_path / "run", 2, (0.1, 1e38), configure=policy)[1]
    alone = builder_in(member.directory, 4).resume().build(line(3, 3), optax.sgd, 1e38, **PLACE)
    with raises_code("resume-member-ended", "not finite"):
        alone.fit(shuffled(), shuffled())


def test_the_best_is_that_of_the_member(tmp_path):
    """The losses of a high rate rise, so that its best checkpoint is its first, and that of the mean is another one."""
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
    progress = {"set": {}, "halted": None, "stopped": None}
    for count, code in ((1, None), (2, "resume-member-processes")):
        plan = types.SimpleNamespace(processes=types.SimpleNamespace(count=count))
        assert getattr(member_problem(progress, plan), "code", None) == code
    assert member_problem({}, None) is None  # of a run that has checkpoints of its own


def test_a_damaged_checkpoint_of_the_population(tmp_path):
    """The run resumes from the one before it, and a checkpoint that is named is refused."""
    member = population(tmp_path / "run", 3)[1]
    metadata = tmp_path / "run" / "checkpoint" / "18" / "state" / "_METADATA"
    metadata.write_bytes(metadata.read_bytes()[:-1] + b" ")
    with pytest.raises(DamagedError):
        load_checkpoint(member.directory, step=18)
    alone = builder_in(member.directory, 3).resume().build(line(3, 3), optax.sgd, 0.1, **PLACE)
    alone.fit(shuffled(), shuffled())
    starts = [entry["step"] for entry in journal_of(member.directory) if entry["event"] == "start"]
    assert starts == [0, 12]
