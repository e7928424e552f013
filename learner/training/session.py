"""Opening and closing a run: its logs, its threads, its directory, also if it fails in between."""

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from learner.checkpoint import CheckpointStore
from learner.checkpoint.best import BestSnapshot
from learner.distributed.consensus import Consensus
from learner.distributed.process_group import ProcessGroup
from learner.errors import LearnerError, ProcessError
from learner.events import Listener, ListenerThread, Message, MetricInfo, RunEnded, RunFailed, RunStarted
from learner.loggers.application import close_application_log, open_application_log
from learner.loggers.unlogged import RunFilesWithoutMetrics
from learner.metrics.base import CollectingMetric, Metric
from learner.models.arrays import arrays_of, model_json
from learner.optimizers.schedule_resolution import schedules_in
from learner.runs import control_files as asking
from learner.runs.history import History, summarize
from learner.runs.log_cutting import refuse_changed
from learner.runs.metric_logs import NoFiles, RunFiles
from learner.schedules import ReduceOnPlateau
from learner.schedules.resolve import early_end, not_reached
from learner.steps.state import TrainState
from learner.steps.step import Step
from learner.strategies import Strategy
from learner.training.compilation import CompileTimes, compilation_cache
from learner.training.dispatch_plan import (
    SINGLE_PROCESS,
    DispatchPlan,
    Planned,
    StepLimit,
    check_recordable,
    decide_dispatch,
    describe,
    feeder_for,
    in_flight_limit,
    make_runner,
    monitor_of,
    open_store,
    warning_of_pairs,
)
from learner.training.executor import Runner
from learner.training.feed.dispatches import Feeder
from learner.training.feed.group import bytes_of
from learner.training.initialization import InitReport
from learner.training.oom import MemoryFootprint, explain_oom
from learner.training.options import Options
from learner.training.position import Position
from learner.training.preflight import Inputs, run_length, unused_batch_size
from learner.training.profiler import Profiler
from learner.training.reporter import Reporter
from learner.training.resume import (
    Restored,
    changes_since,
    data_of,
    restore_host_metrics,
    rows_in_flight,
    set_stopping,
    tally_in_flight,
)
from learner.training.run import Run
from learner.training.run_metadata import run_metadata
from learner.training.saving import CheckpointSaver
from learner.training.stopping import StopController, StopRequest
from learner.training.timing import StepTimeEstimator, StepTimer, TimeBreakdown, format_breakdown
from learner.training.validation import Validator
from learner.training.watchdog import Watchdog
from learner.util.json_values import decode

Files = RunFiles | NoFiles
WAIT_FOR_LISTENERS = 10.0  # seconds at the end; importing what talks to a server can take some
NOTHING_LOGGED = {"epoch_lines": 0, "epoch": 0, "files": {}}


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """Everything that a run begins with.

    Attributes:
      options: of the builder.
      step: the definition of its steps.
      plateau: the scheduler, if there is one.
      strategy: where it runs.
      inputs: the data.
      state: the first state.
      restored: the checkpoint to resume from, or None.
      going_on: True if the run in the directory is resumed.
      request: the mailbox of signal handlers.
      fingerprint: of the run; see `learner.training.fingerprints`.
      init_report: what the first state has of another run, or None.
      overview: shows the plan of the run to its listeners.
      hosts: the processes of the run.
    """

    options: Options
    step: Step
    plateau: ReduceOnPlateau | None
    strategy: Strategy
    inputs: Inputs
    state: TrainState
    restored: Restored | None
    going_on: bool
    request: StopRequest
    fingerprint: Mapping[str, Any]
    overview: Callable[[Planned, Run], None]
    init_report: InitReport | None = None
    hosts: ProcessGroup = SINGLE_PROCESS


@contextlib.contextmanager
def open_run(spec: RunSpec) -> Iterator[Run]:
    """Open a run that is ready to loop. When the block ends, its summary is written; when it raises, the error is
    logged and raised.
    """
    options, first = spec.options, spec.hosts.index == 0
    log = open_application_log(options.directory, options.application_logger, spec.hosts.index)
    kind = RunFiles if options.metric_files else RunFilesWithoutMetrics
    files = kind(options.directory, time.time) if first else NoFiles()
    position = Position() if spec.restored is None else spec.restored.position
    with contextlib.ExitStack() as stack:
        # Closed in reverse: listeners first, which may still warn; then the files; the log last.
        stack.callback(close_application_log, log)
        stack.push(_without_hiding(files.close))
        listeners: list[ListenerThread] = []
        warn = _warner(log, listeners)
        listeners += [ListenerThread(listener, warn) for listener in _listeners(options)] if first else []
        stack.push(_closing(lambda seconds: _close(listeners, seconds)))
        try:
            with contextlib.ExitStack() as threads:
                times = threads.enter_context(CompileTimes())
                run = _setup(spec, _Outputs(log, files, listeners, warn), position, times, threads)
                yield run
                _teardown(run, spec, times)
        except BaseException as error:
            log.error("failed: %r", error, exc_info=error)
            with contextlib.suppress(Exception):
                files.journal("error", epoch=position.epoch, step=position.step, error=repr(error))
            for listener in listeners:
                listener.put(RunFailed(time.time(), position.epoch, position.step, repr(error)))
            raise


@dataclasses.dataclass(frozen=True)
class _Outputs:
    """Where a run writes: its log, its files, its listeners; `warn` writes to the log and to the listeners."""

    log: logging.Logger
    files: Files
    listeners: list[ListenerThread]
    warn: Callable[[str], None]


def _setup(spec: RunSpec, outputs: _Outputs, p: Position, times: CompileTimes, threads: contextlib.ExitStack) -> Run:
    """Build the parts of a run, each from the parts before it, and start its threads."""
    began = time.monotonic()
    options, restored, inputs, hosts = spec.options, spec.restored, spec.inputs, spec.hosts
    log, warn, splits = outputs.log, outputs.warn, list(inputs.valid)

    # 1. The files, before anything compiles: a run that cannot resume here ends at once, and nothing is changed.
    monitor, higher_is_better = monitor_of(options, splits)
    store = _store(spec, higher_is_better, outputs, threads)
    cache = threads.enter_context(compilation_cache(spec.strategy.platform, options.compilation_cache))
    if cache:
        log.info("compilations are kept in %s", cache)
    parameters = describe(log, options, spec.step, spec.state, spec.strategy)
    check_recordable(options, spec.state)
    if text := warning_of_pairs(spec.step, spec.state, inputs.first_batches["train"], spec.strategy):
        warn(text)

    # 2. The programs and the data. How steps are dispatched is decided by tracing the programs, so they come first.
    timer = StepTimer(StepTimeEstimator(compilations=lambda: times.count), TimeBreakdown(lambda: times.own))
    runner = make_runner(spec.step, spec.state, spec.strategy)
    consensus = None if hosts.count == 1 else Consensus(hosts, p.step)
    limits = (
        StepLimit(options, timer.estimator, consensus),
        (lambda step: timer.estimator.steps) if consensus is None else (lambda step: consensus.batches),
    )
    feeders, needs = _feeders(spec, runner, limits, outputs)
    train = feeders.pop("train")

    # 3. The threads. The saver needs the reporter, which is started first; it is closed first as well, since its last
    # items may hand saves over. So nothing that can fail lies between the two constructors and what closes them.
    arguments = _reporter_arguments(spec, runner)
    best = None if store is None else _best(spec, store, monitor, higher_is_better)
    reporter = _reporter(spec, outputs, timer, arguments)
    saver = None
    if store is not None:
        saver = CheckpointSaver(
            store,
            reporter,
            options,
            runner,
            timer.spent,
            hosts,
            consensus,
            best,
            monitor=monitor,
            higher_is_better=higher_is_better,
            fingerprint=spec.fingerprint,
            # One that was made because the run stopped there is replaced, should the run end there after all.
            last_saved=None if restored is None or restored.progress["at_stop"] else restored.position,
            each_data=hosts.count > 1 and inputs.source("train").own,
        )
        threads.push(_closing(saver.close))
        if isinstance(outputs.files, RunFiles):
            # The reporter may wait for the saver, as the saver never waits for the reporter.
            outputs.files.make_room = saver.wait
        threads.push(_saving_best(hosts, saver.submit_best))  # if the reporter could not
    threads.enter_context(explain_oom(needs, lambda: reporter.failure))
    threads.push(_closing(reporter.close))
    if saver is not None:
        threads.push(_saving_best(hosts, saver.finish_best))  # while the reporter can still report it

    # 4. What decides: it may ask the threads, and the loop asks it.
    def status() -> dict[str, Any]:
        since = time.monotonic() - began if saver is None else saver.seconds_since_save()
        return {"since": since, "halted": reporter.halted is not None, "pace": timer.estimator.steps}

    time_limit = options.time_limit if options.job_ends is None else options.job_ends - time.time()
    reserve = (lambda: 0.0) if saver is None else saver.reserve
    stop = StopController(spec.request, options.interrupter, time_limit, began, consensus, reserve, status)
    validator = Validator(
        runner,
        reporter,
        timer,
        stop,
        feeders,
        {split: source.batches for split, source in inputs.valid.items()},
        every=options.valid_every,
        accumulate=options.accumulate,
        early_stopping=options.early_stopping,
        plateau=spec.plateau,
        log=log,
        warn=warn,
        validated_step=None if restored is None else restored.progress["validated_step"],
    )
    window, profiler = options.profile, None
    # One of about a second that began in an earlier process is not taken again.
    if hosts.index == 0 and window is not None and (window.last is not None or p.step <= window.first):
        profiler = Profiler(window, options.directory, reporter, timer)
    run = Run(
        options=options,
        runner=runner,
        feeder=train,
        position=p,
        tally=tally_in_flight(restored, runner, options),
        data_state=None if restored is None else data_of(restored.progress, hosts.index),
        reporter=reporter,
        saver=saver,
        stop=stop,
        validator=validator,
        timer=timer,
        profiler=profiler,
    )

    # 5. What a checkpoint holds besides arrays, and what a process that was killed has left undone.
    if restored is not None:
        _restore_decisions(run, spec.plateau, restored)
        items = 0 if options.checkpoints is None else len(options.checkpoints.record_items)
        missing = lambda: store is not None and len(store.records(restored.entry.step)) < items  # noqa: E731
        if saver is not None and hosts.run_on_primary(missing):
            saver.record(runner.copy(runner.state), restored.progress)

    # 6. The announcement, once nothing can be refused any more. Then what watches the run from outside.
    for source in (inputs.source("train"), *inputs.valid.values()):
        threads.callback(source.close)
    _announce(run, spec, monitor, parameters)
    if profiler is not None:
        threads.callback(profiler.abandon)
    if hosts.index == 0:
        poller = _control_files(run)
        threads.callback(poller.close)
        poller.start()
    if options.watchdog is not None:
        dog = _watchdog(options.watchdog, stop if options.watchdog_ends else None, timer.estimator, outputs)
        threads.callback(dog.close)
        dog.start()
    return run


def _store(
    spec: RunSpec, higher_is_better: bool, outputs: _Outputs, threads: contextlib.ExitStack
) -> CheckpointStore | None:
    """Return the checkpoints, with everything else in the directory at the position to resume from. Return None if
    nothing is saved.
    """
    options, restored = spec.options, spec.restored
    store = None if options.checkpoints is None else open_store(options, higher_is_better, spec.hosts)
    if store is not None:
        threads.callback(store.close)
    if restored is not None:
        for text in restored.notes:
            outputs.warn(text)
        warned, logged = changes_since(restored, spec.fingerprint, options)
        for text in warned:
            outputs.warn(text)
        for text in logged:
            outputs.log.warning(text)

    def prepare() -> None:
        _rewind_logs(spec, outputs.files, store, outputs.log)
        if store is not None:
            store.prepare()

    spec.hosts.run_on_primary(prepare)
    return store


def _feeders(
    spec: RunSpec,
    runner: Runner,
    limits: tuple[Callable[[int], int], Callable[[int], int]],
    outputs: _Outputs,
) -> tuple[dict[str, Feeder], MemoryFootprint]:
    """Return the feeders by split, and the memory that they need. `limits`: of training and of validation."""
    options, inputs, strategy = spec.options, spec.inputs, spec.strategy
    needs = MemoryFootprint(inputs.first_batches, bytes_of(spec.state), options.accumulate, spec.step.update is None)
    feeders: dict[str, Feeder] = {}
    if text := unused_batch_size(options, inputs):
        outputs.warn(text)
    for split in ("train", *inputs.valid):
        kind, limit = ("train", limits[0]) if split == "train" else ("valid", limits[1])
        feeder, plan = feeder_for(inputs, split, strategy, options, outputs.warn, limit)
        decided = decide_dispatch(runner, feeder, plan, options, kind, strategy)
        plan.loop = decided.loop
        needs.steps[split] = plan.buffer if decided.loop and not feeder.resident else 1
        _log_dispatch(outputs.log, split, decided)
        feeders[split] = feeder
    return feeders, needs


def _reporter_arguments(spec: RunSpec, runner: Runner) -> dict[str, Any]:
    """Return what the reporter begins with: of a checkpoint within an epoch, the values and rows so far."""
    options, restored = spec.options, spec.restored
    metrics = {split: options.metrics_of(split) for split in ("train", *spec.inputs.valid)}
    restore_host_metrics(restored, metrics)
    collecting = {split: [m.name for m in ms if isinstance(m, CollectingMetric)] for split, ms in metrics.items()}
    arguments: dict[str, Any] = {"metrics": metrics, "history": History()}
    if rows := rows_in_flight(restored, collecting, options):
        first = spec.inputs.first_batches["train"]
        row_trees = dict(zip(collecting["train"], runner.row_trees(first), strict=True))
        arguments |= {"collected": rows, "row_trees": row_trees}
    if restored is not None:
        arguments["history"] = History.from_json(restored.progress["history"])
        arguments["epoch_values"] = {k: decode(value) for k, value in restored.progress["epoch_values"].items()}
    return arguments


def _reporter(spec: RunSpec, outputs: _Outputs, timer: StepTimer, arguments: Mapping[str, Any]) -> Reporter:
    batches = spec.inputs.source("train").batches
    return Reporter(
        **arguments,
        files=outputs.files,
        outlets=outputs.listeners,
        estimator=timer.estimator,
        clock=time.time,
        policy=spec.options.on_nonfinite,
        log=outputs.log,
        warn=outputs.warn,
        limiter=in_flight_limit(spec.strategy),
        check_peers=spec.hosts.raise_if_peer_failed,
        now=timer.now,
        steps_per_epoch=None if batches is None else -(-batches // spec.options.accumulate),
    )


def _best(spec: RunSpec, store: CheckpointStore, monitor: str, higher_is_better: bool) -> BestSnapshot | None:
    """What keeps the best epoch until it is saved; None where only checkpoints that are due can be the best."""
    options = spec.options
    if options.checkpoints is None or options.checkpoints.keep_best == 0:
        return None
    split, _, name = monitor.partition("/")
    # Several processes have to save the same steps. Only metrics of the devices have the same value in all of them.
    on_devices = split != "custom" and any(m.name == name and isinstance(m, Metric) for m in options.metrics_of(split))
    if spec.hosts.count > 1 and not on_devices:
        return None
    # A checkpoint that was made because the run stopped there is removed later, so it cannot stand for its epoch.
    stopped = None
    if spec.restored is not None and spec.restored.progress["at_stop"]:
        stopped = spec.restored.entry.step
    score = next((entry.score for entry in store.ranked() if entry.step != stopped), None)
    return BestSnapshot(higher_is_better, score, bytes_of(spec.state))


def _saving_best(hosts: ProcessGroup, save: Callable[[], None]) -> Callable[..., None]:
    """Save the best epoch of a run that fails. One that is interrupted twice ends at once; and several processes, which
    save together, may not all have failed.
    """

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        if hosts.count == 1 and isinstance(error, Exception) and not isinstance(error, ProcessError):
            with contextlib.suppress(Exception):  # the error of the run is the one that comes out
                save()

    return leave


def _watchdog(seconds: float, stop: StopController | None, estimator: StepTimeEstimator, outputs: _Outputs) -> Watchdog:
    end = None if stop is None else stop.interrupt_once
    return Watchdog(seconds, lambda: estimator.ended, _stalled(outputs.log, outputs.warn), end)


def _control_files(run: Run) -> asking.ControlFilePoller:
    """Return what polls the directory for files that request a stop or a checkpoint. It calls `answer` on a thread of
    its own, so that `answer` may only use what any thread may.
    """

    def answer(what: str, who: str) -> None:
        def notify(text: str) -> None:
            run.reporter.notify(f"{who} {text}", log=True)

        if run.stop.is_ending:
            notify(f"asks the run to {what}, which is ending already")
        elif what == "stop":
            notify("asks the run to stop: it stops after the step under way")
            run.stop.interrupt_once(f"asked by {who}")
        elif run.saver is None:
            notify("asks for a checkpoint, but this run saves none")
        else:
            notify("asks for a checkpoint: it is saved after the step under way")
            run.stop.request_save()

    return asking.ControlFilePoller(run.options.directory, answer, run.warn)


def _announce(run: Run, spec: RunSpec, monitor: str, parameters: int) -> None:
    """Announce the start: in the journal, to the listeners, in the log."""
    p, options, resumed, reporter = run.position, run.options, spec.restored is not None, run.reporter
    infos = _metric_infos(spec)
    metadata = run_metadata(options, spec.step, spec.fingerprint["settings"]) if spec.hosts.index == 0 else {}
    metrics = {info.key: {"unit": info.unit, "higher_is_better": info.higher_is_better} for info in infos}
    fields = {"epoch": p.epoch, "step": p.step, "resumed": resumed, "metrics": metrics, **metadata}
    fields |= {"steps_per_epoch": reporter.steps_per_epoch, "fingerprint": spec.fingerprint}
    reporter.write_model(model_json(arrays_of(spec.step.family, spec.state.params, spec.state.model_state)))
    reporter.journal("start", **fields)
    if options.show_summary:
        spec.overview(Planned(options, spec.step, spec.state, spec.inputs, run.runner, run.feeder), run)
    numbers = options.num_epochs, options.num_steps, reporter.steps_per_epoch
    where = options.directory, *numbers, infos, parameters, p.epoch, p.step, resumed
    history = {key: tuple(reporter.history.points(key)) for key in reporter.history}
    metadata["shown"] = options.shown
    reporter.put(RunStarted(time.time(), *where, history=history, monitor=monitor, **metadata))
    report = None if resumed else spec.init_report
    _log_initial(options, report, reporter.log)
    if report is not None:
        reporter.put(Message(time.time(), logging.INFO, report.line))
    _log_early_end(run, spec)
    if not options.metric_files:
        reporter.log.info(
            "values of single steps go to loggers only: metric_loggers(only=...) replaces the metric files"
        )
    reporter.log.info("start at epoch %d, step %d", p.epoch, p.step)


def _metric_infos(spec: RunSpec) -> tuple[MetricInfo, ...]:
    return spec.options.metric_infos(["train", *spec.inputs.valid])


def _teardown(run: Run, spec: RunSpec, times: CompileTimes) -> None:
    """Wait for everything that was begun, and report the end: in `summary.json`, in the journal, to the listeners."""
    reporter, saver, p = run.reporter, run.saver, run.position
    if run.profiler is not None:
        run.profiler.end(p.step)
    # The reporter hands the last saves over, so it is waited for before the saver.
    if saver is not None:
        saver.write_best()
    reporter.wait()
    if saver is not None:
        with run.timer.spent.saving():
            saver.wait()
        saver.check()
    run.stop.agree_on_end(spec.hosts)  # after the last save, which may have failed in one process alone
    if saver is not None:
        saver.close()
    reporter.wait()  # for the lines of the last saves
    reporter.log.info("%d programs compiled in %.1f s", times.count, times.seconds)
    summary = _summary(run, _metric_infos(spec))
    reporter.write_summary(summary)
    seconds, reason = time.monotonic() - run.stop.began, run.stop.stopped_by
    epoch, step = p.shown_epoch, p.step
    parts = run.timer.spent.split(seconds, reporter.spent)
    text = format_breakdown(parts)
    reporter.log.info("ended by %s at epoch %d, step %d, after %.1f s (%s)", reason, epoch, step, seconds, text)
    event = "end" if reason in ("num_epochs", "num_steps") else "stop"
    rounded = {name: round(value, 6) for name, value in parts.items()}
    reporter.journal(event, epoch=epoch, step=step, stopped_by=reason, seconds=rounded)
    shown = {**summary, "seconds": rounded}
    reporter.put(RunEnded(time.time(), epoch, step, reason, shown, seconds, run.options.show_summary))
    reporter.wait()


def _rewind_logs(spec: RunSpec, files: Files, store: CheckpointStore | None, log: logging.Logger) -> None:
    """Cut the files at the position to resume from; what is newer is kept in `superseded/`."""
    options, restored = spec.options, spec.restored
    position, lenient = None if restored is None else restored.progress["log"], "logs" in _allowed(options)
    if position is not None and not lenient:
        refuse_changed(options.directory, position)  # before anything is changed
    if options.config_text is not None:
        _write(options.directory / "config.yaml", options.config_text, 0o600 if options.config_private else 0o666)
    if not spec.going_on:
        return
    if restored is None or position is None:
        files.cut(NOTHING_LOGGED)
        log.info("resume: there is no checkpoint yet, so the run starts afresh")
    else:
        files.cut(position, _archive_newer_checkpoints(options, restored, store, log), lenient)
        log.info("resume: from the checkpoint of step %d", restored.entry.step)
    (options.directory / "summary.json").unlink(missing_ok=True)


def _allowed(options: Options) -> Collection[str]:
    allowed: Collection[str] = (options.start or {}).get("allow", ())
    return allowed


def _archive_newer_checkpoints(
    options: Options, restored: Restored, store: CheckpointStore | None, log: logging.Logger
) -> Path | None:
    """Move newer checkpoints to a directory in `superseded/`, and return it; return None if there are none."""
    if store is None:  # nothing is saved from now on, but newer checkpoints must go, too
        with contextlib.closing(open_store(options)) as reader:
            return _archive_newer_checkpoints(options, restored, reader, log)
    if all(step <= restored.entry.step for step in store.steps):
        return None
    superseded = options.directory / "superseded"
    superseded.mkdir(exist_ok=True)
    place = superseded / str(1 + max((int(p.name) for p in superseded.iterdir() if p.name.isdecimal()), default=0))
    moved = store.set_aside(restored.entry.step, place.absolute() / "checkpoint")
    log.info("checkpoints of steps %s and the logs after step %d moved to %s", moved, restored.entry.step, place)
    return place


def _restore_decisions(run: Run, plateau: ReduceOnPlateau | None, restored: Restored) -> None:
    set_stopping(run.options.early_stopping, restored.progress["early_stopping"])
    for stopping in run.options.early_stopping:
        run.stop.decide(stopping.reason and f"early stopping: {stopping.reason}")
    if plateau is not None and restored.progress["plateau"] is not None:
        plateau.set_state(restored.progress["plateau"])


def _listeners(options: Options) -> list[Listener]:
    renderer = options.renderer
    if renderer == "auto":
        from learner.renderers import default_renderer

        renderer = default_renderer()
    return [*([renderer] if isinstance(renderer, Listener) else []), *options.loggers]


def _close(outlets: list[ListenerThread], seconds: float | None) -> None:
    """All of them within some seconds; the renderer is the last one, so that it shows who had to be left behind."""
    until = time.monotonic() + (WAIT_FOR_LISTENERS if seconds is None else seconds)
    for outlet in outlets[1:]:
        outlet.end()
    for outlet in reversed(outlets):
        outlet.close(max(1.0, until - time.monotonic()))


def _without_hiding(close: Callable[[], None]) -> Callable[..., None]:
    """Closes; where an error is on its way already, that is the one that comes out."""

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        with contextlib.suppress(LearnerError, OSError) if error is not None else contextlib.nullcontext():
            close()

    return leave


def _closing(close: Callable[[float | None], None]) -> Callable[..., None]:
    """Closes with all the time it takes, but for a second signal, or where another process has failed: then what hangs
    is left behind after a second.
    """

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        close(1.0 if isinstance(error, KeyboardInterrupt | SystemExit | ProcessError) else None)

    return leave


def _warner(log: logging.Logger, outlets: list[ListenerThread]) -> Callable[[str], None]:
    def warn(text: str) -> None:
        log.warning(text)
        for outlet in outlets:
            outlet.put(Message(time.time(), logging.WARNING, text))

    return warn


def _log_initial(options: Options, report: InitReport | None, log: logging.Logger) -> None:
    if report is not None:
        for text in (report.line, *report.details):
            log.info("%s", text)
    elif options.initial is not None:
        log.info("initial_from is ignored: the run goes on from a checkpoint of its own")


def _log_early_end(run: Run, spec: RunSpec) -> None:
    """Schedules that are shorter than the run: in the log, and for people where nothing is learnt from there on. What
    of a schedule is not reached is in the log, too.
    """
    steps = run_length(run.options, spec.inputs.source("train").batches).steps
    if steps is None:
        return
    for place, schedule in schedules_in(spec.step.schedule, spec.step.optimizer):
        before = f"{place}: " if place else ""
        ends = early_end(schedule, steps)
        if ends is not None and ends[1]:
            run.warn(f"{before}{ends[0]}, so that nothing is learnt{' there' if place else ''}")
        elif ends is not None:
            run.reporter.log.info("%s%s", before, ends[0])
        for text in not_reached(schedule, steps):
            run.reporter.log.info("%s%s", before, text)


def _stalled(log: logging.Logger, warn: Callable[[str], None]) -> Callable[[str, str], None]:
    def report(text: str, stacks: str) -> None:
        log.warning("%s; the stacks of all threads:\n%s", text, stacks)
        warn(f"{text}; where each thread is stands in experiment.log")

    return report


def _log_dispatch(log: logging.Logger, split: str, how: DispatchPlan) -> None:
    steps = f"up to {how.buffer} steps in one loop" if how.loop else "step by step, without a loop"
    log.info("dispatch of %s: %s (%s)", split, steps, how.why)


def _summary(run: Run, infos: tuple[MetricInfo, ...]) -> dict[str, Any]:
    p, checkpoints = run.position, []
    if run.saver is not None:
        store = run.saver.store
        best = store.best()
        checkpoints = [
            {"epoch": e.epoch, "step": e.step, "path": str(store.path(e.step)), "best": e == best}
            for e in store.entries
        ]
    return summarize(
        run.reporter.history,
        infos,
        directory=run.options.directory,
        epochs=p.epoch - 1,
        steps=p.step,
        stopped_by=run.stop.stopped_by,
        checkpoints=checkpoints,
    )


def _write(path: Path, text: str, mode: int) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    # Never through a link, and never readable by others, not for a moment.
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # a config that a power cut has shortened would be that of another run
    partial.replace(path)
