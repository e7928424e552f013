"""The parts of a run, each built from the parts before it. `learner.training.session` calls these in order."""

import functools
import time
from typing import Any

from learner.distributed.consensus import Consensus
from learner.training.checkpoints.resume import set_stopping
from learner.training.checkpoints.saving import CheckpointSaver
from learner.training.member_decisions import MemberDecisions
from learner.training.profiler import Profiler
from learner.training.programs.executor import Runner
from learner.training.programs.population_runner import PopulationRunner
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import StepTimer
from learner.training.setup.dispatch_plan import step_work
from learner.training.spec import RunSpec
from learner.training.stopping import StopController, StopRequest

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


def build_member_decisions(spec: RunSpec, runner: Runner, reporter: Reporter) -> MemberDecisions | None:
    """Return the decisions about the members of a population, or None if none depends on their values."""
    options, restored = spec.options, spec.restored
    plateaus = [] if spec.plateau is None else [spec.plateau.with_lr(s.lr_scale) for s in spec.definition.starts or ()]
    decides = bool(options.early_stopping or options.halving or options.exploit or plateaus)
    if not isinstance(runner, PopulationRunner) or not decides:
        return None
    members = MemberDecisions(options, plateaus, runner, reporter, functools.partial(compaction_pays, spec))
    if restored is not None:
        set_stopping(members.early_stopping, restored.progress["early_stopping"])
        for plateau, state in zip(plateaus, restored.progress.get("plateaus", ()), strict=False):
            plateau.set_state(state)
    return members


def compaction_pays(spec: RunSpec, ended: int, step: int) -> bool:
    """Return True if programs without ended members save more than their compilation costs.

    This depends on the remaining work and not on a clock, as the number of members may change last bits.

    Args:
      spec: the spec of the run.
      ended: the number of members that have ended.
      step: the step of the run.
    """
    flops = step_work(spec.step, spec.member_state, spec.inputs, spec.strategy).flops()
    least = LEAST_FLOPS if spec.strategy.platform == "cpu" else LEAST_FLOPS_OF_ACCELERATORS
    return spec.num_steps is None or flops * ended * (spec.num_steps - step) > least


def build_profiler(spec: RunSpec, timer: StepTimer, reporter: Reporter) -> Profiler | None:
    """Return the profiler of some steps. Return None if none are profiled in this process."""
    window = spec.options.profile
    if spec.processes.index or window is None:
        return None
    return Profiler(window, spec.options.directory, reporter, timer)
