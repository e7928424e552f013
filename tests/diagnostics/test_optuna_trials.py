"""Tests of trials of Optuna as runs, with the real package."""

import optax
import pytest

from learner import optuna_objective
from learner.runs.history import read_history
from learner.runs.layout import read_summary
from tests.support.codes import raises_code
from tests.support.runs import class_step, line, quiet, shuffled

optuna = pytest.importorskip("optuna")
pytestmark = [pytest.mark.usefixtures("compiled_once"), pytest.mark.full]


@pytest.fixture(autouse=True)
def quiet_optuna():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def learner_for(directory, epochs=4, **options):
    def make(trial):
        lr = trial.suggest_float("lr", 1e-3, 1e38, log=True)
        builder = quiet(directory / f"trial-{trial.number}").num_epochs(epochs)
        return builder.build(line(3, 3), optax.sgd, lr, train_step=class_step, valid_step=class_step)

    return make


def study_of(*rates, **options):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0), **options)
    for rate in rates:
        study.enqueue_trial({"lr": rate})
    return study


def test_value_of_a_trial_is_the_best_of_its_run(tmp_path):
    study = study_of(0.01, 0.1, pruner=optuna.pruners.NopPruner())
    study.optimize(optuna_objective(learner_for(tmp_path), shuffled(), shuffled()), n_trials=2)
    for trial in study.trials:
        losses = read_history(tmp_path / f"trial-{trial.number}")["valid/Loss"]
        assert trial.value == min(losses)
        assert trial.intermediate_values == dict(enumerate(losses, 1))
    assert study.best_value == min(trial.value for trial in study.trials)


def test_pruned_trial_ends_its_run(tmp_path):
    """The run may be some epochs ahead of its reported values, but not hundreds."""
    pruner = optuna.pruners.ThresholdPruner(upper=2.0)
    study = study_of(30.0, pruner=pruner)
    study.optimize(optuna_objective(learner_for(tmp_path, 2000), shuffled(), shuffled()), n_trials=1)
    assert study.trials[0].state == optuna.trial.TrialState.PRUNED
    summary = read_summary(tmp_path / "trial-0")
    assert summary["stopped_by"] == "interrupter: pruned"
    assert summary["epochs"] < 2000


def test_trial_that_is_not_finite_is_pruned(tmp_path):
    study = study_of(1e38, 0.1)
    study.optimize(optuna_objective(learner_for(tmp_path), shuffled(), shuffled()), n_trials=2)
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "COMPLETE"]


def test_study_with_the_wrong_direction_is_refused(tmp_path):
    objective = optuna_objective(learner_for(tmp_path), shuffled(), shuffled())
    with raises_code("optuna-direction", monitor="valid/Loss", direction="minimize"):
        study_of(0.1, direction="maximize").optimize(objective, n_trials=1)
    several = optuna.create_study(directions=["minimize", "maximize"])
    with raises_code("optuna-direction", "2 directions", monitor="valid/Loss", direction="minimize"):
        several.optimize(optuna_objective(learner_for(tmp_path), shuffled(), shuffled()), n_trials=1)
    with raises_code("monitor-metric"):
        study_of(0.1).optimize(
            optuna_objective(learner_for(tmp_path), shuffled(), shuffled(), "valid/Lost"), n_trials=1
        )
    assert not (tmp_path / "trial-0").exists()
