"""The preparation of a run: programs, feeders and the first state. Programs depend only on shapes, so a CPU compiles
some while others are traced, and the first step while the model is made.
"""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Iterator

from learner.distributed.consensus import Consensus
from learner.steps.train_state import TrainState
from learner.training.checks.step_tracing import Tracing
from learner.training.feed.dispatches import Feeder
from learner.training.feed.group import bytes_of
from learner.training.feed.inputs import unused_batch_size
from learner.training.files.run_outputs import Outputs
from learner.training.programs.compilation import CompileTimes, compilation_cache
from learner.training.programs.executor import Runner
from learner.training.programs.oom import MemoryFootprint
from learner.training.progress.restore import Restored
from learner.training.reporting.timing import StepTimeEstimator
from learner.training.run_plan import RunPlan
from learner.training.setup.dispatch_plan import StepLimit, build_feeder, lanes_of, make_runner
from learner.util.executables import compile_threads


class EarlyMessages:
    """Messages for the log and the listeners of a run, stored until these are open."""

    def __init__(self) -> None:
        self._early: list[tuple[Callable[[Outputs, str], None], str]] = []
        self._outputs: Outputs | None = None

    def info(self, text: str) -> None:
        """Write a line to the log."""
        self._write(Outputs.info, text)

    def warn(self, text: str) -> None:
        """Write a warning to the log, and send it to the listeners. Any thread may call it."""
        self._write(Outputs.warn, text)

    def report_compilation(self, number: int, total: int) -> None:
        """Notify the listeners of the program about to be compiled; see `Outputs.report_compilation`."""
        if self._outputs is not None:
            self._outputs.report_compilation(number, total)

    def connect(self, outputs: Outputs) -> None:
        """Write all messages so far, and from now on each one immediately."""
        # No other thread has a message before the run is open, so none can come between these lines.
        self._outputs = outputs
        for write, text in self._early:
            write(outputs, text)

    def _write(self, write: Callable[[Outputs, str], None], text: str) -> None:
        if self._outputs is None:
            self._early.append((write, text))
        else:
            write(self._outputs, text)


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Programs and feeders of a run, and its first state.

    Attributes:
      runner: the programs; it has shapes instead of a state.
      feeders: the feeders by split.
      needs: the memory of the batches.
      estimator: estimates the time of a step.
      consensus: the consensus with the other processes, or None.
      times: counts compilations, including those for the first state.
      programs: the number of programs that are compiled in the background.
      compiling: ends the background compilation when closed.
      messages: messages about all of this.
      init: returns the first state of a new run. Its programs are also compiled in the background.
    """

    runner: Runner
    feeders: dict[str, Feeder]
    needs: MemoryFootprint
    estimator: StepTimeEstimator
    consensus: Consensus | None
    times: CompileTimes
    programs: int
    compiling: contextlib.ExitStack
    messages: EarlyMessages
    init: Callable[[], TrainState]


@contextlib.contextmanager
def prepare_programs(plan: RunPlan, restored: Restored | None) -> Iterator[Preparation]:
    """Build programs and feeders, and begin to compile in the background. Only compiled programs are written.

    Args:
      plan: the plan of the run.
      restored: the checkpoint that the run resumes from. None: `init` makes the first state.
    """
    definition, messages = plan.definition, EarlyMessages()
    with contextlib.ExitStack() as stack:
        times = stack.enter_context(CompileTimes())
        # Before the first compilation: JAX binds its cache to the first directory that it compiles for.
        cache = stack.enter_context(compilation_cache(plan.strategy.platform, plan.options.compilation_cache))
        if cache:
            messages.info(f"compilations are kept in {cache}")
        # A separate stack, as these threads end once the state is made.
        making, init = stack.enter_context(contextlib.ExitStack()), definition.init_placed
        if restored is None:
            # While Python traces the steps, the other cores compile the initialisation of the model.
            init = making.enter_context(definition.init_ahead(max(1, (os.cpu_count() or 1) - 1)))
        estimator = StepTimeEstimator(compilations=lambda: times.count)
        step = 0 if restored is None else restored.position.step
        consensus = None if plan.processes.count == 1 else Consensus(plan.processes, step)
        shapes = definition.placed_shapes()
        lanes = None if restored is None else lanes_of(restored.progress, plan.options, plan.strategy)
        runner = make_runner(plan.step, shapes, plan.strategy, plan.options, lanes)
        needs = MemoryFootprint(
            plan.inputs.first_batches,
            bytes_of(shapes),
            plan.step.accumulate,
            plan.step.split,
            can_accumulate=plan.step.update is None,
        )
        built = build_feeders(plan, runner, estimator, consensus, needs, messages)
        compiling = stack.enter_context(contextlib.ExitStack())
        report = messages.report_compilation
        feeders, programs = compile_in_background(runner, built, estimator.stepped, compiling, report)

        def init_once() -> TrainState:
            with making:  # which ends its threads
                return init()

        yield Preparation(runner, feeders, needs, estimator, consensus, times, programs, compiling, messages, init_once)


def build_feeders(
    plan: RunPlan,
    runner: Runner,
    estimator: StepTimeEstimator,
    consensus: Consensus | None,
    needs: MemoryFootprint,
    messages: EarlyMessages,
) -> Iterator[tuple[str, Feeder]]:
    """Yield the feeder of each split, and set the steps that `needs` room. The programs are traced, and nothing is
    compiled.
    """
    options, inputs = plan.options, plan.inputs
    if text := unused_batch_size(options, inputs):
        messages.warn(text)
    # All processes must dispatch the same numbers of steps, so several processes use the consensus.
    train_limit = StepLimit(options, estimator, consensus)
    for split in ("train", *inputs.valid):
        limit: Callable[[int], int] = train_limit
        if split != "train":
            limit = (lambda step: estimator.steps("valid")) if consensus is None else (lambda step: consensus.batches)
        name = ("train_step" if plan.step.update is None else "update=") if split == "train" else "valid_step"
        # The preflight has traced the steps, but not their gradients.
        with Tracing(name, split, lambda split=split: inputs.first_batches[split]):  # type: ignore[misc]
            feeder, text = build_feeder(runner, inputs, split, options, messages.warn, limit)
        if consensus is not None:
            feeder.compare_reads(plan.processes, consensus.records)
        needs.steps[split] = feeder.buffer if feeder.loop and not feeder.resident else 1
        messages.info(f"dispatch of {split}: {text}")
        if split != "train" and options.valid_batches is not None:
            rows = f"of rows drawn with seed {options.seed}" if options.valid_shuffle else "the first ones"
            messages.info(f"each validation of {split} reads at most {options.valid_batches} batches, {rows}")
        # One split at a time: the caller compiles its programs in the background while the next split is traced.
        yield split, feeder


def compile_in_background(
    runner: Runner,
    built: Iterable[tuple[str, Feeder]],
    stepped: threading.Event,
    stack: contextlib.ExitStack,
    report: Callable[[int, int], None],
) -> tuple[dict[str, Feeder], int]:
    """Begin to compile the programs of these splits in another thread: first that of the first step, and once
    `stepped` is set, the others. Closing `stack` cancels the rest. The thread calls `report` with the number of each of
    the others and their total, and at the end with 0. Return the feeders by split, and the number of programs; 0 if
    none is compiled in the background.
    """
    if runner.strategy.platform != "cpu":
        return dict(built), 0  # compilers for accelerators measure kernels on the device, which trains meanwhile
    compiler = stack.enter_context(compile_threads(1))  # XLA uses several cores for each program

    def end() -> None:
        compiler.shutdown(wait=False, cancel_futures=True)  # before the thread that waits continues
        stepped.set()

    # Runs before `compile_threads` waits for its thread, which may be waiting for a first step that never comes.
    stack.callback(end)
    feeders: dict[str, Feeder] = {}
    programs: list[str] = []

    def report_program(number: int) -> None:
        report(number, len(programs))  # the list is complete, as this runs after the first step

    # The first program is compiled while those of the other splits are traced.
    for split, feeder in built:
        feeders[split] = feeder
        for name, feed in feeder.expected():
            programs.append(name)
            if len(programs) > 1:
                compiler.submit(report_program, len(programs))
            runner.compile_ahead(compiler, "train" if split == "train" else "valid", name, feed)
            if len(programs) == 1:
                # There is one thread: later programs wait for the first step, with which they would share the cores.
                compiler.submit(stepped.wait)
    compiler.submit(report_program, 0)
    return feeders, len(programs)
