"""The parts of a run, each built from the parts before it. `learner.training.session` calls these in order."""

import time
from collections.abc import Mapping
from typing import Any

from learner.distributed.consensus import Consensus
from learner.training.executor import Runner
from learner.training.feed.dispatches import Feeder
from learner.training.member_stops import MemberStops
from learner.training.position import Position
from learner.training.profiler import Profiler
from learner.training.reporter import Reporter
from learner.training.resume import set_stopping
from learner.training.run_outputs import Outputs
from learner.training.saving import CheckpointSaver
from learner.training.spec import RunSpec
from learner.training.stopping import StopController, StopRequest
from learner.training.timing import StepTimer
from learner.training.validation import Validator


def build_stop(
    spec: RunSpec,
    request: StopRequest,
    began: float,
    timer: StepTimer,
    reporter: Reporter,
    saver: CheckpointSaver | None,
    consensus: Consensus | None,
) -> StopController:
    """Return what decides when the run ends. `began`: when it was opened, in seconds of `time.monotonic`."""
    options = spec.options

    def status() -> dict[str, Any]:
        since = time.monotonic() - began if saver is None else saver.seconds_since_save()
        return {"since": since, "halted": reporter.halted is not None, "pace": timer.estimator.steps}

    time_limit = options.time_limit if options.job_ends is None else options.job_ends - time.time()
    reserve = (lambda: 0.0) if saver is None else saver.reserve
    return StopController(request, options.interrupter, time_limit, began, consensus, reserve, status)


def build_validator(
    spec: RunSpec,
    runner: Runner,
    timer: StepTimer,
    reporter: Reporter,
    stop: StopController,
    feeders: Mapping[str, Feeder],
    outputs: Outputs,
) -> Validator:
    """Return what validates. `feeders`: of the validation splits."""
    options, restored = spec.options, spec.restored
    members = None
    if spec.members and options.early_stopping:
        members = MemberStops(options.early_stopping, len(spec.members), runner, reporter)
        if restored is not None:
            set_stopping(members.every, restored.progress["early_stopping"])
    return Validator(
        runner,
        reporter,
        timer,
        stop,
        feeders,
        {split: source.batches for split, source in spec.inputs.valid.items()},
        schedule=options.valid_schedule(list(feeders)),
        accumulate=options.accumulate,
        early_stopping=() if spec.members else options.early_stopping,
        plateau=spec.plateau,
        log=outputs.log,
        warn=outputs.warn,
        validated_step=None if restored is None else restored.progress["validated_step"],
        members=members,
    )


def build_profiler(spec: RunSpec, position: Position, timer: StepTimer, reporter: Reporter) -> Profiler | None:
    """Return the profiler of some steps. Return None if none are profiled in this process."""
    window = spec.options.profile
    # A window of about a second that began in an earlier process is not traced again.
    if spec.processes.index or window is None or (window.last is None and position.step > window.first):
        return None
    return Profiler(window, spec.options.directory, reporter, timer)
