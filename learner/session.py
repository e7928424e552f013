"""Opening and closing a run: its logs, its threads, its directory, whatever happens in between."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from learner.checkpoint import CheckpointStore, Saver
from learner.compilation import CompileTimes, use_cache
from learner.data.feed import Feeder, Plan, bytes_of
from learner.events import Listener, Message, MetricInfo, Outlet, RunEnded, RunFailed, RunStarted
from learner.history import History, summarize
from learner.inputs import Inputs
from learner.journal import decode
from learner.loading import Taken
from learner.loggers.application import close_application_log, open_application_log
from learner.loggers.cut import refuse_short
from learner.loggers.files import RunFiles
from learner.memory import Needs, explained
from learner.metrics.base import CollectingMetric
from learner.options import Options
from learner.resuming import (
    Restored,
    changes,
    grouping_of,
    made_with,
    restore_host_metrics,
    rows_in_flight,
    set_stopping,
    tally_in_flight,
)
from learner.run import Position, Run
from learner.runner import Runner
from learner.schedules import ReduceOnPlateau
from learner.start import (
    Dispatching,
    decide_dispatch,
    describe,
    feeder_for,
    make_runner,
    monitor_of,
    open_store,
)
from learner.steps.state import TrainState
from learner.steps.step import Step
from learner.stopping import Asked
from learner.strategies import SingleDevice, Strategy
from learner.watchdog import Watchdog
from learner.worker import Call, Pace, Worker

NOTHING_LOGGED = {"epoch_lines": 0, "epoch": 0, "files": {}}


@dataclasses.dataclass(frozen=True)
class Start:
    """What a run is started with.

    Attributes:
      options: of the builder.
      step: the definition of its steps.
      plateau: the scheduler, if there is one.
      rebuild: makes the user's model of a state.
      inputs: the data.
      state: the first state.
      restored: the checkpoint to go on from, or `None`.
      going_on: whether the directory holds a run that goes on.
      asked: what signals ask of it.
      lr: the rate, where it is a number.
      taken: what the first state has of another run.
    """

    options: Options
    step: Step
    plateau: ReduceOnPlateau | None
    rebuild: Callable[[TrainState], Any]
    inputs: Inputs
    state: TrainState
    restored: Restored | None
    going_on: bool
    asked: Asked
    lr: float | None
    taken: Taken | None = None


@contextlib.contextmanager
def opened(start: Start) -> Iterator[Run]:
    """A run that is ready to loop. When the block ends, its summary is written; when it raises, the error is logged and
    raised.
    """
    options = start.options
    log = open_application_log(options.directory, options.application_logger)
    files = RunFiles(options.directory, time.time)
    position = Position() if start.restored is None else start.restored.position
    with contextlib.ExitStack() as stack:
        stack.callback(close_application_log, log)
        stack.push(_without_hiding(files.close))
        outlets: list[Outlet] = []
        warn = _warner(log, outlets)
        outlets += [Outlet(listener, warn) for listener in _listeners(options)]
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
    start: Start,
    p: Position,
    log: logging.Logger,
    files: RunFiles,
    outlets: list[Outlet],
    warn: Callable[[str], None],
    threads: contextlib.ExitStack,
) -> Iterator[Run]:
    options, restored, inputs = start.options, start.restored, start.inputs
    run: Run
    the_run = lambda: run  # noqa: E731 (threads that begin before it ask for it)
    began = time.monotonic()
    times = threads.enter_context(CompileTimes())
    monitor, higher_is_better = monitor_of(options, list(inputs.valid))
    store = _store(start, higher_is_better, files, log, warn, threads)
    strategy = options.devices or SingleDevice()
    cache = use_cache(strategy.platform, options.compilation_cache)
    if cache:
        log.info("compilations are kept in %s", cache)
    parameters = describe(log, options, start.step, start.state, strategy)
    pace = Pace(compilations=lambda: times.count)
    runner = make_runner(start.step, start.state, strategy)
    train, plan, valid, needs = _feeders(start, runner, strategy, pace, log, warn)
    saver = None if store is None else _saver(store, options, files, the_run, threads)
    worker = _worker(start, runner, train, files, outlets, pace, the_run)
    threads.enter_context(explained(needs, lambda: worker.failure))
    threads.push(_closing(worker.close))  # before the saver, which its last items may still need
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
        data_state=None if restored is None else restored.progress.get("data"),
        tally=tally_in_flight(restored, runner, options),
        pace=pace,
        clock=time.time,
        warn=warn,
        asked=start.asked,
        grouping=grouping_of(inputs, options),
        made_with=made_with(options, start.lr),
        time_limit=options.time_limit if options.job_ends is None else options.job_ends - time.time(),
        began=began,
        store=store,
        saver=saver,
        # One that was made because the run stopped there is replaced, should the run end there after all.
        last_saved=None if restored is None or restored.progress["at_stop"] else restored.position,
        validated_step=None if restored is None else restored.progress["validated_step"],
    )
    plan.limit = run.limit
    if restored is not None:
        _restore_decisions(run, restored)
    infos = options.metric_infos(["train", *inputs.valid])
    for source in (inputs.source("train"), *inputs.valid.values()):
        threads.callback(source.close)
    _announce(run, start, infos, parameters)
    if options.watchdog is not None:
        dog = _watchdog(options.watchdog, start, pace, log, warn)
        threads.callback(dog.close)
        dog.start()
    yield run
    _ended(run, infos, times)


def _store(
    start: Start,
    higher_is_better: bool,
    files: RunFiles,
    log: logging.Logger,
    warn: Callable[[str], None],
    threads: contextlib.ExitStack,
) -> CheckpointStore | None:
    """The checkpoints, with everything else in the directory where the run goes on; `None`: nothing is saved."""
    options, restored = start.options, start.restored
    store = None if options.checkpoints is None else open_store(options, higher_is_better)
    if store is not None:
        threads.callback(store.close)
    if restored is not None:
        for text in restored.notes:
            warn(text)
        for text in changes(restored, options, start.lr):
            log.warning(text)
    _go_back(start, files, store, log)
    if store is not None:
        store.prepare()
    return store


def _feeders(
    start: Start,
    runner: Runner,
    strategy: Strategy,
    pace: Pace,
    log: logging.Logger,
    warn: Callable[[str], None],
) -> tuple[Feeder, Plan, dict[str, Feeder], Needs]:
    """That of the train split with its plan, those of the validation splits, and what of memory they need."""
    options, inputs = start.options, start.inputs
    needs = Needs(inputs.firsts, bytes_of(start.state), options.accumulate, start.step.update is None)
    made: dict[str, tuple[Feeder, Plan]] = {}
    for split in ("train", *inputs.valid):
        feeder, plan = feeder_for(inputs, split, strategy, options, warn)
        how = decide_dispatch(runner, feeder, plan, options, "train" if split == "train" else "valid", strategy)
        plan.loop, plan.limit = how.loop, lambda step: pace.steps
        needs.steps[split] = plan.buffer if how.loop and not feeder.resident else 1
        _log_dispatch(log, split, how)
        made[split] = feeder, plan
    return *made.pop("train"), {split: feeder for split, (feeder, _) in made.items()}, needs


def _saver(
    store: CheckpointStore, options: Options, files: RunFiles, run: Callable[[], Run], threads: contextlib.ExitStack
) -> Saver:
    def saved(progress: Mapping[str, Any], seconds: float) -> None:
        run().saved(progress, seconds)

    def failed(progress: Mapping[str, Any], error: Exception) -> None:
        run().not_saved(progress, error)

    def before(progress: Mapping[str, Any]) -> None:
        files.to_disk(progress["log"])

    saver = Saver(store, saved, None if options.on_save_error == "raise" else failed, before)
    threads.push(_closing(saver.close))
    return saver


def _worker(
    start: Start,
    runner: Runner,
    train: Feeder,
    files: RunFiles,
    outlets: list[Outlet],
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
    worker = Worker(metrics, files, history, outlets, pace, time.time, rows, skipped)
    if rows:
        worker.row_trees = dict(zip(collecting["train"], runner.row_trees(train.example()), strict=True))
    if restored is not None:
        worker.epoch_values = {key: decode(value) for key, value in restored.progress["epoch_values"].items()}
    return worker


def _watchdog(seconds: float, start: Start, pace: Pace, log: logging.Logger, warn: Callable[[str], None]) -> Watchdog:
    stop = lambda reason: start.asked.to_stop(start.asked.reason or reason)  # noqa: E731
    return Watchdog(seconds, lambda: pace.ended, _stalled(log, warn), stop if start.options.watchdog_ends else None)


def _announce(run: Run, start: Start, infos: tuple[MetricInfo, ...], parameters: int) -> None:
    """The run begins: in the journal, to its listeners, in its log."""
    p, options, resumed = run.position, run.options, start.restored is not None
    run.worker.put(Call(lambda: run.files.journal("start", epoch=p.epoch, step=p.step, resumed=resumed)))
    numbers = options.num_epochs, options.num_steps, run.steps_per_epoch
    run.worker.put(RunStarted(time.time(), options.directory, *numbers, infos, parameters, p.epoch, p.step, resumed))
    taken = None if resumed else start.taken
    _log_initial(options, taken, run.log)
    if taken is not None:
        run.worker.put(Message(time.time(), logging.INFO, taken.line))
    run.log.info("start at epoch %d, step %d", p.epoch, p.step)


def _ended(run: Run, infos: tuple[MetricInfo, ...], times: CompileTimes) -> None:
    """Waits for what is under way, and says how it ended: in `summary.json`, in the journal, to its listeners."""
    run.worker.wait()
    if run.saver is not None:
        run.saver.close()
        run.saver.check()
    run.worker.wait()
    run.log.info("%d programs compiled in %.1f s", times.count, times.seconds)
    summary = _summary(run, infos)
    run.files.write_summary(summary)
    seconds, p, why = time.monotonic() - run.began, run.position, run.stopped_by
    epoch, step = p.shown_epoch, p.step
    run.log.info("ended by %s at epoch %d, step %d, after %.1f s", why, epoch, step, seconds)
    kind = "end" if why in ("num_epochs", "num_steps") else "stop"
    run.worker.put(Call(lambda: run.files.journal(kind, epoch=epoch, step=step, stopped_by=why)))
    run.worker.put(RunEnded(time.time(), epoch, step, why, summary, seconds, run.options.show_summary))
    run.worker.wait()
    run.summary = summary


def _go_back(start: Start, files: RunFiles, store: CheckpointStore | None, log: logging.Logger) -> None:
    """Takes the files to where the run goes on; what is newer is kept in `superseded/`."""
    options, restored = start.options, start.restored
    position, lenient = None if restored is None else restored.progress["log"], "logs" in _allowed(options)
    if position is not None and not lenient:
        refuse_short(options.directory, position)  # before anything is changed
    if options.config_text is not None:
        _write(options.directory / "config.yaml", options.config_text)
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


def _close(outlets: list[Outlet], seconds: float | None) -> None:
    for outlet in outlets:
        outlet.close(5.0 if seconds is None else seconds)


def _without_hiding(close: Callable[[], None]) -> Callable[..., None]:
    """Closes; where an error is on its way already, that is the one that comes out."""

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        with contextlib.suppress(OSError) if error is not None else contextlib.nullcontext():
            close()

    return leave


def _closing(close: Callable[[float | None], None]) -> Callable[..., None]:
    """Closes with all the time it takes, but for a second signal: then what hangs is left behind after a second."""

    def leave(kind: Any, error: BaseException | None, traceback: Any) -> None:
        close(1.0 if isinstance(error, KeyboardInterrupt | SystemExit) else None)

    return leave


def _warner(log: logging.Logger, outlets: list[Outlet]) -> Callable[[str], None]:
    def warn(text: str) -> None:
        log.warning(text)
        for outlet in outlets:
            outlet.put(Message(time.time(), logging.WARNING, text))

    return warn


def _log_initial(options: Options, taken: Taken | None, log: logging.Logger) -> None:
    if taken is not None:
        for text in (taken.line, *taken.details):
            log.info("%s", text)
    elif options.initial is not None:
        log.info("initial_from is ignored: the run goes on from a checkpoint of its own")


def _stalled(log: logging.Logger, warn: Callable[[str], None]) -> Callable[[str, str], None]:
    def report(text: str, stacks: str) -> None:
        log.warning("%s; the stacks of all threads:\n%s", text, stacks)
        warn(f"{text}; where each thread is stands in experiment.log")

    return report


def _log_dispatch(log: logging.Logger, split: str, how: Dispatching) -> None:
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


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with partial.open("x") as file:  # never through a link
        file.write(text)
    partial.replace(path)
