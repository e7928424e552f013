"""The parts of a run, each built from the parts before it. `learner.training.session` calls these in order."""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from learner.distributed.consensus import Consensus
from learner.training.dispatch_plan import StepLimit, build_feeder
from learner.training.executor import Runner
from learner.training.feed.dispatches import Feeder
from learner.training.feed.group import bytes_of
from learner.training.inputs import unused_batch_size
from learner.training.oom import MemoryFootprint
from learner.training.position import Position
from learner.training.profiler import Profiler
from learner.training.reporter import Reporter
from learner.training.run_outputs import Outputs
from learner.training.saving import CheckpointSaver
from learner.training.spec import RunSpec
from learner.training.stopping import StopController, StopRequest
from learner.training.timing import StepTimer
from learner.training.validation import Validator


def build_feeders(
    spec: RunSpec, runner: Runner, timer: StepTimer, consensus: Consensus | None, outputs: Outputs
) -> tuple[dict[str, Feeder], MemoryFootprint]:
    """Return the feeders by split, and the memory that they need. The programs are traced, and nothing is compiled."""
    options, inputs = spec.options, spec.inputs
    needs = MemoryFootprint(inputs.first_batches, bytes_of(spec.state), options.accumulate, spec.step.update is None)
    feeders: dict[str, Feeder] = {}
    if text := unused_batch_size(options, inputs):
        outputs.warn(text)
    # All processes have to dispatch the same numbers of steps, so several of them go by the consensus.
    train_limit = StepLimit(options, timer.estimator, consensus)
    for split in spec.splits:
        limit: Callable[[int], int] = train_limit
        if split != "train":
            limit = (lambda step: timer.estimator.steps) if consensus is None else (lambda step: consensus.batches)
        feeder, decided = build_feeder(runner, inputs, split, options, outputs.warn, limit)
        needs.steps[split] = feeder.buffer if decided.loop and not feeder.resident else 1
        steps = f"up to {decided.buffer} steps in one loop" if decided.loop else "step by step, without a loop"
        outputs.log.info("dispatch of %s: %s (%s)", split, steps, decided.why)
        feeders[split] = feeder
    return feeders, needs


def compile_in_background(
    runner: Runner, feeders: Mapping[str, Feeder], stepped: threading.Event, threads: contextlib.ExitStack
) -> None:
    """Begin to compile the programs of these splits in another thread: that of the first step, and the others once
    `stepped` is set. When `threads` is closed, the rest is given up.
    """
    if runner.strategy.platform != "cpu":
        return  # compilers for accelerators measure kernels on the device, which trains meanwhile
    compiler = concurrent.futures.ThreadPoolExecutor(1, "learner-compile")  # XLA uses several cores for each program

    def end(kind: type[BaseException] | None, *_: object) -> None:
        compiler.shutdown(wait=False, cancel_futures=True)
        stepped.set()
        # A second Ctrl-C waits for nothing.
        compiler.shutdown(wait=kind is None or issubclass(kind, Exception))

    threads.push(end)
    kinds = {split: "train" if split == "train" else "valid" for split in feeders}
    expected = [(kinds[split], *each) for split, feeder in feeders.items() for each in feeder.expected()]
    for number, (kind, name, feed) in enumerate(expected):
        runner.compile_ahead(compiler, kind, name, feed)
        if number == 0:
            compiler.submit(stepped.wait)


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
    return Validator(
        runner,
        reporter,
        timer,
        stop,
        feeders,
        {split: source.batches for split, source in spec.inputs.valid.items()},
        every=options.valid_every,
        accumulate=options.accumulate,
        early_stopping=options.early_stopping,
        plateau=spec.plateau,
        log=outputs.log,
        warn=outputs.warn,
        validated_step=None if restored is None else restored.progress["validated_step"],
    )


def build_profiler(spec: RunSpec, position: Position, timer: StepTimer, reporter: Reporter) -> Profiler | None:
    """Return the profiler of some steps. Return None if none are profiled in this process."""
    window = spec.options.profile
    # A window of about a second that began in an earlier process is not traced again.
    if spec.processes.index or window is None or (window.last is None and position.step > window.first):
        return None
    return Profiler(window, spec.options.directory, reporter, timer)
