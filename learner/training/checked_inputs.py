"""The data of a run, with the steps, the optimizer and the options checked on its first batches."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from learner.distributed.connection import unconnected_launcher
from learner.errors import LearnerError, Problem, one_error
from learner.optimizers.base import OptimizerFactory
from learner.schedules.base import Resolved, needs_run_length
from learner.steps.eval_params import has_eval_params
from learner.steps.optimizer import accumulates_by_itself, ignores_rate, may_evaluate_loss, varies
from learner.steps.optimizer_checks import check_replicas, no_optimizer
from learner.steps.step import StepFunctions
from learner.steps.train_state import TrainState
from learner.training.checkpoints.resumed_length import resolve_ahead
from learner.training.checks.population_checks import (
    data_order_problems,
    memory_problems,
    population_problems,
    shared_key_warnings,
)
from learner.training.checks.row_relations import warnings_of_batches
from learner.training.checks.step_checks import (
    changed_after_step,
    no_step,
    trace_train,
    trace_valid,
    update_ignores_rate,
)
from learner.training.checks.step_warnings import assignment_warnings, step_warnings
from learner.training.checks.validation_state import warnings_of_valid
from learner.training.definition import TrainingDefinition
from learner.training.feed.inputs import Inputs, closed_on_error, read_inputs
from learner.training.files.directory import problem_with
from learner.training.monitors import differing_monitors, monitored_keys, set_directions
from learner.training.options import Options
from learner.util.code_location import code_location
from learner.util.text import join_names, name_of
from learner.util.trees import named_leaves

MOST_NAMED = 3


def read_checked(definition: TrainingDefinition, train: Any, valid: Any) -> Inputs:
    """Read the data, resolve the schedules for its length, and check the steps on the first batches."""
    inputs = read_inputs(definition.options, train, valid, definition.strategy)
    with closed_on_error(inputs):
        _check_inputs(definition, inputs)
    return inputs


def _check_inputs(definition: TrainingDefinition, inputs: Inputs) -> None:
    """Resolve the schedules for the length of the data, and check the steps on its first batches. `inputs` gets the
    warnings.
    """
    options, strategy = definition.options, definition.strategy
    # First, as this redefines the step with resolved schedules, and drops its traces.
    problems = resolve_ahead(definition, inputs)
    shapes = definition.shapes()
    step = _checked_step(definition, inputs, problems)
    # Only if it differs, as each change drops the traced shapes of the first state.
    facts = {name: getattr(step, name) for name in ("own_grads", "unfrozen")}
    if facts != {name: getattr(definition.step, name) for name in facts}:
        definition.change(**facts)
    # A run does not need the rate if its optimizer is one of `learner`, whose parts may have rates of their own.
    needs_rate = definition.tests_rates or not isinstance(step.optimizer, OptimizerFactory)
    if definition.optimizer.lr and needs_rate and (ignored := ignored_rate(definition, inputs)):
        part, remedy = ignored
        if definition.tests_rates:
            raise LearnerError(
                f"{part} ignores the learning rate, so there is nothing to test: {remedy}",
                code="optimizer-ignores-rate",
            )
        inputs.warnings.append(
            f"{part} ignores the learning rate given to build, which metrics log and schedules change: {remedy}, or "
            "give lr=0.0 if the optimizer has its own rate"
        )
    if step.optimizer is not None and options.precision.scaling and may_evaluate_loss(step.optimizer, shapes.params):
        inputs.warnings.append(
            f"the optimizer ({name_of(step.optimizer)}) differentiates the loss again in each step, and these "
            "gradients have no loss scale, so float16 rounds those below 6e-8 to zero: use precision('bfloat16')"
        )
    schedule = definition.optimizer.schedule
    # One that follows the length of the run ends with it, whatever a step is.
    follows = needs_run_length(schedule.schedule if isinstance(schedule, Resolved) else schedule)
    if accumulates_by_itself(shapes.opt_state) and not follows and varies(schedule):
        inputs.warnings.append(
            "the optimizer is an optax.MultiSteps, whose updates take several steps, and the schedule counts the "
            "steps: it ends that many times earlier than in optax. Use grads_accumulation(k), which makes one step of "
            "k batches, or let the optimizer have the schedule: lambda lr: optax.MultiSteps(optax.sgd(schedule), k), "
            "with lr=0.0"
        )
    if step.update is None and (constants := step.adapter.constants):
        inputs.warnings.append(
            f"the model has Python numbers, which are not trained: {join_names(constants, MOST_NAMED)}. Make them "
            "arrays, such as jnp.float32(1.0), or ignore this warning if they are settings"
        )
    differentiates = step.update is None and not step.own_grads
    if differentiates and any(name.startswith("batch_stats.") for name in named_leaves(shapes.params)):
        inputs.warnings.append(
            "batch_stats of the model is trained by gradients, but looks like the statistics of a linen module: "
            "Linen(module, variables) updates them instead"
        )
    inputs.warnings.extend(strategy.warnings(shapes))
    if others := _unused_devices(definition):
        inputs.warnings.append(
            f"the model's arrays are on {join_names(sorted(map(str, others)), MOST_NAMED)}, and the run uses "
            f"{join_names(sorted(map(str, strategy.devices)), MOST_NAMED)}: select its devices by devices([id]) or "
            "jax_default_device"
        )
    if launcher := unconnected_launcher():
        inputs.warnings.append(
            f"{launcher}, and this one trains alone: to train one run together, call learner.init_distributed() "
            "before JAX is used, or pass --distributed to the command. Ignore this warning if each process trains "
            "its own run"
        )
    if names := _ignored_annotations(definition):
        inputs.warnings.append(
            f"the model annotates {join_names(names, MOST_NAMED)} with axes of the mesh, but the strategy places them "
            "differently: it follows only its own rules, such as Sharded(mesh, [{'kernel': (None, 'model')}])"
        )


def ignored_rate(definition: TrainingDefinition, inputs: Inputs) -> tuple[str, str] | None:
    """Return the part of the traced training that ignores the learning rate, and the remedy; None if it is used."""
    step, shapes = definition.step, definition.shapes()
    if step.update is not None:
        unused = update_ignores_rate(inputs.programs["train"].jaxpr, shapes, inputs.first_batches["train"])
        return ("update=", "pass its third argument to the optimizer") if unused else None
    if step.optimizer is None or not ignores_rate(step.optimizer, shapes.params):
        return None
    remedy = (
        "let one of its parts use it, such as a group with a factor"
        if isinstance(step.optimizer, OptimizerFactory)
        else "pass a function that uses it, such as optax.adam or lambda lr: optax.adam(lr)"
    )
    return f"the optimizer ({name_of(step.optimizer)})", remedy


def _unused_devices(definition: TrainingDefinition) -> set[Any]:
    """Return the devices of the run's platform to which the given model's arrays are committed, if the run, whose
    devices nobody has chosen, uses none of them.
    """
    strategy = definition.strategy
    committed: set[Any] = set()
    if definition.options.devices is None:
        for x in named_leaves(definition.step.adapter.params).values():
            if getattr(x, "committed", False):
                committed |= {device for device in x.devices() if device.platform == strategy.platform}
    return set() if committed & set(strategy.devices) else committed


def _ignored_annotations(definition: TrainingDefinition) -> list[str]:
    """Return the parameters that the strategy places differently from the model's annotations."""
    annotations, mesh = definition.step.adapter.annotations, getattr(definition.strategy, "mesh", None)
    if not annotations or mesh is None:
        return []
    placed: Any = named_leaves(definition.placed_shapes().params)

    def on_mesh(axis: Any) -> Any:
        given = axis if isinstance(axis, tuple) else (axis,)
        known = tuple(each for each in given if each in mesh.axis_names)
        return known if len(known) > 1 else known[0] if known else None

    of_mesh = {name: [*map(on_mesh, axes)] for name, axes in annotations.items()}

    def shortened(axes: Sequence[Any]) -> list[Any]:
        last = max((index for index, axis in enumerate(axes, 1) if axis is not None), default=0)
        return list(axes[:last])  # what follows is on no axis in either case

    return [
        n for n, axes in of_mesh.items() if any(axes) and shortened(axes) != shortened(tuple(placed[n].sharding.spec))
    ]


def _checked_step(definition: TrainingDefinition, inputs: Inputs, known: Sequence[str]) -> StepFunctions:
    """Trace the steps on the first batches and report all problems in one error, after those that are `known`. Return
    the step, which now records if it computes its own gradients. `inputs` gets the traced steps.
    """
    options, step, state, strategy = definition.options, definition.step, definition.shapes(), definition.strategy
    plateau, raw = definition.optimizer.plateau, definition.optimizer.raw
    problems = [*known, *strategy.problems(state)]
    if step.optimizer is None and step.update is None:
        problems += no_optimizer()
    elif strategy.axis is not None:
        problems += check_replicas(step.optimizer, state.params)
    if step.train is None and step.update is None:
        problems.append(Problem(no_step("train_step"), code="model-train-step-missing"))
    else:
        with _collecting(problems):
            traced = trace_train(step, state, inputs.first_batches["train"], raw)
            problems += traced.problems
            inputs.programs["train"] = traced.program
            in_place = step.adapter.changes_in_place
            inputs.warnings.extend(step_warnings(traced, "train_step" if step.update is None else "update=", in_place))
            step = dataclasses.replace(step, **traced.facts)
        if step.after_step:
            with _collecting(problems):
                changed, assigned = changed_after_step(step, state)
                inputs.warnings.extend(assignment_warnings(assigned, "after_step"))
                if changed and has_eval_params(named_leaves(state.opt_state)):
                    inputs.warnings.append(
                        f"after_step changes {join_names(changed, MOST_NAMED)}, and the optimizer averages parameters "
                        "before that: evaluation and the result have averages of unchanged values, which may be out of "
                        "bounds, for example. Ignore this warning if they are meant to be"
                    )
    if inputs.valid and step.valid is None:
        problems.append(
            Problem(f"there is validation data, but {no_step('valid_step')}", code="model-valid-step-missing")
        )
    elif inputs.valid:
        _check_valid_steps(step, state, inputs, problems, monitored_keys(options, list(inputs.valid), plateau))
    # A program that cannot be traced cannot be mapped over members either.
    if options.population is not None and not problems:
        problems += population_problems(step, state, inputs)
        if options.population.data_order == "own":
            problems += data_order_problems(inputs.source("train"))
        problems += memory_problems(state, len(options.population), strategy)
        if len({member.seed for member in options.population.members}) > 1:
            inputs.warnings.extend(shared_key_warnings(step, state))
    problems += set_directions(options, list(inputs.valid), plateau)
    inputs.warnings.extend(differing_monitors(options, list(inputs.valid)))
    problems += read_too_often(options, inputs)
    for path in dict.fromkeys((options.directory, options.checkpoint_place)):
        if isinstance(path, Path) and (problem := problem_with(path)):
            problems.append(Problem(problem, code="directory-unusable", directory=str(path)))
    if problems:
        raise one_error(list(dict.fromkeys(problems)), code="learner-untrainable")
    return step


def _check_valid_steps(
    step: StepFunctions, state: TrainState, inputs: Inputs, problems: list[str], monitored: set[str]
) -> None:
    """Trace the valid step on the first batch of each split, and append the results to `inputs` and `problems`.
    `monitored`: the keys of the metrics on which decisions depend.
    """
    warnings: dict[str, None] = {}
    for split in inputs.valid:
        batch = inputs.first_batches[split]
        with _collecting(problems):
            traced = trace_valid(step, state, batch, split)
            inputs.programs[split] = traced.program
            problems += traced.problems
            warnings |= dict.fromkeys(warnings_of_valid(step, state, batch, traced))
            batches = inputs.source(split).batches
            if traced.has_fixed_weight:
                inputs.warnings.extend(warnings_of_batches(step, state, batch, split, batches))
            if traced.has_loss:
                continue
            inputs.without_loss.add(split)
            if f"{split}/Loss" in monitored:
                inputs.warnings.append(
                    f"{split}/Loss is monitored, and it is NaN, as the GeneratedOutput of valid_step has no loss: give "
                    "it the output of a forward pass, GeneratedOutput.of(..., scored=output), or monitor another metric"
                )
    inputs.warnings.extend(warnings)


@contextlib.contextmanager
def _collecting(problems: list[str]) -> Iterator[None]:
    """Append an error raised in the block to the problems, so that further checks run. An error with the same cause as
    one of them is left out: a function may be both the train and the valid step.
    """
    try:
        yield
    except LearnerError as error:
        problem = Problem(error, code=error.code, **error.fields)
        causes = [_fault(known.cause) for known in problems if isinstance(known, Problem) and known.cause is not None]
        if problem.cause is None or _fault(problem.cause) not in causes:
            problems.append(problem)


def _fault(cause: BaseException) -> tuple[Any, ...]:
    """Return the type, the text and the place of an exception."""
    return type(cause), str(cause), code_location(cause)


def read_too_often(options: Options, inputs: Inputs) -> list[str]:
    """Return a problem for each split that can be read only once but is needed in several epochs."""
    in_waves = options.population is not None and options.population.wave is not None
    if not in_waves and (options.num_steps is not None or options.num_epochs in (None, 1)):
        return []
    needed = "the members train in waves" if in_waves else f"num_epochs is {options.num_epochs}"
    splits = [split for split in ("train", *inputs.valid) if not inputs.source(split).repeats]
    return [
        Problem(
            f"the {split} data is an iterator (or generator) that can be read once, but {needed}: "
            "pass a loader, a list, or the generator function itself rather than its result",
            code="data-read-once",
            split=split,
        )
        for split in splits
    ]
