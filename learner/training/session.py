"""Opening and closing a run: its logs, its threads, its directory, whatever happens in between."""

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from learner.checkpoint import CheckpointStore, Saver
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
    decide_dispatch,
    describe,
    feeder_for,
    flight_of,
    make_runner,
    monitor_of,
    open_store,
    refuse_parts,
    warning_of_pairs,
)
from learner.training.executor import Runner
from learner.training.feed.dispatches import Feeder
from learner.training.feed.group import DispatchGrouping, bytes_of
from learner.training.initialization import InitReport
from learner.training.oom import MemoryFootprint, explain_oom
from learner.training.options import Options
from learner.training.preflight import Inputs, run_length, unused_batch_size
from learner.training.profiler import Profiler
from learner.training.reporter import Call, Pace, Worker
from learner.training.resume import (
    Restored,
    changes_since,
    data_of,
    restore_host_metrics,
    rows_in_flight,
    set_stopping,
    tally_in_flight,
)
from learner.training.run import Position, Run
from learner.training.run_metadata import run_metadata
from learner.training.stopping import StopRequest
from learner.training.timing import TimeBreakdown, said
from learner.training.watchdog import Watchdog
from learner.util.json_values import decode

Files = RunFiles | NoFiles
WAIT_FOR_LISTENERS = 10.0  # seconds at the end; importing what talks to a server can take some
NOTHING_LOGGED = {"epoch_lines": 0, "epoch": 0, "files": {}}


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """What a run is started with.

    Attributes:
      options: of the builder.
      step: the definition of its steps.
      plateau: the scheduler, if there is one.
      rebuild: makes the user's model of a state.
      strategy: where it runs.
      inputs: the data.
      state: the first state.
      restored: the checkpoint to go on from, or `None`.
      going_on: whether the directory holds a run that goes on.
      asked: what signals ask of it.
      fingerprint: of the run; see `learner.training.fingerprints`.
      taken: what the first state has of another run.
      overview: shows the listeners of the run its plan.
      hosts: the processes of the run.
    """

    options: Options
    step: Step
    plateau: ReduceOnPlateau | None
    rebuild: Callable[[TrainState], Any]
    strategy: Strategy
    inputs: Inputs
    state: TrainState
    restored: Restored | None
    going_on: bool
    asked: StopRequest
    fingerprint: Mapping[str, Any]
    overview: Callable[[Planned, Run], None]
    taken: InitReport | None = None
    hosts: ProcessGroup = SINGLE_PROCESS


@contextlib.contextmanager
def opened(start: RunSpec) -> Iterator[Run]:
    """A run that is ready to loop. When the block ends, its summary is written; when it raises, the error is logged and
    raised.
    """
    options, first = start.options, start.hosts.index == 0
    log = open_application_log(options.directory, options.application_logger, start.hosts.index)
    kind = RunFiles if options.metric_files else RunFilesWithoutMetrics
    files = kind(options.directory, time.time) if first else NoFiles()
    position = Position() if start.restored is None else start.restored.position
    with contextlib.ExitStack() as stack:
        stack.callback(close_application_log, log)
        stack.push(_without_hiding(files.close))
        outlets: list[ListenerThread] = []
        warn = _warner(log, outlets)
        outlets += [ListenerThread(listener, warn) for listener in _listeners(options)] if first else []
        stack.push(_closing(lambda seconds: _close(outlets, seconds)))
        try:
            with contextlib.ExitStack() as threads:
                yield from _started(start, position, log, files, outlets, warn, threads)
        except BaseException as error:
            log.error("failed: %r", error, exc_info=error)
            with contextlib.suppress(Exception):
                files.journal("error", epoch=position.epoch, step=position.step, error=repr(error))
            for outlet in outlets:
                outlet.put(RunFailed(time.time(), position.epoch, position.step, repr(error)))
            raise


def _started(
    start: RunSpec,
    p: Position,
    log: logging.Logger,
    files: Files,
    outlets: list[ListenerThread],
    warn: Callable[[str], None],
    threads: contextlib.ExitStack,
) -> Iterator[Run]:
    options, restored, inputs = start.options, start.restored, start.inputs
    run: Run
    the_run = lambda: run  # noqa: E731 (threads that begin before it ask for it)

    def submit_best() -> None:
        run.submit_best()

    def finish_best() -> None:
        run.finish_best()

    began = time.monotonic()
    times = threads.enter_context(CompileTimes())
    monitor, higher_is_better = monitor_of(options, list(inputs.valid))
    store = _store(start, higher_is_better, files, log, warn, threads)
    strategy = start.strategy
    cache = threads.enter_context(compilation_cache(strategy.platform, options.compilation_cache))
    if cache:
        log.info("compilations are kept in %s", cache)
    parameters = describe(log, options, start.step, start.state, strategy)
    pace = Pace(compilations=lambda: times.count)
    refuse_parts(options, start.state)
    if text := warning_of_pairs(start.step, start.state, inputs.first_batches["train"], strategy):
        warn(text)
    runner = make_runner(start.step, start.state, strategy)
    agreement = None if start.hosts.count == 1 else Consensus(start.hosts, p.step)
    limit = (lambda step: pace.steps) if agreement is None else (lambda step: agreement.batches)
    train, plan, valid, needs = _feeders(start, runner, strategy, limit, log, warn)
    saver = None if store is None else _saver(store, options, files, the_run, threads)
    threads.push(_saving_best(start.hosts, submit_best))  # if the worker could not
    worker = _worker(start, runner, files, outlets, pace, the_run)
    threads.enter_context(explain_oom(needs, lambda: worker.failure))
    threads.push(_closing(worker.close))  # before the saver, which its last items may still need
    threads.push(_saving_best(start.hosts, finish_best))  # while the worker can still tell of it
    batches = inputs.source("train").batches
    run = Run(
        options=options,
        runner=runner,
        worker=worker,
        files=files,
        log=log,
        train_feeder=train,
        valid_feeders=valid,
        steps_per_epoch=None if batches is None else -(-batches // options.accumulate),
        valid_batches={split: source.batches for split, source in inputs.valid.items()},
        plateau=start.plateau,
        monitor=monitor,
        higher_is_better=higher_is_better,
        rebuild=start.rebuild,
        position=p,
        data_state=None if restored is None else data_of(restored.progress, start.hosts.index),
        tally=tally_in_flight(restored, runner, options),
        pace=pace,
        clock=time.time,
        warn=warn,
        asked=start.asked,
        hosts=start.hosts,
        agreement=agreement,
        each_data=start.hosts.count > 1 and inputs.source("train").own,
        fingerprint=start.fingerprint,
        spent=TimeBreakdown(lambda: times.own),
        time_limit=options.time_limit if options.job_ends is None else options.job_ends - time.time(),
        began=began,
        store=store,
        saver=saver,
        best=None if store is None else _best(start, store, monitor, higher_is_better),
        # One that was made because the run stopped there is replaced, should the run end there after all.
        last_saved=None if restored is None or restored.progress["at_stop"] else restored.position,
        validated_step=None if restored is None else restored.progress["validated_step"],
    )
    plan.limit = run.limit
    if restored is not None:
        _restore_decisions(run, restored)
        items = 0 if options.checkpoints is None else len(options.checkpoints.record_items)
        if store is not None and start.hosts.once(lambda: len(store.records(restored.entry.step)) < items):
            run.record(runner.copy(runner.state), restored.progress)  # the process may have been killed before
    infos = options.metric_infos(["train", *inputs.valid])
    for source in (inputs.source("train"), *inputs.valid.values()):
        threads.callback(source.close)
    _announce(run, start, infos, parameters)
    window = options.profile
    # One of about a second that began in an earlier process is not taken again.
    if start.hosts.index == 0 and window is not None and (window.last is not None or p.step <= window.first):
        run.profiler = Profiler(window, options.directory)
        threads.callback(run.profiler.abandon)
    if start.hosts.index == 0:
        looking = _asking(run)
        threads.callback(looking.close)
        looking.start()
    if options.watchdog is not None:
        dog = _watchdog(options.watchdog, start, pace, log, warn)
        threads.callback(dog.close)
        dog.start()
    yield run
    _ended(run, infos, times)


def _store(
    start: RunSpec,
    higher_is_better: bool,
    files: Files,
    log: logging.Logger,
    warn: Callable[[str], None],
    threads: contextlib.ExitStack,
) -> CheckpointStore | None:
    """The checkpoints, with everything else in the directory where the run goes on; `None`: nothing is saved."""
    options, restored = start.options, start.restored
    store = None if options.checkpoints is None else open_store(options, higher_is_better, start.hosts)
    if store is not None:
        threads.callback(store.close)
    if restored is not None:
        for text in restored.notes:
            warn(text)
        warned, logged = changes_since(restored, start.fingerprint, options)
        for text in warned:
            warn(text)
        for text in logged:
            log.warning(text)

    def prepare() -> None:
        _go_back(start, files, store, log)
        if store is not None:
            store.prepare()

    start.hosts.once(prepare)
    return store


def _feeders(
    start: RunSpec,
    runner: Runner,
    strategy: Strategy,
    limit: Callable[[int], int],
    log: logging.Logger,
    warn: Callable[[str], None],
) -> tuple[Feeder, DispatchGrouping, dict[str, Feeder], MemoryFootprint]:
    """That of the train split with its plan, those of the validation splits, and what of memory they need."""
    options, inputs = start.options, start.inputs
    needs = MemoryFootprint(inputs.first_batches, bytes_of(start.state), options.accumulate, start.step.update is None)
    made: dict[str, tuple[Feeder, DispatchGrouping]] = {}
    if text := unused_batch_size(options, inputs):
        warn(text)
    for split in ("train", *inputs.valid):
        feeder, plan = feeder_for(inputs, split, strategy, options, warn)
        how = decide_dispatch(runner, feeder, plan, options, "train" if split == "train" else "valid", strategy)
        plan.loop, plan.limit = how.loop, limit
        needs.steps[split] = plan.buffer if how.loop and not feeder.resident else 1
        _log_dispatch(log, split, how)
        made[split] = feeder, plan
    return *made.pop("train"), {split: feeder for split, (feeder, _) in made.items()}, needs


def _saver(
    store: CheckpointStore, options: Options, files: Files, run: Callable[[], Run], threads: contextlib.ExitStack
) -> Saver:
    def saved(progress: Mapping[str, Any], seconds: float) -> None:
        run().saved(progress, seconds)

    def failed(progress: Mapping[str, Any], error: Exception) -> None:
        run().not_saved(progress, error)

    def before(progress: Mapping[str, Any]) -> None:
        files.to_disk(progress["log"])

    def after(state: TrainState, progress: Mapping[str, Any]) -> None:
        run().record(state, progress)

    saver = Saver(store, saved, None if options.on_save_error == "raise" else failed, before, after)
    threads.push(_closing(saver.close))
    if isinstance(files, RunFiles):
        files.make_room = saver.wait  # the saver never waits for the worker, so that this one may wait for it
    return saver


def _worker(
    start: RunSpec,
    runner: Runner,
    files: Files,
    outlets: list[ListenerThread],
    pace: Pace,
    run: Callable[[], Run],
) -> Worker:
    """It goes on with what the checkpoint has of the epoch under way."""
    options, restored = start.options, start.restored
    metrics = {split: options.metrics_of(split) for split in ("train", *start.inputs.valid)}
    restore_host_metrics(restored, metrics)
    collecting = {split: [m.name for m in ms if isinstance(m, CollectingMetric)] for split, ms in metrics.items()}
    history = History() if restored is None else History.from_json(restored.progress["history"])
    rows = rows_in_flight(restored, collecting, options)
    skipped = lambda step, kind: run().skipped(step, kind)  # noqa: E731
    overflowed = lambda step, scale: run().overflowed(step, scale)  # noqa: E731
    reports = skipped, overflowed
    flight = flight_of(runner.strategy)
    undefined = lambda text: run().warn(text)  # noqa: E731
    given = time.time, rows, *reports, flight, start.hosts.heed, undefined
    worker = Worker(metrics, files, history, outlets, pace, *given)
    if rows:
        first = start.inputs.first_batches["train"]
        worker.row_trees = dict(zip(collecting["train"], runner.row_trees(first), strict=True))
    if restored is not None:
        worker.epoch_values = {key: decode(value) for key, value in restored.progress["epoch_values"].items()}
    return worker


def _best(start: RunSpec, store: CheckpointStore, monitor: str, higher_is_better: bool) -> BestSnapshot | None:
    """What keeps the best epoch until it is saved; None where only checkpoints that are due can be the best."""
    options = start.options
    if options.checkpoints is None or options.checkpoints.keep_best == 0:
        return None
    split, _, name = monitor.partition("/")
    # Several processes have to save the same steps. Only metrics of the devices have the same value in all of them.
    on_devices = split != "custom" and any(m.name == name and isinstance(m, Metric) for m in options.metrics_of(split))
    if start.hosts.count > 1 and not on_devices:
        return None
    # A checkpoint that was made because the run stopped there is removed later, so it cannot stand for its epoch.
    stopped = None
    if start.restored is not None and start.restored.progress["at_stop"]:
        stopped = start.restored.entry.step
    score = next((entry.score for entry in store.ranked() if entry.step != stopped), None)
    return BestSnapshot(higher_is_better, score, bytes_of(start.state))


def _saving_best(hosts: ProcessGroup, save: Callable[[], None]) -> Callable[..., None]:
    """Save the best epoch of a run that fails. One that is interrupted twice ends at once; and several processes, which
    save together, may not all have failed.
    """

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        if hosts.count == 1 and isinstance(error, Exception) and not isinstance(error, ProcessError):
            with contextlib.suppress(Exception):  # the error of the run is the one that comes out
                save()

    return leave


def _watchdog(seconds: float, start: RunSpec, pace: Pace, log: logging.Logger, warn: Callable[[str], None]) -> Watchdog:
    stop = lambda reason: start.asked.to_stop(start.asked.reason or reason)  # noqa: E731
    return Watchdog(seconds, lambda: pace.ended, _stalled(log, warn), stop if start.options.watchdog_ends else None)


def _asking(run: Run) -> asking.ControlFilePoller:
    """Does what is asked of the run through files in its directory."""

    def answer(what: str, who: str) -> None:
        if run.ending:
            run.tell(f"{who} asks the run to {what}, which is ending already")
        elif what == "stop":
            run.tell(f"{who} asks the run to stop: it stops after the step under way")
            run.asked.to_stop(run.asked.reason or f"asked by {who}")
        elif run.saver is None:
            run.tell(f"{who} asks for a checkpoint, but this run saves none")
        else:
            run.tell(f"{who} asks for a checkpoint: it is saved after the step under way")
            run.asked.to_save()

    return asking.ControlFilePoller(run.options.directory, answer, run.warn)


def _announce(run: Run, start: RunSpec, infos: tuple[MetricInfo, ...], parameters: int) -> None:
    """The run begins: in the journal, to its listeners, in its log."""
    p, options, resumed = run.position, run.options, start.restored is not None
    told = run_metadata(options, start.step, run.fingerprint["settings"]) if start.hosts.index == 0 else {}
    metrics = {info.key: {"unit": info.unit, "higher_is_better": info.higher_is_better} for info in infos}
    started = {"epoch": p.epoch, "step": p.step, "resumed": resumed, "metrics": metrics, **told}
    started |= {"steps_per_epoch": run.steps_per_epoch, "fingerprint": run.fingerprint}
    model = model_json(arrays_of(start.step.family, start.state.params, start.state.model_state))
    run.worker.put(Call(lambda: run.files.write_model(model)))
    run.worker.put(Call(lambda: run.files.journal("start", **started)))
    if options.show_summary:
        start.overview(Planned(options, start.step, start.state, start.inputs, run.runner, run.train_feeder), run)
    numbers = options.num_epochs, options.num_steps, run.steps_per_epoch
    where = options.directory, *numbers, infos, parameters, p.epoch, p.step, resumed
    history = {key: tuple(run.worker.history.points(key)) for key in run.worker.history}
    told["shown"] = options.shown
    run.worker.put(RunStarted(time.time(), *where, history=history, monitor=run.monitor, **told))
    taken = None if resumed else start.taken
    _log_initial(options, taken, run.log)
    if taken is not None:
        run.worker.put(Message(time.time(), logging.INFO, taken.line))
    _log_early_end(run, start)
    if not options.metric_files:
        run.log.info("values of single steps go to loggers only: metric_loggers(only=...) replaces the metric files")
    run.log.info("start at epoch %d, step %d", p.epoch, p.step)


def _ended(run: Run, infos: tuple[MetricInfo, ...], times: CompileTimes) -> None:
    """Waits for what is under way, and says how it ended: in `summary.json`, in the journal, to its listeners."""
    if run.profiler is not None:
        run.profiler.end(run)
    run.write_best()
    run.worker.wait()
    if run.saver is not None:
        with run.spent.saving():
            run.saver.wait()
        run.saver.check()
    reasons = run.hosts.meet(run.asked.reason, "end")  # one that could not save ends all of them
    run.ended_by = next(filter(None, reasons), None)
    if run.saver is not None:
        run.saver.close()
    run.worker.wait()
    run.log.info("%d programs compiled in %.1f s", times.count, times.seconds)
    summary = _summary(run, infos)
    run.files.write_summary(summary)
    seconds, p, why = time.monotonic() - run.began, run.position, run.stopped_by
    epoch, step = p.shown_epoch, p.step
    spent = run.spent.split(seconds, run.worker.spent)
    run.log.info("ended by %s at epoch %d, step %d, after %.1f s (%s)", why, epoch, step, seconds, said(spent))
    kind, rounded = "end" if why in ("num_epochs", "num_steps") else "stop", {k: round(s, 6) for k, s in spent.items()}
    run.worker.put(Call(lambda: run.files.journal(kind, epoch=epoch, step=step, stopped_by=why, seconds=rounded)))
    told = {**summary, "seconds": rounded}
    run.worker.put(RunEnded(time.time(), epoch, step, why, told, seconds, run.options.show_summary))
    run.worker.wait()
    run.summary = summary


def _go_back(start: RunSpec, files: Files, store: CheckpointStore | None, log: logging.Logger) -> None:
    """Takes the files to where the run goes on; what is newer is kept in `superseded/`."""
    options, restored = start.options, start.restored
    position, lenient = None if restored is None else restored.progress["log"], "logs" in _allowed(options)
    if position is not None and not lenient:
        refuse_changed(options.directory, position)  # before anything is changed
    if options.config_text is not None:
        _write(options.directory / "config.yaml", options.config_text, 0o600 if options.config_private else 0o666)
    if not start.going_on:
        return
    if restored is None or position is None:
        files.cut(NOTHING_LOGGED)
        log.info("resume: there is no checkpoint yet, so the run starts afresh")
    else:
        files.cut(position, _set_aside(options, restored, store, log), lenient)
        log.info("resume: from the checkpoint of step %d", restored.entry.step)
    (options.directory / "summary.json").unlink(missing_ok=True)


def _allowed(options: Options) -> Collection[str]:
    allowed: Collection[str] = (options.start or {}).get("allow", ())
    return allowed


def _set_aside(options: Options, restored: Restored, store: CheckpointStore | None, log: logging.Logger) -> Path | None:
    """Moves the checkpoints that are newer to a directory in `superseded/` and returns it; `None`: there are none."""
    if store is None:  # nothing is saved from now on, but what is newer must go all the same
        with contextlib.closing(open_store(options)) as reader:
            return _set_aside(options, restored, reader, log)
    if all(step <= restored.entry.step for step in store.steps):
        return None
    superseded = options.directory / "superseded"
    superseded.mkdir(exist_ok=True)
    place = superseded / str(1 + max((int(p.name) for p in superseded.iterdir() if p.name.isdecimal()), default=0))
    moved = store.set_aside(restored.entry.step, place.absolute() / "checkpoint")
    log.info("checkpoints of steps %s and the logs after step %d moved to %s", moved, restored.entry.step, place)
    return place


def _restore_decisions(run: Run, restored: Restored) -> None:
    set_stopping(run.options.early_stopping, restored.progress["early_stopping"])
    for stopping in run.options.early_stopping:
        run.stopped = run.stopped or (stopping.reason and f"early stopping: {stopping.reason}")
    if run.plateau is not None and restored.progress["plateau"] is not None:
        run.plateau.set_state(restored.progress["plateau"])


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


def _log_initial(options: Options, taken: InitReport | None, log: logging.Logger) -> None:
    if taken is not None:
        for text in (taken.line, *taken.details):
            log.info("%s", text)
    elif options.initial is not None:
        log.info("initial_from is ignored: the run goes on from a checkpoint of its own")


def _log_early_end(run: Run, start: RunSpec) -> None:
    """Schedules that are shorter than the run: in the log, and for people where nothing is learnt from there on. What
    of a schedule is not reached is in the log, too.
    """
    steps = run_length(run.options, start.inputs.source("train").batches).steps
    if steps is None:
        return
    for place, schedule in schedules_in(start.step.schedule, start.step.optimizer):
        before = f"{place}: " if place else ""
        ends = early_end(schedule, steps)
        if ends is not None and ends[1]:
            run.warn(f"{before}{ends[0]}, so that nothing is learnt{' there' if place else ''}")
        elif ends is not None:
            run.log.info("%s%s", before, ends[0])
        for text in not_reached(schedule, steps):
            run.log.info("%s%s", before, text)


def _stalled(log: logging.Logger, warn: Callable[[str], None]) -> Callable[[str, str], None]:
    def report(text: str, stacks: str) -> None:
        log.warning("%s; the stacks of all threads:\n%s", text, stacks)
        warn(f"{text}; where each thread is stands in experiment.log")

    return report


def _log_dispatch(log: logging.Logger, split: str, how: DispatchPlan) -> None:
    steps = f"up to {how.buffer} steps in one loop" if how.loop else "step by step, without a loop"
    log.info("dispatch of %s: %s (%s)", split, steps, how.why)


def _summary(run: Run, infos: Any) -> dict[str, Any]:
    p = run.position
    entries = [] if run.store is None else run.store.entries
    best = None if run.store is None else run.store.best()
    checkpoints = [
        {"epoch": e.epoch, "step": e.step, "path": str(run.store.path(e.step)), "best": e == best}
        for e in entries
        if run.store
    ]
    return summarize(
        run.worker.history,
        infos,
        directory=run.options.directory,
        epochs=p.epoch - 1,
        steps=p.step,
        stopped_by=run.stopped_by,
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
