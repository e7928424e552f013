"""The lines and events of a run's start and of its end: in the journal, in the log, and for the listeners."""

import logging
import time
from typing import Any

from learner.events import Message, MetricInfo, RunEnded, RunStarted
from learner.models.array_info import array_infos, model_json
from learner.optimizers.schedule_resolution import schedules_in
from learner.runs.history import summarize
from learner.schedules.resolve import early_end, not_reached
from learner.training.dispatch_plan import Planned
from learner.training.inputs import run_length
from learner.training.monitors import monitor_of
from learner.training.run import Run
from learner.training.run_metadata import run_metadata
from learner.training.spec import RunSpec
from learner.training.timing import format_breakdown


def announce_start(run: Run, spec: RunSpec, parameters: int) -> None:
    """Announce the start of a run whose model has this many parameters."""
    p, options, resumed, reporter = run.position, run.options, spec.restored is not None, run.reporter
    infos = _metric_infos(spec)
    metadata = run_metadata(options, spec.step, spec.fingerprint["settings"]) if spec.processes.index == 0 else {}
    metrics = {info.key: {"unit": info.unit, "higher_is_better": info.higher_is_better} for info in infos}
    fields = {"epoch": p.epoch, "step": p.step, "resumed": resumed, "metrics": metrics, **metadata}
    fields |= {"steps_per_epoch": reporter.steps_per_epoch, "fingerprint": spec.fingerprint}
    reporter.write_model(model_json(array_infos(spec.step.adapter, spec.state.params, spec.state.model_state)))
    reporter.journal("start", **fields)
    if options.show_summary:
        spec.overview(Planned(options, spec.step, spec.state, spec.inputs, run.runner, run.feeder), run)
    reporter.put(
        RunStarted(
            time.time(),
            options.directory,
            options.num_epochs,
            options.num_steps,
            reporter.steps_per_epoch,
            infos,
            parameters,
            p.epoch,
            p.step,
            resumed,
            history={key: tuple(reporter.history.points(key)) for key in reporter.history},
            monitor=monitor_of(options, list(spec.inputs.valid))[0],
            shown=options.shown,
            **metadata,
        )
    )
    _announce_initial(run, spec)
    _log_early_end(run, spec)
    if not options.metric_files:
        reporter.log.info(
            "values of single steps go to loggers only: metric_loggers(only=...) replaces the metric files"
        )
    reporter.log.info("start at epoch %d, step %d", p.epoch, p.step)


def _metric_infos(spec: RunSpec) -> tuple[MetricInfo, ...]:
    return spec.options.metric_infos(spec.splits)


def _announce_initial(run: Run, spec: RunSpec) -> None:
    """Announce the arrays that came from another run's checkpoint."""
    log, report = run.reporter.log, spec.definition.init_report
    if report is not None and spec.restored is None:
        for text in (report.line, *report.details):
            log.info("%s", text)
        run.reporter.put(Message(time.time(), logging.INFO, report.line))
    elif spec.options.initial is not None:
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


def announce_end(run: Run, spec: RunSpec) -> None:
    """Announce the end: in `summary.json`, in the journal, in the log and for the listeners."""
    reporter, p = run.reporter, run.position
    summary = _summary(run, spec)
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


def _summary(run: Run, spec: RunSpec) -> dict[str, Any]:
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
        _metric_infos(spec),
        directory=run.options.directory,
        epochs=p.epoch - 1,
        steps=p.step,
        stopped_by=run.stop.stopped_by,
        checkpoints=checkpoints,
    )
