"""The threads of a run: the reporter and the saver, and the order in which they are closed."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from learner.checkpoint.best import BestSnapshot
from learner.checkpoint.store import CheckpointStore
from learner.distributed.consensus import Consensus
from learner.distributed.process_group import ProcessGroup
from learner.errors import ProcessError
from learner.metrics.base import HostMetric
from learner.training.checkpoints.restored_parts import reporter_values
from learner.training.checkpoints.saving import CheckpointSaver
from learner.training.feed.group import bytes_of
from learner.training.files.run_outputs import Outputs, closing
from learner.training.population import Member
from learner.training.programs.executor import Runner
from learner.training.programs.oom import MemoryFootprint, explain_oom
from learner.training.reporting.delivery import RunValues
from learner.training.reporting.messages import MemberStop, NonFiniteStop
from learner.training.reporting.reporter import Reporter
from learner.training.reporting.timing import StepTimer
from learner.training.setup.dispatch_plan import in_flight_limit, step_work
from learner.training.spec import RunSpec


def start_threads(
    spec: RunSpec,
    store: CheckpointStore | None,
    runner: Runner,
    timer: StepTimer,
    consensus: Consensus | None,
    needs: MemoryFootprint,
    outputs: Outputs,
    threads: contextlib.ExitStack,
) -> tuple[Reporter, CheckpointSaver | None]:
    """Return the reporter, and the saver if checkpoints are saved. `threads` closes both."""
    best = None if store is None else best_snapshot(spec, store)
    # The saver needs the reporter, so the reporter is started first. It is also closed first, since the last saves wait
    # for its answers. So nothing that can fail lies between the two constructors and their callbacks.
    reporter = build_reporter(spec, runner, timer, outputs)
    saver = None
    if store is not None:
        saver = CheckpointSaver(spec, store, outputs.saves, reporter, runner, timer.spent, consensus, best)
        threads.push(closing(saver.close))
        threads.push(_saving_best(spec.processes, saver.submit_best))  # if the reporter could not
    # Exited once the reporter is closed: only then is it final whether an earlier failure explains the error.
    threads.enter_context(explain_oom(needs, lambda: reporter.failure))
    threads.push(closing(reporter.close))
    if saver is not None:
        threads.push(_saving_best(spec.processes, saver.finish_best))  # while the reporter can still report it
    return reporter, saver


def build_reporter(spec: RunSpec, runner: Runner, timer: StepTimer, outputs: Outputs) -> Reporter:
    """Return the reporter, and start its thread."""
    batches = spec.inputs.source("train").batches
    values = reporter_values(spec.options, spec.restored, spec.splits, runner, spec.inputs.first_batches["train"])
    run = RunValues(outputs.files, outputs.listeners, outputs.warn, **values)
    members = member_values(spec, runner, outputs)
    work = step_work(spec.step, spec.member_state, spec.inputs, spec.strategy)
    # Before the start of the reporter's thread, to which these metrics then belong.
    for metric in (metric for values in (run, *members) for metric in values.metrics["train"]):
        if isinstance(metric, HostMetric):
            metric.on_start(work)
    return Reporter(
        run,
        timer.estimator,
        policy=spec.options.on_nonfinite,
        unreported_losses=spec.inputs.without_loss,
        log=outputs.log,
        limiter=in_flight_limit(spec.strategy),
        check_peers=spec.processes.raise_if_peer_failed,
        now=timer.now,
        steps_per_epoch=None if batches is None else -(-batches // spec.options.accumulate),
        members=members,
        lanes=runner.lanes,
    )


def member_values(spec: RunSpec, runner: Runner, outputs: Outputs) -> list[RunValues]:
    """Return the reporter's arguments for each member of a population."""
    population, restored = spec.options.population, spec.restored
    members = []
    for member, own in zip(population.members if population else (), outputs.members, strict=True):
        before = None if restored is None else restored.of_member(member.index)
        values = reporter_values(own.options, before, spec.splits, runner, spec.inputs.first_batches["train"])
        ends: dict[str, Any] = {"halted": NonFiniteStop, "stopped": MemberStop}
        for name, kind in ends.items():
            end = None if before is None else before.progress[name]
            values[name] = None if end is None else kind(**end)
        members.append(RunValues(own.files, own.listeners, functools.partial(_warn_of, outputs, member), **values))
    return members


def _warn_of(outputs: Outputs, member: Member, text: str) -> None:
    outputs.warn(f"{member.name}: {text}")


def best_snapshot(spec: RunSpec, store: CheckpointStore) -> BestSnapshot | None:
    """Return the holder of the best epoch until it is saved, or None if only due checkpoints can be the best."""
    options, restored = spec.options, spec.restored
    if options.checkpoints is None or options.checkpoints.keep_best == 0:
        return None
    monitor, higher_is_better = spec.monitor
    # A checkpoint that was saved at a stop is removed later, so it cannot represent its epoch.
    stopped = None
    if restored is not None and restored.progress["at_stop"]:
        stopped = restored.entry.step
    score = next((entry.score for entry in store.ranked() if entry.step != stopped), None)
    if restored is not None and restored.progress["monitor"] != monitor:
        score = None  # of another metric
    return BestSnapshot(higher_is_better, score, bytes_of(spec.state))


def _saving_best(processes: ProcessGroup, save: Callable[[], None]) -> Callable[..., None]:
    """Return an exit callback that saves the best epoch of a failed run. Nothing is saved after a second interrupt,
    which ends the run immediately, or with several processes, which save together but may not all have failed.
    """

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        if processes.count == 1 and isinstance(error, Exception) and not isinstance(error, ProcessError):
            with contextlib.suppress(Exception):  # the error of the run is the one that is raised
                save()

    return leave


def finish_records(spec: RunSpec, runner: Runner, saver: CheckpointSaver | None) -> None:
    """Write the records of the checkpoint to resume from, if the earlier process was killed before it wrote them."""
    restored, checkpoints = spec.restored, spec.options.checkpoints
    if restored is None or checkpoints is None or saver is None:
        return
    step, items = restored.entry.step, len(checkpoints.record_items)
    # All processes take the same branch: copying the state is a program on the devices of all of them.
    if spec.processes.run_on_primary(lambda: len(saver.store.records(step)) < items):
        saver.record(runner.copy(runner.state), restored.progress)
