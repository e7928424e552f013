"""The preparation of a run: everything is read and checked before anything is compiled or written."""

import functools
import time
from collections.abc import Mapping
from typing import Any

import jax

from learner.distributed.process_group import ProcessGroup
from learner.errors import LearnerError, near
from learner.training.checked_inputs import read_checked
from learner.training.checks.agreement import (
    description,
    digest,
    error_of_shapes,
    metrics_description,
    refuse_together,
)
from learner.training.checks.fingerprints import fingerprint_of
from learner.training.definition import TrainingDefinition
from learner.training.feed.inputs import Inputs, closed_on_error
from learner.training.files.run_directory import may_resume, refuse_links
from learner.training.options import Options
from learner.training.run_plan import RunPlan
from learner.util.trees import named_leaves


def preflight(definition: TrainingDefinition, train: Any, valid: Any, processes: ProcessGroup) -> RunPlan:
    """Read the data and check everything, in all processes of the run. Nothing is compiled or written.

    Raises:
      LearnerError: the run cannot begin; one error lists all problems of the input.
    """
    began, options = time.monotonic(), definition.options
    # One process checks for all of them: a moment later the directory may have changed.
    resumes = processes.run_on_primary(lambda: may_resume(options))
    # With `resume()`, this happens later, once `fit` knows that there is no checkpoint.
    if not resumes:
        definition.take_initial()
    inputs = read_checked(definition, train, valid)
    with closed_on_error(inputs):
        plan = _plan(definition, inputs, resumes, processes, began)
        processes.run_on_primary(lambda: refuse_links(options, inputs))
    return plan


def _plan(
    definition: TrainingDefinition, inputs: Inputs, resumes: bool, processes: ProcessGroup, began: float
) -> RunPlan:
    """Return the plan of a run whose steps are checked, which all processes agree on."""
    options = definition.options
    _refuse_unused(options, inputs)
    # Without checkpoints the state of the data is not needed.
    if options.checkpoints is not None:
        inputs.warnings.extend(inputs.source("train").keep_state())
    if resumes:
        inputs.warnings.extend(_redrawn(split) for split in inputs.valid if inputs.source(split).draws_itself())

    @functools.cache
    def fingerprint() -> Mapping[str, Any]:
        found = fingerprint_of(definition, inputs)
        inputs.programs.clear()  # the traced steps hold memory, and nothing else needs them
        return found

    if processes.count > 1:
        refuse_together(options, definition.strategy)
        # Each process makes its own copy of replicated arrays, and no later message reveals their values.
        adapter = definition.step.adapter
        first_values: int | str | None = None
        if not resumes:
            given = named_leaves((adapter.params, adapter.model_state))
            are_made = not any(isinstance(x, jax.ShapeDtypeStruct) for x in given.values())
            first_values = digest(given) if are_made else definition.init_fingerprint()
        metrics = metrics_description(options, inputs.programs)  # first, as the fingerprint drops the traced steps
        described = description(definition, inputs, first_values, metrics, fingerprint())
        # Before anything is compiled: devices that run different programs wait forever, or end their process from C++.
        processes.agree("what they train", described, error_of_shapes)
        # The first rows differ between processes; checkpoints hold those of the first process.
        of_first = processes.run_on_primary(fingerprint)
        fingerprint = functools.cache(lambda: of_first)
    return RunPlan(definition, inputs, resumes, processes, fingerprint, began)


def _refuse_unused(options: Options, inputs: Inputs) -> None:
    """Raise `LearnerError` if an option needs validations that have no data."""
    periods = {
        "valid_every": options.valid_every,
        "valid_every(epochs=)": options.valid_epochs,
        "valid_first": options.valid_first,
        "valid_batches": options.valid_batches,
    }
    for name, value in periods.items():
        if value is not None and not inputs.valid:
            raise LearnerError(
                f"{name} is {value}, and there is no validation data: give it to fit(train, valid) "
                f"or to build(..., valid=), or leave {name} out",
                code="learner-valid-every-without-data",
                name=name,
            )
    names = [split.removeprefix("valid-") for split in inputs.valid if split != "valid"]
    for name in options.valid_splits or {}:
        if name not in names:
            hint = near(name, names) if names else "name several by a dict, fit(train, {'ood': data})"
            raise LearnerError(
                f"valid_every has split={name!r}, which is not a validation split; {hint}",
                code="learner-valid-split-unknown",
                split=name,
            )


def _redrawn(split: str) -> str:
    return (
        f"the {split} data draws random numbers from a generator of its own, whose state is no part of a checkpoint: "
        "from here on, validations read other data than in a run without an interruption. Make the generator anew in "
        "each read, with the same seed"
    )
