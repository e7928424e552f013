"""Opening and closing a run: its outputs, its parts and their threads, also if it fails in between."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from learner.events import Compiling
from learner.steps.train_state import TrainState
from learner.training.checkpoints.restored_parts import accumulator_in_flight, restore_decisions
from learner.training.checkpoints.resume import data_of
from learner.training.checkpoints.rewind import open_checkpoints
from learner.training.checks.row_relations import warnings_of_parts
from learner.training.files.run_outputs import Outputs, open_outputs
from learner.training.number_log import NumberLog
from learner.training.programs.compilation import CompileTimes
from learner.training.progress.position import Position
from learner.training.progress.restore import Restored
from learner.training.reporting.timing import StepTimer, TimeBreakdown
from learner.training.run import Run
from learner.training.run_plan import RunPlan
from learner.training.setup.announcement import announce_end, announce_start
from learner.training.setup.assembly import build_member_decisions, build_profiler, build_stop
from learner.training.setup.preparation import Preparation
from learner.training.setup.startup import describe
from learner.training.setup.supervision import start_supervision
from learner.training.setup.threads import finish_records, start_threads
from learner.training.signals import first_signal, on_signals
from learner.training.spec import RunSpec
from learner.training.stopping import StopRequest
from learner.training.validation import Validator
from learner.util.stages import close_stages


@contextlib.contextmanager
def open_run(
    plan: RunPlan,
    prepared: Preparation,
    restored: Restored | None,
    state: TrainState,
    overview: Callable[[Any, Any], None],
) -> Iterator[Run]:
    """Open a run that is ready to loop. When the block ends, the summary is written; if it raises, the error is logged
    and raised. For the arguments see `RunSpec`; `prepared` has the programs and the data.
    """
    spec = RunSpec(**vars(plan), state=state, restored=restored, overview=overview)
    # One object for the whole run: the loop advances it in place, and the line of an error reports it.
    position = Position() if spec.restored is None else spec.restored.position
    request = StopRequest()
    # Handlers before anything that takes time: a signal during the setup must also end the run cleanly.
    with on_signals(request.to_stop, request.to_save):
        with (
            open_outputs(spec.options, spec.processes.index, position) as outputs,
            # Inside of the outputs, to which its thread reports.
            first_signal(lambda name: outputs.report_signal(name, saves=spec.options.checkpoints is not None)),
            # Entered last and closed first: the reporter and the saver write to the outputs until they are closed.
            contextlib.ExitStack() as threads,
        ):
            run = _setup(spec, prepared, outputs, position, request, threads)
            yield run
            # An error skips this: the callbacks of `threads` then save what they can, and close everything.
            _teardown(run, spec)
            run.reporter.log.info("%d programs compiled in %.1f s", prepared.times.count, prepared.times.seconds)
            announce_end(run, spec, outputs)
            # Closing the reporter raises nothing, so an error in these last lines must be raised here.
            run.reporter.wait()
        # Again, as process 0 may have received a signal while its loggers were closed. That takes up to ten minutes for
        # `RunMirror`, longer than any other meeting waits.
        run.stop.agree_on_end(spec.processes, patient=True)


def _setup(
    spec: RunSpec,
    prepared: Preparation,
    outputs: Outputs,
    position: Position,
    request: StopRequest,
    threads: contextlib.ExitStack,
) -> Run:
    """Build the parts of a run, each from the parts before it, and start its threads."""
    began = time.monotonic()
    options, restored, inputs, processes = spec.options, spec.restored, spec.inputs, spec.processes

    # 1. The files. A run that cannot resume must change none, so the metrics in flight, which may be refused, come
    # first.
    accumulator = accumulator_in_flight(restored, prepared.runner, options)
    store = open_checkpoints(spec, outputs, threads)
    parameters = describe(outputs.log, options, spec.step, spec.member_state, spec.strategy)
    of_parts = warnings_of_parts(spec.step, spec.member_state, inputs.first_batches["train"], spec.strategy)
    for text in (*inputs.warnings, *of_parts):
        outputs.warn(text)

    # 2. The state, in the place of its shapes.
    prepared.messages.connect(outputs)
    # `prepare_programs` closes this stack as well, for a run that never opens; the second time it is empty.
    threads.push(prepared.compiling)  # while signals are handled and the log is open: it may wait for XLA
    runner, feeders, consensus = prepared.runner, dict(prepared.feeders), prepared.consensus
    # The runner takes these arrays over, and the first dispatch donates them: of `spec.state` only shapes stay valid.
    runner.begin(spec.state, spec.definition.lr_scale)

    # 3. The threads that read values and write checkpoints, with what closes them.
    # Entered by the loop's thread: `in_thread` counts the seconds of this thread only.
    times = threads.enter_context(CompileTimes())  # only of the run: the state and its programs came before
    timer = StepTimer(prepared.estimator, TimeBreakdown(lambda: times.in_thread))
    reporter, saver = start_threads(spec, store, runner, timer, consensus, prepared.needs, outputs, threads)

    # 4. The parts that decide: they may query the threads, and the loop queries them.
    stop = build_stop(spec, request, began, timer, reporter, saver, consensus)
    train, batches = feeders.pop("train"), inputs.source("train").batches
    members = build_member_decisions(spec, runner, reporter)
    validator = Validator(spec, runner, reporter, timer, stop, feeders, members)
    run = Run(
        options=options,
        runner=runner,
        feeder=train,
        position=position,
        accumulator=accumulator,
        data_state=None if restored is None else data_of(restored.progress, processes.index, processes.count, batches),
        reporter=reporter,
        saver=saver,
        stop=stop,
        validator=validator,
        numbers=NumberLog(
            reporter, validator, processes, [info.name for info in options.monitored_numbers(spec.plateau)]
        ),
        timer=timer,
        profiler=build_profiler(spec, timer, reporter),
    )
    if restored is not None:
        for reason in restore_decisions(options, spec.plateau, restored):
            stop.decide(reason)
        finish_records(spec, runner, saver)

    # 5. The announcement, once nothing can be refused any more. Then the threads that watch the run from outside.
    for source in map(inputs.source, spec.splits):
        threads.callback(source.close)
    close_stages()
    announce_start(run, spec, outputs, parameters)
    if prepared.programs:  # only from here, as listeners expect no events before the start of a run
        reporter.put(Compiling(time.time(), 1, prepared.programs))
    if run.profiler is not None:
        threads.callback(run.profiler.abandon)
    # Last, as these threads may stop or save the run from their first moment on.
    start_supervision(run, outputs, processes.index == 0, threads)
    return run


def _teardown(run: Run, spec: RunSpec) -> None:
    """Wait for everything that was started."""
    reporter, saver = run.reporter, run.saver
    # First: it waits for the steps in flight, and reports through the reporter.
    if run.profiler is not None:
        run.profiler.end(run.position.step)
    # Queued after all values, which the reporter needs to select the best.
    if saver is not None:
        saver.write_best()
    # The reporter before the saver, which waits for its answers and drops a save that gets none without an error.
    reporter.wait()
    if saver is not None:
        with run.timer.spent.saving():
            saver.wait()
        # After the wait, which ends for a save that has failed as well.
        saver.check()
    run.stop.agree_on_end(spec.processes)  # after the last save, which may have failed in one process alone
    if saver is not None:
        saver.close()
    reporter.wait()  # for the lines of the last saves
