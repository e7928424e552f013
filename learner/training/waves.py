"""Populations in waves: groups of members train one after another, each as a separate population."""

import contextlib
import copy
import dataclasses
import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from learner.distributed.process_group import ProcessGroup
from learner.errors import LearnerError
from learner.runs.layout import end_word
from learner.runs.population import read_waves, write_waves
from learner.strategies.device_lookup import memory_limit
from learner.training.checked_inputs import read_checked
from learner.training.checks.population_checks import state_bytes
from learner.training.definition import TrainingDefinition
from learner.training.feed.inputs import data_rewinder
from learner.training.files import directory
from learner.training.files.run_directory import locked_directory, may_resume
from learner.training.options import Options
from learner.training.population import Population
from learner.training.population_result import PopulationResult
from learner.training.preflight import preflight
from learner.training.programs.program_memory import memory_of
from learner.training.setup.dispatch_plan import planned

ROOM = 0.9  # fraction of a device's memory for one wave: its allocator needs some, and a validation may need more


def fit_waves(
    definition: TrainingDefinition,
    train: Any,
    valid: Any,
    processes: ProcessGroup,
    fit: Callable[[TrainingDefinition], Any],
) -> Any:
    """Train a population in waves, and return its result. If all members fit at once, they train as one population.

    A resumed run keeps completed waves. If a wave is interrupted, the next ones do not begin, and the result has the
    members so far.

    Args:
      definition: the definition of the population.
      train: see `Learner.fit`.
      valid: see `Learner.fit`.
      processes: the processes of the run.
      fit: trains a definition.
    """
    began, options = time.monotonic(), definition.options
    sizes = wave_sizes(definition, train, valid)
    if len(sizes) == 1:
        population = dataclasses.replace(options.population, waves=False)
        return fit(_with(definition, dataclasses.replace(options, population=population)))
    of_waves = [_wave_options(options, wave) for wave in options.population.in_waves(sizes)]
    if options.start is None:
        directory.refuse_run(options.directory, overwrite=options.overwrite)
        if not options.overwrite:
            directory.refuse_waves(options.directory)
    for wave in of_waves:
        may_resume(wave)  # raises, before the first of them begins
    # Before anything is read: each wave, and a resumed one, reads the same data.
    rewind = data_rewinder(train, valid)
    preflight(_with(definition, of_waves[0]), train, valid, processes).inputs.close()  # raises, too
    results: list[PopulationResult] = []
    # Without the members: each wave locks their directories itself.
    with locked_directory(dataclasses.replace(options, population=None), processes):
        processes.run_on_primary(lambda: _prepare(options, of_waves))
        for wave in of_waves:
            if options.time_limit is not None:  # it applies to all waves together
                wave = dataclasses.replace(wave, time_limit=max(0.01, options.time_limit - (time.monotonic() - began)))
            rewind()
            results.append(fit(_with(definition, wave)))
            gc.collect()  # the next wave needs the memory held by reference cycles
            if end_word(results[-1].stopped_by) != "ended":
                break
    return PopulationResult.of_waves(options.population, results)


def wave_sizes(definition: TrainingDefinition, train: Any, valid: Any) -> list[int]:
    """Return the number of members in each wave: as in the directory if the run resumes, or else as set in the builder.

    Raises:
      LearnerError: the data or the steps are wrong, or the waves in the directory have other members.
    """
    options, shares = definition.options, definition.strategy.member_shares
    population: Population = options.population
    members, waves = len(population), int(population.waves)
    if options.start is not None and directory.holds_run(options.directory):
        return [members]
    before = list(read_waves(options.directory).values()) if options.start is not None else []
    if before:
        _refuse_other(population, before)
        return [len(names) for names in before]
    if population.waves is True:
        waves = math.ceil(members / _largest_wave(definition, train, valid))
    return equal_sizes(members, waves, shares)


def equal_sizes(members: int, waves: int, shares: int = 1) -> list[int]:
    """Return the sizes of the waves, as equal as possible, each a multiple of `shares`.

    >>> equal_sizes(10, 3), equal_sizes(12, 2, shares=4)
    ([4, 3, 3], [8, 4])
    """
    least, more = divmod(members // shares, waves)
    return [(least + (wave < more)) * shares for wave in range(waves)]


def wave_name(number: int, waves: int) -> str:
    """Return the name of a wave's directory. Waves are numbered from 1.

    >>> wave_name(2, 12)
    'wave-02'
    """
    return f"wave-{number:0{len(str(waves))}d}"


def _largest_wave(definition: TrainingDefinition, train: Any, valid: Any) -> int:
    """Return the largest number of members that fit into the memory of their devices; all members if the memory is
    unknown. This compiles the training, as only that reveals the memory of activations.
    """
    population, strategy = definition.options.population, definition.strategy
    limit, shares, members = memory_limit(strategy.devices[0]), strategy.member_shares, len(population)
    if limit is None:
        return members
    each, room = state_bytes(definition.shapes()), int(limit * ROOM)
    size = min(members, max(1, room // each) * shares)
    while True:
        wave = population.in_waves([size])[0]
        tried = _with(definition, dataclasses.replace(definition.options, population=wave))
        with contextlib.closing(read_checked(tried, train, valid)) as inputs:  # raises if not even one fits
            if size == shares:
                return size
            plan = planned(tried, inputs)
            peak = max(program.peak for program in memory_of(plan.runner, plan.feed(), plan.feeder.loop))
        if tried.options.checkpoints is not None:
            peak += state_bytes(tried.shapes()) * size // shares  # the copy for a checkpoint
        if peak <= room:
            return size
        size = max(shares, min(size - shares, size * room // peak // shares * shares))


def _with(definition: TrainingDefinition, options: Options) -> TrainingDefinition:
    return definition.trial(options, copy.deepcopy(definition.optimizer))  # a copy: a run changes its plateau's state


def _refuse_other(population: Population, before: Sequence[Sequence[str]]) -> None:
    """Raise `LearnerError` if earlier waves, each a list of member names, do not match the population."""
    sizes, names = [len(wave) for wave in before], [name for wave in before for name in wave]
    if names != [member.name for member in population.members]:
        problem = "other members"
    elif population.waves is not True and len(sizes) != population.waves:
        problem = f"waves={len(sizes)}, and now has waves={population.waves}"
    else:
        return
    raise LearnerError(
        f"the population had {problem}: resume with the same population", code="resume-population-differs"
    )


def _wave_options(options: Options, wave: Population) -> Options:
    name = wave_name(*wave.wave or (1, 1))
    checkpoints = options.checkpoints
    if checkpoints is not None and checkpoints.directory is not None:
        checkpoints = dataclasses.replace(checkpoints, directory=f"{checkpoints.directory}/{name}")
    return dataclasses.replace(
        options,
        directory=options.directory / name,
        shown=f"{options.shown}/{name}",
        checkpoints=checkpoints,
        population=wave,
    )


def _prepare(options: Options, waves: Sequence[Options]) -> None:
    """Remove the run that a new population in waves replaces, and name its waves."""
    if options.start is None:
        directory.remove_members(options.directory)
        directory.remove_waves(options.directory)
        directory.prepare(options.directory, keep=False)
    if read_waves(options.directory):
        return  # of the run that resumes
    # Before the first wave begins: a run that is killed in a wave must resume with the same groups.
    named = {wave.directory.name: [member.name for member in wave.population.members] for wave in waves}
    write_waves(options.directory, named)
