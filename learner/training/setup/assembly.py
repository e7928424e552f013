"""The parts of a run, each built from the parts before it. `learner.training.session` calls these in order."""

import functools
import time
from collections.abc import Mapping
from typing import Any

from learner.distributed.consensus import Consensus
from learner.training.checkpoints.resume import set_stopping
from learner.training.checkpoints.saving import CheckpointSaver
from learner.training.feed.dispatches import Feeder
from learner.training.feed.inputs import run_length
from learner.training.member_decisions import MemberDecisions
from learner.training.monitors import monitored_on_host
from learner.training.profiler import Profiler
from learner.training.programs.executor import Runner
from learner.training.programs.population_runner import PopulationRunner
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import StepTimer
from learner.training.setup.dispatch_plan import step_work
from learner.training.spec import RunSpec
from learner.training.stopping import StopController, StopRequest
from learner.training.validation import Validator

LEAST_FLOPS = 1e11  # the work of a CPU in the few seconds of a compilation
LEAST_FLOPS_OF_ACCELERATORS = 1e14


def build_stop(
    spec: RunSpec,
    request: StopRequest,
    began: float,
    timer: StepTimer,
    reporter: Reporter,
    saver: CheckpointSaver | None,
    consensus: Consensus | None,
) -> StopController:
    """Return the stop controller of a run. `began`: when the run was opened, by `time.monotonic`."""
    options = spec.options

    def status() -> dict[str, Any]:
        since = time.monotonic() - began if saver is None else saver.seconds_since_save()
        # `halted` belongs to the reporter and is read without waiting: the next meeting finds a step missed now.
        return {"since": since, "halted": reporter.halted is not None, "pace": timer.estimator.steps("train")}

    time_limit = options.time_limit
    if time_limit is not None:
        time_limit -= began - spec.began  # the time for reading the data, tracing and making the model
    if options.job_ends is not None:
        # The end of a job is a time of day; from here on the run uses a monotonic clock.
        time_limit = options.job_ends - time.time()
    reserve = (lambda: 0.0) if saver is None else saver.reserve
    return StopController(request, options.interrupter, time_limit, began, consensus, reserve, status)


def build_validator(
    spec: RunSpec,
    runner: Runner,
    timer: StepTimer,
    reporter: Reporter,
    stop: StopController,
    feeders: Mapping[str, Feeder],
) -> Validator:
    """Return the validator. `feeders`: the feeders of the validation splits."""
    options, restored = spec.options, spec.restored
    members = None
    plateaus = [] if spec.plateau is None else [spec.plateau.with_lr(s.lr_scale) for s in spec.definition.starts or ()]
    decides = bool(options.early_stopping or options.halving or options.exploit or plateaus)
    if isinstance(runner, PopulationRunner) and decides:
        pays = functools.partial(compaction_pays, spec)
        members = MemberDecisions(options, plateaus, runner, reporter, pays)
        if restored is not None:
            set_stopping(members.early_stopping, restored.progress["early_stopping"])
            for plateau, state in zip(plateaus, restored.progress.get("plateaus", ()), strict=False):
                plateau.set_state(state)
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
        plateau=None if spec.members else spec.plateau,
        processes=spec.processes,
        on_host=monitored_on_host(options, list(spec.inputs.valid), spec.plateau),
        validated_step=None if restored is None else restored.progress["validated_step"],
        members=members,
    )


def compaction_pays(spec: RunSpec, ended: int, step: int) -> bool:
    """Return True if programs without ended members save more than their compilation costs.

    This depends on the remaining work and not on a clock, as the number of members may change last bits.

    Args:
      spec: the spec of the run.
      ended: the number of members that have ended.
      step: the step of the run.
    """
    steps = run_length(spec.options, spec.inputs.source("train").batches).steps
    flops = step_work(spec.step, spec.member_state, spec.inputs, spec.strategy).flops()
    least = LEAST_FLOPS if spec.strategy.platform == "cpu" else LEAST_FLOPS_OF_ACCELERATORS
    return steps is None or flops * ended * (steps - step) > least


def build_profiler(spec: RunSpec, timer: StepTimer, reporter: Reporter) -> Profiler | None:
    """Return the profiler of some steps. Return None if none are profiled in this process."""
    window = spec.options.profile
    if spec.processes.index or window is None:
        return None
    return Profiler(window, spec.options.directory, reporter, timer)
