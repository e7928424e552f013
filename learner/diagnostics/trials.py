"""Short runs of a learner's model, in a directory that is removed: the learning-rate range test and the profile."""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from learner.diagnostics.rate_range import RangeTest, RangeTestListener, check_range
from learner.distributed.process_group import hosts
from learner.errors import LearnerError
from learner.schedules.decays import Exponential
from learner.steps.measure import MetricCollection
from learner.training.definition import TrainingDefinition
from learner.training.files.directory import problem_with
from learner.training.profile import Profile, Window, check_steps
from learner.training.profiler import MOST
from learner.training.stopping import Interrupter

__all__ = ["Fit", "Profile", "RangeTest", "find_lr", "profile"]

Fit = Callable[[TrainingDefinition], Any]  # returns the `LearningResult`


def find_lr(
    definition: TrainingDefinition,
    fit: Fit,
    *,
    lowest: float,
    highest: float,
    steps: int,
    smoothing: float,
    diverges: float,
) -> RangeTest:
    """Run a range test; see `Learner.find_lr`. `fit` trains a definition on the training data."""
    check_range(lowest, highest, steps, smoothing, diverges)
    if hosts().count > 1:
        raise LearnerError(
            "find_lr runs in one process; leave out the arguments that connect several", code="process-find-lr-several"
        )
    definition.take_initial()
    schedule = Exponential(lowest, highest / lowest, every=steps - 1)
    interrupter = Interrupter()
    listener = RangeTestListener(interrupter, smoothing, diverges)
    with tempfile.TemporaryDirectory(prefix="learner-") as place:
        options = definition.options.of_a_trial(Path(place) / "run", steps, interrupter, listener)
        metrics = MetricCollection.of(options.train_metrics)
        optimizer = dataclasses.replace(definition.optimizer, lr=1.0, schedule=schedule, plateau=None)
        trial = definition.trial(options, optimizer, train_metrics=metrics, watch=options.on_nonfinite)
        trial.tests_rates = True
        _fit(fit, trial)
    losses = listener.losses
    if not len(losses):
        raise LearnerError(
            "the first loss is not finite: look at the model and the data before the learning rate",
            code="step-first-loss-nonfinite",
        )
    return RangeTest(np.array([float(schedule(i)) for i in range(len(losses))]), losses, steps, smoothing)


def profile(definition: TrainingDefinition, fit: Fit, steps: tuple[int, int | None], directory: Path) -> Profile:
    """Profile some steps; see `Learner.profile`. `fit` trains a definition on the training data."""
    first, last = check_steps(steps)
    if hosts().count > 1:
        raise LearnerError(
            "profile runs in one process; for several there is LearnerBuilder.profile", code="process-profile-several"
        )
    definition.take_initial()
    if problem := problem_with(directory):
        raise LearnerError(problem, code="profile-refused")
    profiles: list[Profile] = []
    failures: list[str] = []
    interrupter = Interrupter()

    def on_profile(profile: Profile) -> None:
        profiles.append(profile)
        interrupter.stop("profiled")

    def on_failure(reason: str) -> None:
        failures.append(reason)
        interrupter.stop("not profiled")

    with tempfile.TemporaryDirectory(prefix="learner-") as place:
        options = definition.options.of_a_trial(Path(place) / "run", (last or first + MOST) + 1, interrupter)
        options = dataclasses.replace(
            options,
            train_metrics=definition.options.train_metrics,
            on_nonfinite=definition.options.on_nonfinite,
            profile=Window(first, last, directory, on_profile, on_failure),
        )
        _fit(fit, definition.trial(options, dataclasses.replace(definition.optimizer, plateau=None)))
    if not profiles:
        reason = failures[0] if failures else "nothing was trained"
        raise LearnerError(f"no step was profiled: {reason}", code="profile-no-step")
    return profiles[0]


def _fit(fit: Fit, definition: TrainingDefinition) -> None:
    if fit(definition).stopped_by == "ctrl-c":
        raise KeyboardInterrupt  # the run ended normally, and the user wants the command to end
