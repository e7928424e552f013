"""One `fit` call: its phases, from the checks to the result."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learner.distributed.process_group import hosts
from learner.training.batch_split import resolve_split
from learner.training.checkpoints.resume import changes_since_end, find_checkpoint, first_state
from learner.training.checkpoints.resumed_length import resolve_length
from learner.training.checks.agreement import propagate_failures
from learner.training.checks.fingerprints import saved_labels
from learner.training.definition import TrainingDefinition
from learner.training.evaluation import Evaluator
from learner.training.files.run_directory import locked_directory, prepare
from learner.training.population_result import finished_result, run_result
from learner.training.preflight import preflight
from learner.training.result import LearningResult
from learner.training.run import Run
from learner.training.session import open_run
from learner.training.setup.preparation import prepare_programs
from learner.training.setup.startup import check_recordable
from learner.training.signals import TERMINATED, TERMINATING, dropped_signals
from learner.util.own_context import own_context
from learner.util.stages import enter_stage, stage_line
from learner.util.standard_streams import fill_descriptors
from learner.util.user_warnings import warn


def fit_run(
    definition: TrainingDefinition,
    evaluator: Evaluator,
    train: Any,
    valid: Any,
    *,
    begin: Callable[[], None],
    loop: Callable[[Run], str],
    announce: Callable[[Any, Run], None],
) -> LearningResult[Any]:
    """Train a run to its end, and return its result.

    Args:
      definition: the options, the step and the optimizer.
      evaluator: gets the programs of the run.
      train, valid: see `Learner.fit`.
      begin: called once nothing can be refused any more, before anything is written.
      loop: trains until the run ends, and returns the reason.
      announce: prints the overview of the run.

    Raises:
      LearnerError, SystemExit: see `Learner.fit`.
    """
    fill_descriptors()  # before any file is opened
    options, processes = definition.options, hosts()
    stages = stage_line(sys.stdout if options.renderer == "auto" and processes.index == 0 else None)
    with propagate_failures(processes), stages, own_context(), dropped_signals() as raise_dropped:
        enter_stage("checking the step")
        plan = preflight(definition, train, valid, processes)  # reads and checks; writes nothing
        # A run that starts closes its own data. This closes the data of a refused or already finished run.
        with contextlib.closing(plan.inputs), locked_directory(options, processes):
            checkpoint = find_checkpoint(plan)  # None: a new run
            resolve_length(definition, plan.inputs, checkpoint)
            if checkpoint is not None and (finished := finished_result(plan, checkpoint)) is not None:
                begin()
                evaluator.runner, result = finished
                evaluator.labels = saved_labels(checkpoint.progress)
                if text := changes_since_end(checkpoint, plan.fingerprint):
                    warn(text)
                if options.renderer is not None and processes.index == 0:
                    _announce_finished(options.directory, result)
                return result
            state = None if checkpoint is None else first_state(plan, checkpoint)
            if checkpoint is None:
                definition.take_initial()
            resolve_split(plan, checkpoint)
            enter_stage("tracing")
            with prepare_programs(plan, checkpoint) as prepared:
                if state is None:
                    enter_stage("making the model")
                    state = prepared.init()
                raise_dropped()
                check_recordable(options, state)
                begin()  # from here on, files change and one-shot data is used up
                processes.run_on_primary(lambda: prepare(options, keep=plan.resumes))
                with (
                    open_run(plan, prepared, checkpoint, state, announce) as run,
                    evaluator.training(run.runner, plan.inputs),
                ):
                    run.stop.stopped_by = loop(run)
        # Checked after the run is closed, as SIGTERM may arrive during the last save.
        if run.stop.ended_by not in TERMINATING or options.on_sigterm != "exit":
            return run_result(definition, run)
    # Outside of the block, which would report the exit to the other processes as a failure.
    sys.exit(TERMINATED)


def _announce_finished(directory: Path, result: LearningResult[Any]) -> None:
    from learner.renderers.plain import write_lines
    from learner.renderers.summary_text import heading

    write_lines([f"{directory} has nothing left to do: {heading(result.summary)}"])
