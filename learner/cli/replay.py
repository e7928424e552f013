"""`learner diff --replay`: repeat the steps of two runs until an array differs."""

from collections.abc import Sequence

import numpy as np

from learner.cli.configs.config import RunConfig
from learner.cli.configs.saved_configs import saved_config
from learner.cli.trust import require_trust
from learner.diagnostics.replay import Replay, RunInputs, replay
from learner.errors import LearnerError
from learner.runs.run_reader import RunReader
from learner.training.hooks import UPDATE
from learner.util.number_checks import is_int

LOSS = "train/Loss"


def replayed(a: RunReader, b: RunReader, step: int, trust: bool) -> Replay:
    """Repeat the steps of two runs up to a step, with the code and the data that their configs name.

    Args:
      a: a run.
      b: another run.
      step: the last step to repeat.
      trust: see `learner.cli.trust`.

    Raises:
      LearnerError: a run has no config or fewer steps, is not trusted, or cannot be repeated.
    """
    for run in (a, b):
        require_trust(str(run.directory), trust)
        _check_step(run, step)
    first, second = map(_inputs, (a, b))
    return replay(first, second, step)


def unrepeated(run: RunReader, start: int, losses: Sequence[float]) -> list[str]:
    """Return a line about the first step whose replayed loss differs from the log of a run, if any.

    Args:
      run: the run.
      start: the step before the first one that was replayed.
      losses: the losses of the replayed steps.
    """
    series = run.steps(LOSS)
    logged = dict(zip(series.step.tolist(), series.mean.tolist(), strict=True))
    for step, loss in enumerate(losses, start + 1):
        before = logged.get(step, loss)
        if not np.array_equal(np.float32(before), np.float32(loss), equal_nan=True):
            text = f"{run.directory}: the loss of step {step} is {loss:.9g} in the replay and {before:.9g} in the log"
            return [f"{text}: code, data, devices or versions differ from those of the run"]
    return []


def _check_step(run: RunReader, step: int) -> None:
    trained = int(run.steps(LOSS).step.max(initial=0)) if LOSS in run.keys else 0
    if not 1 <= step <= trained:
        raise LearnerError(
            f"--replay is {step}; {run.directory} has the steps 1 to {trained}",
            code="replay-step-value",
            directory=run.directory,
            step=step,
        )


def _inputs(run: RunReader) -> RunInputs:
    """Return the inputs that the config of a run describes."""
    directory = str(run.directory)
    try:
        content = saved_config(directory, "is replayed", call="")
    except LearnerError as error:
        if error.code != "run-from-python":
            raise
        raise LearnerError(
            f"{directory} has no config.yaml: the run was started from Python, and a replay makes model, optimizer and "
            f"data from the config. Train with learner fit CONFIG, or compare the arrays of two checkpoints: "
            f"learner.load_checkpoint({directory!r}, step=...).params",
            code="replay-config-missing",
            directory=directory,
        ) from None
    # With `resume`, a run reads no other run's checkpoint before it is known to have none of its own.
    own = {"directory": directory, "resume": True, "renderer": None, "metric_loggers": None}
    config = RunConfig({**content, **own})
    learner = config.learner(with_data=False)
    updates = [entry["step"] for entry in run.journal if entry.get("event") == UPDATE and is_int(entry.get("step"))]
    return RunInputs(learner.definition, config.data("train"), config.data("valid"), updates)
