"""The announcement of a run's start and end: in the journal, in the log, and for the listeners."""

import logging
import math
import operator
import os
import time
from collections.abc import Collection, Mapping
from typing import Any

import jax

from learner.checkpoint.member_store import RATES
from learner.events import Message, MetricInfo, RunEnded, RunStarted
from learner.models.array_info import array_infos, model_json
from learner.optimizers.description import describe_optimizer
from learner.optimizers.schedule_resolution import schedules_in
from learner.optimizers.weight_averages import describe_ineffective, has_swa
from learner.runs.evaluations import read_evaluations, summaries
from learner.runs.history import summarize
from learner.runs.layout import end_word
from learner.schedules.resolve import early_end, not_reached
from learner.training.checks.population_checks import state_bytes
from learner.training.files.run_metadata import run_metadata
from learner.training.files.run_outputs import Outputs
from learner.training.options import Options
from learner.training.population import LR, SEED, Member
from learner.training.reporting.delivery import finite_value
from learner.training.reporting.messages import MemberStop
from learner.training.reporting.timing import format_breakdown
from learner.training.run import Run
from learner.training.setup.dispatch_plan import Planned
from learner.training.spec import RunSpec
from learner.util.text import count, short, size


def announce_start(run: Run, spec: RunSpec, outputs: Outputs, parameters: int) -> None:
    """Announce the start of a run. `parameters`: the number of the model's parameters."""
    p, options, reporter = run.position, run.options, run.reporter
    _announce(run, spec, parameters, options, None)
    for member, own in zip(spec.members, outputs.members, strict=True):
        _announce(run, spec, parameters, own.options, member)
    if spec.members:
        reporter.notify(population_text(spec), log=True)
    _announce_initial(run, spec)
    _notify_of_large_batch(run, spec)
    _log_early_end(run, spec)
    _warn_of_averages(run, spec)
    _warn_of_selections(run, spec)
    if not options.metric_files:
        reporter.log.info(
            "values of single steps go to loggers only: metric_loggers(only=...) replaces the metric files"
        )
    for split in ("train", *spec.inputs.valid):
        epoch = p.epoch if split == "train" else 1
        for text in spec.inputs.source(split).describe(epoch):
            reporter.log.info("%s: epoch %d is %s", split, epoch, text)
    reporter.log.info("start at epoch %d, step %d", p.epoch, p.step)


def population_text(spec: RunSpec) -> str:
    """Return the line about the members of a population."""
    order = f"they share the data and its order (seed {spec.options.seed}); values below are their means"
    if spec.options.population.data_order == "own":
        order = "each has its own order of the data; values below are their means"
    each, members = state_bytes(spec.member_state), len(spec.members)
    memory = f"{size(each)} of parameters, gradients and optimizer state each, {size(each * members)} together"
    number, waves = spec.options.population.wave or (1, 1)
    wave = f"wave {number} of {waves}: " if waves > 1 else ""
    return f"{wave}a population of {count(members, 'member')} in one program, with {memory}: {order}"


def _announce(run: Run, spec: RunSpec, parameters: int, options: Options, member: Member | None) -> None:
    """Announce the start in the files and for the listeners of a run, or of a member of a population."""
    p, resumed, reporter = run.position, spec.restored is not None, run.reporter
    index = None if member is None else member.index
    ended = reporter.end_of(index)  # before the checkpoint that the others resume from
    epoch, step = (p.epoch, p.step) if ended is None else (ended.epoch, ended.step)
    infos, history = _metric_infos(spec, member), reporter.history_of(index)
    # Only the first process has a journal and listeners, so the others need not call Git.
    metadata = _metadata(spec, options, member) if spec.processes.index == 0 else {}
    metrics = {info.key: {"unit": info.unit, "higher_is_better": info.higher_is_better} for info in infos}
    fields = {"epoch": epoch, "step": step, "resumed": resumed, "metrics": metrics, **metadata}
    fields |= {"steps_per_epoch": reporter.steps_per_epoch, "fingerprint": _fingerprint(spec, member)}
    reporter.write_model(
        model_json(array_infos(spec.step.adapter, spec.member_state.params, spec.member_state.model_state)), index
    )
    reporter.journal("start", member=index, **fields)
    if index is not None:
        reporter.journal_end(index)
    if options.show_summary and member is None:
        spec.overview(Planned(options, spec.step, spec.state, spec.inputs, run.runner, run.feeder), run)
    reporter.emit(
        RunStarted(
            time.time(),
            options.directory,
            options.num_epochs,
            options.num_steps,
            reporter.steps_per_epoch,
            infos,
            parameters,
            epoch,
            step,
            resumed,
            history={key: tuple(history.points(key)) for key in history},
            monitor=spec.monitor[0],
            shown=options.shown,
            **metadata,
        ),
        index,
    )


def _metadata(spec: RunSpec, options: Options, member: Member | None) -> dict[str, Any]:
    """Return the metadata of a run, or for a member, those of a separate run with its settings."""
    metadata = run_metadata(options, spec.step, _fingerprint(spec, member)["settings"])
    if member is not None:
        metadata["config"] |= member.values
    elif spec.members:
        metadata["config"]["population"] = {
            name: [m.values[name] for m in spec.members] for name in spec.members[0].values
        }
    return metadata


def _fingerprint(spec: RunSpec, member: Member | None) -> Mapping[str, Any]:
    """Return the fingerprint of a run, for a member of a population with its own seed, optimizer and learning rate."""
    if member is None:
        return spec.fingerprint
    settings = {**spec.fingerprint["settings"], SEED: member.seed}
    if spec.step.optimizer is not None:
        settings["optimizer"] = describe_optimizer(member.optimizer(spec.step.optimizer))
    settings |= {name: member.values.get(LR, settings[name]) for name in RATES if settings[name] is not None}
    return {**spec.fingerprint, "settings": settings}


def _metric_infos(spec: RunSpec, member: Member | None) -> tuple[MetricInfo, ...]:
    """Return the metrics of a run, or of a member. The run of a population has only means of numeric metrics."""
    infos = spec.options.metric_infos(spec.splits, spec.plateau)
    return tuple(info for info in infos if info.numeric or member is not None or not spec.members)


def _announce_initial(run: Run, spec: RunSpec) -> None:
    """Announce the arrays that came from another run's checkpoint."""
    log, report = run.reporter.log, spec.definition.init_report
    if report is not None and spec.restored is None:
        for text in (report.line, *report.details):
            log.info("%s", text)
        run.reporter.put(Message(time.time(), logging.INFO, report.line))
        if report.warning is not None:
            run.warn(report.warning)
    elif spec.options.initial is not None:
        log.info("initial_from is ignored: the run resumes from its own checkpoint")


def _notify_of_large_batch(run: Run, spec: RunSpec) -> None:
    facts = spec.inputs.source("train").fingerprint()
    rows, batch_size = facts["rows"], facts["batch_size"]
    if rows is not None and batch_size is not None and batch_size > rows:
        text = f"the batch size is {batch_size:,}, and the train data has {count(rows, 'row')}: an epoch is one batch"
        run.reporter.notify(text, log=True)


def _log_early_end(run: Run, spec: RunSpec) -> None:
    """Log schedules that are shorter than the run, with a warning if nothing is learnt after their end, and parts of
    schedules that the run does not reach.
    """
    if (steps := spec.num_steps) is None:
        return
    for place, schedule in schedules_in(spec.step.schedule, spec.step.optimizer):
        before = f"{place}: " if place else ""
        ends = early_end(schedule, steps)
        if ends is not None and ends[1]:
            run.warn(f"{before}{ends[0]}, so nothing is learned{' there' if place else ''}")
        elif ends is not None:
            run.reporter.log.info("%s%s", before, ends[0])
        for text in not_reached(schedule, steps):
            run.reporter.log.info("%s%s", before, text)


def _warn_of_averages(run: Run, spec: RunSpec) -> None:
    """Show a warning about averages that the run ends too early for, or that the statistics of BatchNorm do not fit."""
    optimizer, steps = spec.step.optimizer, spec.num_steps
    texts = [] if steps is None else describe_ineffective(optimizer, steps)
    for text in texts:
        run.warn(text)
    if not texts and has_swa(optimizer) and "batch_stats" in jax.tree.leaves(spec.step.adapter.kinds):
        run.warn(
            "Swa averages the parameters, but the statistics of BatchNorm belong to the trained ones: validations are "
            "misleading, and so is the model until its statistics are computed anew from train data; Ema avoids this. "
            "Ignore this warning if the statistics are fixed"
        )


def _warn_of_selections(run: Run, spec: RunSpec) -> None:
    """Show a warning about halving or exploitation that would have no effect."""
    options, steps, per_epoch = run.options, spec.num_steps, run.reporter.steps_per_epoch
    if steps is None or per_epoch is None:
        return
    schedule = options.valid_schedule(list(spec.inputs.valid))
    for selection in (options.halving, options.exploit):
        if selection is not None and not selection.is_ever_due(schedule, steps, per_epoch):
            run.warn(
                f"{selection.name} ranks no members: before the last epoch, none of those that every_epochs="
                f"{selection.every_epochs} chooses ends with a value of {selection.monitor.monitor}"
            )


def announce_end(run: Run, spec: RunSpec, outputs: Outputs) -> None:
    """Announce the end: in `summary.json`, in the journal, in the log and for the listeners."""
    reporter, p = run.reporter, run.position
    seconds, reason = time.monotonic() - run.stop.began, run.stop.stopped_by
    epoch, step = p.shown_epoch, p.step
    # `spent` belongs to the reporter's thread, which is idle, as `_teardown` has waited for it.
    parts = run.timer.spent.split(seconds, reporter.spent)
    rounded = {name: round(value, 6) for name, value in parts.items()}
    for member, own in zip(spec.members, outputs.members, strict=True):
        _announce_end(run, spec, own.options, member, rounded, seconds)
    if spec.members and (text := best_text(run, spec)):
        reporter.notify(text, log=True)
    _announce_end(run, spec, run.options, None, rounded, seconds)
    text = format_breakdown(parts)
    place = f"epoch {epoch}, step {step}, after {seconds:.1f} s"
    reporter.log.info("%s at %s: %s (%s)", end_word(reason), place, reason, text)


def best_text(run: Run, spec: RunSpec) -> str | None:
    """Return the line about the best member of a population by the monitored metric, or None if none is finite."""
    monitor, higher = spec.monitor
    points = [(run.reporter.history_of(m.index).best(monitor, higher), m) for m in spec.members]
    numbers = [(float(p.value), p.epoch, m) for p, m in points if p is not None and math.isfinite(float(p.value))]
    if not numbers:
        return None
    value, epoch, member = (max if higher else min)(numbers, key=operator.itemgetter(0))
    return f"best {monitor}: {short(value)} at epoch {epoch} of {member.name}"


def _announce_end(
    run: Run, spec: RunSpec, options: Options, member: Member | None, parts: dict[str, float], seconds: float
) -> None:
    """Announce the end of a run, or of a member of a population, which may have ended earlier."""
    reporter, p, reason = run.reporter, run.position, run.stop.stopped_by
    index = None if member is None else member.index
    epoch, step, epochs = p.shown_epoch, p.step, p.epoch - 1
    ended = reporter.end_of(index)
    if ended is not None:
        epoch, step, reason = ended.epoch, ended.step, ended.reason
        epochs = epoch if ended.ends_epoch else epoch - 1
    summary = summarize(
        reporter.history_of(index),
        _metric_infos(spec, member),
        directory=options.directory,
        epochs=epochs,
        steps=step,
        stopped_by=reason,
        checkpoints=_checkpoints(run, spec, options, index, ended),
    )
    summary["metrics"] |= summaries(read_evaluations(options.directory))
    # Before the journal's end line: a reader that finds this line must find the summary, too.
    reporter.write_summary(summary, index)
    event = "end" if reason in ("num_epochs", "num_steps") else "stop"
    if ended is None:  # otherwise the journal has it
        reporter.journal(event, member=index, epoch=epoch, step=step, stopped_by=reason, seconds=parts)
    shown = {**summary, "seconds": parts}
    reporter.emit(RunEnded(time.time(), epoch, step, reason, shown, seconds, options.show_summary), index)


def _checkpoints(
    run: Run, spec: RunSpec, options: Options, member: int | None, ended: MemberStop | None
) -> list[dict[str, Any]]:
    """Return the checkpoints of the run; in a population, each holds all members. Checkpoints after the end of a member
    have its last state, so only the first of them is included, and the best is the member's own.
    """
    if run.saver is None:
        return []
    store = run.saver.store

    def path_of(step: int) -> str:
        path = str(store.path(step))
        return path if "://" in path or options is run.options else os.path.relpath(path, options.directory)

    listed: dict[int, dict[str, Any]] = {}
    for e in store.entries:
        step, epoch = e.step, e.epoch
        if ended is not None and step > ended.step:
            step, epoch = ended.step, ended.epoch if ended.ends_epoch else None
        listed.setdefault(step, {"epoch": epoch, "step": step, "path": path_of(e.step)})
    if member is None:
        best = None if (entry := store.best()) is None else entry.step
    else:
        best = _best_of_member(run, spec, member, listed)
    return [{**each, "best": step == best} for step, each in listed.items()]


def _best_of_member(run: Run, spec: RunSpec, member: int, steps: Collection[int]) -> int | None:
    """Return the one of the steps at which a member of a population was best, or None if it has no value there."""
    monitor, higher = spec.monitor
    history = run.reporter.history_of(member)
    points = history.points(monitor) if monitor in history else ()
    values = {p.step: value for p in points if p.step in steps and (value := finite_value(p)) is not None}
    return (max if higher else min)(values, key=values.__getitem__, default=None)
